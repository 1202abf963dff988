"""The contents of a broker's configuration files as dataclasses, and how they are filled from JSON members.

Field names are the Java beans' names in snake_case, with the beans' defaults. Members that a bean does not
have are kept in `unknown`. A dataclass is filled as fastjson fills a Java bean: by name, with defaults. A
member of another type than the field's is an error with the member's path; no value is guessed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from functools import cache
from typing import Any, ClassVar, NoReturn, TypeVar

from store_format.errors import CorruptStoreError

_INT_MAX = 2**31 - 1
_QUEUE_NUMS_MAX = 1 << 14  # no topic has more queues; a larger number comes from a broken file

_T = TypeVar("_T")
_Member = tuple[str, str, Callable[[Any, str], Any]]
_LONG_STOP = 1 << 63
_INTEGER = re.compile(r"-?[0-9]{1,19}\Z", re.ASCII)


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


# ---- JSON members ------------------------------------------------------------------------------------------


class UnlikeBeanError(ValueError):
    """A member has another type than the bean's field. See `bean_errors_of`."""

    def __init__(self, where: str, expected: str, found: object) -> None:
        super().__init__(where, expected, found)
        self.where, self.expected, self.found = where, expected, found


@contextmanager
def bean_errors_of(file: str) -> Iterator[None]:
    """Raises CorruptStoreError for `file` where the block raises UnlikeBeanError.

    The parser keeps no positions, so the error names the member's path instead of a byte.
    """
    try:
        yield
    except UnlikeBeanError as error:
        expected = f"{error.expected} as {error.where}"
        raise CorruptStoreError(file, 0, expected, repr(error.found)[:100]) from error


def members(value: Any, where: str) -> dict[str, Any]:  # Any: JSON
    """The members of an object; empty for null or a missing member, as in fastjson."""
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise UnlikeBeanError(where, "an object", value)
    return value


def items(value: Any, where: str) -> list[Any]:
    """The elements of an array; empty for null or a missing member."""
    if value is None:
        return []
    if not isinstance(value, list):
        raise UnlikeBeanError(where, "an array", value)
    return value


def integer(value: Any, where: str) -> int:
    """A 64-bit integer, also in quotes: fastjson reads both, and writes numbers above 2^53 in quotes."""
    if isinstance(value, str) and _INTEGER.match(value):
        value = int(value)
    if isinstance(value, int) and not isinstance(value, bool) and -_LONG_STOP <= value < _LONG_STOP:
        return value
    raise UnlikeBeanError(where, "a 64-bit integer", value)


def _boolean(value: Any, where: str) -> bool:
    if isinstance(value, bool):
        return value
    if value in ("true", "false"):
        return bool(value == "true")
    raise UnlikeBeanError(where, "true or false", value)


def string(value: Any, where: str) -> str:
    """A string. Raises UnlikeBeanError for anything else."""
    if isinstance(value, str):
        return value
    raise UnlikeBeanError(where, "a string", value)


def _string_map(value: Any, where: str) -> dict[str, str]:
    return {key: string(item, f"{where}.{key}") for key, item in members(value, where).items()}


def integer_map(value: Any, where: str) -> dict[int, int]:
    """A map with integer keys, in quotes or not."""
    return {
        integer(key, where): integer(item, f"{where}.{key}") for key, item in members(value, where).items()
    }


def _of_caller(value: Any, where: str) -> NoReturn:
    raise TypeError(f"{where}: the caller of `bean` gives this field")


# Converters of `bean` by the field's annotation. The caller gives the fields of other types.
_CONVERTERS = {
    "int": integer,
    "bool": _boolean,
    "str": string,
    "Mapping[str, str]": _string_map,
    "Mapping[str, Any]": members,
}


def bean(kind: type[_T], value: Any, where: str, **given: Any) -> _T:
    """A dataclass `kind` from the members with the fields' names in camelCase; null means the default.

    `given` are fields that the caller sets. Members without a field go to the field `unknown`.
    """
    rest = dict(members(value, where))
    values = dict(given)
    make: Any = kind  # the constructor's parameters are the fields
    for attribute, name, convert in _members_of(make):
        found = rest.pop(name, None)
        if found is not None and attribute not in given:
            values[attribute] = convert(found, f"{where}.{name}")
    made: _T = make(**values, unknown=rest)
    return made


@cache
def _members_of(kind: type[Any]) -> list[_Member]:
    """Of each field its name, its member, and the converter of the member."""
    found: list[_Member] = []
    for each in fields(kind):
        head, *tail = each.name.split("_")
        if each.name != "unknown":
            name = head + "".join(part.capitalize() for part in tail)
            found.append((each.name, name, _CONVERTERS.get(str(each.type), _of_caller)))
    return found
