"""Reads the files of `config/`, with the rule for their `.bak` (ConfigManager, spec 6), or what RocksDB has
in their place, a client's offsets.json, the checkpoint, and broker.conf.

Every reader of `config/` takes the store root and returns None if neither the file nor its `.bak` has
content: unknown is not empty. The file of 16,000 topics takes 0.25 s to read, and planning a batch asks three
times, so `known_topics` reads an unchanged file once, however many parts of a read ask.

The checkpoint has six longs, up to which time and offset a broker had flushed. A broker overwrites the file
in place every second, without a checksum. So the numbers are hints for recovery, not facts about messages
(StoreCheckpoint, spec 5.1).

broker.conf has the settings of a broker that no file of its store has (BrokerConfig, MessageStoreConfig). It
is a Java properties file. Settings that nothing here uses are accepted and kept out: a real one has many.
"""

from __future__ import annotations

import json
import logging
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from typing import Any, NamedTuple, NoReturn, TypeVar

from store_format.errors import CorruptStoreError, OptionError, StoreNotFoundError
from store_format.files.paths import is_settled
from store_format.files.read import files_at
from store_format.java.fastjson import SingleQuoted, loads
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
    entries,
    integer,
    integer_map,
    items,
    long_of_bean,
    members,
    members_with_bare_keys,
    string,
)
from store_format.names import DELAY_LEVELS_MS
from store_format.opened.store import Opened

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
_UNITS_MS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_LEVEL = re.compile(r"([0-9]{1,9})([smhd])\Z", re.ASCII)
_INTEGER = re.compile(r"[+-]?[0-9]{1,18}\Z", re.ASCII)
_INT_MIN, _INT_MAX = -(1 << 31), (1 << 31) - 1


@dataclass(frozen=True)
class _Configs(Mapping[str, _T]):
    """Name -> configuration. `raw` is the whole file; a rewrite keeps unknown members."""

    table: Mapping[str, _T]
    data_version: DataVersion | None
    raw: Mapping[str, Any]

    def __getitem__(self, name: str) -> _T:
        return self.table[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.table)

    def __len__(self) -> int:
        return len(self.table)


@dataclass(frozen=True)
class TopicConfigs(_Configs[TopicConfig]):
    """topics.json, by topic. `is_backup`: these are of the `.bak`, because the file cannot be read."""

    is_backup: bool = False


@dataclass(frozen=True)
class Groups(_Configs[SubscriptionGroup]):
    """subscriptionGroup.json, by group. `forbidden`: group -> topic -> bits."""

    forbidden: Mapping[str, Mapping[str, int]]


def config_path(opened: Opened, name: str) -> str:
    """The path of the file `name` in the store's `config/` (BrokerPathConfigHelper)."""
    return f"{opened.path}/config/{name}"


def read_config(path: str, decode: Callable[[dict[str, Any]], _T], *, is_needed: bool = False) -> _T | None:
    """The decoded file at `path`, else `path`.bak; None if neither can be read (ConfigManager.load).

    The `.bak` counts if the file is missing, empty or cannot be decoded: a broker that was killed while
    saving leaves such a file. If neither can be decoded the file counts as lost, with a warning, unless
    `is_needed`: then CorruptStoreError is raised, as for a link.
    """
    found = load_config(path, decode, is_needed=is_needed)
    return None if found is None else found[2]


def load_config(
    path: str, decode: Callable[[dict[str, Any]], _T], *, is_needed: bool = False
) -> tuple[str, bytes, _T] | None:
    """As `read_config`, with the path that was read, `path` or `path`.bak, and its bytes: together with the
    entries that a broker holds of a file that it then refuses.
    """
    error, held = None, dict[str, Any]()
    for place in (path, f"{path}.bak"):
        if data := files_at(place).read(place) or (b"{}" if held else b""):
            try:
                raw, value = _decode_config(data, place, decode, held)
            except CorruptStoreError as found:
                error = error or found
                continue
            if error is not None:
                more = ", and what only the file has" if held else ""
                _warn_once(
                    f"{error}; reading {place} instead{more}, as a broker does",
                    files_at(path).stat_identity(path),
                )
            return place, json.dumps(raw).encode() if held else data, value
    if error is not None and is_needed:
        raise _lost(error) from error
    if error is not None:
        text = f"{error}; no .bak can be read instead, so {path} counts as lost"
        _warn_once(text, files_at(error.file).stat_identity(error.file))
    return None


