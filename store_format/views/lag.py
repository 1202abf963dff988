"""The views `lag` and `groups`: how far each consumer group is behind on each queue, and what each group is.

The numbers come from the broker's committed offsets and from the queues. A value that no file has is null: a
group without a committed offset is neither at 0 nor at the end of the queue. (The broker's own tools assume
both: ConsumeStats assumes 0, the lag metrics assume maxOffset.)

For a group that pops, the committed offset says little: a broker moves it past messages when it hands them
out. Its lag is the messages that are ready plus those in flight, as in the broker's lag metrics
(ConsumerLagCalculator, spec consumption.md 12.1).

`groups` has the groups that are configured, have offsets, or have a retry or dead letter topic.
"""

from __future__ import annotations

import logging
import time
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from store_format.display.columns import (
    BOOL,
    BROKER,
    INT,
    LONG,
    NAMES,
    TEXT,
    TIME,
    ViewColumn,
    batch_of,
    batches_of,
    time_us,
)
from store_format.display.text import first_names, shown
from store_format.metadata.group_offsets import Committed, RetryOwners, read_committed
from store_format.metadata.read import BrokerConf, Groups, TopicConfigs, read_subscription_groups, read_topics
from store_format.names import DLQ_PREFIX, QueueKey, is_retry_topic, pop_retry_topic, retry_topic
from store_format.pop.in_flight import PopProgress, popped_pair, read_pop_progress
from store_format.read.served import CompactedTopics
from store_format.read.static_topics import logical_ranges
from store_format.read.store import Queue, Store
from store_format.read.store_root import OtherFiles
from store_format.survey.fates import Fates
from store_format.views.measure import Stretches, bytes_at, measure
from store_format.views.view import View

_log = logging.getLogger(__name__)

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
        "truncated. For a group that pops `readyMessages` plus `inFlightMessages`, as in a broker's metrics.",
    ),
    ViewColumn(
        "readyMessages",
        LONG,
        "Messages of `lagMessages` that nobody was given yet; null if that is unknown.",
    ),
    ViewColumn(
        "inFlightMessages",
        LONG,
        "Messages of `lagMessages` that consumers were given: with pop those that nobody has acknowledged, "
        "else those that a broker has delivered (since 5.5; up to 5 s old). Null if that is unknown.",
    ),
    ViewColumn(
        "oldestPopTimestamp",
        TIME,
        "When the message that is in flight for longest was popped; null without messages in flight.",
    ),
    ViewColumn("lagBytes", LONG, "Bytes in the commitlog of the unconsumed messages that still exist."),
    ViewColumn("lagMs", LONG, "Age of the first unconsumed message; 0 if there is none."),
    ViewColumn(
        "lostMessages",
        LONG,
        "Messages of `lagMessages` that retention has already deleted; null if tiered storage may have them.",
    ),
    ViewColumn(
        "lastConsumedTimestamp",
        TIME,
        "When the message before the first unconsumed one was stored, `lastTimestamp` in consumerProgress.",
    ),
    ViewColumn("nextTimestamp", TIME, "When the first unconsumed message was stored."),
)


@dataclass(frozen=True, slots=True)
class Popped:
    """What a group has popped from one queue.

    `offsets` are in flight, ascending; None if unknown. `next_offset` is the first one that was not handed
    out; None if the committed offset is that. `oldest` is the earliest pop time of `offsets` in ms.
    """

    offsets: tuple[int, ...] | None
    next_offset: int | None
    oldest: int | None


@dataclass(frozen=True, slots=True)
class GroupQueue:
    """A queue and the offsets of one group on the queue.

    `queue` is None if the store does not have the queue. `limits` is (min offset, max offset), if known.
    `popped` is None for a group that does not pop the topic, as far as files say.
    """

    group: str
    topic: str
    queue_id: int
    queue: Queue | None
    limits: tuple[int, int] | None
    committed: int | None  # the next offset to consume
    pulled: int | None
    popped: Popped | None = None
    is_tiered: bool = False  # whether tiered storage may have what retention has deleted
    is_compacted: bool = False  # a broker serves the topic from files that retention does not delete

    @property
    def next_offset(self) -> int | None:
        """The first offset that was neither consumed nor popped."""
        if self.popped is not None and self.popped.next_offset is not None:
            return self.popped.next_offset
        return self.committed

    @property
    def next_readable(self) -> int | None:
        """The offset of the next message that the group gets: not before the queue's start."""
        following = self.next_offset
        return None if following is None or self.limits is None else max(following, self.limits[0])

    @property
    def in_flight(self) -> Sequence[int] | None:
        """The offsets that are in flight with pop, ascending; empty without pop, None if unknown."""
        return self.popped.offsets if self.popped is not None else ()

    @property
    def first_unconsumed(self) -> int | None:
        """The first offset, in flight or ready, of a message that exists and is not consumed."""
        start = self.next_readable
        if start is None or self.limits is None or not self.in_flight:
            return start
        at = bisect_left(self.in_flight, self.limits[0])
        return min(start, self.in_flight[at]) if at < len(self.in_flight) else start

    @property
    def is_behind(self) -> bool:
        """Whether a message is there that the group has not consumed."""
        return self.limits is not None and (self.first_unconsumed or 0) < self.limits[1]

    @property
    def lost(self) -> int | None:
        """How many unconsumed messages retention has deleted.

        None if an offset is unknown, or if tiered storage may have these messages.
        """
        following, in_flight = self.next_offset, self.in_flight
        if following is None or self.limits is None or in_flight is None:
            return None
        if self.is_compacted:
            return 0
        low = min(self.limits)
        deleted = max(low - following, 0) + (bisect_left(in_flight, low) if in_flight else 0)
        return None if deleted and self.is_tiered else deleted


