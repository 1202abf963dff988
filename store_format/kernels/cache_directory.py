"""Which directories may keep compiled kernels, so that a process loads them instead of compiling them again.

A compiled kernel is machine code: who can write it runs code in our processes. A directory is
trusted if it and every directory above it belong to this user or to root, and no one else can write there;
a sticky directory such as /tmp may lie above.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import secrets
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

# With this variable every load, store and copy of a kernel checks its range, and raises IndexError outside.
CHECKED = os.environ.get("RMQLOG_CHECKED_KERNELS") == "1"

_IMPORTS = re.compile(
    r"^\s*(?:from|import)\s+(store_format[\w.]*)(?:\s+import\s+(\([^)]*\)|[\w, ]+))?", re.MULTILINE
)
_NAME_DIGITS = 32
_OTHERS_CAN_WRITE = stat.S_IWGRP | stat.S_IWOTH


@dataclass(frozen=True, slots=True)
class Places:
    """The directories of compiled kernels: all of `read` are trusted, `write` is the first that we may fill.

    `refused` says for each place that was not taken why, in words for a log.
    """

    read: tuple[Path, ...] = ()
    write: Path | None = None
    refused: tuple[str, ...] = field(default=())


@cache
def places_of_kernels() -> Places:
    """Returns `find_places` for the kernels of this package."""
    return find_places(_directory_of_source())


def _directory_of_source() -> Path | None:
    """The directory of this package; None for source that came in an archive or with a query."""
    spec = importlib.util.find_spec(__package__)
    origin = Path(spec.origin) if spec is not None and spec.origin else None
    return origin.parent if origin is not None and origin.is_file() else None


def find_places(beside_source: Path | None) -> Places:
    """Returns the directories that may keep kernels, in the order in which they are tried.

    $NUMBA_CACHE_DIR, then `__pycache__` beside the source (`beside_source`, None for source that came in an
    archive or with a query), then $XDG_CACHE_HOME or ~/.cache.
    """
    read: list[Path] = []
    refused: list[str] = []
    write = None
    for place, parts in _candidates(beside_source):
        directory = Path(os.path.realpath(place)).joinpath(*parts)
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
        if (place / "commitlog").is_dir() and not (place / "commitlog/__init__.py").exists():
            return f"{place} is a store"
    return None


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


@cache
def source_digest(module: str) -> str:
    """Returns the digest of the source of a module of this room and of all that it imports of `store_format`.

    Their constants and parts are compiled into the kernel. Without a source, which some archives leave out,
    the digest is one that no other process has.
    """
    sources = sources_of(module)
    if sources is None:
        return secrets.token_hex(_NAME_DIGITS // 2)
    return hashlib.sha256(repr(sorted(sources.items())).encode()).hexdigest()[:_NAME_DIGITS]


def sources_of(*modules: str) -> dict[str, str] | None:
    """The sources of modules of this room and of all that they import of `store_format`.

    None if one has no source.
    """
    seen: dict[str, str] = {}
    waiting = [f"{__package__}.{module}" for module in modules]
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        found = _source(name)
        if found is None:
            return None
        seen[name] = found
        waiting += _imported(found)
    return seen


@cache
def _source(module: str) -> str | None:
    spec = importlib.util.find_spec(module)
    # of a file, a zip, or rmq_spark.spark.by_value
    loader: Any = spec.loader if spec is not None else None
    return loader.get_source(module) if hasattr(loader, "get_source") else None


def _imported(source: str) -> Iterator[str]:
    """Yields the modules that a source imports, in the code or in a text: too many do no harm."""
    for name, names in _IMPORTS.findall(source):
        if name not in ("store_format", __package__):  # these two import what their callers do not use
            yield name
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.submodule_search_locations is not None:
            parts = {f"{name}.{part}" for part in re.findall(r"\w+", names)} - {__package__}
            yield from (part for part in parts if importlib.util.find_spec(part) is not None)