def _stored_config(
    opened: Opened, name: str, decode: Callable[[dict[str, Any]], _T], *, is_needed: bool = False
) -> tuple[str, _T | None]:
    """The path of the file `name` of `config/`, or of the database in its place, and its `read_config`."""
    path = config_path(opened, name)
    if opened.config_databases:
        from store_format.metadata.rocksdb import stored_config  # most stores have none

        found = stored_config(opened, name, decode, lambda: read_config(path, dict), is_needed=is_needed)
        if found is not None:
            return found
    place, _, value = load_config(path, decode, is_needed=is_needed) or (path, None, None)
    return place, value


def identities_in_rocksdb(opened: Opened, name: str) -> tuple[tuple[int, int, int] | None, ...]:
    """The `stat_identity` of each file of the databases in place of the file `name`; () for most stores."""
    if opened.config_databases:
        from store_format.metadata.rocksdb import database_identities

        return database_identities(opened, name)
    return ()


def loaded_bytes(path: str) -> tuple[str, bytes | None]:
    """The path and the bytes of the file of `config/` that a writer has to change; None without a file.

    Raises CorruptStoreError if neither the file nor its `.bak` can be read: others may need its content.
    """
    found = load_config(path, DECODERS.get(_name_of(path), dict), is_needed=True)
    return (path, None) if found is None else found[:2]


def config_error(data: bytes, place: str) -> CorruptStoreError | None:
    """Why a broker does not load the bytes of a file of `config/`, or its `.bak`, at `place`."""
    try:
        _decode_config(data, place, DECODERS.get(_name_of(place), dict))
    except CorruptStoreError as error:
        return error
    return None


def broken_configs(opened: Opened) -> dict[str, CorruptStoreError]:
    """The files of `config/`, and `.bak` files, that have content and that no broker loads, by path."""
    places = [config_path(opened, name) + suffix for name in DECODERS for suffix in ("", ".bak")]
    errors = {place: config_error(data, place) for place in places if (data := files_at(place).read(place))}
    return {place: error for place, error in errors.items() if error is not None}


def _name_of(place: str) -> str:
    return place.rpartition("/")[2].removesuffix(".bak")


@lru_cache(maxsize=64)
def _warn_once(text: str, identity: object) -> None:
    """Warns once of each state of a file: one command reads it several times."""
    _logger.warning("%s", text)


def _lost(error: CorruptStoreError) -> CorruptStoreError:
    advice = (
        "there is no .bak to read instead, and a broker that starts now loses the file's content. Replace "
        "the file by a good copy, or move the file away: then its content is lost (rmqlog recover STORE "
        "--apply keeps the file aside)"
    )
    return CorruptStoreError(error.file, error.position, error.expected, f"{error.found}; {advice}")


def _decode_config(
    data: bytes, place: str, decode: Callable[[dict[str, Any]], _T], held: dict[str, Any] | None = None
) -> tuple[dict[str, Any], _T]:
    """The members and their value; those of an empty object for `null`, as for a broker.

    The entries of the table are put over those that are `held`. A broker puts them before it looks at the
    dataVersion: if that is null, they are `held` with the `.bak`. One look decodes topics.json once: it is
    large, and each part of an answer asks for it.
    """
    if decode is decode_topics and not held:
        with suppress(CorruptStoreError):  # a file that is refused may have entries to hold
            found = files_at(place).decoded(place, data, lambda: _decode_anew(data, place, decode, None))
            if held is None or found[0].get("dataVersion", 0) is not None:
                return found
    return _decode_anew(data, place, decode, held)


