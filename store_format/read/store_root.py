"""What makes a directory a store root, and what the refusal of another directory says."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from store_format.bookkeeping.settings import read_settings, settings_path
from store_format.consumequeue.listing import FOLDERS
from store_format.errors import StoreNotFoundError, UnsupportedFormatError
from store_format.files import paths
from store_format.files.read import LOST_AND_FOUND, entry_names
from store_format.files.status import is_directory
from store_format.metadata.read import config_path, read_topics
from store_format.names import SYNC_MEMBER_PREFIX

_ROOT_MARKS = frozenset({"commitlog", "consumequeue", "config", "checkpoint", "index", "abort", "lock"})
_BESIDE_CHECKPOINT = frozenset({"config", "index", "abort", "lock", "timerlog"})
_BESIDE_COMMITLOG = _ROOT_MARKS - {"commitlog"}
_SHOWN_MAX = 8


def broker_name_of(root: str) -> str:
    """The broker's name: from our settings, from topics.json, or the name of the directory.

    In topics.json a broker has a topic that is named after itself (TopicConfigManager).
    """
    settings = read_settings(root)
    if settings is not None:
        return settings.broker_name
    for topic in read_topics(root) or ():
        if topic.startswith(SYNC_MEMBER_PREFIX):
            return topic[len(SYNC_MEMBER_PREFIX) :]
    return paths.base_name(root)


def has_config(root: str) -> bool:
    """Whether a file of the store names its broker; a broker writes topics.json with its first message."""
    return any(paths.exists(path) for path in (settings_path(root), config_path(root, "topics.json")))


def log_directories(root: str, commit_log_paths: Sequence[str]) -> tuple[str, ...]:
    """The directories of commitlog files: those given (`storePathCommitLog`), else `commitlog` of the root.

    Raises StoreNotFoundError if a given directory is missing, or if `root` is not a store root.
    """
    names = entry_names(root)
    if "commitlog" not in names and not commit_log_paths:
        refuse_root(root, names)
    for directory in commit_log_paths:
        if not is_directory(directory):
            raise StoreNotFoundError(
                f"storePathCommitLog: {directory} is not a directory; list all directories that hold "
                "commitlog files"
            )
    return tuple(commit_log_paths) or (f"{root}/commitlog",)


def has_queue_files(root: str) -> bool:
    """Whether `consumequeue` or `batchconsumequeue` has directories of topics.

    RocksDB keeps its own files there, and with rocksdbCQDoubleWriteEnable directories of topics beside them.
    """
    names = entry_names(f"{root}/consumequeue", missing_ok=True) - {LOST_AND_FOUND}
    if "CURRENT" in names:
        return any(is_directory(f"{root}/consumequeue/{name}") for name in names)
    return bool(names or entry_names(f"{root}/batchconsumequeue", missing_ok=True) - {LOST_AND_FOUND})


def refuse_root(root: str, names: frozenset[str]) -> None:
    """Raises the error for a directory with these names, which has no `commitlog`."""
    shown = (
        ", ".join(sorted(names)[:_SHOWN_MAX]) + (", …" if len(names) > _SHOWN_MAX else "")
        if names
        else "nothing"
    )
    if any(name.startswith("dledger-") for name in names):
        raise UnsupportedFormatError(
            f"{root} is a DLedger store (enableDLegerCommitLog=true), which is not supported; its commitlog "
            "is in dledger-*/"
        )
    if paths.base_name(root) in _ROOT_MARKS and "commitlog" in entry_names(
        paths.parent(root), missing_ok=True
    ):
        raise StoreNotFoundError(f"{root} is part of a store; the store root is {paths.parent(root)}")
    advice = ""
    if looks_like_store(names):
        advice = (
            "; if the commitlog is in other directories, list them, as in the broker's storePathCommitLog"
        )
    raise StoreNotFoundError(
        f"{root} is not a store root: expected a directory `commitlog` in it, found {shown}{advice}"
    )


def store_around(directory: str) -> str | None:
    """The root of the store in which a directory lies; None outside of stores."""
    while True:
        beside = (paths.exists(f"{directory}/{name}") for name in _BESIDE_COMMITLOG)
        if is_directory(f"{directory}/commitlog") and any(beside):
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
