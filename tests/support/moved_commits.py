"""Places with stores that are moved after a kill: one store, one whose commitlog is elsewhere, a cluster.

A place is a directory that holds everything. `write` is an action for `kills`.
"""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

from store_format.commit.append import commit, commit_cluster
from store_format.commit.options import CommitOptions
from store_format.store import MessageStore
from tests.support.failing_writer import Failure, install
from tests.support.oracle import walk_files
from tests.support.staged import append, make_store, numbered, stage
from tests.support.stored_rows import bodies_in

_STORES = {"store": ("store",), "elsewhere": ("store",), "cluster": ("x", "y")}
# Messages of a store before, and in the batch. Files of log and queues roll over in a single store; a commit
# over a cluster has twice as many changes.
_COUNTS = {"store": (24, 60), "elsewhere": (24, 60), "cluster": (3, 4)}


def options_of(kind: str, log: Path) -> CommitOptions:
    directories = (str(log),) if kind == "elsewhere" else ()
    return CommitOptions(
        clock=lambda: 1_700_000_200_000, log_directories=directories, new_topics={"T": 4, "Other": 4}
    )


def make_place(place: Path, kind: str, topic: str = "T") -> Path:
    """A place whose stores have messages of this topic."""
    place.mkdir()
    for i, name in enumerate(_STORES[kind]):
        root = make_store(place / name)
        if kind == "elsewhere":
            os.rename(root / "commitlog", place / "log")
        append(
            root,
            numbered(topic, 1000 * i, _COUNTS[kind][0]),
            key=("old", 1),
            options=options_of(kind, place / "log"),
        )
    return place


def write(place: Path, failure: Failure | None, kind: str, log: Path | None = None) -> None:
    """Commits the batch, which has key ("q", 1), with messages for each store."""
    name = "killed" if failure is not None else "again"
    first, count = _COUNTS[kind]
    parts = {}
    for i, store in enumerate(_STORES[kind]):
        messages = numbered("T", 1000 * i + first, count)
        parts[str(place / store)] = [stage(place / store, messages, write=name, sync=False)]
    options = options_of(kind, log or place / "log")
    if failure is not None:
        install(failure)
    if kind == "cluster":
        commit_cluster(parts, key=("q", 1), options=options)
    else:
        ((root, staged),) = parts.items()
        commit(root, staged, key=("q", 1), options=options)


def is_broken_off(place: Path, kind: str) -> bool:
    return any((place / store / ".rmqlog" / "journal.json").exists() for store in _STORES[kind])


def complete(place: Path, kind: str, log: Path | None = None) -> None:
    """Runs the job again: each store has the messages from before and those of the batch, each once, in the
    log and in its queues.
    """
    write(place, None, kind, log)
    for i, store in enumerate(_STORES[kind]):
        directory = (log or place / "log") if kind == "elsewhere" else place / store / "commitlog"
        wanted = Counter(
            f"message {number} of T" for number in range(1000 * i, 1000 * i + sum(_COUNTS[kind]))
        )
        files = {int(path.name): path.read_bytes() for path in directory.iterdir()}
        units = walk_files(files, len(files[min(files)])).messages
        assert Counter(unit.body.decode().rstrip(".") for unit in units) == wanted
        opened = MessageStore.open(
            str(place / store), commit_log_paths=(str(directory),) if kind == "elsewhere" else ()
        )
        assert Counter(bodies_in(opened)) == wanted
    assert not is_broken_off(place, kind)
