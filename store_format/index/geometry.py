"""How many hash slots and units an index file has. Neither number is stored, so the file's units must prove
them.

In a file of S bytes every number H of slots is possible for which (S - 40 - 4H) is divisible by 20. With the
right H the first unit has the header's begin offset, the last unit has its end offset, and the chains of the
first units are complete. With a wrong H the units are shifted by a multiple of 20 bytes, and their slots do
not point to them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from store_format.arrays.ranges import gather_units
from store_format.files.view import FileView
from store_format.layouts import INDEX_HEADER, INDEX_SLOT, INDEX_UNIT, unpack

_HEADER_WORDS = INDEX_HEADER.itemsize // 4
_UNIT_WORDS = INDEX_UNIT.itemsize // 4
_CANDIDATES_PER_STEP = 1 << 18  # a file of 400 MB has 20 million; each step reads about 10 MB
_SURVIVORS_MAX = 64  # a broker's file leaves one; more is a file made to waste time
_PROOF_UNITS = 4096  # the first units, which are checked against each other


@dataclass(frozen=True, slots=True)
class IndexGeometry:
    """MessageStoreConfig.maxHashSlotNum and maxIndexNum. Unit 0 is unused: a file has index_num - 1 keys."""

    hash_slot_num: int
    index_num: int

    @property
    def units_start(self) -> int:
        """The byte at which unit 0 begins."""
        return INDEX_HEADER.itemsize + INDEX_SLOT.itemsize * self.hash_slot_num

    @property
    def file_size(self) -> int:
        return self.units_start + INDEX_UNIT.itemsize * self.index_num


DEFAULT_GEOMETRY = IndexGeometry(5_000_000, 20_000_000)


def infer_geometry(view: FileView, likely: IndexGeometry = DEFAULT_GEOMETRY) -> IndexGeometry | None:
    """The only geometry that the file's units prove; None if they prove none, or more than one.

    `likely` is tried first and may save the search. A file without units proves nothing, whatever its size.
    """
    if view.size < INDEX_HEADER.itemsize or view.size % 4:
        return None
    if view.size == likely.file_size and confirms(view, likely):
        return likely
    proved: list[IndexGeometry] = []
    survivors = 0
    for candidates in _screen(view):
        survivors += len(candidates)
        if survivors > _SURVIVORS_MAX:
            return None
        for hash_slot_num in candidates.tolist():
            geometry = IndexGeometry(
                hash_slot_num, (view.size - 40 - 4 * hash_slot_num) // INDEX_UNIT.itemsize
            )
            if confirms(view, geometry):
                proved.append(geometry)
    return proved[0] if len(proved) == 1 else None


def _screen(view: FileView) -> Iterator[NDArray[np.int64]]:
    """Numbers of slots that agree with the header's offsets and the first unit's slot, a step at a time."""
    header = _header(view)
    count = int(header["index_count"])
    # the header's units must fit behind the slots
    slots_max = view.size // 4 - _HEADER_WORDS - _UNIT_WORDS * count
    if count <= 1 or slots_max < 1:
        return
    begin, end = int(header["begin_physical_offset"]), int(header["end_physical_offset"])
    first = (view.size // 4 - _HEADER_WORDS) % _UNIT_WORDS or _UNIT_WORDS
    for start in range(first, slots_max + 1, _UNIT_WORDS * _CANDIDATES_PER_STEP):
        stop = min(start + _UNIT_WORDS * _CANDIDATES_PER_STEP, slots_max + 1)
        slot_nums = np.arange(start, stop, _UNIT_WORDS, dtype=np.int64)
        # The first units of successive candidates lie in a row, and so do their last ones.
        unit_1 = 4 * (start + _HEADER_WORDS + _UNIT_WORDS)
        firsts = _units_at(view, unit_1, len(slot_nums))
        # The unit before the last one of each candidate; the last one of a candidate is the next in the row.
        lasts = _units_at(view, unit_1 + INDEX_UNIT.itemsize * (count - 3), len(slot_nums) + 1)
        good = (
            (firsts["key_hash"] >= 0)
            & (firsts["time_diff"] >= 0)
            & (firsts["prev_index"] == 0)
            & (firsts["physical_offset"] == begin)
        )
        # A broker counts a unit before it stores its offset: during a write the end offset may still be that
        # of the unit before.
        is_end = lasts["physical_offset"] == end
        good &= is_end[1:] | (is_end[:-1] & (count > 2))
        slot_nums, hashes = slot_nums[good], firsts["key_hash"][good].astype(np.int64)
        heads = _slots_at(view, hashes % slot_nums)
        yield slot_nums[(heads >= 1) & (heads <= count)]


def _header(view: FileView) -> np.void:
    header: np.void = unpack(view.window(0, INDEX_HEADER.itemsize), INDEX_HEADER)[0]
    return header


def _units_at(view: FileView, position: int, count: int) -> NDArray[np.void]:
    return unpack(view.window(position, position + INDEX_UNIT.itemsize * count), INDEX_UNIT)


def _slots_at(view: FileView, slots: NDArray[np.int64]) -> NDArray[np.int32]:
    """The heads of these slots."""
    found = np.empty(len(slots), INDEX_SLOT)
    starts = INDEX_HEADER.itemsize + INDEX_SLOT.itemsize * slots
    places = [slice(at, at + _PROOF_UNITS) for at in range(0, len(slots), _PROOF_UNITS)]
    windows = view.windows((starts[place], starts[place] + INDEX_SLOT.itemsize) for place in places)
    for place, window in zip(places, windows, strict=True):
        found[place] = gather_units(window.data, window.positions, INDEX_SLOT)
    return found


def confirms(view: FileView, geometry: IndexGeometry) -> bool:
    """Whether the first units are what a broker writes with this geometry (IndexFile.putKey).

    Each unit's prev_index must be the earlier unit of the same slot, each slot must point to the newest of
    these units or to a later one, and the first and the last unit must have the header's offsets.
    """
    header = _header(view)
    count = int(header["index_count"])
    if not 1 < count <= geometry.index_num or geometry.hash_slot_num < 1 or geometry.file_size > view.size:
        return False
    proof = _units_at(view, geometry.units_start + INDEX_UNIT.itemsize, min(count - 1, _PROOF_UNITS))
    if proof["physical_offset"][0] != header["begin_physical_offset"]:
        return False
    newest = max(1, count - 2)
    last = _units_at(view, geometry.units_start + INDEX_UNIT.itemsize * newest, count - newest)
    if header["end_physical_offset"] not in last["physical_offset"]:
        return False
    if bool((proof["key_hash"] < 0).any()) or bool((proof["time_diff"] < 0).any()):
        return False
    slots = proof["key_hash"].astype(np.int64) % geometry.hash_slot_num
    order = np.argsort(slots, kind="stable")
    same_slot = slots[order][1:] == slots[order][:-1]
    expected_prev = np.zeros(len(proof), np.int64)
    expected_prev[order[1:][same_slot]] = order[:-1][same_slot] + 1  # units count from 1
    if not np.array_equal(proof["prev_index"], expected_prev):
        return False
    heads = _slots_at(view, slots)
    numbers = np.arange(1, len(proof) + 1)
    return bool(((heads >= numbers) & (heads <= count)).all())
