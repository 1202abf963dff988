"""A process that commits and dies, or meets an error, at its Nth change of a file: run as `python -m
tests.support.failing_writer`.

Every function of `os` that changes something on disk is counted. Arguments: store, first message, number of
messages, key number, what to do (`kill`, `torn`, or an errno name with `once` or `on`), the count at which,
and optionally `async`; `beside`: what is written is cut small, so that a thread writes while the next part is
made, as with a large batch; and `kernels`: they do the work, as with a large batch.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any


def command(root: Path, first: int, count: int, what: str, at: int, *more: str) -> list[str]:
    """The command of this program, for the repository's root as directory. The key number is 1."""
    numbers = [str(first), str(count), "1", what, str(at)]
    return [sys.executable, "-m", "tests.support.failing_writer", str(root), *numbers, *more]


COUNTED = ("pwrite", "ftruncate", "fsync", "unlink", "rename", "mkdir", "rmdir", "open")
_CREATING = os.O_CREAT | os.O_TRUNC


class Failure:
    """Counts calls, and fails the one numbered `at` (from 1). `at=0` only counts."""

    def __init__(self, what: str, at: int) -> None:
        self.what, _, self.how = what.partition(":")
        self.at = at
        self.count = 0

    def happens(self, name: str, args: tuple[Any, ...]) -> bool:
        if name == "open" and not args[1] & _CREATING:
            return False
        self.count += 1
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
    from store_format.commit import publication as publish

    for name, value in {"_CHUNK_SIZE": 4096, "_QUEUE_UNITS": 32, "_UNITS_OF_QUEUE": 1}.items():
        assert hasattr(publish, name)
        set_value(publish, name, value)


def main(arguments: list[str]) -> None:
    from store_format import kernels
    from store_format.commit.append import commit
    from store_format.commit.prepare_store import CommitOptions
    from tests.support.staged import numbered, stage

    root, first, count, number, what, at, *rest = arguments
    if "beside" in rest:
        cut_small(setattr)
    if "kernels" in rest:
        kernels.load()
        assert kernels.worth(1)
    staged = stage(Path(root), numbered("T", int(first), int(count)), write=f"w{number}", sync=False)
    failure = Failure(what, int(at))
    install(failure)
    options = CommitOptions(sync="async" not in rest, clock=lambda: 1_700_000_200_000)
    commit(root, [staged], key=("q", int(number)), options=options)
    print(failure.count)


if __name__ == "__main__":
    main(sys.argv[1:])
