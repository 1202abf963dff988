"""`python -m benchmarks`: fill, measure, print; with --markdown also write the figures into a page."""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from benchmarks.decode import measure_decode
from benchmarks.fill import Filling, fill
from benchmarks.planning import measure_planning
from benchmarks.pop_throughput import measure_throughput
from benchmarks.pop_waiting import measure_idle, measure_latency
from benchmarks.report import Report, write_block
from benchmarks.services import measure_lateness, measure_turns
from benchmarks.sessions import session
from benchmarks.spark_read import measure_queues, measure_spark
from benchmarks.spark_write import measure_spark_write
from benchmarks.streaming import measure_catching_up, measure_looks, measure_micro_batches
from benchmarks.writing import measure_commit, measure_encode, measure_small_commits

_BYTES = 800_000_000  # of bodies and what belongs to them, in the store of one body size
_UNIT_BYTES = 272  # a message without its body
_QUEUES_PER_TOPIC = 8


@dataclass(frozen=True, slots=True)
class _Extent:
    """How much is filled and how often it is read."""

    bytes: int
    rounds: int
    queue_messages: int
    queues: tuple[int, ...]  # of the stores that are planned; the first is also read
    small_commits: int
    stream_batches: int
    stream_batch_rows: int
    stream_queues: int
    pending: int
    due: int
    waited_messages: int
    idle_seconds: float
    spark_sizes: int | None = None  # how many of the body sizes Spark reads and writes; None: all


_FULL = _Extent(
    _BYTES, 5, 1_000_000, (10_000, 128_000), 1_000, 10, 400_000, 10_000, 1_000_000, 10_000, 500, 20
)
_QUICK = _Extent(_BYTES // 10, 3, 100_000, (1_000,), 100, 10, 40_000, 1_000, 100_000, 10_000, 100, 5)
_SMALLEST = _Extent(200_000, 1, 200, (16,), 3, 2, 100, 16, 100, 10, 5, 0.2, 1)


# processes, queues, messages of a receive
_POPS = ((1, 8, 32), (2, 8, 32), (4, 8, 32), (8, 8, 32), (1, 1, 32), (8, 1, 32), (1, 8, 1))


def main(arguments: Sequence[str] | None = None) -> int:
    given = _parser().parse_args(arguments)
    extent = _SMALLEST if given.smallest else _QUICK if given.quick else _FULL
    report = Report()
    with (
        tempfile.TemporaryDirectory(prefix="rmqlog-bench-", dir=given.directory) as directory,
        session(Path(directory)) if given.smallest and given.only is None else nullcontext(),
    ):
        if given.only in (None, "decode", "spark"):
            _measure_sizes(Path(directory), given.sizes, extent, given.only, report)
        if given.only in (None, "planning"):
            _measure_planning(Path(directory), extent, report)
        if given.only in (None, "writing"):
            _measure_writing(Path(directory), given.sizes, extent, report)
        if given.only in (None, "streaming"):
            _measure_streaming(Path(directory), extent, report)
        if given.only in (None, "services"):
            _say("services …")
            report.turns = measure_turns(Path(directory), extent.pending, extent.rounds)
            commits = (1, 10) if extent.due > 10 else (1,)
            report.lateness = [measure_lateness(Path(directory), extent.due, each) for each in commits]
        if given.only in (None, "pop"):
            _measure_pop(Path(directory), extent, report)
    text = report.markdown()
    print(text, end="")
    if given.markdown is not None:
        write_block(given.markdown, text)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description="Fill stores, read them, write others, print what it costs."
    )
    extent = parser.add_mutually_exclusive_group()
    extent.add_argument(
        "--quick", action="store_true", help="a tenth of the messages, three rounds: a minute"
    )
    extent.add_argument(
        "--smallest",
        action="store_true",
        help="one round over a few messages: shows that it runs, not how fast",
    )
    parser.add_argument(
        "--only",
        choices=("decode", "spark", "planning", "writing", "streaming", "services", "pop"),
        help="leave out the rest",
    )
    parser.add_argument(
        "--sizes", type=_sizes, default=(100, 1024, 16384), help="body sizes in bytes (100,1024,16384)"
    )
    parser.add_argument(
        "--directory",
        type=Path,
        help="where to put the stores, up to 2 GB at a time (the system's temporary directory)",
    )
    parser.add_argument("--markdown", type=Path, help="a page to write the figures into, between its marks")
    return parser


def _sizes(text: str) -> tuple[int, ...]:
    return tuple(int(size) for size in text.split(","))


