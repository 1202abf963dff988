"""Rebuilds index files from the commitlog: after a crash, and when the index is lost."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from store_format.commitlog.log import CommitLog
from store_format.commitlog.walk import Damage
from store_format.files.write import FileWrites
from store_format.index.file import IndexFile, IndexGeometry, IndexHeader, list_index_files
from store_format.index.keys import index_batch
from store_format.index.write import IndexFiles, last_index_file, rewind_index


@dataclass(frozen=True, slots=True)
class Indexing:
    """How messages are indexed again. `timestamp` (ms) and `zone` name new index files."""

    geometry: IndexGeometry
    files: FileWrites
    timestamp: int
    zone: datetime.tzinfo
    tag_keys: bool = True


def rebuild_index(
    root: str, log: CommitLog, start: int, stop: int, indexing: Indexing, *, mark: int, mended: int | None
) -> None:
    """Rebuilds the index files that end after the time `mark` (ms), or behind the log's end `stop`.

    Indexes the messages from the physical offset `start` on, and those of the rebuilt files. Files that reach
    to the physical offset `mended` are rebuilt too. IndexService.load removes the same files; the broker then
    indexes only what it scans, and loses older keys.
    """
    reached = stop if mended is None else min(mended, stop)
    dropped, indexed = _drop_index_files(
        root,
        indexing,
        lambda header: header.end_timestamp > mark or header.end_physical_offset >= reached,
    )
    start = start if dropped is None else min(dropped, start)
    _index_units(f"{root}/index", log, max(start, log.min_offset), stop, indexed, indexing)


def rebuild_index_from(root: str, log: CommitLog, position: int, stop: int, indexing: Indexing) -> None:
    """Rebuilds the index files that reach to the physical offset `position`, from the log up to `stop`."""
    start, indexed = _drop_index_files(root, indexing, lambda header: header.end_physical_offset >= position)
    if start is not None:
        _index_units(f"{root}/index", log, max(start, log.min_offset), stop, indexed, indexing)


def index_log(directory: str, log: CommitLog, stop: int, indexing: Indexing) -> None:
    """Writes index files for the whole log up to `stop` into a directory without index files."""
    _index_units(directory, log, log.min_offset, stop, -1, indexing)


def _drop_index_files(
    root: str, indexing: Indexing, is_bad: Callable[[IndexHeader], bool]
) -> tuple[int | None, int]:
    """Removes the bad index files, and the files without entries.

    Returns (the physical offset where the first bad file began, None without a bad file; the last physical
    offset that the remaining files index, -1 without files).
    """
    directory, files, geometry = f"{root}/index", indexing.files, indexing.geometry
    start, indexed = None, -1
    for listed in list_index_files(directory):
        if not listed.size:
            files.remove(listed.path)  # The crash came before the file got its length.
            continue
        file = IndexFile.open(listed.path, hash_slot_num=geometry.hash_slot_num, index_num=geometry.index_num)
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
            is_full = header.index_count >= geometry.index_num
            indexed = header.end_physical_offset - is_full
    return start, indexed


def _index_units(
    directory: str, log: CommitLog, start: int, stop: int, indexed: int, indexing: Indexing
) -> None:
    """Writes the entries of the messages of [start, stop) behind the physical offset `indexed`."""
    if start >= stop:
        return
    last = last_index_file(directory)
    # An earlier rebuild may have changed slots before it counted the units in the header.
    if last is not None:
        rewind_index(directory, last, indexing.geometry, indexing.files)
    index = IndexFiles(directory, indexing.geometry, indexing.timestamp, indexing.zone, indexing.files)
    for run in log.walk(start, stop, resync=True):
        if isinstance(run, Damage):
            continue  # The warning about the queues has counted these bytes.
        refs = log.refs_of(run)
        # A broker would index the last message of a file that is not full once more.
        new = np.flatnonzero(refs.physical_offsets > indexed)
        batch = index_batch(refs.select(new), tag_keys=indexing.tag_keys)
        if len(batch.physical_offsets):
            index.write(batch)
    index.close()
