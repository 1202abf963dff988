"""The queue and index entries of all messages of a commitlog, found on all cores.

The log is cut into parts of about 64 MiB, which threads scan: reads and kernels run without the interpreter
lock. The parts come back in the order of the log.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from threading import local

import numpy as np
from numpy.typing import NDArray

from store_format.commitlog.log import CommitLog
from store_format.commitlog.walk import Damage
from store_format.consumequeue.dispatch import Dispatch
from store_format.index.keys import index_batch
from store_format.index.updates import IndexBatch
from store_format.message.tags_code import DELAY_LEVELS_MS
from store_format.names import QueueKey

PART_SIZE = 64 << 20


@dataclass(frozen=True, slots=True)
class LogScan:
    """What is looked for. `index` is False if nobody needs the index entries."""

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
    scan: LogScan, log: CommitLog, start: int, stop: int, *, threads: int | None = None
) -> Iterator[LogPart]:
    """The parts of [start, stop) in their order. A unit begins at `start`; damage is skipped and listed.

    `threads` is by default the number of cores; 0 scans in this thread.
    """
    cuts = _cuts(log, start, stop)
    if threads is None:
        threads = len(os.sched_getaffinity(0)) if stop - start > PART_SIZE else 0
    covered = start
    with ExitStack() as stack:
        parts = (
            _in_threads(scan, log, cuts, threads, stack)
            if threads
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
            indexed.append(index_batch(log.refs_of(run), tag_keys=scan.tag_keys))
    queues, rows = dispatch.take_rows()
    return LogPart(first, end, units, queues, rows, _joined_batches(indexed) if scan.index else None, damage)


def by_queue(names: list[QueueKey], rows: NDArray[np.void]) -> Iterator[tuple[QueueKey, NDArray[np.void]]]:
    """The ENTRY_ROW records of each queue, in the order of the log."""
    if not len(rows):
        return
    small = len(names) < 1 << 15  # numpy sorts 16-bit numbers in one pass
    rows = rows[np.argsort(rows["queue"].astype(np.int16 if small else np.int64), kind="stable")]
    for mine in np.split(rows, np.flatnonzero(np.diff(rows["queue"])) + 1):
        physical = mine["physical"]
        if (physical[1:] < physical[:-1]).any():
            mine = mine[np.argsort(physical, kind="stable")]
        yield names[int(mine["queue"][0])], mine


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


def _in_threads(
    scan: LogScan, log: CommitLog, cuts: list[tuple[int, int]], threads: int, stack: ExitStack
) -> Iterator[LogPart]:
    """The parts in order, at most two a thread ahead of the caller: they are held in memory."""

    own = local()  # a FileCache is for one thread

    def run(start: int, stop: int) -> LogPart:
        own.log = getattr(own, "log", None) or log.apart()
        return scan_part(scan, own.log, start, stop)

    pool = ThreadPoolExecutor(threads, thread_name_prefix="rmqlog-scan")
    stack.callback(pool.shutdown, cancel_futures=True)
    ahead: deque[Future[LogPart]] = deque()
    left = iter(cuts)
    while True:
        while len(ahead) < 2 * threads and (cut := next(left, None)) is not None:
            ahead.append(pool.submit(run, *cut))
        if not ahead:
            return
        yield ahead.popleft().result()
