"""What makes a directory a store root, what the refusal of another directory says, and which messages a
broker serves from files that are not read. A path may also be the directory of a cluster, which holds one
root per broker.

Other files are tiered storage, a DLedger commitlog that is elsewhere, and those of compacted topics. A store
looks complete without them. So everybody who counts or judges messages asks here first, and says "unknown"
where the files would decide.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import ClassVar

from store_format.bookkeeping.settings import StoreSettings
from store_format.commitlog.dledger import DIRECTORY
from store_format.commitlog.log import CommitLog
from store_format.consumequeue.files import FOLDERS
from store_format.display.text import first_names, shown
from store_format.errors import OptionError, StoreError, StoreNotFoundError, UnsupportedFormatError
from store_format.files import paths
from store_format.files.paths import LOST_AND_FOUND, Refused, refuse
from store_format.files.read import FileCache, files_at
from store_format.metadata.read import KnownTopics, config_path, known_topics
from store_format.names import SYNC_MEMBER_PREFIX
from store_format.opened.store import Opened
from store_format.survey.gone import LostLog

_ROOT_MARKS = frozenset({"commitlog", "consumequeue", "config", "checkpoint", "index", "abort", "lock"})
_BESIDE_CHECKPOINT = frozenset({"config", "index", "abort", "lock", "timerlog"})
_BESIDE_COMMITLOG = _ROOT_MARKS - {"commitlog"}


def broker_name_of(opened: Opened) -> str:
    """The broker's name: from topics.json, from our settings, or the name of the directory.

    In topics.json a broker has a topic that is named after itself (TopicConfigManager), as in ours. If two
    brokers have used a store of ours, the settings decide; they are a file more to read.
    """
    names: list[str] = []
    try:
        topics = filter(lambda topic: topic.startswith(SYNC_MEMBER_PREFIX), known_topics(opened) or ())
        names = [topic.removeprefix(SYNC_MEMBER_PREFIX) for topic in topics]
    except StoreError:
        if StoreSettings.read(opened) is None:
            raise
    if len(names) != 1 and (settings := StoreSettings.read(opened)) is not None:
        return settings.broker_name
    return names[0] if names else paths.base_name(opened.path)


def has_config(opened: Opened) -> bool:
    """Whether a file of the store names its broker; a broker writes topics.json with its first message."""
    return any(
        files_at(path).exists(path)
        for path in (StoreSettings.path(opened), config_path(opened, "topics.json"))
    )


def log_directories(opened: Opened, commit_log_paths: Sequence[str]) -> tuple[str, ...]:
    """The directories of commitlog files: those given (`storePathCommitLog`), else `commitlog` of the root.

    Raises StoreNotFoundError if a given directory is missing, or if `opened` is not a store root, and
    UnsupportedFormatError as `own_directories`.
    """
    if not commit_log_paths:
        names = opened.files.names(opened.path)
        found = own_directories(opened)
        if "commitlog" not in names and found == (f"{opened.path}/commitlog",):
            refuse_root(opened.path, names)
        return found
    for directory in commit_log_paths:
        if not files_at(directory).is_directory(directory):
            raise StoreNotFoundError(
                f"storePathCommitLog: {directory} is not a directory; list all directories that hold "
                "commitlog files"
            )
    return tuple(commit_log_paths)


def own_directories(opened: Opened) -> tuple[str, ...]:
    """The directories of commitlog files in a store: `commitlog`, which may be missing, or `data` in
    `dledger-<id>`, or both: a store that was upgraded to DLedger has its old files in `commitlog`, and the
    later ones there.

    Raises UnsupportedFormatError for several `dledger-<id>`, and for one without files beside no others.
    """
    plain = f"{opened.path}/commitlog"
    ledgers = opened.dledger_logs
    if len(ledgers) > 1:
        raise UnsupportedFormatError(
            f"{opened}: expected the commitlog of one DLedger node (dLegerSelfId), found "
            f"{first_names(map(paths.base_name, ledgers))}. Name the directories of the one to read, as in "
            "the broker's storePathCommitLog"
        )
    data = [path for each in ledgers if files_at(path := f"{each}/{DIRECTORY}").is_directory(path)]
    if not data:
        if ledgers and not opened.files.names(plain, missing_ok=True):
            raise UnsupportedFormatError(
                f"{opened} is a DLedger store (enableDLegerCommitLog=true): expected its commitlog in "
                f"{paths.base_name(ledgers[0])}/{DIRECTORY}, found no such directory. Name the directory of "
                "the broker's storePathDLedgerCommitLog as storePathCommitLog"
            )
        return (plain,)
    return (*((plain,) if opened.files.is_directory(plain) else ()), *data)


def has_queue_files(opened: Opened) -> bool:
    """Whether `consumequeue` or `batchconsumequeue` has directories of topics.

    RocksDB keeps its own files there, and with rocksdbCQDoubleWriteEnable directories of topics beside them.
    """
    names = opened.files.names(f"{opened.path}/consumequeue", missing_ok=True) - {LOST_AND_FOUND}
    if "CURRENT" in names:
        return any(opened.files.is_directory(f"{opened.path}/consumequeue/{name}") for name in names)
    return bool(
        names or opened.files.names(f"{opened.path}/batchconsumequeue", missing_ok=True) - {LOST_AND_FOUND}
    )


def refuse_root(root: str, names: frozenset[str]) -> None:
    """Raises the error for a directory with these names, which has no `commitlog`."""
    if paths.base_name(root) in _ROOT_MARKS and "commitlog" in files_at(root).names(
        paths.parent(root), missing_ok=True
    ):
        raise StoreNotFoundError(f"{root} is part of a store; the store root is {paths.parent(root)}")
    advice = ""
    if looks_like_store(names):
        advice = (
            "; if the commitlog is in other directories, list them, as in the broker's storePathCommitLog"
        )
    found = first_names(sorted(names)) or "nothing"
    raise StoreNotFoundError(
        f"{root} is not a store root: expected a directory `commitlog` in it, found {found}{advice}"
    )


def store_around(directory: str) -> str | None:
    """The root of the store in which a directory lies; None outside of stores."""
    while True:
        beside = (files_at(directory).exists(f"{directory}/{name}") for name in _BESIDE_COMMITLOG)
        if any(beside) and (
            files_at(directory).is_directory(f"{directory}/commitlog") or Opened(directory).dledger_logs
        ):
            return directory
        parent = paths.parent(directory)
        if parent == directory:
            return None
        directory = parent


def looks_like_store(names: Collection[str]) -> bool:
    """Whether the names in a directory are those of a store, even without a commitlog."""
    return any(folder in names for folder in FOLDERS.values()) or (
        "checkpoint" in names and not _BESIDE_CHECKPOINT.isdisjoint(names)
    )


# ---- clusters ----------------------------------------------------------------------------------------------


def store_roots(path: str, refused: Refused = refuse, *, missing_ok: bool = False) -> list[str]:
    """The store roots of `path`: its members sorted by name if it is the directory of a cluster, else [path].

    The path itself need not be a store: opening it says what is missing. Members that cannot be read, or look
    like a store without a commitlog, are `refused` and left out; without any other member they are an error.
    Raises OptionError if two members are one store.
    """
    names = files_at(path).names(path, missing_ok=missing_ok)
    if "commitlog" in names:
        return [path]
    errors: list[StoreError] = []
    members = cluster_members(path, names, errors.append)
    for error in errors:
        (refused if members else refuse)(error)
    refuse_repeated((path, member, directories) for member, directories in members.items())
    return [*members] or [path]


def cluster_members(path: str, names: Iterable[str], refused: Refused = refuse) -> dict[str, tuple[str, ...]]:
    """The store roots among the `names` in a directory, sorted by name, with directories of their commitlogs.

    Returns {} if the names are those of a store itself. What looks like a store without a commitlog, or has a
    lost one, or must not be listed, is `refused`, and left out if that does not raise.
    """
    names = frozenset(names)
    if looks_like_store(names):
        return {}
    members: dict[str, tuple[str, ...]] = {}
    for name in sorted(names - {LOST_AND_FOUND}):
        member = f"{path}/{name}"
        try:
            log, opened = f"{member}/commitlog", Opened(member)
            has_log = files_at(log).is_directory(log)
            if has_log and files_at(log).names(log):
                members[member] = (log,)
            elif has_log or (files_at(member).is_directory(member) and opened.dledger_logs):
                directories = own_directories(opened)
                if not any(files_at(each).names(each) for each in directories):
                    LostLog.refuse(opened, CommitLog.open(directories, FileCache()))
                members[member] = directories
            elif files_at(member).is_directory(member):
                _refuse_without_log(path, member)
        except StoreError as error:
            error.member = member
            refused(error)
    return members


@dataclass(frozen=True, slots=True)
class NoStore:
    """A member of a cluster's directory that is no store.

    `is_missing`: a store was here, or is to be: a mount point without its mount, a link that leads nowhere,
    or parts of a store without a commitlog. Another directory is the owner's own.
    """

    path: str
    found: str
    is_missing: bool

    def __str__(self) -> str:
        return f"{self.path} is no store: {self.found}"


def members_without_store(path: str) -> list[NoStore]:
    """The directories and links in the directory of a cluster that are no stores, sorted by name.

    Empty if `path` is a store, or has no member that is one. Hidden names do not count. What `store_roots`
    refuses is not here.
    """
    names = files_at(path).names(path, missing_ok=True)
    if "commitlog" in names or not cluster_members(path, names, lambda _: None):
        return []
    found: list[NoStore] = []
    for name in sorted(names - {LOST_AND_FOUND}):
        if not name.startswith("."):
            with suppress(StoreError):  # `store_roots` has refused it
                found += _no_store(f"{path}/{name}")
    return found


def _no_store(member: str) -> Iterator[NoStore]:
    files = files_at(member)
    if not files.is_directory(member):
        if paths.is_link(member) and not files.is_file(member):
            yield NoStore(member, "the link leads nowhere", True)
        return
    names = files.names(member)
    if files.is_directory(f"{member}/commitlog") or looks_like_store(names) or Opened(member).dledger_logs:
        return
    if not names - {LOST_AND_FOUND}:
        yield NoStore(member, "the directory is empty; is its file system mounted?", True)
    elif names & _ROOT_MARKS:
        yield NoStore(member, f"it has {first_names(sorted(names))}, and no commitlog", True)
    else:
        yield NoStore(member, f"it has {first_names(sorted(names))}", False)


def beside_cluster(root: str) -> str:
    """The path of a store; for a member of a cluster, a path outside of the cluster's directory.

    A directory with stores of several brokers is a cluster: a copy in it would be read as another member.
    Copies of one broker's store are none.
    """
    directory, name = paths.parent(root), paths.base_name(root)
    names: list[str] = []
    with suppress(StoreError):  # who reads the cluster raises the error
        members = cluster_members(directory, files_at(directory).names(directory), lambda _: None)
        names = [broker_name_of(Opened(each)) for each in members if has_config(Opened(each))]
    return f"{directory}-{name}" if len(names) == len(set(names)) > 1 else root


def refuse_repeated(stores: Iterable[tuple[str, str, Sequence[str]]]) -> None:
    """Raises OptionError if two of the stores are one.

    `stores` are (path as given, store root, commitlog directories). A store is its commitlog: if it is
    reached by two paths, through a link, a mount or the directory of a cluster, every message would be read
    twice.
    """
    seen: dict[object, tuple[int, str]] = {}
    for number, (path, root, directories) in enumerate(stores):
        name = root if path == root else f"{root} (in {path})"
        for directory in directories:
            identity = files_at(directory).directory_identity(directory)
            for key in (paths.real(directory), *([] if identity is None else [identity[:2]])):
                other = seen.setdefault(key, (number, name))
                if other[0] != number:
                    raise OptionError(
                        f"{other[1]} and {name} are one store, with the commitlog "
                        f"{paths.real(directory)}; "
                        "every message would be read twice: give the store once"
                    )


def refuse_equal_names(stores: Iterable[tuple[str, str]]) -> None:
    """Raises OptionError if two of the stores, (broker name, store root), have one broker name.

    Their queues would have the same names, and master and slave of a broker have the same messages.
    """
    by_name: dict[str, str] = {}
    for name, root in stores:
        other = by_name.setdefault(name, root)
        if other != root:
            raise OptionError(
                f"{other} and {root} both belong to broker {name}; use only one of them, "
                "or each of them on its own"
            )


def _refuse_without_log(path: str, member: str) -> None:
    names = files_at(member).names(member)
    if "commitlog" in names or looks_like_store(names):
        raise StoreNotFoundError(
            f"{member} looks like a store, but has no directory `commitlog`. If its commitlog is elsewhere, "
            f"read this store alone with storePathCommitLog, and the other stores of {path} by their own "
            "paths. "
            f"If it is not a store, move it out of {path}"
        )


# ---- messages that a broker serves from other files --------------------------------------------------------


_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class OtherFiles:
    """What a broker serves from files of a store that are not read."""

    TIERED: ClassVar = (
        "the broker also keeps messages in tiered storage, which is not read: what retention has deleted "
        "here may still be served"
    )
    COMPACTED: ClassVar = (
        "a broker serves the newest message of each key, from compaction/, which is not read: readers show "
        "the messages that the commitlog still has, also older ones of a key"
    )
    DLEDGER: ClassVar = (
        "the commitlog of a DLedger store (enableDLegerCommitLog=true), which is not read: readers show the "
        "messages of the given directories only"
    )
    opened: Opened

    @property
    def tiered(self) -> str | None:
        """The file in which a broker notes what it keeps in tiered storage; None without one."""
        path = config_path(self.opened, "tieredStoreMetadata.json")
        # A broker renames the file to .bak before it writes the new one (ConfigManager.persist).
        return path if files_at(path).exists(path) or files_at(path).exists(f"{path}.bak") else None

    @property
    def compacted(self) -> list[str]:
        """The topics with cleanup.policy=COMPACTION; none if topics.json cannot be read."""
        return [*self.topics.compacted]

    @property
    def topics(self) -> KnownTopics:
        """The topics of the store; none if topics.json cannot be read."""
        try:
            return known_topics(self.opened) or KnownTopics()
        except (StoreError, OSError):  # what needs the file raises the error
            return KnownTopics()

    def warn(
        self,
        log: CommitLog,
        select: Callable[[str], bool],
        served: Collection[str] = frozenset(),
        *,
        is_tiered_read: bool = False,
    ) -> None:
        """Warns once for each opened store of tiered storage, DLedger and each selected compacted topic that
        is not `served` as a broker does.
        """
        said = log.cache.found.setdefault((_Said, self.opened.path), _Said())
        assert isinstance(said, _Said)
        if not said.has_looked:
            said.has_looked = True
            if not is_tiered_read and (path := self.tiered) is not None:
                _log.warning("%s: %s", path, self.TIERED)
            for path in self.opened.unread_ledgers(log.directories):
                _log.warning("%s is %s", shown(path), self.DLEDGER)
        unnamed = (topic for topic in self.compacted if topic not in said.named and topic not in served)
        new = list(filter(select, unnamed))
        if new:
            said.named.update(new)
            text = "%s: compacted topics (cleanup.policy=COMPACTION): %s: %s"
            _log.warning(text, self.opened.path, first_names(new), self.COMPACTED)


# ---- warnings ----------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Said:
    has_looked: bool = False
    named: set[str] = field(default_factory=set)