def _decode_anew(
    data: bytes, place: str, decode: Callable[[dict[str, Any]], _T], held: dict[str, Any] | None
) -> tuple[dict[str, Any], _T]:
    name = _name_of(place)
    below = None if name == "offsets.json" else members_with_bare_keys(name)  # a client's, not a broker's
    value = loads(data, place, below)
    if value is not None and not isinstance(value, dict):
        raise CorruptStoreError(place, 0, "a JSON object", type(value).__name__)
    with bean_errors_of(place):
        raw, copied = value or {}, _COPIED.get(name, {})
        table = next(iter(copied), "")
        if held:
            raw = raw | {table: held | members(raw.get(table), table)}
        if value is not None:
            if held is not None and [*copied][1:] == ["dataVersion"] and raw.get("dataVersion", 0) is None:
                decode(raw)
                held |= members(raw.get(table), table)
            entries({member: raw.get(member, default) for member, default in copied.items()}, "the file")
        return raw, decode(raw)


def data_version(raw: Mapping[str, Any]) -> DataVersion | None:
    """The file's dataVersion; None without one (4.9, and files that never have one)."""
    return (
        bean(DataVersion, raw["dataVersion"], "dataVersion") if raw.get("dataVersion") is not None else None
    )


def read_topics(opened: Opened, *, is_needed: bool = False) -> TopicConfigs | None:
    """topics.json, or the topics in RocksDB (TopicConfigManager, RocksDBTopicConfigManager)."""
    place, topics = _stored_config(opened, "topics.json", decode_topics, is_needed=is_needed)
    return replace(topics, is_backup=True) if topics is not None and place.endswith(".bak") else topics


def decode_topics(raw: dict[str, Any]) -> TopicConfigs:
    """The members of topics.json as values. UnlikeBeanError for what a broker refuses."""
    table = entries(raw.get("topicConfigTable"), "topicConfigTable")
    for name, value in table.items():
        if isinstance(value, dict) and isinstance(value.get("topicFilterType"), SingleQuoted):
            raise UnlikeBeanError(f"{name}.topicFilterType", "double quotes", value["topicFilterType"])
    topics = {
        name: bean(TopicConfig, value, f"topicConfigTable.{name}", topic_name=name)
        for name, value in table.items()
    }
    return TopicConfigs(topics, data_version(raw), raw)


def read_subscription_groups(opened: Opened) -> Groups | None:
    """subscriptionGroup.json, or the groups in RocksDB (SubscriptionGroupManager)."""
    return _stored_config(opened, "subscriptionGroup.json", _groups)[1]


def _groups(raw: dict[str, Any]) -> Groups:
    groups = {
        name: bean(SubscriptionGroup, value, f"subscriptionGroupTable.{name}", group_name=name)
        for name, value in entries(raw.get("subscriptionGroupTable"), "subscriptionGroupTable").items()
    }
    forbidden = {
        group: {
            topic: integer(bits, f"forbiddenTable.{group}.{topic}")
            for topic, bits in entries(topics, f"forbiddenTable.{group}").items()
        }
        for group, topics in entries(raw.get("forbiddenTable"), "forbiddenTable").items()
    }
    return Groups(groups, data_version(raw), raw, forbidden)


def _consumer_offsets(raw: dict[str, Any]) -> ConsumerOffsets:
    def tables(name: str) -> dict[str, dict[int, int]]:
        return {
            key: integer_map(table, f"{name}.{key}") for key, table in entries(raw.get(name), name).items()
        }

    def topics(group: str, value: Any) -> tuple[str, ...]:
        return tuple(
            string(topic, f"groupTopicMap.{group}") for topic in items(value, f"groupTopicMap.{group}")
        )

    lmq = {
        key: integer(offset, f"lmqOffsetTable.{key}")
        for key, offset in entries(raw.get("lmqOffsetTable"), "lmqOffsetTable").items()
    }
    group_topics = {
        group: topics(group, value)
        for group, value in members(raw.get("groupTopicMap"), "groupTopicMap").items()
    }
    return ConsumerOffsets(
        tables("offsetTable"), tables("pullOffsetTable"), lmq, group_topics, data_version(raw), raw
    )


