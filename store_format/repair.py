"""What a broker does when it starts on a store that crashed, done by a writer before it appends (DefaultMessageStore.recover).

The log ends at its first bad unit, and nothing is left behind that; every message before it gets the queue entry and the
index entries it lacks, however many files that takes: a 5.4 broker looks at the last 10 only.
"""

from __future__ import annotations

import datetime
import logging
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from store_format.batch_consume_queue import batch_queue_bounds
from store_format.checkpoint import Checkpoint, read_checkpoint
from store_format.commit_log import CommitLog
from store_format.config_json import read_topics
from store_format.consume_queue import simple_queue_bounds
from store_format.cq_writer import pre_blank_bytes
from store_format.decode import UnitRefs, locate
from store_format.dispatch import MissingEntries
from store_format.errors import CorruptStoreError, UnsupportedFormatError
from store_format.files import list_store_files, offset_file_name
from store_format.index_file import IndexFile, IndexHeader, list_index_files
from store_format.index_files import IndexFiles
from store_format.index_keys import unit_key_hashes
from store_format.index_writer import IndexBatch
from store_format.layouts import CQ_PRE_BLANK_SIZE, CQ_UNIT
from store_format.log_files import LogFiles
from store_format.queue_files import queue_directory
from store_format.readable_end import refuse_cut
from store_format.recovery import LogEnd, find_end, missing_entries
from store_format.snapshot import list_queues
from store_format.store_settings import StoreSettings
from store_format.sysflag import TRANSACTION_MASK, TRANSACTION_ROLLBACK
from store_format.walk import Damage
from store_format.write_files import FileWrites

__all__ = ["rebuild_index_from", "repair"]

_log = logging.getLogger(__name__)

_Queue = tuple[str, int]
_OFFSET_MAX = 2**63 - 1
_LOST_MAX = 1 << 22  # places without a message in one queue: beyond it is damage, not a crash


def repair(
    root: str,
    log: CommitLog,
    log_files: LogFiles,
    settings: StoreSettings,
    files: FileWrites,
    *,
    index: bool,
    tag_keys: bool,
    timestamp: int,
    zone: datetime.tzinfo,
    mended: int = _OFFSET_MAX,
    cut_after_damage: bool = False,
    staged: tuple[int, int] | None = None,
) -> LogEnd:
    """Makes log, consume queues and index agree, and gives the log's end. Doing it again changes nothing more.

    `index` False leaves the index files as they are; those that reach to the physical offset `mended` are made anew, for the message
    there is not the one that was indexed. Raises UnsupportedFormatError when a batch consume queue lacks entries, and what `refuse_cut`
    raises unless `cut_after_damage` gives up the messages behind damage; nothing has been changed then.
    """
    checkpoint = read_checkpoint(f"{root}/checkpoint") or Checkpoint()
    end = find_end(log, checkpoint, crashed=True, dispatch_from=-1)
    _log.warning("%s: a broker crashed here; its log ends at %d, entries are completed from %d on", root, end.offset, end.scan_start)
    queues = _queues(root, log, end.offset)
    missing = missing_entries(
        log,
        end.scan_start,
        end.offset,
        {key: queue.max_offset for key, queue in queues.items() if queue.max_offset is not None},
        last_physical_offsets={key: queue.last_offset for key, queue in queues.items() if queue.last_offset is not None},
        batch_topics=_batch_topics(root, queues),
    )
    for (topic, queue_id), entries in missing.items():  # before anything is changed
        if entries.units.dtype != CQ_UNIT:
            raise UnsupportedFormatError(
                f"{root}: a broker crashed, and the batch consume queue {topic}-{queue_id} (queue.type=BatchCQ) lacks "
                f"{len(entries.units)} entries; start that broker once so that it makes them, stop it, then write again"
            )
    if not cut_after_damage:
        refuse_cut(root, log, end, staged=staged)
    log_files.clear_behind(end.offset, keep=end.offset + 1)
    for queue in queues.values():
        _truncate(queue, files)
    for (topic, queue_id), entries in missing.items():
        known = queues.get((topic, queue_id))
        max_offset = 0 if known is None or known.max_offset is None else known.max_offset
        _complete(root, (topic, queue_id), max_offset, entries, settings.queue_file_size, files)
    if index:
        _rebuild_index(root, log, end, checkpoint, settings, files, tag_keys=tag_keys, timestamp=timestamp, zone=zone, mended=mended)
    return end


