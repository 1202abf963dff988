"""Staged files that will never be published, of failed writes and dead tasks: removed under the lock.

Files that a journal names stay.
"""

from __future__ import annotations

import logging
from collections.abc import Collection

from store_format.bookkeeping.identity import STAGING, StagedFile
from store_format.bookkeeping.journal import Journal
from store_format.errors import StoreError
from store_format.files.lock import StoreLock
from store_format.files.read import files_at
from store_format.files.write import FileWrites
from store_format.opened.store import OWN_DIRECTORY, Opened

_log = logging.getLogger(__name__)

_ROUNDS_MAX = 3  # A task that does not know yet that its write was given up may create another file.


def discard(root: str, writes: Collection[str], *, lock_timeout: float = 0.0) -> bool:
    """Removes the staged files of writes that were given up. False if a journal names one of the writes.

    That write stays: it will be published.
    """
    opened = Opened(root)
    with StoreLock(root, timeout=lock_timeout):
        named = _writes_of_journal(opened)
        for write in writes:
            if write not in named:
                _remove(StagedFile.directory(opened, write))
    return not named & set(writes)


def collect(
    root: str, *, older_than: float, finished: Collection[str] = (), lock_timeout: float = 0.0
) -> list[str]:
    """Removes the staged files of `finished` writes, and of writes without a change since `older_than`.

    `older_than` is in seconds of the epoch. A write that a journal names stays. A write that cannot be
    removed is logged, and the others are removed. Returns the removed writes.
    """
    removed = []
    with StoreLock(root, timeout=lock_timeout):
        named = _writes_of_journal(Opened(root))
        for write, directory in files_at(root).directories(f"{root}/{OWN_DIRECTORY}/{STAGING}"):
            if write in named or not (write in finished or _last_change(directory) < older_than):
                continue
            try:
                _remove(directory)
            except StoreError as error:
                _log.warning("abandoned staged files are not removed: %s", error)
                continue
            removed.append(write)
    return removed


def _writes_of_journal(opened: Opened) -> set[str]:
    journal = Journal.read(opened)
    return {each.write for each in journal.staged} if journal is not None else set()


def _last_change(directory: str) -> float:
    """When anything in the directory changed last, in seconds of the epoch."""
    files = files_at(directory)
    paths = [directory, *(f"{directory}/{name}" for name in files.names(directory, missing_ok=True))]
    return max(
        (identity[2] / 1e9 for identity in map(files.stat_identity, paths) if identity is not None),
        default=0.0,
    )


def _remove(directory: str) -> None:
    files = FileWrites(sync=False)
    for _ in range(_ROUNDS_MAX):
        for name in sorted(files_at(directory).names(directory, missing_ok=True)):
            files.remove(f"{directory}/{name}")
        if files.remove_directory(directory):
            return
