"""Consumer offsets in a store's `config/`: which file counts, reading, and writing while no broker runs.

Reading takes no lock. Writing takes the store's lock and follows ConfigManager.persist, so a kill at any
moment leaves either the old or the new offsets.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from store_format.errors import CorruptStoreError, StoreError, UnsupportedFormatError
from store_format.files.lock import CheckedLock
from store_format.files.read import entry_names, read_bytes, stat_identity
from store_format.files.write import FileWrites
from store_format.metadata.merge_offsets import merge_consumer_offsets
from store_format.metadata.read import (
    config_path,
    read_consumer_offsets,
    read_lmq_consumer_offsets,
    read_subscription_groups,
    read_topics,
    without_backup,
)
from store_format.metadata.values import ConsumerOffsets
from store_format.names import REVIVE_GROUP, QueueKey

_log = logging.getLogger(__name__)

# PopReviveService commits the offset of the message that it has processed, not of the next one

_PLAIN, _LIGHT = "consumerOffset.json", "lmqConsumerOffset.json"
_IN_ROCKSDB = (  # directory in config/, and the broker setting that creates it
    ("consumerOffsets", "storeType=defaultRocksDB"),
    ("metadata", "useSingleRocksDBForAllConfigs=true"),
    ("rdb", "configManagerVersion=v2"),
)


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


def refuse_foreign_offsets(root: str) -> None:
    """Raises UnsupportedFormatError for a store that keeps consumer offsets in RocksDB."""
    for directory, setting in _IN_ROCKSDB:
        if "CURRENT" in entry_names(f"{root}/config/{directory}", missing_ok=True):
            raise UnsupportedFormatError(
                f"{root} keeps consumer offsets in RocksDB ({setting}); set offsetStore to local or none"
            )


def read_broker_offsets(root: str, *, is_needed: bool = False) -> tuple[str, ConsumerOffsets | None]:
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
    light = read_lmq_consumer_offsets(root, is_needed=is_needed)
    plain = read_consumer_offsets(root, is_needed=is_needed)
    if light is None or (plain is not None and _written_at(plain) > _written_at(light)):
        return _PLAIN, plain
    return _LIGHT, light


def offsets_identity(root: str) -> object:
    """A value that changes when a file of consumer offsets is replaced. Costs two stat calls."""
    return tuple(stat_identity(config_path(root, name)) for name in (_PLAIN, _LIGHT))


def known_groups(root: str) -> set[str]:
    """The groups with offsets or a configuration in the store. For hints: unreadable files count as empty."""
    found: set[str] = set()
    try:
        _, offsets = read_broker_offsets(root)
        found |= {group for _, group, _ in offsets.by_topic_and_group()} if offsets is not None else set()
        return found | set(read_subscription_groups(root) or ())
    except StoreError:
        return found


def _written_at(offsets: ConsumerOffsets) -> int:
    return 0 if offsets.data_version is None else offsets.data_version.timestamp


def read_group_offsets(root: str, group: str) -> dict[QueueKey, int]:
    """(topic, queue id) -> next offset of one group, as stored; empty if the file does not have the group.

    Queue ids that no queue can have are left out. Raises UnsupportedFormatError if the offsets are in
    RocksDB, and CorruptStoreError for a file that cannot be decoded.
    """
    refuse_foreign_offsets(root)
    _, found = read_broker_offsets(root, is_needed=True)
    offsets: dict[QueueKey, int] = {}
    for topic, owner, table in found.by_topic_and_group() if found is not None else ():
        if owner == group:
            offsets |= {(topic, queue_id): offset for queue_id, offset in table.items()}
    return offsets


def read_committed(root: str) -> Committed:
    """The offsets of all groups in the broker's file; empty without a file (RocksDB).

    The offsets of REVIVE_GROUP are increased by one, so that all offsets are the next to consume.
    """
    _, found = read_broker_offsets(root)
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
    root: str,
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
    refuse_foreign_offsets(root)
    with CheckedLock(root, timeout=lock_timeout):
        files = files or FileWrites(sync=True)
        return write_group_offsets_held(
            root, group, offsets, timestamp=timestamp, is_reset=is_reset, files=files
        )


def write_group_offsets_held(
    root: str,
    group: str,
    offsets: Mapping[QueueKey, int],
    *,
    timestamp: int,
    is_reset: bool = False,
    files: FileWrites,
) -> bool:
    """`write_group_offsets` for a caller that holds the store's lock, such as a service in its turn."""
    refuse_foreign_offsets(root)
    path = config_path(root, read_broker_offsets(root, is_needed=True)[0])
    is_old = is_broker_49(root)

    def merge(data: bytes | None, file: str) -> bytes | None:
        return merge_consumer_offsets(
            data, group, offsets, timestamp=timestamp, is_reset=is_reset, is_old=is_old, file=file
        )

    files.make_directories(root, "config")
    return rewrite_config(path, merge, files)


def rewrite_config(path: str, merge: Callable[[bytes | None, str], bytes | None], files: FileWrites) -> bool:
    """Replaces the file at `path` by `merge(bytes, name)`, with the `.bak` rule; False if that is None.

    If a crash left a file that cannot be decoded, its `.bak` is merged instead, and the file does not become
    the `.bak`. Raises CorruptStoreError if there is no `.bak` either, because the offsets of other groups
    would be lost.
    """
    data, backup = read_bytes(path), read_bytes(f"{path}.bak")
    text, is_good = None, False
    if data:
        try:
            text, is_good = merge(data, path), True
        except CorruptStoreError as error:
            if not backup:
                raise without_backup(error, path) from error
            _log.warning("%s; using %s.bak instead, as a broker does", error, path)
    if not is_good:
        text = merge(backup, f"{path}.bak")
    if text is None:
        return False
    if data or backup:
        files.persist_config(path, text, is_good=is_good)
    else:
        files.replace(path, text)  # no .bak yet: write a whole file at once
    return True


def is_broker_49(root: str) -> bool:
    """Whether a 4.9 broker wrote the store: topics.json has a data version without a state version."""
    topics = read_topics(root)
    return (
        topics is not None
        and topics.data_version is not None
        and "stateVersion" not in topics.raw.get("dataVersion", {})
    )
