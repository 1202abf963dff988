"""Follows the lengths of message units through a window of the commitlog, and checks each unit (spec 7.2)."""

from __future__ import annotations

from numba import types

from store_format.kernels.jit import BOOL, BYTES, INT, OUT_INTS, kernel
from store_format.kernels.units import find_parts, is_intact
from store_format.kernels.words import load32
from store_format.layouts import MESSAGE_SIZE_MIN


@kernel(types.UniTuple(INT, 2), BYTES, INT, INT, INT, BOOL, OUT_INTS, OUT_INTS)
def follow(buffer, stop, position, physical, verify_crc, positions, sizes):
    """Returns (how many units from byte 0 on are whole and right, 1 if the next one is whole and wrong).

    Units begin before `stop`. `positions` gets the place of each in the file, in which the buffer begins at
    `position`, and `sizes` its bytes. `physical` is the physical offset of byte 0.
    """
    count, at = 0, 0
    last = min(stop, len(buffer) - MESSAGE_SIZE_MIN + 1)
    while at < last and count < min(len(positions), len(sizes)):
        size = load32(buffer, at)
        if size < MESSAGE_SIZE_MIN or size > len(buffer) - at:
            break
        parts = find_parts(buffer, at, size, physical + at)
        if parts[0] == 0 or (verify_crc and not is_intact(buffer, at, parts[0], parts[1])):
            return count, 1
        positions[count], sizes[count] = position + at, size
        count += 1
        at += size
    return count, 0
