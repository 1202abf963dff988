"""Where a group's offsets are kept (option `offsetStore`): the broker's file, a client's file, or nowhere.

As in RocketMQ an offset is the next one to read, and only a reset lowers it. A query restarts from Spark's
checkpoint; the offsets here are for other members, RocketMQ's tools and a broker that starts later.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping
from typing import Protocol

from rmq_spark.consume.consumer import (
    BROADCASTING,
    CLUSTERING,
    OFFSET_STORES,
    MessageQueue,
    check_client_id,
    check_group,
)
from store_format.errors import OptionError, StoreInUseError, StoreWriteError, UnsupportedFormatError
from store_format.files import paths
from store_format.files.lock import CheckedLock, StoreLock
from store_format.files.read import files_at
from store_format.files.write import FileWrites
from store_format.metadata.group_offsets import (
    merge_local_offsets,
    offsets_identity,
    read_group_offsets,
    read_local_offsets,
    refuse_foreign_offsets,
    rewrite_config,
    write_group_offsets_held,
)
from store_format.names import did_you_mean
from store_format.opened.store import Opened
from store_format.pop.log import note_moved

_log = logging.getLogger(__name__)

_WAIT_SECONDS = 5.0  # for another writer of this project; a broker holds the lock while it runs
_SAVE_WAIT_SECONDS = 0.5  # between micro-batches; 0 after a failure, until a save succeeds
_ADVICE = (
    "a broker overwrites consumerOffset.json while it runs: stop it, or set offsetStore to local or none"
)


class OffsetStore(Protocol):
    """Reads and saves the offsets of one group. `kind` is the value of the option offsetStore."""

    @property
    def kind(self) -> str: ...

    def check(self) -> None:
        """Raises if offsets cannot be saved now; the error says which option to set instead."""

    def identity(self) -> object:
        """A value that differs after the files that `write` changes were replaced. Cheap."""

    def read(self) -> dict[MessageQueue, int]:
        """The group's offsets by queue."""

    def save(self, offsets: Mapping[MessageQueue, int], *, is_reset: bool = False) -> bool:
        """Saves the offsets by `write`; returns False, with one warning, while that cannot be done."""

    def write(self, offsets: Mapping[MessageQueue, int], *, is_reset: bool = False) -> None:
        """Saves the offsets: raises stored offsets; `is_reset` also lowers them. Raises if it cannot."""


class _Saver:
    """`save` by `write`: logs once when saving begins to fail, and once when it succeeds again."""

    def __init__(self) -> None:
        self._failing: set[frozenset[str]] = (
            set()
        )  # sets of brokers: one store may be locked while others are not

    def save(self, offsets: Mapping[MessageQueue, int], *, is_reset: bool = False) -> bool:
        brokers = frozenset(queue.broker_name for queue in offsets)
        try:
            self.write(offsets, is_reset=is_reset)
        except (StoreInUseError, StoreWriteError) as error:
            if brokers not in self._failing:
                _log.warning(
                    "offsets are not saved for now and saving is retried; Spark's checkpoint is not "
                    "affected: %s",
                    error,
                )
            self._failing.add(brokers)
            return False
        if brokers in self._failing:
            _log.warning("offsets are saved again")
            self._failing.discard(brokers)
        return True

    def write(self, offsets: Mapping[MessageQueue, int], *, is_reset: bool = False) -> None:
        raise NotImplementedError


class StoreOffsets(_Saver):
    """`store`: config/consumerOffset.json in each broker's store, under the store's lock.

    `roots` are store directories by broker name.
    """

    kind = "store"

    def __init__(
        self,
        group: str,
        roots: Mapping[str, str],
        *,
        clock_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        lock_timeout: float = _SAVE_WAIT_SECONDS,
    ) -> None:
        super().__init__()
        self.group = check_group(group)
        self._roots = dict(roots)
        self._clock_ms = clock_ms
        self._lock_timeout = lock_timeout

    def check(self) -> None:
        """Raises StoreInUseError if a broker has opened a store, StoreWriteError if one is not writable."""
        for root in self._roots.values():
            refuse_foreign_offsets(Opened(root))
            try:
                with StoreLock(root, timeout=_WAIT_SECONDS) as lock:
                    lock.refuse_other_openers()
            except StoreInUseError as error:
                raise StoreInUseError(f"{error}; {_ADVICE}") from error
            except StoreWriteError as error:
                raise StoreWriteError(
                    f"{error}; offsetStore=store writes to this store: set offsetStore to local or none"
                ) from error

    def identity(self) -> object:
        return tuple(offsets_identity(Opened(root)) for root in self._roots.values())

    def read(self) -> dict[MessageQueue, int]:
        return {
            MessageQueue(topic, broker_name, queue_id): offset
            for broker_name, root in self._roots.items()
            for (topic, queue_id), offset in read_group_offsets(Opened(root), self.group).items()
        }

    def write(self, offsets: Mapping[MessageQueue, int], *, is_reset: bool = False) -> None:
        """Saves the offsets store by store; raises at the first store that cannot be written.

        Consumers of the group that pop follow a reset even if the file already had its offsets.
        """
        by_broker: dict[str, dict[tuple[str, int], int]] = {}
        for queue, offset in offsets.items():
            by_broker.setdefault(queue.broker_name, {})[queue.topic, queue.queue_id] = offset
        for broker_name, part in by_broker.items():
            root = self._roots.get(broker_name)
            if root is None:
                raise OptionError(
                    f"offsets of {broker_name}: expected a broker that is read, {', '.join(self._roots)}"
                )
            now = self._clock_ms()
            wait = 0.0 if self._failing else self._lock_timeout
            with CheckedLock(root, timeout=wait):
                write_group_offsets_held(
                    Opened(root),
                    self.group,
                    part,
                    timestamp=now,
                    is_reset=is_reset,
                    files=FileWrites(sync=True),
                )
                if is_reset:
                    note_moved(Opened(root), self.group, part)


