"""The views of files: `files`, how full each is; `usage`, bytes by topic and day; `index`, index entries."""

from __future__ import annotations

import logging
import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import TypeVar

import numpy as np
import pyarrow as pa

from store_format.consumequeue.files import LAYOUTS, QueueKind
from store_format.consumequeue.slices import QueueRange
from store_format.consumequeue.units import list_queues
from store_format.display.columns import (
    BROKER,
    DAY,
    INT,
    LONG,
    REAL,
    TEXT,
    TIME,
    ViewColumn,
    batch_of,
    batches_of,
    schema_of,
    time_us,
)
from store_format.errors import StorePermissionError
from store_format.files.paths import StoreFile
from store_format.files.read import files_at
from store_format.index.file import IndexFile, open_index_files
from store_format.layouts import INDEX_UNIT
from store_format.names import QueueKey, is_light_queue
from store_format.read.store import Queue, Store
from store_format.views.measure import QueueEntries, walk_queues
from store_format.views.view import View

# ---- the view files ----------------------------------------------------------------------------------------


FILE_COLUMNS = (
    BROKER,
    ViewColumn(
        "kind",
        TEXT,
        "`commitlog`, `consumequeue`, `batchconsumequeue`, `consumequeue_ext`, `index`, `timerlog`, "
        "`config`, …",
    ),
    ViewColumn(
        "file",
        TEXT,
        "The path relative to the store; a full path if the file is elsewhere (`storePathCommitLog`).",
    ),
    ViewColumn("topic", TEXT, "The topic of a queue's file."),
    ViewColumn("queueId", INT, "The queue of a queue's file."),
    ViewColumn(
        "start",
        LONG,
        "Commitlog and index: physical offset of the first message. Queue: number of the first unit.",
    ),
    ViewColumn(
        "stop",
        LONG,
        "Where the written part ends, in the same unit; for an index file, physical offset of the last "
        "message.",
    ),
    ViewColumn("entries", LONG, "Number of queue units or index entries."),
    ViewColumn("sizeBytes", LONG, "File length: a broker creates files with their full length."),
    ViewColumn("usedBytes", LONG, "Bytes of the file that are written; null if unknown."),
    ViewColumn("diskBytes", LONG, "Bytes on disk: less than the length if the file has holes."),
    ViewColumn("fill", REAL, "`usedBytes` / `sizeBytes`, 0 to 1; for an index file, entries / capacity."),
    ViewColumn("firstStoreTimestamp", TIME, "When the first message was stored."),
    ViewColumn("lastStoreTimestamp", TIME, "When the last message was stored, if the file has the time."),
    ViewColumn("modified", TIME, "The modification time, from which retention counts."),
)


_T = TypeVar("_T")

_QUEUE_KINDS = {"simple": "consumequeue", "batch": "batchconsumequeue"}


@dataclass(frozen=True, slots=True)
class FileFill:
    """The known facts about a file's contents: store times in ms, `fill` from 0 to 1."""

    topic: str | None = None
    queue_id: int | None = None
    start: int | None = None
    stop: int | None = None
    entries: int | None = None
    used: int | None = None
    fill: float | None = None
    first: int | None = None
    last: int | None = None


def files(store: Store, now_ms: int) -> Iterator[pa.RecordBatch]:
    """One row for each file. Of RocksDB's directories only `rocksdbstore` is listed."""
    return batches_of(
        FILE_COLUMNS,
        (_file_row(store, kind, path, size, fill) for kind, path, size, fill in _files_and_fills(store)),
    )


def _file_row(store: Store, kind: str, path: str, size: int, fill: FileFill) -> tuple[object, ...]:
    disk, modified = files_at(path).status(path) or (None, None)
    shown = path.removeprefix(f"{store.path}/")
    ratio = (
        fill.fill if fill.fill is not None else fill.used / size if fill.used is not None and size else None
    )
    return (
        store.broker_name, kind, os.fsencode(shown).decode(errors="replace"), fill.topic, fill.queue_id,
        fill.start, fill.stop, fill.entries, size, fill.used, disk, ratio, time_us(fill.first),
        time_us(fill.last), time_us(modified),
    )  # fmt: skip