def read_consumer_offsets(opened: Opened, *, is_needed: bool = False) -> ConsumerOffsets | None:
    """consumerOffset.json, or the offsets in RocksDB (ConsumerOffsetManager)."""
    return _stored_config(opened, "consumerOffset.json", _consumer_offsets, is_needed=is_needed)[1]


def read_lmq_consumer_offsets(opened: Opened, *, is_needed: bool = False) -> ConsumerOffsets | None:
    """lmqConsumerOffset.json (LmqConsumerOffsetManager): all offsets of a broker with enableLmq.

    None for a store with offsets in RocksDB: its broker does not read the file.
    """
    if identities_in_rocksdb(opened, "consumerOffset.json"):
        return None
    return read_config(config_path(opened, "lmqConsumerOffset.json"), _consumer_offsets, is_needed=is_needed)


def read_delay_offsets(opened: Opened) -> dict[int, int] | None:
    """delayOffset.json (ScheduleMessageService): delay level -> next offset of queue level - 1."""
    return read_config(config_path(opened, "delayOffset.json"), _delay_offsets)


def _delay_offsets(raw: dict[str, Any]) -> dict[int, int]:
    data_version(raw)  # a broker refuses the file for it
    return integer_map(raw.get("offsetTable"), "offsetTable")


# ---- topics that were read before --------------------------------------------------------------------------


class KnownTopic(NamedTuple):
    """The part of a `TopicConfig` that a read needs."""

    queue_ids: range  # of the queues that may have messages
    readable_queue_ids: range  # of the queues that consumers read; none if `perm` does not let them
    is_compacted: bool  # cleanup.policy=COMPACTION


class KnownTopics(dict[str, KnownTopic]):
    """The topics by name, shared by all who ask; `is_backup` as in `TopicConfigs`. `compacted` are the names
    of those with cleanup.policy=COMPACTION.
    """

    is_backup = False
    compacted: tuple[str, ...] = ()

    def __setitem__(self, *_: object) -> NoReturn:
        raise TypeError("known topics do not change")


@dataclass(slots=True)
class _LastRead:
    """One value, so that a thread never sees the topics of another state of the file."""

    value: tuple[object, KnownTopics | None] = (None, None)


def known_topics(opened: Opened) -> KnownTopics | None:
    """The topics of `read_topics`, at the cost of 20 us while topics.json and its .bak stay as they are.

    The result is then the same object. A file that changed just now is read each time: it may change again
    without a sign. Raises the errors of `read_topics`.
    """
    path, now_ns = config_path(opened, "topics.json"), time.time_ns()
    # opened, because a user who may not read the file gets no topics either
    files = files_at(path).readable_identity(path), files_at(path).stat_identity(f"{path}.bak")
    identities = files + identities_in_rocksdb(opened, "topics.json")
    last = _last_read(opened)
    seen, known = last.value
    if known is not None and seen == identities:
        return known
    topics = read_topics(opened)
    if topics is None:
        return None
    known = KnownTopics({name: _known(topic) for name, topic in topics.items()})
    known.is_backup = topics.is_backup
    known.compacted = tuple(sorted(name for name, topic in known.items() if topic.is_compacted))
    if all(is_settled(each, now_ns) for each in identities):
        last.value = identities, known
    return known


@lru_cache(maxsize=_STORES_MAX)
def _last_read(opened: Opened) -> _LastRead:
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
        with files_at(path).view(path) as view:
            data = view.read(0, CHECKPOINT.itemsize)
    except FileNotFoundError:
        return None
    return Checkpoint(*unpack(data.ljust(CHECKPOINT.itemsize, b"\0"), CHECKPOINT)[0].tolist())


# ---- smaller files -----------------------------------------------------------------------------------------


def read_queue_mappings(opened: Opened) -> dict[str, QueueMapping] | None:
    """topicQueueMapping.json: the static topics (TopicQueueMappingManager)."""
    return read_config(config_path(opened, "topicQueueMapping.json"), _queue_mappings)


