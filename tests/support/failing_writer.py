"""Commits that die, or meet an error, at their Nth change of a file.

Every function of `os` that changes something on disk is counted. `tests/support/kills.py` kills the actions
`write` and `write_cluster` in forks. `python -m tests.support.failing_writer` is a process of its own with
the arguments store, first message, number of messages, key number, what to do (`kill`, `torn`, or an errno
name with `:once` or `:on`), and the count at which.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Lock
from typing import Any

from store_format import kernels
from store_format.bookkeeping.identity import StagedFile
from store_format.commit import publication as publish
from store_format.commit.append import commit, commit_cluster
from store_format.commit.options import CommitOptions
from tests.support.staged import numbered, stage


def command(root: Path, first: int, count: int, what: str, at: int) -> list[str]:
    """The command of this program, for the repository's root as directory. The key number is 1."""
    numbers = [str(first), str(count), "1", what, str(at)]
    return [sys.executable, "-m", "tests.support.failing_writer", str(root), *numbers]


COUNTED = ("pwrite", "ftruncate", "fsync", "unlink", "rename", "mkdir", "rmdir", "open")
_CREATING = os.O_CREAT | os.O_TRUNC


class Failure:
    """Counts calls, and fails the one numbered `at` (from 1). `at=0` only counts."""

    def __init__(self, what: str, at: int) -> None:
        self.what, _, self.how = what.partition(":")
        self.at = at
        self.count = 0
        self.names: list[str] = []  # the functions of the counted calls
        self._counting = Lock()

    def happens(self, name: str, args: tuple[Any, ...]) -> bool:
        if name == "open" and not args[1] & _CREATING:
            return False
        with self._counting:
            self.count += 1
            self.names.append(name)
            return self.count == self.at or (self.how == "on" and self.count > self.at > 0)

    def fail(self, original: Any, name: str, args: tuple[Any, ...]) -> None:
        if self.what in ("kill", "torn"):
            if self.what == "torn" and name == "pwrite":  # half of it is written
                data = memoryview(args[1])
                original(args[0], data[: len(data) // 2], args[2])
            self.die()
        number = getattr(errno, self.what)
        raise OSError(number, os.strerror(number))

    def die(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


def install(failure: Failure) -> dict[str, Any]:
    """Replaces the functions of `os`; the originals, to put back."""
    originals = {name: getattr(os, name) for name in COUNTED}
    # what a test writes need not outlast the machine
    for name, original in (originals | {"fsync": lambda _: None}).items():

        def counted(*args: Any, _original: Any = original, _name: str = name, **named: Any) -> Any:
            if failure.happens(_name, args):
                failure.fail(_original, _name, args)
            return _original(*args, **named)

        setattr(os, name, counted)
    return originals


def cut_small(set_value: Callable[[Any, str, object], object]) -> None:
    """`set_value` is `setattr`, or a monkeypatch's."""
    for name, value in {"_CHUNK_SIZE": 4096, "_QUEUE_UNITS": 32, "_UNITS_OF_QUEUE": 1}.items():
        assert hasattr(publish, name)
        set_value(publish, name, value)


def write(root: Path, failure: Failure, first: int, count: int, number: int = 1, mode: str = "sync") -> None:
    """Commits messages `first` to `first + count` of topic T with key number `number`, counting from there.

    Words of `mode`: `async`; `beside`: what is written is cut small, so that a thread writes while the next
    part is made, as with a large batch; `kernels`: they do the work, as with a large batch.
    """
    if "beside" in mode:
        cut_small(setattr)
    if "kernels" in mode:
        kernels.load()
    staged = stage(root, numbered("T", first, count), write=f"w{number}", sync=False)
    install(failure)
    options = CommitOptions(sync="async" not in mode, clock=lambda: 1_700_000_200_000)
    commit(str(root), [staged], key=("q", number), options=options)


def staged_members(
    cluster: Path, names: Sequence[str], first: int, write: str
) -> dict[str, list[StagedFile]]:
    """Ten messages of topic T staged in each store of a cluster, numbered from `first` on."""
    return {
        str(cluster / name): [stage(cluster / name, numbered("T", first + 10 * i, 10), write=write)]
        for i, name in enumerate(names)
    }


def write_cluster(cluster: Path, failure: Failure, names: Sequence[str], mode: str = "") -> None:
    """Commits ten messages of topic T to each store of a cluster, with key number 1.

    `beside`: the stores are published at the same time, as large parts are.
    """
    if mode == "beside":
        publish._CHUNK_SIZE = 256
    members = staged_members(cluster, names, 0, "w1")
    install(failure)
    commit_cluster(members, key=("q", 1), options=CommitOptions(clock=lambda: 1_700_000_200_000))


def main(arguments: list[str]) -> None:
    root, first, count, number, what, at = arguments
    write(Path(root), Failure(what, int(at)), int(first), int(count), int(number))


if __name__ == "__main__":
    main(sys.argv[1:])
