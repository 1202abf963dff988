"""Draws the tables of `charts.data`, and the overview: all charts of a store as one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from rmq_spark.charts.data import Drawn, dead_letters_data, delayed_data, disk_use_data, lag_rows
from rmq_spark.charts.drawing import (
    count_axis,
    highest,
    in_steps,
    inline_rows,
    lag,
    rate,
    require_altair,
    size_axis,
    time_axis,
    titled,
    topic_colour,
)
from store_format.display.units import size_text
from store_format.names import is_system_topic

if TYPE_CHECKING:
    import altair as alt

    from rmq_spark.store import LogCluster
    from store_format.read.store import Store

_WIDTH, _HEIGHT = 640, 130


def disk_use(source: Store | LogCluster, *, title: str = "Commitlog size by day and topic") -> alt.LayerChart:
    """Draws the bytes of each topic in the commitlog, by day of the store time (UTC).

    Example: `charts.disk_use(rmq_spark.open("/data/store"))`.
    """
    require_altair()
    import altair as alt

    drawn = disk_use_data(source)
    longest = highest(drawn.table, "bytes", "day")
    scale = alt.Scale(
        domain=[0, max(longest, 1) * 1.12], nice=False
    )  # room for the number of the longest bar
    bars = (
        alt.Chart(inline_rows(drawn.table))
        .mark_bar()
        .encode(
            x=alt.X("bytes:Q", title="size", axis=size_axis(longest, 8), scale=scale),
            y=alt.Y("day:O", title=None),
            color=topic_colour(),
            order=alt.Order("bytes:Q", sort="descending"),
            tooltip=["day:O", "topic:N", "messages:Q", "bytes:Q"],
        )
    )
    sums = drawn.table.group_by("day").aggregate([("bytes", "sum")]).rename_columns(["day", "bytes"])
    texts = pa.array([size_text(size) for size in sums["bytes"].to_pylist()], pa.string())
    numbers = (
        alt.Chart(inline_rows(sums.append_column("text", texts)))
        .mark_text(align="left", dx=4, color="#333")
        .encode(x="bytes:Q", y="day:O", text="text:N")
    )
    chart: alt.LayerChart = (bars + numbers).properties(
        width=_WIDTH, height=alt.Step(24), title=titled(title, drawn)
    )
    return chart


def delayed(
    source: Store | LogCluster, *, now_ms: int | None = None, title: str = "Messages that wait, by due time"
) -> alt.Chart:
    """Draws the messages that wait for delivery by due time, one colour for each destination topic.

    `now_ms` is the clock (ms since 1970). Example: `charts.delayed(rmq_spark.open("/data/store"))`.
    """
    return _bars(delayed_data(source, now_ms=now_ms), title, "due", "topic")


def dead_letters(source: Store | LogCluster, *, title: str = "Dead letters over time") -> alt.Chart:
    """Draws the dead letters by the time when they became dead letters, one colour for each group.

    Example: `charts.dead_letters(rmq_spark.open("/data/store"))`.
    """
    return _bars(dead_letters_data(source), title, "dead since", "group")


def _bars(drawn: Drawn, title: str, time: str, series: str) -> alt.Chart:
    """Messages in each step of time. `series` is the name of the column `topic` for people."""
    require_altair()
    import altair as alt

    axis = count_axis(highest(drawn.table, "messages", "startMs"), whole=True)

    chart: alt.Chart = (
        in_steps(drawn)
        .mark_rect()
        .transform_stack(stack="messages", as_=["low", "high"], groupby=["startMs"])
        .encode(
            x=time_axis(drawn, time),
            x2="stopMs",
            y=alt.Y("low:Q", title="messages", axis=axis),
            y2="high:Q",
            color=topic_colour(series),
            tooltip=[alt.Tooltip("topic:N", title=series), "messages:Q", "bytes:Q", "from:N", "to:N"],
        )
        .properties(width=_WIDTH, height=_HEIGHT, title=titled(title, drawn))
    )
    return chart


def overview(source: Store | LogCluster, *, now_ms: int | None = None) -> alt.VConcatChart:
    """Draws a store or a cluster on one page: rate, lag, disk use, delayed messages and dead letters.

    Charts without data are left out. The function reads the times and sizes of all messages of user topics.

    Example: `charts.overview(rmq_spark.open("/data/store"))`.
    """
    require_altair()
    import altair as alt

    parts: list[Any] = []  # Any: charts of different classes
    if any(not is_system_topic(queue.topic) and queue.max_offset for queue in source.queues()):
        parts.append(rate(source))
    behind = _behind(source, now_ms)
    if behind.num_rows:
        parts.append(lag(behind))
    parts.append(disk_use(source))
    for drawn, title, time, series in (
        (delayed_data(source, now_ms=now_ms), "Messages that wait, by due time", "due", "topic"),
        (dead_letters_data(source), "Dead letters over time", "dead since", "group"),
    ):
        if drawn.table.num_rows:
            parts.append(_bars(drawn, title, time, series))
    name = source.path.rstrip("/").rpartition("/")[2]
    chart: alt.VConcatChart = alt.vconcat(*parts, title=titled(name, Drawn(behind, ()))).resolve_scale(
        color="independent"
    )
    return chart


def _behind(source: Store | LogCluster, now_ms: int | None) -> pa.Table:
    """The rows of the view `lag` with a known lag above 0."""
    table = lag_rows(source, now_ms=now_ms)
    return table.filter(pc.fill_null(pc.greater(table["lagMessages"], 0), False))