@contextmanager
def _filled(directory: Path, filling: Filling) -> Iterator[Path]:
    """A store, and what is kept beside it, for as long as it is needed: each takes most of a gigabyte."""
    _say(
        f"filling {filling.messages:,} messages of {filling.body_size} bytes into {filling.queues:,} queues …"
    )
    with tempfile.TemporaryDirectory(dir=directory) as place:
        root = Path(place) / "store"
        fill(root, filling)
        yield root


def _measure_sizes(
    directory: Path, sizes: Sequence[int], extent: _Extent, only: str | None, report: Report
) -> None:
    for size in sizes:
        filling = Filling(messages=extent.bytes // (size + _UNIT_BYTES), body_size=size)
        with _filled(directory, filling) as root:
            if only != "spark":
                _say("decoding …")
                report.decode[size] = measure_decode(root, extent.rounds)
            if only != "decode" and size in sizes[: extent.spark_sizes]:
                _say("reading with Spark …")
                with session(directory) as spark:
                    report.spark[size] = measure_spark(spark, root, extent.rounds)
        _say(report.only(size).markdown())  # what is known so far, should the run be ended
    if only != "decode":
        _measure_queues(directory, extent, report)


def _measure_queues(directory: Path, extent: _Extent, report: Report) -> None:
    many = _many_queues(extent.queues[0], extent.queue_messages)
    few = Filling(messages=extent.queue_messages, body_size=100)
    with (
        _filled(directory, few) as few_root,
        _filled(directory, many) as many_root,
        session(directory) as spark,
    ):
        _say("reading few and many queues with Spark …")
        ratio, _ = measure_queues(spark, few_root, many_root, extent.rounds)
    report.queues.append((few.queues, many.queues, ratio))


def _measure_planning(directory: Path, extent: _Extent, report: Report) -> None:
    for queues in extent.queues:
        with _filled(directory, _many_queues(queues, 2 * queues)) as root:
            _say("planning …")
            report.planning.append(measure_planning(root, queues, extent.rounds))


def _measure_writing(directory: Path, sizes: Sequence[int], extent: _Extent, report: Report) -> None:
    for size in sizes:
        filling = Filling(messages=extent.bytes // 2 // (size + _UNIT_BYTES), body_size=size)
        _say(f"encoding and committing {filling.messages:,} messages of {size} bytes …")
        report.encode[size] = measure_encode(filling, extent.rounds)
        report.commit[size] = measure_commit(directory, filling, extent.rounds)
        if size in sizes[: extent.spark_sizes]:
            with _filled(directory, filling) as root, session(directory) as spark:
                _say("writing with Spark …")
                report.spark_write[size] = measure_spark_write(spark, root, directory, extent.rounds)
    _say(f"{extent.small_commits} small commits …")
    report.small_commits = measure_small_commits(directory, extent.small_commits)


def _measure_streaming(directory: Path, extent: _Extent, report: Report) -> None:
    backlog = Filling(messages=extent.stream_batches * extent.stream_batch_rows, body_size=100)
    with _filled(directory, backlog) as root, session(directory) as spark:
        _say("streams that catch up …")
        comparisons = measure_catching_up(spark, root, extent.stream_batch_rows, extent.rounds)
        report.catching_up = (extent.stream_batches, comparisons)
    few, many = _many_queues(16, 1_000), _many_queues(extent.stream_queues, 2 * extent.stream_queues)
    with _filled(directory, few) as root:
        report.looks.append(measure_looks(root, few))
    with _filled(directory, many) as root:
        _say("looks and micro-batches …")
        report.looks.append(measure_looks(root, many))
        with session(directory) as spark:
            report.micro_batches = (many.queues, measure_micro_batches(spark, root, many))


def _measure_pop(directory: Path, extent: _Extent, report: Report) -> None:
    _say("pop: waiting …")
    report.latency = [measure_latency(directory, extent.waited_messages, sync=sync) for sync in (True, False)]
    groups = ((1, 1), (1, 100), (20, 1)) if extent.idle_seconds > 1 else ((1, 2), (2, 1))
    report.idle = [measure_idle(directory, *group, extent.idle_seconds) for group in groups]
    _say("pop: receiving and acknowledging …")
    report.popped = [
        measure_throughput(
            directory, extent.queue_messages // 5, processes=processes, queues=queues, batch=batch
        )
        for processes, queues, batch in _POPS[: 1 if extent is _SMALLEST else None]
    ]


def _many_queues(queues: int, messages: int) -> Filling:
    return Filling(
        messages=messages,
        body_size=100,
        topics=queues // _QUEUES_PER_TOPIC,
        queues_per_topic=_QUEUES_PER_TOPIC,
    )


def _say(what: str) -> None:
    print(what, file=sys.stderr, flush=True)


if __name__ == "__main__":
    # an end that removes the stores, too
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    sys.exit(main())
