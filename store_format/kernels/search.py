"""Finds messages by bytes of their properties."""

from __future__ import annotations

import numpy as np

from store_format.kernels.jit import BYTES, INT, INTS, OUT_INTS, kernel, part
from store_format.kernels.units import find_parts
from store_format.kernels.words import U64, load32, trailing_zeros, word

_ONES, _HIGH = U64(0x0101010101010101), U64(0x8080808080808080)
INNER = 0xC0  # sysflag.INNER_BATCH and NEED_UNWRAP


@part
def contains(buffer, start, stop, key):
    """Returns whether `key`, which is not empty, is in [start, stop).

    Eight places at a time: a byte of `different` is zero where the first two bytes of the key begin, and the
    lowest zero byte of a word is found by (x - 0x01...) & ~x & 0x80...
    """
    size = len(key)
    first, second = U64(key[0]) * _ONES, U64(key[min(size, 2) - 1]) * _ONES
    ahead = min(size - 1, 1)
    at, last = start, stop - size
    while at <= last:
        found = at
        if at <= len(buffer) - 9:
            different = (word(buffer, at) ^ first) | (word(buffer, at + ahead) ^ second)
            zeros = (different - _ONES) & ~different & _HIGH
            if zeros == U64(0):
                at += 8
                continue
            found = at + np.int64(trailing_zeros(zeros) >> U64(3))
        same = 0
        while found <= last and same < size and buffer[found + same] == key[same]:
            same += 1
        if same == size:
            return True
        at = found + 1
    return False


@kernel(INT, BYTES, INTS, INTS, INT, BYTES, OUT_INTS)
def rows_with(buffer, starts, sizes, physical, key, rows):
    """Returns how many numbers of units `rows` gets: those with the bytes of `key` in their properties.

    Inner batches always count: their messages have keys of their own, and may be compressed. Units that do
    not fit are left out. `physical` is the physical offset of byte 0.
    """
    count = 0
    for i in range(len(starts)):
        parts = find_parts(buffer, starts[i], sizes[i], physical + starts[i])
        if parts[0] == 0:
            continue
        is_batch = load32(buffer, starts[i] + 36) & INNER == INNER
        if is_batch or contains(buffer, parts[4], parts[4] + parts[5], key):
            rows[count] = i
            count += 1
    return count
