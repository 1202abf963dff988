"""How a store was left: clean, in use, or by a crash."""

from __future__ import annotations

from enum import StrEnum

from store_format.bookkeeping.journal import abort_mark
from store_format.files.lock import lock_holder


class StoreState(StrEnum):
    """How the store was left."""

    CLEAN = "clean"  # nobody holds the lock, no broker left an abort file
    LIVE = "live"  # another process holds the lock
    CRASHED = "crashed"  # nobody holds the lock, but a broker's abort file is there


def store_state(root: str) -> StoreState:
    """The state of the store at `root` now.

    An `abort` file with the mark of this project is no crash: readers hide a commit that was broken off, and
    a commit without flush is complete.
    """
    if lock_holder(f"{root}/lock") is not None:
        return StoreState.LIVE
    return StoreState.CRASHED if abort_mark(root) == "" else StoreState.CLEAN
