"""The parts of the comparison with an older commit: each opens its cases, which both commits have under the
same names.

A case runs once when it is called. It returns how many rows (or bytes) it went through, and the seconds where
they are not those of the call.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks.fill import Filling

Outcome = int | tuple[int, float]  # rows; seconds, where the call's own are others


@dataclass(frozen=True, slots=True)
class Case:
    """`before` is called untimed ahead of each call."""

    call: Callable[[], Outcome]
    before: Callable[[], None] | None = None


Cases = dict[str, Case]


def _plain(calls: Mapping[str, Callable[[], int]], names: tuple[str, ...]) -> Cases:
    return {name: Case(calls[name]) for name in names}


# Imports are in the parts: each process measures one part, and start-up and planning none of this.


@contextmanager
def _decode(root: Path, directory: Path, filling: Filling, extra: int) -> Iterator[Cases]:
    from benchmarks.decode import decode_cases

    yield _plain(decode_cases(root), ("default columns, CRC on", "default columns, CRC off"))


@contextmanager
def _read(root: Path, directory: Path, filling: Filling, extra: int) -> Iterator[Cases]:
    from benchmarks.sessions import session
    from benchmarks.spark_read import read_cases

    with session(directory) as spark:
        group = "default columns"
        calls = read_cases(spark, root, directory, [group])
        yield _plain(calls, (group, f"{group}, CRC on", f"{group}, CRC off"))


@contextmanager
def _narrow(root: Path, directory: Path, filling: Filling, extra: int) -> Iterator[Cases]:
    from benchmarks.sessions import session
    from benchmarks.spark_read import read_cases

    with session(directory) as spark:
        groups = ("queueOffset, one property", "body")
        calls = read_cases(spark, root, directory, groups)
        yield _plain(calls, tuple(name for group in groups for name in (group, f"{group}, CRC off")))


@contextmanager
def _stream(root: Path, directory: Path, filling: Filling, extra: int) -> Iterator[Cases]:
    from benchmarks.sessions import session
    from benchmarks.streaming import catching_up_cases

    with session(directory) as spark:
        calls = catching_up_cases(spark, root, directory, extra)
        yield _plain(calls, ("ceiling", "stream, default columns, CRC on"))


@contextmanager
def _encode(root: Path, directory: Path, filling: Filling, extra: int) -> Iterator[Cases]:
    from benchmarks.writing import encode_case

    yield {"encode": Case(encode_case(filling))}


@contextmanager
def _commit(root: Path, directory: Path, filling: Filling, extra: int) -> Iterator[Cases]:
    from benchmarks.writing import INDEXED, CommitPlace

    place = CommitPlace(directory / "commit", filling)
    commit = partial(place.commit, False)
    try:
        yield {
            "no index": Case(commit, partial(place.stage, False)),
            INDEXED: Case(commit, partial(place.stage, True)),
        }
    finally:
        place.clear()


@contextmanager
def _write(root: Path, directory: Path, filling: Filling, extra: int) -> Iterator[Cases]:
    from benchmarks.pages import settle
    from benchmarks.sessions import session
    from benchmarks.spark_write import cached_messages, remove, write_cases

    target = directory / "written"

    def prepare() -> None:
        remove(target)
        settle(directory, filling)

    with session(directory) as spark, cached_messages(spark, root) as frame:
        calls = write_cases(frame, target)
        names = ("ceiling", "ASYNC_FLUSH, with index")
        try:
            yield {name: Case(calls[name], prepare) for name in names}
        finally:
            remove(target)


@contextmanager
def _search(root: Path, directory: Path, filling: Filling, extra: int) -> Iterator[Cases]:
    """Seconds for the bytes of the log. The key is that of the last message."""
    from store_format import MessageStore

    def find() -> int:
        found = MessageStore.open(str(root)).find(key=f"order-{filling.messages - 1}", use_index=False)
        return _as_expected(found.table.num_rows, 1, size)

    def walk() -> int:
        log = MessageStore.open(str(root)).log
        walked = log.walk(0, None, verify_crc=True, resync=False)
        for _ in walked:
            pass
        return _as_expected(walked.sums.units, filling.messages, size)

    def verify() -> int:
        return _as_expected(MessageStore.open(str(root)).diagnose().summary.units, filling.messages, size)

    walked = MessageStore.open(str(root)).log.walk(0, None, verify_crc=False, resync=False)
    for _ in walked:
        pass
    size = walked.sums.unit_bytes
    yield {"find by scan": Case(find), "walk": Case(walk), "verify": Case(verify)}


def _as_expected(found: int, expected: int, result: int) -> int:
    if found != expected:
        raise ValueError(f"{found} messages were found, {expected} expected")
    return result


@contextmanager
def _rebuild(root: Path, directory: Path, filling: Filling, extra: int) -> Iterator[Cases]:
    """`recover().apply()` of a copy that has lost its consume queues and has no index yet. The commitlog's
    files are hard links: a recovery of a whole log does not change them.
    """
    copy = directory / "lost"

    def lose() -> None:
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(root / "commitlog", copy / "commitlog", copy_function=os.link)
        for name in ("config", "checkpoint", "lock"):
            _copy(root / name, copy / name)

    def rebuild() -> int:
        from store_format import MessageStore

        table = MessageStore.open(str(copy)).recover().apply()
        entries = dict.fromkeys(("consumequeue", "index"), 0)
        for row in table.to_pylist():
            if row["part"] in entries:
                entries[row["part"]] += row["entries"]
        return _as_expected(entries["consumequeue"], filling.messages, filling.messages)

    try:
        yield {"rebuild": Case(rebuild, lose)}
    finally:
        shutil.rmtree(copy, ignore_errors=True)


def _copy(source: Path, target: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, target)
    else:
        shutil.copy(source, target)


@contextmanager
def _plan(root: Path, directory: Path, filling: Filling, extra: int) -> Iterator[Cases]:
    from benchmarks.planning import plan_once

    def plan() -> Outcome:
        return filling.queues, plan_once(root, filling.queues).seconds

    yield {"plan": Case(plan)}


@contextmanager
def _look(root: Path, directory: Path, filling: Filling, extra: int) -> Iterator[Cases]:
    """Each version appends to a store of its own."""
    from benchmarks.fill import fill
    from benchmarks.streaming import TICK_S, append_more
    from rmq_spark.options.option import STREAM
    from rmq_spark.options.read_options import parse_read_options
    from rmq_spark.stream.positions import StreamPositions
    from rmq_spark.stream.stores import StreamStores

    own = directory / "looked-at"
    fill(own, filling)
    options = parse_read_options({"path": str(own), "startingOffsets": "earliest"}, where=STREAM)
    positions = StreamPositions(StreamStores(options))
    ends = [positions.latest(positions.initial())]

    def append() -> None:
        append_more(own, filling, filling.queues)
        time.sleep(TICK_S)

    def look() -> int:
        ends.append(positions.latest(ends[-1]))
        return _as_expected(ends[-1] == ends[-2], False, filling.queues)

    yield {"latestOffset": Case(look, append)}


_FIRST_ID = "0A01020400002A9F0000000000000000"  # store host of `fill`, physical offset 0
_FIRST_ROWS = """
import sys, time
import rmq_spark
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
rmq_spark.register(spark)
begun = time.monotonic()
rows = spark.read.format("rmqlog").load(sys.argv[1]).take(1000)
print(len(rows), time.monotonic() - begun)
"""


@contextmanager
def _start(root: Path, directory: Path, filling: Filling, extra: int) -> Iterator[Cases]:
    """New processes. `first rows` is timed from the end of Spark's own start."""
    environment = dict(os.environ, PYTHONPATH=os.getcwd())

    def run(*arguments: str) -> str:
        command = [sys.executable, *arguments]
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
        return done.stdout

    def first_rows() -> Outcome:
        rows, seconds = run("-c", _FIRST_ROWS, str(root)).split()[-2:]
        return int(rows), float(seconds)

    def help_() -> int:
        return _as_expected("Usage" in run("-m", "rmq_spark.cli", "--help"), True, 1)

    def get() -> int:
        return len(json.loads(run("-m", "rmq_spark.cli", "get", str(root), _FIRST_ID, "-o", "json")))

    yield {"first rows": Case(first_rows), "help": Case(help_), "get": Case(get)}


Part = Callable[[Path, Path, Filling, int], AbstractContextManager[Cases]]

PARTS: dict[str, Part] = {
    "decode": _decode,
    "read": _read,
    "narrow": _narrow,
    "stream": _stream,
    "encode": _encode,
    "commit": _commit,
    "write": _write,
    "search": _search,
    "rebuild": _rebuild,
    "plan": _plan,
    "look": _look,
    "start": _start,
}
