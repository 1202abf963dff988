"""Reads the files of `config/`, with the rule for their `.bak` (ConfigManager, spec 6), a client's
offsets.json, and the checkpoint.

Every reader of `config/` takes the store root and returns None if neither the file nor its `.bak` has
content: unknown is not empty. The file of 16,000 topics takes 0.25 s to read, and planning a batch asks three
times, so `known_topics` reads an unchanged file once, however many parts of a read ask.

The checkpoint has six longs, up to which time and offset a broker had flushed. A broker overwrites the file
in place every second, without a checksum. So the numbers are hints for recovery, not facts about messages
(StoreCheckpoint, spec 5.1).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from functools import lru_cache
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

from store_format.errors import CorruptStoreError
from store_format.files.read import is_settled, read_bytes, readable_identity, stat_identity
from store_format.files.view import open_view
from store_format.java.fastjson import loads
from store_format.layouts import CHECKPOINT, unpack
from store_format.metadata.values import (
    ConsumerFilter,
    ConsumerOffsets,
    DataVersion,
    Metric,
    OrderInfo,
    QueueMapping,
    QueueMappingItem,
    RequestMode,
    SubscriptionGroup,
    TopicConfig,
    UnlikeBeanError,
    bean,
    bean_errors_of,
    integer,
    integer_map,
    items,
    members,
    string,
)

_T = TypeVar("_T")
_logger = logging.getLogger(__name__)

_STORES_MAX = 64  # several MB each, with many topics

# The first release that writes each long. Older releases leave the long at 0 and ignore it.
CHECKPOINT_SINCE = {
    "physic_msg_timestamp": "3.0",
    "logics_msg_timestamp": "3.0",
    "index_msg_timestamp": "3.0",
    "master_flushed_offset": "5.0",
    "confirm_phy_offset": "5.1.1",
    "logics_physical_offset": "5.5",
}

_RECOVERY_MARGIN_MS = 3000  # StoreCheckpoint.getMinTimestamp


@dataclass(frozen=True)
class TopicConfigs(Mapping[str, TopicConfig]):
    """topics.json: topic -> configuration. `raw` is the whole file; a rewrite keeps unknown members."""

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
    """subscriptionGroup.json: group -> configuration; `forbidden`: group -> topic -> bits; `raw` as above."""

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
    """The path of the file `name` in the store's `config/` (BrokerPathConfigHelper)."""
    return f"{root}/config/{name}"


def read_config(path: str, decode: Callable[[dict[str, Any]], _T], *, is_needed: bool = False) -> _T | None:
    """The decoded file at `path`, else `path`.bak; None if both are missing or empty (ConfigManager.load).

    The `.bak` counts if the file is missing, empty or cannot be decoded: a broker that was killed while
    saving leaves such a file. A file that cannot be decoded and has no `.bak` counts as missing, as for a
    broker, unless `is_needed`. Raises CorruptStoreError if the `.bak` cannot be decoded either, for a link,
    and for a needed file.
    """
    data = read_bytes(path)
    if data:
        try:
            return _decode_config(data, path, decode)
        except CorruptStoreError as error:
            backup = read_bytes(path + ".bak")
            if not backup:
                if is_needed:
                    raise without_backup(error, path) from error
                told = f"{error}; there is no {path}.bak, so the file counts as missing, as for a broker"
                _warn_once(told, stat_identity(path))
                return None
            _warn_once(f"{error}; reading {path}.bak instead, as a broker does", stat_identity(path))
    else:
        backup = read_bytes(path + ".bak")
    return _decode_config(backup, path + ".bak", decode) if backup else None


@lru_cache(maxsize=64)
def _warn_once(text: str, identity: object) -> None:
    """Warns once of each state of a file: one command reads it several times."""
    _logger.warning("%s", text)


def without_backup(error: CorruptStoreError, path: str) -> CorruptStoreError:
    """The error for a damaged file that must not be replaced: others may need its content."""
    advice = (
        "there is no .bak to read instead, and a broker that starts now loses the file's content. Replace "
        "the file by a good copy, or move the file away: then all its offsets are lost"
    )
    return CorruptStoreError(path, error.position, error.expected, f"{error.found}; {advice}")


def _decode_config(data: bytes, path: str, decode: Callable[[dict[str, Any]], _T]) -> _T:
    value = loads(data, path)
    if not isinstance(value, dict):
        raise CorruptStoreError(path, 0, "a JSON object", type(value).__name__)
    with bean_errors_of(path):
        return decode(value)


def data_version(raw: Mapping[str, Any]) -> DataVersion | None:
    """The file's dataVersion; None without one (4.9, and files that never have one)."""
    return (
        bean(DataVersion, raw["dataVersion"], "dataVersion") if raw.get("dataVersion") is not None else None
    )


def read_topics(root: str) -> TopicConfigs | None:
    """topics.json (TopicConfigManager); None also for a store that keeps its topics in RocksDB."""
    return read_config(config_path(root, "topics.json"), _topics)


