"""Linux's inotify(7): which files have changed, without looking at them. Other systems raise OSError."""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import sys
from collections.abc import Iterator
from functools import cache
from typing import Any

_EVENT = struct.Struct("iIII")  # watch, mask, cookie, length of the name
_READ_SIZE = 64 << 10
_INIT_FLAGS = os.O_NONBLOCK | os.O_CLOEXEC  # IN_NONBLOCK and IN_CLOEXEC have the values of these flags

MODIFY, ATTRIB = 0x2, 0x4
MOVED_FROM, MOVED_TO, CREATE, DELETE, DELETE_SELF, MOVE_SELF = 0x40, 0x80, 0x100, 0x200, 0x400, 0x800
OVERFLOW, IGNORED = 0x4000, 0x8000
ONLY_DIRECTORY = 0x1000000

# File systems of this machine by the f_type of statfs(2): only they report every change. On the others (NFS,
# SMB, FUSE) a change that another machine makes is not reported.
_LOCAL = {
    0xEF53: "ext2, ext3, ext4",
    0x58465342: "XFS",
    0x9123683E: "Btrfs",
    0x01021994: "tmpfs",
    0x794C7630: "overlayfs",
    0x2FC12FC1: "ZFS",
    0xF2F52010: "F2FS",
    0xCA451A4E: "bcachefs",
}
_STATFS_SIZE = 512  # more than any struct statfs; it begins with f_type, a long


class Inotify:
    """One inotify instance: a descriptor that becomes readable when a watched file has changed.

    Raises OSError where there is no inotify, or too many instances (ENFILE, EMFILE).
    """

    def __init__(self) -> None:
        self._descriptor = _call("inotify_init1", _INIT_FLAGS)

    def fileno(self) -> int:
        return self._descriptor

    def add(self, path: str, mask: int) -> int:
        """Watches a file or directory; returns the number of the watch, one for each inode.

        Raises OSError: ENOENT or ENOTDIR for a missing path, ENOSPC for too many watches.
        """
        return _call("inotify_add_watch", self._descriptor, os.fsencode(path), mask)

    def remove(self, watch: int) -> None:
        """Ends a watch; none is no error, because the system ends the watch of a deleted file."""
        try:
            _call("inotify_rm_watch", self._descriptor, watch)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise

    def read(self) -> Iterator[tuple[int, int, str]]:
        """The changes so far: (watch, mask, name in a watched directory). Does not wait."""
        while True:
            try:
                data = os.read(self._descriptor, _READ_SIZE)
            except BlockingIOError:
                return
            position = 0
            while position < len(data):
                watch, mask, _, length = _EVENT.unpack_from(data, position)
                position += _EVENT.size + length
                yield watch, mask, os.fsdecode(data[position - length : position].rstrip(b"\0"))
            if len(data) < _READ_SIZE // 2:
                return

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def reports_all_changes(path: str) -> bool:
    """Whether inotify reports every change on the file system of the path; False if that is unknown."""
    buffer = ctypes.create_string_buffer(_STATFS_SIZE)
    try:
        _call("statfs", os.fsencode(path), buffer)
    except OSError:
        return False
    kind = int.from_bytes(buffer.raw[: ctypes.sizeof(ctypes.c_long)], sys.byteorder)
    return kind & 0xFFFFFFFF in _LOCAL


@cache
def _library() -> Any:  # Any: functions of a C library, by name
    if not sys.platform.startswith("linux"):
        raise OSError(errno.ENOSYS, "inotify exists only on Linux")
    return ctypes.CDLL(None, use_errno=True)


def _call(name: str, *arguments: Any) -> int:
    try:
        function = getattr(_library(), name)
    except AttributeError:
        raise OSError(errno.ENOSYS, f"the C library has no {name}") from None
    result = int(function(*arguments))
    if result == -1:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")
    return result