class LocalOffsets(_Saver):
    """`local`: an offsets.json with its `.bak`, as RocketMQ's LocalFileOffsetStore writes them.

    `fallback` has the offsets of queues without an entry: a CLUSTERING group continues from the broker's.
    """

    kind = "local"

    def __init__(self, path: str, fallback: OffsetStore | None = None) -> None:
        super().__init__()
        self.path = path
        self._fallback = fallback

    def check(self) -> None:
        with self._locked():
            pass

    def identity(self) -> object:
        return files_at(self.path).stat_identity(self.path)

    def read(self) -> dict[MessageQueue, int]:
        own = read_local_offsets(self.path) or {}
        return _fallback_offsets(self._fallback) | {
            MessageQueue(topic, broker, queue_id): offset for (topic, broker, queue_id), offset in own.items()
        }

    def write(self, offsets: Mapping[MessageQueue, int], *, is_reset: bool = False) -> None:
        wanted = {
            (queue.topic, queue.broker_name, queue.queue_id): offset for queue, offset in offsets.items()
        }
        with self._locked():
            # A client overwrites the file in place. Renaming the old file to .bak first keeps one complete
            # file at any moment, and clients read both.
            rewrite_config(
                self.path,
                lambda data, file: merge_local_offsets(data, wanted, is_reset=is_reset, file=file),
                FileWrites(sync=True),
            )

    def _locked(self) -> StoreLock:
        directory = os.path.dirname(self.path)
        make_path(directory)
        return StoreLock(directory, timeout=_WAIT_SECONDS)


def _fallback_offsets(fallback: OffsetStore | None) -> dict[MessageQueue, int]:
    """The broker's offsets; none, with a warning, if the store keeps them in a format that is not read."""
    if fallback is None:
        return {}
    try:
        return fallback.read()
    except UnsupportedFormatError as error:
        _log.warning(
            "the broker's committed offsets cannot be read; queues without an own offset start "
            "where consumeFromWhere says: %s",
            error,
        )
        return {}


class NoOffsets:
    """`none`: no offsets are saved. Without a checkpoint the group starts at the broker's offsets."""

    kind = "none"

    def __init__(self, fallback: OffsetStore | None = None) -> None:
        self._fallback = fallback

    def check(self) -> None:
        """Raises nothing: nothing is saved."""

    def identity(self) -> object:
        return None if self._fallback is None else self._fallback.identity()

    def read(self) -> dict[MessageQueue, int]:
        return _fallback_offsets(self._fallback)

    def save(self, offsets: Mapping[MessageQueue, int], *, is_reset: bool = False) -> bool:
        return True

    def write(self, offsets: Mapping[MessageQueue, int], *, is_reset: bool = False) -> None:
        """Does nothing."""


class CheckedOffsets:
    """Another offset store whose offsets pass through `check` when read: it raises, or leaves some out."""

    def __init__(
        self, inner: OffsetStore, check: Callable[[dict[MessageQueue, int]], dict[MessageQueue, int]]
    ) -> None:
        self._inner = inner
        self._check = check
        self.kind = inner.kind
        self.check = inner.check
        self.identity = inner.identity
        self.save = inner.save
        self.write = inner.write

    def read(self) -> dict[MessageQueue, int]:
        return self._check(self._inner.read())


def make_path(path: str) -> None:
    """Creates the directory and its missing parents."""
    missing: list[str] = []
    base = paths.absolute(path)
    while not files_at(base).is_directory(base) and paths.parent(base) != base:
        missing.insert(0, paths.base_name(base))
        base = paths.parent(base)
    FileWrites(sync=True).make_directories(base.rstrip("/") or "/", *missing)


def offset_store(
    kind: str | None,
    *,
    group: str,
    roots: Mapping[str, str],
    message_model: str = CLUSTERING,
    client_id: str = "",
    offset_store_path: str | None = None,
) -> OffsetStore:
    """The offset store that the options choose; `kind` None is `local` for BROADCASTING, else `store`.

    `roots` are store directories by broker name. `offset_store_path` is by default RocketMQ's,
    `.rocketmq_offsets` in the home directory. Opens nothing.
    """
    kind = kind or ("local" if message_model == BROADCASTING else "store")
    group = check_group(group)
    in_store = StoreOffsets(group, roots)
    is_broadcasting = message_model == BROADCASTING
    match kind:
        case "store":
            if is_broadcasting:
                raise OptionError(
                    "offsetStore: expected local or none with messageModel=BROADCASTING, found store; each "
                    "BROADCASTING client has its own offsets: set offsetStore=local"
                )
            return in_store
        case "local":
            base = offset_store_path or os.path.join(os.path.expanduser("~"), ".rocketmq_offsets")
            owner = f"{check_client_id(client_id)}/{group}" if is_broadcasting else group
            return LocalOffsets(f"{base}/{owner}/offsets.json", None if is_broadcasting else in_store)
        case "none":
            return NoOffsets(None if is_broadcasting else in_store)
    hint = did_you_mean(kind, OFFSET_STORES) or "write one of them"
    raise OptionError(f"offsetStore: expected store, local or none, found {kind!r}; {hint}")
