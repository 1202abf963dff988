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


def infer_geometry(
    buffer: NDArray[np.uint8], likely: IndexGeometry = DEFAULT_GEOMETRY
) -> IndexGeometry | None:
    """The only geometry that the file's units prove; None if they prove none, or more than one.

    `likely` is tried first and may save the search. A file without units proves nothing, whatever its size.
    """
    if len(buffer) < INDEX_HEADER.itemsize or len(buffer) % 4:
        return None
    if len(buffer) == likely.file_size and confirms(buffer, likely):
        return likely
    proved: list[IndexGeometry] = []
    survivors = 0
    for candidates in _screen(buffer):
        survivors += len(candidates)
        if survivors > _SURVIVORS_MAX:
            return None
        for hash_slot_num in candidates.tolist():
            geometry = IndexGeometry(
                hash_slot_num, (len(buffer) - 40 - 4 * hash_slot_num) // INDEX_UNIT.itemsize
            )
            if confirms(buffer, geometry):
                proved.append(geometry)
    return proved[0] if len(proved) == 1 else None


def _screen(buffer: NDArray[np.uint8]) -> Iterator[NDArray[np.int64]]:
    """Numbers of slots that agree with the header's offsets and the first unit's slot, a step at a time."""
    header = unpack(buffer[: INDEX_HEADER.itemsize], INDEX_HEADER)[0]
    count = int(header["index_count"])
    words = buffer.view(">i4")
    # the header's units must fit behind the slots
    slots_max = len(words) - _HEADER_WORDS - _UNIT_WORDS * count
    if count <= 1 or slots_max < 1:
        return
    begin, end = _two_words(header["begin_physical_offset"]), _two_words(header["end_physical_offset"])
    first = (len(words) - _HEADER_WORDS) % _UNIT_WORDS or _UNIT_WORDS
    for start in range(first, slots_max + 1, _UNIT_WORDS * _CANDIDATES_PER_STEP):
        stop = min(start + _UNIT_WORDS * _CANDIDATES_PER_STEP, slots_max + 1)
        slot_nums = np.arange(start, stop, _UNIT_WORDS, dtype=np.int64)
        unit_1 = slot_nums + (_HEADER_WORDS + _UNIT_WORDS)
        last = unit_1 + _UNIT_WORDS * (count - 2)
        good = (
            (words[unit_1] >= 0)
            & (words[unit_1 + 3] >= 0)
            & (words[unit_1 + 4] == 0)
            & _offset_is(words, unit_1, begin)
        )
        # A broker counts a unit before it stores its offset: during a write the end offset may still be that
        # of the unit before.
        good &= _offset_is(words, last, end) | (_offset_is(words, last - _UNIT_WORDS, end) & (count > 2))
        slot_nums, hashes = slot_nums[good], words[unit_1[good]].astype(np.int64)
        heads = words[_HEADER_WORDS + hashes % slot_nums]
        yield slot_nums[(heads >= 1) & (heads <= count)]


def _two_words(value: np.int64) -> tuple[int, int]:
    high, low = np.array([value], ">i8").view(">i4")
    return int(high), int(low)


def _offset_is(
    words: NDArray[np.int32], unit: NDArray[np.int64], offset: tuple[int, int]
) -> NDArray[np.bool_]:
    equal: NDArray[np.bool_] = (words[unit + 1] == offset[0]) & (words[unit + 2] == offset[1])
    return equal


def confirms(buffer: NDArray[np.uint8], geometry: IndexGeometry) -> bool:
    """Whether the first units are what a broker writes with this geometry (IndexFile.putKey).

    Each unit's prev_index must be the earlier unit of the same slot, each slot must point to the newest of
    these units or to a later one, and the first and the last unit must have the header's offsets.
    """
    header = unpack(buffer[: INDEX_HEADER.itemsize], INDEX_HEADER)[0]
    count = int(header["index_count"])
    if not 1 < count <= geometry.index_num or geometry.hash_slot_num < 1 or geometry.file_size > len(buffer):
        return False
    units = unpack(
        buffer[geometry.units_start : geometry.units_start + INDEX_UNIT.itemsize * count], INDEX_UNIT
    )
    if units["physical_offset"][1] != header["begin_physical_offset"]:
        return False
    if header["end_physical_offset"] not in units["physical_offset"][max(1, count - 2) :]:
        return False
    proof = units[1 : 1 + _PROOF_UNITS]
    if bool((proof["key_hash"] < 0).any()) or bool((proof["time_diff"] < 0).any()):
        return False
    slots = proof["key_hash"].astype(np.int64) % geometry.hash_slot_num
    order = np.argsort(slots, kind="stable")
    same_slot = slots[order][1:] == slots[order][:-1]
    expected_prev = np.zeros(len(proof), np.int64)
    expected_prev[order[1:][same_slot]] = order[:-1][same_slot] + 1  # units count from 1
    if not np.array_equal(proof["prev_index"], expected_prev):
        return False
    heads = buffer[INDEX_HEADER.itemsize : geometry.units_start].view(INDEX_SLOT)[slots]
    numbers = np.arange(1, len(proof) + 1)
    return bool(((heads >= numbers) & (heads <= count)).all())
