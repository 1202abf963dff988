"""The figures as tables: the same Markdown for a terminal and for docs/benchmarks.md, where it is written
between two marks.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

from benchmarks.planning import Planning
from benchmarks.pop_throughput import Throughput
from benchmarks.pop_waiting import Idle, Latency
from benchmarks.rounds import Figure, Rates
from benchmarks.services import Lateness, Turns
from benchmarks.spark_read import Comparison, Memory
from benchmarks.streaming import Looks
from benchmarks.writing import SmallCommits

_PACKAGES = ("pyspark", "numpy", "pyarrow")


@dataclass(slots=True)
class Report:
    """Everything one run measured; what was not measured stays empty and is not shown."""

    decode: dict[int, list[Rates]] = field(default_factory=dict)  # by body size
    spark: dict[int, tuple[list[Comparison], Memory]] = field(default_factory=dict)
    # (few, many, time of many by time of few)
    queues: list[tuple[int, int, Figure]] = field(default_factory=list)
    planning: list[list[Planning]] = field(default_factory=list)
    encode: dict[int, Rates] = field(default_factory=dict)
    commit: dict[int, dict[str, Rates]] = field(default_factory=dict)
    spark_write: dict[int, tuple[list[Comparison], Memory]] = field(default_factory=dict)
    small_commits: list[SmallCommits] = field(default_factory=list)
    catching_up: tuple[int, list[Comparison]] | None = None  # (batches, what was compared)
    looks: list[Looks] = field(default_factory=list)
    micro_batches: tuple[int, Figure] | None = None  # (queues, seconds)
    turns: list[Turns] = field(default_factory=list)
    lateness: list[Lateness] = field(default_factory=list)
    latency: list[Latency] = field(default_factory=list)
    idle: list[Idle] = field(default_factory=list)
    popped: list[Throughput] = field(default_factory=list)

    def only(self, size: int) -> Report:
        """What was measured for one body size."""
        return Report(
            {key: found for key, found in self.decode.items() if key == size},
            {key: found for key, found in self.spark.items() if key == size},
            encode={key: found for key, found in self.encode.items() if key == size},
            commit={key: found for key, found in self.commit.items() if key == size},
            spark_write={key: found for key, found in self.spark_write.items() if key == size},
        )

    def markdown(self) -> str:
        reading = [*self._decode(), *self._spark(), *self._queues(), *self._planning()]
        parts = [machine(), *reading, *self._writing(), *self._small_commits(), *self._streaming()]
        parts += [*self._services(), *self._pop()]
        return "\n\n".join(parts) + "\n"

    def _decode(self) -> Iterable[str]:
        if self.decode:
            yield "Decoding alone, one thread, in millions of messages a second (median, minimum):"
            names = [rates.name for rates in next(iter(self.decode.values()))]
            rows = [
                [name, *(_millions(cases[i].rate()) for cases in self.decode.values())]
                for i, name in enumerate(names)
            ]
            yield table(["columns", *(_size(size) for size in self.decode)], rows)

    def _spark(self) -> Iterable[str]:
        if not self.spark:
            return
        yield (
            "Spark, `local[2]`, into the noop sink: millions of rows a second beside the transport ceiling,"
            " a data source that gives "
            "ready Arrow batches of the same columns and sizes; the ratio of the two in the same round "
            "(median, minimum), and the ratio of "
            "rows by CPU time of all processes:"
        )
        for size, (comparisons, memory) in self.spark.items():
            yield table(
                [f"{_size(size)} bodies", "rows/s", "ceiling", "ratio", "ratio by CPU"],
                map(_compared, comparisons),
            )
            yield (
                f"Most memory of one Python worker: {_mib(memory.own_bytes)} of its own, "
                f"{_mib(memory.resident_bytes)} with the "
                "pages of programs and libraries."
            )

    def _queues(self) -> Iterable[str]:
        for few, many, ratio in self.queues:
            shown = f"{ratio.median:.2f} (minimum {ratio.minimum:.2f})"
            yield (
                f"The same messages in {many:,} queues take {shown} times as long as in {few:,}, planning "
                f"included."
            )

    def _planning(self) -> Iterable[str]:
        if self.planning:
            yield "Planning, in a process of its own:"
            rows = []
            for runs in self.planning:
                times = [run.seconds for run in runs]
                memory = _mib(max(run.resident_bytes for run in runs))
                seconds = f"{Figure.of(times).median:.2f} ({max(times):.2f})"
                rows.append([f"{runs[0].queues:,}", seconds, str(runs[0].partitions), memory])
            yield table(["queues", "seconds: median (maximum)", "partitions", "memory of the process"], rows)

    def _writing(self) -> Iterable[str]:
        if self.encode:
            yield (
                "Writing without Spark, in millions of messages a second (median, minimum); a commit is "
                "the driver's part, one thread:"
            )
            names = list(next(iter(self.commit.values())))
            rows = [["encode", *(_millions(rates.rate()) for rates in self.encode.values())]]
            rows += [
                [name, *(_millions(cases[name].rate()) for cases in self.commit.values())] for name in names
            ]
            yield table(["", *(f"{_size(size)} bodies" for size in self.encode)], rows)
        if self.spark_write:
            yield (
                "Spark, `local[2]`, from a cached DataFrame into a new store: millions of rows a second "
                "beside a sink that takes the same "
                "Arrow batches and only counts:"
            )
        for size, (comparisons, memory) in self.spark_write.items():
            yield table(
                [f"{_size(size)} bodies", "rows/s", "ceiling", "ratio", "ratio by CPU"],
                map(_compared, comparisons),
            )
            yield f"Most memory of one Python worker, tasks and commit: {_mib(memory.own_bytes)} of its own."

    def _small_commits(self) -> Iterable[str]:
        if self.small_commits:
            yield (
                "Commits of ten messages, one after another, in milliseconds (median), and the part that "
                "waited for the disk:"
            )
            rows = []
            for each in self.small_commits:
                times = [f"{figure.median:.1f}" for figure in (each.milliseconds, each.fsync_milliseconds)]
                rows.append([each.flush_disk_type, f"{each.commits:,}", *times, str(each.files_left)])
            yield table(["", "commits", "a commit", "of it fsync", "files left behind"], rows)

    def _streaming(self) -> Iterable[str]:
        if self.catching_up is not None:
            batches, comparisons = self.catching_up
            yield (
                f"A stream with `AvailableNow` that catches up in {batches} batches, from its start to its "
                "end, 100 B bodies: millions of rows a "
                "second beside the same stream of ready Arrow batches in two partitions:"
            )
            yield table(["", "rows/s", "ceiling", "ratio", "ratio by CPU"], map(_compared, comparisons))
        if self.looks:
            yield "What `latestOffset` takes, in milliseconds (median, minimum):"
            figures = [
                (each.queues, each.idle_milliseconds, each.few_milliseconds, each.all_milliseconds)
                for each in self.looks
            ]
            rows = [[f"{queues:,}", *map(_shown, times)] for queues, *times in figures]
            yield table(
                ["queues", "nothing appended", "ten messages appended", "a message appended to each queue"],
                rows,
            )
        if self.micro_batches is not None:
            queues, seconds = self.micro_batches
            shown = f"{seconds.median:.2f} s (minimum {seconds.minimum:.2f})"
            yield f"A micro-batch in which each of {queues:,} queues has a new message: {shown}."

    def _services(self) -> Iterable[str]:
        if self.turns:
            yield "A turn of the services without a due message, in milliseconds:"
            rows = [
                [
                    f"{each.pending:,}",
                    each.services,
                    _shown(each.milliseconds),
                    f"{each.milliseconds_max:.1f}",
                ]
                for each in self.turns
            ]
            yield table(["delayed messages that wait", "services", "median (minimum)", "maximum"], rows)
        if self.lateness:
            yield "From the delivery time of a delayed message until its copy can be read, in milliseconds:"
            rows = [
                [f"{each.messages:,}", str(each.commits), f"{each.p50_ms:.0f}", f"{each.p99_ms:.0f}",
                 f"{each.max_ms:.0f}"]
                for each in self.lateness
            ]  # fmt: skip
            yield table(["messages due within a second", "commits", "p50", "p99", "maximum"], rows)

    def _pop(self) -> Iterable[str]:
        if self.latency:
            yield (
                "From the return of an append in one process until a consumer that waits in another process "
                "has received the message, in milliseconds:"
            )
            rows = [
                [each.commit, f"{each.messages:,}", f"{each.p50_ms:.1f}", f"{each.p99_ms:.1f}",
                 f"{each.append_p50_ms:.1f}"]
                for each in self.latency
            ]  # fmt: skip
            yield table(["commit", "messages", "p50", "p99", "the append itself, p50"], rows)
        if self.idle:
            yield "Consumers that wait while nothing comes:"
            rows = [
                [str(each.processes), str(each.consumers), f"{100 * each.core:.1f} %"] for each in self.idle
            ]
            yield table(["processes", "consumers in each", "CPU time, of one core"], rows)
        if self.popped:
            yield "Messages that consumers receive and acknowledge:"
            rows = [
                [str(each.processes), str(each.queues), str(each.batch),
                 f"{each.messages / each.seconds:,.0f}", f"{1e6 * each.cpu_seconds / each.messages:.1f}"]
                for each in self.popped
            ]  # fmt: skip
            yield table(["processes", "queues", "batch", "messages a second", "CPU µs a message"], rows)


def write_block(path: Path, text: str, mark: str = "measured") -> None:
    """Replaces what is between <!-- mark --> and <!-- /mark --> in `path` by `text`. Raises ValueError for a
    file without them.
    """
    marks = f"<!-- {mark} -->", f"<!-- /{mark} -->"
    old = path.read_text(encoding="utf-8")
    head, begin, rest = old.partition(marks[0])
    _, end, tail = rest.partition(marks[1])
    if not begin or not end:
        raise ValueError(f"{path}: no {marks[0]} … {marks[1]} to write between")
    path.write_text(f"{head}{begin}\n\n{text}\n{end}{tail}", encoding="utf-8")


def machine() -> str:
    """What the figures depend on: cores and versions."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    versions = ", ".join(f"{name} {version(name)}" for name in _PACKAGES)
    return f"{cores} cores, Python {platform.python_version()}, {versions}."


def _compared(one: Comparison) -> tuple[str, ...]:
    ratio, cpu_ratio = one.rates.ratio(one.ceiling), one.rates.cpu_ratio(one.ceiling)
    ceiling = f"{one.ceiling.rate().median / 1e6:.2f}"
    return (
        one.name,
        _millions(one.rates.rate()),
        ceiling,
        f"{ratio.median:.2f} ({ratio.minimum:.2f})",
        f"{cpu_ratio.median:.2f}",
    )


def _millions(figure: Figure) -> str:
    return f"{figure.median / 1e6:.2f} ({figure.minimum / 1e6:.2f})"


def _shown(figure: Figure) -> str:
    return f"{figure.median:.3f} ({figure.minimum:.3f})"


def _size(size: int) -> str:
    return f"{size >> 10} KiB" if size >= 1024 else f"{size} B"


def _mib(count: int) -> str:
    return f"{count / (1 << 20):,.0f} MiB"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of Markdown, all columns but the first aligned to the right."""
    lines = [list(head), ["---"] + ["---:"] * (len(head) - 1), *map(list, rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