def group_queues(
    store: Store,
    group: str | None = None,
    committed: Committed | None = None,
    progress: PopProgress | None = None,
    *,
    pairs: Collection[tuple[str, str]] | None = None,
    queues_on_disk: Iterable[Queue] | None = None,
) -> list[GroupQueue]:
    """Every queue of the topics for which a group has offsets, and of its retry topics if configured; sorted.

    The queues of a topic are the queues on disk, the ids below readQueueNums and the ids in the offsets.
    `committed` replaces the offsets in the store. `progress` is what groups have popped; by default nothing.
    `pairs` are those of `group_pairs` to show, by default all. `queues_on_disk` are the queues of their
    topics, by default found by a look at the store.
    """
    committed, topics = committed or read_committed(store.opened), read_topics(store.opened)
    progress = progress or PopProgress()
    pairs = group_pairs(store, committed, topics, progress, group) if pairs is None else pairs
    wanted, other = {topic for _, topic in pairs}, OtherFiles(store.opened)
    is_tiered = other.tiered is not None and store.tiered_path is None
    compacted = CompactedTopics.of(store.opened, other.compacted).names
    by_topic: dict[str, dict[int, Queue]] = {}
    if queues_on_disk is None:
        queues_on_disk = store.queues(wanted.__contains__) if wanted else ()
    for queue in queues_on_disk:
        by_topic.setdefault(queue.topic, {})[queue.queue_id] = queue
    there = {(topic, queue_id) for topic, queues in by_topic.items() for queue_id in queues}
    past = Fates(store.opened, store.log).past_queues(store.log.min_offset, there)
    found = []
    for name, topic in sorted(pairs):
        offsets, pulled = committed.offsets.get((name, topic), {}), committed.pulled.get((name, topic), {})
        queues = by_topic.get(topic, {})
        for queue_id in sorted({*queues, *offsets, *pulled, *_configured(topics, topic)}):
            on_disk = queues.get(queue_id)
            if on_disk is not None:
                limits: tuple[int, int] | None = on_disk.min_offset, on_disk.max_offset
            elif (topic, queue_id) in past:
                limits = (past[topic, queue_id].offset,) * 2
            else:
                limits = _empty(store, topics, topic, queue_id)
            found.append(
                GroupQueue(
                    name, topic, queue_id, on_disk, limits, offsets.get(queue_id), pulled.get(queue_id),
                    _popped(progress, name, topic, queue_id), is_tiered, topic in compacted,
                )
            )  # fmt: skip
    return found


def group_pairs(
    store: Store,
    committed: Committed,
    topics: Collection[str] | None,
    progress: PopProgress,
    group: str | None = None,
) -> set[tuple[str, str]]:
    """The (group, topic) pairs to show; `progress` learns which of them are retry topics of pop."""
    pairs = {pair for pair in committed.pairs() | progress.ours if group in (None, pair[0])}
    if topics is None:
        return pairs
    owners: RetryOwners | None = None
    for name, topic in list(pairs):
        pairs |= {(name, retry)} if (retry := retry_topic(name)) in topics else set()
        for retry in (pop_retry_topic(name, topic), pop_retry_topic(name, topic, is_v2=True)):
            if retry in topics:
                owners = owners or RetryOwners.read(store.opened, topics)
                if owners.owner(retry).group == name:
                    pairs.add((name, retry))
                    progress.pairs.add((name, topic))
    return pairs


def _popped(progress: PopProgress, group: str, topic: str, queue_id: int) -> Popped | None:
    pair = popped_pair(group, topic) if progress.pairs else None
    if pair is None or pair not in progress.pairs:
        return None
    next_offset = progress.next_offsets.get((group, topic, queue_id))
    if progress.is_unknown(pair):
        return Popped(None, next_offset, None)
    found = progress.in_flight.get((group, topic, queue_id), [])
    offsets = sorted({offset for each in found for offset in each.offsets})
    return Popped(tuple(offsets), next_offset, min((each.pop_time for each in found), default=None))


