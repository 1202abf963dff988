"""Where a group keeps how far it has read: in the broker's own file, in a client's, or nowhere. `offsetStore`
chooses.

Values are RocketMQ's, the next offset to read, and never go down but by a reset. Spark's checkpoint stays the
truth about a query; these are what other members, RocketMQ's tools and a later broker see.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping
from typing import Protocol

from rmq_spark.consume.client_ids import BROADCASTING, CLUSTERING, check_client_id, check_group
from rmq_spark.consume.message_queue import MessageQueue
from store_format.errors import OptionError, StoreInUseError, StoreWriteError, UnsupportedFormatError
from store_format.files.lock import StoreLock
from store_format.files.status import stat_identity
from store_format.files.write import FileWrites
from store_format.metadata.group_offsets import (
    offsets_identity,
    read_group_offsets,
    refuse_foreign_offsets,
    rewrite_config,
    write_group_offsets,
)
from store_format.metadata.merge_offsets import merge_local_offsets
from store_format.metadata.read_state import read_local_offsets
from store_format.names import did_you_mean

__all__ = [
    "OFFSET_STORES",
    "CheckedOffsets",
    "LocalOffsets",
    "NoOffsets",
    "OffsetStore",
    "StoreOffsets",
    "make_path",
    "offset_store",
]

_log = logging.getLogger(__name__)

OFFSET_STORES = ("store", "local", "none")
_WAIT_SECONDS = 5.0  # for another writer of ours, which is quick; a broker holds on for as long as it lives
_SAVE_WAIT_SECONDS = 0.5  # in between micro-batches; once it was in vain nobody waits again until it works
_ADVICE = (
    "a broker overwrites consumerOffset.json while it runs: stop it, or set offsetStore to local or none"
)


class OffsetStore(Protocol):
    """What a group needs of it. `kind` is the option's word."""

    @property
    def kind(self) -> str: ...

    def check(self) -> None:
        """Raises when offsets could not be saved now, and says what to set instead."""

    def identity(self) -> object:
        """Another value when the files that `write` changes were replaced; cheap."""

    def read(self) -> dict[MessageQueue, int]:
        """The offsets known for the group."""

    def save(self, offsets: Mapping[MessageQueue, int], *, is_reset: bool = False) -> bool:
        """False when they could not be saved now, which is warned of once; try again with the next ones."""

    def write(self, offsets: Mapping[MessageQueue, int], *, is_reset: bool = False) -> None:
        """The same, but raises what keeps them from being saved."""


class _Saver:
    """Saving that may fail for a while: said once when it begins to fail, and once when it works again."""

    def __init__(self) -> None:
        self._failing: set[frozenset[str]] = set()  # by brokers: one store may be held while others are not

    def save(self, offsets: Mapping[MessageQueue, int], *, is_reset: bool = False) -> bool:
        brokers = frozenset(queue.broker_name for queue in offsets)
        try:
            self.write(offsets, is_reset=is_reset)
        except (StoreInUseError, StoreWriteError) as error:
            if brokers not in self._failing:
                _log.warning(
                    "offsets are not recorded for now, Spark's checkpoint goes on and this is tried again: %s",
                    error,
                )
            self._failing.add(brokers)
            return False
        if brokers in self._failing:
            _log.warning("offsets are recorded again")
            self._failing.discard(brokers)
        return True

    def write(self, offsets: Mapping[MessageQueue, int], *, is_reset: bool = False) -> None:
        raise NotImplementedError