def _queue_mappings(raw: dict[str, Any]) -> dict[str, QueueMapping]:
    name = "topicQueueMappingInfoMap"
    data_version(raw)
    return {
        topic: _queue_mapping(topic, value, f"{name}.{topic}")
        for topic, value in entries(raw.get(name), name).items()
    }


def _queue_mapping(topic: str, value: Any, where: str) -> QueueMapping:
    where_hosted = f"{where}.hostedQueues"
    hosted = {
        integer(queue_id, where_hosted): tuple(
            bean(QueueMappingItem, item, f"{where_hosted}.{queue_id}")
            for item in items(stretches, where_hosted)
        )
        for queue_id, stretches in entries(members(value, where).get("hostedQueues"), where_hosted).items()
    }
    return bean(QueueMapping, value, where, topic=topic, hosted_queues=hosted)


def _consumer_filters(raw: dict[str, Any]) -> dict[str, dict[str, ConsumerFilter]]:
    """consumerFilter.json by topic and group (ConsumerFilterManager)."""
    name = "filterDataByTopic"
    return {
        topic: {
            group: bean(ConsumerFilter, value, f"{name}.{topic}.{group}", topic=topic, consumer_group=group)
            for group, value in entries(members(table, topic).get("groupFilterData"), topic).items()
        }
        for topic, table in entries(raw.get(name), name).items()
    }


def read_order_infos(opened: Opened) -> dict[str, dict[int, OrderInfo]] | None:
    """consumerOrderInfo.json by `topic@group` and queue (ConsumerOrderInfoManager)."""
    return read_config(config_path(opened, "consumerOrderInfo.json"), decode_order_infos)


def decode_order_infos(raw: dict[str, Any]) -> dict[str, dict[int, OrderInfo]]:
    """The members of consumerOrderInfo.json as values. UnlikeBeanError for a member of another type."""
    return {
        key: {
            integer(queue_id, key): _order_info(members(value, key), f"table.{key}.{queue_id}")
            for queue_id, value in entries(queues, key).items()
        }
        for key, queues in entries(raw.get("table"), "table").items()
    }


def _order_info(value: dict[str, Any], where: str) -> OrderInfo:
    stored = [integer(offset, f"{where}.o") for offset in items(value.get("o"), f"{where}.o")]
    invisible, attempt = value.get("i"), value.get("a")
    return OrderInfo(
        # the offsets after the first are stored as differences from the first
        offsets=tuple(stored[:1] + [stored[0] + difference for difference in stored[1:]]),
        pop_time=long_of_bean(value.get("popTime", 0), f"{where}.popTime"),
        invisible_time=None if invisible is None else integer(invisible, f"{where}.i"),
        last_consume_timestamp=long_of_bean(value.get("l", 0), f"{where}.l"),
        commit_offset_bit=long_of_bean(value.get("cm", 0), f"{where}.cm"),
        attempt_id=None if attempt is None else string(attempt, f"{where}.a"),
        consumed_count=_map_or_none(value.get("oc"), f"{where}.oc"),
        next_visible_time=_map_or_none(value.get("ot"), f"{where}.ot"),
    )


def _map_or_none(value: Any, where: str) -> dict[int, int] | None:
    return None if value is None else integer_map(value, where, 1 << 63)


def read_request_modes(opened: Opened) -> dict[str, dict[str, RequestMode]] | None:
    """messageRequestMode.json by topic and group (MessageRequestModeManager)."""
    return read_config(config_path(opened, "messageRequestMode.json"), _request_modes)


def _request_modes(raw: dict[str, Any]) -> dict[str, dict[str, RequestMode]]:
    name = "messageRequestModeMap"
    return {
        topic: {
            group: bean(RequestMode, value, f"{name}.{topic}.{group}", topic=topic, consumer_group=group)
            for group, value in entries(groups, f"{name}.{topic}").items()
        }
        for topic, groups in entries(raw.get(name), name).items()
    }


def _metrics(name: str) -> Callable[[dict[str, Any]], dict[str, Metric]]:
    def decode(raw: dict[str, Any]) -> dict[str, Metric]:
        data_version(raw)
        return {
            topic: bean(Metric, value, f"{name}.{topic}")
            for topic, value in entries(raw.get(name), name).items()
        }

    return decode


