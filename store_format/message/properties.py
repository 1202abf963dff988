"""The properties string of one message: `name 0x01 value 0x02` for each property, without escapes (spec 2.5).

`property_table.py` decodes the properties strings of a whole column, `property_encoder.py` encodes them.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from store_format.java.text import decode_utf8
from store_format.layouts import (
    CRC_PROPERTY_NAME,
    CRC_PROPERTY_SIZE,
    NAME_VALUE_SEPARATOR,
    PROPERTY_SEPARATOR,
)

_NAME_VALUE = bytes([NAME_VALUE_SEPARATOR])
_PROPERTY = bytes([PROPERTY_SEPARATOR])
_CRC_PREFIX = CRC_PROPERTY_NAME + _NAME_VALUE
_CRC_DIGITS = CRC_PROPERTY_SIZE - len(_CRC_PREFIX) - 1


def decode_properties(raw: bytes) -> dict[str, str]:
    """Returns the properties of one message as Java reads them (MessageDecoder.string2messageProperties).

    A segment counts only when its first 0x01 has at least one byte on both sides; a value may contain further
    0x01. Of equal names the last value counts, at the place of the first.

    >>> decode_properties(b"KEYS\\x01k1 k2\\x02TAGS\\x01\\x02")
    {'KEYS': 'k1 k2'}
    """
    properties = {}
    for segment in raw.split(_PROPERTY):
        name, _, value = segment.partition(_NAME_VALUE)
        if name and value:
            properties[decode_utf8(name)] = decode_utf8(value)
    return properties


# ---- the appended CRC property -----------------------------------------------------------------------------


def crc_properties(crcs: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Returns the CRC property of each CRC as a row of 20 bytes, with ten digits, the last digit first.

    The rule is MessageDecoder.createCrc32.

    >>> crc_properties(np.array([374855536])).tobytes()
    b'__CRC32#\\x016355584730\\x02'
    """
    rows = np.empty((len(crcs), CRC_PROPERTY_SIZE), np.uint8)
    rows[:, : len(_CRC_PREFIX)] = np.frombuffer(_CRC_PREFIX, np.uint8)
    rest = crcs.copy()
    for place in range(len(_CRC_PREFIX), len(_CRC_PREFIX) + _CRC_DIGITS):
        rest, digits = np.divmod(rest, 10)
        rows[:, place] = digits + ord("0")
    rows[:, -1] = PROPERTY_SEPARATOR
    return rows


def parse_crc_property(raw: bytes) -> int | None:
    """Returns the CRC in the last 20 bytes of a unit; None when they are no CRC property."""
    digits = raw[len(_CRC_PREFIX) : -1]
    if (
        len(raw) != CRC_PROPERTY_SIZE
        or not raw.startswith(_CRC_PREFIX)
        or not raw.endswith(_PROPERTY)
        or not digits.isdigit()
    ):
        return None
    return int(digits[::-1])
