"""Java's `String.hashCode` of one string or of an Arrow array: for tags codes, index keys and HashMap orders.

The hash of a string is a polynomial in 31 over its UTF-16 code units, modulo 2^32.
"""

from __future__ import annotations

from functools import cache
from itertools import pairwise

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from store_format.arrays.ranges import flat_bytes
from store_format.java.text import decode_utf8

_BASE = 31
_BASE_INVERSE = pow(_BASE, -1, 1 << 32)
_BLOCK_UNITS = 1 << 16  # two tables of powers and the terms fit in the cache of one core


def java_hash(text: str) -> int:
    """Returns the signed 32-bit hash. A lone surrogate counts as one code unit.

    >>> java_hash("TagA")
    2598919
    """
    value = 0
    units = text.encode("utf-16-le", "surrogatepass")
    for low, high in zip(units[0::2], units[1::2], strict=True):
        value = (value * _BASE + low + (high << 8)) & 0xFFFFFFFF
    return value - (1 << 32) if value >> 31 else value


def tags_code(tags: str) -> int:
    """Returns the tags code of TAGS: its hash as a long (MessageExtBrokerInner.tagsString2tagsCode)."""
    return java_hash(tags)


def tags_code_many(tags: pa.Array) -> NDArray[np.int64]:
    """Returns `tags_code` of each element; 0 for null."""
    return java_hash_many(tags).astype(np.int64)


def java_hash_many(strings: pa.Array) -> NDArray[np.int32]:
    """Returns `java_hash` of each element of a (large) string array or binary array of UTF-8; 0 for null."""
    data, offsets = flat_bytes(strings)
    if len(data) and int(data.max()) >= 0x80:
        units = _utf16_units(data, offsets)
        hashes = _hash_one_by_one(data, offsets) if units is None else _hash_ranges(*units)
    else:
        hashes = _hash_ranges(data, offsets)
    if strings.null_count:
        hashes[strings.is_null().to_numpy(zero_copy_only=False)] = 0  # a null may cover bytes
    return hashes


def hash_powers(lengths: NDArray[np.int64]) -> NDArray[np.uint32]:
    """Returns 31^length modulo 2^32 of each length in UTF-16 units.

    With it hash(a + b) = hash(a) * 31^len(b) + hash(b).
    """
    most = int(lengths.max()) if len(lengths) else 0
    powers: NDArray[np.uint32] = _powers(_BASE, most + 1)[lengths]
    return powers


def _utf16_units(
    data: NDArray[np.uint8], offsets: NDArray[np.int64]
) -> tuple[NDArray[np.uint16], NDArray[np.int64]] | None:
    """Returns all strings as UTF-16 code units, and their offsets; None when a string is not valid UTF-8."""
    heads = offsets[offsets < len(data)]
    if bool(((data[heads] & 0xC0) == 0x80).any()):
        return None  # a character crosses the boundary of two strings
    try:
        text = data.tobytes().decode()
    except UnicodeDecodeError:
        return None
    # Each character begins with a byte that is no continuation byte; a character of four bytes has two units.
    units_per_byte = ((data & 0xC0) != 0x80).astype(np.int64) + (data >= 0xF0)
    units_before = np.zeros(len(data) + 1, np.int64)
    np.cumsum(units_per_byte, out=units_before[1:])
    return np.frombuffer(text.encode("utf-16-le"), "<u2").astype(np.uint16, copy=False), units_before[offsets]


def _hash_one_by_one(data: NDArray[np.uint8], offsets: NDArray[np.int64]) -> NDArray[np.int32]:
    """Hashes malformed UTF-8 as Java decodes it, with malformed parts replaced."""
    raw = data.tobytes()
    bounds = offsets.tolist()
    texts = (decode_utf8(raw[start:stop]) for start, stop in pairwise(bounds))
    return np.fromiter(map(java_hash, texts), np.int32, len(bounds) - 1)


def _hash_ranges(
    units: NDArray[np.uint8] | NDArray[np.uint16], offsets: NDArray[np.int64]
) -> NDArray[np.int32]:
    """Returns the hash of units[offsets[i]:offsets[i + 1]] for each i, block by block of whole strings."""
    hashes = np.empty(len(offsets) - 1, np.uint32)
    row = 0
    while row < len(hashes):
        start = int(offsets[row])
        stop_row = int(np.searchsorted(offsets, start + _BLOCK_UNITS, side="right")) - 1
        stop_row = max(stop_row, row + 1)  # a string longer than a block makes a block alone
        stop = int(offsets[stop_row])
        hashes[row:stop_row] = _hash_block(units[start:stop], offsets[row : stop_row + 1] - start)
        row = stop_row
    return hashes.view(np.int32)


def _hash_block(
    units: NDArray[np.uint8] | NDArray[np.uint16], offsets: NDArray[np.int64]
) -> NDArray[np.uint32]:
    """Returns the hashes of one block in one pass over its units, however many strings it has.

    A string's hash is the sum of unit[i] * 31^-i over its positions i in the block, times 31^(its last
    position). 31 is odd and therefore has an inverse modulo 2^32.
    """
    table = max(len(units), _BLOCK_UNITS)
    hashes = np.zeros(len(offsets) - 1, np.uint32)
    filled = offsets[1:] > offsets[:-1]  # reduceat does not support empty ranges
    if not filled.any():
        return hashes
    terms = _powers(_BASE_INVERSE, table)[: len(units)] * units
    # three times as fast as a running sum
    sums = np.add.reduceat(terms, offsets[:-1][filled], dtype=np.uint32)
    hashes[filled] = sums * _powers(_BASE, table)[offsets[1:][filled] - 1]
    return hashes


def _powers(base: int, count: int) -> NDArray[np.uint32]:
    return _block_powers(base) if count <= _BLOCK_UNITS else _make_powers(base, count)


@cache
def _block_powers(base: int) -> NDArray[np.uint32]:
    return _make_powers(base, _BLOCK_UNITS)


def _make_powers(base: int, count: int) -> NDArray[np.uint32]:
    factors = np.full(count, base, np.uint32)
    factors[:1] = 1
    return np.cumprod(factors, dtype=np.uint32)
