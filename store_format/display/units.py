"""Sizes, durations and counts for people: `395 MiB`, `21h12m`, `1,000,000`.

Programs get the plain numbers: JSON, JSON lines, CSV and DataFrames never contain these texts.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache

SIZES = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
_SECOND, _MINUTE, _HOUR, _DAY = 1000, 60_000, 3_600_000, 86_400_000
_COUNTS = frozenset(
    (
        "messages",
        "deadLetters",
        "entries",
        "copies",
        "turns",
        "done",
        "failures",
        "began",
        "consumed",
        "failed",
        "retried",
        "skipped",
        "files",
        "change",
    )
)

# What people copy into a command or a search: written without separators.
_PLACES = (
    "Offset",
    "Id",
    "Flag",
    "CRC",
    "Code",
    "Hash",
    "Port",
    "position",
    "offset",
    "start",
    "stop",
    "flag",
)
_AGGREGATES = re.compile("_(sum|max|min|first|last)$")  # as Arrow names the result of an aggregation


def size_text(size: int) -> str:
    """Bytes in powers of 1024, with one decimal below 10.

    >>> [size_text(size) for size in (159, 1536, 414_777_780, 1 << 30)]
    ['159 B', '1.5 KiB', '396 MiB', '1.0 GiB']
    """
    sign, left, power = "-" if size < 0 else "", float(abs(size)), 0
    while round(left) >= 1024 and power < len(SIZES) - 1:
        left, power = left / 1024, power + 1
    digits = 1 if power and round(left, 1) < 10 else 0
    return f"{sign}{left:.{digits}f} {SIZES[power]}"


def duration_text(ms: int) -> str:
    """A duration in its two largest units; below a minute in seconds.

    >>> [duration_text(ms) for ms in (27, 26_837, 207_000, 76_336_958, 273_600_000)]
    ['27ms', '26.8s', '3m27s', '21h12m', '3d04h']
    """
    sign, left = "-" if ms < 0 else "", abs(ms)
    if 0 < left < _SECOND:
        return f"{sign}{left}ms"
    if left < _MINUTE:
        return f"{sign}{left // 100 / 10:.1f}s" if left else "0s"
    for unit, name, part, part_name in (
        (_DAY, "d", _HOUR, "h"),
        (_HOUR, "h", _MINUTE, "m"),
        (_MINUTE, "m", _SECOND, "s"),
    ):
        if left >= unit:
            return f"{sign}{left // unit:,}{name}{left % unit // part:02}{part_name}"
    raise AssertionError(ms)  # a minute is the smallest unit above


def until_text(ms: int) -> str:
    """The time until something happens.

    >>> until_text(76_336_958), until_text(-1)
    ('in 21h12m', 'now')
    """
    return f"in {duration_text(ms)}" if ms > 0 else "now"


def _until_expired(ms: int) -> str:
    return until_text(ms) if ms > 0 else "expired"


def count_text(count: int) -> str:
    """A number of things, with separators.

    >>> count_text(1_000_000)
    '1,000,000'
    """
    return f"{count:,}"


@cache
def unit_of(name: str) -> Callable[[int], str] | None:
    """How a table writes a whole number of the column; None for offsets, ids and numbers without a unit."""
    if name == "bytes" or name.endswith("Bytes"):
        return size_text
    if name.endswith(("TimestampMs", "TimeMs")):
        return None
    if name.endswith("InMs"):
        return _until_expired if name == "expiresInMs" else until_text
    if name.endswith(("Ms", "MsMax")):
        return duration_text
    return count_text if name in _COUNTS or name.endswith("Messages") else None


def number_text(name: str, number: int) -> str:
    """How a page writes a whole number of the column: with its unit, else with separators.

    >>> [number_text(name, 120777) for name in ("bytes", "lagMs_max", "queueOffset", "orders")]
    ['118 KiB', '2m00s', '120777', '120,777']
    """
    name = _AGGREGATES.sub("", name)
    unit = unit_of(name)
    if unit is not None:
        return unit(number)
    return str(number) if name.endswith((*_PLACES, "TimestampMs", "TimeMs")) else count_text(number)
