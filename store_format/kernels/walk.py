"""Follows the lengths of message units through a window of the commitlog, and checks each unit (spec 7.2)."""

from __future__ import annotations

import numpy as np
from numba import types

from store_format.kernels.jit import BOOL, BYTES, INT, OUT_INTS, kernel
from store_format.kernels.units import find_parts, is_intact
from store_format.kernels.words import load32, load64
from store_format.layouts import DLEDGER_HEAD, DLEDGER_MAGIC, MAGIC_V1, MAGIC_V2, MESSAGE_SIZE_MIN

_V1, _V2 = MAGIC_V1 - 2**32, MAGIC_V2 - 2**32  # as signed numbers
_HEAD_SIZE = DLEDGER_HEAD.itemsize
_SIZE, _INDEX, _TERM, _POS, _BODY_SIZE = (
    int(DLEDGER_HEAD.fields[name][1])  # type: ignore[index]
    for name in ("size", "index", "term", "pos", "body_size")
)


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


@kernel(types.UniTuple(INT, 2), BYTES, INT, INT, INT, BOOL, OUT_INTS, OUT_INTS, OUT_INTS)
def follow_entries(buffer, stop, position, physical, verify_crc, previous, positions, sizes):
    """As `follow`, for messages behind heads of DLedger entries; a message may also have none.

    `previous` has index and term of the entry before, -1 if any may follow, and gets those of the last one.
    """
    count, at = 0, 0
    last = min(stop, len(buffer) - MESSAGE_SIZE_MIN + 1)
    while at <= len(buffer) - MESSAGE_SIZE_MIN and count < min(len(positions), len(sizes)):
        word = load32(buffer, at + _SIZE)  # the size of an entry, or the magic code of a message
        has_head = word != _V1 and word != _V2
        place = at + _HEAD_SIZE if has_head else at
        if place >= last or (has_head and load32(buffer, at) != DLEDGER_MAGIC):
            break
        size = word - _HEAD_SIZE if has_head else load32(buffer, at)
        if size < MESSAGE_SIZE_MIN or size > len(buffer) - place:
            break
        index, term = np.int64(-1), np.int64(-1)
        if has_head:
            index, term = load64(buffer, at + _INDEX), load64(buffer, at + _TERM)
            if (
                index < 0
                or (previous[0] != -1 and index != previous[0] + 1)
                or term < max(previous[1], 0)
                or load64(buffer, at + _POS) != physical + at
                or load32(buffer, at + _BODY_SIZE) != size
            ):
                return count, 1
        parts = find_parts(buffer, place, size, physical + place)
        if parts[0] == 0 or (verify_crc and not is_intact(buffer, place, parts[0], parts[1])):
            return count, 1
        previous[0], previous[1] = index, term
        positions[count], sizes[count] = position + place, size
        count += 1
        at = place + size
    return count, 0
