"""Consumer groups and offsets in a store's `config/`: which file counts, reading, and writing while no broker
runs.

Reading takes no lock. Writing takes the store's lock and follows ConfigManager.persist, so a kill at any
moment leaves either the old or the new content. It changes entries of a broker's consumerOffset.json,
subscriptionGroup.json or delayOffset.json, or of a client's offsets.json, and keeps everything else. A
group's offset decreases only if the caller passes `is_reset`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from store_format.errors import CorruptStoreError, StoreError, StoreNotFoundError, UnsupportedFormatError
from store_format.files.lock import CheckedLock
from store_format.files.write import FileWrites
from store_format.java.fastjson import loads
from store_format.metadata.read import (
    config_path,
    identities_in_rocksdb,
    loaded_bytes,
    read_config,
    read_consumer_offsets,
    read_lmq_consumer_offsets,
    read_subscription_groups,
    read_topics,
)
from store_format.metadata.values import (
    ConsumerOffsets,
    Dialect,
    SubscriptionGroup,
    UnlikeBeanError,
    bean_errors_of,
    dialect_of,
    dumps,
    integer,
    integer_map,
    items,
    java_name,
    members,
    next_version,
    string,
    with_integer_keys,
)
from store_format.names import (
    ORIGIN_GROUP,
    RETRY_TOPIC,
    REVIVE_GROUP,
    QueueKey,
    RetryOwner,
    is_light_queue,
    is_retry_topic,
    is_system_group,
    normal_topic,
    retry_owner,
)
from store_format.opened.store import Opened

# PopReviveService commits the offset of the message that it has processed, not of the next one

_PLAIN, _LIGHT = "consumerOffset.json", "lmqConsumerOffset.json"
_IN_ROCKSDB = (  # directory in config/, and the broker setting that creates it
    ("consumerOffsets", "storeType=defaultRocksDB"),
    ("metadata", "useSingleRocksDBForAllConfigs=true"),
    ("rdb", "configManagerVersion=v2"),
)

_OLD_OBJECT_KEYS = re.compile(rb'"offsetTable":\{\{')

_GROUP_FILE = "subscriptionGroup.json"
_SINCE_5 = (
    *("attributes", "consume_message_orderly", "consume_timeout_minute"),
    *("group_retry_policy", "group_sys_flag"),
)

_DELAY_FILE = "delayOffset.json"
_OLD_MAP = re.compile(rb'"offsetTable":\{-?[0-9]+:')  # fastjson 1.2 writes no line break before integer keys


# ---- consumer offsets --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Committed:
    """The committed offsets of all groups in one store: (group, topic) -> queue id -> next offset to consume.

    `pulled` has, in the same shape, the offsets up to which the broker has handed messages to consumers
    (5.5). Negative offsets, which mean "unknown" in a broker, are left out.
    """

    offsets: dict[tuple[str, str], dict[int, int]] = field(default_factory=dict)
    pulled: dict[tuple[str, str], dict[int, int]] = field(default_factory=dict)

    def pairs(self) -> set[tuple[str, str]]:
        """Returns the (group, topic) pairs that have an entry, even if all its offsets are unknown."""
        return self.offsets.keys() | self.pulled.keys()


def refuse_foreign_offsets(opened: Opened) -> None:
    """For a writer: raises UnsupportedFormatError for a store that keeps consumer offsets in RocksDB."""
    for directory, setting in _IN_ROCKSDB:
        if "CURRENT" in opened.files.names(f"{opened.path}/config/{directory}", missing_ok=True):
            raise UnsupportedFormatError(
                f"{opened} keeps consumer offsets in RocksDB ({setting}); set offsetStore to local or none"
            )


def refuse_reset(opened: Opened) -> None:
    """For a reset from outside: raises UnsupportedFormatError for a store of which only a running broker may
    change offsets: in RocksDB, or in DLedger, where each node of the group has its own copy of them.
    """
    tool = "start the broker, and reset the group with mqadmin resetOffsetByTime"
    for directory, setting in _IN_ROCKSDB:
        if "CURRENT" in opened.files.names(f"{opened.path}/config/{directory}", missing_ok=True):
            raise UnsupportedFormatError(
                f"{opened} keeps consumer offsets in RocksDB ({setting}), which are not written: {tool}"
            )
    if opened.dledger_logs:
        raise UnsupportedFormatError(
            f"{opened} is a DLedger store (enableDLegerCommitLog=true), and each node of its group has its "
            f"own copy of the offsets: {tool}"
        )


def refuse_unreadable_offsets(opened: Opened) -> None:
    """For a reader: raises UnsupportedFormatError if RocksDB has the offsets and rocksdict is not installed,
    and CorruptStoreError if its database cannot be read.
    """
    if identities_in_rocksdb(opened, _PLAIN):
        read_consumer_offsets(opened, is_needed=True)


def refuse_unknown_offsets(opened: Opened) -> None:
    """Raises the error that says why the committed offsets of all groups of a store are unknown.

    UnsupportedFormatError: they are in RocksDB, and rocksdict is not installed. CorruptStoreError: the
    broker's file cannot be decoded, and has no `.bak`, or its database cannot be read. StoreNotFoundError:
    the file was lost, see `lacks_offsets`.
    """
    if lacks_offsets(opened):
        raise StoreNotFoundError(
            f"{config_path(opened, _PLAIN)}: expected the committed offsets of the groups of {_GROUP_FILE}, "
            "found no file"
        )


def lacks_offsets(opened: Opened) -> bool:
    """Whether the broker's file of consumer offsets was lost: there is none, or an empty one, but there are
    groups of applications.

    A broker writes the file every five seconds (flushConsumerOffsetInterval), also without any offset.
    Raises CorruptStoreError if the file cannot be decoded, and has no `.bak`, and as `refuse_unknown_offsets`
    for offsets in RocksDB.
    """
    _, found = read_broker_offsets(opened, is_needed=True)
    groups = read_subscription_groups(opened) if found is None else None
    return groups is not None and not all(map(is_system_group, groups))


def read_broker_offsets(opened: Opened, *, is_needed: bool = False) -> tuple[str, ConsumerOffsets | None]:
    """The name of the file in which the broker of a store keeps consumer offsets, and the file's contents.

    A broker uses only one of the two files (BrokerController): with enableLmq, LmqConsumerOffsetManager keeps
    all offsets in lmqConsumerOffset.json and never reads consumerOffset.json; ConsumerOffsetManager never
    reads the other file. So the entries of the two files are never mixed.

    No file of the store says which manager the broker has. If both files exist, the file with the later data
    version counts, and lmqConsumerOffset.json for equal versions, since only a broker with enableLmq creates
    it. A broker updates the version every 500 commits (consumerOffsetUpdateVersionStep), so after enableLmq
    was switched off the old file counts that long.

    `is_needed`: a file that cannot be decoded and has no `.bak` raises CorruptStoreError, see `read_config`.
    """
    light = read_lmq_consumer_offsets(opened, is_needed=is_needed)
    plain = read_consumer_offsets(opened, is_needed=is_needed)
    if light is None or (plain is not None and _written_at(plain) > _written_at(light)):
        return _PLAIN, plain
    return _LIGHT, light


def groups_without_file(opened: Opened) -> set[str]:
    """The groups of consumerOffset.json, if lmqConsumerOffset.json counts and does not have them.

    See `read_broker_offsets`. For hints: an unreadable file counts as empty.
    """
    with suppress(StoreError):
        name, light = read_broker_offsets(opened)
        plain = read_consumer_offsets(opened) if name == _LIGHT else None
        if plain is not None and light is not None:
            known = {group for _, group, _ in light.by_topic_and_group()}
            return {group for _, group, _ in plain.by_topic_and_group()} - known
    return set()


def offsets_identity(opened: Opened) -> tuple[tuple[int, int, int] | None, ...]:
    """The `stat_identity` of each file of consumer offsets. Costs two stat calls, without RocksDB."""
    files = tuple(opened.files.stat_identity(config_path(opened, name)) for name in (_PLAIN, _LIGHT))
    return files + identities_in_rocksdb(opened, _PLAIN)


def known_groups(opened: Opened) -> set[str]:
    """The groups with offsets or a configuration in the store. For hints: unreadable files count as empty."""
    found: set[str] = set()
    try:
        _, offsets = read_broker_offsets(opened)
        found |= {group for _, group, _ in offsets.by_topic_and_group()} if offsets is not None else set()
        return found | set(read_subscription_groups(opened) or ())
    except StoreError:
        return found


def _written_at(offsets: ConsumerOffsets) -> int:
    return 0 if offsets.data_version is None else offsets.data_version.timestamp


def read_group_offsets(opened: Opened, group: str) -> dict[QueueKey, int]:
    """(topic, queue id) -> next offset of one group, as stored; empty if the file does not have the group.

    Queue ids that no queue can have are left out. Raises UnsupportedFormatError if the offsets are in
    RocksDB, and rocksdict is not installed, and CorruptStoreError for a file that cannot be decoded.
    """
    _, found = read_broker_offsets(opened, is_needed=True)
    return {
        (topic, queue_id): offset
        for topic, owner, table in (found.by_topic_and_group() if found is not None else ())
        if owner == group
        for queue_id, offset in table.items()
    }


def read_committed(opened: Opened) -> Committed:
    """The offsets of all groups in the broker's file, or in RocksDB; empty without both.

    The offsets of REVIVE_GROUP are increased by one, so that all offsets are the next to consume.
    """
    _, found = read_broker_offsets(opened)
    committed = Committed()
    if found is not None:
        _fill(committed.offsets, found.by_topic_and_group())
        _fill(committed.pulled, found.pulled_by_topic_and_group())
    return committed


def _fill(
    known: dict[tuple[str, str], dict[int, int]], tables: Iterable[tuple[str, str, Mapping[int, int]]]
) -> None:
    for topic, group, table in tables:
        step = 1 if group == REVIVE_GROUP else 0
        next_offsets = {queue_id: offset + step for queue_id, offset in table.items() if offset >= 0}
        known.setdefault((group, topic), {}).update(next_offsets)


def write_group_offsets(
    opened: Opened,
    group: str,
    offsets: Mapping[QueueKey, int],
    *,
    timestamp: int,
    is_reset: bool = False,
    lock_timeout: float = 0.0,
    files: FileWrites | None = None,
) -> bool:
    """Writes the group's offsets to the broker's file; False if the file already has them.

    An offset decreases only with `is_reset`. `timestamp` is the clock in ms, `lock_timeout` in seconds.
    Raises StoreInUseError while a broker or another writer has the store.
    """
    refuse_foreign_offsets(opened)
    with CheckedLock(opened.path, timeout=lock_timeout):
        files = files or FileWrites(sync=True)
        return write_group_offsets_held(
            opened, group, offsets, timestamp=timestamp, is_reset=is_reset, files=files
        )


def write_group_offsets_held(
    opened: Opened,
    group: str,
    offsets: Mapping[QueueKey, int],
    *,
    timestamp: int,
    is_reset: bool = False,
    files: FileWrites,
) -> bool:
    """`write_group_offsets` for a caller that holds the store's lock, such as a service in its turn."""
    refuse_foreign_offsets(opened)
    path = config_path(opened, read_broker_offsets(opened, is_needed=True)[0])
    is_old = is_broker_49(opened)
    files.make_directories(opened.path, "config")
    return rewrite_config(
        path,
        lambda data, file: merge_consumer_offsets(
            data, group, offsets, timestamp=timestamp, is_reset=is_reset, is_old=is_old, file=file
        ),
        files,
    )


