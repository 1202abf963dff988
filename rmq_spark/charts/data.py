"""The data of the charts, also of views: Arrow tables of limited size with one row for each mark, and notes.

Messages are counted batch by batch, by step of store time and by topic or queue, in bounded memory. The
batches may come from `MessageStore` or from a DataFrame's `toArrow()`, with times in ms or as timestamps. The
notes say what is not shown. Names are safe wherever a chart puts them; numbers are exact.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rmq_spark.store import LogCluster, messages_in
from rmq_spark.store import Messages as MessagesOfStores
from store_format.display.text import shown
from store_format.display.units import duration_text
from store_format.errors import OptionError
from store_format.names import did_you_mean
from store_format.read.store import Queue, Store
from store_format.views.lag import LAG_COLUMNS
from store_format.views.registry import view_table

# ---- counting messages -------------------------------------------------------------------------------------


Messages: TypeAlias = "pa.Table | pa.RecordBatch | Iterable[pa.RecordBatch]"
Source: TypeAlias = "Store | LogCluster | Queue | Messages"

MESSAGE_COLUMNS = ("brokerName", "topic", "queueId", "bornTimestampMs", "storeTimestampMs", "storeSize")

_YEAR_1_MS, _YEAR_10000_MS = -62135596800000, 253402300800000
_SECOND, _MINUTE, _HOUR, _DAY = 1000, 60_000, 3_600_000, 86_400_000
# Each step divides the next, so that the counts of a fine step add up to the counts of a coarse step.
_STEPS_MS = (
    1, 2, 10, 20, 100, 200, _SECOND, 2 * _SECOND, 10 * _SECOND, 20 * _SECOND,
    _MINUTE, 2 * _MINUTE, 10 * _MINUTE, 20 * _MINUTE, _HOUR, 3 * _HOUR, 6 * _HOUR, 12 * _HOUR,
    *(_DAY * 2**power for power in range(23)),
)  # fmt: skip
_KINDS = {"queueId": pa.int32()}


class CountedTimes:
    """`messages` and `bytes` by `bin`, the number of a time step, and by `keys`.

    The step grows until there are at most `times_max` steps.
    """

    def __init__(self, keys: tuple[str, ...], times_max: int) -> None:
        self._keys = keys
        self._times_max = times_max
        self._level = 0
        self._unusable = 0
        empty = {name: pa.array([], _KINDS.get(name, pa.string())) for name in keys}
        numbers = {name: pa.array([], pa.int64()) for name in ("bin", "messages", "bytes")}
        self.table = pa.table({**empty, **numbers}).select(["bin", *keys, "messages", "bytes"])

    @property
    def step_ms(self) -> int:
        return int(_STEPS_MS[self._level])

    @property
    def notes(self) -> list[str]:
        return (
            [f"{self._unusable} messages with a store time outside the years 1 to 9999 are not shown"]
            if self._unusable
            else []
        )

    def bins(self) -> NDArray[np.int64]:
        """All steps from the first to the last step with a message."""
        return np.arange(self._span().start, self._span().stop)

    def add_all(self, messages: Messages) -> None:
        for batch in batches_with(messages, (*self._keys, "storeSize"), ("storeTimestamp",)):
            self._add(batch)
        self.table = self.table.sort_by([(name, "ascending") for name in ("bin", *self._keys)])

    def _add(self, batch: pa.RecordBatch) -> None:
        times = times_of(batch, "storeTimestamp")
        usable = is_usable(times)
        self._unusable += len(usable) - int(usable.sum())
        chosen = pa.array(usable)
        columns = {name: column_of(batch, name).filter(chosen) for name in self._keys}
        sizes = pc.cast(pc.fill_null(batch.column("storeSize").filter(chosen), 0), pa.int64())
        self._merge(with_ones(pa.table({"bin": times[usable] // self.step_ms, **columns, "bytes": sizes})))
        while (step := self.step_ms) and len(self._span()) > self._times_max:
            self._level += 1
            wider = pa.array(self.table["bin"].to_numpy() * step // self.step_ms)
            finer, self.table = self.table, self.table.slice(0, 0)
            self._merge(finer.set_column(0, "bin", wider))

    def _span(self) -> range:
        """The steps of `bins` as a range: with fine steps there may be billions of steps."""
        found = self.table["bin"].to_numpy()
        return range(int(found.min()), int(found.max()) + 1) if len(found) else range(0)

    def _merge(self, part: pa.Table) -> None:
        self.table = count(
            pa.concat_tables([self.table, part.select(self.table.schema.names)]),
            self._keys,
            ("messages", "bytes"),
        )


def count(table: pa.Table, keys: tuple[str, ...], sums: tuple[str, ...] = ("messages",)) -> pa.Table:
    """One row for each `bin` and `keys`, with the sums of the columns `sums`."""
    by = ["bin", *keys]
    return table.group_by(by).aggregate([(name, "sum") for name in sums]).rename_columns([*by, *sums])


def with_ones(table: pa.Table) -> pa.Table:
    """The table with a column `messages` of ones."""
    return table.append_column("messages", pa.array(np.ones(table.num_rows, np.int64)))


def messages_of(source: Source, topic: str | None = None) -> Messages:
    """The messages of a store, a cluster or a queue with MESSAGE_COLUMNS; other messages as they are.

    `topic` chooses a topic, or topics by a pattern such as `Order*`; without it, RocketMQ's own topics of a
    store are left out. Raises OptionError for a topic of anything but a store or a cluster.
    """
    refuse_path(source)
    if isinstance(source, Store):
        return messages_in([source], topic, MESSAGE_COLUMNS)
    if isinstance(source, LogCluster):
        return messages_in(source.stores, topic, MESSAGE_COLUMNS)
    if topic is not None:
        raise OptionError(f"topic={topic!r} goes with a store or a cluster, found a {type(source).__name__}")
    if isinstance(source, Queue):
        return source.read(columns=MESSAGE_COLUMNS)
    table = None if isinstance(source, pa.RecordBatch | MessagesOfStores) else frame_of(source)
    return source if table is None else table


def frame_of(source: object) -> pa.Table | None:
    """A table, also of a frame of another library (Arrow's PyCapsule interface); None of other objects."""
    if isinstance(source, pa.Table):
        return source
    return pa.table(source) if hasattr(source, "__arrow_c_stream__") else None


def refuse_path(source: object) -> None:
    """Raises OptionError for the path of a store, which nobody has opened."""
    if isinstance(source, str | os.PathLike):
        path = os.fspath(source)
        raise OptionError(f"expected a store, found the path {path!r}; write rmq_spark.open({path!r})")


def batches_with(
    messages: Messages, names: tuple[str, ...], times: tuple[str, ...]
) -> Iterator[pa.RecordBatch]:
    """The batches. Raises OptionError if columns are missing; `times` may have the ending `Ms`."""
    if isinstance(messages, pa.RecordBatch):
        messages = [messages]
    for batch in messages.to_batches() if isinstance(messages, pa.Table) else messages:
        if not isinstance(batch, pa.RecordBatch):
            found = type(messages).__name__
            raise TypeError(f"expected a store, a queue, messages, or a table, found {found}")
        have = set(batch.schema.names)
        missing = [name for name in names if name not in have and name != "brokerName"]
        missing += [f"{name}Ms" for name in times if not {name, f"{name}Ms"} & have]
        if missing:
            raise OptionError(
                f"the messages lack {', '.join(missing)}; read them with the columns "
                f"{','.join(MESSAGE_COLUMNS)}"
            )
        yield batch


def times_of(batch: pa.RecordBatch, name: str) -> NDArray[np.int64]:
    """A time column in ms. Null, a time outside the calendar, becomes the largest number."""
    if f"{name}Ms" in batch.schema.names:
        column, divisor = batch.column(f"{name}Ms"), 1
    else:
        column, divisor = batch.column(name).cast(pa.timestamp("us", tz="UTC")), 1000
    known = pc.fill_null(column.cast(pa.int64()), np.iinfo(np.int64).max)
    found: NDArray[np.int64] = known.to_numpy(zero_copy_only=False) // divisor
    return found


def is_usable(times: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Whether a time in ms is within the years 1 to 9999."""
    return (times >= _YEAR_1_MS) & (times < _YEAR_10000_MS)


def column_of(batch: pa.RecordBatch, name: str) -> pa.Array:
    """A key column without nulls; a missing brokerName is empty, as for a single broker."""
    if name not in batch.schema.names:
        return pa.array([""] * batch.num_rows, pa.string())
    kind = _KINDS.get(name, pa.string())
    return pc.fill_null(batch.column(name).cast(kind), -1 if kind == pa.int32() else "")


# ---- data of charts of messages ----------------------------------------------------------------------------


OTHERS = "other topics"

_TOPICS_MAX = 8  # as many colours as people can distinguish; the others share one more colour
_TIMES_MAX = 120  # steps of time on the axis of a rate
_QUEUES_MAX, _HEAT_TIMES_MAX = 40, 80
_LAG_ROWS_MAX = 40
_LABEL_MAX = 60  # a topic may have 32,767 characters

_Key = tuple[str | int, ...]

_NO_QUEUE = "in no queue"

_DAYS_MAX = 31


@dataclass(frozen=True, eq=False, slots=True)
class Drawn:
    """The numbers of a chart: a `table` with one row for each mark, and the `notes` below the title.

    `step_ms` is the length of one step of the time axis in ms, or 0 if the chart has no time axis.
    """

    table: pa.Table
    notes: tuple[str, ...]
    step_ms: int = 0


def rate_data(messages: Messages, *, topics_max: int = _TOPICS_MAX, times_max: int = _TIMES_MAX) -> Drawn:
    """Counts messages and bytes of each topic in equal steps of store time; an empty step has rows of zeros.

    The `topics_max` topics with the most messages have their own rows; the other topics share rows.
    """
    counted = CountedTimes(("topic",), times_max)
    counted.add_all(messages)
    kept, others = _largest(counted.table, ("topic",), topics_max)
    table = counted.table.append_column("series", _series(counted.table["topic"], kept))
    names, bins = _topic_names(kept, others), counted.bins()
    shown = len(names)
    grids = {name: _grid(table, bins, shown, name).reshape(-1) for name in ("messages", "bytes")}
    columns = {
        "startMs": np.repeat(bins * counted.step_ms, shown),
        "stopMs": np.repeat((bins + 1) * counted.step_ms, shown),
        "topic": pa.array(names * len(bins), pa.string()),
        **grids,
        "messagesPerSecond": grids["messages"] * 1000 / counted.step_ms,
        "bytesPerSecond": grids["bytes"] * 1000 / counted.step_ms,
    }
    return Drawn(pa.table(columns), (*counted.notes, *_put_together(others)), counted.step_ms)


def heat_data(
    messages: Messages, *, queues_max: int = _QUEUES_MAX, times_max: int = _HEAT_TIMES_MAX
) -> Drawn:
    """Counts messages and bytes of each queue in equal steps of store time. Empty steps have no rows."""
    keys = ("brokerName", "topic", "queueId")
    counted = CountedTimes(keys, times_max)
    counted.add_all(messages)
    kept, others = _largest(counted.table, keys, queues_max)
    place = {key: i for i, key in enumerate(kept)}
    rows = [
        (place[key], row)
        for row in counted.table.to_pylist()
        if (key := tuple(row[name] for name in keys)) in place
    ]
    rows.sort(key=lambda each: (each[0], each[1]["bin"]))
    labels, step = _queue_labels(kept), counted.step_ms
    columns = {
        "startMs": pa.array([row["bin"] * step for _, row in rows], pa.int64()),
        "stopMs": pa.array([(row["bin"] + 1) * step for _, row in rows], pa.int64()),
        "queue": pa.array([labels[i] for i, _ in rows], pa.string()),
        "messages": pa.array([row["messages"] for _, row in rows], pa.int64()),
        "bytes": pa.array([row["bytes"] for _, row in rows], pa.int64()),
    }
    notes = [*counted.notes]
    if others:
        notes.append(
            f"{len(others)} queues with fewer messages, {sum(others.values())} in all, are not shown"
        )
    return Drawn(pa.table(columns), tuple(notes), step)


def latency_data(messages: Messages, *, topics_max: int = _TOPICS_MAX) -> Drawn:
    """Counts the messages of each topic by the time from born to stored, in buckets of powers of two (ms).

    `fromMs` and `toMs` are inclusive. Bucket -1 has the messages that were stored before they were born,
    because the clocks of producer and broker differ.
    """
    table, unusable = _count_delays(messages)
    kept, others = _largest(table, ("topic",), topics_max)
    names = _topic_names(kept, others)
    found = table["bin"].to_numpy()
    buckets = np.arange(found.min(), found.max() + 1) if len(found) else found
    counts = _grid(
        table.append_column("series", _series(table["topic"], kept)), buckets, len(names), "messages"
    )
    low, high = _bucket_bounds(buckets)
    delays = [_delay_label(*bounds) for bounds in zip(low.tolist(), high.tolist(), strict=True)]
    columns = {
        "bucket": np.repeat(buckets, len(names)),
        "fromMs": np.repeat(low, len(names)),
        "toMs": np.repeat(high, len(names)),
        "delay": pa.array([delay for delay in delays for _ in names], pa.string()),
        "topic": pa.array(names * len(buckets), pa.string()),
        "messages": counts.reshape(-1),
    }
    notes = [*_percentiles(high, counts.sum(axis=1)), *_put_together(others)]
    if unusable:
        notes.append(f"{unusable} messages with a time outside the years 1 to 9999 are not shown")
    return Drawn(pa.table(columns), tuple(notes))


def _count_delays(messages: Messages) -> tuple[pa.Table, int]:
    """Messages by bucket of delay (`bin`) and topic, and the number of messages with an unusable time."""
    table = pa.table(
        {
            "bin": pa.array([], pa.int64()),
            "topic": pa.array([], pa.string()),
            "messages": pa.array([], pa.int64()),
        }
    )
    unusable = 0
    for batch in batches_with(messages, ("topic",), ("bornTimestamp", "storeTimestamp")):
        born, stored = times_of(batch, "bornTimestamp"), times_of(batch, "storeTimestamp")
        usable = is_usable(born) & is_usable(stored)
        unusable += len(usable) - int(usable.sum())
        topics = column_of(batch, "topic").filter(pa.array(usable))
        part = with_ones(pa.table({"bin": _delay_buckets((stored - born)[usable]), "topic": topics}))
        table = count(pa.concat_tables([table, part]), ("topic",))
    return table, unusable


def lag_data(lag: pa.Table, *, rows_max: int = _LAG_ROWS_MAX) -> Drawn:
    """Returns the queues with the largest lags of a table like the view `lag`, in the order of the table.

    If there are more than `rows_max` queues, those with an unknown lag are left out first. `readable` and
    `lost` (to retention) are the parts of `lagMessages`; `state` explains a queue without a bar.
    """
    _refuse_lacking(lag, "lag", (column.name for column in LAG_COLUMNS))
    placed = lag.append_column("place", pa.array(np.arange(lag.num_rows)))
    ranked = placed.sort_by([("lagMessages", "descending"), ("place", "ascending")])
    others = ranked.slice(rows_max)
    rows = ranked.slice(0, rows_max).sort_by("place").to_pylist()
    behind = [max(row["lagMessages"] or 0, 0) for row in rows]
    lost = [min(row["lostMessages"] or 0, lag) for row, lag in zip(rows, behind, strict=True)]
    columns = {
        "group": pa.array([harmless(row["group"]) for row in rows], pa.string()),
        "queue": pa.array(
            _queue_labels([(row["brokerName"], row["topic"], row["queueId"]) for row in rows]), pa.string()
        ),
        "readable": pa.array([lag - gone for lag, gone in zip(behind, lost, strict=True)], pa.int64()),
        "lost": pa.array(lost, pa.int64()),
        "state": pa.array([_lag_state(row["lagMessages"]) for row in rows], pa.string()),
        "lagBytes": pa.array([row["lagBytes"] for row in rows], pa.int64()),
        "lagMs": pa.array([row["lagMs"] for row in rows], pa.int64()),
    }
    behind_too = pc.sum(others["lagMessages"]).as_py() or 0
    notes = (
        [f"{others.num_rows} more queues, {behind_too} messages behind in all, are not shown"]
        if others.num_rows
        else []
    )
    return Drawn(pa.table(columns), tuple(notes))


def _lag_state(lag: int | None) -> str:
    if lag is None:
        return "no offset"
    return "" if lag > 0 else "nothing left" if lag == 0 else "offset behind the queue's end"


# ---- the largest ones, and the rest ------------------------------------------------------------------------


def _largest(table: pa.Table, keys: tuple[str, ...], count_max: int) -> tuple[list[_Key], dict[_Key, int]]:
    """The keys with the most messages, sorted, and the counts of the other keys."""
    sums = table.group_by(list(keys)).aggregate([("messages", "sum")]).to_pylist()
    counts = {tuple(row[name] for name in keys): int(row["messages_sum"]) for row in sums}
    ranked = sorted(counts, key=lambda key: (-counts[key], key))
    return sorted(ranked[:count_max]), {key: counts[key] for key in ranked[count_max:]}


def _topic_names(kept: Sequence[_Key], others: dict[_Key, int]) -> list[str]:
    return [harmless(name) for (name,) in kept] + [OTHERS] * bool(others)


def _put_together(others: dict[_Key, int]) -> Iterator[str]:
    if others:
        yield f"{len(others)} topics with fewer messages are put together"


def _series(names: pa.ChunkedArray, kept: Sequence[_Key]) -> pa.ChunkedArray:
    """The index of each name in `kept`; the length of `kept` for other names."""
    found = pc.index_in(names, value_set=pa.array([name for (name,) in kept], pa.string()))
    return pc.cast(pc.fill_null(found, len(kept)), pa.int64())


def _grid(table: pa.Table, bins: NDArray[np.int64], width: int, name: str) -> NDArray[np.int64]:
    grid = np.zeros((len(bins), width), np.int64)
    if len(bins):
        np.add.at(
            grid, (table["bin"].to_numpy() - bins[0], table["series"].to_numpy()), table[name].to_numpy()
        )
    return grid


# ---- buckets of delay --------------------------------------------------------------------------------------


def _delay_buckets(delays: NDArray[np.int64]) -> NDArray[np.int64]:
    """The number of bits of each delay in ms (3 for 4 to 7); -1 for negative delays."""
    bits = np.frexp(delays.astype(np.float64))[1]  # exact: a delay of years has less than 53 bits
    return np.where(delays > 0, bits, np.sign(delays)).astype(np.int64)


def _bucket_bounds(buckets: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    powers = np.maximum(buckets, 1)
    low = np.where(buckets > 0, 1 << (powers - 1), np.where(buckets < 0, np.iinfo(np.int64).min, 0))
    return low, np.where(buckets > 0, (1 << powers) - 1, buckets)


def _delay_label(low: int, high: int) -> str:
    if high < 0:
        return "below 0"
    return _length(low) if low == high else f"{_length(low)} – {_length(high)}"


def _length(ms: int) -> str:
    """A duration, with a unit for 0, too."""
    return duration_text(ms) if ms else "0ms"


def _percentiles(high: NDArray[np.int64], counts: NDArray[np.int64]) -> Iterator[str]:
    """A note with the 50th and 99th percentile, by the upper bounds of the buckets."""
    if len(high):
        summed = np.cumsum(counts)
        half, most = (
            _length(max(int(high[np.searchsorted(summed, np.ceil(summed[-1] * share))]), 0))
            for share in (0.5, 0.99)
        )
        yield f"half of {int(summed[-1]):,} messages within {half}, 99 % within {most}"


# ---- names -------------------------------------------------------------------------------------------------


def _queue_labels(queues: Sequence[_Key]) -> list[str]:
    """`topic-queue` of each queue, with the broker if there are several brokers."""
    several = len({broker for broker, _, _ in queues}) > 1
    return [
        f"{harmless(broker)} {harmless(topic)}-{queue}" if several else f"{harmless(topic)}-{queue}"
        for broker, topic, queue in queues
    ]


def harmless(name: str | int | None, characters_max: int = _LABEL_MAX) -> str:
    r"""A name from a store as harmless text: control characters and `<` as escapes, long names cut.

    Vega draws text as text, but altair's HTML page contains the data between script tags.
    """
    text = str(name)
    cut = text if len(text) <= characters_max else f"{text[: characters_max - 1]}…"
    return shown(cut).replace("<", "\\u003c")


# ---- views -------------------------------------------------------------------------------------------------


def _view_of(source: Store | LogCluster, name: str, now_ms: int | None = None) -> pa.Table:
    """A view of a store, or of all stores of a cluster."""
    refuse_path(source)
    stores = source.stores if isinstance(source, LogCluster) else [source]
    return pa.concat_tables([view_table(store, name, now_ms=now_ms) for store in stores])


def _view_or_table(source: Store | LogCluster | pa.Table, name: str, now_ms: int | None = None) -> pa.Table:
    """The view `name` of a store or a cluster, or the table that the caller has of one."""
    table = frame_of(source)
    if table is None and not isinstance(source, Store | LogCluster):
        refuse_path(source)
        raise TypeError(f"expected a store, or the table of its view {name}, found {type(source).__name__}")
    return _view_of(source, name, now_ms) if table is None else table


def _refuse_lacking(table: pa.Table, view: str, names: Iterable[str]) -> None:
    missing = [name for name in names if name not in table.schema.names]
    if missing:
        raise OptionError(f"expected a table like the view {view}, found one without {', '.join(missing)}")


def lag_rows(
    source: Store | LogCluster | pa.Table,
    topic: str | None = None,
    group: str | None = None,
    now_ms: int | None = None,
) -> pa.Table:
    """The rows of the view `lag` of a store or a cluster, or of such a table: of one topic and one group."""
    table = _view_or_table(source, "lag", now_ms)
    for name, wanted in (("topic", topic), ("group", group)):
        if wanted is not None:
            known = table[name].unique().to_pylist()
            if wanted not in known:
                advice = did_you_mean(str(wanted), known, f"{name}s")
                raise OptionError(f"no {name} with lag is named {wanted!r}; {advice}")
            table = table.filter(pc.equal(table[name], wanted))
    return table


def disk_use_data(source: Store | LogCluster | pa.Table, *, topics_max: int = _TOPICS_MAX) -> Drawn:
    """Sums the bytes of the commitlog by day of the store time (UTC) and by topic, for the newest 31 days.

    `source` is a store, a cluster, or a table like `store.view("usage")`.
    The `topics_max` topics with the most bytes have their own rows. Bytes in no queue (padding, damage,
    deleted topics) are a topic of their own without a day.
    """
    names = ("topic", "day", "messages", "bytes")
    found = _view_or_table(source, "usage")
    _refuse_lacking(found, "usage", names)
    found = found.select(names)
    sums = found.group_by(["topic"]).aggregate([("bytes", "sum")]).to_pylist()
    ranked = sorted(
        (row for row in sums if row["topic"] is not None), key=lambda row: (-row["bytes_sum"], row["topic"])
    )
    kept = {row["topic"] for row in ranked[:topics_max]}
    others = len(ranked) - len(kept)
    cells: dict[tuple[str, str], list[int]] = {}
    for row in found.to_pylist():
        topic = _NO_QUEUE if row["topic"] is None else harmless(row["topic"])
        if row["topic"] is not None and row["topic"] not in kept:
            topic = "other topics"
        day = "no day" if row["day"] is None else row["day"].isoformat()
        cell = cells.setdefault((day, topic), [0, 0])
        cell[0] += row["messages"] or 0
        cell[1] += row["bytes"] or 0
    days = sorted({day for day, _ in cells})
    shown = set(days[-_DAYS_MAX:])
    notes = [f"{others} topics with fewer bytes are put together"] if others > 0 else []
    if len(days) > len(shown):
        notes.append(f"{len(days) - len(shown)} earlier days are not shown")
    rows = [
        {"day": day, "topic": topic, "messages": messages, "bytes": size}
        for (day, topic), (messages, size) in sorted(cells.items())
        if day in shown
    ]
    kinds = {"day": pa.string(), "topic": pa.string(), "messages": pa.int64(), "bytes": pa.int64()}
    return Drawn(pa.Table.from_pylist(rows, pa.schema(kinds)), tuple(notes))


def delayed_data(source: Store | LogCluster, *, now_ms: int | None = None) -> Drawn:
    """Counts the messages that wait for delivery, by due time in equal steps, and by destination topic."""
    return _over_time(_view_of(source, "delayed", now_ms), "dueTimestamp", "topic")


def dead_letters_data(source: Store | LogCluster) -> Drawn:
    """Counts dead letters by the time when they became dead letters, and by group (in the column `topic`)."""
    return _over_time(_view_of(source, "deadLetters"), "storeTimestamp", "group")


def _over_time(table: pa.Table, time: str, series: str) -> Drawn:
    """Rows counted by `rate_data`. Rows without a time are a note."""
    known = table.filter(pc.is_valid(table[time]))
    names = pc.fill_null(known[series], "")
    messages = pa.table(
        {"storeTimestamp": known[time], "topic": names, "storeSize": known["bytes"].cast(pa.int64())}
    )
    drawn = rate_data(messages)
    total = f"{known.num_rows:,} messages" if known.num_rows != 1 else "1 message"
    unknown = table.num_rows - known.num_rows
    more = [f"{unknown:,} without a known time are not shown"] if unknown else []
    counted = drawn.table.filter(pc.greater(drawn.table["messages"], 0))
    names_shown = ["startMs", "stopMs", "topic", "messages", "bytes"]
    return Drawn(counted.select(names_shown), (total, *drawn.notes, *more), drawn.step_ms)
