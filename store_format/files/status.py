"""What the file system says of a path: identity, size on disk, and why it may not be read."""

from __future__ import annotations

import os
import pwd
import stat
from dataclasses import dataclass

from store_format.display.text import shown
from store_format.errors import CorruptStoreError, StorePermissionError

YOUNG_NS = 50_000_000  # what changed so recently may change again within a tick of its file system's clock


def symbolic_link(path: str) -> CorruptStoreError:
    """Returns the error for a symbolic link, which is followed at the root of a store only."""
    found = "a symbolic link, which is not followed below the root level"
    return CorruptStoreError(path, 0, "a file or directory", found)


def denied(path: str) -> StorePermissionError:
    """Returns the error for a path that this user may not read: the path's owner, and what to do."""
    owner, me, place = None, os.geteuid(), path
    while owner is None:
        try:
            owner = os.stat(place).st_uid
        except OSError:  # in a directory that the user may not search: then its owner counts
            place = os.path.dirname(place)
    advice = f"give {_user(me)} read permission"
    if owner != me:
        advice = f"run the command as {_user(owner)} (`sudo -u {_user(owner)} …`), or {advice}"
    return StorePermissionError(
        f"{shown(path)}: user {_user(me)} may not read it, its owner is {_user(owner)}; {advice}"
    )


def _user(number: int) -> str:
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return f"#{number}"


def is_directory(path: str) -> bool:
    """Returns whether `path` is a directory or a link to one. Raises StorePermissionError."""
    try:
        return stat.S_ISDIR(os.stat(path).st_mode)
    except PermissionError as error:
        raise denied(path) from error
    except (OSError, ValueError):
        return False


def directory_identity(path: str) -> tuple[int, int, int] | None:
    """Returns (device, inode, mtime in ns) of a directory, following links; None when it is missing."""
    status = _status(path, follow_symlinks=True)
    return None if status is None else (status.st_dev, status.st_ino, status.st_mtime_ns)


def stat_identity(path: str) -> tuple[int, int, int] | None:
    """Returns (inode, size, mtime in ns), which differs once a file is replaced; None when it is missing."""
    status = _status(path, follow_symlinks=False)
    return None if status is None else (status.st_ino, status.st_size, status.st_mtime_ns)


def is_settled(identity: tuple[int, int, int] | None, now_ns: int) -> bool:
    """Returns whether each later change of the file changes its `stat_identity`, which was taken at `now_ns`
    or later.

    A missing file is settled: a new one has an identity.
    """
    return identity is None or identity[2] <= now_ns - YOUNG_NS


def file_status(path: str) -> tuple[int, int] | None:
    """Returns (bytes on disk, mtime in ms); None when the file is missing. Holes take no bytes on disk."""
    status = _status(path, follow_symlinks=False)
    return None if status is None else (status.st_blocks * 512, status.st_mtime_ns // 1_000_000)


def _status(path: str, *, follow_symlinks: bool) -> os.stat_result | None:
    try:
        return os.stat(path, follow_symlinks=follow_symlinks)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except PermissionError as error:
        raise denied(path) from error


def named_identity(path: str) -> tuple[int, int] | None:
    """Returns (device, inode) of what a path names, also of a link itself; None when it is missing."""
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino


def open_identity(descriptor: int) -> tuple[int, int]:
    """Returns (device, inode) of an open file."""
    status = os.fstat(descriptor)
    return status.st_dev, status.st_ino


def is_named(path: str, descriptor: int) -> bool:
    """Returns whether a path still names an open file."""
    return named_identity(path) == open_identity(descriptor)


@dataclass(frozen=True, slots=True)
class DiskSpace:
    """A file system: where it is mounted, its size, what is free, and the used share in percent, rounded up.

    The size and the share do not count the blocks reserved for root
    (UtilAll.getDiskPartitionSpaceUsedPercent).
    """

    mount: str
    total_bytes: int
    free_bytes: int
    used_percent: int


def disk_space(path: str) -> DiskSpace:
    """Returns the file system of a path, which may not exist yet."""
    place = os.path.realpath(path)
    while not os.path.lexists(place):
        place = os.path.dirname(place)
    status = os.statvfs(place)
    while not os.path.ismount(place):
        place = os.path.dirname(place)
    used = status.f_blocks - status.f_bfree
    entire = used + status.f_bavail
    percent = -(-100 * used // entire) if entire else 0
    return DiskSpace(place, entire * status.f_frsize, status.f_bavail * status.f_frsize, percent)
