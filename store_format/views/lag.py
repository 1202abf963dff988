"""The view `lag`: how far each consumer group is behind on each queue.

The numbers come from the broker's committed offsets and from the queues. A value that no file has is null: a
group without a committed offset is neither at 0 nor at the end of the queue. (The broker's own tools assume
both: ConsumeStats assumes 0, the lag metrics assume maxOffset.)
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from store_format.display.columns import BROKER, INT, LONG, TEXT, TIME, ViewColumn, batch_of, time_us
from store_format.metadata.group_offsets import Committed, read_committed
from store_format.metadata.read import Topics, read_topics
from store_format.names import QueueKey, retry_topic
from store_format.views.measure import Stretches, measure
from store_format.views.view import View

if TYPE_CHECKING:
    from store_format.read.store import Queue, Store

LAG_COLUMNS = (
    BROKER,
    ViewColumn("group", TEXT, "The consumer group."),
    ViewColumn("topic", TEXT, "A topic for which the group has offsets, or the group's `%RETRY%` topic."),
    ViewColumn("queueId", INT, "The queue."),
    ViewColumn("committedOffset", LONG, "The next offset to consume; null if the broker has no offset."),
    ViewColumn(
        "minOffset", LONG, "The first offset in the queue; null if the store does not have the queue."
    ),
    ViewColumn("maxOffset", LONG, "The offset after the last message."),
    ViewColumn(
        "lagMessages",
        LONG,
        "`maxOffset` minus `committedOffset`, as in mqadmin consumerProgress; negative if the queue was "
        "truncated.",
    ),
    ViewColumn("lagBytes", LONG, "Bytes in the commitlog of the unconsumed messages that still exist."),
    ViewColumn("lagMs", LONG, "Age of the first unconsumed message; 0 if there is none."),
    ViewColumn("lostMessages", LONG, "Messages of `lagMessages` that retention has already deleted."),
    ViewColumn(
        "inFlightMessages", LONG, "Delivered to consumers and not yet committed (since 5.5; up to 5 s old)."
    ),
    ViewColumn(
        "lastConsumedTimestamp",
        TIME,
        "When the last consumed message was stored, as `lastTimestamp` in consumerProgress.",
    ),
    ViewColumn("nextTimestamp", TIME, "When the first unconsumed message was stored."),
)


@dataclass(frozen=True, slots=True)
class GroupQueue:
    """A queue and the offsets of one group on the queue.

    `queue` is None if the store does not have the queue. `limits` is (min offset, max offset), if known.
    """

    group: str
    topic: str
    queue_id: int
    queue: Queue | None
    limits: tuple[int, int] | None
    committed: int | None  # the next offset to consume
    pulled: int | None

    @property
    def next_readable(self) -> int | None:
        """The offset of the next message that the group gets: committed, but not before the queue's start."""
        if self.committed is None or self.limits is None:
            return None
        return max(self.committed, self.limits[0])

    @property
    def lost(self) -> int | None:
        """How many unconsumed messages retention has deleted; None if an offset is unknown."""
        if self.committed is None or self.limits is None:
            return None
        return max(min(self.limits) - self.committed, 0)


def group_queues(
    store: Store, group: str | None = None, committed: Committed | None = None
) -> list[GroupQueue]:
    """Every queue of the topics for which a group has offsets, and of its retry topic if configured; sorted.

    The queues of a topic are the queues on disk, the ids below readQueueNums and the ids in the offsets.
    `committed` replaces the offsets in the store.
    """
    committed, topics = committed or read_committed(store.path), read_topics(store.path)
    pairs = committed.pairs()
    pairs |= {
        (name, retry_topic(name)) for name, _ in pairs if topics is not None and retry_topic(name) in topics
    }
    pairs = {pair for pair in pairs if group in (None, pair[0])}
    wanted = {topic for _, topic in pairs}
    by_topic: dict[str, dict[int, Queue]] = {}
    for queue in store.queues(wanted.__contains__) if wanted else ():
        by_topic.setdefault(queue.topic, {})[queue.queue_id] = queue
    found = []
    for name, topic in sorted(pairs):
        offsets, pulled = committed.offsets.get((name, topic), {}), committed.pulled.get((name, topic), {})
        queues = by_topic.get(topic, {})
        for queue_id in sorted({*queues, *offsets, *pulled, *_configured(topics, topic)}):
            there = queues.get(queue_id)
            limits = (
                (there.min_offset, there.max_offset)
                if there is not None
                else _empty(store, topics, topic, queue_id)
            )
            found.append(
                GroupQueue(name, topic, queue_id, there, limits, offsets.get(queue_id), pulled.get(queue_id))
            )
    return found


