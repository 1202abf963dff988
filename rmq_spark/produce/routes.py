"""Which stores and queues a topic is written to, and which topics a write creates, by topics.json.

A producer gets the same from the name server (MQClientInstance.topicRouteData2TopicPublishInfo). Driver and
tasks use the same plain values, so they get the same result.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from rmq_spark.produce.reserved import topic_name
from store_format.errors import IllegalMessageError, StoreInUseError, UnsupportedFormatError
from store_format.java.text import utf16_key
from store_format.metadata.values import TopicConfig
from store_format.names import HALF_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC, is_retry_topic, perm_text

DEFAULT_TOPIC_QUEUE_NUMS = 4  # DefaultMQProducer.defaultTopicQueueNums
# Queues of a new topic whose rows name their queues. More are a mistake: consumers would poll all of them.
NAMED_QUEUES_MAX = 1024

# TopicConfigManager.init: the topics where messages wait
_PARKING_QUEUE_NUMS = {SCHEDULE_TOPIC: 18, TIMER_TOPIC: 1, HALF_TOPIC: 1}
_MULTI_TAG = "MULTI_TAG"
_NOT_BUILT = (
    ("queue.type", "SimpleCQ", "its consume queues hold batches"),
    ("cleanup.policy", "DELETE", "its messages are compacted"),
)
_LITE = "LITE"


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
