"""Draws the tables of `charts.data` with altair, which is imported when a chart is drawn.

Every function returns an altair chart, which the caller may show, save or change. The chart's subtitle says
what is left out. Axes have the units of tables.
"""

from __future__ import annotations

import importlib
import math
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rmq_spark.charts.data import (
    Drawn,
    Source,
    dead_letters_data,
    delayed_data,
    disk_use_data,
    heat_data,
    lag_data,
    lag_rows,
    latency_data,
    messages_of,
    rate_data,
)
from rmq_spark.store import LogCluster
from store_format.display.units import SIZES, size_text
from store_format.errors import UnsupportedFormatError
from store_format.names import is_system_topic
from store_format.read.store import Store

if TYPE_CHECKING:
    import altair as alt
else:

    class _Altair:
        """Stands for altair, and imports it at its first use."""

        def __getattr__(self, name):
            return getattr(importlib.import_module("altair"), name)

    alt = _Altair()


_WIDTH, _HEIGHT, _ROW = 640, 130, 17
_TICKS_MAX = 8
_MINUTE, _HOUR, _DAY = 60_000, 3_600_000, 86_400_000
_TICKS_MS = (
    1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 15_000, 30_000,
    *(count * _MINUTE for count in (1, 2, 5, 10, 15, 30)), *(count * _HOUR for count in (1, 2, 3, 6, 12)),
    *(count * _DAY for count in (1, 2, 7, 14, 28, 91, 182, 365, 3650, 36_500, 365_000)),
)  # fmt: skip

# No red: red is damage and loss.
_TOPIC_COLOURS = (
    "#4c78a8", "#f58518", "#54a24b", "#b279a2", "#eeca3b", "#72b7b2", "#9d755d", "#79706e", "#bab0ac",
)  # fmt: skip
_SHORT_FROM = 100_000  # from here on counts are written as 1.5M
_TICKS = 5


# ---- axes and colours --------------------------------------------------------------------------------------


def topic_colour(title: str | None = None) -> alt.Color:
    """One colour for each value of the column `topic`."""
    return alt.Color("topic:N", title=title, sort=None, scale=alt.Scale(range=list(_TOPIC_COLOURS)))


def highest(table: pa.Table, name: str, by: str) -> float:
    """The length of the longest stack: the largest sum of the column over the rows with one value of `by`."""
    if not table.num_rows:
        return 0.0
    return float(pc.max(table.group_by(by).aggregate([(name, "sum")])[f"{name}_sum"]).as_py() or 0)


def count_axis(high: float, ticks: int = _TICKS, *, whole: bool = False) -> alt.Axis:
    """An axis of counts up to `high`; `whole` ones have no ticks between them."""
    if whole and high <= ticks:
        return alt.Axis(values=list(range(int(high) + 1)), format="d")
    return alt.Axis(format="~s" if high >= _SHORT_FROM else ",~f", tickCount=ticks)


