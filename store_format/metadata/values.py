"""The contents of a broker's configuration files as dataclasses.

Field names are the Java beans' names in snake_case, with the beans' defaults. Members that a bean does not
have are kept in `unknown`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

_INT_MAX = 2**31 - 1
_QUEUE_NUMS_MAX = 1 << 14  # no topic has more queues; a larger number comes from a broken file


@dataclass(frozen=True, slots=True)
class DataVersion:
    """org.apache.rocketmq.remoting.protocol.DataVersion; `counter` increases with each change."""

    counter: int = 0
    timestamp: int = 0
    state_version: int = 0  # absent up to 4.9
    unknown: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """org.apache.rocketmq.common.TopicConfig. `attributes` are stored without + or - (TopicAttributes)."""

    topic_name: str
    read_queue_nums: int = 16
    write_queue_nums: int = 16
    perm: int = 6
    topic_filter_type: str = "SINGLE_TAG"
    topic_sys_flag: int = 0
    order: bool = False
    attributes: Mapping[str, str] = field(default_factory=dict)
    unknown: Mapping[str, Any] = field(default_factory=dict)

    PERM_READ: ClassVar[int] = 4  # PermName
    PERM_WRITE: ClassVar[int] = 2

    @property
    def readable(self) -> bool:
        return bool(self.perm & self.PERM_READ)

    @property
    def writable(self) -> bool:
        return bool(self.perm & self.PERM_WRITE)

    @property
    def read_queue_ids(self) -> range:
        """The ids of the queues that consumers read: below readQueueNums, whatever `perm` allows now."""
        return _ids_below(self.read_queue_nums)

    @property
    def queue_ids(self) -> range:
        """The ids of all queues that may have messages: below readQueueNums or writeQueueNums."""
        return max(self.read_queue_ids, _ids_below(self.write_queue_nums), key=len)

    @property
    def written_queue_ids(self) -> range:
        """The ids of the queues that producers write to and consumers read: below both numbers."""
        return min(self.read_queue_ids, _ids_below(self.write_queue_nums), key=len)

    @property
    def queue_type(self) -> str:
        return self.attributes.get("queue.type", "SimpleCQ")

    @property
    def cleanup_policy(self) -> str:
        return self.attributes.get("cleanup.policy", "DELETE")

    @property
    def message_type(self) -> str:
        return self.attributes.get("message.type", "NORMAL")


def _ids_below(number: int) -> range:
    return range(number if 0 <= number <= _QUEUE_NUMS_MAX else 0)


@dataclass(frozen=True, slots=True)
class SubscriptionGroup:
    """org.apache.rocketmq.remoting.protocol.subscription.SubscriptionGroupConfig."""

    group_name: str
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    consume_broadcast_enable: bool = True
    consume_message_orderly: bool = False
    retry_queue_nums: int = 1
    retry_max_times: int = 16
    group_retry_policy: Mapping[str, Any] = field(default_factory=dict)
    broker_id: int = 0
    which_broker_when_consume_slowly: int = 1
    notify_consumer_ids_changed_enable: bool = True
    group_sys_flag: int = 0
    consume_timeout_minute: int = 15
    attributes: Mapping[str, str] = field(default_factory=dict)
    unknown: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ConsumerOffsets:
    """ConsumerOffsetManager: `topic@group` -> queue id -> next offset. `raw` is the whole file."""

    offsets: Mapping[str, Mapping[int, int]]
    # since 5.5: next offset delivered to pullers; the broker does not load this table
    pull_offsets: Mapping[str, Mapping[int, int]]
    lmq_offsets: Mapping[str, int]  # lmqConsumerOffset.json: queue 0 of light queues
    group_topics: Mapping[str, tuple[str, ...]]  # derived; the broker does not load this table either
    data_version: DataVersion | None
    raw: Mapping[str, Any]

    def by_topic_and_group(self) -> Iterator[tuple[str, str, dict[int, int]]]:
        """(topic, group, queue id -> next offset) of each key; queue ids that no queue can have are left out.

        Offsets in lmqOffsetTable come last, since they replace the offsets of the same queue in offsetTable.
        """
        yield from _by_topic_and_group(self.offsets)
        yield from _by_topic_and_group({key: {0: offset} for key, offset in self.lmq_offsets.items()})

    def pulled_by_topic_and_group(self) -> Iterator[tuple[str, str, dict[int, int]]]:
        """The entries of `pull_offsets` in the same form."""
        return _by_topic_and_group(self.pull_offsets)


def _by_topic_and_group(tables: Mapping[str, Mapping[int, int]]) -> Iterator[tuple[str, str, dict[int, int]]]:
    for key, table in tables.items():
        names = split_offset_key(key)
        if names is not None:
            yield (
                *names,
                {queue_id: offset for queue_id, offset in table.items() if 0 <= queue_id <= _INT_MAX},
            )


@dataclass(frozen=True, slots=True)
class QueueMappingItem:
    """LogicQueueMappingItem: a range of a static topic's queue, and the physical queue with the messages."""

    gen: int = 0
    queue_id: int = 0
    bname: str = ""
    logic_offset: int = 0
    start_offset: int = 0
    end_offset: int = -1
    time_of_start: int = -1
    time_of_end: int = -1
    unknown: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class QueueMapping:
    """TopicQueueMappingDetail: a static topic; `hosted_queues` is by global queue id."""

    topic: str
    bname: str = ""
    total_queues: int = 0
    epoch: int = 0
    dirty: bool = False
    scope: str = "__global__"
    hosted_queues: Mapping[int, tuple[QueueMappingItem, ...]] = field(default_factory=dict)
    curr_id_map: Mapping[str, Any] = field(default_factory=dict)
    unknown: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ConsumerFilter:
    """ConsumerFilterData: a group's expression for a topic; dead if `dead_time` >= `born_time`."""

    topic: str
    consumer_group: str
    expression: str = ""
    expression_type: str = ""
    born_time: int = 0
    dead_time: int = 0
    client_version: int = 0
    bloom_filter_data: Mapping[str, Any] = field(default_factory=dict)
    unknown: Mapping[str, Any] = field(default_factory=dict)

    @property
    def dead(self) -> bool:
        return self.dead_time >= self.born_time


