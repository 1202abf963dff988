"""Where the messages of a write go: the stores and queues of a topic, and the queue of each message.

Routes and the topics that a write creates follow from topics.json. A producer gets the same from the name
server (MQClientInstance.topicRouteData2TopicPublishInfo). Driver and tasks use the same plain values, so they
get the same result.

The selectors are RocketMQ's, over the publish list of a topic. It has the queues of all its stores, store by
store in the order of their names. `hash`, `messageGroup` and the column `queueId` name one queue;
`roundrobin` and `random` take any queue of an open store.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rmq_spark.produce.columns import WriteRows, topic_name
from store_format.errors import IllegalMessageError, StoreInUseError, UnsupportedFormatError
from store_format.java.text import decode_utf8, java_hash_many, utf16_key
from store_format.metadata.values import TopicConfig
from store_format.names import HALF_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC, is_retry_topic, perm_text

ROUNDROBIN, HASH, MESSAGE_GROUP, RANDOM = "roundrobin", "hash", "messageGroup", "random"
SELECTORS = (ROUNDROBIN, HASH, MESSAGE_GROUP, RANDOM)

_START_MAX = 1 << 31  # ThreadLocalIndex: a random start of 31 bits

DEFAULT_TOPIC_QUEUE_NUMS = 4  # DefaultMQProducer.defaultTopicQueueNums
# Queues of a new topic whose rows name their queues. More are a mistake: consumers would poll all of them.
NAMED_QUEUES_MAX = 1024

# TopicConfigManager.init: the topics where messages wait
_PARKING_QUEUE_NUMS = {SCHEDULE_TOPIC: 18, TIMER_TOPIC: 1, HALF_TOPIC: 1}
_GUAVA_FACTOR, _GUAVA_STOP = 2862933555777941757, float(1 << 31)  # Hashing.LinearCongruentialGenerator
_MULTI_TAG = "MULTI_TAG"
_NOT_BUILT = (
    ("queue.type", "SimpleCQ", "its consume queues hold batches"),
    ("cleanup.policy", "DELETE", "its messages are compacted"),
)
_LITE = "LITE"


# ---- routes ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StoreTopics:
    """One store of the target. `closed` is the reason why it takes no messages now; None if it does."""

    broker_name: str
    topics: Mapping[str, TopicConfig] = field(default_factory=dict)
    closed: str | None = None


@dataclass(frozen=True, slots=True)
class QueueGroup:
    """The queues 0 to `queue_nums` - 1 of a topic in one store. `store` is its place in `Routes.stores`."""

    store: int
    queue_nums: int
    multi_tags: bool = False  # a broker sets a bit of the sys flag for topics of this filter type
    # of a new topic: the number of queues that rows may name by queueId, whatever `queue_nums` is
    named_max: int | None = None

    @property
    def named_queue_nums(self) -> int:
        """Rows may name the queues below this number."""
        return self.queue_nums if self.named_max is None else self.named_max


@dataclass(frozen=True, slots=True)
class Routes:
    """The target of a write: its stores in the order of their names, and the rules for new topics."""

    stores: tuple[StoreTopics, ...]
    auto_create: bool = True
    default_topic_queue_nums: int = DEFAULT_TOPIC_QUEUE_NUMS

    @staticmethod
    def of(
        stores: Iterable[StoreTopics],
        *,
        auto_create: bool = True,
        default_topic_queue_nums: int = DEFAULT_TOPIC_QUEUE_NUMS,
    ) -> Routes:
        """The stores sorted as a client sorts brokers: by UTF-16 code units (QueueData.compareTo)."""
        ordered = sorted(stores, key=lambda store: utf16_key(store.broker_name))
        return Routes(tuple(ordered), auto_create, default_topic_queue_nums)

    def groups(self, topic: str) -> tuple[QueueGroup, ...]:
        """The queues that `topic` is written to, in publish order; closed stores included, read-only not.

        Raises IllegalMessageError for a topic that may not be written or created, UnsupportedFormatError for
        a kind of topic that is not supported, StoreInUseError if none of its stores takes messages now.
        """
        known = [
            (place, store.topics[topic]) for place, store in enumerate(self.stores) if topic in store.topics
        ]
        if not known:
            return self._new_groups(topic)
        for _, config in known:
            _refuse_kind(topic, config)
        groups = [
            QueueGroup(place, config.write_queue_nums, config.topic_filter_type == _MULTI_TAG)
            for place, config in known
            if config.writable and config.write_queue_nums > 0
        ]
        if not groups:
            raise IllegalMessageError(
                f"topic {topic}: expected write permission and at least one write queue, found "
                + ", ".join(
                    f"perm {config.perm} ({perm_text(config.perm)}) and {config.write_queue_nums} queues "
                    f"in {self.stores[place].broker_name}"
                    for place, config in known
                )
            )
        self._refuse_closed(topic, [group.store for group in groups])
        return tuple(groups)

    def created(self, queue_nums: Mapping[str, int]) -> dict[str, TopicConfig]:
        """The configurations of those of these topics that no store has yet; every open store gets them.

        `queue_nums` is the number of queues that the rows of each topic need, which may exceed the default if
        rows name their queues. TopicConfigManager.createTopicInSendMessageMethod, for a template TBW102
        without a lower limit.
        """
        missing = {
            topic: needed
            for topic, needed in queue_nums.items()
            if not any(topic in store.topics for store in self.stores)
        }
        numbers = {
            topic: _PARKING_QUEUE_NUMS.get(topic) or max(self._new_queue_nums(topic), needed)
            for topic, needed in missing.items()
        }
        return {
            topic: TopicConfig(topic, read_queue_nums=number, write_queue_nums=number)
            for topic, number in numbers.items()
        }

    def is_closed(self, store: int) -> bool:
        return self.stores[store].closed is not None

    def _new_groups(self, topic: str) -> tuple[QueueGroup, ...]:
        """The queues of a new topic, which is created in every open store."""
        queue_nums = self._new_queue_nums(topic)
        self._refuse_closed(topic, range(len(self.stores)))
        named_max = max(queue_nums, NAMED_QUEUES_MAX) if self.auto_create else None
        return tuple(
            QueueGroup(place, queue_nums, named_max=named_max)
            for place in range(len(self.stores))
            if not self.is_closed(place)
        )

    def _new_queue_nums(self, topic: str) -> int:
        topic_name(topic.encode())
        if self.auto_create:
            return self.default_topic_queue_nums
        if is_retry_topic(topic):
            return 1  # AbstractSendMessageProcessor.msgCheck creates retry topics in any case
        raise IllegalMessageError(
            f"topic {topic}: no store has this topic and autoCreateTopicEnable is false; "
            "create the topic, or set autoCreateTopicEnable=true"
        )

    def _refuse_closed(self, topic: str, places: Iterable[int]) -> None:
        closed = [self.stores[place] for place in places if self.is_closed(place)]
        if len(closed) == len(list(places)):
            reasons = "; ".join(f"{store.broker_name}: {store.closed}" for store in closed)
            raise StoreInUseError(
                f"topic {topic}: expected a store that takes messages now, found none "
                f"({reasons or 'no store has the topic'})"
            )


def _refuse_kind(topic: str, config: TopicConfig) -> None:
    for attribute, expected, why in _NOT_BUILT:
        found = config.attributes.get(attribute, expected)
        if found != expected:
            raise UnsupportedFormatError(
                f"topic {topic}: expected {attribute}={expected}, found {found}, which is not supported: "
                f"{why}"
            )
    if config.message_type == _LITE:
        raise UnsupportedFormatError(f"topic {topic}: message.type={_LITE} (light queues) is not supported")


# ---- selectors ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SelectedQueues:
    """Each row's store (place in `Routes.stores`) and queue; `multi_tags`: the filter is MULTI_TAG."""

    store: NDArray[np.int64]
    queue_id: NDArray[np.int64]
    multi_tags: NDArray[np.bool_]


