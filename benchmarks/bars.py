"""What each figure of the comparison must reach: the rows of its table, in the order of the table.

A rate or a time is no slower than that of the older commit in the same run; a read, a stream or a write
reaches a multiple of the transport ceiling of the same run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median
from typing import Literal

from benchmarks.sides import Spent

Of = dict[str, Spent]  # one case: by version, "before" and "after"
# rate and time: by the older commit's time, shown as one or the other; ceiling: by the ceiling's time;
# within: seconds, whatever the older commit takes
Kind = Literal["rate", "time", "ceiling", "within"]


@dataclass(frozen=True, slots=True)
class Bar:
    """A row of the table: `case` of a part (decode@100: the part and the body size), and what it must reach.
    A rate and a time have no `bar`.
    """

    label: str
    part: str
    case: str
    kind: Kind
    bar: float = 1.0
    unit: str = "M/s"
    ceiling: str = "ceiling"


@dataclass(frozen=True, slots=True)
class Result:
    """A row of the table as text."""

    cells: tuple[str, ...]
    reached: bool


_DEFAULT = "default columns"
_ON, _OFF = f"{_DEFAULT}, CRC on", f"{_DEFAULT}, CRC off"
_INDEXED = "ASYNC_FLUSH, with index"
_PROPERTY = "queueOffset, one property"


def _read(size: str, part: str, on: float, off: float | None = None) -> list[Bar]:
    bars = (("on", _ON, on), ("off", _OFF, off))
    return [
        Bar(f"Spark read, {size}, CRC {crc}", part, case, "ceiling", bar, ceiling=_DEFAULT)
        for crc, case, bar in bars
        if bar is not None
    ]


BARS = (
    Bar("decode, 100 B, CRC on", "decode@100", _ON, "rate"),
    Bar("decode, 100 B, CRC off", "decode@100", _OFF, "rate"),
    Bar("decode, 1 KiB, CRC on", "decode@1024", _ON, "rate"),
    Bar("decode, 1 KiB, CRC off", "decode@1024", _OFF, "rate"),
    Bar("decode, 16 KiB, CRC on", "decode@16384", _ON, "rate"),
    *_read("100 B", "read@100", 0.90, 0.90),
    *_read("1 KiB", "read@1024", 0.85, 0.85),
    *_read("16 KiB", "read@16384", 0.80),
    Bar("Spark read, one property and offset, CRC off", "narrow@100", f"{_PROPERTY}, CRC off", "rate"),
    Bar("Spark read, body only, CRC off", "narrow@100", "body, CRC off", "rate"),
    Bar("stream, 100 B, ten batches", "stream@100", f"stream, {_ON}", "ceiling", 0.8),
    Bar("encode, 100 B", "encode@100", "encode", "rate"),
    Bar("commit, 100 B, ASYNC_FLUSH, no index", "commit@100", "no index", "rate"),
    Bar("commit, 100 B, ASYNC_FLUSH, three index entries", "commit@100", "three index entries a message",
        "rate"),
    Bar("Spark write with index, 100 B", "write@100", _INDEXED, "ceiling", 0.75),
    Bar("Spark write with index, 1 KiB", "write@1024", _INDEXED, "ceiling", 0.65),
    Bar("Spark write with index, 16 KiB", "write@16384", _INDEXED, "ceiling", 0.65),
    *(Bar(f"{case}, 1 GiB of 1 KiB messages", "search@1024", case, "rate", unit="GB/s")
      for case in ("find by scan", "walk", "verify")),
    Bar("rebuild of queues and index, 1 GiB of 1 KiB messages", "rebuild@1024", "rebuild", "within", 4.0,
        "s"),
    Bar("planning, 10,000 queues", "plan-few@100", "plan", "time", unit="s"),
    Bar("planning, 128,000 queues", "plan-many@100", "plan", "time", unit="s"),
    Bar("`latestOffset` after 10,000 appends", "look@100", "latestOffset", "time", unit="ms"),
    Bar("first 1,000 rows of a cold Spark", "start@100", "first rows", "time", unit="s"),
    Bar("`rmqlog --help`", "start@100", "help", "time", unit="ms"),
    Bar("`rmqlog get`", "start@100", "get", "time", unit="ms"),
)  # fmt: skip
_NOISE = 0.05  # of what must be no slower
_SCALES = {"M/s": 1e-6, "GB/s": 1e-9, "s": 1.0, "ms": 1e3}
COLUMNS = ("what", "before", "after", "after by before", "must reach", "reached")


def judge(bar: Bar, cases: Mapping[str, Of]) -> Result:
    """`cases` are those of the bar's part. Without the older commit only the ceiling is judged."""
    of = cases[bar.case]
    if bar.kind == "within":
        after = median(of["after"].seconds)
        return _result(bar, "–", _time(bar, after), "–", f"{bar.bar:g} s", after <= bar.bar)
    shown = {side: _figure(bar, spent, cases, side) for side, spent in of.items()}
    if "before" not in of:
        reached = bar.kind != "ceiling" or _by_ceiling(of["after"], cases[bar.ceiling]["after"]) >= bar.bar
        return _result(bar, "–", shown["after"], "–", "not compared", reached)
    gain = median(old / new for old, new in zip(of["before"].seconds, of["after"].seconds, strict=True))
    wanted, reached = "no slower", gain >= 1 - _NOISE
    if bar.kind == "ceiling":
        wanted = f"{bar.bar:.2f} ×"
        reached = _by_ceiling(of["after"], cases[bar.ceiling]["after"]) >= bar.bar
    return _result(bar, shown["before"], shown["after"], f"{gain:.2f}", wanted, reached)


def _figure(bar: Bar, spent: Spent, cases: Mapping[str, Of], side: str) -> str:
    """A rate, beside its multiple of the ceiling of the same session, or a time."""
    if bar.kind == "ceiling":
        return f"{_by_ceiling(spent, cases[bar.ceiling][side]):.2f} × ({_rate(bar, spent)})"
    return _rate(bar, spent) if bar.kind == "rate" else _time(bar, median(spent.seconds))


def _by_ceiling(case: Spent, ceiling: Spent) -> float:
    pairs = zip(case.seconds, ceiling.seconds, strict=True)
    return median(case.rows / mine / (ceiling.rows / other) for mine, other in pairs)


def _rate(bar: Bar, spent: Spent) -> str:
    rate = median(spent.rows / seconds for seconds in spent.seconds)
    return f"{rate * _SCALES[bar.unit]:.2f} {bar.unit}"


def _time(bar: Bar, seconds: float) -> str:
    scaled = seconds * _SCALES[bar.unit]
    return f"{scaled:.2f} {bar.unit}" if bar.unit == "s" else f"{scaled:.0f} {bar.unit}"


def _result(bar: Bar, before: str, after: str, gain: str, wanted: str, reached: bool) -> Result:
    return Result((bar.label, before, after, gain, wanted, "yes" if reached else "**no**"), reached)
