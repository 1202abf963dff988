"""What each figure of the comparison must reach: the rows of its table, in the order of the table.

The earlier values are those of commit c886f6e on two quiet cores, from an earlier run; a bar is a multiple of
what the older commit takes in the same run, or of the transport ceiling of the same run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median
from typing import Literal

from benchmarks.sides import Spent

Of = dict[str, Spent]  # one case: by version, "before" and "after"
# faster: by the older commit's time, shown as a rate; quicker: the same, shown as a time; ceiling: by the
# ceiling's time; within: seconds, whatever the older commit takes
Kind = Literal["faster", "quicker", "ceiling", "within"]


@dataclass(frozen=True, slots=True)
class Bar:
    """A row of the table: `case` of a part (decode@100: the part and the body size), what it took when the
    work began, and what it must reach.
    """

    label: str
    part: str
    case: str
    kind: Kind
    earlier: str
    bar: float
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


def _read(size: str, part: str, earlier: tuple[str, str], bars: tuple[float, float | None]) -> list[Bar]:
    on_off = zip((("on", _ON), ("off", _OFF)), earlier, bars, strict=True)
    return [
        Bar(f"Spark read, {size}, CRC {crc}", part, case, "ceiling", before, bar, ceiling=_DEFAULT)
        for (crc, case), before, bar in on_off
        if bar is not None
    ]


BARS = (
    Bar("decode, 100 B, CRC on", "decode@100", _ON, "faster", "1.23", 2.8),
    Bar("decode, 100 B, CRC off", "decode@100", _OFF, "faster", "1.75", 2.8),
    Bar("decode, 1 KiB, CRC on", "decode@1024", _ON, "faster", "0.67", 1.8),
    Bar("decode, 1 KiB, CRC off", "decode@1024", _OFF, "faster", "1.13", 2.6),
    Bar("decode, 16 KiB, CRC on", "decode@16384", _ON, "faster", "0.10", 1.8),
    *_read("100 B", "read@100", ("0.55–0.64 ×", "0.60–0.69 ×"), (0.80, 0.85)),
    *_read("1 KiB", "read@1024", ("0.54 ×", "0.67 ×"), (0.70, 0.78)),
    *_read("16 KiB", "read@16384", ("0.64 ×", ""), (0.80, None)),
    Bar("Spark read, one property and offset, CRC off", "narrow@100", f"{_PROPERTY}, CRC off", "faster",
        "2.15", 3.5 / 2.15),
    Bar("Spark read, body only, CRC off", "narrow@100", "body, CRC off", "faster", "2.5", 3.2 / 2.5),
    Bar("stream, 100 B, ten batches", "stream@100", f"stream, {_ON}", "ceiling", "0.64 ×", 0.8),
    Bar("encode, 100 B", "encode@100", "encode", "faster", "2.36", 1.7),
    Bar("commit, 100 B, ASYNC_FLUSH, no index", "commit@100", "no index", "faster", "2.5", 2.0),
    Bar("commit, 100 B, ASYNC_FLUSH, three index entries", "commit@100", "three index entries a message",
        "faster", "1.5", 2.3),
    Bar("Spark write with index, 100 B", "write@100", _INDEXED, "ceiling", "0.46 ×", 0.72),
    Bar("Spark write with index, 1 KiB", "write@1024", _INDEXED, "ceiling", "0.50 ×", 0.66),
    Bar("Spark write with index, 16 KiB", "write@16384", _INDEXED, "ceiling", "0.60 ×", 0.75),
    Bar("find by scan, 1 GiB of 1 KiB messages", "search@1024", "find by scan", "faster", "1.1", 2.5 / 1.1,
        "GB/s"),
    Bar("walk, 1 GiB of 1 KiB messages", "search@1024", "walk", "faster", "1.1", 2.5 / 1.1, "GB/s"),
    Bar("verify, 1 GiB of 1 KiB messages", "search@1024", "verify", "faster", "1.1", 2.5 / 1.1, "GB/s"),
    Bar("rebuild of queues and index, 1 GiB of 1 KiB messages", "rebuild@1024", "rebuild", "within", "", 4.0,
        "s"),
    Bar("planning, 10,000 queues", "plan-few@100", "plan", "quicker", "0.46 s", 0.46 / 0.4, "s"),
    Bar("planning, 128,000 queues", "plan-many@100", "plan", "quicker", "7.2 s", 7.2 / 5, "s"),
    Bar("`latestOffset` after 10,000 appends", "look@100", "latestOffset", "quicker", "258 ms",
        258 / 60, "ms"),
    Bar("first 1,000 rows of a cold Spark", "start@100", "first rows", "quicker", "as today", 1.0, "s"),
    Bar("`rmqlog --help`", "start@100", "help", "quicker", "as today", 1.0, "ms"),
    Bar("`rmqlog get`", "start@100", "get", "quicker", "as today", 1.0, "ms"),
)  # fmt: skip
_NOISE = 0.05  # of what must be no slower
_SCALES = {"M/s": 1e-6, "GB/s": 1e-9, "s": 1.0, "ms": 1e3}
COLUMNS = ("what", "at the start", "before", "after", "after by before", "must reach", "reached")


def judge(bar: Bar, cases: Mapping[str, Of]) -> Result:
    """`cases` are those of the bar's part."""
    of = cases[bar.case]
    if bar.kind == "within":
        after = median(of["after"].seconds)
        return _result(bar, "–", _time(bar, after), "–", f"{bar.bar:g} s", after <= bar.bar)
    gain = median(old / new for old, new in zip(of["before"].seconds, of["after"].seconds, strict=True))
    if bar.kind == "ceiling":
        # each version by the ceiling of its own session, of the same round
        before, after = (_by_ceiling(of[side], cases[bar.ceiling][side]) for side in ("before", "after"))
        shown = [f"{value:.2f} × ({_rate(bar, of[side])})" for side, value in _both(before, after)]
        return _result(bar, shown[0], shown[1], f"{gain:.2f}", f"{bar.bar:.2f} ×", after >= bar.bar)
    if bar.kind == "faster":
        shown = [_rate(bar, of[side]) for side in ("before", "after")]
    else:
        shown = [_time(bar, median(of[side].seconds)) for side in ("before", "after")]
    reached = gain >= bar.bar * (1 - _NOISE if bar.bar == 1 else 1)
    wanted = "no slower" if bar.bar == 1 else f"{bar.bar:.2f} times as fast"
    return _result(bar, shown[0], shown[1], f"{gain:.2f}", wanted, reached)


def _both(before: float, after: float) -> tuple[tuple[str, float], tuple[str, float]]:
    return ("before", before), ("after", after)


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
    earlier = f"{bar.earlier} {bar.unit}" if bar.earlier.replace(".", "").isdigit() else bar.earlier
    return Result(
        (bar.label, earlier or "–", before, after, gain, wanted, "yes" if reached else "**no**"), reached
    )
