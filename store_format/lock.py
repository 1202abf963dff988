"""Who holds a store's `lock` (DefaultMessageStore.start, spec 5.3), asked without taking it and without ever closing it.

Closing any descriptor of a file drops every POSIX lock the process holds on it, so each lock file is opened at most once
a process and stays open.
"""

from __future__ import annotations

import fcntl
import os
import struct
import sys

from store_format.files import open_descriptor

__all__ = ["lock_holder"]

# struct flock of 64-bit Linux: type, whence, start, length, pid; padded to 32 bytes. Java locks byte range [0, 1).
_FLOCK = struct.Struct("hhqqi4x")
_asked: dict[tuple[int, int], int] = {}  # (device, inode) -> descriptor, never closed


def lock_holder(path: str) -> int | None:
    """The process id that holds the lock file `path`, as the system tells it; None when nobody else does or it is missing.

    0 or -1 is a holder on another host or in another process namespace. Only Linux can be asked; elsewhere a store counts as not held.
    """
    if not sys.platform.startswith("linux"):
        return None
    try:
        status = os.stat(path, follow_symlinks=False)
    except FileNotFoundError:
        return None
    descriptor = _asked.get((status.st_dev, status.st_ino))
    if descriptor is None:
        try:
            descriptor = open_descriptor(path)
        except FileNotFoundError:
            return None
        _asked[status.st_dev, status.st_ino] = descriptor
    answer = fcntl.fcntl(descriptor, fcntl.F_GETLK, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0))
    kind, _, _, _, holder = _FLOCK.unpack(answer)
    return None if kind == fcntl.F_UNLCK else int(holder)
