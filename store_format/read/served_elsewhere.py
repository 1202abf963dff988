"""Messages that a broker serves from files that are not read: tiered storage, a DLedger commitlog, compacted
topics.

A store looks complete without these files. So everybody who counts or judges messages asks here first, and
says "unknown" where the files would decide.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol
from weakref import WeakKeyDictionary

from store_format.bookkeeping.journal import StoreState
from store_format.commitlog.log import CommitLog
from store_format.display.text import first_names, shown
from store_format.errors import StoreError
from store_format.files import paths
from store_format.files.view import FileCache
from store_format.metadata.read import KnownTopic, config_path, known_topics
from store_format.survey.fates import Unfiled
from store_format.survey.gone import dledger_logs

_log = logging.getLogger(__name__)

TIERED = (
    "the broker also keeps messages in tiered storage, which is not read: what retention has deleted here "
    "may still be served"
)
COMPACTED = (
    "a broker serves the newest message of each key, from compaction/, which is not read: readers show the "
    "messages that the commitlog still has, also older ones of a key"
)
DLEDGER = (
    "the commitlog of a DLedger store (enableDLegerCommitLog=true), which is not read: readers show the "
    "messages of commitlog/ only"
)


class OpenStore(Protocol):
    """The part of an open `Store` that modules need which `Store` itself imports."""

    @property
    def path(self) -> str: ...
    @property
    def log(self) -> CommitLog: ...
    @property
    def commit_log_paths(self) -> tuple[str, ...]: ...
    @property
    def files(self) -> FileCache: ...
    @property
    def state(self) -> StoreState: ...
    @property
    def unfiled_queues(self) -> Unfiled | None: ...


def tiered_metadata(root: str) -> str | None:
    """The file in which a broker notes what it keeps in tiered storage; None without one."""
    path = config_path(root, "tieredStoreMetadata.json")
    # A broker renames the file to .bak before it writes the new one (ConfigManager.persist).
    return path if paths.exists(path) or paths.exists(f"{path}.bak") else None


def is_below(path: str, directory: str) -> bool:
    """Whether the path is the directory, or lies in it."""
    return paths.is_inside(paths.absolute(path), paths.absolute(directory))


def compacted_topics(root: str) -> list[str]:
    """The topics with cleanup.policy=COMPACTION; none if topics.json cannot be read."""
    return _compacted(_topics(root))


def _topics(root: str) -> Mapping[str, KnownTopic]:
    try:
        return known_topics(root) or {}
    except (StoreError, OSError):  # what needs the file raises the error
        return {}


def _compacted(topics: Mapping[str, KnownTopic]) -> list[str]:
    return sorted(name for name, topic in topics.items() if topic.is_compacted)


# ---- warnings ----------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Said:
    has_looked: bool = False
    topics: Mapping[str, KnownTopic] | None = None
    compacted: list[str] = field(default_factory=list)
    named: set[str] = field(default_factory=set)


_said: WeakKeyDictionary[FileCache, dict[str, _Said]] = WeakKeyDictionary()


def warn_of_other_files(store: OpenStore, select: Callable[[str], bool]) -> None:
    """Warns once for each opened store of tiered storage, DLedger and each selected compacted topic."""
    root = store.path
    said = _said.setdefault(store.files, {}).setdefault(root, _Said())
    if not said.has_looked:
        said.has_looked = True
        if (path := tiered_metadata(root)) is not None:
            _log.warning("%s: %s", path, TIERED)
        for path in dledger_logs(root):
            if not any(is_below(each, path) for each in store.commit_log_paths):
                _log.warning("%s is %s", shown(path), DLEDGER)
    topics = _topics(root)
    if topics is not said.topics:
        said.topics, said.compacted = topics, _compacted(topics)
    new = [topic for topic in said.compacted if topic not in said.named and select(topic)]
    if new:
        said.named.update(new)
        told = "%s: compacted topics (cleanup.policy=COMPACTION): %s: %s"
        _log.warning(told, root, first_names(new), COMPACTED)