def _topics(raw: dict[str, Any]) -> TopicConfigs:
    table = members(raw.get("topicConfigTable"), "topicConfigTable")
    topics = {
        name: bean(TopicConfig, value, f"topicConfigTable.{name}", topic_name=name)
        for name, value in table.items()
    }
    return TopicConfigs(topics, data_version(raw), raw)


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
    """lmqConsumerOffset.json (LmqConsumerOffsetManager): all offsets of a broker with enableLmq."""
    return read_config(config_path(root, "lmqConsumerOffset.json"), _consumer_offsets, is_needed=is_needed)


def read_delay_offsets(root: str) -> dict[int, int] | None:
    """delayOffset.json (ScheduleMessageService): delay level -> next offset of queue level - 1."""
    return read_config(
        config_path(root, "delayOffset.json"), lambda raw: integer_map(raw.get("offsetTable"), "offsetTable")
    )


# ---- topics that were read before --------------------------------------------------------------------------


class KnownTopic(NamedTuple):
    """The part of a `TopicConfig` that a read needs."""

    queue_ids: range  # of the queues that may have messages
    readable_queue_ids: range  # of the queues that consumers read; none if `perm` does not let them
    is_compacted: bool  # cleanup.policy=COMPACTION


@dataclass(slots=True)
class _LastRead:
    """One value, so that a thread never sees the topics of another state of the file."""

    value: tuple[object, Mapping[str, KnownTopic] | None] = (None, None)


def known_topics(root: str) -> Mapping[str, KnownTopic] | None:
    """The topics of `read_topics`, at the cost of 20 us while topics.json and its .bak stay as they are.

    The result is then the same object. A file that changed just now is read each time: it may change again
    without a sign. Raises the errors of `read_topics`.
    """
    path, now_ns = config_path(root, "topics.json"), time.time_ns()
    # opened, because a user who may not read the file gets no topics either
    identities = readable_identity(path), stat_identity(f"{path}.bak")
    last = _last_read(root)
    seen, known = last.value
    if known is not None and seen == identities:
        return known
    topics = read_topics(root)
    if topics is None:
        return None
    known = MappingProxyType({name: _known(topic) for name, topic in topics.items()})
    if all(is_settled(each, now_ns) for each in identities):
        last.value = identities, known
    return known


@lru_cache(maxsize=_STORES_MAX)
def _last_read(root: str) -> _LastRead:
    return _LastRead()


def _known(topic: TopicConfig) -> KnownTopic:
    consumed = topic.read_queue_ids if topic.readable else range(0)
    return KnownTopic(topic.queue_ids, consumed, topic.cleanup_policy == "COMPACTION")


# ---- the checkpoint ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The longs as stored; 0 if the broker has not set the long. `layouts.CHECKPOINT` has the meanings."""

    physic_msg_timestamp: int = 0
    logics_msg_timestamp: int = 0
    index_msg_timestamp: int = 0
    master_flushed_offset: int = 0
    confirm_phy_offset: int = 0
    logics_physical_offset: int = 0

    @property
    def timestamp_min(self) -> int:
        """The store time in ms from which recovery scans after a crash, up to 5.4; at least 0.

        It is 3 s before the older of the times of commitlog and consume queues.
        """
        return max(min(self.physic_msg_timestamp, self.logics_msg_timestamp) - _RECOVERY_MARGIN_MS, 0)

    @property
    def implausible(self) -> tuple[str, ...]:
        """The names of negative longs, which no broker writes; for `diagnose`."""
        return tuple(field.name for field in fields(self) if getattr(self, field.name) < 0)


def read_checkpoint(path: str) -> Checkpoint | None:
    """The checkpoint at `path`; None without a file. Any bytes are a valid checkpoint.

    Missing bytes of a short file count as 0, since the broker maps 4096 bytes, whatever the file's length.
    Raises CorruptStoreError for a link or a directory.
    """
    try:
        with open_view(path) as view:
            data = view.read(0, CHECKPOINT.itemsize)
    except FileNotFoundError:
        return None
    longs = unpack(data.ljust(CHECKPOINT.itemsize, b"\0"), CHECKPOINT)[0]
    return Checkpoint(*longs.tolist())


# ---- smaller files -----------------------------------------------------------------------------------------


def read_queue_mappings(root: str) -> dict[str, QueueMapping] | None:
    """topicQueueMapping.json: the static topics (TopicQueueMappingManager)."""

    def decode(raw: dict[str, Any]) -> dict[str, QueueMapping]:
        name = "topicQueueMappingInfoMap"
        return {
            topic: _queue_mapping(topic, value, f"{name}.{topic}")
            for topic, value in members(raw.get(name), name).items()
        }

    return read_config(config_path(root, "topicQueueMapping.json"), decode)


def _queue_mapping(topic: str, value: Any, where: str) -> QueueMapping:
    where_hosted = f"{where}.hostedQueues"
    hosted = {
        integer(queue_id, where_hosted): tuple(
            bean(QueueMappingItem, item, f"{where_hosted}.{queue_id}")
            for item in items(stretches, where_hosted)
        )
        for queue_id, stretches in members(members(value, where).get("hostedQueues"), where_hosted).items()
    }
    return bean(QueueMapping, value, where, topic=topic, hosted_queues=hosted)