def read_timer_metrics(opened: Opened) -> dict[str, Metric] | None:
    """timermetrics (TimerMetrics): destination topic -> messages in the timer."""
    return read_config(config_path(opened, "timermetrics"), _metrics("timingCount"))


def read_transaction_metrics(opened: Opened) -> dict[str, Metric] | None:
    """transactionMetrics (TransactionMetrics): destination topic -> half messages without a decision."""
    return read_config(config_path(opened, "transactionMetrics"), _metrics("transactionCount"))


# How a broker's managers decode each file of `config/`, by its name.
DECODERS: Mapping[str, Callable[[dict[str, Any]], object]] = {
    "topics.json": decode_topics,
    "subscriptionGroup.json": _groups,
    "consumerOffset.json": _consumer_offsets,
    "lmqConsumerOffset.json": _consumer_offsets,
    "delayOffset.json": _delay_offsets,
    "consumerFilter.json": _consumer_filters,
    "consumerOrderInfo.json": decode_order_infos,
    "topicQueueMapping.json": _queue_mappings,
    "messageRequestMode.json": _request_modes,
    "timermetrics": _metrics("timingCount"),
    "transactionMetrics": _metrics("transactionCount"),
}
# Members that a broker's managers copy in this order (`Map.putAll`, `DataVersion.assignNewOne`), so that null
# is refused, and what a file without the member has.
_COPIED: Mapping[str, Mapping[str, object]] = {
    "topics.json": {"topicConfigTable": True, "dataVersion": True},
    "subscriptionGroup.json": {"dataVersion": True, "subscriptionGroupTable": True},
    "delayOffset.json": {"offsetTable": True},
    "topicQueueMapping.json": {"topicQueueMappingInfoMap": None, "dataVersion": True},
    "timermetrics": {"timingCount": True, "dataVersion": True},
    "transactionMetrics": {"transactionCount": True, "dataVersion": True},
}


# ---- broker.conf -------------------------------------------------------------------------------------------


def parse_delay_levels(text: str) -> tuple[int, ...]:
    """The delays in ms of messageDelayLevel (ScheduleMessageService.parseDelayLevel); level 1 is the first.

    >>> parse_delay_levels("1s 5m")
    (1000, 300000)

    Raises ValueError, naming the part, for anything but numbers with the units s, m, h and d.
    """
    delays = []
    for part in text.split():
        match = _LEVEL.match(part)
        if match is None:
            raise ValueError(f"expected delays such as '1s 5m 2h', found {part!r}")
        delays.append(int(match[1]) * _UNITS_MS[match[2]])
    if not delays:
        raise ValueError("expected at least one delay, such as '1s', found none")
    return tuple(delays)


def _integer(text: str) -> int:
    """A Java int. MixAll.properties2Object ignores others, and numbers with a space: the default is used."""
    if _INTEGER.match(text) is None or not _INT_MIN <= int(text) <= _INT_MAX:
        raise ValueError(f"expected a whole number without spaces, found {text!r}")
    return int(text)


def _flag(text: str) -> bool:
    """Boolean.parseBoolean takes everything but `true` as false, `true` with a space too."""
    if text.lower() not in ("true", "false"):
        raise ValueError(f"expected true or false without spaces, found {text!r}")
    return text.lower() == "true"


def parse_paths(text: str) -> tuple[str, ...]:
    """Paths with commas between them (MixAll.MULTI_PATH_SPLITTER).

    >>> parse_paths("/data/a, /data/b/")
    ('/data/a', '/data/b')
    """
    return tuple(path.strip().rstrip("/") for path in text.split(",") if path.strip())


def parse_hours(text: str) -> tuple[int, ...]:
    """The hours of deleteWhen, such as `04` or `02;04` (UtilAll.isItTimeToDo, Integer.parseInt).

    Raises ValueError, with the text, for anything else.
    """
    hours = tuple(_integer(part) for part in text.strip().rstrip(";").split(";"))
    if any(not 0 <= hour <= 23 for hour in hours):
        raise ValueError(f"expected hours from 00 to 23, separated by ;, found {text!r}")
    return hours


