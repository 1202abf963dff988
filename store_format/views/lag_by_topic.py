"""The view `lagByTopic`: how far each consumer group is behind on each topic, and what it loses next.

The sums of the view `lag` over the queues of a topic. Queues without a known lag are not in the sums: they
are counted.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pyarrow as pa

from store_format.display.columns import BROKER, INT, LONG, TEXT, TIME, ViewColumn, batches_of, time_us
from store_format.metadata.read import BrokerConf
from store_format.names import QueueKey
from store_format.pop.in_flight import read_pop_progress
from store_format.read.store import Store
from store_format.views.lag import LAG_COLUMNS, GroupQueue, group_queues, lag_row, measured_places
from store_format.views.measure import Stretches
from store_format.views.retention import NextLoss, deletion_ms, next_losses
from store_format.views.view import View

LAG_BY_TOPIC_COLUMNS = (
    BROKER,
    ViewColumn("group", TEXT, "The consumer group."),
    ViewColumn("topic", TEXT, "A topic for which the group has offsets, or the group's `%RETRY%` topic."),
    ViewColumn("queues", INT, "Queues of the topic."),
    ViewColumn(
        "unknownQueues",
        INT,
        "Queues that have had messages and whose lag is unknown, such as those without a committed offset; "
        "the sums leave them out.",
    ),
    ViewColumn(
        "lagMessages", LONG, "Sum of `lagMessages` of the view `lag`; null if it is unknown for every queue."
    ),
    ViewColumn("readyMessages", LONG, "Sum of `readyMessages`; null if one of these queues has none."),
    ViewColumn("inFlightMessages", LONG, "Sum of `inFlightMessages`; null if one of these queues has none."),
    ViewColumn("oldestPopTimestamp", TIME, "When the message that is in flight for longest was popped."),
    ViewColumn("lagBytes", LONG, "Bytes in the commitlog of the unconsumed messages that still exist."),
    ViewColumn("lagMs", LONG, "Age of the oldest unconsumed message; 0 if there is none."),
    ViewColumn(
        "lostMessages",
        LONG,
        "Unconsumed messages that retention has already deleted; null if tiered storage may have them.",
    ),
    ViewColumn(
        "nextLostMessages",
        LONG,
        "Unconsumed messages that retention deletes next: those in all commitlog files that have expired at "
        "the first `deleteWhen` from `expiresTimestamp`, or now, on; null if all unconsumed messages are in "
        "the last file, which is never deleted, or if tiered storage may have them.",
    ),
    ViewColumn(
        "expiresTimestamp",
        TIME,
        "When the file with the first unconsumed message expires, as in the view `retention`.",
    ),
    ViewColumn(
        "expiresInMs",
        LONG,
        "Time until `expiresTimestamp`; 0 or less: the file has expired.",
    ),
    ViewColumn("nextTimestamp", TIME, "When the oldest unconsumed message was stored."),
)


def lag_by_topic(store: Store, now_ms: int, conf: BrokerConf) -> Iterator[pa.RecordBatch]:
    """One row for each group and topic, sorted by group and topic. `deleteWhen` is an hour in the local time
    of this machine.
    """

    def deleted_at(number: int, expires_ms: int) -> int:
        return deletion_ms(expires_ms, now_ms, conf, None, is_any_hour=False)

    return batches_of(
        LAG_BY_TOPIC_COLUMNS, (row for row, _ in rows_with_losses(store, now_ms, conf, deleted_at))
    )


def rows_with_losses(
    store: Store, now_ms: int, conf: BrokerConf, deleted_at: Callable[[int, int], int], forced: int = 0
) -> Iterator[tuple[tuple[object, ...], NextLoss | None]]:
    """The rows, each with its next loss. `deleted_at` and `forced` are those of `next_losses`."""
    places = group_queues(store, progress=read_pop_progress(store, conf))
    measured = measured_places(store, places)
    return rows_of_places(store, places, measured, now_ms, conf, deleted_at, forced)


def rows_of_places(
    store: Store,
    places: list[GroupQueue],
    measured: dict[QueueKey, Stretches],
    now_ms: int,
    conf: BrokerConf,
    deleted_at: Callable[[int, int], int],
    forced: int = 0,
) -> Iterator[tuple[tuple[object, ...], NextLoss | None]]:
    """`rows_with_losses` of these queues of groups, with sizes and times as `measured_places` gives them."""
    losses = next_losses(store, places, measured, conf.file_reserved_hours, deleted_at, forced)
    names = [column.name for column in LAG_COLUMNS]
    queues: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)  # Any: values of lag's columns
    for place in places:
        row = dict(zip(names, lag_row(store.broker_name, place, measured, now_ms), strict=True))
        queues[place.group, place.topic].append(row)
    for pair, found in sorted(queues.items()):
        loss = losses.get(pair)
        row_of = (store.broker_name, *pair, *_sums(found), *_loss(loss, now_ms), _least(found, "next"))
        yield row_of, loss


def _sums(queues: list[dict[str, Any]]) -> tuple[object, ...]:
    known = [row for row in queues if row["lagMessages"] is not None]
    unknown = sum(row["lagMessages"] is None and row["maxOffset"] != 0 for row in queues)
    if not known and not unknown:  # no queue has ever had a message
        return len(queues), 0, 0, None, None, None, 0, 0, 0
    return (
        len(queues),
        unknown,
        *(_sum(row[name] for row in known) for name in ("lagMessages", "readyMessages", "inFlightMessages")),
        _least(queues, "oldestPop"),
        _sum(row["lagBytes"] for row in known),
        max((row["lagMs"] for row in known if row["lagMs"] is not None), default=None),
        _sum(row["lostMessages"] for row in known),
    )


def _sum(values: Iterable[int | None]) -> int | None:
    """The sum; None without values, and if one of them is unknown."""
    every = list(values)
    known = [value for value in every if value is not None]
    return sum(known) if every and len(known) == len(every) else None


def _least(queues: list[dict[str, Any]], name: str) -> int | None:
    return min((each for row in queues if (each := row[f"{name}Timestamp"]) is not None), default=None)


def _loss(loss: NextLoss | None, now_ms: int) -> tuple[object, ...]:
    if loss is None:
        return None, None, None
    return loss.messages, time_us(loss.expires_ms), loss.expires_ms - now_ms


VIEW = View(
    "lagByTopic",
    "Each group on each of its topics: how far behind it is, and what retention deletes next.",
    LAG_BY_TOPIC_COLUMNS,
    with_conf=lag_by_topic,
)
