"""Waits until one of some files has changed, without a look at them where inotify can be used.

A missing file is watched by its nearest directory that exists. Files on network file systems, files for which
the system's limits leave no watch, and all files on other systems are polled: as often as every 5 ms after a
change, and less and less often, down to every 50 ms, when nothing changes.
"""

from __future__ import annotations

import ctypes
import errno
import logging
import os
import select
import struct
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Any

from store_format.files.read import YOUNG_NS, Descriptor

_log = logging.getLogger(__name__)

_POLL_SECONDS, _POLL_SECONDS_MAX = 0.005, 0.05
_POLL_SHARE = 0.02  # of the time since the last change
_ARM_TRIES = 20
_EVENT = struct.Struct("iIII")  # watch, mask, cookie, length of the name
_READ_SIZE = 64 << 10
_INIT_FLAGS = os.O_NONBLOCK | os.O_CLOEXEC  # IN_NONBLOCK and IN_CLOEXEC have the values of these flags

IN_MODIFY, IN_ATTRIB, IN_MOVED_FROM, IN_MOVED_TO = 0x2, 0x4, 0x40, 0x80
IN_CREATE, IN_DELETE, IN_DELETE_SELF, IN_MOVE_SELF = 0x100, 0x200, 0x400, 0x800
IN_Q_OVERFLOW, IN_IGNORED = 0x4000, 0x8000
IN_ONLYDIR = 0x1000000

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

_FILE = IN_ATTRIB | IN_MODIFY | IN_DELETE_SELF | IN_MOVE_SELF
_DIRECTORY = IN_CREATE | IN_DELETE | IN_MOVED_FROM | IN_MOVED_TO | IN_DELETE_SELF | IN_MOVE_SELF
_GONE = IN_DELETE_SELF | IN_MOVE_SELF | IN_IGNORED
# ENOSPC: too many watches; EACCES: a directory that this user may not read
_NO_WATCH = (errno.ENOSPC, errno.EACCES, errno.EPERM, errno.ENOMEM, errno.ENAMETOOLONG, errno.ELOOP)

_Identity = tuple[int, int, int, int] | None  # device, inode, size, time in ns


@dataclass(slots=True)
class _Watched:
    """A path: the directory or file with the watch (`watch` -1: polled), and the file at that time."""

    target: str = ""
    watch: int = -1
    identity: _Identity = None
    is_young: bool = False

    def has_changed(self) -> bool:
        """Whether the polled file is another one than at the last call, or may have been changed twice."""
        now = _identity(self.target)
        is_young = now is not None and now[3] > time.time_ns() - YOUNG_NS
        changed = now != self.identity or (self.is_young and not is_young)
        self.identity, self.is_young = now, is_young
        return changed


