"""How far each consumer group is behind, queue by queue: from the broker's consumerOffset.json and the queues
themselves.

What a file does not say is unknown (null): a group without a committed offset is neither at 0 nor at the end.
(The broker's own tools say both: ConsumeStats counts it as 0, the lag metrics as the maximum.)
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

__all__ = ["LAG_COLUMNS", "VIEW", "GroupQueue", "group_queues", "lag_table"]


LAG_COLUMNS = (
    BROKER,
    ViewColumn("group", TEXT, "The consumer group."),
    ViewColumn("topic", TEXT, "The topic it has offsets of, and its `%RETRY%` topic."),
    ViewColumn("queueId", INT, "The queue."),
    ViewColumn("committedOffset", LONG, "The next offset to consume; null when the broker remembers none."),
    ViewColumn(
        "minOffset", LONG, "The first offset in the queue; null when the store does not have the queue."
    ),
    ViewColumn("maxOffset", LONG, "The offset behind the last message."),
    ViewColumn(
        "lagMessages",
        LONG,
        "`maxOffset` less `committedOffset`, as mqadmin's consumerProgress; negative when the queue was cut back.",
    ),
    ViewColumn("lagBytes", LONG, "Bytes in the commitlog of those that can still be read."),
    ViewColumn("lagMs", LONG, "Age of the first message not consumed; 0 when there is none."),
    ViewColumn("lostMessages", LONG, "Of `lagMessages` those that retention has deleted already."),
    ViewColumn(
        "inFlightMessages", LONG, "Handed to consumers and not committed (5.5 remembers it, at most 5 s old)."
    ),
    ViewColumn(
        "lastConsumedTimestamp",
        TIME,
        "When the last consumed message was stored: consumerProgress' last time.",
    ),
    ViewColumn("nextTimestamp", TIME, "When the first message not consumed was stored."),
)


@dataclass(frozen=True, slots=True)
class GroupQueue:
    """A queue as one group sees it. `queue` is None where the store has no such queue, `limits` its offsets
    if they are known.
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
        """Where the group goes on: at what it committed, or at what retention has left of it."""
        if self.committed is None or self.limits is None:
            return None
        return max(self.committed, self.limits[0])


def group_queues(
    store: Store, group: str | None = None, committed: Committed | None = None
) -> list[GroupQueue]:
    """Every queue of every topic that a group has offsets of, sorted; with the queues of its retry topic, if
    that is configured.

    The queues of a topic are those on disk, those below readQueueNums and those that offsets name.
    `committed` are offsets that are kept somewhere else than in the store.
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
    """A queue without files had no message, if the store keeps consume queues at all: their last file
    outlives retention.
    """
    return (0, 0) if queue_id in _configured(topics, topic) and store.has_consume_queues else None


def lag_table(
    store: Store,
    group: str | None = None,
    *,
    now_ms: int | None = None,
    committed: Committed | None = None,
) -> pa.Table:
    """One row a group and queue, by `LAG_COLUMNS`; of one group, or of all. `now_ms` is what ages count to
    (default: the clock).

    As every file that a running broker writes, its offsets are up to 5 s old. `committed` are offsets kept
    somewhere else.
    """
    now = time.time_ns() // 1_000_000 if now_ms is None else now_ms
    places = group_queues(store, group, committed)
    measured = measure(store, *_questions(places))
    rows = (_row(store.broker_name, place, measured, now) for place in places)
    return pa.Table.from_batches([batch_of(LAG_COLUMNS, rows)])


def _questions(places: list[GroupQueue]) -> tuple[list[Queue], dict[QueueKey, list[int]]]:
    """Each queue once, with the offsets at which groups stand in it."""
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


def _row(
    broker_name: str, place: GroupQueue, measured: dict[QueueKey, Stretches], now: int
) -> tuple[object, ...]:
    low, high = place.limits if place.limits is not None else (None, None)
    lag = lag_bytes = lag_ms = lost = last = following = None
    if (
        place.committed is not None
        and place.next_readable is not None
        and low is not None
        and high is not None
    ):
        lag, lost = high - place.committed, max(min(low, high) - place.committed, 0)
        lag_bytes = lag_ms = 0
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
        lag, lag_bytes, lag_ms, lost, flight, time_us(last), time_us(following),
    )  # fmt: skip


def _lag_batches(store: Store, now_ms: int) -> Iterator[pa.RecordBatch]:
    yield from lag_table(store, now_ms=now_ms).to_batches()


VIEW = View(
    "lag",
    "Each group on each of its queues: how far behind in messages, bytes and time.",
    LAG_COLUMNS,
    _lag_batches,
)