# ---- consume queues -----------------------------------------------------------------------------------------------------


class _State(NamedTuple):
    """A queue on disk without what points at or behind the log's end; None where nothing is left of it."""

    directory: str
    is_batch: bool
    max_offset: int | None
    last_offset: int | None  # physical, of the last message
    unit_stop: int
    first_file: int


def _queues(root: str, log: CommitLog, end: int) -> dict[_Queue, _State]:
    found = {}
    for topic, queue_id, directory, kind in list_queues(root, lambda _: True):
        find = batch_queue_bounds if kind == "batch" else simple_queue_bounds
        bounds = find(directory, topic, queue_id, log.min_offset, commit_log_stop=end, scan=True)
        if bounds is None:
            found[topic, queue_id] = _State(directory, kind == "batch", None, None, 0, 0)
        else:
            last = bounds.last_physical_offset
            found[topic, queue_id] = _State(directory, kind == "batch", bounds.max_offset, last, bounds.unit_stop, bounds.first_file)
    return found


def _batch_topics(root: str, queues: Mapping[_Queue, _State]) -> set[str]:
    """Also those whose queues the broker had not made yet."""
    configured = {name for name, config in (read_topics(root) or {}).items() if config.queue_type == "BatchCQ"}
    return configured | {topic for (topic, _), queue in queues.items() if queue.is_batch}


def _truncate(queue: _State, files: FileWrites) -> None:
    """What points at or behind the log's end is zeroed, later files are removed."""
    if queue.is_batch or queue.max_offset is None:
        return  # a broker truncates batch queues itself, and nothing is appended to them here
    stop = queue.unit_stop * CQ_UNIT.itemsize
    for file in reversed(list_store_files(queue.directory)):
        if file.start >= stop and file.start > queue.first_file:
            files.remove(file.path)
            files.sync_directory(queue.directory)
        elif file.stop > stop:
            with files.open(file.path) as writable:
                writable.zero(max(stop - file.start, 0), file.size)
                files.sync(writable)


