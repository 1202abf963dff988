"""Looks at paths, lists and opens store files, and reads small ones whole. No function here writes.

What the file system says of a path is its identity, its size on disk, and why it may not be read. A symbolic
link below the root of a store is refused: a store may be hostile, and the link could point anywhere.
"""

from __future__ import annotations

import errno
import hashlib
import os
import pwd
import re
import stat
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Literal

from store_format.display.text import shown
from store_format.errors import (
    CorruptStoreError,
    FileReplacedError,
    StoreError,
    StoreNotFoundError,
    StorePermissionError,
    StoreUnreachableError,
)
from store_format.files import blocks, paths, tree
from store_format.files.client import StoredObject, unanswered

# fsck creates this directory at the root of a file system; only root may read it. No topic has this name:
# TopicValidator does not allow `+`.
LOST_AND_FOUND = "lost+found"

# Called with the error for an entry that cannot be read: raises the error, or returns to skip the entry.
Refused = Callable[[StoreError], object]

OFFSET_NAME = re.compile(r"[0-9]{20}\Z", re.ASCII)
_SMALL_FILE_SIZE_MAX = 64 << 20  # config files: a broker with 100,000 topics writes about 30 MB

YOUNG_NS = 50_000_000  # what changed so recently may change again within a tick of its file system's clock


# ---- what the file system says of a path -------------------------------------------------------------------


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
    if paths.is_remote(path):
        return tree.is_directory(path)
    try:
        return stat.S_ISDIR(os.stat(path).st_mode)
    except PermissionError as error:
        raise denied(path) from error
    except (OSError, ValueError):
        return False


def one_look(paths_below: Iterable[str]) -> AbstractContextManager[None]:
    """For a look at a store: lists what is on object storage again, once, and no more until its end."""
    return tree.one_moment(filter(paths.is_remote, paths_below))


def all_versions(paths_below: Iterable[str]) -> frozenset[tuple[str, str]]:
    """The path and the version of each object below paths on object storage, as it was listed."""
    return frozenset(tree.versions_below(filter(paths.is_remote, paths_below)))


@contextmanager
def all_answered() -> Iterator[None]:
    """Raises the error of a request that got no answer meanwhile, though who asked has gone on without it.

    Many a look takes a file that cannot be read for one that says nothing, which is right on a disk. The
    reader of a whole queue, or of a view, must not miss what such a look would have found.
    """
    before = unanswered.count
    yield
    if unanswered.count > before:
        raise StoreUnreachableError(unanswered.text)


def look_again(path: str) -> None:
    """Says that what is at a path may have changed: lists objects again. A local disk shows it itself."""
    if paths.is_remote(path):
        tree.renew(path)


def directory_identity(path: str) -> tuple[int, int, int] | None:
    """Returns (device, inode, mtime in ns) of a directory, following links; None when it is missing.

    On object storage it differs once a name in the directory does.
    """
    if paths.is_remote(path):
        names = tree.names_in(path)
        return (
            None
            if names is None
            else (0, zlib.crc32(path.encode()), zlib.crc32("/".join(sorted(names)).encode()))
        )
    status = _status(path, follow_symlinks=True)
    return None if status is None else (status.st_dev, status.st_ino, status.st_mtime_ns)


def stat_identity(path: str) -> tuple[int, int, int] | None:
    """Returns (inode, size, mtime in ns), which differs once a file is replaced; None when it is missing."""
    if paths.is_remote(path):
        item = tree.stored_object(path)
        return None if item is None else (version_number(item), item.size, item.mtime_ms * 1_000_000)
    status = _status(path, follow_symlinks=False)
    return None if status is None else (status.st_ino, status.st_size, status.st_mtime_ns)


def is_settled(identity: tuple[int, int, int] | None, now_ns: int) -> bool:
    """Returns whether each later change of the file changes its `stat_identity`, which was taken at `now_ns`
    or later.

    A missing file is settled: a new one has an identity.
    """
    return identity is None or identity[2] <= now_ns - YOUNG_NS


