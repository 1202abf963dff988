"""Finds the next message unit behind damage, by magic code, size and the unit's own physicalOffset.

The search is linear in the bytes, whatever they are: candidates come from one pass of vector comparisons. The
caller bounds the cost of checking them.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from store_format.arrays.ranges import gather_units
from store_format.files.read import StoreFile
from store_format.files.view import FileView
from store_format.layouts import MAGIC_BLANK, MAGIC_V1, MAGIC_V2, MESSAGE_HEADS, MESSAGE_SIZE_MIN

_BLOCK_SIZE_MIN = 4096
_BLOCK_SIZE_MAX = 1 << 18
_HEAD_SIZE = MESSAGE_HEADS[0].itemsize
_MAGIC_AT = 4
_BLANK_BYTES = MAGIC_BLANK.to_bytes(4, "big")
_MAGIC_BYTES = MAGIC_V1.to_bytes(4, "big")  # V2 differs in the last byte only


def search_unit(
    view: FileView, file: StoreFile, position: int, stop: int, is_unit: Callable[[int], bool]
) -> tuple[int | None, int]:
    """The first place behind `position` and before `stop` for which `is_unit` is true; None without.

    The second result is the place from which on all bytes that were read are zero.
    """
    at, zeros_from, size = position, position, _BLOCK_SIZE_MIN
    while at < stop:
        at = max(at, view.data_from(at) - _HEAD_SIZE)  # A unit that begins with zeros may begin in a hole.
        data = np.frombuffer(view.read(at, min(size + _HEAD_SIZE, file.size - at)), np.uint8)
        if not len(data):
            return None, stop  # The file became shorter.
        block = data[: min(size, stop - at)]
        is_zero = not data.any()  # Most bytes behind the end of a log are zero.
        for candidate in () if is_zero else _candidates_in(data, len(block), file, at):
            if candidate > position and is_unit(candidate):
                return candidate, zeros_from
        if not is_zero and block.any():
            zeros_from = at + len(block) - int((block[::-1] != 0).argmax())
        at, size = at + len(block), min(2 * size, _BLOCK_SIZE_MAX)
    return None, zeros_from


def _candidates_in(data: NDArray[np.uint8], count: int, file: StoreFile, at: int) -> list[int]:
    """Positions in the file at which a unit or a BLANK may begin, by magic code, size and physicalOffset.

    Searches the first `count` bytes of `data`, which begins at position `at` of the file.
    """
    blanks = _blanks(data, count, file.size - at)
    count = min(count, len(data) - _HEAD_SIZE + 1)
    if count <= 0:
        return [at + place for place in blanks]
    places = np.flatnonzero(data[_MAGIC_AT : _MAGIC_AT + count] == _MAGIC_BYTES[0])
    for i, byte in enumerate(_MAGIC_BYTES[1:3], 1):
        places = places[data[places + _MAGIC_AT + i] == byte]
    heads = gather_units(data, places, MESSAGE_HEADS[0])
    fits = (heads["magic"] == MAGIC_V1) | (heads["magic"] == MAGIC_V2)
    fits &= heads["physical_offset"] == places + (file.start + at)
    fits &= (heads["total_size"] >= MESSAGE_SIZE_MIN) & (heads["total_size"] <= file.size - at - places)
    return sorted(at + place for place in [*places[fits].tolist(), *blanks])


def _blanks(data: NDArray[np.uint8], count: int, remaining: int) -> list[int]:
    """Places among the first `count` bytes where a BLANK may begin.

    A BLANK has its magic code, and before it the number of bytes up to the file's end.
    """
    found, raw = [], data.tobytes()
    place = raw.find(_BLANK_BYTES, _MAGIC_AT) - _MAGIC_AT
    while 0 <= place < count:
        if int.from_bytes(raw[place : place + _MAGIC_AT], "big") == remaining - place:
            found.append(place)
        place = raw.find(_BLANK_BYTES, place + _MAGIC_AT + 1) - _MAGIC_AT
    return found