def rewrite_config(path: str, merge: Callable[[bytes | None, str], bytes | None], files: FileWrites) -> bool:
    """Replaces the file at `path` by `merge(bytes, name)`, with the `.bak` rule; False if that is None.

    If a crash left a file that cannot be decoded, its `.bak` is merged instead, and the file does not become
    the `.bak`. Raises CorruptStoreError if there is no `.bak` either, because the offsets of other groups
    would be lost.
    """
    place, data = loaded_bytes(path)
    text = merge(data, place)
    if text is None:
        return False
    if data is None:
        files.replace(path, text)  # no .bak yet: write a whole file at once
    else:
        files.persist_config(path, text, is_good=place == path)
    return True


def is_broker_49(opened: Opened) -> bool:
    """Whether a 4.9 broker wrote the store: topics.json has a data version without a state version."""
    topics = read_topics(opened)
    return (
        topics is not None
        and topics.data_version is not None
        and "stateVersion" not in topics.raw.get("dataVersion", {})
    )


# ---- the bytes of the files --------------------------------------------------------------------------------


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


def read_local_offsets(path: str) -> dict[tuple[str, str, int], int] | None:
    """A client's offsets.json (LocalFileOffsetStore): (topic, broker name, queue id) -> next offset."""
    return read_config(path, partial(_local_offsets, path), is_needed=True)


