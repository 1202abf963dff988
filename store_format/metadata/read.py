"""The files of `config/`: which of a file and its `.bak` counts, and what each one holds (ConfigManager, spec
6). Read only.

Every reader takes the store root, and gives None when neither the file nor its `.bak` says anything: unknown
is not empty.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from store_format.errors import CorruptStoreError
from store_format.files.read import read_bytes
from store_format.java.fastjson import loads
from store_format.metadata.beans import UnlikeBeanError, bean, integer, integer_map, items, members, string
from store_format.metadata.values import ConsumerOffsets, DataVersion, SubscriptionGroup, TopicConfig

__all__ = [
    "Groups",
    "Topics",
    "config_path",
    "data_version",
    "read_config",
    "read_consumer_offsets",
    "read_delay_offsets",
    "read_lmq_consumer_offsets",
    "read_subscription_groups",
    "read_topics",
    "without_backup",
]

_T = TypeVar("_T")
_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Topics(Mapping[str, TopicConfig]):
    """topics.json: topic -> its configuration. `raw` is the file, for a rewrite that keeps what it does not
    know.
    """

    table: Mapping[str, TopicConfig]
    data_version: DataVersion | None
    raw: Mapping[str, Any]

    def __getitem__(self, topic: str) -> TopicConfig:
        return self.table[topic]

    def __iter__(self) -> Iterator[str]:
        return iter(self.table)

    def __len__(self) -> int:
        return len(self.table)


@dataclass(frozen=True)
class Groups(Mapping[str, SubscriptionGroup]):
    """subscriptionGroup.json: group -> its configuration; `forbidden` is group -> topic -> bits. `raw` as
    above.
    """

    table: Mapping[str, SubscriptionGroup]
    forbidden: Mapping[str, Mapping[str, int]]
    data_version: DataVersion | None
    raw: Mapping[str, Any]

    def __getitem__(self, group: str) -> SubscriptionGroup:
        return self.table[group]

    def __iter__(self) -> Iterator[str]:
        return iter(self.table)

    def __len__(self) -> int:
        return len(self.table)


def config_path(root: str, name: str) -> str:
    """Where the store at `root` has its file `name` (BrokerPathConfigHelper)."""
    return os.path.join(root, "config", name)


def read_config(path: str, decode: Callable[[dict[str, Any]], _T], *, is_needed: bool = False) -> _T | None:
    """What `decode` makes of the file at `path`, else of `path`.bak; None when both are missing or empty
    (ConfigManager.load).

    The `.bak` counts when the file is missing, empty, or cannot be decoded: a broker killed while saving
    leaves it so. A file that cannot be decoded and has no `.bak` counts as missing, as it does for a broker,
    unless `is_needed`. Raises CorruptStoreError when the `.bak` cannot be decoded either, for a link, and for
    a needed file.
    """
    data = read_bytes(path)
    if data:
        try:
            return _decode(data, path, decode)
        except CorruptStoreError as error:
            backup = read_bytes(path + ".bak")
            if not backup:
                if is_needed:
                    raise without_backup(error, path) from error
                _logger.warning(
                    "%s; there is no %s.bak, so it counts as missing, as it does for a broker", error, path
                )
                return None
            _logger.warning("%s; reading %s.bak instead, as a broker does", error, path)
    else:
        backup = read_bytes(path + ".bak")
    return _decode(backup, path + ".bak", decode) if backup else None


def without_backup(error: CorruptStoreError, path: str) -> CorruptStoreError:
    """What to say of a file that must not be replaced: it may have what other groups or a broker still need."""
    advice = (
        "there is no .bak to read instead, and a broker that starts now begins without what the file held. Put a good copy in its "
        "place, or move it away: then all offsets in it are lost"
    )
    return CorruptStoreError(path, error.position, error.expected, f"{error.found}; {advice}")


def _decode(data: bytes, path: str, decode: Callable[[dict[str, Any]], _T]) -> _T:
    value = loads(data, path)
    if not isinstance(value, dict):
        raise CorruptStoreError(path, 0, "a JSON object", type(value).__name__)
    try:
        return decode(value)
    except UnlikeBeanError as error:
        # The parser has thrown positions away; the member's path finds the place.
        raise CorruptStoreError(
            path, 0, f"{error.expected} as {error.where}", repr(error.found)[:100]
        ) from error


def data_version(raw: Mapping[str, Any]) -> DataVersion | None:
    """The file's dataVersion; None where it has none (4.9, and files that never had one)."""
    return (
        bean(DataVersion, raw["dataVersion"], "dataVersion") if raw.get("dataVersion") is not None else None
    )


