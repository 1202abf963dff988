"""The properties string of one message, and the order in which a Java HashMap would write it.

`name 0x01 value 0x02` for each property, without escapes (MessageDecoder, spec 2.5); whole columns of them
are decoded in `property_columns.py` and encoded in `property_strings.py`.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from store_format.java.hashes import java_hash
from store_format.java.text import decode_utf8
from store_format.layouts import (
    CRC_PROPERTY_NAME,
    CRC_PROPERTY_SIZE,
    NAME_VALUE_SEPARATOR,
    PROPERTY_SEPARATOR,
)

__all__ = [
    "BROKER_MAP_CAPACITY",
    "crc_properties",
    "crc_property",
    "decode_properties",
    "encode_properties",
    "hash_bucket",
    "java_hashmap_order",
    "java_hashmap_permutation",
    "parse_crc_property",
    "table_size",
]

BROKER_MAP_CAPACITY = 128  # MessageDecoder.string2messageProperties: new HashMap<>(128)

_NAME_VALUE = bytes([NAME_VALUE_SEPARATOR])
_PROPERTY = bytes([PROPERTY_SEPARATOR])
_CRC_PREFIX = CRC_PROPERTY_NAME + _NAME_VALUE
_CRC_DIGITS = CRC_PROPERTY_SIZE - len(_CRC_PREFIX) - 1


def decode_properties(raw: bytes) -> dict[str, str]:
    """The properties of one message as Java reads them (MessageDecoder.string2messageProperties).

    A segment counts only when its first 0x01 has something on both sides; a value may hold further 0x01. Of
    equal names the last wins, at the place of the first.

    >>> decode_properties(b"KEYS\\x01k1 k2\\x02TAGS\\x01\\x02")
    {'KEYS': 'k1 k2'}
    """
    properties = {}
    for segment in raw.split(_PROPERTY):
        name, _, value = segment.partition(_NAME_VALUE)
        if name and value:
            properties[decode_utf8(name)] = decode_utf8(value)
    return properties


def encode_properties(pairs: Iterable[tuple[str, str]]) -> bytes:
    """The pairs in their order, nothing checked and nothing left out
    (MessageDecoder.messageProperties2String).
    """
    return b"".join(name.encode() + _NAME_VALUE + value.encode() + _PROPERTY for name, value in pairs)


# ---- the order of java.util.HashMap ------------------------------------------------------------------------


def table_size(count: int, capacity: int = BROKER_MAP_CAPACITY) -> int:
    """Buckets of a map made with `capacity` (a power of two) once it holds `count` names: doubled when more
    than three quarters full.
    """
    while 4 * count > 3 * capacity:
        capacity *= 2
    return capacity


def hash_bucket(name: str, size: int) -> int:
    """The bucket of `name` among `size` buckets (HashMap.hash)."""
    value = java_hash(name) & 0xFFFFFFFF
    return (value ^ value >> 16) & (size - 1)


def java_hashmap_order(names: Iterable[str], capacity: int = BROKER_MAP_CAPACITY) -> list[str]:
    """Distinct `names`, put into a HashMap one after the other, as iterating it gives them.

    Buckets ascending, insertion order inside a bucket; putting a name again keeps its place. Not modelled:
    nine names in one bucket become a tree in Java, which may come out in another order.
    """
    distinct = tuple(dict.fromkeys(names))
    return [distinct[place] for place in java_hashmap_permutation(distinct, capacity)]


@lru_cache(maxsize=1024)
def java_hashmap_permutation(names: tuple[str, ...], capacity: int = BROKER_MAP_CAPACITY) -> tuple[int, ...]:
    """The places of distinct `names` in iteration order, worked out once for the many messages that share a
    name sequence.
    """
    size = table_size(len(names), capacity)
    return tuple(sorted(range(len(names)), key=lambda place: hash_bucket(names[place], size)))


# ---- the appended CRC property -----------------------------------------------------------------------------


def crc_property(crc: int) -> bytes:
    """The 20 bytes at the end of a unit that hold its CRC, ten digits, the least significant first
    (MessageDecoder.createCrc32).

    >>> crc_property(374855536)
    b'__CRC32#\\x016355584730\\x02'
    """
    return crc_properties(np.array([crc], np.int64)).tobytes()


def crc_properties(crcs: NDArray[np.int64]) -> NDArray[np.uint8]:
    """`crc_property` of each, one row of 20 bytes each."""
    rows = np.empty((len(crcs), CRC_PROPERTY_SIZE), np.uint8)
    rows[:, : len(_CRC_PREFIX)] = np.frombuffer(_CRC_PREFIX, np.uint8)
    rest = crcs.copy()
    for place in range(len(_CRC_PREFIX), len(_CRC_PREFIX) + _CRC_DIGITS):
        rest, digits = np.divmod(rest, 10)
        rows[:, place] = digits + ord("0")
    rows[:, -1] = PROPERTY_SEPARATOR
    return rows


def parse_crc_property(raw: bytes) -> int | None:
    """The CRC held by the last 20 bytes of a unit, or None when they are no CRC property."""
    digits = raw[len(_CRC_PREFIX) : -1]
    if (
        len(raw) != CRC_PROPERTY_SIZE
        or not raw.startswith(_CRC_PREFIX)
        or not raw.endswith(_PROPERTY)
        or not digits.isdigit()
    ):
        return None
    return int(digits[::-1])
