"""Which directories may keep compiled kernels, so that a process loads them instead of compiling them again.

A compiled kernel is machine code in a pickle: who can write it runs code in our processes. A directory is
trusted if it and every directory above it belong to this user or to root, and no one else can write there;
a sticky directory such as /tmp may lie above. No numba here: `rmqlog doctor` asks without loading it.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass, field
from pathlib import Path

_OTHERS_CAN_WRITE = stat.S_IWGRP | stat.S_IWOTH


@dataclass(frozen=True, slots=True)
class Places:
    """The directories of compiled kernels: all of `read` are trusted, `write` is the first that we may fill.

    `refused` says for each place that was not taken why, in words for a log.
    """

    read: tuple[Path, ...] = ()
    write: Path | None = None
    refused: tuple[str, ...] = field(default=())


def find_places(beside_source: Path | None, checked: bool) -> Places:
    """Returns the directories that may keep kernels, in the order in which they are tried.

    $NUMBA_CACHE_DIR, then `__pycache__` beside the source (`beside_source`, None for source that came in an
    archive or with a query), then $XDG_CACHE_HOME or ~/.cache. `checked` kernels have directories apart.
    """
    read: list[Path] = []
    refused: list[str] = []
    write = None
    for place, parts in _candidates(beside_source):
        directory = Path(os.path.realpath(place)).joinpath(*parts, *(("checked",) if checked else ()))
        reason = _distrust(directory)
        if reason is None:
            read.append(directory)
            if write is None:
                reason = _make(directory, 0o755 if place == str(beside_source) else 0o700)
                write = directory if reason is None else None
        if reason is not None:
            refused.append(f"{directory}: {reason}")
    return Places(tuple(read), write, tuple(refused))


def _candidates(beside_source: Path | None) -> list[tuple[str, tuple[str, ...]]]:
    found: list[tuple[str, tuple[str, ...]]] = []
    if chosen := os.environ.get("NUMBA_CACHE_DIR"):
        found.append((chosen, ("rmqlog",)))
    if beside_source is not None:
        found.append((str(beside_source), ("__pycache__",)))
    home = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(home):  # the XDG specification: a relative path is ignored
        home = os.path.expanduser("~/.cache")
    if os.path.isabs(home):
        found.append((home, ("rmqlog", "kernels")))
    return found


def _distrust(directory: Path) -> str | None:
    """Returns why compiled kernels are neither read from nor written to `directory`; None for a trusted one.

    What does not exist yet is judged by the directories above it.
    """
    for place in (directory, *directory.parents):
        try:
            status = place.lstat()
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            return f"{place} cannot be examined ({error.strerror})"
        if not stat.S_ISDIR(status.st_mode):
            return f"{place} is not a directory"
        if status.st_uid not in (0, os.geteuid()):
            return f"{place} belongs to another user"
        sticky_above = place != directory and status.st_mode & stat.S_ISVTX
        if status.st_mode & _OTHERS_CAN_WRITE and not sticky_above:
            return f"others can write to {place} (mode {stat.S_IMODE(status.st_mode):o})"
        if _is_store(place):
            return f"{place} is a store"
    return None


def _is_store(directory: Path) -> bool:
    return (directory / "commitlog").is_dir() and not (directory / "commitlog/__init__.py").exists()


def _make(directory: Path, mode: int) -> str | None:
    """Makes `directory` where only this user can write; returns why it cannot be filled, None if it can."""
    missing = [place for place in (directory, *directory.parents) if not place.exists()]
    try:
        for place in reversed(missing):
            place.mkdir(mode=mode, exist_ok=True)
    except OSError as error:
        return f"cannot be made ({error.strerror})"
    if reason := _distrust(directory):  # another process may have made it first
        return reason
    return None if os.access(directory, os.W_OK | os.X_OK) else "not writable"