def _flush_disk_type(text: str) -> str:
    """FlushDiskType.valueOf, which a broker calls with the trimmed text; it does not start with another."""
    if text.strip() not in ("SYNC_FLUSH", "ASYNC_FLUSH"):
        raise ValueError(f"expected SYNC_FLUSH or ASYNC_FLUSH, found {text!r}")
    return text.strip()


def _setting(name: str, default: Any, read: Callable[[str], Any] = _integer) -> Any:
    """A field of `BrokerConf`: RocketMQ's name of the setting, its default, and how its text is read."""
    return field(default=default, metadata={"name": name, "read": read})


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConf:
    """The settings that services, writes and views use, with the defaults of 5.5.

    `given` are RocketMQ's names of the settings that the file has.
    """

    message_delay_levels_ms: tuple[int, ...] = _setting(
        "messageDelayLevel", DELAY_LEVELS_MS, parse_delay_levels
    )
    timer_wheel_enable: bool = _setting("timerWheelEnable", True, _flag)
    timer_stop_enqueue: bool = _setting("timerStopEnqueue", False, _flag)
    timer_stop_dequeue: bool = _setting("timerStopDequeue", False, _flag)
    timer_precision_ms: int = _setting("timerPrecisionMs", 1000)
    timer_roll_window_slots: int = _setting("timerRollWindowSlot", 2 * 24 * 3600)
    timer_max_delay_sec: int = _setting("timerMaxDelaySec", 3 * 24 * 3600)
    timer_log_file_size: int = _setting("mappedFileSizeTimerLog", 100 << 20)
    timer_delete_key_has_topic: bool = _setting("appendTopicForTimerDeleteKey", False, _flag)
    auto_create_subscription_group: bool = _setting("autoCreateSubscriptionGroup", True, _flag)
    use_separate_retry_queue: bool = _setting("useSeparateRetryQueue", False, _flag)
    timer_rocksdb_enable: bool = _setting("timerRocksDBEnable", False, _flag)
    transaction_timeout_ms: int = _setting("transactionTimeOut", 6000)
    transaction_check_max: int = _setting("transactionCheckMax", 15)
    transaction_check_interval_ms: int = _setting("transactionCheckInterval", 30_000)
    transaction_rocksdb_enable: bool = _setting("transRocksDBEnable", False, _flag)
    file_reserved_hours: int = _setting("fileReservedTime", 72)
    delete_when: tuple[int, ...] = _setting("deleteWhen", (4,), parse_hours)
    disk_max_used_space_ratio: int = _setting("diskMaxUsedSpaceRatio", 75)
    disk_space_clean_forcibly_ratio: int = _setting("diskSpaceCleanForciblyRatio", 85)
    disk_space_warning_level_ratio: int = _setting("diskSpaceWarningLevelRatio", 90)
    clean_file_forcibly_enable: bool = _setting("cleanFileForciblyEnable", True, _flag)
    delete_file_batch_max: int = _setting("deleteFileBatchMax", 10)
    clean_resource_interval_ms: int = _setting("cleanResourceInterval", 10_000)
    flush_disk_type: str = _setting("flushDiskType", "ASYNC_FLUSH", _flush_disk_type)
    flush_interval_commit_log_ms: int = _setting("flushIntervalCommitLog", 500)
    flush_commit_log_least_pages: int = _setting("flushCommitLogLeastPages", 4)
    flush_commit_log_thorough_interval_ms: int = _setting("flushCommitLogThoroughInterval", 10_000)
    max_message_size: int = _setting("maxMessageSize", 4 << 20)
    commit_log_file_size: int = _setting("mappedFileSizeCommitLog", 1 << 30)
    queue_file_size: int = _setting("mappedFileSizeConsumeQueue", 6_000_000)
    batch_queue_file_size: int = _setting("mapperFileSizeBatchConsumeQueue", 300_000 * 46)
    max_hash_slot_num: int = _setting("maxHashSlotNum", 5_000_000)
    max_index_num: int = _setting("maxIndexNum", 20_000_000)
    message_index_enable: bool = _setting("messageIndexEnable", True, _flag)
    read_only_log_paths: tuple[str, ...] = _setting("readOnlyCommitLogStorePaths", (), parse_paths)
    broker_name: str = _setting("brokerName", "", str.strip)  # "": that of the store
    broker_cluster_name: str = _setting("brokerClusterName", "DefaultCluster", str.strip)
    revive_queue_num: int = _setting("reviveQueueNum", 8)
    tiered_store_file_path: str = _setting("tieredStoreFilePath", "", str.strip)
    pop_consumer_kv_service_enable: bool = _setting("popConsumerKVServiceEnable", False, _flag)
    given: frozenset[str] = frozenset()

    @property
    def known_delay_levels_ms(self) -> tuple[int, ...] | None:
        """`message_delay_levels_ms`; None without a file that says which levels the broker has."""
        return self.message_delay_levels_ms if self.given else None

    def delay_ms(self, level: int) -> int | None:
        """The delay of a level from 1 on; None for a level that the broker does not deliver."""
        delays = self.message_delay_levels_ms
        return delays[level - 1] if 0 < level <= len(delays) else None

    @property
    def disk_warning_percent(self) -> int:
        """Above this use of a disk the broker refuses writes (getDiskSpaceWarningLevelRatio)."""
        return min(max(self.disk_space_warning_level_ratio, 35), 90)

    @property
    def disk_forcibly_percent(self) -> int:
        """Above this use of a disk the broker deletes files of any age (getDiskSpaceCleanForciblyRatio)."""
        return min(max(self.disk_space_clean_forcibly_ratio, 30), 85)

    @property
    def disk_max_used_percent(self) -> int:
        """Above this use of a disk the broker deletes expired files at any hour (diskMaxUsedSpaceRatio)."""
        return min(max(self.disk_max_used_space_ratio, 10), 95)

    @staticmethod
    def of(properties: dict[str, str], source: str) -> BrokerConf:
        """Raises OptionError, naming `source` and the setting, for a value that no broker would accept."""
        values: dict[str, Any] = {}
        for each in fields(BrokerConf):
            name = each.metadata.get("name")
            if name in properties:
                try:
                    values[each.name] = each.metadata["read"](properties[name])
                except ValueError as error:
                    raise OptionError(f"{source}: {name}: {error}") from error
        return BrokerConf(**values, given=frozenset(properties))


