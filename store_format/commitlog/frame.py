"""How messages lie in a commitlog file: one behind the other (`UnitFrame`), or each behind a head
(`dledger.EntryFrame`). A walk asks the frame of a file for the next message.
"""

from __future__ import annotations

from struct import Struct

import numpy as np
from numpy.typing import NDArray

from store_format import kernels
from store_format.arrays.ranges import gather_units
from store_format.files.paths import StoreFile
from store_format.layouts import MAGIC_BLANK, MAGIC_V1, MAGIC_V2, MESSAGE_HEADS, MESSAGE_SIZE_MIN
from store_format.message.single import Sliceable, UnitCheck, UnitKind, check_unit

_Bytes = NDArray[np.uint8]
_Ints = NDArray[np.int64]

_LENGTH = Struct(">i")
HEAD_SIZE = MESSAGE_HEADS[0].itemsize  # of a message
MAGIC_AT = 4
_BLANK_BYTES = MAGIC_BLANK.to_bytes(4, "big")
_MAGIC_BYTES = MAGIC_V1.to_bytes(4, "big")  # V2 differs in the last byte only


class UnitFrame:
    """Messages lie one behind the other, and a BLANK has its size before its magic code (CommitLog).

    `previous` is what the record before says about the next one; here nothing.
    """

    def check(
        self,
        buffer: Sliceable,
        position: int,
        remaining: int,
        *,
        physical_offset: int,
        verify_crc: bool,
        previous: _Ints | None = None,
    ) -> UnitCheck:
        """Checks the record at `position` of `buffer` as `check_unit` does; `size` is the message's."""
        return check_unit(buffer, position, remaining, physical_offset=physical_offset, verify_crc=verify_crc)

    def message_at(self, buffer: Sliceable, position: int) -> int:
        """The position of the message of the record at `position`."""
        return position

    def note(self, buffer: Sliceable, position: int, previous: _Ints) -> None:
        """Notes in `previous` that the record at `position` is right."""

    def is_blank(self, buffer: Sliceable, position: int) -> bool:
        """Whether the bytes at `position` have the magic code of a BLANK; their size may be wrong."""
        return bytes(buffer[position + MAGIC_AT : position + MAGIC_AT + 4]) == _BLANK_BYTES

    def follow(
        self,
        buffer: _Bytes,
        stop: int,
        position: int,
        physical: int,
        verify_crc: bool,
        previous: _Ints,
        positions: _Ints,
        sizes: _Ints,
    ) -> tuple[int, bool]:
        """Returns (how many messages from byte 0 on are whole and right, whether the next one is wrong).

        Messages begin before `stop`. `positions` gets the place of each in the file, in which the buffer
        begins at `position`, and `sizes` its bytes. `physical` is the physical offset of byte 0.
        """
        follow = kernels.walk.follow if kernels.ready() else follow_units
        count, wrong = follow(buffer, stop, position, physical, verify_crc, positions, sizes)
        return count, bool(wrong)

    def candidates(self, data: _Bytes, count: int, file: StoreFile, at: int) -> list[int]:
        """Positions in the file, in ascending order, at which a record or a BLANK may begin.

        Searches the first `count` bytes of `data`, which begins at position `at` of the file.
        """
        blanks = [at + place for place in _blanks(data, count, file.size - at)]
        return sorted([*message_places(data, count, file, at), *blanks])


def follow_units(
    buffer: _Bytes,
    stop: int,
    position: int,
    physical: int,
    verify_crc: bool,
    positions: _Ints,
    sizes: _Ints,
) -> tuple[int, bool]:
    """The kernel `follow` for a few units: without numba."""
    data, at, count = buffer.tobytes(), 0, 0
    while at < min(stop, len(data) - MESSAGE_SIZE_MIN + 1):
        (size,) = _LENGTH.unpack_from(data, at)
        if not MESSAGE_SIZE_MIN <= size <= len(data) - at:
            break
        check = check_unit(data, at, size, physical_offset=physical + at, verify_crc=verify_crc)
        if check.kind is not UnitKind.OK:
            return count, True
        positions[count], sizes[count] = position + at, size
        count, at = count + 1, at + size
    return count, False


def message_places(data: _Bytes, count: int, file: StoreFile, at: int) -> list[int]:
    """Positions at which a message may begin, by magic code, size and physicalOffset; as `candidates`."""
    count = min(count, len(data) - HEAD_SIZE + 1)
    if count <= 0:
        return []
    places = np.flatnonzero(data[MAGIC_AT : MAGIC_AT + count] == _MAGIC_BYTES[0])
    for i, byte in enumerate(_MAGIC_BYTES[1:3], 1):
        places = places[data[places + MAGIC_AT + i] == byte]
    heads = gather_units(data, places, MESSAGE_HEADS[0])
    fits = (heads["magic"] == MAGIC_V1) | (heads["magic"] == MAGIC_V2)
    fits &= heads["physical_offset"] == places + (file.start + at)
    fits &= (heads["total_size"] >= MESSAGE_SIZE_MIN) & (heads["total_size"] <= file.size - at - places)
    return [at + place for place in places[fits].tolist()]


def _blanks(data: _Bytes, count: int, remaining: int) -> list[int]:
    """Places among the first `count` bytes where a BLANK may begin.

    A BLANK has its magic code, and before it the number of bytes up to the file's end.
    """
    found, raw = [], data.tobytes()
    place = raw.find(_BLANK_BYTES, MAGIC_AT) - MAGIC_AT
    while 0 <= place < count:
        if int.from_bytes(raw[place : place + MAGIC_AT], "big") == remaining - place:
            found.append(place)
        place = raw.find(_BLANK_BYTES, place + MAGIC_AT + 1) - MAGIC_AT
    return found
