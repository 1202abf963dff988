"""The contents of a broker's configuration files as dataclasses, how they are filled from JSON members, and
the bytes of the files.

Field names are the Java beans' names in snake_case, with the beans' defaults. Members that a bean does not
have are kept in `unknown`. A dataclass is filled as fastjson2 of 5.5.0 fills a Java bean: by name, with its
conversions and defaults. What it refuses is an error with the member's path.

The files are encoded byte for byte as RocketMQ's two JSON libraries do (spec 6.2, 6.3). fastjson2 writes the
files of 5.4 and later; fastjson 1.2 wrote the files before. Every broker reads both. No function here touches
a file.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from enum import StrEnum
from functools import cache
from typing import Any, ClassVar, NoReturn, TypeAlias, TypeVar

from store_format.errors import CorruptStoreError
from store_format.java.fastjson import loads

_INT_MAX = 2**31 - 1
_QUEUE_NUMS_MAX = 1 << 14  # no topic has more queues; a larger number comes from a broken file

_T = TypeVar("_T")
_Member = tuple[str, str, Callable[[Any, str], Any]]
_LONG_STOP = 1 << 63
_NUMBER = re.compile(r"[-+]?[0-9]{1,19}(\.[0-9]*)?([eE][-+]?[0-9]{1,3})?\Z", re.ASCII)
_BOOLEANS = {"true": True, "1": True, "y": True, "false": False, "0": False, "n": False, "": False}

Int: TypeAlias = int  # 32 bits; `int` fields have 64
FilterType: TypeAlias = str | None
RequestModeName: TypeAlias = str | None


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
    read_queue_nums: Int = 16
    write_queue_nums: Int = 16
    perm: Int = 6
    topic_filter_type: FilterType = "SINGLE_TAG"
    topic_sys_flag: Int = 0
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
    retry_queue_nums: Int = 1
    retry_max_times: Int = 16
    group_retry_policy: Mapping[str, Any] = field(default_factory=dict)
    broker_id: int = 0
    which_broker_when_consume_slowly: int = 1
    notify_consumer_ids_changed_enable: bool = True
    group_sys_flag: Int = 0
    consume_timeout_minute: Int = 15
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

    gen: Int = 0
    queue_id: Int = 0
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
    total_queues: Int = 0
    epoch: int = 0
    dirty: bool = False
    scope: str = "__global__"
    hosted_queues: Mapping[int, tuple[QueueMappingItem, ...]] = field(default_factory=dict)
    curr_id_map: Mapping[str, Any] = field(default_factory=dict)
    unknown: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ConsumerFilter:
    """ConsumerFilterData: a group's expression for a topic."""

    topic: str
    consumer_group: str
    expression: str = ""
    expression_type: str = ""
    born_time: int = 0
    dead_time: int = 0
    client_version: int = 0
    bloom_filter_data: Mapping[str, Any] = field(default_factory=dict)
    unknown: Mapping[str, Any] = field(default_factory=dict)


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
    mode: RequestModeName = "PULL"
    pop_share_queue_num: Int = 0
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
    """The members of an object; empty for null, `""` or a missing member, as in fastjson."""
    if value is None or value == "":
        return {}
    if not isinstance(value, dict):
        raise UnlikeBeanError(where, "an object", value)
    return value


def entries(value: Any, where: str) -> dict[str, Any]:
    """The members of a map that takes no null (ConcurrentHashMap)."""
    found = members(value, where)
    for key, each in found.items():
        if each is None or each == "":
            raise UnlikeBeanError(f"{where}.{key}", "a value", each)
    return found


def items(value: Any, where: str) -> list[Any]:
    """The elements of an array; empty for null or a missing member."""
    if value is None:
        return []
    if not isinstance(value, list):
        raise UnlikeBeanError(where, "an array", value)
    return value


def integer(value: Any, where: str, stop: int = _LONG_STOP) -> int:
    """A 64-bit integer as fastjson2 reads it: `8`, `8.5`, `"8"`, `"1,000"`, and 1 for true."""
    if type(value) is int and -stop <= value < stop:
        return value  # of 10,000 topics, nearly all
    found = value
    if isinstance(value, str) and (match := _NUMBER.match(value.replace(",", ""))):
        found = float(match[0]) if match[1] or match[2] else int(match[0])
    if isinstance(found, int | float) and -stop <= found < stop:
        return int(found)
    raise UnlikeBeanError(where, f"a {stop.bit_length()}-bit integer", value)


