"""Keyed digests of byte ranges: SipHash-1-3 with 128 bits (Aumasson and Bernstein, 2012).

Nobody finds two texts with one digest without the key, and whoever makes the key keeps it to himself. Texts
of several pieces begin with the lengths of the pieces.
"""

from __future__ import annotations

import numpy as np

from store_format.kernels.jit import BOOLS, BYTES, INTS32, NOTHING, OUT_WORDS, WORDS, kernel, part
from store_format.kernels.words import U64, word

_V0, _V1 = U64(0x736F6D6570736575), U64(0x646F72616E646F6D ^ 0xEE)
_V2, _V3 = U64(0x6C7967656E657261), U64(0x7465646279746573)
_FIRST, _SECOND = U64(0xEE), U64(0xDD)


@part
def _turned(value, bits):
    return (value << U64(bits)) | (value >> U64(64 - bits))


@part
def _round(v0, v1, v2, v3):
    v0 += v1
    v2 += v3
    v1 = _turned(v1, 13) ^ v0
    v3 = _turned(v3, 16) ^ v2
    v0 = _turned(v0, 32) + v3
    v2 += v1
    v1 = _turned(v1, 17) ^ v2
    v3 = _turned(v3, 21) ^ v0
    return v0, v1, _turned(v2, 32), v3


@part
def _with_word(v0, v1, v2, v3, value):
    v0, v1, v2, v3 = _round(v0, v1, v2, v3 ^ value)
    return v0 ^ value, v1, v2, v3


@part
def _with_bytes(v0, v1, v2, v3, data, start, stop):
    """Returns the state after the bytes of [start, stop), filled up with zeros to whole words."""
    at = start
    while at <= stop - 8:
        v0, v1, v2, v3 = _with_word(v0, v1, v2, v3, word(data, at))
        at += 8
    if at < stop:
        value = U64(0)
        for i in range(stop - at):
            value |= U64(data[at + i]) << U64(8 * i)
        v0, v1, v2, v3 = _with_word(v0, v1, v2, v3, value)
    return v0, v1, v2, v3


@part
def _ended(v0, v1, v2, v3):
    v2 ^= _FIRST
    for _ in range(3):
        v0, v1, v2, v3 = _round(v0, v1, v2, v3)
    low = v0 ^ v1 ^ v2 ^ v3
    v1 ^= _SECOND
    for _ in range(3):
        v0, v1, v2, v3 = _round(v0, v1, v2, v3)
    return low, v0 ^ v1 ^ v2 ^ v3


@kernel(NOTHING, BYTES, INTS32, WORDS, OUT_WORDS)
def digests(data, offsets, key, found):
    """Writes the digest of the bytes between each two `offsets` as two words of `found`: zeros if they do not
    lie in `data`. The `key` is two words.
    """
    for i in range(len(offsets) - 1):
        start, stop = np.int64(offsets[i]), np.int64(offsets[i + 1])
        low = high = U64(0)
        if 0 <= start <= stop <= len(data):
            v0, v1, v2, v3 = _with_word(
                _V0 ^ key[0], _V1 ^ key[1], _V2 ^ key[0], _V3 ^ key[1], U64(stop - start)
            )
            v0, v1, v2, v3 = _with_bytes(v0, v1, v2, v3, data, start, stop)
            low, high = _ended(v0, v1, v2, v3)
        found[2 * i], found[2 * i + 1] = low, high


@kernel(NOTHING, BYTES, INTS32, BYTES, INTS32, BOOLS, INTS32, WORDS, OUT_WORDS)
def map_digests(names, name_offsets, values, value_offsets, skipped, maps, key, found):
    """Writes the sum of the digests of the entries of each map as two words of `found`.

    Map i has the entries from `maps[i]` to `maps[i + 1]`; those that are `skipped`, or do not lie in the
    bytes, do not count. So the order of the entries makes no difference.
    """
    entries = min(len(name_offsets), len(value_offsets)) - 1
    for i in range(len(maps) - 1):
        low = high = U64(0)
        for entry in range(max(maps[i], 0), min(maps[i + 1], min(entries, len(skipped)))):
            name, name_stop = np.int64(name_offsets[entry]), np.int64(name_offsets[entry + 1])
            value, value_stop = np.int64(value_offsets[entry]), np.int64(value_offsets[entry + 1])
            if skipped[entry] or not 0 <= name <= name_stop <= len(names):
                continue
            if not 0 <= value <= value_stop <= len(values):
                continue
            lengths = U64(name_stop - name) << U64(32) | U64(value_stop - value)
            v0, v1, v2, v3 = _with_word(_V0 ^ key[0], _V1 ^ key[1], _V2 ^ key[0], _V3 ^ key[1], lengths)
            v0, v1, v2, v3 = _with_bytes(v0, v1, v2, v3, names, name, name_stop)
            v0, v1, v2, v3 = _with_bytes(v0, v1, v2, v3, values, value, value_stop)
            first, second = _ended(v0, v1, v2, v3)
            low += first
            high += second
        found[2 * i], found[2 * i + 1] = low, high
