"""Actions that are killed at each change of a file, in forks of a process without threads (`fork_server`).

An action is a function of a module that takes a store, a `Failure` and more arguments. It prepares what is
not to be counted, calls `install(failure)`, and does what is to be killed. `writes` has actions that commit.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Concatenate

from tests.support.failing_writer import Failure
from tests.support.fork_server import Ended, ForkServer

Action = Callable[Concatenate[Path, Failure, ...], object]


def _run(root: Path, what: str, at: int, action: Action, arguments: tuple[object, ...]) -> list[str]:
    failure = Failure(what, at)
    action(root, failure, *arguments)
    return failure.names


def _names_of_changes(
    forks: ForkServer, root: Path, action: Action, arguments: tuple[object, ...]
) -> list[str]:
    """Runs the action on a store to its end; returns the function of each change it makes."""
    names = forks.call(_run, root, "kill", 0, action, arguments)
    assert isinstance(names, list)
    return names


def count_changes(forks: ForkServer, root: Path, action: Action, *arguments: object) -> int:
    """Runs the action on a store to its end; returns how many changes it makes."""
    return len(_names_of_changes(forks, root, action, arguments))


def kill_at(forks: ForkServer, root: Path, what: str, at: int, action: Action, *arguments: object) -> None:
    """Runs the action and kills it before change `at`, from 1; with `torn`, after half of a write."""
    ended = forks.run(_run, root, what, at, action, arguments)
    assert ended == Ended(signal.SIGKILL), f"change {at}: {ended.error or 'the action ended before'}"


def killed_stores(
    forks: ForkServer,
    before: Path,
    copies: Path,
    what: str,
    action: Action,
    *arguments: object,
    every: int = 1,
    part: tuple[int, int] = (1, 1),
) -> Iterator[tuple[int, Path]]:
    """Yields each change and a copy of the store in which the action was killed at that change.

    With `what` = `both` each write is killed twice: before it, and after half of it. The other changes know
    no half, so `kill` and `torn` are the same there.

    With `every`, only each so many; with `part` = (k, n), only the k-th of n stretches of the changes. The
    copies have different paths below `copies`. A copy is removed when the next one is made.
    """
    whole = shutil.copytree(before, copies / "whole")
    names = _names_of_changes(forks, whole, action, arguments)
    shutil.rmtree(whole)
    k, n = part
    for at in range(1 + len(names) * (k - 1) // n, 1 + len(names) * k // n, every):
        for how in (
            (what,) if what != "both" else ("kill", "torn") if names[at - 1] == "pwrite" else ("kill",)
        ):
            root = shutil.copytree(before, copies / f"{how}-{at}")
            kill_at(forks, root, how, at, action, *arguments)
            yield at, root
            shutil.rmtree(root, ignore_errors=True)  # a test may have moved it


# The id of a commit or of a staged file: another in each run. It is in names and texts of `.rmqlog`, and in
# `abort`.
_ID = re.compile(rb"(?<![0-9a-f])[0-9a-f]{16}(?![0-9a-f])")


class States:
    """Which of the stores in this order differ from all before, in the name or bytes of any file.

    A kill before an fsync, which tests leave out, and one before the change that follows leave the same: a
    check of the second store would be the check of the first once more.
    """

    def __init__(self) -> None:
        self._seen: set[bytes] = set()

    def is_new(self, root: Path) -> bool:
        entries = []
        for path in root.rglob("*"):
            name = os.fsencode(path.relative_to(root))
            data = path.read_bytes() if path.is_file() else b""
            if b".rmqlog/" in name or path.name == "abort":
                name, data = _ID.sub(b"id", name), _ID.sub(b"id", data)
            entries.append((name, path.lstat().st_mode, data))
        digest = hashlib.sha256(repr(sorted(entries)).encode()).digest()
        is_new = digest not in self._seen
        self._seen.add(digest)
        return is_new