class StoreOffsets(_Saver):
    """`store`: config/consumerOffset.json of each broker's store, under the store's lock. `roots` is by
    broker name.
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
        """Raises StoreInUseError where a broker has a store, StoreWriteError where nothing may be written."""
        for root in self._roots.values():
            refuse_foreign_offsets(root)
            try:
                with StoreLock(root, timeout=_WAIT_SECONDS) as lock:
                    lock.refuse_other_openers()
            except StoreInUseError as error:
                raise StoreInUseError(f"{error}; {_ADVICE}") from error
            except StoreWriteError as error:
                raise StoreWriteError(
                    f"{error}; offsetStore=store writes there: set it to local or none"
                ) from error

    def identity(self) -> object:
        return tuple(offsets_identity(root) for root in self._roots.values())

    def read(self) -> dict[MessageQueue, int]:
        return {
            MessageQueue(topic, broker_name, queue_id): offset
            for broker_name, root in self._roots.items()
            for (topic, queue_id), offset in read_group_offsets(root, self.group).offsets.items()
        }

    def write(self, offsets: Mapping[MessageQueue, int], *, is_reset: bool = False) -> None:
        """Raises what keeps it from being written; of several stores the first of them that is so."""
        by_broker: dict[str, dict[tuple[str, int], int]] = {}
        for queue, offset in offsets.items():
            by_broker.setdefault(queue.broker_name, {})[queue.topic, queue.queue_id] = offset
        for broker_name, part in by_broker.items():
            root = self._roots.get(broker_name)
            if root is None:
                raise OptionError(f"{broker_name} is none of the brokers read: {', '.join(self._roots)}")
            now = self._clock_ms()
            wait = 0.0 if self._failing else self._lock_timeout
            write_group_offsets(root, self.group, part, timestamp=now, is_reset=is_reset, lock_timeout=wait)


class LocalOffsets(_Saver):
    """`local`: an offsets.json as RocketMQ's LocalFileOffsetStore has it, with its `.bak`.

    `fallback` answers for queues without an entry: a CLUSTERING group goes on from where the broker has it.
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
        return stat_identity(self.path)

    def read(self) -> dict[MessageQueue, int]:
        own = read_local_offsets(self.path) or {}
        return _committed(self._fallback) | {
            MessageQueue(topic, broker, queue_id): offset for (topic, broker, queue_id), offset in own.items()
        }

    def write(self, offsets: Mapping[MessageQueue, int], *, is_reset: bool = False) -> None:
        wanted = {
            (queue.topic, queue.broker_name, queue.queue_id): offset for queue, offset in offsets.items()
        }
        with self._locked():
            # A client overwrites the file in place; renaming it aside first keeps one of both whole at any
            # moment, and it reads both.
            rewrite_config(
                self.path,
                lambda data, file: merge_local_offsets(data, wanted, is_reset=is_reset, file=file),
                FileWrites(sync=True),
            )

    def _locked(self) -> StoreLock:
        directory = os.path.dirname(self.path)
        make_path(directory)
        return StoreLock(directory, timeout=_WAIT_SECONDS)


def _committed(fallback: OffsetStore | None) -> dict[MessageQueue, int]:
    """What the broker has; nothing, with a warning, where that cannot be told."""
    if fallback is None:
        return {}
    try:
        return fallback.read()
    except UnsupportedFormatError as error:
        _log.warning(
            "what the broker has committed is not known, queues without an offset of their own begin anew: %s",
            error,
        )
        return {}


class NoOffsets:
    """`none`: nothing is kept, and reading asks the store only. Each start without a checkpoint begins where
    the broker's group stands.
    """

    kind = "none"

    def __init__(self, fallback: OffsetStore | None = None) -> None:
        self._fallback = fallback

    def check(self) -> None:
        """Nothing can be in the way."""

    def identity(self) -> object:
        return None if self._fallback is None else self._fallback.identity()

    def read(self) -> dict[MessageQueue, int]:
        return _committed(self._fallback)

    def save(self, offsets: Mapping[MessageQueue, int], *, is_reset: bool = False) -> bool:
        return True

    def write(self, offsets: Mapping[MessageQueue, int], *, is_reset: bool = False) -> None:
        """Nothing to write."""


class CheckedOffsets:
    """Another store, whose offsets `check` looks at whenever they are read: it raises, or leaves some out."""

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
    """The directory with all that lead to it."""
    missing: list[str] = []
    base = os.path.abspath(path)
    while not os.path.isdir(base):
        base, _, name = base.rpartition("/")
        base = base or "/"
        missing.insert(0, name)
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
    """The store that the options choose; None is `local` when BROADCASTING, else `store`. `roots` are store
    roots by broker name.

    `offset_store_path` is by default RocketMQ's own, `.rocketmq_offsets` in the home directory. Nothing is
    opened yet.
    """
    kind = kind or ("local" if message_model == BROADCASTING else "store")
    group = check_group(group)
    in_store = StoreOffsets(group, roots)
    is_broadcasting = message_model == BROADCASTING
    match kind:
        case "store":
            if is_broadcasting:
                raise OptionError(
                    "offsetStore=store is for CLUSTERING: when BROADCASTING each client has offsets of its own, in local"
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
