"""A broker's recovery after a crash, done by a writer before it appends (DefaultMessageStore.recover).

The log ends at its first bad unit, and everything behind is cleared. Every message before gets its missing
queue and index entries, however many files that takes: a 5.4 broker scans the last 10 files only.
"""

from __future__ import annotations

import datetime
import logging
from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from store_format.bookkeeping.settings import StoreSettings
from store_format.commit.queue_moves import complete_queues, end_rebuild, is_rebuild_begun
from store_format.commit.queue_repair import Lacking, QueueState, find_lacking, queue_states, truncate
from store_format.commitlog.log import CommitLog
from store_format.commitlog.walk import Damage
from store_format.commitlog.write import LogFiles
from store_format.files.write import FileWrites
from store_format.index.file import IndexFile, IndexHeader, list_index_files
from store_format.index.keys import unit_key_hashes
from store_format.index.updates import IndexBatch
from store_format.index.write import IndexFiles
from store_format.message.locate import locate
from store_format.message.sysflag import TRANSACTION_MASK, TRANSACTION_ROLLBACK
from store_format.metadata.checkpoint import Checkpoint, read_checkpoint
from store_format.names import QueueKey
from store_format.read.readable_end import refuse_cut
from store_format.read.recovery import LogEnd, end_after_crash

_log = logging.getLogger(__name__)


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
    mended: int | None = None,
    is_size_known: bool = True,
    cut_after_damage: bool = False,
    staged: tuple[int, int] | None = None,
) -> LogEnd:
    """Makes log, consume queues and index agree, and returns the log's end. A second call changes nothing.

    `index` False leaves the index files as they are. Index files that reach to the physical offset
    `mended` are rebuilt: the message there is not the one that was indexed. Raises, before any change,
    UnsupportedFormatError if a batch consume queue lacks entries, OptionError if no queue is left and the
    size of their files is not known (`is_size_known` False), and what `refuse_cut` raises unless
    `cut_after_damage` gives up the messages behind damage.
    """
    checkpoint = read_checkpoint(f"{root}/checkpoint") or Checkpoint()
    end = end_after_crash(log, checkpoint)
    _log.warning(
        "%s: a broker crashed on this store; its commitlog ends at %d, completing queue and index entries "
        "from %d on",
        root,
        end.offset,
        end.scan_start,
    )
    states = queue_states(root, log, end.offset)
    lacking = _lacking(root, log, end, states, settings.queue_file_size if is_size_known else None)
    if not cut_after_damage:
        refuse_cut(root, log, end, staged=staged)
    if lacking.start < end.scan_start:
        _log.warning(
            "%s: consume queues lack entries of older messages too; completing them from %d on",
            root,
            lacking.start,
        )
        end = replace(end, scan_start=lacking.start)
    log_files.clear_behind(end.offset, keep=end.offset + 1)
    for state in states.values():
        truncate(state, files)
    if lacking.firsts:
        complete_queues(root, log, lacking, states)
    end_rebuild(root)
    if index:
        _rebuild_index(
            root,
            log,
            end,
            checkpoint,
            settings,
            files,
            tag_keys=tag_keys,
            timestamp=timestamp,
            zone=zone,
            mended=mended,
        )
    return end


def _lacking(
    root: str, log: CommitLog, end: LogEnd, states: Mapping[QueueKey, QueueState], file_size: int | None
) -> Lacking:
    """The missing queue entries, from the checkpoint's place on.

    From the log's first message on if queues are lost, or end before the checkpoint's place.
    """

    def find(start: int) -> Lacking:
        return find_lacking(
            root,
            log,
            start,
            end.offset,
            states,
            file_size=file_size,
            is_crashed=True,
            deleted_from=end.scan_start,
        )

    if (
        not is_rebuild_begun(root)
        and end.scan_start > log.min_offset
        and any(state.max_offset is not None for state in states.values())
    ):
        lacking = find(end.scan_start)
        if not lacking.has_gap(states):
            return lacking
    return find(min(log.min_offset, end.scan_start))


