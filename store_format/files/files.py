"""The files of one kind of place: of local disks here, of object storage and HDFS in `objects.py`.

Every method takes whole paths. What the file system says of a path is its identity, its size on disk, and why
it may not be read. No method writes.
"""

from __future__ import annotations

import os
import re
import stat
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar

from store_format.errors import CorruptStoreError, StoreNotFoundError
from store_format.files.client import StoredObject
from store_format.files.paths import (
    LOST_AND_FOUND,
    OFFSET_NAME,
    DirectoryEntry,
    DiskSpace,
    Refused,
    StoreFile,
    denied,
    is_settled,
    open_descriptor,
    open_identity,
    refuse,
    symbolic_link,
)

if TYPE_CHECKING:
    from store_format.files.rocksdb import KeptDatabases, RocksDatabase
    from store_format.files.view import FileView

_VIEWS_MAX = 128  # of one look
_PIECE_SIZE = 8 << 20  # bytes of a file that are copied at once
SMALL_FILE_SIZE_MAX = 64 << 20  # config files: a broker with 100,000 topics writes about 30 MB

_Found = TypeVar("_Found")
_Look = TypeVar("_Look")


class Files:
    """The files of local disks."""

    # ---- what the file system says of a path

    def is_directory(self, path: str) -> bool:
        """Whether `path` is a directory or a link to one. Raises StorePermissionError."""
        try:
            return stat.S_ISDIR(os.stat(path).st_mode)
        except PermissionError as error:
            raise denied(path) from error
        except (OSError, ValueError):
            return False

    def exists(self, path: str) -> bool:
        """Whether a path leads to anything, also to a symbolic link that leads nowhere."""
        return os.path.lexists(path)

    def is_file(self, path: str) -> bool:
        """Whether a path is a regular file, or a link to one."""
        return os.path.isfile(path)

    def one_look(self, path: str) -> AbstractContextManager[None]:
        """For a look at a store: lists what is below the path again, once, and no more until its end."""
        return nullcontext()

    def look_again(self, path: str) -> None:
        """Says that what is at a path may have changed. A local disk shows it itself."""

    def versions(self, path: str) -> Iterable[tuple[str, str]]:
        """The path and the version of each object below the path, as it was listed; none of files."""
        return ()

    def directory_identity(self, path: str) -> tuple[int, int, int] | None:
        """(device, inode, mtime in ns) of a directory, following links; None when it is missing.

        On object storage it differs once a name in the directory does.
        """
        status = _status(path, follow_symlinks=True)
        return None if status is None else (status.st_dev, status.st_ino, status.st_mtime_ns)

    def stat_identity(self, path: str) -> tuple[int, int, int] | None:
        """(inode, size, mtime in ns), which differs once a file is replaced; None when it is missing."""
        status = _status(path, follow_symlinks=False)
        return None if status is None else (status.st_ino, status.st_size, status.st_mtime_ns)

    def readable_identity(self, path: str) -> tuple[int, int, int] | None:
        """The `stat_identity` of a file that `read` could open; None when the file is missing.

        Raises CorruptStoreError for a link, and StorePermissionError.
        """
        try:
            descriptor = open_descriptor(path)
        except FileNotFoundError:
            return None
        try:
            status = os.fstat(descriptor)
        finally:
            os.close(descriptor)
        return status.st_ino, status.st_size, status.st_mtime_ns

    def named_identity(self, path: str) -> tuple[int, int] | None:
        """(device, inode) of what a path names, also of a link itself; None when it is missing."""
        try:
            status = os.lstat(path)
        except FileNotFoundError:
            return None
        return status.st_dev, status.st_ino

    def is_named(self, path: str, descriptor: int) -> bool:
        """Whether a path still names an open file."""
        return self.named_identity(path) == open_identity(descriptor)

    def may_write(self, directory: str) -> bool:
        """Whether the process may create files there: not on a file system that is mounted read-only."""
        return os.access(directory, os.W_OK)

    def link_count(self, path: str) -> int:
        """The number of names of a file: more than 1 with hard links."""
        return os.stat(path).st_nlink

    def status(self, path: str) -> tuple[int, int] | None:
        """(bytes on disk, mtime in ms); None when the file is missing. Holes take no bytes on disk.

        On object storage the time is that of the upload.
        """
        status = _status(path, follow_symlinks=False)
        return None if status is None else (status.st_blocks * 512, status.st_mtime_ns // 1_000_000)

    def disk_space(self, path: str) -> DiskSpace:
        """The file system of a path, which may not exist yet. Object storage has no size: all is 0."""
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

    # ---- listing

    def names(self, directory: str, *, missing_ok: bool = False) -> frozenset[str]:
        """The names in a directory. Raises StoreNotFoundError for a missing directory and for a file."""
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

    def store_files(
        self,
        directory: str,
        name: re.Pattern[str] = OFFSET_NAME,
        irregular: Callable[[CorruptStoreError], object] | None = None,
    ) -> list[StoreFile]:
        """The files of a file queue by start offset; [] when the directory is missing.

        Only names of 20 digits count; `diagnose` reports other names. Another `name` pattern lists other
        files, whose `start` is the number in the last group of the pattern, or the whole name. Raises
        CorruptStoreError for a link and for an entry that is not a regular file: to skip it would hide
        missing bytes. The caller that gives `irregular` gets the errors of such entries instead.
        """
        found = []
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
        return sorted(found, key=lambda file: file.start)

    def directories(
        self, directory: str, select: Callable[[str], bool] = lambda name: True, refused: Refused = refuse
    ) -> list[tuple[str, str]]:
        """(name, path) of the selected directories in `directory` by name; [] when it is missing.

        `lost+found` is skipped. For a link `refused` is called with a CorruptStoreError; if it returns, the
        link is skipped.
        """
        found = []
        for entry in _scan(directory):
            if entry.name == LOST_AND_FOUND or not select(entry.name):
                continue
            if entry.is_symlink():
                refused(symbolic_link(entry.path))
            elif entry.is_dir(follow_symlinks=False):
                found.append((entry.name, entry.path))
        return sorted(found)

    def entries(self, directory: str) -> list[DirectoryEntry]:
        """All entries of a directory by name, links included; [] when the directory is missing.

        Raises CorruptStoreError when `directory` is a file. `diagnose` calls this: it reports links.
        """
        found = [_described_entry(entry) for entry in _scan(directory) if entry.name != LOST_AND_FOUND]
        return sorted(found, key=lambda entry: entry.name)

    # ---- reading

    def read(self, path: str, size_max: int = SMALL_FILE_SIZE_MAX) -> bytes | None:
        """The content of a small file; None when the file is missing.

        Raises CorruptStoreError for a link, a directory, and a file of more than `size_max` bytes.
        """
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

    def decoded(self, path: str, data: bytes, decode: Callable[[], _Look]) -> _Look:
        """What `decode` returns for `data`, which `read` returned for the path. One look at local disks keeps
        it: nobody changes it.
        """
        return decode()

    def still(self, writers_files: Collection[str]) -> AbstractContextManager[None]:
        """Says that nobody writes into a store, unless one of these files changes, which each program that
        begins to write changes: then `kept` keeps what was found. Without files it keeps nothing.
        """
        return nullcontext()

    def kept(self, key: object, find: Callable[[], _Look]) -> _Look:
        """What `find` returns, or has returned for this key in a store in which nobody has written since
        (`still`): nobody changes it.
        """
        return find()

    def read_range(self, path: str, position: int, length: int, size: int) -> bytes:
        """`length` bytes of a file of exactly `size` bytes; b"" if the file is missing or is another.

        For one read of a file: a `FileView` costs twice as much.
        """
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

    def view(self, path: str, listed: StoredObject | None = None) -> FileView:
        """Opens a store file, of an object the `listed` version. Raises FileNotFoundError, and
        CorruptStoreError for a link or a directory.
        """
        from store_format.files.view import FileView  # it imports numpy

        return FileView(path)

    def kept_view(self, path: str) -> FileView:
        """`view` of a file that is opened again and again in one look, which keeps it open."""
        return self.view(path)

    def database(self, directory: str) -> RocksDatabase:
        """Opens the RocksDB database in a directory, for a `with` statement.

        Raises UnsupportedFormatError if rocksdict is not installed, and CorruptStoreError.
        """
        from store_format.files.rocksdb import RocksDatabase  # few stores have one

        return RocksDatabase.open(self, directory)

    @cached_property
    def databases(self) -> KeptDatabases:
        """The RocksDB databases that are asked again and again."""
        from store_format.files.rocksdb import KeptDatabases

        return KeptDatabases(self)

    def make_readable_at(self, path: str, target: str, *, copy: bool) -> None:
        """Makes a store file readable at the path `target`, which is on a disk: as a symbolic link, or as a
        copy. Raises FileNotFoundError, and CorruptStoreError for a link or a directory.
        """
        if copy:
            with self.view(path) as view, open(target, "xb") as file:
                for position in range(0, view.size, _PIECE_SIZE):
                    file.write(view.read(position, _PIECE_SIZE))
            return
        descriptor = open_descriptor(path)  # refuses links, and what may not be read
        os.close(descriptor)
        os.symlink(path, target)

    def look_at_each(
        self, found: Iterable[_Found], look: Callable[[_Found], _Look]
    ) -> Iterator[tuple[_Found, _Look]]:
        """Yields each of `found` with what `look` says of it. On object storage, many are looked at at once;
        of very many objects, only the blocks that are needed are fetched.
        """
        return ((each, look(each)) for each in found)


class LookedFiles(Files):
    """The files of local disks in one look: a small file is read and decoded once, and a queue's file is
    opened once, as long as its identity stays. The memory ends with the look.
    """

    def __init__(self) -> None:
        self._small: dict[str, tuple[tuple[int, int, int], bytes]] = {}
        self._decoded: dict[str, tuple[bytes, object]] = {}
        self._watched: tuple[str, ...] = ()
        self._kept: dict[object, tuple[object, object]] = {}
        self._views: OrderedDict[str, FileView] = OrderedDict()

    def read(self, path: str, size_max: int = SMALL_FILE_SIZE_MAX) -> bytes | None:
        identity = self.stat_identity(path)
        if identity is None:
            return None
        known = self._small.get(path)
        if known is not None and known[0] == identity and len(known[1]) <= size_max:
            return known[1]
        data = super().read(path, size_max)
        if data is not None and is_settled(identity, time.time_ns()):
            self._small[path] = identity, data
        return data

    def decoded(self, path: str, data: bytes, decode: Callable[[], _Look]) -> _Look:
        known = self._decoded.get(path)
        if known is not None and known[0] is data:
            return known[1]  # type: ignore[return-value] # each path has one way to decode its bytes
        found = decode()
        self._decoded[path] = data, found
        return found

    @contextmanager
    def still(self, writers_files: Collection[str]) -> Iterator[None]:
        if self._watched:
            yield  # a part of a longer time
            return
        self._watched, self._kept = tuple(writers_files), {}
        try:
            yield
        finally:
            self._watched, self._kept = (), {}

    def kept(self, key: object, find: Callable[[], _Look]) -> _Look:
        if not self._watched:
            return find()
        now = tuple(self.stat_identity(path) for path in self._watched)
        known = self._kept.get(key)
        if known is None or known[0] != now:
            known = self._kept[key] = now, find()
        return known[1]  # type: ignore[return-value] # a key is of one type

    def readable_identity(self, path: str) -> tuple[int, int, int] | None:
        with suppress(CorruptStoreError):  # `super` raises the same for a link
            self.read(path)
        known = self._small.get(path)
        if known is not None and known[0] == self.stat_identity(path):
            return known[0]
        return super().readable_identity(path)

    def kept_view(self, path: str) -> FileView:
        from store_format.files.view import KeptView  # it imports numpy

        view = self._views.pop(path, None)
        if view is None or view.identity != self.named_identity(path):
            view = KeptView(path)
        self._views[path] = view
        if len(self._views) > _VIEWS_MAX:
            self._views.popitem(last=False)
        return view


def _status(path: str, *, follow_symlinks: bool) -> os.stat_result | None:
    try:
        return os.stat(path, follow_symlinks=follow_symlinks)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except PermissionError as error:
        raise denied(path) from error


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


def _described_entry(entry: os.DirEntry[str]) -> DirectoryEntry:
    if entry.is_symlink():
        return DirectoryEntry(entry.name, entry.path, "link", 0)
    if entry.is_dir(follow_symlinks=False):
        return DirectoryEntry(entry.name, entry.path, "directory", 0)
    if entry.is_file(follow_symlinks=False):
        status = _file_status(entry)
        return DirectoryEntry(entry.name, entry.path, "file", 0 if status is None else status.st_size)
    return DirectoryEntry(entry.name, entry.path, "other", 0)
