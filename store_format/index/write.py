"""Writes index entries into their files: first the units, then the slots that point to them, then the header
(IndexFile.putKey).

With this order a half-written file can be rewound to an earlier header: every unit that a slot points to has
its predecessor on disk, so the chains can be followed back to the earlier units.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from store_format.files.read import FileView
from store_format.files.write import FileWrites, WritableFile
from store_format.index.file import IndexFile, list_index_files
from store_format.index.geometry import IndexGeometry
from store_format.index.updates import IndexBatch, IndexState, IndexUpdate, index_updates
from store_format.layouts import INDEX_HEADER, INDEX_SLOT, INDEX_UNIT, pack

_PAGE = 4096
_GAP_PAGES_MAX = 16  # unchanged pages between two changed ones that are written with them


class IndexFiles:
    """Writes batches behind the entries of the last index file."""

    def __init__(
        self,
        directory: str,
        geometry: IndexGeometry,
        timestamp: int,
        zone: datetime.tzinfo,
        files: FileWrites,
        *,
        after: IndexState | None = None,
    ) -> None:
        """`after` is a full file in another directory that the first new file follows."""
        self._directory = directory
        self._geometry = geometry
        self._timestamp = timestamp
        self._zone = zone
        self._files = files
        self._state = after or _last_state(directory, geometry)
        self._file: WritableFile | None = None

    @property
    def end_timestamp(self) -> int | None:
        """The end timestamp in the last file's header; None without a file."""
        return None if self._state is None else self._state.header.end_timestamp

    def write(self, batch: IndexBatch) -> None:
        """Writes the entries of a batch, into new files where the last one is full."""
        for update in index_updates(
            self._state, batch, geometry=self._geometry, timestamp=self._timestamp, zone=self._zone
        ):
            if update.is_new:
                self._begin(update.name)
            slots = self._put(update)
            self._state = IndexState(update.name, update.header, slots)

    def _begin(self, name: str) -> None:
        self.close()
        root, _, folder = self._directory.rpartition("/")
        self._files.make_directories(root, folder)
        self._file, _ = self._files.open_full(f"{self._directory}/{name}", self._geometry.file_size)
        self._files.sync_directory(self._directory)

    def _put(self, update: IndexUpdate) -> NDArray[np.int32]:
        if self._file is None:
            self._file = self._files.open(f"{self._directory}/{update.name}")
        file = self._file
        if len(update.units):
            file.write(update.units_position, update.units)
            self._files.sync(file)
        with FileView(file.path) as view:
            stored = view.map()[INDEX_HEADER.itemsize : self._geometry.units_start].view(INDEX_SLOT)
        _write_slots(file, stored, update.slot_numbers, update.slot_values)
        file.write(0, update.header_bytes)
        return stored

    def close(self) -> None:
        """Syncs and closes the open file."""
        if self._file is not None:
            file, self._file = self._file, None
            with file:
                self._files.sync(file)


def _last_state(directory: str, geometry: IndexGeometry) -> IndexState | None:
    files = list_index_files(directory)
    if not files:
        return None
    return IndexState.read(
        IndexFile.open(files[-1].path, hash_slot_num=geometry.hash_slot_num, index_num=geometry.index_num)
    )


def _write_slots(
    file: WritableFile, stored: NDArray[np.int32], numbers: NDArray[np.int64], values: NDArray[np.int32]
) -> None:
    """Writes `values` at ascending slot `numbers`, by pages.

    A write through a memory map would kill the process when the disk is full.
    """
    if not len(numbers):
        return
    per_page = _PAGE // INDEX_SLOT.itemsize
    pages = numbers // per_page
    cuts = np.flatnonzero(np.diff(pages) > _GAP_PAGES_MAX) + 1
    for low, high in zip([0, *cuts.tolist()], [*cuts.tolist(), len(numbers)], strict=True):
        start = int(pages[low]) * per_page
        changed = stored[start : (int(pages[high - 1]) + 1) * per_page].copy()
        changed[numbers[low:high] - start] = values[low:high]
        file.write(INDEX_HEADER.itemsize + start * INDEX_SLOT.itemsize, changed)


# ---- rewinding ---------------------------------------------------------------------------------------------


def last_index_file(directory: str) -> tuple[str, str] | None:
    """(name, header in hex) of the last file, the `base` of `rewind_index`; None without a file."""
    files = list_index_files(directory)
    if not files:
        return None
    with FileView(files[-1].path) as view:
        return files[-1].path.rpartition("/")[2], view.read(0, INDEX_HEADER.itemsize).hex()


def rewind_index(
    directory: str, base: tuple[str, str] | None, geometry: IndexGeometry, files: FileWrites
) -> None:
    """Restores the index of the moment `base`, however much of later entries was written.

    Later files are removed, and slots point to older units again.
    """
    removed = [
        file for file in list_index_files(directory) if base is None or file.path.rpartition("/")[2] > base[0]
    ]
    for file in removed:
        files.remove(file.path)
    if removed:
        files.sync_directory(directory)
    if base is None:
        return
    name, header = base[0], bytes.fromhex(base[1])
    count = max(int(np.frombuffer(header, INDEX_HEADER)["index_count"][0]), 1)
    path = f"{directory}/{name}"
    with files.open(path) as writable, FileView(path) as view:
        if writable.size != geometry.file_size:
            return  # another file now; its units stay
        mapped = view.map()
        slots = mapped[INDEX_HEADER.itemsize : geometry.units_start].view(INDEX_SLOT)
        previous = mapped[geometry.units_start :].view(INDEX_UNIT)["prev_index"]
        later = np.flatnonzero(slots >= count)
        values = slots[later].astype(np.int64)
        while (values >= count).any():
            ahead = values >= count
            # Links point to lower numbers; the slot of a damaged unit with another link becomes empty.
            following = np.where(
                values[ahead] < len(previous), previous[np.minimum(values[ahead], len(previous) - 1)], 0
            )
            values[ahead] = np.where((following < values[ahead]) & (following > 0), following, 0)
        _write_slots(writable, slots, later, values.astype(INDEX_SLOT))
        writable.write(0, header)
        writable.zero(geometry.units_start + count * INDEX_UNIT.itemsize, writable.size)
        files.sync(writable)


def cut_index(
    directory: str,
    stop: int,
    store_timestamp_at: Callable[[int], int],
    geometry: IndexGeometry,
    files: FileWrites,
) -> None:
    """Removes the newest entries, those that point to `stop` or behind it. A second call changes nothing."""
    for listed in reversed(list_index_files(directory)):
        if not listed.size:
            continue
        file = IndexFile.open(listed.path, hash_slot_num=geometry.hash_slot_num, index_num=geometry.index_num)
        header, units = file.header(), file.units()
        if header.index_count > 1 and header.end_physical_offset < stop:
            return
        kept = np.flatnonzero(units["physical_offset"] < stop)
        if not len(kept):
            files.remove(listed.path)
            files.sync_directory(directory)
            continue
        last = int(kept[-1])
        end = int(units["physical_offset"][last])
        changed = {
            "begin_timestamp": header.begin_timestamp,
            "end_timestamp": store_timestamp_at(end),
            "begin_physical_offset": header.begin_physical_offset,
            "end_physical_offset": end,
            "hash_slot_count": int(np.count_nonzero(units["prev_index"][: last + 1] == 0)),
            "index_count": last + 2,  # units begin at number 1
        }
        name = listed.path.rpartition("/")[2]
        rewind_index(directory, (name, pack(INDEX_HEADER, changed).tobytes().hex()), geometry, files)
        return