def _complete(root: str, queue: _Queue, max_offset: int, entries: MissingEntries, file_size: int, files: FileWrites) -> None:
    """Writes the entries. Places of messages that are lost get pre-blank units: a zero unit would end the queue for a broker."""
    directory = queue_directory(root, *queue)
    existing = list_store_files(directory)
    if existing and existing[0].size:
        file_size = existing[0].size
    first = int(entries.queue_offsets[0])
    start = max_offset if existing else first - first % (file_size // CQ_UNIT.itemsize)
    files.make_directories(root, "consumequeue", queue[0], str(queue[1]))
    lost = int(entries.queue_offsets[-1]) + 1 - start - len(entries.units)
    if not 0 <= lost <= _LOST_MAX:
        raise CorruptStoreError(directory, start * CQ_UNIT.itemsize, "offsets of the messages that follow", f"{lost} without a message")
    units = np.frombuffer(bytearray(pre_blank_bytes(int(entries.queue_offsets[-1]) + 1 - start)), CQ_UNIT)
    assert int(units["size"][0]) == CQ_PRE_BLANK_SIZE
    units[entries.queue_offsets - start] = entries.units
    position, stop, data = start * CQ_UNIT.itemsize, (start + len(units)) * CQ_UNIT.itemsize, memoryview(units.tobytes())
    while position < stop:
        within = position % file_size
        length = min(stop - position, file_size - within)
        done = position - start * CQ_UNIT.itemsize
        file, made = files.open_full(f"{directory}/{offset_file_name(position - within)}", file_size)
        with file:
            file.write(within, data[done : done + length])
            files.sync(file)
        if made:
            files.sync_directory(directory)
        position += length


# ---- index --------------------------------------------------------------------------------------------------------------


def _rebuild_index(
    root: str,
    log: CommitLog,
    end: LogEnd,
    checkpoint: Checkpoint,
    settings: StoreSettings,
    files: FileWrites,
    *,
    tag_keys: bool,
    timestamp: int,
    zone: datetime.tzinfo,
    mended: int,
) -> None:
    """Drops the files that end after the checkpoint's time (IndexService.load) and indexes again from where the first of them began.

    The broker indexes only what it rescans, and so loses older keys.
    """
    mark = checkpoint.index_msg_timestamp
    start, indexed = _drop_index_files(
        root, settings, files, lambda header: header.end_timestamp > mark or header.end_physical_offset >= mended
    )
    start = end.scan_start if start is None else min(start, end.scan_start)
    index = IndexFiles(f"{root}/index", settings.geometry, timestamp, zone, files)
    _index_units(log, max(start, log.min_offset), end.offset, indexed, index, tag_keys=tag_keys)


def rebuild_index_from(
    root: str,
    log: CommitLog,
    position: int,
    stop: int,
    settings: StoreSettings,
    files: FileWrites,
    *,
    timestamp: int,
    zone: datetime.tzinfo,
) -> None:
    """Makes the files anew that reach to the physical offset `position` or beyond, with what stands in the log up to `stop`."""
    start, indexed = _drop_index_files(root, settings, files, lambda header: header.end_physical_offset >= position)
    if start is not None:
        index = IndexFiles(f"{root}/index", settings.geometry, timestamp, zone, files)
        _index_units(log, max(start, log.min_offset), stop, indexed, index, tag_keys=True)


def _drop_index_files(
    root: str, settings: StoreSettings, files: FileWrites, is_bad: Callable[[IndexHeader], bool]
) -> tuple[int | None, int]:
    """Removes those files. (Where the first of them began, None without any; up to where the messages are indexed in those that stay)."""
    directory = f"{root}/index"
    start, indexed = None, -1
    for listed in list_index_files(directory):
        if not listed.size:
            files.remove(listed.path)  # made, and the crash came before its length
            continue
        file = IndexFile.open(listed.path, hash_slot_num=settings.max_hash_slot_num, index_num=settings.max_index_num)
        header = file.header()
        # One without entries may be full of what its header does not count yet: later entries would be linked to that.
        if header.index_count <= 1 or is_bad(header):
            if header.index_count > 1:
                start = header.begin_physical_offset if start is None else min(start, header.begin_physical_offset)
            files.remove(listed.path)
            files.sync_directory(directory)
        else:
            is_full = header.index_count >= settings.max_index_num  # then more keys of its last message may have been in the next
            indexed = header.end_physical_offset - is_full
    return start, indexed


def _index_units(log: CommitLog, start: int, stop: int, indexed: int, index: IndexFiles, *, tag_keys: bool) -> None:
    """Entries for the messages of [start, stop) that stand behind `indexed`."""
    if start >= stop:
        return
    for run in log.walk(start, stop, resync=True):
        if isinstance(run, Damage):
            continue  # counted in a warning when the queues were completed
        buffer, at = (log.view(run.file).map(), 0) if run.buffer is None else (run.buffer, run.buffer_start)
        refs = UnitRefs(run.file.path, buffer, run.file.start + at, run.positions - at, run.sizes, np.zeros(len(run.positions), np.int64))
        units, _ = locate(refs, verify_crc=False)
        # A broker would index the last message of a file that is not full once more.
        is_new = units.refs.positions + units.refs.base > indexed
        units = units.select(((units.sys_flag & TRANSACTION_MASK) != TRANSACTION_ROLLBACK) & is_new)
        if len(units):
            hashes, message_index = unit_key_hashes(units, tag_keys=tag_keys)
            offsets = units.refs.positions + units.refs.base
            index.write(IndexBatch(offsets, units.integers("store_timestamp").astype(np.int64), hashes, message_index))
    index.close()
