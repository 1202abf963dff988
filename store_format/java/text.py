"""Text as Java's String has it: decoded from UTF-8, compared and counted in UTF-16 code units, and hashed.

Malformed UTF-8 becomes U+FFFD and is never an error. Java and Python agree on every malformed byte except
encoded surrogates, which Java replaces as one character and Python byte by byte.

The hash of a string is a polynomial in 31 over its UTF-16 code units, modulo 2^32. Tags codes and index keys
are such hashes. They also decide the order in which java.util.HashMap returns its names: the order of
properties that a broker writes.
"""

from __future__ import annotations

import re
from functools import lru_cache
from itertools import pairwise

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from store_format import kernels
from store_format.arrays.ranges import flat_bytes, is_valid, without_nulls

_ENCODED_SURROGATE = re.compile(rb"\xed[\xa0-\xbf][\x80-\xbf]?")
_REPLACEMENT = b"\xef\xbf\xbd"


def decode_utf8(raw: bytes) -> str:
    """Returns the text of `raw` as java.lang.String decodes it (JDK 9 and later).

    >>> decode_utf8(b"a\\xed\\xa0\\x80b\\xff")
    'a\\ufffdb\\ufffd'
    """
    try:
        return raw.decode()
    except UnicodeDecodeError:
        # 0xED is never a continuation byte, so each match begins where Java begins a character.
        return _ENCODED_SURROGATE.sub(_REPLACEMENT, raw).decode(errors="replace")


def utf16_key(text: str) -> bytes:
    """Returns a sort key in the order of String.compareTo: UTF-16 code units.

    Above U+FFFF the order of code points, which Python compares, is another one.
    """
    return text.encode("utf-16-be", "surrogatepass")


def utf16_length(text: str) -> int:
    """Returns String.length: the number of UTF-16 code units."""
    return len(text.encode("utf-16-le", "surrogatepass")) // 2


# ---- hash codes --------------------------------------------------------------------------------------------


_BASE = 31

BROKER_MAP_CAPACITY = 128  # MessageDecoder.string2messageProperties: new HashMap<>(128)


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
    if not kernels.ready(len(strings)):
        data, ends = flat_bytes(strings)
        texts = (decode_utf8(data[start:stop].tobytes()) for start, stop in pairwise(ends.tolist()))
        found = np.fromiter(map(java_hash, texts), np.int32, len(strings))
        return np.where(is_valid(strings), found, np.int32(0))  # a null may cover bytes
    data, ends = flat_bytes(without_nulls(strings))
    hashes = np.empty(len(strings), np.int64)
    if kernels.hashes.java_hashes(data, ends, hashes):
        for i in np.flatnonzero(hashes == kernels.hashes.MALFORMED).tolist():
            hashes[i] = java_hash(decode_utf8(data[ends[i] : ends[i + 1]].tobytes()))
    return hashes.astype(np.int32)


# ---- the order of a HashMap --------------------------------------------------------------------------------


def table_size(count: int, capacity: int = BROKER_MAP_CAPACITY) -> int:
    """Returns the number of buckets of a map that was made with `capacity` and has `count` names.

    `capacity` is a power of two. The table doubles when it is more than three quarters full.
    """
    while 4 * count > 3 * capacity:
        capacity *= 2
    return capacity


def hash_bucket(name: str, size: int) -> int:
    """Returns the bucket of `name` among `size` buckets (HashMap.hash)."""
    value = java_hash(name) & 0xFFFFFFFF
    return (value ^ value >> 16) & (size - 1)


@lru_cache(maxsize=1024)
def hash_map_order(names: tuple[str, ...], capacity: int = BROKER_MAP_CAPACITY) -> tuple[int, ...]:
    """Returns the places of distinct `names`, put into a HashMap in their order, in iteration order.

    Buckets ascend; a bucket keeps the order of insertion. Not modelled: nine names in one bucket become a
    tree in Java, which may return them in another order. Many messages share a sequence of names, hence the
    cache.
    """
    size = table_size(len(names), capacity)
    return tuple(sorted(range(len(names)), key=lambda place: hash_bucket(names[place], size)))
