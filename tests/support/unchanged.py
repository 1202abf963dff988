"""The proof that reading changes nothing: what a directory tree was before is what it is after.

Contents by hash, sizes, modes, inodes, numbers of links, and the times of modification and of the last
change in nanoseconds, of files and of directories alike.
"""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_CHUNK_SIZE = 1 << 18


def _hash(path: Path) -> str:
    """Of every chunk that is not all zeros, with its place: the holes of a sparse file (1 GiB of them in a
    default store) cost nothing.
    """
    digest = hashlib.blake2b()
    position = 0
    with path.open("rb", buffering=0) as file:
        while True:
            try:
                data = os.lseek(file.fileno(), position, os.SEEK_DATA)
            except OSError as error:
                if error.errno != errno.ENXIO:  # ENXIO: no data from here to the end
                    raise
                return digest.hexdigest()
            position = data - data % _CHUNK_SIZE
            chunk = os.pread(file.fileno(), _CHUNK_SIZE, position)
            if chunk.strip(b"\0"):
                digest.update(b"%d:%d:" % (position, len(chunk)) + chunk)
            position += _CHUNK_SIZE


def snapshot(root: Path) -> dict[str, tuple[object, ...]]:
    """Relative path -> everything about it that a reader could change."""
    found: dict[str, tuple[object, ...]] = {}
    for path in [root, *sorted(root.rglob("*"))]:
        status = path.lstat()
        content = os.readlink(path) if path.is_symlink() else _hash(path) if path.is_file() else "directory"
        found[str(path.relative_to(root))] = (
            status.st_mode,
            status.st_ino,
            status.st_size,
            status.st_mtime_ns,
            status.st_ctime_ns,
            status.st_nlink,
            content,
        )
    return found


@contextmanager
def unchanged(root: Path) -> Iterator[None]:
    before = snapshot(root)
    assert len(before) > 1, f"{root} is empty: nothing in it could change"
    yield
    after = snapshot(root)
    changed = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
    assert not changed, f"changed below {root}: {changed}"