def read_topics(root: str) -> Topics | None:
    """topics.json (TopicConfigManager). None also for a store whose topics are in RocksDB."""

    def decode(raw: dict[str, Any]) -> Topics:
        table = members(raw.get("topicConfigTable"), "topicConfigTable")
        topics = {
            name: bean(TopicConfig, value, f"topicConfigTable.{name}", topic_name=name)
            for name, value in table.items()
        }
        return Topics(topics, data_version(raw), raw)

    return read_config(config_path(root, "topics.json"), decode)


def read_subscription_groups(root: str) -> Groups | None:
    """subscriptionGroup.json (SubscriptionGroupManager)."""

    def decode(raw: dict[str, Any]) -> Groups:
        table = members(raw.get("subscriptionGroupTable"), "subscriptionGroupTable")
        groups = {
            name: bean(SubscriptionGroup, value, f"subscriptionGroupTable.{name}", group_name=name)
            for name, value in table.items()
        }
        forbidden = {
            group: {
                topic: integer(bits, f"forbiddenTable.{group}.{topic}")
                for topic, bits in members(topics, f"forbiddenTable.{group}").items()
            }
            for group, topics in members(raw.get("forbiddenTable"), "forbiddenTable").items()
        }
        return Groups(groups, forbidden, data_version(raw), raw)

    return read_config(config_path(root, "subscriptionGroup.json"), decode)


def _consumer_offsets(raw: dict[str, Any]) -> ConsumerOffsets:
    def tables(name: str) -> dict[str, dict[int, int]]:
        return {
            key: integer_map(table, f"{name}.{key}") for key, table in members(raw.get(name), name).items()
        }

    def topics(group: str, value: Any) -> tuple[str, ...]:
        return tuple(
            string(topic, f"groupTopicMap.{group}") for topic in items(value, f"groupTopicMap.{group}")
        )

    lmq = {
        key: integer(offset, f"lmqOffsetTable.{key}")
        for key, offset in members(raw.get("lmqOffsetTable"), "lmqOffsetTable").items()
    }
    group_topics = {
        group: topics(group, value)
        for group, value in members(raw.get("groupTopicMap"), "groupTopicMap").items()
    }
    return ConsumerOffsets(
        tables("offsetTable"), tables("pullOffsetTable"), lmq, group_topics, data_version(raw), raw
    )


def read_consumer_offsets(root: str, *, is_needed: bool = False) -> ConsumerOffsets | None:
    """consumerOffset.json (ConsumerOffsetManager)."""
    return read_config(config_path(root, "consumerOffset.json"), _consumer_offsets, is_needed=is_needed)


def read_lmq_consumer_offsets(root: str, *, is_needed: bool = False) -> ConsumerOffsets | None:
    """lmqConsumerOffset.json, where a broker with light queues keeps all of its offsets
    (LmqConsumerOffsetManager).
    """
    return read_config(config_path(root, "lmqConsumerOffset.json"), _consumer_offsets, is_needed=is_needed)


def read_delay_offsets(root: str) -> dict[int, int] | None:
    """delayOffset.json: by delay level the next offset of queue level - 1 of SCHEDULE_TOPIC_XXXX
    (ScheduleMessageService).
    """
    return read_config(
        config_path(root, "delayOffset.json"), lambda raw: integer_map(raw.get("offsetTable"), "offsetTable")
    )