class _Lists:
    """The publish lists of several topics as one list of groups, with all queues numbered in one sequence."""

    def __init__(self, groups: list[list[QueueGroup]]) -> None:
        flat = [group for of_topic in groups for group in of_topic]
        self.queue_nums = np.array([group.queue_nums for group in flat], np.int64)
        self.named_queue_nums = np.array([group.named_queue_nums for group in flat], np.int64)
        self.store = np.array([group.store for group in flat], np.int64)
        self.multi_tags = np.array([group.multi_tags for group in flat], np.bool_)
        self.topic_nums = np.array(
            [sum(group.queue_nums for group in of_topic) for of_topic in groups], np.int64
        )
        self._topic_start = np.cumsum(self.topic_nums) - self.topic_nums
        self._group_start = np.cumsum(self.queue_nums) - self.queue_nums

    def selected(self, group: NDArray[np.int64], queue_id: NDArray[np.int64]) -> SelectedQueues:
        return SelectedQueues(self.store[group], queue_id, self.multi_tags[group])

    def locate(self, topic: NDArray[np.int64], index: NDArray[np.int64]) -> SelectedQueues:
        """The store and queue at each place `index` in the publish list of its topic."""
        number = self._topic_start[topic] + index
        if len(self.store) == 1:
            return self.selected(np.zeros(len(number), np.int64), number)
        group = np.searchsorted(self._group_start, number, side="right") - 1
        return self.selected(group, number - self._group_start[group])