def _files_and_fills(store: Store) -> Iterator[tuple[str, str, int, FileFill]]:
    found = store.in_log().queues()  # what the files of the consume queues have
    ranges = {(queue.topic, queue.queue_id): queue.range for queue in found}
    end = log_end(store, ranges)
    for file in store.log.files:
        yield "commitlog", file.path, file.size, _log_fill(store, file, end)
    yield from queue_files(store, ranges)
    files = store.opened.files
    list_files, list_folders = _reading(store, files.store_files), _reading(store, files.directories)
    for topic, topic_path in list_folders(f"{store.path}/consumequeue_ext"):
        for name, path in list_folders(topic_path):
            for file in list_files(path):
                yield (
                    "consumequeue_ext",
                    file.path,
                    file.size,
                    FileFill(topic, int(name) if name.isdecimal() else None),
                )
    yield from index_files(store)
    for file in list_files(f"{store.path}/timerlog"):
        yield "timerlog", file.path, file.size, FileFill(start=file.start, stop=file.stop)
    root, ledgers = store.path, store.opened.dledger_logs
    for kind, folder in (
        *(("config", f"{root}/config"), ("rocksdbstore", f"{root}/rocksdbstore"), ("root", root)),
        *(("dledger", folder) for ledger in ledgers for folder in (ledger, f"{ledger}/index")),
    ):
        yield from (
            (kind, entry.path, entry.size, FileFill())
            for entry in _reading(store, files.entries)(folder)
            if entry.kind == "file"
        )


def queue_files(
    store: Store, ranges: Mapping[QueueKey, QueueRange]
) -> Iterator[tuple[str, str, int, FileFill]]:
    """(kind, path, size, fill) of each file of a consume queue; `ranges` are the store's queues."""
    list_files = _reading(store, store.opened.files.store_files)
    for filed in list_queues(store.opened, lambda topic: True, lambda error: store.pass_over([error])):
        queue, kind = ranges.get(filed.key), filed.kind
        yield from (
            (_QUEUE_KINDS[kind], file.path, file.size, _queue_fill(file, *filed.key, queue, kind))
            for file in list_files(filed.directory)
        )


def index_files(store: Store) -> Iterator[tuple[str, str, int, FileFill]]:
    """(kind, path, size, fill) of each index file."""
    for index in _reading(store, open_index_files)(f"{store.path}/index"):
        with index:
            yield "index", index.path, index.size, _index_fill(index)


def _reading(store: Store, listing: Callable[[str], Iterable[_T]]) -> Callable[[str], list[_T]]:
    """`listing`; an unreadable directory goes to `store.pass_over`, which may raise, and is empty."""

    def listed(directory: str) -> list[_T]:
        try:
            return list(listing(directory))
        except StorePermissionError as error:
            store.pass_over([error])
            return []

    return listed


def log_end(store: Store, ranges: dict[QueueKey, QueueRange]) -> int:
    """The physical offset after the last message of any queue; rolled back messages may follow."""
    if not store.has_consume_queues:
        return store.survey(lambda topic: False).cuts[-1]
    end = store.log.min_offset
    for queue in ranges.values():
        if queue.bounds is not None and queue.bounds.last_physical_offset >= 0:
            end = max(end, queue.bounds.last_physical_offset + queue.bounds.last_size)
        extra = queue.extra_units
        if len(extra):
            end = max(end, int(extra[-1]["physical_offset"]) + int(extra[-1]["size"]))
    return end


def _log_fill(store: Store, file: StoreFile, end: int) -> FileFill:
    used = min(max(end - file.start, 0), file.size)
    first = store.time_at(store.log.message_offset(file.start)) if used else -1
    return FileFill(start=file.start, stop=file.start + used, used=used, first=first if first >= 0 else None)