def _configured(topics: Topics | None, topic: str) -> range:
    if topics is None or topic not in topics:
        return range(0)
    return topics[topic].read_queue_ids


def _empty(store: Store, topics: Topics | None, topic: str, queue_id: int) -> tuple[int, int] | None:
    """(0, 0) for a configured queue without files: it has had no message, as retention keeps a file."""
    return (0, 0) if queue_id in _configured(topics, topic) and store.has_consume_queues else None


def lag_table(
    store: Store,
    group: str | None = None,
    *,
    now_ms: int | None = None,
    committed: Committed | None = None,
) -> pa.Table:
    """The columns `LAG_COLUMNS`, one row for each group and queue; of one group or of all groups.

    Ages count to `now_ms`, by default the clock. `committed` replaces the offsets in the store, which a
    running broker writes every 5 s.
    """
    now = time.time_ns() // 1_000_000 if now_ms is None else now_ms
    places = group_queues(store, group, committed)
    measured = measure(store, *_queues_and_edges(places))
    rows = (_lag_row(store.broker_name, place, measured, now) for place in places)
    return pa.Table.from_batches([batch_of(LAG_COLUMNS, rows)])


def _queues_and_edges(places: list[GroupQueue]) -> tuple[list[Queue], dict[QueueKey, list[int]]]:
    """Each queue once, and the offsets in it that have to be measured."""
    queues: dict[QueueKey, Queue] = {}
    edges: dict[QueueKey, list[int]] = {}
    for place in places:
        if place.queue is not None:
            key = (place.topic, place.queue_id)
            queues[key] = place.queue
            edges.setdefault(key, [place.queue.max_offset]).extend(_edges(place))
    return list(queues.values()), edges


def _edges(place: GroupQueue) -> Iterator[int]:
    if place.committed is not None and place.next_readable is not None:
        yield from (place.next_readable, place.committed - 1)


def _lag_row(
    broker_name: str, place: GroupQueue, measured: dict[QueueKey, Stretches], now: int
) -> tuple[object, ...]:
    low, high = place.limits if place.limits is not None else (None, None)
    lag = lag_bytes = lag_ms = last = following = None
    if place.committed is not None and place.next_readable is not None and high is not None:
        lag, lag_bytes, lag_ms = high - place.committed, 0, 0
        stretches = measured.get((place.topic, place.queue_id))
        if stretches is not None:
            last = stretches.time_at(place.committed - 1)
        if stretches is not None and place.next_readable < high:
            lag_bytes = stretches.bytes_between(place.next_readable, high)
            following = stretches.time_at(place.next_readable)
            lag_ms = None if following is None else max(now - following, 0)
    flight = (
        None if place.committed is None or place.pulled is None else max(place.pulled - place.committed, 0)
    )
    return (
        broker_name, place.group, place.topic, place.queue_id, place.committed, low, high,
        lag, lag_bytes, lag_ms, place.lost, flight, time_us(last), time_us(following),
    )  # fmt: skip


def _lag_batches(store: Store, now_ms: int) -> Iterator[pa.RecordBatch]:
    yield from lag_table(store, now_ms=now_ms).to_batches()


VIEW = View(
    "lag",
    "Each group on each of its queues: how far behind it is in messages, bytes and time.",
    LAG_COLUMNS,
    _lag_batches,
)