class QueueSelector:
    """The selector of one task; its counters continue from batch to batch.

    A non-null `queueId` decides, whatever the strategy. `hash` and `messageGroup` send rows of one sharding
    key to one queue, in the order of the rows, and rows without a key by `roundrobin`.
    """

    def __init__(self, routes: Routes, strategy: str = ROUNDROBIN, *, seed: int | None = None) -> None:
        """`seed` sets `random` and the first queue of `roundrobin`; with None, tasks begin differently."""
        self._routes = routes
        self._choose = _STRATEGIES[strategy]
        self._random = np.random.default_rng(seed)
        self._turn: dict[str, int] = {}
        self._topics: tuple[str, ...] | None = None

    def select(self, rows: WriteRows, sharding_key: pa.LargeBinaryArray | None = None) -> SelectedQueues:
        """A queue for each row.

        Raises IllegalMessageError for a queue or a topic that may not be written, StoreInUseError for a queue
        in a store that takes no messages now.
        """
        if rows.topics != self._topics:
            groups = [list(self._routes.groups(topic)) for topic in rows.topics]
            self._all = _Lists(groups)
            self._open = _Lists(
                [
                    [group for group in of_topic if not self._routes.is_closed(group.store)]
                    for of_topic in groups
                ]
            )
            self._group_of = self._group_table(groups)
            self._topics = rows.topics
        queue_id = rows.integers("queueId", -1, low=0)
        if queue_id is None:
            return self._choose(self, rows, sharding_key, np.ones(rows.count, np.bool_))
        fixed = queue_id >= 0
        named = self._named(rows, queue_id, fixed)
        return (
            _merged(fixed, named, self._choose(self, rows, sharding_key, ~fixed))
            if not fixed.all()
            else named
        )

    def _group_table(self, groups: list[list[QueueGroup]]) -> NDArray[np.int64]:
        """The group of each topic (row) in each store (column), -1 if the store does not have the topic."""
        table = np.full((len(groups), len(self._routes.stores)), -1)
        places = ((topic, group.store) for topic, of_topic in enumerate(groups) for group in of_topic)
        for number, place in enumerate(places):
            table[place] = number
        return table

    # ---- strategies ----------------------------------------------------------------------------------------

    def _in_turn(
        self, rows: WriteRows, sharding_key: pa.LargeBinaryArray | None, wanted: NDArray[np.bool_]
    ) -> SelectedQueues:
        """TopicPublishInfo.selectOneMessageQueue: queues in turn, with one counter for each topic."""
        index = np.zeros(rows.count, np.int64)
        places = slice(None) if wanted.all() else np.flatnonzero(wanted)
        codes = rows.codes[places]
        counts = np.bincount(codes, minlength=len(rows.topics))
        starts = np.zeros(len(rows.topics), np.int64)
        for code in np.flatnonzero(counts).tolist():
            topic = rows.topics[code]
            if topic not in self._turn:
                self._turn[topic] = int(self._random.integers(_START_MAX))
            starts[code] = self._turn[topic]
            self._turn[topic] += int(counts[code])
        index[places] = (starts[codes] + _ranks(codes, counts)) % self._open.topic_nums[codes]
        return self._open.locate(rows.codes, index)

    def _by_hash(
        self, rows: WriteRows, sharding_key: pa.LargeBinaryArray | None, wanted: NDArray[np.bool_]
    ) -> SelectedQueues:
        """SelectMessageQueueByHash: abs(hashCode % n), with Java's remainder."""
        return self._by_key(rows, sharding_key, wanted, lambda hashes, n: np.abs(np.fmod(hashes, n)))

    def _by_group(
        self, rows: WriteRows, sharding_key: pa.LargeBinaryArray | None, wanted: NDArray[np.bool_]
    ) -> SelectedQueues:
        """The proxy's SendMessageActivity.SendMessageQueueSelector, for a message group."""
        return self._by_key(rows, sharding_key, wanted, consistent_hash)

    def _by_key(
        self,
        rows: WriteRows,
        sharding_key: pa.LargeBinaryArray | None,
        wanted: NDArray[np.bool_],
        bucket: Callable[[NDArray[np.int64], NDArray[np.int64]], NDArray[np.int64]],
    ) -> SelectedQueues:
        """The queue at place `bucket(hashCode, n)` of the n queues of the topic.

        n includes the queues of closed stores; otherwise keys would move to other queues.
        """
        if sharding_key is None:
            return self._in_turn(rows, sharding_key, wanted)
        hashes = java_hash_many(sharding_key).astype(np.int64)
        selected = self._all.locate(rows.codes, bucket(hashes, self._all.topic_nums[rows.codes]))
        keyed = sharding_key.is_valid().to_numpy(zero_copy_only=False)
        self._refuse_closed(
            rows,
            selected.store,
            keyed & wanted,
            lambda row: f"sharding key {decode_utf8(sharding_key[row].as_py())!r}",
        )
        return (
            selected if keyed.all() else _merged(keyed, selected, self._in_turn(rows, None, wanted & ~keyed))
        )

    def _at_random(
        self, rows: WriteRows, sharding_key: pa.LargeBinaryArray | None, wanted: NDArray[np.bool_]
    ) -> SelectedQueues:
        """SelectMessageQueueByRandom."""
        return self._open.locate(rows.codes, self._random.integers(self._open.topic_nums[rows.codes]))

    # ---- the column queueId --------------------------------------------------------------------------------

    def _named(
        self, rows: WriteRows, queue_id: NDArray[np.int64], fixed: NDArray[np.bool_]
    ) -> SelectedQueues:
        """The queues of the rows in `fixed`, by `queueId`; the queues of other rows are not valid."""
        store = self._named_stores(rows)
        group = np.where(store < 0, -1, self._group_of[rows.codes, store])
        unknown = fixed & (group < 0)
        if unknown.any():  # a closed store has no group for a new topic
            self._refuse_closed(rows, store, unknown, lambda row: f"queueId {queue_id[row]}")
            self._refuse_broker(rows, int(unknown.argmax()))
        beyond = fixed & (queue_id >= self._all.named_queue_nums[group])
        if beyond.any():
            row = int(beyond.argmax())
            self._refuse_queue(rows, row, int(queue_id[row]), int(group[row]))
        self._refuse_closed(rows, store, fixed, lambda row: f"queueId {queue_id[row]}")
        return self._all.selected(group, queue_id)

    def _named_stores(self, rows: WriteRows) -> NDArray[np.int64]:
        """The only store, or the store that `brokerName` names; -1 if it names none."""
        if len(self._routes.stores) == 1:
            return np.zeros(rows.count, np.int64)
        names = rows.text("brokerName")
        if names is None:
            return np.full(rows.count, -1)
        known = [store.broker_name.encode() for store in self._routes.stores]
        coded = names.dictionary_encode()
        stores = np.array(
            [known.index(name) if name in known else -1 for name in coded.dictionary.to_pylist()] + [-1]
        )
        places: NDArray[np.int64] = stores[pc.fill_null(coded.indices, -1).to_numpy()]
        return places

    def _refuse_broker(self, rows: WriteRows, row: int) -> NoReturn:
        groups = self._group_of[rows.codes[row]]
        stores = [store.broker_name for place, store in enumerate(self._routes.stores) if groups[place] >= 0]
        names = rows.text("brokerName")
        found = None if names is None else names[row].as_py()
        shown = "null" if found is None else decode_utf8(found)
        rows.refuse(
            row,
            f"brokerName: with queueId expected a store of the topic, {', '.join(stores)}, found {shown}; "
            "map brokerName to these, or leave out queueId",
        )

    def _refuse_queue(self, rows: WriteRows, row: int, queue_id: int, group: int) -> NoReturn:
        store = self._routes.stores[self._all.store[group]]
        is_new = rows.topic_of(row) not in store.topics
        rows.refuse(
            row,
            f"queueId: expected 0 to {self._all.named_queue_nums[group] - 1} in {store.broker_name} "
            f"({'defaultTopicQueueNums, for a new topic' if is_new else 'writeQueueNums'}), "
            f"found {queue_id}; without the column queueId, messageQueueSelector chooses",
        )

    def _refuse_closed(
        self, rows: WriteRows, store: NDArray[np.int64], wanted: NDArray[np.bool_], what: Callable[[int], str]
    ) -> None:
        """Raises if the queue of a row is in a closed store: the message may not go to another queue."""
        for place, target in enumerate(self._routes.stores):
            if target.closed is not None and (hit := wanted & (store == place)).any():
                row = int(hit.argmax())
                raise StoreInUseError(
                    f"{rows.name_of(row)}: {what(row)} selects a queue of {target.broker_name}, "
                    f"which takes no messages now: {target.closed}"
                )