@dataclass(frozen=True, slots=True)
class OrderInfo:
    """The last batch that an ordered pop took from one queue (ConsumerOrderInfoManager.OrderInfo).

    `offsets` are absolute. The two maps have queue offsets as keys. None, which the file leaves out, differs
    from an empty map, which the file has. Times are in ms.
    """

    offsets: tuple[int, ...]
    pop_time: int = 0
    invisible_time: int | None = None
    last_consume_timestamp: int = 0
    commit_offset_bit: int = 0  # bit i: the i-th offset is acked
    attempt_id: str | None = None
    consumed_count: Mapping[int, int] | None = None  # deliveries before this batch, where there were any
    next_visible_time: Mapping[int, int] | None = None  # instead of pop_time + invisible_time


@dataclass(frozen=True, slots=True)
class RequestMode:
    """SetMessageRequestModeRequestBody: whether a group pulls or pops a topic."""

    topic: str
    consumer_group: str
    mode: str = "PULL"
    pop_share_queue_num: int = 0
    unknown: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Metric:
    """TimerMetrics.Metric and TransactionMetrics.Metric: a count and the time of its last change."""

    count: int = 0
    time_stamp: int = 0
    unknown: Mapping[str, Any] = field(default_factory=dict)


def split_offset_key(key: str) -> tuple[str, str] | None:
    """(topic, group) of a key of the offset table; None for a key that a broker would not split either."""
    topic, _, group = key.partition("@")
    return (topic, group) if topic and group and "@" not in group else None
