"""Search by key: through the index files for the part of the commitlog they cover, by a scan for the rest.

Each candidate is checked against its own topic and key, so that a hash collision gives no wrong message. What
no trustworthy index file covers is scanned, so that no message is missed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from store_format.bookkeeping.journal import StoreState
from store_format.commitlog.log import CommitLog
from store_format.consumequeue.files import list_queues
from store_format.index.query import Coverage, find_offsets, plan_coverage
from store_format.message.columns import arrow_schema
from store_format.metadata.checkpoint import Checkpoint, read_checkpoint
from store_format.metadata.read import read_topics
from store_format.metadata.values import TopicConfig
from store_format.read.snapshot import find_log_end
from store_format.read.tolerance import Tolerance
from store_format.search.found import Found, Searched
from store_format.search.key_scan import KeyQuery, KeySearch
from store_format.survey.right_entries import Contradictions

_LOOK_SIZE = 8  # total size and magic code of a message, never zero
_ORDER_COLUMNS = ("physicalOffset", "queueOffset")


def find(
    root: str,
    log: CommitLog,
    state: StoreState,
    query: KeyQuery,
    *,
    columns: Sequence[str],
    broker_name: str,
    tolerance: Tolerance,
    verify_crc: bool = True,
    use_index: bool = True,
    hash_slot_num: int | None = None,
    index_num: int | None = None,
    on_scanned: Callable[[int, int], object] | None = None,
) -> Found:
    """Finds the messages. The result is held in memory as a whole: the memory of the matching messages.

    After a crash, nothing after the log's valid end counts, and no index file that a broker would delete when
    it starts. `use_index=False` scans the whole commitlog: index files have no checksum, and a file that lost
    a link hides the messages behind that link. Nor does an index file's header show that a broker ran with
    messageIndexEnable=false for a while and then continued the same file. `on_scanned` is called during a
    scan with the bytes scanned so far and the bytes to scan at most.
    """
    coverage, topics, stop = cover(
        root, log, state, query, use_index=use_index, hash_slot_num=hash_slot_num, index_num=index_num
    )
    names = tuple(dict.fromkeys((*columns, *_ORDER_COLUMNS)))
    search = KeySearch(
        log, query, broker_name, names, tolerance, verify_crc, state is StoreState.LIVE,
        Contradictions(root, log),
    )  # fmt: skip
    if on_scanned is not None:
        search.on_scanned = partial(_report_scanned, on_scanned, scan_size(log, coverage.uncovered))
    return _search(search, coverage, topics, stop, tuple(dict.fromkeys((*columns, "physicalOffset"))))


def _report_scanned(on_scanned: Callable[[int, int], object], size: int, scanned: int) -> None:
    on_scanned(scanned, size)


def scan_size(log: CommitLog, ranges: Iterable[tuple[int, int]]) -> int:
    """Bytes of these physical ranges in files that hold messages; preallocated files do not count."""
    begun = [file for file in log.files if any(log.view(file).read(0, _LOOK_SIZE))]
    return sum(
        max(min(stop, file.stop) - max(start, file.start), 0) for start, stop in ranges for file in begun
    )


def cover(
    root: str,
    log: CommitLog,
    state: StoreState,
    query: KeyQuery,
    *,
    use_index: bool = True,
    hash_slot_num: int | None = None,
    index_num: int | None = None,
) -> tuple[Coverage, tuple[str, ...], int]:
    """Which part of the log the index files cover, for which topics, and where the log ends at most."""
    stop = find_log_end(root, log, state)
    if stop is None:
        stop = log.stop
    topics, reason = _topics_to_look_up(root, query) if use_index else ((), "the caller does not use it")
    if not topics:
        return (
            Coverage((), ((f"{root}/index", reason),), ((log.min_offset, stop),), frozenset()),
            topics,
            stop,
        )
    checkpoint = read_checkpoint(f"{root}/checkpoint") or Checkpoint()
    coverage = plan_coverage(
        f"{root}/index",
        log.min_offset,
        stop,
        is_unit=log.has_message_at,
        timestamp_max=checkpoint.index_msg_timestamp if state is StoreState.CRASHED else None,
        hash_slot_num=hash_slot_num,
        index_num=index_num,
        keys=[(topic, query.key) for topic in topics],
    )
    return coverage, topics, stop


def _topics_to_look_up(root: str, query: KeyQuery) -> tuple[tuple[str, ...], str]:
    """The topics to look up in the index; none, with the reason, where only a scan finds all messages.

    Without a topic in the question these are all topics with a queue or a configuration. Messages that a
    deleted topic left in the commitlog are found if the question names the topic, or without the index.
    """
    configured: Mapping[str, TopicConfig] = read_topics(root) or {}
    stored = {
        (topic, kind) for topic, _, _, kind in list_queues(root, lambda topic: query.topic in (None, topic))
    }
    batch = {topic for topic, kind in stored if kind == "batch"} | {
        name for name, topic in configured.items() if topic.queue_type == "BatchCQ"
    }
    if batch if query.topic is None else query.topic in batch:
        return (), "topics with queue.type=BatchCQ keep keys inside batches, which index files do not cover"
    if query.topic is not None:
        return (query.topic,), ""
    if not stored:
        return (), "without consume queue files the store's topics are unknown; give the topic"
    return tuple(sorted({topic for topic, _ in stored} | set(configured))), ""


def _search(
    search: KeySearch, coverage: Coverage, topics: tuple[str, ...], stop: int, shown: tuple[str, ...]
) -> Found:
    candidates = _indexed_offsets(search.query, coverage, topics)
    candidates = candidates[(candidates >= search.log.min_offset) & (candidates < stop)]
    batches = list(search.candidates(candidates))
    for start, end in coverage.uncovered:
        batches += search.scan(start, end, coverage.edges)
    how = (
        "scan"
        if not coverage.files
        else "index and scan"
        if search.units_scanned or search.damaged_bytes
        else "index"
    )
    searched = Searched(
        topics if coverage.files else (),
        tuple(file.path for file in coverage.files),
        coverage.unused,
        len(candidates),
        coverage.uncovered,
        search.bytes_scanned,
        search.damaged_bytes,
    )
    return Found(ordered(batches, search.names).select(shown), how, searched)


def _indexed_offsets(query: KeyQuery, coverage: Coverage, topics: Sequence[str]) -> NDArray[np.int64]:
    if not coverage.files or not topics:
        return np.empty(0, np.int64)
    parts = [find_offsets(coverage.files, topic, query.key, query.begin_ms, query.end_ms) for topic in topics]
    return np.unique(np.concatenate(parts))


def ordered(batches: list[pa.RecordBatch], names: tuple[str, ...]) -> pa.Table:
    """The rows in commitlog order, each once: index and scan both find messages at the edges of a file."""
    table = pa.Table.from_batches(batches, arrow_schema(names))
    places = np.stack([table[name].to_numpy().astype(np.int64) for name in _ORDER_COLUMNS])
    _, first = np.unique(places, axis=1, return_index=True)
    return table.take(pa.array(first))
