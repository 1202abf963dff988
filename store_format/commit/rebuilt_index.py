"""Compares the index files with the messages of the commitlog, and rebuilds those that lack entries.

Index files form one sequence: a lost or incomplete file is rebuilt together with all files behind it. The new
files are written beside the index and moved to their places when complete, so that nobody follows a broken
chain. Their entries are those of a broker with the same file sizes; names and header times differ (spec 4).
"""

from __future__ import annotations

import datetime
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from store_format.bookkeeping.settings import StoreSettings
from store_format.commitlog.log import CommitLog
from store_format.errors import CorruptStoreError, OptionError
from store_format.files.write import FileWrites
from store_format.index.file import (
    IndexFile,
    IndexGeometry,
    IndexHeader,
    IndexSlots,
    list_index_files,
    wrong_links,
)
from store_format.index.updates import IndexBatch, IndexFiles, IndexState, unit_key_hashes
from store_format.message.locate import locate
from store_format.message.properties import PropertyTable
from store_format.metadata.group_offsets import is_broker_49
from store_format.names import TAGS
from store_format.opened.store import Opened

_TAGS_LOOKED_AT = 1000  # messages
_ENTRY = np.dtype([("physical_offset", "i8"), ("key_hash", "i4")])


# ---- what the index lacks ----------------------------------------------------------------------------------


@dataclass(slots=True)
class IndexCheck:
    """What the index lacks. `missing` counts entries; the first belongs to the message at `missing_from`.

    `files` are the index files in the broker's order. `problem` names the first file that cannot be used, and
    `end` is the physical offset of the last message with an entry in the files before, -1 without one.
    """

    directory: str
    geometry: IndexGeometry
    log_start: int
    log_stop: int
    missing_from: int | None = None
    missing: int = 0
    problem: str = ""
    end: int = -1
    files: list[_Listed] = field(default_factory=list)
    _ranges: NDArray[np.int64] | None = None  # the first and the last physical offsets of the files

    @staticmethod
    def open(
        opened: Opened,
        geometry: IndexGeometry,
        log_start: int,
        log_stop: int,
        *,
        mark: int | None = None,
        start: int = 0,
        mended: int | None = None,
    ) -> IndexCheck:
        """Lists the files. A file that cannot be used, or points behind the log, has to be rebuilt; one that
        reaches to the physical offset `mended`, too.

        After a crash also a file that ends after the time `mark` (ms): perhaps it was not flushed. A broker
        deletes the same files (IndexService.load). Of full files before the physical offset `start` only the
        header is read.
        """
        check = IndexCheck(f"{opened.path}/index", geometry, log_start, log_stop)
        for listed in list_index_files(check.directory):
            found = _listed_entries(listed.path, geometry, log_stop, start)
            header = found.header
            if not found.problem and header is not None and header.index_count > 1:
                if mark is not None and header.end_timestamp > mark:
                    found.problem = f"a crash came before it was flushed ({header.end_timestamp} > {mark})"
                elif mended is not None and header.end_physical_offset >= mended:
                    found.problem = f"the message at {mended} was completed since"
            check.files.append(found)
            if found.problem and not check.problem:
                check.problem = f"{listed.path}: {found.problem}"
                check._mark(max(check.end + 1, 0 if header is None else header.begin_physical_offset))
            elif header is not None and not check.problem:
                check.end = header.end_physical_offset
        return check

    @property
    def is_empty(self) -> bool:
        return not any(found.file is not None and found.file.stop > 1 for found in self.files)

    def _mark(self, offset: int) -> None:
        self.missing_from = offset if self.missing_from is None else min(self.missing_from, offset)

    def add(self, batch: IndexBatch) -> None:
        """Compares the entries of the next messages of the log."""
        if not len(batch.message_index):
            return
        wanted = np.empty(len(batch.message_index), _ENTRY)
        wanted["physical_offset"] = batch.physical_offsets[batch.message_index]
        wanted["key_hash"] = batch.key_hashes
        there = self._between(int(batch.physical_offsets[0]), int(batch.physical_offsets[-1]))
        if np.array_equal(wanted, there):
            return
        wanted = wanted[~np.isin(_words(wanted), _words(there))]
        if len(wanted):
            self.missing += len(wanted)
            self._mark(int(wanted["physical_offset"].min()))

    def _between(self, low: int, high: int) -> NDArray[np.void]:
        """The entries of the messages from `low` to `high`, both included, in the order of the files."""
        if self._ranges is None or self._ranges.shape[1] != len(self.files):
            self._ranges = np.array([each.range for each in self.files], np.int64).reshape(-1, 2).T
        begins, ends = self._ranges
        touched = np.flatnonzero((begins <= high) & (ends >= low)).tolist()
        return np.concatenate([np.empty(0, _ENTRY), *(self.files[i].between(low, high) for i in touched)])

    def kept(self) -> int:
        """How many of the first files stay: full files in front of the first missing entry."""
        if self.missing_from is None:
            return len(self.files)
        for number, found in enumerate(self.files):
            header = found.header
            if (
                found.problem
                or header is None
                or header.index_count < self.geometry.index_num
                or header.end_physical_offset >= self.missing_from
            ):
                return number
        return len(self.files)


@dataclass(slots=True)
class _Listed:
    path: str
    header: IndexHeader | None
    file: IndexFile | None = None  # its units ascend, and can be searched
    problem: str = ""

    @property
    def range(self) -> tuple[int, int]:
        """The first and the last physical offset; of a file that cannot be searched, a range of none."""
        if self.file is None or self.header is None:
            return 0, -1
        return self.header.begin_physical_offset, self.header.end_physical_offset

    def between(self, low: int, high: int) -> NDArray[np.void]:
        """The entries of the messages from `low` to `high`, both included."""
        assert self.file is not None
        units = self.file.units(self.file.find(low), self.file.find(high + 1))
        found = np.empty(len(units), _ENTRY)
        for name in _ENTRY.names or ():
            found[name] = units[name]
        return found


