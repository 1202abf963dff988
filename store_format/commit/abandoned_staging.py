"""Staging that will never be published, of writes that failed and of tasks that died: removed under the lock,
unless a journal names it.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator

from store_format.bookkeeping.journal import read_journal
from store_format.bookkeeping.staged_file import OWN_DIRECTORY, STAGING, staging_path
from store_format.errors import StoreError
from store_format.files.lock import StoreLock
from store_format.files.read import entry_names, list_directories
from store_format.files.status import stat_identity
from store_format.files.write import FileWrites

__all__ = ["collect", "discard"]

_log = logging.getLogger(__name__)

_ROUNDS_MAX = 3  # a task that has not heard yet that its write was given up may have begun a file meanwhile


def discard(root: str, writes: Collection[str], *, lock_timeout: float = 0.0) -> bool:
    """Removes all that was staged for writes that were given up; False when a journal names one, which is
    left: it will be published.
    """
    with StoreLock(root, timeout=lock_timeout):
        named = _named(root)
        for write in writes:
            if write not in named:
                _remove(staging_path(root, write))
    return not named & set(writes)


def collect(
    root: str, *, older_than: float, finished: Collection[str] = (), lock_timeout: float = 0.0
) -> list[str]:
    """Removes the staging of `finished` writes, and of those in which nothing changed since `older_than`
    (seconds of the epoch).

    What a journal names stays. A write that cannot be removed is told in a warning and does not keep the
    others. Gives those removed.
    """
    removed = []
    with StoreLock(root, timeout=lock_timeout):
        named = _named(root)
        for write, directory in _writes(root):
            if write in named or not (write in finished or _last_change(directory) < older_than):
                continue
            try:
                _remove(directory)
            except StoreError as error:
                _log.warning("dead staging stays: %s", error)
                continue
            removed.append(write)
    return removed


def _named(root: str) -> set[str]:
    journal = read_journal(root)
    return {each.write for each in journal.staged} if journal is not None else set()


def _writes(root: str) -> Iterator[tuple[str, str]]:
    yield from list_directories(f"{root}/{OWN_DIRECTORY}/{STAGING}")


def _last_change(directory: str) -> float:
    """Seconds of the epoch."""
    paths = [directory, *(f"{directory}/{name}" for name in entry_names(directory, missing_ok=True))]
    return max(
        (identity[2] / 1e9 for identity in map(stat_identity, paths) if identity is not None), default=0.0
    )


def _remove(directory: str) -> None:
    files = FileWrites(sync=False)
    for _ in range(_ROUNDS_MAX):
        for name in sorted(entry_names(directory, missing_ok=True)):
            files.remove(f"{directory}/{name}")
        if files.remove_directory(directory):
            return
