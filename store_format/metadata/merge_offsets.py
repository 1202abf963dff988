"""Changes entries of a broker's consumerOffset.json or a client's offsets.json and keeps everything else.

The functions work on bytes and touch no file. An offset decreases only if the caller passes `is_reset`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from store_format.errors import CorruptStoreError
from store_format.java.fastjson import loads
from store_format.metadata.encode import Dialect, dialect_of, dumps, next_version, with_integer_keys
from store_format.metadata.values import UnlikeBeanError, bean_errors_of, integer, integer_map, items, members
from store_format.names import QueueKey, is_light_queue

_OLD_OBJECT_KEYS = re.compile(rb'"offsetTable":\{\{')


def merge_consumer_offsets(
    data: bytes | None,
    group: str,
    offsets: Mapping[QueueKey, int],
    *,
    timestamp: int,
    is_reset: bool = False,
    is_old: bool = False,
    file: str = "config/consumerOffset.json",
) -> bytes | None:
    """The broker's file with the group's next offsets by (topic, queue id); None if nothing changes.

    `data` is the present file, None or empty without one; then `is_old` says that the broker is a 4.9. A data
    version is incremented (DataVersion.nextVersion) with `timestamp`, the clock in ms; 4.9 writes none.
    groupTopicMap, which no broker reads, is updated too. The offsets of a light group (`%LMQ%`) are in
    lmqOffsetTable (LmqConsumerOffsetManager).

    Raises CorruptStoreError for a file of another kind.
    """
    name = file.rpartition("/")[2].removesuffix(".bak")
    with bean_errors_of(file):
        raw = dict(members(with_integer_keys(loads(data, file), name) if data else None, "the file"))
        changed = (
            _merge_light_table(raw, group, offsets, is_reset)
            if is_light_queue(group)
            else _merge_table(raw, group, offsets, is_reset)
        )
        if not changed:
            return None
        if not data and not is_old:
            raw.setdefault("groupTopicMap", {})
        _add_to_group_topics(raw, group, offsets)
        version = raw.get("dataVersion") if data else None if is_old else {"counter": 0, "stateVersion": 0}
        if version is not None:
            after = next_version(members(version, "dataVersion"), timestamp)
            raw = {"dataVersion": after} | raw | {"dataVersion": after}
    return dumps(raw, dialect_of(data) if data else Dialect.FASTJSON if is_old else Dialect.FASTJSON2)


def _merge_table(raw: dict[str, Any], group: str, offsets: Mapping[QueueKey, int], is_reset: bool) -> bool:
    table = dict(members(raw.get("offsetTable"), "offsetTable"))
    changed = False
    by_topic: dict[str, dict[int, int]] = {}
    for (topic, queue_id), offset in offsets.items():
        by_topic.setdefault(topic, {})[queue_id] = offset
    for topic, wanted in by_topic.items():
        key = f"{topic}@{group}"
        there = integer_map(table.get(key), f"offsetTable.{key}")
        after = there | {
            queue_id: offset
            for queue_id, offset in wanted.items()
            if is_reset or offset > there.get(queue_id, -1)
        }
        if after != there:
            table[key] = after
            changed = True
    raw["offsetTable"] = table
    return changed


def _merge_light_table(
    raw: dict[str, Any], group: str, offsets: Mapping[QueueKey, int], is_reset: bool
) -> bool:
    table = dict(members(raw.get("lmqOffsetTable"), "lmqOffsetTable"))
    changed = False
    for (topic, _), offset in offsets.items():
        key = f"{topic}@{group}"
        there = integer(table.get(key, -1), f"lmqOffsetTable.{key}")
        if offset > there or (is_reset and offset != there):
            table[key] = offset
            changed = True
    raw["lmqOffsetTable"] = table
    return changed


def _add_to_group_topics(raw: dict[str, Any], group: str, offsets: Mapping[QueueKey, int]) -> None:
    if raw.get("groupTopicMap") is None:
        return
    table = dict(members(raw["groupTopicMap"], "groupTopicMap"))
    topics = items(table.get(group), f"groupTopicMap.{group}")
    table[group] = [
        *topics,
        *(topic for topic in dict.fromkeys(topic for topic, _ in offsets) if topic not in topics),
    ]
    raw["groupTopicMap"] = table


def merge_local_offsets(
    data: bytes | None,
    offsets: Mapping[tuple[str, str, int], int],
    *,
    is_reset: bool = False,
    file: str = "offsets.json",
) -> bytes | None:
    """A client's offsets.json (LocalFileOffsetStore) with these next offsets; None if nothing changes.

    `offsets` is by (topic, broker name, queue id). The entries of other queues stay, since other clients may
    use them. Raises CorruptStoreError for a file of another kind.
    """
    with bean_errors_of(file):
        raw = dict(members(loads(data, file) if data else None, "the file"))
        table = dict(members(raw.get("offsetTable"), "offsetTable"))
        named = {key: _queue_of(key, file) for key in table}
        keys = {
            (queue.get("topic"), queue.get("brokerName"), queue["queueId"]): key
            for key, queue in named.items()
        }
        changed = False
        for queue, offset in offsets.items():
            key = keys.get(queue) or _key_of(queue, named)
            there = integer(table.get(key, -1), f"offsetTable.{key}")
            if offset > there or (is_reset and offset != there):
                table[key] = offset
                changed = True
    pairs = [(named[key], offset) for key, offset in table.items()]
    return _dumps_local(raw, pairs, is_old=bool(data and _OLD_OBJECT_KEYS.search(data))) if changed else None


def _queue_of(key: str, file: str) -> dict[str, Any]:
    """The members of a key of the table; `loads` returns the key, an object, as JSON text."""
    try:
        queue = members(loads(key.encode("utf-8", "replace"), file), "offsetTable")
    except CorruptStoreError as error:
        raise UnlikeBeanError(
            "offsetTable", "an object of brokerName, queueId and topic as key", key
        ) from error
    return queue | {"queueId": integer(queue.get("queueId"), "offsetTable.queueId")}


def _key_of(queue: tuple[str, str, int], named: dict[str, dict[str, Any]]) -> str:
    topic, broker_name, queue_id = queue
    value = {
        "brokerName": broker_name,
        "queueId": queue_id,
        "topic": topic,
    }  # in the order of both fastjson versions
    key = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    named[key] = value
    return key


def _dumps_local(raw: Mapping[str, Any], pairs: list[tuple[dict[str, Any], int]], *, is_old: bool) -> bytes:
    """The pretty form of both fastjson versions: each key is an object with one member a line."""
    dialect = Dialect.FASTJSON if is_old else Dialect.FASTJSON2
    line = "\n\t\t"
    parts = [dumps(queue, dialect).decode().replace("\n", line) + f":{offset}" for queue, offset in pairs]
    text = ("{" if is_old else "{" + line) + ("," if is_old else "," + line).join(parts) + "\n\t}"
    # 0 is the placeholder of the table; only this member has the name offsetTable
    whole = dumps(dict(raw) | {"offsetTable": 0}, dialect)
    return whole.replace(b'\n\t"offsetTable":0', b'\n\t"offsetTable":' + text.encode("utf-8", "replace"), 1)