def _queue_fill(
    file: StoreFile, topic: str, queue_id: int, queue: QueueRange | None, kind: QueueKind
) -> FileFill:
    if queue is None or queue.bounds is None:
        return FileFill(topic, queue_id)
    unit = LAYOUTS[kind].itemsize
    start = file.start // unit
    stop = min(max(queue.bounds.unit_stop, start), file.stop // unit)
    return FileFill(topic, queue_id, start, stop, stop - start, (stop - start) * unit)


def _index_fill(index: IndexFile) -> FileFill:
    header = index.header()
    entries = header.index_count - 1
    if not entries:
        return FileFill(entries=0, used=0, fill=0.0)
    geometry = index.geometry
    used = fill = None
    if geometry is not None:
        used = min(geometry.units_start + header.index_count * INDEX_UNIT.itemsize, index.size)
        fill = entries / (geometry.index_num - 1) if geometry.index_num > 1 else None
    return FileFill(
        None, None, header.begin_physical_offset, header.end_physical_offset, entries, used, fill,
        header.begin_timestamp, header.end_timestamp,
    )  # fmt: skip


FILES = View("files", "The store's files: their contents and how full they are.", FILE_COLUMNS, files)


# ---- the view usage ----------------------------------------------------------------------------------------


USAGE_COLUMNS = (
    BROKER,
    ViewColumn(
        "topic",
        TEXT,
        "The topic; null for bytes that are in no queue: padding, deleted topics, undecided transactions, "
        "damage.",
    ),
    ViewColumn("day", DAY, "The day of the store time, in UTC; null if unknown."),
    ViewColumn("messages", LONG, "Messages of the topic stored on that day."),
    ViewColumn("bytes", LONG, "Bytes of these messages in the commitlog."),
)

_DAY_MS = 86_400_000
_DAYS = (-719162, 2932896)  # of the years 1 to 9999, counted from 1970

_Days = dict[tuple[str, int | None], list[int]]  # (topic, day) -> [messages, bytes]


def usage(store: Store, now_ms: int) -> Iterator[pa.RecordBatch]:
    """One row for each topic and day, sorted by topic, and one row for the bytes in no queue.

    The rows add up to the written part of the commitlog. Light queues (`%LMQ%`) are left out, since their
    messages are stored and counted under another topic.
    """
    queues = store.in_log().queues()  # bytes of the commitlog
    found: _Days = defaultdict(lambda: [0, 0])
    own = [queue for queue in queues if not is_light_queue(queue.topic)]
    filed = [queue for queue in own if queue.scanned is None and queue.min_offset < queue.max_offset]
    for entries in QueueEntries.of_all([(queue, (queue.min_offset, queue.max_offset)) for queue in filed]):
        _add_queue(entries, found)
    _add_scanned(store, [queue for queue in own if queue.scanned is not None], found)
    end = log_end(store, {(queue.topic, queue.queue_id): queue.range for queue in queues})
    rest = max(end - store.log.min_offset - sum(size for _, size in found.values()), 0)
    rows = [
        (store.broker_name, topic, day, *sums) for (topic, day), sums in sorted(found.items(), key=_order)
    ]
    return batches_of(USAGE_COLUMNS, [*rows, (store.broker_name, None, None, None, rest)] if rest else rows)


def _order(item: tuple[tuple[str, int | None], list[int]]) -> tuple[str, int]:
    (topic, day), _ = item
    return topic, _DAYS[0] - 1 if day is None else day


def _day(time_ms: int | None) -> int | None:
    day = None if time_ms is None else time_ms // _DAY_MS
    return day if day is not None and _DAYS[0] <= day <= _DAYS[1] else None


def _add_queue(entries: QueueEntries, found: _Days) -> None:
    """Adds one queue, cut where the day changes.

    Store times rise along a queue, so a range that begins and ends on the same day lies within that day.
    """
    queue, looks = entries.queue, cache(entries.look)

    def day_at(offset: int) -> int | None:
        return _day(looks(offset)[0])

    edges: list[tuple[int, int | None]] = []
    open_ranges = [(queue.min_offset, queue.max_offset - 1)]
    while open_ranges:
        low, high = open_ranges.pop()
        if day_at(low) == day_at(high) or low == high:
            if not edges or edges[-1][1] != day_at(low):
                edges.append((low, day_at(low)))
        else:
            middle = (low + high) // 2
            open_ranges += [(middle + 1, high), (low, middle)]
    offsets = [offset for offset, _ in edges] + [queue.max_offset]
    for (offset, day), stop in zip(edges, offsets[1:], strict=True):
        sums = found[queue.topic, day]
        sums[0] += stop - offset
        sums[1] += entries.bytes_between(offset, stop) + (looks(offset)[2] if offset == offsets[0] else 0)


def _add_scanned(store: Store, queues: list[Queue], found: _Days) -> None:
    for (topic, _), part in walk_queues(queues):
        days = part.times // _DAY_MS
        for value in np.unique(days).tolist():
            mine = days == value
            sums = found[topic, _day(value * _DAY_MS)]
            sums[0] += int(mine.sum())
            sums[1] += int(part.sizes[mine & part.begins].sum())


USAGE = View("usage", "Bytes of the commitlog by topic and day.", USAGE_COLUMNS, usage)


# ---- the view index ----------------------------------------------------------------------------------------


_log = logging.getLogger(__name__)

_CLAMPED = 2**31 - 1

INDEX_COLUMNS = (
    BROKER,
    ViewColumn("file", TEXT, "The index file."),
    ViewColumn("number", INT, "The entry's number, from 1."),
    ViewColumn("slot", INT, "The hash slot of the entry."),
    ViewColumn("keyHash", INT, "The hash of `topic#key`; the key itself is not stored."),
    ViewColumn("physicalOffset", LONG, "The physical offset of the message."),
    ViewColumn(
        "storeTimestamp", TIME, "When the message was stored, to the second; null if the broker did not know."
    ),
    ViewColumn("previous", INT, "The previous entry in the slot's chain; 0 if there is none."),
)


def index(store: Store, now_ms: int) -> Iterator[pa.RecordBatch]:
    """One row for each entry, file by file.

    A file whose entries do not prove its numbers of slots and units is left out, with a warning.
    """
    yield batch_of(INDEX_COLUMNS, ())
    for file in open_index_files(f"{store.path}/index"):
        with file:
            if file.geometry is None:
                _log.warning(
                    "%s: the entries do not prove the numbers of hash slots and entries of the file; they "
                    "are not shown",
                    file.path,
                )
            else:
                yield from _entries(store, file)


def _entries(store: Store, file: IndexFile) -> Iterator[pa.RecordBatch]:
    begin = file.header().begin_timestamp
    slots = file.geometry.hash_slot_num if file.geometry is not None else 1
    for first, part in file.chunks():
        hashes, seconds = part["key_hash"].astype(np.int32), part["time_diff"].astype(np.int64)
        times = [
            time_us(begin + second * 1000) if 0 <= second < _CLAMPED else None for second in seconds.tolist()
        ]
        columns = [
            pa.repeat(pa.scalar(store.broker_name, TEXT), len(part)),
            pa.repeat(pa.scalar(file.path.removeprefix(f"{store.path}/"), TEXT), len(part)),
            pa.array(np.arange(first, first + len(part), dtype=np.int32)),
            pa.array((hashes.astype(np.int64) % slots).astype(np.int32)),
            pa.array(hashes),
            pa.array(part["physical_offset"].astype(np.int64)),
            pa.array(times, TIME),
            pa.array(part["prev_index"].astype(np.int32)),
        ]
        yield pa.RecordBatch.from_arrays(columns, schema=schema_of(INDEX_COLUMNS))


INDEX = View("index", "The entries of the index files.", INDEX_COLUMNS, index)
