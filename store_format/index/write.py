"""Writes index entries into their files: first the units, then the slots that point to them, then the header
(IndexFile.putKey).

With this order a half-written file can be rewound to an earlier header: every unit that a slot points to has
its predecessor on disk, so the chains can be followed back to the earlier units.

A new file gets its header before its slots. A broker that recovers the store deletes an index file whose end
time is behind the checkpoint's (IndexService.load). It would keep a file without a header, and link its own
entries to the units that the slots point to.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from store_format.files.view import FileView
from store_format.files.write import FileWrites, WritableFile
from store_format.index.file import IndexFile, IndexGeometry, IndexSlots, list_index_files
from store_format.index.updates import IndexBatch, IndexState, IndexUpdate, index_updates
from store_format.layouts import INDEX_HEADER, INDEX_UNIT, pack


class IndexFiles:
    """Writes batches behind the entries of the last index file.

    Slots and header are written when the file is full, or at `close`.
    """

    def __init__(
        self,
        directory: str,
        geometry: IndexGeometry,
        timestamp: int,
        zone: datetime.tzinfo,
        files: FileWrites,
        *,
        after: IndexState | None = None,
        indexed: Callable[[int], bool] = lambda end: True,
    ) -> None:
        """`after` is a full file in another directory that the first new file follows.

        `indexed` says whether all messages between the physical offset `end` and the first entry that is
        written are in the index. If not, the entries begin a new file: what lies between two files is
        scanned by a search, and messages that are missing within a file are not found.
        """
        self._directory = directory
        self._geometry = geometry
        self._timestamp = timestamp
        self._zone = zone
        self._files = files
        self._state = after or _last_state(directory, geometry, indexed)
        self._file: WritableFile | None = None
        self._is_new = False  # whether the open file was created here
        self._written: IndexState | None = None  # the state of the open file with all units written so far

    @property
    def end_timestamp(self) -> int | None:
        """The end timestamp in the last file's header; None without a file."""
        return None if self._state is None else self._state.header.end_timestamp

    def write(self, batch: IndexBatch) -> None:
        """Writes the entries of a batch, into new files where the last one is full."""
        self.put(self.updates(batch))

    def updates(self, batch: IndexBatch) -> list[IndexUpdate]:
        """What `put` has to write for a batch. A thread may put one batch while another is made here."""
        updates = index_updates(
            self._state, batch, geometry=self._geometry, timestamp=self._timestamp, zone=self._zone
        )
        if updates:
            self._state = updates[-1].state
        return updates

    def put(self, updates: Sequence[IndexUpdate]) -> None:
        """Writes updates, in the order in which they were made."""
        for update in updates:
            path = f"{self._directory}/{update.state.name}"
            if update.is_new:
                self.close()
                root, _, folder = self._directory.rpartition("/")
                self._files.make_directories(root, folder)
                self._file, _ = self._files.open_full(path, self._geometry.file_size)
                self._files.sync_directory(self._directory)
                self._is_new = True
            elif self._file is None:
                self._file = self._files.open(path)
            if len(update.units):
                self._file.write(update.units_position, update.units)
            self._written = update.state

    def close(self) -> None:
        """Completes the open file: writes its slots and header behind its units, syncs and closes it."""
        if self._file is not None:
            file, self._file = self._file, None
            with file:
                self._files.sync(file)
                assert self._written is not None
                header = self._written.header.to_bytes()
                if self._is_new:
                    file.write(0, header)
                    self._files.sync(file)
                self._written.slots.write(file)
                if not self._is_new:
                    file.write(0, header)
                self._files.sync(file)
            self._is_new = False


def _last_state(directory: str, geometry: IndexGeometry, indexed: Callable[[int], bool]) -> IndexState | None:
    """The state of the last file, as if it were full if its entries cannot be continued."""
    files = list_index_files(directory)
    if not files:
        return None
    state = IndexState.read(
        IndexFile.open(files[-1].path, hash_slot_num=geometry.hash_slot_num, index_num=geometry.index_num)
    )
    if state.header.index_count <= 1 or indexed(state.header.end_physical_offset):
        return state
    return replace(state, header=replace(state.header, index_count=geometry.index_num))


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
        slots = IndexSlots.read(view, geometry)
        previous = view.copy_on_write(view.size)[geometry.units_start :].view(INDEX_UNIT)["prev_index"]
        later = np.flatnonzero(slots.values >= count)
        values = slots.values[later].astype(np.int64)
        while (values >= count).any():
            ahead = values >= count
            # Links point to lower numbers; the slot of a damaged unit with another link becomes empty.
            following = np.where(
                values[ahead] < len(previous), previous[np.minimum(values[ahead], len(previous) - 1)], 0
            )
            values[ahead] = np.where((following < values[ahead]) & (following > 0), following, 0)
        slots.values[later] = values
        slots.mark(later)
        slots.write(writable)
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
        header = file.header()
        if header.index_count > 1 and header.end_physical_offset < stop:
            return
        last, slot_count, firsts = 0, 0, 0  # of the units that stay; `firsts` counts those that begin a chain
        end = -1
        for number, units in file.chunks():
            kept = np.flatnonzero(units["physical_offset"] < stop)
            if len(kept):
                last, end = number + int(kept[-1]), int(units["physical_offset"][kept[-1]])
                slot_count = firsts + int(np.count_nonzero(units["prev_index"][: int(kept[-1]) + 1] == 0))
            firsts += int(np.count_nonzero(units["prev_index"] == 0))
        if not last:
            files.remove(listed.path)
            files.sync_directory(directory)
            continue
        changed = {
            "begin_timestamp": header.begin_timestamp,
            "end_timestamp": store_timestamp_at(end),
            "begin_physical_offset": header.begin_physical_offset,
            "end_physical_offset": end,
            "hash_slot_count": slot_count,
            "index_count": last + 1,
        }
        name = listed.path.rpartition("/")[2]
        rewind_index(directory, (name, pack(INDEX_HEADER, changed).tobytes().hex()), geometry, files)
        return