def long_of_bean(value: Any, where: str) -> int:
    """A primitive number: 0 for null."""
    return 0 if value in (None, "", "null") else integer(value, where)


def _int_of_bean(value: Any, where: str) -> int:
    return 0 if value in (None, "", "null") else integer(value, where, _INT_MAX + 1)


def _boolean(value: Any, where: str) -> bool:
    if isinstance(value, int):  # true and false, too
        return value == 1
    found = _BOOLEANS.get(str(value or "").lower())
    if found is None or isinstance(value, dict | list):
        raise UnlikeBeanError(where, "true or false", value)
    return found


def string(value: Any, where: str) -> str:
    """A string; of another value its JSON, as fastjson2."""
    if value is None:
        raise UnlikeBeanError(where, "a string", value)
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def _string_map(value: Any, where: str) -> dict[str, str]:
    found = members(value, where)
    return {key: string(item, f"{where}.{key}") for key, item in found.items() if item is not None}


def _one_of(*names: str) -> Callable[[Any, str], str | None]:
    """The constant of a Java enum by name or number; None for a name that it does not have."""
    constants = {name: name for name in names} | {str(number): name for number, name in enumerate(names)}

    def convert(value: Any, where: str) -> str | None:
        found = constants.get(str(value).upper())
        if value is None or isinstance(value, str) or (found is not None and not isinstance(value, bool)):
            return found
        raise UnlikeBeanError(where, f"one of {', '.join(names)}", value)

    return convert


def integer_map(value: Any, where: str, key_stop: int = _INT_MAX + 1) -> dict[int, int]:
    """A map with 32-bit integers as keys, in quotes or not."""
    return {
        _short_integer(key, where, key_stop): item
        if type(item) is int and 0 <= item < _LONG_STOP  # nearly all; no text of a place is made
        else integer(item, f"{where}.{key}")
        for key, item in entries(value, where).items()
    }


def _short_integer(key: Any, where: str, stop: int) -> int:
    """`integer`, at once for a few digits: less than any `stop`."""
    is_short = type(key) is str and len(key) < 10 and key.isascii() and key.isdecimal()
    return int(key) if is_short else integer(key, where, stop)


def _of_caller(value: Any, where: str) -> NoReturn:
    raise TypeError(f"{where}: the caller of `bean` gives this field")


# Converters of `bean` by the field's annotation. The caller gives the fields of other types.
_CONVERTERS = {
    "int": long_of_bean,
    "Int": _int_of_bean,
    "bool": _boolean,
    "str": string,
    "FilterType": _one_of("SINGLE_TAG", "MULTI_TAG"),
    "RequestModeName": _one_of("PULL", "POP"),
    "Mapping[str, str]": _string_map,
    "Mapping[str, Any]": members,
}


def bean(kind: type[_T], value: Any, where: str, **given: Any) -> _T:
    """A dataclass `kind` from the members with the fields' names in camelCase.

    `given` are fields that the caller sets. Members without a field go to the field `unknown`.
    """
    rest = dict(members(value, where))
    values = dict(given)
    make: Any = kind  # the constructor's parameters are the fields
    for attribute, name, convert in _members_of(make):
        is_there, found = name in rest, rest.pop(name, None)
        if is_there and attribute not in given and (found is not None or convert is not string):
            values[attribute] = convert(found, f"{where}.{name}")
    made: _T = make(**values, unknown=rest)
    return made


@cache
def _members_of(kind: type[Any]) -> list[_Member]:
    """Of each field its name, its member, and the converter of the member."""
    return [
        (each.name, java_name(each.name), _CONVERTERS.get(str(each.type), _of_caller))
        for each in fields(kind)
        if each.name != "unknown"
    ]


def java_name(name: str) -> str:
    """The name of a Java field, of a field in snake_case."""
    first, *others = name.split("_")
    return first + "".join(word.capitalize() for word in others)


# ---- the bytes of the files --------------------------------------------------------------------------------


class Dialect(StrEnum):
    """The JSON library. The two differ in maps with integer keys, in arrays and in escapes."""

    FASTJSON = "fastjson 1.2"
    FASTJSON2 = "fastjson2"