def _configured(topics: TopicConfigs | None, topic: str) -> range:
    return range(0) if topics is None or topic not in topics else topics[topic].read_queue_ids


def _empty(store: Store, topics: TopicConfigs | None, topic: str, queue_id: int) -> tuple[int, int] | None:
    """(0, 0) for a configured queue without files: it has had no message, as retention keeps a file."""
    return (0, 0) if queue_id in _configured(topics, topic) and store.has_consume_queues else None


def lag_table(
    store: Store,
    group: str | None = None,
    *,
    now_ms: int | None = None,
    committed: Committed | None = None,
    conf: BrokerConf | None = None,
) -> pa.Table:
    """Returns the view `lag` as a table: one row for each group, topic and queue, with `LAG_COLUMNS`.

    `group` selects one group; None selects all groups. A group without offsets gives an empty table. Numbers
    that no file contains are null. `lagMs` is the age of the oldest unread message at `now_ms` (ms since
    1970, by default now). `committed` replaces the offsets in the store, which a running broker writes every
    5 s; the table then ignores messages that a group has popped. `conf` has the broker's settings, by default
    those of the store.

    Example: `lag_table(store, "CG_orders").select(["topic", "queueId", "lagMessages"]).to_pylist()`.
    """
    now = time.time_ns() // 1_000_000 if now_ms is None else now_ms
    progress = read_pop_progress(store, conf) if committed is None else None
    places = group_queues(store, group, committed, progress)
    _warn_of_moved(store, places)
    measured = measured_places(store, places)
    rows = (lag_row(store.broker_name, place, measured, now) for place in places)
    return pa.Table.from_batches([batch_of(LAG_COLUMNS, rows)])


def _warn_of_moved(store: Store, places: Sequence[GroupQueue]) -> None:
    """Warns of lag in queues of static topics that another broker has taken over. A broker commits the offset
    in the queue that has the message (ConsumerManageProcessor.rewriteRequestForStaticTopic): a group that has
    gone on to the other broker commits nothing here, also for the last messages that it got from here.
    """
    moved = {each.queue: each.moved_to for each in logical_ranges(store.opened, store.broker_name)}
    behind = [
        f"{shown(place.topic)}-{place.queue_id} ({shown(moved[place.topic, place.queue_id])})"
        for place in places
        if moved.get((place.topic, place.queue_id)) and place.is_behind
    ]
    if behind:
        _log.warning(
            "%s: queues of static topics have moved to another broker: %s. A group that reads there may have "
            "no lag here: look at its lag in the other broker's store",
            store.path,
            first_names(list(dict.fromkeys(behind))),
        )


def measured_places(store: Store, places: list[GroupQueue]) -> dict[QueueKey, Stretches]:
    """Sizes and times of each queue between the offsets at which the lag of the groups begins and ends."""
    return measure(store, *queues_and_edges(places))


def queues_and_edges(places: list[GroupQueue]) -> tuple[list[Queue], dict[QueueKey, list[int]]]:
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
    start, following = place.next_readable, place.next_offset
    if start is not None and following is not None:
        yield from (start, following - 1)
        first = place.first_unconsumed
        if first is not None and first < start:
            yield from (first, first - 1)


@dataclass(slots=True)
class _Lag:
    """The measured columns of one row; None where a value is unknown."""

    messages: int | None = None
    ready: int | None = None
    in_flight: int | None = None
    bytes: int | None = None
    ms: int | None = None
    last: int | None = None
    following: int | None = None


def _lag_of(place: GroupQueue, stretches: Stretches | None, now: int) -> _Lag:
    lag = _Lag()
    if place.popped is not None:
        lag.in_flight = None if place.popped.offsets is None else len(place.popped.offsets)
    elif place.committed is not None and place.pulled is not None:
        lag.in_flight = max(place.pulled - place.committed, 0)
    start, limits, following = place.next_readable, place.limits, place.next_offset
    if following is None or start is None or limits is None:
        return lag
    high, behind = limits[1], limits[1] - following
    if place.popped is not None:
        lag.ready = behind
        lag.messages = None if lag.in_flight is None else behind + lag.in_flight
    else:
        lag.ready = None if lag.in_flight is None else behind - lag.in_flight
        lag.messages = behind
    in_flight, first = place.in_flight, place.first_unconsumed
    assert first is not None, "next_readable is known"
    if stretches is not None:
        lag.last = stretches.time_at((following if first == start else first) - 1)
    if in_flight is None:
        return lag
    lag.bytes, lag.ms = 0, 0
    if stretches is not None and first < high:
        lag.bytes = stretches.bytes_between(start, high) if start < high else 0
        following_message = stretches.first_from(first)
        lag.following = None if following_message is None else following_message.time
        lag.ms = None if lag.following is None else max(now - lag.following, 0)
        if place.queue is not None and in_flight:
            lag.bytes += bytes_at(place.queue, in_flight)
    return lag


