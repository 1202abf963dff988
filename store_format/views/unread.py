"""Messages at the start of the commitlog that nobody has read yet: what a deletion of files would lose."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from typing import TYPE_CHECKING

from store_format.consumequeue.slices import split_at
from store_format.display.columns import BROKER, INT, LONG, TEXT, ViewColumn
from store_format.metadata.read import BrokerConf
from store_format.pop.in_flight import read_pop_progress
from store_format.views.delayed import VIEW as DELAYED
from store_format.views.lag import GroupQueue, group_queues
from store_format.views.transactions import find_transactions

if TYPE_CHECKING:
    from store_format.read.store import Store

UNREAD_COLUMNS = (
    BROKER,
    ViewColumn(
        "group",
        TEXT,
        "The consumer group; null for messages that a broker holds back: not delivered or not decided.",
    ),
    ViewColumn("topic", TEXT, "The topic."),
    ViewColumn("queueId", INT, "The queue."),
    ViewColumn("committedOffset", LONG, "The next offset to consume; null without a group."),
    ViewColumn("messages", LONG, "Messages that are deleted before they are read; null if unknown."),
)


def unread_before(store: Store, physical_stop: int, now_ms: int) -> list[tuple[object, ...]]:
    """Rows with `UNREAD_COLUMNS`: unread messages in the commitlog before `physical_stop`.

    First those of consumer groups, by group and queue; then delayed messages that are not delivered, and half
    messages without a decision.
    """
    rows: list[tuple[object, ...]] = []
    for place in group_queues(store, progress=read_pop_progress(store)):
        start, limits = place.first_unconsumed, place.limits
        if start is None or limits is None or start >= limits[1]:
            continue
        count = count_before(place, physical_stop)
        if count != 0:
            rows.append((store.broker_name, place.group, place.topic, place.queue_id, place.committed, count))
    waiting = Counter(_undelivered(store, physical_stop, now_ms))
    return rows + [(store.broker_name, None, *queue, None, count) for queue, count in sorted(waiting.items())]


def _undelivered(store: Store, physical_stop: int, now_ms: int) -> list[tuple[str, int]]:
    found = []
    for batch in DELAYED.rows(store, now_ms, BrokerConf()):
        columns = (
            batch[name].to_pylist() for name in ("storedTopic", "storedQueueId", "physicalOffset", "state")
        )
        for topic, queue_id, physical_offset, state in zip(*columns, strict=True):
            if physical_offset < physical_stop and state in ("waiting", "due", "unknown"):
                found.append((topic, queue_id))
    for each in find_transactions(store):
        last = each.copies[-1]
        if each.state == "pending" and last["physicalOffset"] < physical_stop:
            found.append((last["topic"], last["queueId"]))
    return found


def count_before(place: GroupQueue, physical_stop: int) -> int | None:
    """How many unconsumed messages of a group lie before a physical offset; None without a consume queue.

    Messages that are in flight with pop count: nobody can deliver them again once they are deleted.
    """
    queue, first, start = place.queue, place.first_unconsumed, place.next_readable
    if queue is None or queue.scanned is not None or first is None or start is None:
        return None
    before, *_ = split_at(queue.piece(first, queue.max_offset), [physical_stop])
    in_flight = place.in_flight or ()
    held = bisect_left(in_flight, before.stop) - bisect_left(in_flight, first)
    return held + max(before.stop - max(start, first), 0)