def file_status(path: str) -> tuple[int, int] | None:
    """Returns (bytes on disk, mtime in ms); None when the file is missing. Holes take no bytes on disk.

    On object storage the time is that of the upload.
    """
    if paths.is_remote(path):
        item = tree.stored_object(path)
        return None if item is None else (item.size, item.mtime_ms)
    status = _status(path, follow_symlinks=False)
    return None if status is None else (status.st_blocks * 512, status.st_mtime_ns // 1_000_000)


def version_number(item: StoredObject) -> int:
    """Returns a number that differs for another version of an object, for what an inode is to a file."""
    version = item.version or str(item.mtime_ms)
    return int.from_bytes(hashlib.blake2b(version.encode(), digest_size=7).digest())


def _status(path: str, *, follow_symlinks: bool) -> os.stat_result | None:
    try:
        return os.stat(path, follow_symlinks=follow_symlinks)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except PermissionError as error:
        raise denied(path) from error


def named_identity(path: str) -> tuple[int, int] | None:
    """Returns (device, inode) of what a path names, also of a link itself; None when it is missing."""
    if paths.is_remote(path):
        item = tree.stored_object(path)
        return None if item is None else (0, version_number(item))
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
    """Returns the file system of a path, which may not exist yet. Object storage has no size: all is 0."""
    if paths.is_remote(path):
        return DiskSpace(path, 0, 0, 0)
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


def may_write(directory: str) -> bool:
    """Whether the process may create files there: not on a file system that is mounted read-only."""
    return os.access(directory, os.W_OK)


def link_count(path: str) -> int:
    """The number of names of a file: more than 1 with hard links."""
    return os.stat(path).st_nlink


# ---- listing and reading -----------------------------------------------------------------------------------


def offset_file_name(offset: int) -> str:
    """Returns the name of the file that begins at byte `offset` of its file queue (UtilAll.offset2FileName).

    >>> offset_file_name(1073741824)
    '00000000001073741824'
    """
    return f"{offset:020d}"


@dataclass(frozen=True, slots=True)
class StoreFile:
    """One file of a file queue (such as the commitlog): path, offset of its first byte, length in bytes.

    `identity` differs once another file has the path; None for a file that was not listed. `stored` is the
    version of the object on object storage.
    """

    path: str
    start: int
    size: int
    identity: tuple[int, int] | None = None
    stored: StoredObject | None = None

    @property
    def stop(self) -> int:
        return self.start + self.size


def list_store_files(
    directory: str,
    name: re.Pattern[str] = OFFSET_NAME,
    irregular: Callable[[CorruptStoreError], object] | None = None,
) -> list[StoreFile]:
    """Returns the files of a file queue by start offset; [] when the directory is missing.

    Only names of 20 digits count; `diagnose` reports other names. Another `name` pattern lists other files,
    whose `start` is the number in the last group of the pattern, or the whole name. Raises CorruptStoreError
    for a link and for an entry that is not a regular file: to skip it would hide missing bytes. The caller
    that gives `irregular` gets the errors of such entries instead.
    """
    found = []
    if paths.is_remote(directory):
        for item in tree.objects_of(directory):
            match = name.match(paths.base_name(item.path))
            if match is not None:
                start, number = int(match[match.lastindex or 0]), version_number(item)
                known = ((0, number), item) if tree.is_listed(item) else ()
                found.append(StoreFile(item.path, start, item.size, *known))
        return sorted(found, key=lambda file: file.start)
    for entry in _scan(directory):
        match = name.match(entry.name)
        if match is None:
            continue
        if entry.is_symlink():
            raise symbolic_link(entry.path)
        if not entry.is_file(follow_symlinks=False):
            found_kind = "a directory, a pipe, a socket or a device"
            error = CorruptStoreError(entry.path, 0, "a regular file", found_kind)
            if irregular is None:
                raise error
            irregular(error)
            continue
        status = _file_status(entry)
        if status is not None:
            start, identity = int(match[match.lastindex or 0]), (status.st_dev, status.st_ino)
            found.append(StoreFile(entry.path, start, status.st_size, identity))
    found.sort(key=lambda file: file.start)
    return found


def _scan(directory: str) -> list[os.DirEntry[str]]:
    """Returns the entries of a directory in any order; [] when the directory is missing."""
    try:
        with os.scandir(directory) as entries:
            return list(entries)
    except FileNotFoundError:
        return []
    except NotADirectoryError as error:
        raise CorruptStoreError(directory, 0, "a directory", "a file") from error
    except PermissionError as error:
        raise denied(directory) from error


def _file_status(entry: os.DirEntry[str]) -> os.stat_result | None:
    """Returns the status of a file; None when the file was deleted since the scan (retention)."""
    try:
        return entry.stat(follow_symlinks=False)
    except FileNotFoundError:
        return None
    except PermissionError as error:  # the directory may be read, but not searched
        raise denied(os.path.dirname(entry.path)) from error


def entry_names(directory: str, *, missing_ok: bool = False) -> frozenset[str]:
    """Returns the names in a directory. Raises StoreNotFoundError for a missing directory and for a file."""
    if paths.is_remote(directory):
        names = tree.names_in(directory)
        if names is None and not missing_ok:
            what = "file" if paths.remote_kind(directory) == "HDFS" else "object"
            raise StoreNotFoundError(
                f"{directory}: no {what} is there; give the directory of the store's copy"
            )
        return names or frozenset()
    try:
        return frozenset(os.listdir(directory))
    except FileNotFoundError as error:
        if missing_ok:
            return frozenset()
        parent = os.path.dirname(directory)
        hint = "" if os.path.isdir(parent) else f"; {parent} does not exist either"
        raise StoreNotFoundError(
            f"{directory} does not exist{hint}; give the broker's store directory (storePathRootDir)"
        ) from error
    except NotADirectoryError as error:
        raise StoreNotFoundError(
            f"{directory} is a file; give the broker's store directory (storePathRootDir)"
        ) from error
    except PermissionError as error:
        raise denied(directory) from error


def refuse(error: StoreError) -> None:
    """The `Refused` that raises every error."""
    raise error


def list_directories(
    directory: str, select: Callable[[str], bool] = lambda name: True, refused: Refused = refuse
) -> list[tuple[str, str]]:
    """Returns (name, path) of the selected directories in `directory` by name; [] when it is missing.

    `lost+found` is skipped. For a link `refused` is called with a CorruptStoreError; if it returns, the link
    is skipped.
    """
    if paths.is_remote(directory):
        below = ((name, f"{directory}/{name}") for name in sorted(tree.names_in(directory) or ()))
        return [each for each in below if select(each[0]) and tree.is_directory(each[1])]
    found = []
    for entry in _scan(directory):
        if entry.name == LOST_AND_FOUND or not select(entry.name):
            continue
        if entry.is_symlink():
            refused(symbolic_link(entry.path))
        elif entry.is_dir(follow_symlinks=False):
            found.append((entry.name, entry.path))
    found.sort()
    return found


OPEN_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK  # refuses links, waits for no pipe


def open_descriptor(path: str) -> int:
    """Returns a read-only descriptor. Refuses links, does not wait for pipes. The caller closes it."""
    try:
        return os.open(path, OPEN_FLAGS)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise symbolic_link(path) from error
        if isinstance(error, PermissionError):
            raise denied(path) from error
        raise


class Descriptor:
    """An open file, which `close` closes once."""

    def __init__(self, descriptor: int = -1) -> None:
        self._descriptor = descriptor

    def fileno(self) -> int:
        return self._descriptor

    def close(self) -> None:
        """Closes the file; a second call does nothing."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


@dataclass(frozen=True, slots=True)
class DirectoryEntry:
    """An entry of a directory. `size` is 0 for everything but a file."""

    name: str
    path: str
    kind: Literal["file", "directory", "link", "other"]
    size: int


def list_entries(directory: str) -> list[DirectoryEntry]:
    """Returns all entries of a directory by name, links included; [] when the directory is missing.

    Raises CorruptStoreError when `directory` is a file. `diagnose` calls this: it reports links.
    """
    if paths.is_remote(directory):
        found = [DirectoryEntry(name, path, "directory", 0) for name, path in list_directories(directory)] + [
            DirectoryEntry(paths.base_name(item.path), item.path, "file", item.size)
            for item in tree.objects_of(directory)
        ]
        return sorted(found, key=lambda entry: entry.name)
    found = [_described_entry(entry) for entry in _scan(directory) if entry.name != LOST_AND_FOUND]
    return sorted(found, key=lambda entry: entry.name)


def _described_entry(entry: os.DirEntry[str]) -> DirectoryEntry:
    if entry.is_symlink():
        return DirectoryEntry(entry.name, entry.path, "link", 0)
    if entry.is_dir(follow_symlinks=False):
        return DirectoryEntry(entry.name, entry.path, "directory", 0)
    if entry.is_file(follow_symlinks=False):
        status = _file_status(entry)
        return DirectoryEntry(entry.name, entry.path, "file", 0 if status is None else status.st_size)
    return DirectoryEntry(entry.name, entry.path, "other", 0)


def read_bytes(path: str, size_max: int = _SMALL_FILE_SIZE_MAX) -> bytes | None:
    """Returns the content of a small file; None when the file is missing.

    Raises CorruptStoreError for a link, a directory, and a file of more than `size_max` bytes.
    """
    if paths.is_remote(path):
        item = tree.stored_object(path)
        if item is not None and item.size > size_max:
            raise CorruptStoreError(path, 0, f"at most {size_max} bytes", f"{item.size} bytes")
        return None if item is None else _newest_bytes(item)
    try:
        descriptor = open_descriptor(path)
    except FileNotFoundError:
        return None
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        os.close(descriptor)
        raise CorruptStoreError(path, 0, "a regular file", "something else")
    with os.fdopen(descriptor, "rb") as file:
        if status.st_size > size_max:
            raise CorruptStoreError(path, 0, f"at most {size_max} bytes", f"{status.st_size} bytes")
        return file.read(size_max)


def _newest_bytes(item: StoredObject, start: int = 0, stop: int | None = None) -> bytes | None:
    """The bytes [start, stop) of an object, all of one version: of the newest one if it was uploaded again.

    None if the object is gone, or if a newer version has another size than the given range is of.
    """
    try:
        return bytes(blocks.read(item, start, item.size if stop is None else stop))
    except FileReplacedError:
        now = tree.newest(item.path)
        if now is None or (stop is not None and now.size != item.size):
            return None
        return bytes(blocks.read(now, start, now.size if stop is None else stop))


def readable_identity(path: str) -> tuple[int, int, int] | None:
    """Returns the `stat_identity` of a file that `read_bytes` could open; None when the file is missing.

    Raises CorruptStoreError for a link, and StorePermissionError.
    """
    if paths.is_remote(path):
        return stat_identity(path)
    try:
        descriptor = open_descriptor(path)
    except FileNotFoundError:
        return None
    try:
        status = os.fstat(descriptor)
    finally:
        os.close(descriptor)
    return status.st_ino, status.st_size, status.st_mtime_ns


def read_range(path: str, position: int, length: int, size: int) -> bytes:
    """Returns `length` bytes of a file of exactly `size` bytes; b"" if the file is missing or is another.

    For one read of a file: a `FileView` costs twice as much.
    """
    if paths.is_remote(path):
        item = tree.stored_object(path)
        if item is None or item.size != size or position + length > size:
            return b""
        return _newest_bytes(item, position, position + length) or b""
    try:
        descriptor = open_descriptor(path)
    except FileNotFoundError:
        return b""
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise CorruptStoreError(path, 0, "a regular file", "something else")
        data = os.pread(descriptor, length, position)
    finally:
        os.close(descriptor)
    return data if status.st_size == size and len(data) == length else b""