class FileWatch:
    """Some files, and a wait for the next change of any of them. Any thread may call `wake` and `watch`.

    A file counts as changed when its bytes or its times change, or when another file takes its name; a
    directory, when a name appears in it or disappears. A change may be reported twice, or without any change.
    """

    def __init__(self, *, use_inotify: bool = True) -> None:
        self._inotify: Inotify | None = None
        if use_inotify:
            try:
                self._inotify = Inotify()
            except OSError as error:
                _log.info("%s: files are polled instead", error)
        self._wake_end, self._waking_end = os.pipe()
        os.set_blocking(self._wake_end, False)
        os.set_blocking(self._waking_end, False)
        self._poll = select.poll()
        self._poll.register(self._wake_end, select.POLLIN)
        if self._inotify is not None:
            self._poll.register(self._inotify, select.POLLIN)
        self._lock = threading.Lock()
        self._watched: dict[str, _Watched] = {}
        self._of_watch: dict[int, set[str]] = {}
        self._changed_at = time.monotonic()

    def close(self) -> None:
        with self._lock:
            self.close_inherited()

    def close_inherited(self) -> None:
        """`close` in a forked child, where a thread of the parent may hold the lock."""
        for descriptor in (self._wake_end, self._waking_end):
            if descriptor >= 0:
                os.close(descriptor)
        self._wake_end = self._waking_end = -1
        if self._inotify is not None:
            self._inotify.close()

    def watch(self, paths: Iterable[str]) -> None:
        """Watches these paths from now on, and no others. A change after the call is reported."""
        wanted = set(paths)
        with self._lock:
            for path in self._watched.keys() - wanted:
                self._forget(path)
            for path in wanted - self._watched.keys():
                self._arm(path)

    def wake(self) -> None:
        """Ends the wait that is under way, or the next one."""
        with self._lock, suppress(BlockingIOError):  # as full as it may be: a wait ends anyway
            if self._waking_end >= 0:
                os.write(self._waking_end, b"\0")

    def wait(self, timeout: float) -> set[str]:
        """The paths that have changed, after at most `timeout` seconds; empty on a timeout or `wake`."""
        deadline = time.monotonic() + timeout
        while True:
            with self._lock:
                polled = [path for path, each in self._watched.items() if each.watch < 0]
            left = max(0.0, deadline - time.monotonic())
            pause = self._pause() if polled else left
            self._poll.poll(1000 * min(left, pause))
            changed, is_woken = self._read(polled)
            if changed or is_woken or time.monotonic() >= deadline:
                return changed

    def refresh(self) -> set[str]:
        """The paths whose name leads to another file than the watched one, which are watched again.

        No event tells that: the directory above was renamed, for example. Costs a system call for each path.
        """
        with self._lock:
            changed = set()
            for path, each in self._watched.items():
                now = _identity(path)
                if (now and now[:2]) != (each.identity and each.identity[:2]):
                    changed.add(path)
            for path in changed:
                self._arm(path)
        return changed

    # ---- one wait ------------------------------------------------------------------------------------------

    def _pause(self) -> float:
        quiet = time.monotonic() - self._changed_at
        return min(max(_POLL_SHARE * quiet, _POLL_SECONDS), _POLL_SECONDS_MAX)

    def _read(self, polled: Iterable[str]) -> tuple[set[str], bool]:
        """The paths that have changed, and whether `wake` was called."""
        is_woken = False
        with self._lock:
            with suppress(BlockingIOError):
                is_woken = bool(os.read(self._wake_end, 4096))
            changed = self._events()
            for path in polled:
                each = self._watched.get(path)
                if each is not None and each.watch < 0 and each.has_changed():
                    changed.add(path)
            if changed:
                self._changed_at = time.monotonic()
            return changed, is_woken

    def _events(self) -> set[str]:
        if self._inotify is None:
            return set()
        changed: set[str] = set()
        again: set[str] = set()
        for watch, mask, name in self._inotify.read():
            paths = self._of_watch.get(watch, set()) if not mask & IN_Q_OVERFLOW else self._watched.keys()
            for path in paths:
                target = self._watched[path].target
                if target != path and name and _next_name(target, path) != f"{target.rstrip('/')}/{name}":
                    continue  # another name in the directory
                changed.add(path)
                if target != path or mask & (_GONE | IN_Q_OVERFLOW):
                    again.add(path)
        for path in again:
            self._arm(path)
        return changed

    # ---- watches -------------------------------------------------------------------------------------------

    def _arm(self, path: str) -> None:
        """Watches the file, or the nearest directory above that exists. Polls it if neither is possible."""
        self._forget(path)
        each = self._watched[path] = _Watched(path)
        if self._inotify is None:
            each.identity = _identity(path)
            return
        for _ in range(_ARM_TRIES):
            before = _identity(path)
            each.target, each.watch = self._add_nearest(self._inotify, path)
            each.identity = _identity(path)
            if each.watch < 0:
                break
            self._of_watch.setdefault(each.watch, set()).add(path)
            is_there = os.path.lexists(_next_name(each.target, path)) if each.target != path else True
            if (before and before[:2]) == (each.identity and each.identity[:2]) and (
                is_there == (each.target == path)
            ):
                return
            self._drop(each.watch, path)  # it came or went meanwhile
        each.target, each.watch = path, -1

    def _add_nearest(self, watches: Inotify, path: str) -> tuple[str, int]:
        """(the path, or a directory above that exists, its watch); -1 if it must be polled."""
        target = path
        while True:
            mask = (_DIRECTORY | IN_ONLYDIR) if target != path or os.path.isdir(path) else _FILE
            try:
                watch = watches.add(target, mask)
            except OSError as error:
                if error.errno in (errno.ENOENT, errno.ENOTDIR) and target not in ("/", ""):
                    target = os.path.dirname(target)
                    continue
                if error.errno in _NO_WATCH:
                    _log.info("%s: %s; polled instead", target, error)
                    return path, -1
                raise
            if not reports_all_changes(target):
                self._drop(watch, path)
                return path, -1
            return target, watch

    def _forget(self, path: str) -> None:
        each = self._watched.pop(path, None)
        if each is not None and each.watch >= 0:
            self._drop(each.watch, path)

    def _drop(self, watch: int, path: str) -> None:
        paths = self._of_watch.get(watch, set())
        paths.discard(path)
        if not paths:
            self._of_watch.pop(watch, None)
            if self._inotify is not None:
                self._inotify.remove(watch)


def _next_name(directory: str, path: str) -> str:
    """The name below `directory` on the way to `path`, as a path."""
    rest = path[len(directory) :].lstrip("/")
    return f"{directory.rstrip('/')}/{rest.partition('/')[0]}"


def _identity(path: str) -> _Identity:
    """The file as it is now. It is opened, because a network file system may answer stat from its memory."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        status = os.fstat(descriptor)
    finally:
        os.close(descriptor)
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


# ---- inotify -----------------------------------------------------------------------------------------------


class Inotify(Descriptor):
    """An instance of Linux's inotify(7): a descriptor that becomes readable when a watched file has changed.

    Raises OSError where there is no inotify, or too many instances (ENFILE, EMFILE).
    """

    def __init__(self) -> None:
        super().__init__(_call("inotify_init1", _INIT_FLAGS))

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