def _local_offsets(path: str, raw: dict[str, Any]) -> dict[tuple[str, str, int], int]:
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


# ---- groups ------------------------------------------------------------------------------------------------


def put_subscription_group(
    opened: Opened,
    group: str,
    changes: Mapping[str, Any] | None = None,  # Any: JSON
    *,
    timestamp: int,
    files: FileWrites,
) -> bool:
    """Adds the group with a broker's defaults, and changes these members; False if the file has it so.

    The lock is the caller's. `timestamp` is the clock in ms. Unknown members and the order are kept. Raises
    CorruptStoreError for a file that cannot be decoded and has no `.bak`.
    """
    is_old = is_broker_49(opened)
    files.make_directories(opened.path, "config")
    return rewrite_config(
        config_path(opened, _GROUP_FILE),
        lambda data, file: _merge_group(data, group, changes or {}, timestamp, file, is_old=is_old),
        files,
    )


def _merge_group(
    data: bytes | None,
    group: str,
    changes: Mapping[str, Any],
    timestamp: int,
    file: str = _GROUP_FILE,
    *,
    is_old: bool = False,
) -> bytes | None:
    """subscriptionGroup.json with the group (SubscriptionGroupManager.updateSubscriptionGroupConfig).

    None if nothing changes. `is_old`: of a 4.9 broker, which has fewer members. Raises CorruptStoreError for
    a file that is no subscriptionGroup.json.
    """
    with bean_errors_of(file):
        raw = members(loads(data, file) if data else None, "the file")
        table = dict(members(raw.get("subscriptionGroupTable"), "subscriptionGroupTable"))
        new = SubscriptionGroup(group, group_retry_policy={"type": "CUSTOMIZED"})
        entry = members(table.get(group, group_members(new, is_old=is_old)), group)
        after = dict(sorted((entry | dict(changes)).items()))
        if table.get(group) == after:
            return None
        known = members(raw.get("dataVersion"), "dataVersion")
        version = next_version({"counter": 0} | ({} if is_old else {"stateVersion": 0}) | known, timestamp)
    first: dict[str, Any] = {"dataVersion": version} | ({} if is_old else {"forbiddenTable": {}})  # Any: JSON
    return dumps(first | raw | {"dataVersion": version, "subscriptionGroupTable": table | {group: after}})


