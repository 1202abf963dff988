"""How far a group is behind wherever its offsets are, whether and when it catches up, and how many threads
that takes.

The table is that of the view `lag` (`store_format.views.lag`), made from a group's offset store, or from the
progress that Spark reports. What is not known is null: never 0, and never -1.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from rmq_spark.consume.message_queue import MessageQueue
from rmq_spark.consume.offset_store import OffsetStore
from rmq_spark.consume.stream_offset import StreamOffset
from store_format import MessageStore
from store_format.display.columns import BOOL, LONG, REAL, TEXT, TIME, ViewColumn, batch_of, schema_of
from store_format.errors import OptionError
from store_format.metadata.group_offsets import Committed
from store_format.views.lag import LAG_COLUMNS, lag_table

__all__ = [
    "CATCH_UP_COLUMNS",
    "CatchUp",
    "catch_up",
    "catch_up_table",
    "group_lag",
    "lag_from_progress",
    "nodes_needed",
    "threads_per_node",
]


def group_lag(
    stores: Sequence[MessageStore],
    group: str,
    offsets: OffsetStore | None = None,
    *,
    now_ms: int | None = None,
) -> pa.Table:
    """One row for each queue of the group, over all stores. Without `offsets` by what the brokers have in
    their files.

    `now_ms` is what ages count to, by default the clock.
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


# ---- what Spark reports ------------------------------------------------------------------------------------


def lag_from_progress(progress: str | Mapping[str, object], *, group: str | None = None) -> pa.Table:
    """The same table from a query's progress: `lag_from_progress(event.progress.json)` in a
    StreamingQueryListener.

    `committedOffset` is the end of the micro-batch, `maxOffset` what the queue had then
    (`reportLatestOffset`); bytes and times are not in the progress. Sources of other formats are left out.
    Raises OptionError for what is no progress.
    """
    try:
        value: Any = json.loads(progress) if isinstance(progress, str) else progress
        offsets = [(source.get("endOffset"), source.get("latestOffset")) for source in value["sources"]]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise OptionError(
            f"expected the JSON of a StreamingQueryProgress, found something else ({str(error)[:100]})"
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
    """Of one offset, which Spark gives as JSON or as its text; None for one that is not of this format."""
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
    """`seconds` until nothing is left at these rates (messages a second); None when that never comes, or a
    rate is not known.
    """

    backlog: int
    consumption_rate: float | None
    production_rate: float | None
    seconds: float | None

    def __str__(self) -> str:
        if self.backlog <= 0:
            return "nothing is left to read"
        if self.consumption_rate is None or self.production_rate is None:
            return f"{self.backlog} messages behind; the rates are not known"
        rates = f"{self.backlog} messages behind, {self.consumption_rate:.1f} read and {self.production_rate:.1f} written a second"
        return (
            f"{rates}: it never catches up"
            if self.seconds is None
            else f"{rates}: it has caught up in {self.seconds:.0f} s"
        )


def catch_up(backlog: int, consumption_rate: float | None, production_rate: float | None) -> CatchUp:
    """When a group that reads so many messages a second, while so many are written, has read its backlog.

    >>> print(catch_up(6000, 300.0, 100.0))
    6000 messages behind, 300.0 read and 100.0 written a second: it has caught up in 30 s
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
    ViewColumn("lagMessages", LONG, "The backlog now; null where a queue's is not known."),
    ViewColumn("consumptionRate", REAL, "Messages that the group went on by, a second."),
    ViewColumn("productionRate", REAL, "Messages that were written for it, a second."),
    ViewColumn("catchesUp", BOOL, "Whether the backlog shrinks, or is nothing."),
    ViewColumn("secondsLeft", REAL, "Until it is nothing at these rates; null when that never comes."),
    ViewColumn("caughtUpAt", TIME, "The moment of that."),
)


def catch_up_table(
    before: pa.Table, after: pa.Table, seconds: float, *, now_ms: int | None = None
) -> pa.Table:
    """One row a group, from two lag tables that were made `seconds` apart. A queue that only one of them
    knows has no rate.

    Raises OptionError when no time has passed between them.
    """
    if not seconds > 0:
        raise OptionError(f"expected two lag tables some time apart, found {seconds} s")
    now = time.time_ns() // 1_000_000 if now_ms is None else now_ms
    was = {_place(row): row for row in before.to_pylist()}
    rows = []
    groups: dict[str | None, list[dict[str, object]]] = {}
    for row in after.to_pylist():
        groups.setdefault(row["group"], []).append(row)
    for group, of_group in groups.items():
        backlog = _sum([row["lagMessages"] for row in of_group])
        moved = [(row, was.get(_place(row), {})) for row in of_group]
        consumption = _sum([_step(row, old, "committedOffset") for row, old in moved])
        production = _sum([_step(row, old, "maxOffset") for row, old in moved])
        rates = [None if moves is None else moves / seconds for moves in (consumption, production)]
        found = None if backlog is None else catch_up(backlog, *rates)
        left = None if found is None else found.seconds
        is_known = found is not None and (left is not None or None not in rates)
        at = None if left is None or left > 1e10 else (now + round(left * 1000)) * 1000
        rows.append((group, backlog, *rates, left is not None if is_known else None, left, at))
    return pa.Table.from_batches([batch_of(CATCH_UP_COLUMNS, rows)])


def _place(row: Mapping[str, object]) -> tuple[object, ...]:
    return row["group"], row["brokerName"], row["topic"], row["queueId"]


def _step(row: Mapping[str, object], old: Mapping[str, object], name: str) -> int | None:
    now, before = row.get(name), old.get(name)
    return now - before if isinstance(now, int) and isinstance(before, int) else None


def _sum(values: Sequence[object]) -> int | None:
    """Unknown as soon as a part of it is."""
    return sum(value for value in values if isinstance(value, int)) if values and None not in values else None


# ---- how much it takes -------------------------------------------------------------------------------------


def threads_per_node(cores: int, computing_ms: float, waiting_ms: float) -> int:
    """The usual formula: threads ≈ cores × (T1 + T2) / T1, where T1 is the time that a message computes and
    T2 the time that it waits.

    A core is busy with one message while others wait for their database. It is where a load test begins, not
    where it ends.

    >>> threads_per_node(4, 5, 45)
    40

    Raises OptionError without a core or a computing time.
    """
    if cores < 1 or not computing_ms > 0 or not waiting_ms >= 0 or math.isinf(computing_ms + waiting_ms):
        raise OptionError(
            f"expected cores and times above 0, found {cores} cores, {computing_ms} ms computing, {waiting_ms} ms waiting"
        )
    return max(1, round(cores * (computing_ms + waiting_ms) / computing_ms))


def nodes_needed(peak_rate: float, node_rate: float) -> int:
    """Nodes for a peak, in messages a second, when one of them was measured to do `node_rate`."""
    if not peak_rate >= 0 or not node_rate > 0 or math.isinf(peak_rate):
        raise OptionError(
            f"expected rates above 0, found {peak_rate} messages a second at the peak and {node_rate} of one node"
        )
    return max(1, math.ceil(peak_rate / node_rate))
