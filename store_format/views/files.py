"""The view `files`: the purpose, offsets and fill of each file of a store."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import pyarrow as pa

from store_format.consumequeue.files import list_queues
from store_format.consumequeue.slices import QueueRange
from store_format.display.columns import BROKER, INT, LONG, REAL, TEXT, TIME, ViewColumn, batches_of, time_us
from store_format.errors import StorePermissionError
from store_format.files.read import StoreFile, file_status, list_directories, list_entries, list_store_files
from store_format.index.file import IndexFile, open_index_files
from store_format.layouts import BATCH_CQ_UNIT, CQ_UNIT, INDEX_UNIT
from store_format.names import QueueKey
from store_format.views.view import View

if TYPE_CHECKING:
    from store_format.read.store import Store

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
    disk, modified = file_status(path) or (None, None)
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
    ranges = _ranges_by_queue(store)
    end = log_end(store, ranges)
    for file in store.log.files:
        yield "commitlog", file.path, file.size, _log_fill(store, file, end)
    yield from queue_files(store, ranges)
    list_files, list_folders = _reading(store, list_store_files), _reading(store, list_directories)
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
    for kind, folder in (("config", "/config"), ("rocksdbstore", "/rocksdbstore"), ("root", "")):
        for entry in _reading(store, list_entries)(f"{store.path}{folder}"):
            if entry.kind == "file":
                yield kind, entry.path, entry.size, FileFill()


def queue_files(
    store: Store, ranges: Mapping[QueueKey, QueueRange]
) -> Iterator[tuple[str, str, int, FileFill]]:
    """(kind, path, size, fill) of each file of a consume queue; `ranges` are the store's queues."""
    list_files = _reading(store, list_store_files)
    for topic, queue_id, directory, kind in list_queues(
        store.path, lambda topic: True, lambda error: store.pass_over([error])
    ):
        queue = ranges.get((topic, queue_id))
        for file in list_files(directory):
            yield _QUEUE_KINDS[kind], file.path, file.size, _queue_fill(file, topic, queue_id, queue, kind)


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


def _ranges_by_queue(store: Store) -> dict[QueueKey, QueueRange]:
    return {(queue.topic, queue.queue_id): queue.range for queue in store.queues()}


def log_end(store: Store, ranges: dict[QueueKey, QueueRange]) -> int:
    """The physical offset after the last message of any queue; rolled back messages may follow."""
    if not store.has_consume_queues:
        return store.survey(lambda topic: False).cuts[-1]
    end = store.log.min_offset
    for queue in ranges.values():
        if queue.bounds is not None and queue.bounds.last_physical_offset >= 0:
            end = max(end, queue.bounds.last_physical_offset + queue.bounds.last_size)
        extra = np.frombuffer(queue.extra, BATCH_CQ_UNIT if queue.is_batch else CQ_UNIT)
        if len(extra):
            end = max(end, int(extra[-1]["physical_offset"]) + int(extra[-1]["size"]))
    return end


def _log_fill(store: Store, file: StoreFile, end: int) -> FileFill:
    used = min(max(end - file.start, 0), file.size)
    first = store.time_at(file.start) if used else -1
    return FileFill(start=file.start, stop=file.start + used, used=used, first=first if first >= 0 else None)


def _queue_fill(file: StoreFile, topic: str, queue_id: int, queue: QueueRange | None, kind: str) -> FileFill:
    if queue is None or queue.bounds is None:
        return FileFill(topic, queue_id)
    unit = (CQ_UNIT if kind == "simple" else BATCH_CQ_UNIT).itemsize
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


VIEW = View("files", "The store's files: their contents and how full they are.", FILE_COLUMNS, files)