# Paths of the maps with integer keys, by file; * is any member. Only Java's types show the difference.
_INTEGER_KEYS = {
    "consumerOffset.json": ("offsetTable.*", "pullOffsetTable.*"),
    "lmqConsumerOffset.json": ("offsetTable.*", "pullOffsetTable.*"),
    "delayOffset.json": ("offsetTable",),
    "topicQueueMapping.json": (
        "topicQueueMappingInfoMap.*.currIdMap",
        "topicQueueMappingInfoMap.*.hostedQueues",
    ),
    "consumerOrderInfo.json": ("table.*", "table.*.*.oc", "table.*.*.ot"),
}
_LONG = 1 << 63
_INTEGER_KEY = re.compile(r"-?[0-9]+\Z", re.ASCII)
_LONG_LISTS = frozenset({"o"})  # List<Long> of OrderInfo; other lists of numbers are Java arrays

_SHORT_ESCAPES = {8: "\\b", 9: "\\t", 10: "\\n", 12: "\\f", 13: "\\r", 34: '\\"', 92: "\\\\"}
_ESCAPES = {
    Dialect.FASTJSON2: {code: f"\\u{code:04x}" for code in range(32)} | _SHORT_ESCAPES,
    Dialect.FASTJSON: {code: f"\\u{code:04X}" for code in (*range(32), *range(0x7F, 0xA0), 0x2028, 0x2029)}
    | _SHORT_ESCAPES,
}


_OLD_MAP = re.compile(rb'":\{-?[0-9]+:')  # fastjson 1.2 writes no line break before integer keys


def dialect_of(data: bytes) -> Dialect:
    """The library that wrote a file whose maps have integer keys; fastjson2 for a file without entries."""
    return Dialect.FASTJSON if _OLD_MAP.search(data) else Dialect.FASTJSON2


def dumps(value: Any, dialect: Dialect = Dialect.FASTJSON2, *, pretty: bool = True) -> bytes:  # Any: JSON
    """`value` as JSON in its own order: int keys without quotes, members that are None left out.

    `pretty` is the form of all files except timermetrics and transactionMetrics.

    >>> dumps({"offsetTable": {3: 2}}, Dialect.FASTJSON)
    b'{\\n\\t"offsetTable":{3:2\\n\\t}\\n}'
    """
    writer = _Writer(dialect, pretty)
    writer.write(value, "\n" if pretty else "", "")
    return "".join(writer.parts).encode("utf-8", "replace")  # as Java: ? for a lone surrogate


class _Writer:
    """Collects the parts of the text.

    `line` begins a line at the level of the current container: a line break and tabs, or nothing.
    """

    def __init__(self, dialect: Dialect, pretty: bool) -> None:
        self.parts: list[str] = []
        self._old = dialect is Dialect.FASTJSON
        self._tab = "\t" if pretty else ""
        self._escapes = _ESCAPES[dialect]

    def write(self, value: Any, line: str, name: str) -> None:
        """`name` is the member's name. fastjson 1.2 writes by Java type, and one name decides the type."""
        if isinstance(value, Mapping):
            self._object({key: member for key, member in value.items() if member is not None}, line)
        elif isinstance(value, list | tuple):
            self._array(value, line, name)
        elif isinstance(value, str):
            self.parts.append(self._quoted(value))
        else:
            self.parts.append(json.dumps(value))

    def _object(self, value: dict[Any, Any], line: str) -> None:
        inner = line + self._tab
        separator = "{"
        for key, member in value.items():
            # fastjson 1.2's MapSerializer breaks lines before string keys only.
            before = "" if self._old and isinstance(key, int) else inner
            self.parts.append(f"{separator}{before}{key if isinstance(key, int) else self._quoted(key)}:")
            self.write(member, inner, str(key))
            separator = ","
        self.parts.append(line + "}" if value else "{}")

    def _array(self, value: list[Any] | tuple[Any, ...], line: str, name: str) -> None:
        if self._old:  # Set<String> and arrays of numbers are on one line, lists are not
            inline = all(isinstance(item, str) for item in value) or (
                self._numbers(value) and name not in _LONG_LISTS
            )
        else:
            inline = self._numbers(value)
        inner = "" if inline else line + self._tab
        separator = "["
        for item in value:
            self.parts.append(separator + inner)
            self.write(item, inner, "")
            separator = ","
        self.parts.append("[]" if not value else "]" if inline else line + "]")

    def _numbers(self, value: list[Any] | tuple[Any, ...]) -> bool:
        return all(isinstance(item, int | float) and not isinstance(item, bool) for item in value)

    def _quoted(self, text: str) -> str:
        return f'"{text.translate(self._escapes)}"'