def lag_row(
    broker_name: str, place: GroupQueue, measured: dict[QueueKey, Stretches], now: int
) -> tuple[object, ...]:
    """The values of `LAG_COLUMNS` for a queue of a group."""
    low, high = place.limits if place.limits is not None else (None, None)
    lag = _lag_of(place, measured.get((place.topic, place.queue_id)), now)
    oldest = None if place.popped is None else place.popped.oldest
    return (
        broker_name, place.group, place.topic, place.queue_id, place.committed, low, high,
        lag.messages, lag.ready, lag.in_flight, time_us(oldest), lag.bytes, lag.ms, place.lost,
        time_us(lag.last), time_us(lag.following),
    )  # fmt: skip


def _lag_batches(store: Store, now_ms: int, conf: BrokerConf) -> Iterator[pa.RecordBatch]:
    yield from lag_table(store, now_ms=now_ms, conf=conf).to_batches()


LAG = View(
    "lag",
    "Each group on each of its queues: how far behind it is in messages, bytes and time.",
    LAG_COLUMNS,
    with_conf=_lag_batches,
)


# ---- the view groups ---------------------------------------------------------------------------------------


GROUP_COLUMNS = (
    BROKER,
    ViewColumn("group", TEXT, "The consumer group."),
    ViewColumn(
        "configured", BOOL, "Whether the broker's configuration has the group; null if it cannot be read."
    ),
    ViewColumn("consumeEnable", BOOL, "Whether the group may consume."),
    ViewColumn("consumeBroadcastEnable", BOOL, "Whether the group may consume in BROADCASTING mode."),
    ViewColumn("consumeMessageOrderly", BOOL, "Whether pop delivers in order to the group."),
    ViewColumn("retryQueueNums", INT, "Queues of the group's retry topic."),
    ViewColumn("retryMaxTimes", INT, "Retries before a message becomes a dead letter."),
    ViewColumn("topics", NAMES, "Topics for which the group has committed offsets."),
    ViewColumn("queues", INT, "Queues for which the group has committed offsets."),
    ViewColumn(
        "lagMessages",
        LONG,
        "The sum over these queues; null if there are none, or if this store lacks one of them.",
    ),
    ViewColumn("lagMs", LONG, "Age of the oldest unconsumed message."),
    ViewColumn("deadLetters", LONG, "Messages in the group's dead letter topic."),
)


def groups(store: Store, now_ms: int) -> Iterator[pa.RecordBatch]:
    """One row for each group, sorted by name."""
    configured, topics = read_subscription_groups(store.opened), read_topics(store.opened)
    lag: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in lag_table(store, now_ms=now_ms).to_pylist():
        lag[row["group"]].append(row)
    dead: dict[str, int] = defaultdict(int)
    for queue in store.queues(lambda topic: topic.startswith(DLQ_PREFIX)):
        dead[queue.topic.removeprefix(DLQ_PREFIX)] += queue.max_offset - queue.min_offset
    known = {*lag, *dead, *(configured or ())}
    owners = RetryOwners.of(
        known, topics or (), ((row["group"], row["topic"]) for rows in lag.values() for row in rows)
    )
    # a broker creates a group's retry topic at the first heartbeat of a consumer
    names = sorted(known | {owners.owner(topic).group for topic in owners.topics if is_retry_topic(topic)})
    rows = (
        (
            store.broker_name,
            name,
            *_settings(name, configured),
            *_progress(lag.get(name, [])),
            dead.get(name, 0),
        )
        for name in names
    )
    return batches_of(GROUP_COLUMNS, rows)


def _settings(name: str, configured: Groups | None) -> tuple[object, ...]:
    group = None if configured is None else configured.get(name)
    if group is None:
        return (None if configured is None else False, *(None,) * 5)
    return (
        True, group.consume_enable, group.consume_broadcast_enable, group.consume_message_orderly,
        group.retry_queue_nums, group.retry_max_times,
    )  # fmt: skip


def _progress(rows: list[dict[str, Any]]) -> tuple[object, ...]:
    committed = [row for row in rows if row["committedOffset"] is not None]
    behind = [row["lagMessages"] for row in committed]
    ages = [row["lagMs"] for row in committed]
    return (
        sorted({row["topic"] for row in committed}),
        len(committed),
        None if not behind or None in behind else sum(behind),
        None if not ages or None in ages else max(ages),
    )


GROUPS = View("groups", "Each consumer group: its settings and its lag.", GROUP_COLUMNS, groups)