def _listed_entries(path: str, geometry: IndexGeometry, log_stop: int, start: int) -> _Listed:
    try:
        file = IndexFile.open(path, hash_slot_num=geometry.hash_slot_num, index_num=geometry.index_num)
        header, stop = file.header(), file.stop
    except (OptionError, CorruptStoreError) as error:
        return _Listed(path, None, problem=str(error))
    if file.size != geometry.file_size:
        return _Listed(path, None, problem=f"expected {geometry.file_size} bytes, found {file.size}")
    if stop != header.index_count:
        problem = f"expected {header.index_count - 1} units, found {stop - 1}"
        return _Listed(path, None, problem=problem)
    if file.is_over(start):
        return _Listed(path, header, file)
    last = -1
    for _, units in file.chunks():
        physical = units["physical_offset"].astype(np.int64)
        if (np.diff(physical, prepend=last) < 0).any():
            return _Listed(path, header, problem="its units are not in the order of the commitlog")
        last = int(physical[-1])
    ends = header.begin_physical_offset, header.end_physical_offset
    if stop > 1 and ends != (file.units(1, 2)["physical_offset"][0], last):
        return _Listed(path, None, problem="its header has other physical offsets than its units")
    problem = f"its units point behind the end of the commitlog, {log_stop}" if last >= log_stop else ""
    if not problem and next(wrong_links(file, stop), None) is not None:
        problem = "its slots and units have other links than their keys give"
    return _Listed(path, header, file, problem)


def _words(entries: NDArray[np.void]) -> NDArray[np.int64]:
    """One number for each entry. An offset has 63 bits and a hash 31: mixed."""
    mixed = entries["physical_offset"].astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    return (mixed ^ entries["key_hash"].astype(np.uint64)).view(np.int64)


def indexes_tags(opened: Opened, log: CommitLog, check: IndexCheck) -> bool:
    """Whether the store's broker indexes tags: 5.4 and later do, and always make the directory rocksdbstore.

    Without this directory the store's index files decide, else its topics.json. Entries for tags do no harm
    to brokers from 5.0 to 5.3.
    """
    if "rocksdbstore" in opened.files.names(opened.path) or StoreSettings.read(opened) is not None:
        return True
    for each in check.files:
        if each.file is None:
            continue
        first = each.file.find(log.min_offset)
        offsets = each.file.units(first, min(first + _TAGS_LOOKED_AT, each.file.stop))["physical_offset"]
        if not len(offsets):
            continue
        for run in log.runs(int(offsets[0]), int(offsets[-1])):
            units, _ = locate(log.refs_of(run), verify_crc=False)
            tags = PropertyTable(units.raw_properties()).values(TAGS)
            for number, tag in enumerate(tags.to_pylist()):
                if tag:
                    hashes, _ = unit_key_hashes(units.select(np.array([number])))
                    place = int(units.physical_offsets[number])
                    return int(hashes[-1]) in each.between(place, place)["key_hash"].tolist()
    return not is_broker_49(opened)


# ---- the files that replace others -------------------------------------------------------------------------


class IndexBuilder:
    """Writes the index files behind the first `kept` files into the directory `aside`."""

    def __init__(
        self,
        check: IndexCheck,
        kept: int,
        aside: str,
        now: int,
        zone: datetime.tzinfo,
        files: FileWrites,
    ) -> None:
        last = check.files[kept - 1] if kept else None
        state = None
        self._end, self._skip = -1, 0
        if last is not None:
            assert last.header is not None
            self._end = last.header.end_physical_offset
            # The first keys of this message are in the full file already.
            self._skip = len(last.between(self._end, self._end))
            # A full file, which gets no entry: its slots do not matter.
            state = IndexState(last.path.rpartition("/")[2], last.header, IndexSlots.empty(check.geometry))
        self.start = max(self._end, check.log_start)
        self._index = IndexFiles(aside, check.geometry, now, zone, files, after=state)

    def add(self, batch: IndexBatch) -> None:
        """Adds the entries of the next messages of the log, from `start` on."""
        is_new = batch.physical_offsets >= self._end
        drop = np.zeros(len(batch.message_index), bool)
        if len(batch.message_index):
            physical = batch.physical_offsets[batch.message_index]
            drop = physical < self._end
            drop[np.flatnonzero(physical == self._end)[: self._skip]] = True
        if not is_new.all() or drop.any():
            numbers = np.cumsum(is_new) - 1
            batch = IndexBatch(
                batch.physical_offsets[is_new],
                batch.store_timestamps[is_new],
                batch.key_hashes[~drop],
                numbers[batch.message_index[~drop]],
            )
        self._index.write(batch)

    def close(self) -> None:
        self._index.close()


def move_index(check: IndexCheck, aside: str, files: FileWrites) -> None:
    """Replaces the files that `check` does not keep by those in `aside`.

    If the process dies in between, the index lacks whole files, which the next check finds.
    """
    files.make_directories(check.directory.rpartition("/")[0], "index")
    for dropped in check.files[check.kept() :]:
        files.remove(dropped.path)
    new = list_index_files(aside) if check.missing_from is not None else []
    for file in new:
        with files.open(file.path) as opened:
            files.sync(opened)
    for file in new:
        files.rename(file.path, f"{check.directory}/{file.path.rpartition('/')[2]}")
    files.sync_directory(check.directory)
