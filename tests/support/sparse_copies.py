"""Copies of files that keep their holes.

A store of a broker is files of zeros with some messages in them: 140 MB, of which 0.6 MB were written. The
tests copy such stores a thousand times; `shutil` writes every zero, and what reads the copy reads them all.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

_Name = str | os.PathLike[str]
_copy_all = shutil.copyfile
_PIECE = 1 << 20


def install() -> None:
    """Has `shutil.copytree`, `copy` and `copy2` of this process keep holes."""
    shutil.copyfile = copy_file  # type: ignore[assignment]  # typed for any path, also of bytes


def copy_file(source: _Name, target: _Name, *, follow_symlinks: bool = True) -> _Name:
    """`shutil.copyfile`, but for the holes."""
    path = Path(source)
    status = path.stat() if follow_symlinks or not path.is_symlink() else None
    if status is None or status.st_blocks * 512 >= status.st_size or not path.is_file():
        return _copy_all(source, target, follow_symlinks=follow_symlinks)
    with path.open("rb", buffering=0) as read, Path(target).open("wb", buffering=0) as written:
        os.ftruncate(written.fileno(), status.st_size)
        for start, stop in _ranges_of_data(read.fileno()):
            read.seek(start)
            written.seek(start)
            while written.tell() < stop:
                written.write(read.read(min(stop - written.tell(), _PIECE)))
    return target


def _ranges_of_data(descriptor: int) -> Iterator[tuple[int, int]]:
    stop = 0
    while True:
        try:
            start = os.lseek(descriptor, stop, os.SEEK_DATA)
        except OSError as error:
            if error.errno != errno.ENXIO:  # ENXIO: no data from here to the end
                raise
            return
        stop = os.lseek(descriptor, start, os.SEEK_HOLE)
        yield start, stop
