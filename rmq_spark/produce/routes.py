"""Which stores and queues a topic is written to, and which topics come into being: decided from the stores'
topics.json alone.

A producer learns the same from the name server (MQClientInstance.topicRouteData2TopicPublishInfo); driver and
tasks ask the same plain values and get the same answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from rmq_spark.produce.reserved import topic_name
from store_format.errors import IllegalMessageError, StoreInUseError, UnsupportedFormatError
from store_format.java.text import utf16_key
from store_format.metadata.values import TopicConfig
from store_format.names import SCHEDULE_TOPIC, TIMER_TOPIC, is_retry_topic

DEFAULT_TOPIC_QUEUE_NUMS = 4  # DefaultMQProducer.defaultTopicQueueNums
# of a new topic whose rows name their queues: more are a mistake, and consumers would ask each of them
NAMED_QUEUES_MAX = 1024

# TopicConfigManager.init: where messages wait that are for later
_PARKING_QUEUE_NUMS = {SCHEDULE_TOPIC: 18, TIMER_TOPIC: 1}
_MULTI_TAG = "MULTI_TAG"
_NOT_BUILT = (
    ("queue.type", "SimpleCQ", "its consume queues hold batches"),
    ("cleanup.policy", "DELETE", "its messages are compacted"),
)
_LITE = "LITE"


@dataclass(frozen=True, slots=True)
class StoreTopics:
    """One store of the target. `closed` says why it takes no messages now; None when it does."""

    broker_name: str
    topics: Mapping[str, TopicConfig] = field(default_factory=dict)
    closed: str | None = None


@dataclass(frozen=True, slots=True)
class QueueGroup:
    """The queues 0 to `queue_nums` - 1 of a topic in one store, which is given by its place in
    `Routes.stores`.
    """

    store: int
    queue_nums: int
    multi_tags: bool = False  # a broker sets a bit of the sys flag for topics of this filter type
    # of a new topic: so many queues may rows name by queueId, whatever `queue_nums` says
    named_max: int | None = None

    @property
    def named_queue_nums(self) -> int:
        """The queues that rows may name are those below this number."""
        return self.queue_nums if self.named_max is None else self.named_max


@dataclass(frozen=True, slots=True)
class Routes:
    """The target of a write: its stores, in the order of their names, and what happens to topics that none of
    them knows.
    """

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
        """Sorted as a client sorts brokers: by UTF-16 units (QueueData.compareTo)."""
        ordered = sorted(stores, key=lambda store: utf16_key(store.broker_name))
        return Routes(tuple(ordered), auto_create, default_topic_queue_nums)

    def groups(self, topic: str) -> tuple[QueueGroup, ...]:
        """Where `topic` is written to, in publish order: stores that are closed now are in it, read-only ones
        are not.

        Raises IllegalMessageError for a topic that may not be written or made, UnsupportedFormatError for a
        kind of topic that is not written, StoreInUseError when no store that has it takes messages.
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
                f"topic {topic}: expected the permission to write and a queue, found "
                + ", ".join(
                    f"perm {config.perm} ({_perm_text(config.perm)}) with {config.write_queue_nums} in {self.stores[place].broker_name}"
                    for place, config in known
                )
            )
        self._refuse_closed(topic, [group.store for group in groups])
        return tuple(groups)

    def created(self, queue_nums: Mapping[str, int]) -> dict[str, TopicConfig]:
        """Of these topics, those that no store knows yet, with the configuration each open store gets for
        them.

        `queue_nums` says how many queues the rows of each need, which is more than the default where they
        name their queues. (TopicConfigManager.createTopicInSendMessageMethod, for a template TBW102 that sets
        no lower limit.)
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
        """A new topic is made in every store that takes messages."""
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
            return 1  # AbstractSendMessageProcessor.msgCheck makes these in any case
        raise IllegalMessageError(
            f"topic {topic}: no store has it and autoCreateTopicEnable is false; create it, or set autoCreateTopicEnable=true"
        )

    def _refuse_closed(self, topic: str, places: Iterable[int]) -> None:
        closed = [self.stores[place] for place in places if self.is_closed(place)]
        if len(closed) == len(list(places)):
            reasons = "; ".join(f"{store.broker_name}: {store.closed}" for store in closed)
            raise StoreInUseError(
                f"topic {topic}: none of its stores takes messages now ({reasons or 'there is no store'})"
            )


def _refuse_kind(topic: str, config: TopicConfig) -> None:
    for attribute, expected, why in _NOT_BUILT:
        found = config.attributes.get(attribute, expected)
        if found != expected:
            raise UnsupportedFormatError(f"topic {topic}: {attribute}={found} is not written, because {why}")
    if config.message_type == _LITE:
        raise UnsupportedFormatError(
            f"topic {topic}: message.type={_LITE} is not written, because its queues are light ones"
        )


def _perm_text(perm: int) -> str:
    """PermName.perm2String: read, write, inherit."""
    return "".join(letter if perm & bit else "-" for letter, bit in (("R", 4), ("W", 2), ("X", 1)))