def size_axis(high: float, ticks: int = _TICKS) -> alt.Axis:
    """An axis of bytes up to `high` in one unit of 1024: 0, 2 MiB, 4 MiB."""
    power = min(int(math.log2(max(high, 1)) // 10), len(SIZES) - 1)
    unit = 1024**power
    least = max(high, 1) / unit / ticks
    exponent = math.floor(math.log10(least))
    step = next(each * 10.0**exponent for each in (1, 2, 5, 10) if each * 10.0**exponent >= least)
    label = f"datum.value ? format(datum.value / {unit}, ',~g') + ' {SIZES[power]}' : '0'"
    return alt.Axis(values=[i * step * unit for i in range(ticks + 1)], labelExpr=label)


# ---- charts ------------------------------------------------------------------------------------------------


def rate(
    source: Source, topic: str | None = None, *, title: str = "Messages and bytes over time"
) -> alt.VConcatChart:
    """Draws messages and bytes a second by store time, one colour for each topic.

    `source` is a store, a cluster or a queue; or messages with the columns topic, storeTimestampMs and
    storeSize, as a table or as batches. `topic` selects the topics of a store or a cluster. Raises
    OptionError for an unknown topic and for missing columns.

    Example: `charts.rate(rmq_spark.open("/data/store"), topic="Orders")`.
    """
    require_altair()
    drawn = rate_data(messages_of(source, topic))
    base = in_steps(drawn).mark_rect().properties(width=_WIDTH, height=_HEIGHT)
    panels = []
    for name, label, axis in (
        ("messagesPerSecond", "messages / s", count_axis),
        ("bytesPerSecond", "size / s", size_axis),
    ):
        # mark_bar does not stack bars with a width in time; the transform does.
        stacked = base.transform_stack(stack=name, as_=["low", "high"], groupby=["startMs"])
        panels.append(
            stacked.encode(
                x=time_axis(drawn),
                x2="stopMs",
                y=alt.Y("low:Q", title=label, axis=axis(highest(drawn.table, name, "startMs"))),
                y2="high:Q",
                color=topic_colour(),
                tooltip=["topic:N", "messages:Q", "bytes:Q", "from:N", "to:N"],
            )
        )
    chart: alt.VConcatChart = alt.vconcat(*panels, title=titled(title, drawn))
    return chart


def heat_map(
    source: Source, topic: str | None = None, *, bytes_: bool = False, title: str = "Queues over time"
) -> alt.Chart:
    """Draws the busy times of each queue. `bytes_` colours by bytes instead of messages.

    `source` and `topic` are those of `rate`. Messages need the columns topic, queueId, storeTimestampMs and
    storeSize.

    Example: `charts.heat_map(rmq_spark.open("/data/store"), "Orders")`.
    """
    require_altair()
    drawn = heat_data(messages_of(source, topic))
    name = "bytes" if bytes_ else "messages"
    numbers = count_axis(pc.max(drawn.table[name]).as_py() or 0)
    chart: alt.Chart = (
        in_steps(drawn)
        .mark_rect()
        .encode(
            x=time_axis(drawn),
            x2="stopMs",
            y=alt.Y(
                "queue:N", title=None, sort=None, axis=alt.Axis(labelLimit=260, grid=True, tickBand="extent")
            ),
            color=alt.Color(
                f"{name}:Q",
                title=name,
                scale=alt.Scale(scheme="yellowgreenblue", domainMin=0),
                # Beside it the last label of the axis needs room.
                legend=alt.Legend(format=numbers.format, offset=36),
            ),
            tooltip=["queue:N", "messages:Q", "bytes:Q", "from:N", "to:N"],
        )
        .properties(width=_WIDTH, height=alt.Step(_ROW), title=titled(title, drawn))
    )
    return chart


def latency(
    source: Source, topic: str | None = None, *, title: str = "From the producer's clock to the broker's"
) -> alt.LayerChart:
    """Draws the number of messages by the time from born to stored.

    `source` and `topic` are those of `rate`. Messages need the columns topic, bornTimestampMs and
    storeTimestampMs.

    Example: `charts.latency(rmq_spark.open("/data/store"))`.
    """
    require_altair()
    drawn = latency_data(messages_of(source, topic))
    x = alt.X("delay:O", title="born → stored", sort=None, axis=alt.Axis(labelAngle=-35, labelLimit=160))
    data = alt.Chart(inline_rows(drawn.table))
    bars = data.mark_bar().encode(
        x=x,
        y=alt.Y("messages:Q", title="messages", axis=count_axis(highest(drawn.table, "messages", "delay"))),
        color=topic_colour(),
        tooltip=["topic:N", "delay:O", "messages:Q"],
    )
    sums = (
        data.transform_aggregate(total="sum(messages)", groupby=["delay"])
        .transform_filter("datum.total > 0")
        .mark_text(dy=-6, color="#333")
        .encode(x=x, y="total:Q", text=alt.Text("total:Q", format=","))
    )
    chart: alt.LayerChart = (bars + sums).properties(
        width=_WIDTH, height=_HEIGHT * 2, title=titled(title, drawn)
    )
    return chart


def lag(
    source: Store | LogCluster | pa.Table,
    topic: str | None = None,
    *,
    group: str | None = None,
    title: str = "Lag of groups",
) -> alt.FacetChart:
    """Draws the unread messages of each group by queue, of all topics and groups or of one.

    `source` is a store, a cluster, or a table like `store.view("lag")`. Messages that retention deleted
    unread have their own colour. A queue without a committed offset has a text instead of a bar.

    Example: `charts.lag(rmq_spark.open("/data/store"), group="CG_orders")`.
    """
    require_altair()
    drawn = lag_data(lag_rows(source, topic, group))
    header = alt.Header(labelOrient="top", labelAnchor="start", labelFontWeight="bold", labelPadding=2)
    chart: alt.FacetChart = (
        alt.layer(*_lag_layers(_longest(drawn.table)), data=inline_rows(drawn.table))
        .properties(width=_WIDTH, height=alt.Step(_ROW))
        .facet(row=alt.Row("group:N", title=None, sort=None, header=header))
        .resolve_scale(y="independent")
        .properties(title=titled(title, drawn))
    )
    return chart


def _longest(lag: pa.Table) -> float:
    """The messages of the longest bar."""
    sums = pc.add(pc.fill_null(lag["readable"], 0), pc.fill_null(lag["lost"], 0))
    return float(pc.max(sums).as_py() or 0)


def _lag_layers(longest: float) -> tuple[alt.Chart, alt.Chart, alt.Chart]:
    """The bars, the texts of queues without a bar, and the numbers behind the bars."""
    data = alt.Chart().transform_calculate(behind="datum.readable + datum.lost")
    queue = alt.Y("queue:N", title=None, sort=None, axis=alt.Axis(labelLimit=260))
    messages = alt.X("messages:Q", title="messages behind", axis=count_axis(longest, 8, whole=True))
    part = alt.Color(
        "part:N",
        title=None,
        scale=alt.Scale(domain=["can be read", "lost to retention"], range=["#4c78a8", "#e45756"]),
        legend=alt.Legend(orient="top"),
    )
    bars = (
        data.transform_fold(["readable", "lost"], ["part", "messages"])
        .transform_calculate(part="datum.part == 'lost' ? 'lost to retention' : 'can be read'")
        .mark_bar()
        .encode(
            x=messages,
            y=queue,
            color=part,
            order=alt.Order("part:N", sort="descending"),  # lost messages are the oldest
            tooltip=["group:N", "queue:N", "readable:Q", "lost:Q", "lagBytes:Q", "lagMs:Q"],
        )
    )
    words = data.mark_text(align="left", dx=4, color="#666", fontStyle="italic").encode(
        x=alt.value(0), y=queue, text="state:N"
    )
    numbers = (
        data.transform_filter("datum.behind > 0")
        .mark_text(align="left", dx=4, color="#333")
        .encode(x=alt.X("behind:Q"), y=queue, text=alt.Text("behind:Q", format=","))
    )
    return bars, words, numbers


# ---- altair ------------------------------------------------------------------------------------------------


def require_altair() -> None:
    try:
        import altair  # noqa: F401
    except ImportError as error:
        hint = "pip install 'altair>=5.4'"  # pip finds it also where rmqlog was installed from a checkout
        raise UnsupportedFormatError(
            f"charts need altair, which is not installed or too old; install it: {hint}"
        ) from error


def inline_rows(table: pa.Table) -> alt.InlineData:
    """The rows as data inside the chart. Times stay numbers, so that no browser applies its time zone."""
    return alt.InlineData(values=table.to_pylist())


def time_axis(drawn: Drawn, what: str = "stored") -> alt.X:
    """An x axis of ms since the epoch, labelled in UTC. Vega's time axis has at most one tick a second."""
    starts = drawn.table["startMs"].to_numpy()
    first, stop = (int(starts.min()), int(starts.max()) + drawn.step_ms) if len(starts) else (0, 1)
    step = next((step for step in _TICKS_MS if (stop - first) / step <= _TICKS_MAX), _TICKS_MS[-1])
    labels = (
        "%H:%M:%S.%L"
        if step < 1000
        else "%H:%M:%S"
        if step < _MINUTE
        else "%b %d %H:%M"
        if step < _DAY
        else "%Y-%m-%d"
    )
    axis = alt.Axis(
        values=list(range(-(-first // step) * step, stop + 1, step)),
        labelExpr=f"utcFormat(datum.value, '{labels}')",
        labelFlush=False,  # a first label that is moved covers the second
    )
    title = f"{what}, from {np.datetime64(first, 'ms').astype('datetime64[D]')} (UTC)"
    return alt.X("startMs:Q", title=title, scale=alt.Scale(zero=False, nice=False), axis=axis)


def in_steps(drawn: Drawn) -> alt.Chart:
    """A chart of a table with time steps; `from` and `to` are texts in UTC for the tooltips."""
    moment = "utcFormat(datum.{}, '%Y-%m-%d %H:%M:%S.%L')"
    return alt.Chart(inline_rows(drawn.table)).transform_calculate(
        **{"from": moment.format("startMs"), "to": moment.format("stopMs")}
    )


def titled(text: str, drawn: Drawn) -> alt.TitleParams:
    step = [f"steps of {_step_text(drawn.step_ms)}"] if drawn.step_ms else []
    return alt.TitleParams(text=text, subtitle=[*step, *drawn.notes], anchor="start", subtitleColor="#666")


def _step_text(ms: int) -> str:
    units = ((_DAY, "d"), (_HOUR, "h"), (_MINUTE, "min"), (1000, "s"), (1, "ms"))
    return next(f"{ms // size} {unit}" for size, unit in units if ms % size == 0)


# ---- views, and all charts of a store as one ---------------------------------------------------------------


def disk_use(
    source: Store | LogCluster | pa.Table, *, title: str = "Commitlog size by day and topic"
) -> alt.LayerChart:
    """Draws the bytes of each topic in the commitlog, by day of the store time (UTC).

    `source` is a store, a cluster, or a table like `store.view("usage")`.

    Example: `charts.disk_use(rmq_spark.open("/data/store"))`.
    """
    require_altair()
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
    behind = _behind(source, now_ms)
    parts: list[Any] = []  # Any: charts of different classes
    if any(not is_system_topic(queue.topic) and queue.max_offset for queue in source.queues()):
        parts.append(rate(source))
    if behind.num_rows:
        parts.append(lag(behind))
    parts.append(disk_use(source))
    parts += [
        _bars(drawn, title, time, series)
        for drawn, title, time, series in (
            (delayed_data(source, now_ms=now_ms), "Messages that wait, by due time", "due", "topic"),
            (dead_letters_data(source), "Dead letters over time", "dead since", "group"),
        )
        if drawn.table.num_rows
    ]
    name = source.path.rstrip("/").rpartition("/")[2]
    chart: alt.VConcatChart = alt.vconcat(*parts, title=titled(name, Drawn(behind, ()))).resolve_scale(
        color="independent"
    )
    return chart


def _behind(source: Store | LogCluster, now_ms: int | None) -> pa.Table:
    """The rows of the view `lag` with a known lag above 0."""
    table = lag_rows(source, now_ms=now_ms)
    return table.filter(pc.fill_null(pc.greater(table["lagMessages"], 0), False))
