"""The signs of a change in a store that need no read of its commitlog: state, commits and directories.

Sizes and times of files show nothing, because a broker writes into mapped files of full length. A directory's
time shows new or deleted files and queues.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from store_format.bookkeeping.journal import CommitState, StoreState, doorbell_path, read_commit_state
from store_format.consumequeue.files import FOLDERS
from store_format.files.read import is_settled, stat_identity
from store_format.read.store import Store

_Identity = tuple[int, int, int] | None  # inode, size, time in ns; None for what is missing


@dataclass(frozen=True, slots=True)
class Signs:
    """The signs at one look: equal to those of another look if no such change happened in between."""

    state: StoreState
    commit: CommitState
    queue_directories: tuple[_Identity, ...]
    log_directories: tuple[_Identity, ...]
    lock: _Identity = None  # its time changes when a broker starts, which may cut the log
    # its time changes when a commit ends: one that began and ended during a look leaves no other sign
    doorbell: _Identity = None

    def is_another_store(self, before: Signs) -> bool:
        """Whether a directory was replaced: the store was restored from a copy, for example."""
        pairs = zip(
            (*before.queue_directories, *before.log_directories),
            (*self.queue_directories, *self.log_directories),
            strict=True,
        )
        return any(one is not None and other is not None and one[0] != other[0] for one, other in pairs)

    def settled(self, now_ns: int) -> Signs:
        """The signs to compare with the next look.

        A directory that changed just now may change again within the same tick of its clock, so its time is
        left out.
        """
        directories = (self.queue_directories, self.log_directories)
        queues, logs = (
            tuple(_settled(identity, now_ns) for identity in identities) for identities in directories
        )
        return replace(self, queue_directories=queues, log_directories=logs)


def _settled(identity: _Identity, now_ns: int) -> _Identity:
    return identity if identity is None or is_settled(identity, now_ns) else (identity[0], -1, -1)


def read_signs(store: Store) -> Signs:
    """The signs now. Costs about ten system calls."""
    return Signs(
        store.state,
        read_commit_state(store.path),
        tuple(stat_identity(f"{store.path}/{folder}") for folder in FOLDERS.values()),
        tuple(stat_identity(path) for path in store.commit_log_paths),
        stat_identity(f"{store.path}/lock"),
        stat_identity(doorbell_path(store.path)),
    )
