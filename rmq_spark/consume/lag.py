"""How far a group is behind, whether and when it catches up, and how many threads and nodes it needs.

The lag tables have the columns of the view `lag` (`store_format.views.lag`). The offsets come from a group's
offset store, or from the progress that Spark reports. An unknown value is null, never 0 or -1.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from rmq_spark.consume.consumer import MessageQueue
from rmq_spark.consume.offset_store import OffsetStore
from rmq_spark.consume.stream_offset import StreamOffset
from store_format import MessageStore
from store_format.display.columns import BOOL, LONG, REAL, TEXT, TIME, ViewColumn, batch_of, schema_of
from store_format.display.units import duration_text
from store_format.errors import OptionError
from store_format.metadata.group_offsets import Committed
from store_format.views.lag import LAG_COLUMNS, lag_table


def group_lag(
    stores: Sequence[MessageStore],
    group: str,
    offsets: OffsetStore | None = None,
    *,
    now_ms: int | None = None,
) -> pa.Table:
    """Returns one row for each queue of the group in all stores, with the columns of the view `lag`.

    `offsets` is the group's offset store; without it, the offsets come from the brokers' offset files. Ages
    are computed at `now_ms` (ms since 1970, default: now).

    Example: `group_lag([MessageStore.open("/data/store")], "CG_orders").select(["queueId", "lagMessages"])`.
    """
    now = time.time_ns() // 1_000_000 if now_ms is None else now_ms
    known = None if offsets is None else offsets.read()
    tables = []
    for store in stores:
        committed = None
        if known is not None:
            of_store: dict[tuple[str, str], dict[int, int]] = {}
            for queue, offset in known.items():
                if queue.broker_name == store.broker_name and offset >= 0:
                    of_store.setdefault((group, queue.topic), {})[queue.queue_id] = offset
            committed = Committed(of_store)
        tables.append(lag_table(store, group, now_ms=now, committed=committed))
    return pa.concat_tables(tables) if tables else schema_of(LAG_COLUMNS).empty_table()


# ---- Spark's progress reports ------------------------------------------------------------------------------


def lag_from_progress(progress: str | Mapping[str, object], *, group: str | None = None) -> pa.Table:
    """Returns the lag of a query from its progress, as a table with the columns of the view `lag`.

    `progress` is a progress report as JSON or as a dict, such as `event.progress.json` in a
    StreamingQueryListener. `committedOffset` is the end of the micro-batch, and `maxOffset` the end of the
    queue at that time (`reportLatestOffset`). A progress report has no bytes and no times, so these columns
    are null. Sources of other formats are left out. `group` is the value of the column `group`.

    Raises OptionError for a value that is not a progress report.

    Example: `lag_from_progress(query.lastProgress).select(["topic", "queueId", "lagMessages"]).to_pylist()`.
    """
    try:
        value: Any = json.loads(progress) if isinstance(progress, str) else progress
        offsets = [(source.get("endOffset"), source.get("latestOffset")) for source in value["sources"]]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise OptionError(
            f"progress: expected the JSON of a StreamingQueryProgress, found other content "
            f"({str(error)[:100]})"
        ) from error
    rows = []
    for end, latest in offsets:
        committed = _positions(end)
        if committed is None:
            continue
        known = _positions(latest) or {}
        rows += [
            _progress_row(group, queue, committed.get(queue), known.get(queue))
            for queue in sorted(committed.keys() | known.keys())
        ]
    return pa.Table.from_batches([batch_of(LAG_COLUMNS, rows)])


def _positions(offset: object) -> dict[MessageQueue, int] | None:
    """The positions of an offset, which Spark gives as a value or as text; None for other formats."""
    try:
        value = json.loads(offset) if isinstance(offset, str) else offset
        return StreamOffset.from_json(value).positions if isinstance(value, dict) else None
    except (ValueError, RecursionError):
        return None


def _progress_row(
    group: str | None, queue: MessageQueue, committed: int | None, latest: int | None
) -> tuple[object, ...]:
    topic, broker, queue_id = queue
    lag = None if committed is None or latest is None else latest - committed
    known = {
        "brokerName": broker,
        "group": group,
        "topic": topic,
        "queueId": queue_id,
        "committedOffset": committed,
        "maxOffset": latest,
        "lagMessages": lag,
    }
    return tuple(known.get(column.name) for column in LAG_COLUMNS)


# ---- whether it catches up ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CatchUp:
    """A backlog in messages, rates in messages a second, and the seconds until the backlog is gone.

    `seconds` None: the group never catches up, or a rate is unknown.
    """

    backlog: int
    consumption_rate: float | None
    production_rate: float | None
    seconds: float | None

    def __str__(self) -> str:
        if self.backlog <= 0:
            return "no backlog"
        if self.consumption_rate is None or self.production_rate is None:
            return f"{self.backlog:,} messages behind; the rates are unknown"
        rates = (
            f"{self.backlog:,} messages behind, {self.consumption_rate:,.1f} read and "
            f"{self.production_rate:,.1f} written a second"
        )
        return (
            f"{rates}: it never catches up"
            if self.seconds is None
            else f"{rates}: it catches up in {duration_text(round(self.seconds * 1000))}"
        )


def catch_up(backlog: int, consumption_rate: float | None, production_rate: float | None) -> CatchUp:
    """Returns the time in which a group reads its backlog (messages) at these rates (messages a second).

    >>> print(catch_up(6000, 300.0, 100.0))
    6,000 messages behind, 300.0 read and 100.0 written a second: it catches up in 30.0s
    """
    seconds: float | None = None
    if backlog <= 0:
        seconds = 0.0
    elif consumption_rate is not None and production_rate is not None and consumption_rate > production_rate:
        seconds = backlog / (consumption_rate - production_rate)
        seconds = None if math.isinf(seconds) else seconds
    return CatchUp(backlog, consumption_rate, production_rate, seconds)


CATCH_UP_COLUMNS = (
    ViewColumn("group", TEXT, "The consumer group."),
    ViewColumn("lagMessages", LONG, "The backlog now, in messages; null if it is unknown for a queue."),
    ViewColumn("consumptionRate", REAL, "Messages that the group read, a second."),
    ViewColumn("productionRate", REAL, "Messages written to its queues, a second."),
    ViewColumn("catchesUp", BOOL, "Whether the backlog shrinks or is empty."),
    ViewColumn(
        "secondsLeft", REAL, "Seconds until the backlog is empty at these rates; null if that never happens."
    ),
    ViewColumn("caughtUpAt", TIME, "The time at which the backlog is empty."),
)


def catch_up_table(
    before: pa.Table, after: pa.Table, seconds: float, *, now_ms: int | None = None
) -> pa.Table:
    """Returns one row for each group, with `CATCH_UP_COLUMNS`, from two lag tables.

    The table `after` was made `seconds` after `before`. A queue that only one table contains has no rate.
    Raises OptionError if `seconds` is not above 0.

    Example: `catch_up_table(first, store.view("lag"), 60.0).select(["group", "secondsLeft"])`.
    """
    if not seconds > 0:
        raise OptionError(f"seconds: expected the time between the two lag tables, above 0, found {seconds}")
    now = time.time_ns() // 1_000_000 if now_ms is None else now_ms
    was = {_lag_key(row): row for row in before.to_pylist()}
    rows = []
    groups: dict[str | None, list[dict[str, object]]] = {}
    for row in after.to_pylist():
        groups.setdefault(row["group"], []).append(row)
    for group, of_group in groups.items():
        backlog = _sum([row["lagMessages"] for row in of_group])
        moved = [(row, was.get(_lag_key(row), {})) for row in of_group]
        consumption = _sum([_step(row, old, "committedOffset") for row, old in moved])
        production = _sum([_step(row, old, "maxOffset") for row, old in moved])
        rates = [None if moves is None else moves / seconds for moves in (consumption, production)]
        found = None if backlog is None else catch_up(backlog, *rates)
        left = None if found is None else found.seconds
        is_known = found is not None and (left is not None or None not in rates)
        at = None if left is None or left > 1e10 else (now + round(left * 1000)) * 1000
        rows.append((group, backlog, *rates, left is not None if is_known else None, left, at))
    return pa.Table.from_batches([batch_of(CATCH_UP_COLUMNS, rows)])


def _lag_key(row: Mapping[str, object]) -> tuple[object, ...]:
    return row["group"], row["brokerName"], row["topic"], row["queueId"]


def _step(row: Mapping[str, object], old: Mapping[str, object], name: str) -> int | None:
    now, before = row.get(name), old.get(name)
    return now - before if isinstance(now, int) and isinstance(before, int) else None


def _sum(values: Sequence[object]) -> int | None:
    """The sum; None if a value is None, or without values."""
    return sum(value for value in values if isinstance(value, int)) if values and None not in values else None


# ---- threads and nodes -------------------------------------------------------------------------------------


def threads_per_node(cores: int, computing_ms: float, waiting_ms: float) -> int:
    """Returns the number of threads that a node needs: cores × (T1 + T2) / T1, at least 1.

    T1 is the computing time of a message, and T2 its waiting time, for example for a database. While one
    message waits, the core works on another message. Use the result as the first value of a load test.

    >>> threads_per_node(4, 5, 45)
    40

    Raises OptionError for less than one core, and for no computing time.
    """
    if cores < 1 or not computing_ms > 0 or not waiting_ms >= 0 or math.isinf(computing_ms + waiting_ms):
        raise OptionError(
            f"expected at least 1 core, a computing time above 0 ms and a waiting time of 0 ms or more, "
            f"found {cores} cores, {computing_ms} ms and {waiting_ms} ms"
        )
    return max(1, round(cores * (computing_ms + waiting_ms) / computing_ms))


def nodes_needed(peak_rate: float, node_rate: float) -> int:
    """Returns the number of nodes that a peak needs, if one node processes `node_rate` (both: messages a
    second).

    Raises OptionError if `peak_rate` is negative or `node_rate` is not above 0.

    >>> nodes_needed(1000, 300)
    4
    """
    if not peak_rate >= 0 or not node_rate > 0 or math.isinf(peak_rate):
        raise OptionError(
            f"expected rates above 0 messages a second, found {peak_rate} at the peak and {node_rate} of "
            "one node"
        )
    return max(1, math.ceil(peak_rate / node_rate))