def group_members(group: SubscriptionGroup, *, is_old: bool) -> dict[str, Any]:  # Any: JSON
    """The members of a group that subscriptionGroup.json has; `is_old`: that of a 4.9 broker, with fewer."""
    left_out = {"unknown", *(_SINCE_5 if is_old else ())}
    return {java_name(name): getattr(group, name) for name in group.__slots__ if name not in left_out}


# ---- retry topics ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RetryOwners:
    """`store_format.names.retry_owner` for one store.

    A group with offsets for a retry topic of pop owns the topic, if it is the only such group: a broker
    commits offset 0 when it creates the topic (PopReviveService.initPopRetryOffset). `readers` are the groups
    with offsets for each retry topic.
    """

    groups: frozenset[str]
    topics: frozenset[str]
    readers: Mapping[str, Collection[str]] = field(default_factory=dict)

    @staticmethod
    def read(opened: Opened, topics: Iterable[str]) -> RetryOwners:
        """The owners in the store at `opened`, which has the `topics`. Damaged files count as empty."""
        pairs: Collection[tuple[str, str]] = ()
        with suppress(StoreError):
            pairs = read_committed(opened).pairs()
        return RetryOwners.of(known_groups(opened), topics, pairs)

    @staticmethod
    def of(groups: Iterable[str], topics: Iterable[str], pairs: Iterable[tuple[str, str]]) -> RetryOwners:
        """The owners by the names that exist, and by the (group, topic) `pairs` that have offsets."""
        readers: dict[str, set[str]] = {}
        for group, topic in pairs:
            if is_retry_topic(topic):
                readers.setdefault(topic, set()).add(group)
        return RetryOwners(frozenset(groups), frozenset(topics), readers)

    def owner(self, name: str, properties: Mapping[str, str | None] | None = None) -> RetryOwner:
        """The owner of a retry topic, or of a message in the topic that has the `properties`."""
        if not any((properties or {}).get(name) for name in (ORIGIN_GROUP, RETRY_TOPIC)):
            popping = [group for group in self.readers.get(name, ()) if normal_topic(name, group)[1]]
            if len(popping) == 1:
                return RetryOwner(popping[0], normal_topic(name, popping[0])[0])
        return retry_owner(name, self.groups, self.topics, properties)


