"""The bytes of a broker's files of `config/` without a topic, a group, or their offsets.

Each function takes the bytes of a file, None or empty without one, and its path for errors; it returns the
new bytes, or None if nothing changes. What a broker removes and which data version it increments is that of
the classes that are named. Raises CorruptStoreError for a file of another kind.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from store_format.java.fastjson import loads
from store_format.metadata.values import (
    bean_errors_of,
    dialect_of,
    dumps,
    members,
    next_version,
    split_offset_key,
    with_integer_keys,
)

_Raw = dict[str, Any]  # Any: JSON


def without_topics(data: bytes | None, topics: Collection[str], timestamp: int, file: str) -> bytes | None:
    """topics.json without these topics: the version counts each of them (TopicConfigManager)."""
    with bean_errors_of(file):
        return _without(data, "topicConfigTable", topics, timestamp, file)


def without_group(data: bytes | None, group: str, timestamp: int, file: str) -> bytes | None:
    """subscriptionGroup.json without the group, and what it is forbidden (SubscriptionGroupManager)."""
    with bean_errors_of(file):
        forbidden = members(_raw(data, file).get("forbiddenTable"), "forbiddenTable")
        left = {name: bits for name, bits in forbidden.items() if name != group}
        return _without(
            data, "subscriptionGroupTable", [group], timestamp, file,
            {"forbiddenTable": left} if left != forbidden else {},
        )  # fmt: skip


def without_timing(data: bytes | None, topics: Collection[str], file: str) -> bytes | None:
    """timermetrics without the counts of these topics; no data version changes (TimerMetrics)."""
    with bean_errors_of(file):
        raw = _raw(data, file)
        counts = members(raw.get("timingCount"), "timingCount")
        left = {topic: count for topic, count in counts.items() if topic not in topics}
        return None if left == counts else dumps({**raw, "timingCount": left}, pretty=False)


def without_offsets(data: bytes | None, is_gone: Callable[[str, str], bool], file: str) -> bytes | None:
    """consumerOffset.json without the entries of (topic, group) that are gone (ConsumerOffsetManager).

    No data version changes. groupTopicMap, which a broker derives from the other tables, loses them too.
    """
    with bean_errors_of(file):
        name = file.rpartition("/")[2].removesuffix(".bak")
        raw = dict(members(with_integer_keys(loads(data, file), name) if data else None, "the file"))
        after = {**raw}
        for table in ("offsetTable", "pullOffsetTable"):
            if raw.get(table) is not None:
                after[table] = {
                    key: offsets
                    for key, offsets in members(raw[table], table).items()
                    if (names := split_offset_key(key)) is None or not is_gone(*names)
                }
        if raw.get("groupTopicMap") is not None:
            kept = {
                group: [topic for topic in topics if not is_gone(topic, group)]
                for group, topics in members(raw["groupTopicMap"], "groupTopicMap").items()
            }
            after["groupTopicMap"] = {group: topics for group, topics in kept.items() if topics}
        return None if after == raw or not data else dumps(after, dialect_of(data))


def _raw(data: bytes | None, file: str) -> Mapping[str, Any]:
    return members(loads(data, file) if data else None, "the file")


def _without(
    data: bytes | None,
    table: str,
    names: Collection[str],
    timestamp: int,
    file: str,
    changed: _Raw | None = None,
) -> bytes | None:
    raw = _raw(data, file)
    before = members(raw.get(table), table)
    gone = [name for name in names if name in before]
    if not gone and not changed:
        return None
    version = members(raw.get("dataVersion"), "dataVersion")
    for _ in gone:
        version = next_version(version, timestamp)
    left = {name: value for name, value in before.items() if name not in gone}
    return dumps({**raw, "dataVersion": version, table: left, **(changed or {})})
