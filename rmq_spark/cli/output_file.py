"""The only module of this room that opens files: for an export, for a file that other programs read again and
again, and the null device for a closed pipe.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import BinaryIO

import click


def forget_output() -> None:
    """Sends buffered output to the null device: the interpreter would fail to flush it to a closed pipe."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)


def refuse_inside_store(out: str, roots: Iterable[str]) -> None:
    """Raises UsageError if the file lies in one of these directories, or in another store, where a broker or
    a reader may take it for a store's file.
    """
    from store_format.read.store_root import store_around

    place = os.path.realpath(os.path.dirname(os.path.abspath(out)))
    own = {os.path.realpath(path): path for path in roots}
    inside = [path for real, path in own.items() if os.path.commonpath((place, real)) == real]
    root = inside[0] if inside else store_around(place)
    if root is not None:
        raise click.UsageError(f"{out} is inside the store {root}; give a place outside of it")


@contextmanager
def new_file(path: str, *, replace: bool, wanted: Callable[[], bool] = lambda: True) -> Iterator[BinaryIO]:
    """A new file that appears, complete and synced to disk, when the block ends without an error and the file
    is `wanted` then.

    Raises UsageError if the file exists, unless `replace`.
    """
    if not replace and os.path.lexists(path):
        raise click.UsageError(f"{path} exists; give another name, or --force to replace it")
    part = f"{path}.{os.getpid()}.part"
    try:
        with open(os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o666), "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        if wanted():
            os.replace(part, path)
    finally:
        if os.path.lexists(part):
            os.unlink(part)


def replace_whole(path: str, data: bytes) -> None:
    """Replaces a file in one step, so that no reader sees a part of it. Everybody may read the file.

    The data is written to `path` with `.new` behind it first.
    """
    aside = f"{path}.new"
    try:
        flags = os.O_CREAT | os.O_TRUNC | os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW
        with open(os.open(aside, flags, 0o644), "wb") as file:
            os.fchmod(file.fileno(), 0o644)  # whatever the umask is
            file.write(data)
        os.replace(aside, path)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(aside)
        raise