_STRATEGIES: dict[str, Callable[[QueueSelector, WriteRows, Any, NDArray[np.bool_]], SelectedQueues]] = {
    ROUNDROBIN: QueueSelector._in_turn,
    HASH: QueueSelector._by_hash,
    MESSAGE_GROUP: QueueSelector._by_group,
    RANDOM: QueueSelector._at_random,
}


def consistent_hash(hashes: NDArray[np.int64], buckets: NDArray[np.int64]) -> NDArray[np.int64]:
    """A bucket for each hash: Guava's Hashing.consistentHash(long, int), with its random numbers.

    >>> consistent_hash(np.array([3556498, 3556498]), np.array([4, 5])).tolist()
    [3, 3]
    """
    state, chosen = hashes.astype(np.uint64), np.zeros(len(hashes), np.int64)
    left = np.arange(len(hashes))
    while len(left):
        state[left] = state[left] * np.uint64(_GUAVA_FACTOR) + np.uint64(1)
        # (int) (state >>> 33) + 1: the largest number becomes the smallest one
        drawn = ((state[left] >> np.uint64(33)).astype(np.int64) + 1).astype(np.int32).astype(np.float64)
        following = (chosen[left] + 1) / (drawn / _GUAVA_STOP)
        goes_on = (following > -1) & (following < buckets[left])
        left = left[goes_on]
        chosen[left] = following[goes_on].astype(np.int64)
    return chosen


def _merged(first: NDArray[np.bool_], one: SelectedQueues, other: SelectedQueues) -> SelectedQueues:
    """`one` where `first` is true, else `other`."""
    return SelectedQueues(
        np.where(first, one.store, other.store),
        np.where(first, one.queue_id, other.queue_id),
        np.where(first, one.multi_tags, other.multi_tags),
    )


def _ranks(codes: NDArray[np.int64], counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """The number of earlier rows with the same code, for each row."""
    if len(counts) == 1:
        return np.arange(len(codes))
    order = np.argsort(codes, kind="stable")
    ranks = np.empty(len(codes), np.int64)
    ranks[order] = np.arange(len(codes)) - np.repeat(np.cumsum(counts) - counts, counts)
    return ranks
