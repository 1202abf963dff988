"""The data of charts of views: lag, disk use, delayed messages, dead letters. One row for each mark."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rmq_spark.charts.data import Drawn, harmless, rate_data
from rmq_spark.store import LogCluster
from store_format.read.store import Store
from store_format.views.registry import view_table

NO_QUEUE = "in no queue"

_TOPICS_MAX = 8
_DAYS_MAX = 31


def view_of(source: Store | LogCluster, name: str, now_ms: int | None = None) -> pa.Table:
    """A view of a store, or of all stores of a cluster."""
    stores = source.stores if isinstance(source, LogCluster) else [source]
    return pa.concat_tables([view_table(store, name, now_ms=now_ms) for store in stores])


def lag_rows(
    source: Store | LogCluster | pa.Table,
    topic: str | None = None,
    group: str | None = None,
    now_ms: int | None = None,
) -> pa.Table:
    """The rows of the view `lag` of a store or a cluster, or of such a table: of one topic and one group."""
    table = source if isinstance(source, pa.Table) else view_of(source, "lag", now_ms)
    for name, wanted in (("topic", topic), ("group", group)):
        if wanted is not None:
            table = table.filter(pc.equal(table[name], wanted))
    return table


def disk_use_data(source: Store | LogCluster, *, topics_max: int = _TOPICS_MAX) -> Drawn:
    """Sums the bytes of the commitlog by day of the store time (UTC) and by topic, for the newest 31 days.

    The `topics_max` topics with the most bytes have their own rows. Bytes in no queue (padding, damage,
    deleted topics) are a topic of their own without a day.
    """
    found = view_of(source, "usage").select(["topic", "day", "messages", "bytes"])
    sums = found.group_by(["topic"]).aggregate([("bytes", "sum")]).to_pylist()
    ranked = sorted(
        (row for row in sums if row["topic"] is not None), key=lambda row: (-row["bytes_sum"], row["topic"])
    )
    kept = {row["topic"] for row in ranked[:topics_max]}
    others = len(ranked) - len(kept)
    cells: dict[tuple[str, str], list[int]] = {}
    for row in found.to_pylist():
        topic = NO_QUEUE if row["topic"] is None else harmless(row["topic"])
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
    return _over_time(view_of(source, "delayed", now_ms), "dueTimestamp", "topic")


def dead_letters_data(source: Store | LogCluster) -> Drawn:
    """Counts dead letters by the time when they became dead letters, and by group (in the column `topic`)."""
    return _over_time(view_of(source, "deadLetters"), "storeTimestamp", "group")


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
    counted = drawn.table.select(["startMs", "stopMs", "topic", "messages", "bytes"])
    counted = counted.filter(pa.array(np.asarray(counted["messages"]) > 0))
    return Drawn(counted, (total, *drawn.notes, *more), drawn.step_ms)
