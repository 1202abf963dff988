"""What tells that nothing happened to a store, before a byte of its log is read: its state, its commits, and
its directories.

Sizes and times of files tell nothing, because a broker writes into mapped files of full size; a directory's
time tells of files and queues that came or went.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from store_format.bookkeeping.journal import CommitState, read_commit_state
from store_format.bookkeeping.state import StoreState
from store_format.consumequeue.listing import FOLDERS
from store_format.files.status import stat_identity
from store_format.read.store import Store

_Identity = tuple[int, int, int] | None  # inode, size, time in ns; None for what is missing

_YOUNG_NS = 50_000_000  # a directory may change again within a tick of its clock


@dataclass(frozen=True, slots=True)
class Signs:
    """Equal to those of another look when nothing that shows here happened in between."""

    state: StoreState
    commit: CommitState
    queue_directories: tuple[_Identity, ...]
    log_directories: tuple[_Identity, ...]
    lock: _Identity = None  # another time: a broker was started since, and may have cut the log

    def is_another_store(self, before: Signs) -> bool:
        """Whether a directory is not the one it was: the store was put back from a copy, say."""
        pairs = zip(
            (*before.queue_directories, *before.log_directories),
            (*self.queue_directories, *self.log_directories),
            strict=True,
        )
        return any(one is not None and other is not None and one[0] != other[0] for one, other in pairs)

    def settled(self, now_ns: int) -> Signs:
        """What to compare the next look's with: a directory that changed just now may do so again without
        showing it.
        """
        directories = (self.queue_directories, self.log_directories)
        queues, logs = (
            tuple(_settled(identity, now_ns - _YOUNG_NS) for identity in identities)
            for identities in directories
        )
        return replace(self, queue_directories=queues, log_directories=logs)


def _settled(identity: _Identity, young_ns: int) -> _Identity:
    return (identity[0], -1, -1) if identity is not None and identity[2] > young_ns else identity


def read_signs(store: Store) -> Signs:
    """The signs at this moment. Costs about ten calls of the system."""
    return Signs(
        store.state,
        read_commit_state(store.path),
        tuple(stat_identity(f"{store.path}/{folder}") for folder in FOLDERS.values()),
        tuple(stat_identity(path) for path in store.commit_log_paths),
        stat_identity(f"{store.path}/lock"),
    )
