"""Actions that are killed at each change of a file, in forks of a process without threads (`fork_server`).

An action is a function of a module that takes a store, a `Failure` and more arguments. It prepares what is
not to be counted, calls `install(failure)`, and does what is to be killed. `writes` has actions that commit.
"""

from __future__ import annotations

import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Concatenate

from tests.support.failing_writer import Failure
from tests.support.fork_server import Ended, ForkServer

Action = Callable[Concatenate[Path, Failure, ...], object]


def _run(root: Path, what: str, at: int, action: Action, arguments: tuple[object, ...]) -> int:
    failure = Failure(what, at)
    action(root, failure, *arguments)
    return failure.count


def count_changes(forks: ForkServer, root: Path, action: Action, *arguments: object) -> int:
    """Runs the action on a store to its end; returns how many changes it makes."""
    changes = forks.call(_run, root, "kill", 0, action, arguments)
    assert isinstance(changes, int)
    return changes


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
) -> Iterator[tuple[int, Path]]:
    """Yields each change and a copy of the store in which the action was killed at that change.

    With `every`, only each so many. The copies have different paths below `copies`. A copy is removed when
    the next one is made.
    """
    whole = shutil.copytree(before, copies / "whole")
    changes = count_changes(forks, whole, action, *arguments)
    shutil.rmtree(whole)
    for at in range(1, changes + 1, every):
        root = shutil.copytree(before, copies / f"{what}-{at}")
        kill_at(forks, root, what, at, action, *arguments)
        yield at, root
        shutil.rmtree(root, ignore_errors=True)  # a test may have moved it