def read_consumer_filters(root: str) -> dict[str, dict[str, ConsumerFilter]] | None:
    """consumerFilter.json by topic and group (ConsumerFilterManager)."""

    def decode(raw: dict[str, Any]) -> dict[str, dict[str, ConsumerFilter]]:
        return {
            topic: {
                group: bean(
                    ConsumerFilter,
                    value,
                    f"filterDataByTopic.{topic}.{group}",
                    topic=topic,
                    consumer_group=group,
                )
                for group, value in members(members(table, topic).get("groupFilterData"), topic).items()
            }
            for topic, table in members(raw.get("filterDataByTopic"), "filterDataByTopic").items()
        }

    return read_config(config_path(root, "consumerFilter.json"), decode)


def read_order_infos(root: str) -> dict[str, dict[int, OrderInfo]] | None:
    """consumerOrderInfo.json by `topic@group` and queue (ConsumerOrderInfoManager)."""
    return read_config(config_path(root, "consumerOrderInfo.json"), decode_order_infos)


def decode_order_infos(raw: dict[str, Any]) -> dict[str, dict[int, OrderInfo]]:
    """The members of consumerOrderInfo.json as values. UnlikeBeanError for a member of another type."""
    return {
        key: {
            integer(queue_id, key): _order_info(members(value, key), f"table.{key}.{queue_id}")
            for queue_id, value in members(queues, key).items()
        }
        for key, queues in members(raw.get("table"), "table").items()
    }


def _order_info(value: dict[str, Any], where: str) -> OrderInfo:
    stored = [integer(offset, f"{where}.o") for offset in items(value.get("o"), f"{where}.o")]
    invisible, attempt = value.get("i"), value.get("a")
    return OrderInfo(
        # the offsets after the first are stored as differences from the first
        offsets=tuple(stored[:1] + [stored[0] + difference for difference in stored[1:]]),
        pop_time=integer(value.get("popTime", 0), f"{where}.popTime"),
        invisible_time=None if invisible is None else integer(invisible, f"{where}.i"),
        last_consume_timestamp=integer(value.get("l", 0), f"{where}.l"),
        commit_offset_bit=integer(value.get("cm", 0), f"{where}.cm"),
        attempt_id=None if attempt is None else string(attempt, f"{where}.a"),
        consumed_count=_map_or_none(value.get("oc"), f"{where}.oc"),
        next_visible_time=_map_or_none(value.get("ot"), f"{where}.ot"),
    )


def _map_or_none(value: Any, where: str) -> dict[int, int] | None:
    return None if value is None else integer_map(value, where)


def read_request_modes(root: str) -> dict[str, dict[str, RequestMode]] | None:
    """messageRequestMode.json by topic and group (MessageRequestModeManager)."""

    def decode(raw: dict[str, Any]) -> dict[str, dict[str, RequestMode]]:
        name = "messageRequestModeMap"
        return {
            topic: {
                group: bean(RequestMode, value, f"{name}.{topic}.{group}", topic=topic, consumer_group=group)
                for group, value in members(groups, f"{name}.{topic}").items()
            }
            for topic, groups in members(raw.get(name), name).items()
        }

    return read_config(config_path(root, "messageRequestMode.json"), decode)


def _read_metrics(path: str, name: str) -> dict[str, Metric] | None:
    def decode(raw: dict[str, Any]) -> dict[str, Metric]:
        return {
            topic: bean(Metric, value, f"{name}.{topic}")
            for topic, value in members(raw.get(name), name).items()
        }

    return read_config(path, decode)


def read_timer_metrics(root: str) -> dict[str, Metric] | None:
    """timermetrics (TimerMetrics): destination topic -> messages in the timer."""
    return _read_metrics(config_path(root, "timermetrics"), "timingCount")


def read_transaction_metrics(root: str) -> dict[str, Metric] | None:
    """transactionMetrics (TransactionMetrics): destination topic -> undecided half messages."""
    return _read_metrics(config_path(root, "transactionMetrics"), "transactionCount")


def read_local_offsets(path: str) -> dict[tuple[str, str, int], int] | None:
    """A client's offsets.json (LocalFileOffsetStore): (topic, broker name, queue id) -> next offset."""

    def decode(raw: dict[str, Any]) -> dict[tuple[str, str, int], int]:
        offsets = {}
        for key, offset in members(raw.get("offsetTable"), "offsetTable").items():
            try:
                queue = members(loads(key.encode(), path), "offsetTable")
            except CorruptStoreError as error:
                raise UnlikeBeanError(
                    "offsetTable", "an object of brokerName, queueId and topic as key", key
                ) from error
            name = (
                string(queue.get("topic"), "topic"),
                string(queue.get("brokerName"), "brokerName"),
                integer(queue.get("queueId"), "queueId"),
            )
            offsets[name] = integer(offset, f"offsetTable.{key}")
        return offsets

    return read_config(path, decode, is_needed=True)