# ---- delay levels ------------------------------------------------------------------------------------------


def merge_delay_offsets(
    data: bytes | None,
    offsets: Mapping[int, int],
    *,
    timestamp: int,
    is_old: bool = False,
    file: str = f"config/{_DELAY_FILE}",
) -> bytes | None:
    """The file with these next offsets by delay level (from 1); None if it has them already.

    `data` is the present file, None or empty without one; then `is_old` says that the broker is a 4.9, which
    writes no data version. Other levels and members stay. A data version is incremented with `timestamp`, the
    clock in ms. Raises CorruptStoreError for a file of another kind.

    >>> merge_delay_offsets(b'{"offsetTable":{3:2}}', {3: 2}, timestamp=0) is None
    True
    """
    with bean_errors_of(file):
        raw = members(loads(data, file) if data else None, "the file")
        table = integer_map(raw.get("offsetTable"), "offsetTable")
        after = dict(sorted((table | dict(offsets)).items()))  # the order of a HashMap with small keys
        if after == table:
            return None
        version = raw.get("dataVersion") if data else None if is_old else {"counter": 0, "stateVersion": 0}
        if version is not None:
            newer = next_version(members(version, "dataVersion"), timestamp)
            raw = {"dataVersion": newer} | raw | {"dataVersion": newer}
    old = bool(_OLD_MAP.search(data)) if data else is_old
    return dumps(raw | {"offsetTable": after}, Dialect.FASTJSON if old else Dialect.FASTJSON2)


def write_delay_offsets(
    opened: Opened, offsets: Mapping[int, int], *, timestamp: int, files: FileWrites
) -> bool:
    """Writes the next offsets by delay level; False if the file has them already.

    The caller holds the store's lock. `timestamp` is the clock in ms. Raises CorruptStoreError for a file
    that cannot be decoded and has no `.bak`.
    """
    is_old = is_broker_49(opened)
    files.make_directories(opened.path, "config")
    return rewrite_config(
        config_path(opened, _DELAY_FILE),
        lambda data, file: merge_delay_offsets(data, offsets, timestamp=timestamp, is_old=is_old, file=file),
        files,
    )
