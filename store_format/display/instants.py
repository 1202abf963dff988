"""Numbers that a person writes for a time: ms since 1970, and what another number was meant to be."""

from __future__ import annotations

import re

_DATE = re.compile(
    r"((?:19|20)\d\d)(?:(0[1-9]|1[0-2])(?:(0[1-9]|[12]\d|3[01])(?:([01]\d|2[0-3])([0-5]\d)([0-5]\d)?)?)?)?",
    re.ASCII,
)  # 2026, 202611, 20261129, 202611290900, 20261129090000
_SINCE_2001 = {"seconds": 10**9, "microseconds": 10**15, "nanoseconds": 10**18}  # September 2001
_LONG_MAX = (1 << 63) - 1  # Java's end of time


def number_advice(word: str) -> str:
    """What digits mean that are no time of a message, in ms: a date, or another unit. "" for ms.

    >>> number_advice("1795910400"), number_advice("2026"), number_advice("1795910400000")
    ('these are seconds; in milliseconds: 1795910400000', 'this would be in ms; a date is 2026-01-01', '')
    """
    date = _DATE.fullmatch(word)
    if date is not None:
        return f"this would be in ms; a date is {date[1]}-{date[2] or '01'}-{date[3] or '01'}" + (
            f"T{date[4]}:{date[5]}:{date[6] or '00'}Z" if date[4] else ""
        )
    for unit, least in _SINCE_2001.items():
        if least <= int(word) < min(10 * least, _LONG_MAX):
            return f"these are {unit}; in milliseconds: {int(word) * 10**12 // least}"
    return ""
