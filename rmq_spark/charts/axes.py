"""Axes with the units of tables, and the colours of topics."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from store_format.display.units import SIZES

if TYPE_CHECKING:
    import altair as alt

# No red: red is damage and loss.
_TOPIC_COLOURS = (
    "#4c78a8", "#f58518", "#54a24b", "#b279a2", "#eeca3b", "#72b7b2", "#9d755d", "#79706e", "#bab0ac",
)  # fmt: skip
_SHORT_FROM = 100_000  # from here on counts are written as 1.5M
_TICKS = 5


def topic_colour(title: str | None = None) -> alt.Color:
    """One colour for each value of the column `topic`."""
    import altair as alt

    return alt.Color("topic:N", title=title, sort=None, scale=alt.Scale(range=list(_TOPIC_COLOURS)))


def highest(table: pa.Table, name: str, by: str) -> float:
    """The length of the longest stack: the largest sum of the column over the rows with one value of `by`."""
    if not table.num_rows:
        return 0.0
    return float(pc.max(table.group_by(by).aggregate([(name, "sum")])[f"{name}_sum"]).as_py() or 0)


def count_axis(high: float, ticks: int = _TICKS, *, whole: bool = False) -> alt.Axis:
    """An axis of counts up to `high`; `whole` ones have no ticks between them."""
    import altair as alt

    if whole and high <= ticks:
        return alt.Axis(values=list(range(int(high) + 1)), format="d")
    return alt.Axis(format="~s" if high >= _SHORT_FROM else ",~f", tickCount=ticks)


def size_axis(high: float, ticks: int = _TICKS) -> alt.Axis:
    """An axis of bytes up to `high` in one unit of 1024: 0, 2 MiB, 4 MiB."""
    import altair as alt

    power = min(int(math.log2(max(high, 1)) // 10), len(SIZES) - 1)
    unit = 1024**power
    least = max(high, 1) / unit / ticks
    exponent = math.floor(math.log10(least))
    step = next(each * 10.0**exponent for each in (1, 2, 5, 10) if each * 10.0**exponent >= least)
    label = f"datum.value ? format(datum.value / {unit}, ',~g') + ' {SIZES[power]}' : '0'"
    return alt.Axis(values=[i * step * unit for i in range(ticks + 1)], labelExpr=label)