# ---- index -------------------------------------------------------------------------------------------------


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
    mended: int | None,
) -> None:
    """Rebuilds the index files that end after the checkpoint's time or behind the log's end.

    IndexService.load removes the same files. The broker then indexes only what it scans, and loses older
    keys.
    """
    mark = checkpoint.index_msg_timestamp
    reached = end.offset if mended is None else min(mended, end.offset)
    start, indexed = _drop_index_files(
        root,
        settings,
        files,
        lambda header: header.end_timestamp > mark or header.end_physical_offset >= reached,
    )
    start = end.scan_start if start is None else min(start, end.scan_start)
    index = IndexFiles(f"{root}/index", settings.geometry, timestamp, zone, files)
    _index_units(log, max(start, log.min_offset), end.offset, indexed, index, tag_keys=tag_keys)


def index_log(
    directory: str,
    log: CommitLog,
    stop: int,
    settings: StoreSettings,
    files: FileWrites,
    *,
    tag_keys: bool,
    timestamp: int,
    zone: datetime.tzinfo,
) -> None:
    """Writes index files for the whole log up to `stop` into a directory without index files."""
    index = IndexFiles(directory, settings.geometry, timestamp, zone, files)
    _index_units(log, log.min_offset, stop, -1, index, tag_keys=tag_keys)


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
    """Rebuilds the index files that reach to the physical offset `position`, from the log up to `stop`."""
    start, indexed = _drop_index_files(
        root, settings, files, lambda header: header.end_physical_offset >= position
    )
    if start is not None:
        index = IndexFiles(f"{root}/index", settings.geometry, timestamp, zone, files)
        _index_units(log, max(start, log.min_offset), stop, indexed, index, tag_keys=True)


def _drop_index_files(
    root: str, settings: StoreSettings, files: FileWrites, is_bad: Callable[[IndexHeader], bool]
) -> tuple[int | None, int]:
    """Removes the bad index files, and the files without entries.

    Returns (the physical offset where the first bad file began, None without a bad file; the last physical
    offset that the remaining files index, -1 without files).
    """
    directory = f"{root}/index"
    start, indexed = None, -1
    for listed in list_index_files(directory):
        if not listed.size:
            files.remove(listed.path)  # The crash came before the file got its length.
            continue
        file = IndexFile.open(
            listed.path, hash_slot_num=settings.max_hash_slot_num, index_num=settings.max_index_num
        )
        header = file.header()
        # A file without entries may hold entries that its header does not count yet: later entries would link
        # to them.
        if header.index_count <= 1 or is_bad(header):
            if header.index_count > 1:
                start = (
                    header.begin_physical_offset
                    if start is None
                    else min(start, header.begin_physical_offset)
                )
            files.remove(listed.path)
            files.sync_directory(directory)
        else:
            # More keys of the last message of a full file may have been in the next file.
            is_full = header.index_count >= settings.max_index_num
            indexed = header.end_physical_offset - is_full
    return start, indexed


def _index_units(
    log: CommitLog, start: int, stop: int, indexed: int, index: IndexFiles, *, tag_keys: bool
) -> None:
    """Writes the entries of the messages of [start, stop) behind the physical offset `indexed`."""
    if start >= stop:
        return
    for run in log.walk(start, stop, resync=True):
        if isinstance(run, Damage):
            continue  # The warning about the queues has counted these bytes.
        units, _ = locate(log.refs_of(run), verify_crc=False)
        # A broker would index the last message of a file that is not full once more.
        is_new = units.refs.positions + units.refs.base > indexed
        units = units.select(((units.sys_flag & TRANSACTION_MASK) != TRANSACTION_ROLLBACK) & is_new)
        if len(units):
            hashes, message_index = unit_key_hashes(units, tag_keys=tag_keys)
            offsets = units.refs.positions + units.refs.base
            index.write(
                IndexBatch(offsets, units.integers("store_timestamp").astype(np.int64), hashes, message_index)
            )
    index.close()
