"""Counts messages batch by batch, by step of store time and by topic or queue, in bounded memory.

The batches may come from `MessageStore` or from a DataFrame's `toArrow()`, with times in ms or as timestamps.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rmq_spark.store import LogCluster, messages_in
from store_format.errors import OptionError
from store_format.read.store import Queue, Store

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
        found = self.table["bin"].to_numpy()
        return np.arange(found.min(), found.max() + 1) if len(found) else np.zeros(0, np.int64)

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
    if isinstance(source, Store):
        return messages_in([source], topic, MESSAGE_COLUMNS)
    if isinstance(source, LogCluster):
        return messages_in(source.stores, topic, MESSAGE_COLUMNS)
    if topic is not None:
        raise OptionError(f"topic={topic!r} goes with a store or a cluster, found a {type(source).__name__}")
    return source.read(columns=MESSAGE_COLUMNS) if isinstance(source, Queue) else source


def batches_with(
    messages: Messages, names: tuple[str, ...], times: tuple[str, ...]
) -> Iterator[pa.RecordBatch]:
    """The batches. Raises OptionError if columns are missing; `times` may have the ending `Ms`."""
    if isinstance(messages, pa.RecordBatch):
        messages = [messages]
    for batch in messages.to_batches() if isinstance(messages, pa.Table) else messages:
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
