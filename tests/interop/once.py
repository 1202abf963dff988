"""What several processes that run tests need and one of them makes."""

from __future__ import annotations

import fcntl
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")


def made_once(directory: Path, make: Callable[[], T]) -> T:
    """What `make` returned to the first process that asked for this directory; the others wait for it."""
    directory.mkdir(exist_ok=True)
    with (directory / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        notes = directory / "notes"
        if not notes.exists():
            notes.write_bytes(pickle.dumps(make()))
        made: T = pickle.loads(notes.read_bytes())
        return made