def members_with_bare_keys(name: str) -> frozenset[str]:
    """The members of the file `name` below which a broker takes keys without quotes."""
    maps = ("topicConfigTable", "timingCount", "transactionCount", *_INTEGER_KEYS.get(name, ()))
    return frozenset(path.partition(".")[0] for path in maps)


def with_integer_keys(value: Any, name: str) -> Any:
    """The JSON value of the file `name` (such as "consumerOffset.json") with int keys as in Java."""
    for path in _INTEGER_KEYS.get(name, ()):
        value = _convert(value, path.split("."))
    return value


def _convert(value: Any, path: list[str]) -> Any:
    if not isinstance(value, Mapping):
        return value
    if not path:
        return {
            int(key) if isinstance(key, str) and _INTEGER_KEY.match(key) else key: member
            for key, member in value.items()
        }
    return {
        key: _convert(member, path[1:]) if path[0] in ("*", key) else member for key, member in value.items()
    }


# ---- topics.json -------------------------------------------------------------------------------------------


def put_topics(
    data: bytes | None,
    topics: Iterable[TopicConfig],
    timestamp: int,
    file: str = "config/topics.json",
    counter_min: int = 0,
    *,
    is_change: bool = False,
) -> bytes | None:
    """topics.json with these topics (TopicConfigManager.updateTopicConfig); None if it has all of them.

    `data` is the present file, None or empty without one; `timestamp` is the clock in ms. A topic that the
    file has changes only with `is_change`. The data version is incremented, to `counter_min` at least.
    Unknown members and the order are kept; a 4.9 file, which has neither attributes nor a state version, gets
    none. Raises CorruptStoreError for a file that is no topics.json.
    """
    with bean_errors_of(file):
        raw = members(loads(data, file) if data else None, "the file")
        table = dict(members(raw.get("topicConfigTable"), "topicConfigTable"))
        version = dict(members(raw.get("dataVersion"), "dataVersion"))
        old = bool(version) and "stateVersion" not in version
        put = {
            topic.topic_name: _topic_members(topic, old=old)
            for topic in topics
            if is_change or topic.topic_name not in table
        }
        if table | put == table:
            return None
        # The keys of a bean are sorted; existing keys keep their places.
        version = next_version({"counter": 0, "stateVersion": 0} | version if not old else version, timestamp)
        version["counter"] = max(version["counter"], counter_min or version["counter"])
    return dumps({"dataVersion": version} | raw | {"dataVersion": version, "topicConfigTable": table | put})


def raise_queue_nums(data: bytes, numbers: Mapping[str, int], timestamp: int, file: str) -> bytes:
    """topics.json in which these topics of it have at least so many queues to read and to write.

    As in `add_topics`, the data version is incremented and everything else is kept. Raises CorruptStoreError
    for a file that is no topics.json.
    """
    with bean_errors_of(file):
        raw = members(loads(data, file), "the file")
        table = dict(members(raw.get("topicConfigTable"), "topicConfigTable"))
        for name, number in numbers.items():
            topic = members(table[name], name)
            nums = ((key, topic.get(key, 16)) for key in ("readQueueNums", "writeQueueNums"))  # TopicConfig
            table[name] = {**topic, **{key: max(number, integer(given, key)) for key, given in nums}}
        version = next_version(members(raw.get("dataVersion"), "dataVersion"), timestamp)
    return dumps({**raw, "dataVersion": version, "topicConfigTable": table})


def next_version(version: Mapping[str, Any], timestamp: int) -> dict[str, Any]:
    """The data version after a change at `timestamp`, the clock in ms (DataVersion.nextVersion)."""
    counter = integer(version.get("counter", 0), "dataVersion.counter")
    return {**version, "counter": (counter + 1 + _LONG) % (2 * _LONG) - _LONG, "timestamp": timestamp}


def _topic_members(topic: TopicConfig, *, old: bool) -> dict[str, Any]:
    """The members of a TopicConfig, sorted by name as in both fastjson versions."""
    known = {
        "attributes": dict(topic.attributes) if topic.attributes or not old else None,
        "order": topic.order,
        "perm": topic.perm,
        "readQueueNums": topic.read_queue_nums,
        "topicFilterType": topic.topic_filter_type,
        "topicName": topic.topic_name,
        "topicSysFlag": topic.topic_sys_flag,
        "writeQueueNums": topic.write_queue_nums,
    }
    return dict(sorted({**topic.unknown, **known}.items()))
