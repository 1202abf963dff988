"""The queue and index entries of all messages of a commitlog, found on all cores.

The log is cut into parts of about 64 MiB. A part is scanned by one process (`log_scan_worker.py`). Threads
gain nothing, because most of the work holds the interpreter lock: 1 GiB of messages of 1 KiB took one
thread 2.0 s and two threads 2.0 s. The parts come back in the order of the log. A small log is scanned in
this process.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from queue import SimpleQueue
from struct import Struct

import numpy as np
from numpy.typing import NDArray

from store_format.commitlog.log import CommitLog
from store_format.commitlog.walk import Damage, UnitRun
from store_format.consumequeue.dispatch import Dispatch
from store_format.files.read import FileCache
from store_format.index.keys import unit_key_hashes
from store_format.index.updates import IndexBatch
from store_format.message.locate import locate
from store_format.message.sysflag import TRANSACTION_MASK, TRANSACTION_ROLLBACK
from store_format.message.tags_code import DELAY_LEVELS_MS
from store_format.names import QueueKey

PART_SIZE = 64 << 20
_PROCESSES_FROM = 12 * PART_SIZE  # a process needs half a second to start: the time of 256 MiB
_LENGTH = Struct("<q")


@dataclass(frozen=True, slots=True)
class LogScan:
    """What is looked for. `index` is False if nobody needs the index entries."""

    directories: tuple[str, ...]
    batch_topics: frozenset[str] = frozenset()
    delay_levels_ms: tuple[int, ...] = tuple(DELAY_LEVELS_MS)
    index: bool = True
    tag_keys: bool = True


@dataclass(frozen=True, eq=False, slots=True)
class LogPart:
    """The entries of the messages that begin in one part of the log, in the order of the log.

    `rows` are ENTRY_ROW records whose `queue` is a place in `queues`. The first message begins at `first`,
    the last one ends at `stop`; both are -1 without messages. `damage` has
    (path, byte, bytes, expected, found).
    """

    first: int
    stop: int
    units: int
    queues: list[QueueKey]
    rows: NDArray[np.void]
    index: IndexBatch | None
    damage: list[tuple[str, int, int, str, str]]


def scan_log(
    scan: LogScan, log: CommitLog, start: int, stop: int, *, processes: int | None = None
) -> Iterator[LogPart]:
    """The parts of [start, stop) in their order. A unit begins at `start`; damage is skipped and listed.

    `processes` is by default the number of cores; 0 scans in this process.
    """
    cuts = _cuts(log, start, stop)
    if processes is None:
        processes = len(os.sched_getaffinity(0)) if stop - start >= _PROCESSES_FROM else 0
    covered = start
    with ExitStack() as stack:
        parts = (
            _in_processes(scan, cuts, processes, stack)
            if processes
            else (scan_part(scan, log, *each) for each in cuts)
        )
        for (low, high), part in zip(cuts, parts, strict=True):
            # A part begins where a message was found by its bytes. The messages before decide whether one
            # begins there: such bytes may be within a message, and a message may have a wrong checksum.
            if low != start and covered >= low and part.first != covered:
                part = scan_part(scan, log, covered, high)
            covered = max(covered, part.stop)
            yield part


def scan_part(scan: LogScan, log: CommitLog, start: int, stop: int) -> LogPart:
    """The entries of the messages that begin in [start, stop)."""
    dispatch = Dispatch({}, {}, scan.batch_topics, scan.delay_levels_ms)
    first, end, units = -1, -1, 0
    indexed: list[IndexBatch] = []
    damage = []
    for run in log.walk(start, stop, resync=True) if start < stop else ():
        if isinstance(run, Damage):
            damage.append((run.file.path, run.start, run.stop - run.start, run.expected, run.found))
            continue
        first = run.file.start + int(run.positions[0]) if first < 0 else first
        end, units = run.file.start + run.stop, units + len(run.positions)
        dispatch.add(run, log)
        if scan.index:
            indexed.append(_indexed(scan, log, run))
    queues, rows = dispatch.take_rows()
    return LogPart(first, end, units, queues, rows, _joined_batches(indexed) if scan.index else None, damage)


def _indexed(scan: LogScan, log: CommitLog, run: UnitRun) -> IndexBatch:
    units, _ = locate(log.refs_of(run), verify_crc=False)
    units = units.select((units.sys_flag & TRANSACTION_MASK) != TRANSACTION_ROLLBACK)
    hashes, message_index = unit_key_hashes(units, tag_keys=scan.tag_keys)
    times = units.integers("store_timestamp").astype(np.int64)
    return IndexBatch(units.physical_offsets, times, hashes, message_index)


def _joined_batches(batches: list[IndexBatch]) -> IndexBatch:
    counts = np.cumsum([0, *(len(each.physical_offsets) for each in batches)])
    empty = np.empty(0, np.int64)
    return IndexBatch(
        np.concatenate([empty, *(each.physical_offsets for each in batches)]),
        np.concatenate([empty, *(each.store_timestamps for each in batches)]),
        np.concatenate([np.empty(0, np.int32), *(each.key_hashes for each in batches)]),
        np.concatenate(
            [empty, *(each.message_index + base for each, base in zip(batches, counts, strict=False))]
        ),
    )


def _cuts(log: CommitLog, start: int, stop: int) -> list[tuple[int, int]]:
    """[start, stop) in parts. Every file begins a part."""
    places = [start]
    for file in log.files:
        places += [place for place in range(file.start, file.stop, PART_SIZE) if start < place < stop]
    return list(zip(places, [*places[1:], stop], strict=True))


# ---- other processes ---------------------------------------------------------------------------------------


class _Worker:
    """A process that scans parts on demand.

    A process of its own, not a fork: a fork of a process with threads, such as Spark's driver, can deadlock,
    and would inherit the store's lock file.
    """

    def __init__(self, scan: LogScan) -> None:
        package = __file__
        for _ in range(3):
            package = os.path.dirname(package)
        path = os.pathsep.join(filter(None, (os.path.abspath(package), os.environ.get("PYTHONPATH"))))
        self._process = subprocess.Popen(
            [sys.executable, "-m", "store_format.commit.log_scan_worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": path},
        )
        self._send(scan)

    def _send(self, value: object) -> None:
        assert self._process.stdin is not None
        data = pickle.dumps(value)
        self._process.stdin.write(_LENGTH.pack(len(data)) + data)
        self._process.stdin.flush()

    def scan(self, start: int, stop: int) -> LogPart:
        assert self._process.stdout is not None
        self._send((start, stop))
        (length,) = _LENGTH.unpack(self._process.stdout.read(_LENGTH.size))
        found = pickle.loads(self._process.stdout.read(length))  # from our own process
        if isinstance(found, BaseException):
            raise found
        assert isinstance(found, LogPart)
        return found

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


def _in_processes(
    scan: LogScan, cuts: list[tuple[int, int]], processes: int, stack: ExitStack
) -> Iterator[LogPart]:
    """The parts in order, at most two a process ahead of the caller: they are held in memory."""
    workers = [_Worker(scan) for _ in range(min(processes, len(cuts)))]
    free: SimpleQueue[_Worker] = SimpleQueue()
    for worker in workers:
        free.put(worker)

    def run(start: int, stop: int) -> LogPart:
        worker = free.get()
        try:
            return worker.scan(start, stop)
        finally:
            free.put(worker)

    pool = stack.enter_context(ThreadPoolExecutor(len(workers), thread_name_prefix="rmqlog-scan"))
    # Before the pool waits for its threads: they wait for the processes.
    for worker in workers:
        stack.callback(worker.close)
    ahead: deque[Future[LogPart]] = deque()
    left = iter(cuts)
    while True:
        while len(ahead) < 2 * len(workers) and (cut := next(left, None)) is not None:
            ahead.append(pool.submit(run, *cut))
        if not ahead:
            return
        yield ahead.popleft().result()


def serve() -> None:
    """The worker's side: a scan, then parts until stdin is closed."""
    source, sink = sys.stdin.buffer, sys.stdout.buffer

    def receive() -> object:
        head = source.read(_LENGTH.size)
        return pickle.loads(source.read(*_LENGTH.unpack(head))) if len(head) == _LENGTH.size else None

    scan = receive()
    assert isinstance(scan, LogScan)
    log = CommitLog.open(scan.directories, FileCache())
    while (cut := receive()) is not None:
        assert isinstance(cut, tuple)
        try:
            answer: object = scan_part(scan, log, *cut)
        except Exception as error:
            answer = error
        data = pickle.dumps(answer, protocol=5)
        sink.write(_LENGTH.pack(len(data)))
        sink.write(data)
        sink.flush()