def read_broker_conf(path: str) -> BrokerConf:
    """The settings in a broker.conf. Raises StoreNotFoundError for no file, OptionError for a bad value."""
    data = files_at(path).read(path)
    if data is None:
        raise StoreNotFoundError(f"{path}: expected the broker.conf of the store's broker, found no file")
    return BrokerConf.of(parse_properties(data), path)


_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_ENTRY = re.compile(r"((?:\\.|[^\\=:\s])*)[ \t\f]*[=:]?[ \t\f]*(.*)\Z", re.DOTALL)


def parse_properties(data: bytes) -> dict[str, str]:
    """The entries of a Java properties file (java.util.Properties.load); the last entry of a name counts."""
    entries = {}
    line = ""
    for part in [*re.split(r"\r\n|\r|\n", data.decode("latin-1")), ""]:  # "" ends the last line
        part = part.lstrip(" \t\f")
        if not line and (not part or part[0] in "#!"):
            continue
        line += part
        if (len(line) - len(line.rstrip("\\"))) % 2:
            line = line[:-1]  # The next line continues this one.
            continue
        match = _ENTRY.match(line)
        assert match is not None  # Every part of the pattern may be empty.
        entries[_unescaped(match[1])] = _unescaped(match[2])
        line = ""
    return entries


def _unescaped(text: str) -> str:
    return _ESCAPE.sub(
        lambda match: chr(int(match[1][1:], 16)) if len(match[1]) == 5 else _ESCAPES.get(match[1], match[1]),
        text,
    )
