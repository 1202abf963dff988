"""Encodes configuration files byte for byte as RocketMQ's two JSON libraries do (spec 6.2, 6.3).

fastjson2 writes the files of 5.4 and later; fastjson 1.2 wrote the files before. Every broker reads both. The
functions return bytes and touch no file.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any

from store_format.java.fastjson import loads
from store_format.metadata.values import TopicConfig, bean_errors_of, integer, members


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
_INTEGER = re.compile(r"-?[0-9]+\Z", re.ASCII)
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
            int(key) if isinstance(key, str) and _INTEGER.match(key) else key: member
            for key, member in value.items()
        }
    return {
        key: _convert(member, path[1:]) if path[0] in ("*", key) else member for key, member in value.items()
    }


# ---- topics.json -------------------------------------------------------------------------------------------


def add_topics(
    data: bytes | None, topics: Iterable[TopicConfig], timestamp: int, file: str = "config/topics.json"
) -> bytes | None:
    """topics.json with these topics added (TopicConfigManager.createTopicInSendMessageMethod).

    `data` is the present file, None or empty without one; `timestamp` is the clock in ms. Existing topics do
    not change; if all topics exist, the result is None. The data version is incremented. Unknown members and
    the order are kept; a 4.9 file, which has neither attributes nor a state version, gets none. Raises
    CorruptStoreError for a file that is no topics.json.
    """
    with bean_errors_of(file):
        raw = members(loads(data, file) if data else None, "the file")
        table = dict(members(raw.get("topicConfigTable"), "topicConfigTable"))
        version = dict(members(raw.get("dataVersion"), "dataVersion"))
        old = bool(version) and "stateVersion" not in version
        added = {
            topic.topic_name: _topic_members(topic, old=old)
            for topic in topics
            if topic.topic_name not in table
        }
        if not added:
            return None
        # The keys of a bean are sorted; existing keys keep their places.
        version = next_version({"counter": 0, "stateVersion": 0} | version if not old else version, timestamp)
    return dumps({"dataVersion": version} | raw | {"dataVersion": version, "topicConfigTable": table | added})


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
