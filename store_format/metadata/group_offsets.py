"""A group's offsets in a store's own `config/`: which file the broker keeps them in, and how they are changed
while no broker runs.

Reading takes no lock. Changing takes the store's lock and follows ConfigManager.persist, so that a kill at
any moment leaves the old offsets or the new ones.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from store_format.errors import CorruptStoreError, StoreError, UnsupportedFormatError
from store_format.files.lock import StoreLock
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
from store_format.metadata.values import ConsumerOffsets, split_offset_key

__all__ = [
    "GroupOffsets",
    "known_groups",
    "offsets_file",
    "offsets_identity",
    "read_group_offsets",
    "refuse_foreign_offsets",
    "rewrite_config",
    "write_group_offsets",
]

_log = logging.getLogger(__name__)

_QUEUE_ID_MAX = 2**31 - 1
_PLAIN, _LIGHT = "consumerOffset.json", "lmqConsumerOffset.json"
_IN_ROCKSDB = (  # directory of config/, and the broker's setting that made it
    ("consumerOffsets", "storeType=defaultRocksDB"),
    ("metadata", "useSingleRocksDBForAllConfigs=true"),
    ("rdb", "configManagerVersion=v2"),
)


@dataclass(frozen=True, slots=True)
class GroupOffsets:
    """A group's next offsets in one store, by (topic, queue id), and the file that has them."""

    file: str
    offsets: Mapping[tuple[str, int], int]


def refuse_foreign_offsets(root: str) -> None:
    """Raises UnsupportedFormatError for a store whose offsets are not in a file that is read here."""
    for directory, setting in _IN_ROCKSDB:
        if "CURRENT" in entry_names(f"{root}/config/{directory}", missing_ok=True):
            raise UnsupportedFormatError(
                f"{root} keeps consumer offsets in RocksDB ({setting}); set offsetStore to local or none"
            )


def offsets_file(root: str) -> str:
    """The name of the file in which the broker keeps offsets: where both kinds are, the one whose data
    version is the later one.

    A broker with light queues (enableLmq) has all offsets in lmqConsumerOffset.json, and never looks at the
    other file.
    """
    light = read_lmq_consumer_offsets(root, is_needed=True)
    if light is None:
        return _PLAIN
    plain = read_consumer_offsets(root, is_needed=True)
    return _PLAIN if plain is not None and _written_at(plain) > _written_at(light) else _LIGHT


def offsets_identity(root: str) -> object:
    """Another value when a file with consumer offsets was replaced: two looks at directory entries."""
    return tuple(stat_identity(config_path(root, name)) for name in (_PLAIN, _LIGHT))


def known_groups(root: str) -> set[str]:
    """The groups that have offsets in the store, or that are configured in it; for hints, so files that
    cannot be read have none.
    """
    found: set[str] = set()
    try:
        for each in (read_consumer_offsets(root), read_lmq_consumer_offsets(root)):
            keys = (split_offset_key(key) for key in each.offsets) if each else ()
            found |= {key[1] for key in keys if key is not None}
        return found | set(read_subscription_groups(root) or ())
    except StoreError:
        return found


def _written_at(offsets: ConsumerOffsets) -> int:
    return 0 if offsets.data_version is None else offsets.data_version.timestamp


def read_group_offsets(root: str, group: str) -> GroupOffsets:
    """What the broker has, or had, for the group: empty when it knows nothing of it. Ids that no queue can
    have are left out.

    Raises UnsupportedFormatError where offsets are in RocksDB, and CorruptStoreError for files that cannot be
    read.
    """
    refuse_foreign_offsets(root)
    name = offsets_file(root)
    found = (read_lmq_consumer_offsets if name == _LIGHT else read_consumer_offsets)(root, is_needed=True)
    offsets: dict[tuple[str, int], int] = {}
    for key, table in found.offsets.items() if found else ():
        topic_and_group = split_offset_key(key)
        if topic_and_group is not None and topic_and_group[1] == group:
            topic = topic_and_group[0]
            offsets |= {
                (topic, queue_id): offset
                for queue_id, offset in table.items()
                if 0 <= queue_id <= _QUEUE_ID_MAX
            }
    for key, offset in found.lmq_offsets.items() if found else ():
        topic_and_group = split_offset_key(key)
        if topic_and_group is not None and topic_and_group[1] == group:
            offsets[topic_and_group[0], 0] = offset
    return GroupOffsets(config_path(root, name), offsets)


def write_group_offsets(
    root: str,
    group: str,
    offsets: Mapping[tuple[str, int], int],
    *,
    timestamp: int,
    is_reset: bool = False,
    lock_timeout: float = 0.0,
    files: FileWrites | None = None,
) -> bool:
    """Puts the group's offsets into the broker's file; False when they were there. None goes down unless it
    `is_reset`.

    Raises StoreInUseError while a broker, or another writer, has the store.
    """
    refuse_foreign_offsets(root)
    files = files or FileWrites(sync=True)
    with StoreLock(root, timeout=lock_timeout) as lock:
        lock.refuse_other_openers()
        path = config_path(root, offsets_file(root))
        is_old = _is_of_49(root)

        def merge(data: bytes | None, file: str) -> bytes | None:
            return merge_consumer_offsets(
                data, group, offsets, timestamp=timestamp, is_reset=is_reset, is_old=is_old, file=file
            )

        files.make_directories(root, "config")
        return rewrite_config(path, merge, files)


def rewrite_config(path: str, merge: Callable[[bytes | None, str], bytes | None], files: FileWrites) -> bool:
    """The file at `path` as `merge` makes it from its bytes and its name, by the `.bak` rule; False when that
    is None.

    A file that cannot be read, what a crash leaves, is replaced from its `.bak` and must not become the
    `.bak` itself. Raises CorruptStoreError where there is no `.bak` either: what the file held of other
    groups would be lost.
    """
    data, backup = read_bytes(path), read_bytes(f"{path}.bak")
    text, is_good = None, False
    if data:
        try:
            text, is_good = merge(data, path), True
        except CorruptStoreError as error:
            if not backup:
                raise without_backup(error, path) from error
            _log.warning("%s; going on from %s.bak, as a broker does", error, path)
    if not is_good:
        text = merge(backup, f"{path}.bak")
    if text is None:
        return False
    if data or backup:
        files.persist_config(path, text, is_good=is_good)
    else:
        files.replace(path, text)  # a first file has no .bak: half of it would be what nobody can read
    return True


def _is_of_49(root: str) -> bool:
    """Whether the broker is of 4.9, as its topics.json tells: that has a data version without a state
    version.
    """
    topics = read_topics(root)
    return (
        topics is not None
        and topics.data_version is not None
        and "stateVersion" not in topics.raw.get("dataVersion", {})
    )
