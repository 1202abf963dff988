"""Creates, changes and removes store files. No other module does.

A store file gets its full length at creation, by one ftruncate. Only directories of rebuilt queues are
renamed into place. Every failure names its file. New files and directories get the mode that the umask of the
process leaves, as with a broker; a replaced file keeps its mode and owner. `FileWrites` knows whether a step
waits for the disk, and measures the waiting. `directory_until_exit` makes a directory outside of stores.
"""

from __future__ import annotations

import atexit
import ctypes
import errno
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from threading import Lock
from typing import Any

from store_format.errors import CorruptStoreError, OptionError, StoreWriteError
from store_format.files import paths
from store_format.files.paths import Descriptor, open_identity, symbolic_link
from store_format.files.read import files_at

_OPEN = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_FILE_MODE, _DIRECTORY_MODE = 0o666, 0o777  # less the umask
_ZEROS = bytes(1 << 20)
# For a larger write Linux takes as large a piece of contiguous memory, which a virtual machine may not have
# yet: 400 MB in writes of 256 KiB take 65 instead of 85 ms of processor time, but 750 ms in such memory.
# Pieces end at multiples of it: ext4 then takes 55 instead of 68 ms of processor time for 200 MiB.
_PIECE_SIZE = 64 << 10
_RESERVED_MIN = 1 << 20  # bytes of a write whose blocks are worth a reservation
_KEEP_SIZE = 1  # FALLOC_FL_KEEP_SIZE
_NOT_MOVABLE = (errno.EXDEV, errno.EBUSY, errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR)


@contextmanager
def naming(path: str, what: str) -> Iterator[None]:
    """Raises StoreWriteError, with the path and what was tried, for an OSError of the block, and OptionError
    for a path on object storage.
    """
    if paths.is_remote(path):
        raise OptionError(
            f"{path}: cannot {what}: {paths.remote_kind(path)} is only read, because a write needs a lock "
            "and files that grow; copy the store to a disk, and give that directory"
        )
    try:
        yield
    except OSError as error:
        if isinstance(error, StoreWriteError):
            raise
        if error.errno == errno.ELOOP:
            raise symbolic_link(path) from error
        raise StoreWriteError(f"{path}: cannot {what}: {error.strerror or error}") from error


@contextmanager
def saying_nothing_written() -> Iterator[None]:
    """Adds to the error of a disk that is full, or fails, that no message of the batch was written."""
    try:
        yield
    except StoreWriteError as error:
        if not isinstance(error.__cause__, OSError) or isinstance(error.__cause__, StoreWriteError):
            raise
        raise StoreWriteError(f"{error}. No message of the batch was written") from error.__cause__


def open_or_create(path: str) -> int:
    """Opens a file of this project for reading and writing; a missing one is created empty."""
    with naming(path, "open"):
        return _make_or_open(path, 0)[0]


def open_lock_descriptor(path: str) -> int:
    """Opens the store's `lock`, created with its 4 bytes if missing (as by DefaultMessageStore)."""
    with naming(path, "open"):
        try:
            return os.open(path, _OPEN)
        except FileNotFoundError:
            descriptor, _ = _make_or_open(path, 0)
            os.pwrite(descriptor, b"lock", 0)
            return descriptor


def _make(path: str) -> int:
    """Creates a file and returns its descriptor. Raises FileExistsError."""
    descriptor = os.open(path, _OPEN | os.O_CREAT | os.O_EXCL, _FILE_MODE)
    _give_to_owner_of(os.path.dirname(path), descriptor)
    return descriptor


def _make_or_open(path: str, flags: int) -> tuple[int, bool]:
    """Returns a descriptor and whether the file is new; `flags` apply to an existing file."""
    try:
        return _make(path), True
    except FileExistsError:
        return os.open(path, _OPEN | flags), False


def _give_to_owner_of(directory: str, descriptor: int) -> None:
    """Gives a file that root creates to the owner of the directory, so that the broker can open the file."""
    if os.geteuid() == 0:
        status = os.stat(directory)
        _give(descriptor, status.st_uid, status.st_gid)


def _give(descriptor: int, user: int, group: int) -> None:
    """Changes owner and group as far as allowed: only root may, and not on NFS or in every container."""
    status = os.fstat(descriptor)
    with suppress(OSError):
        if group != status.st_gid:
            os.fchown(descriptor, -1, group)
        if user != status.st_uid:
            os.fchown(descriptor, user, -1)


@contextmanager
def _opened_directory(path: str) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _status(path: str) -> os.stat_result | None:
    try:
        return os.lstat(path)
    except FileNotFoundError:
        return None


class WritableFile(Descriptor):
    """A store file open for positional writes; a context manager. `size` is its full length in bytes."""

    def __init__(self, path: str, descriptor: int, size: int) -> None:
        super().__init__(descriptor)
        self.path = path
        self.size = size

    def write(self, position: int, data: Any) -> None:
        """Writes all of `data`, which has the buffer protocol and must end at or before `size`."""
        left = memoryview(data).cast("B")
        if not 0 <= position <= self.size - len(left):
            raise CorruptStoreError(
                self.path, position, f"room for {len(left)} bytes", f"a file of {self.size} bytes"
            )
        with naming(self.path, "write"):
            if len(left) >= _RESERVED_MIN:
                reserve(self._descriptor, position, len(left))
            while left:
                piece = left[: _PIECE_SIZE - position % _PIECE_SIZE]
                done = os.pwrite(self._descriptor, piece, position)
                position += done
                left = left[done:]

    def read(self, position: int, length: int) -> bytes:
        with naming(self.path, "read"):
            return os.pread(self._descriptor, length, position)

    def zero(self, start: int, stop: int) -> None:
        """Writes zeros from `start` to `stop`, except where the bytes are zeros or holes already."""
        while start < stop:
            try:
                start = os.lseek(self._descriptor, start, os.SEEK_DATA)
                end = min(os.lseek(self._descriptor, start, os.SEEK_HOLE), stop)
            except OSError as error:
                if error.errno == errno.ENXIO:
                    return  # only holes up to the end of the file
                end = stop  # the file system does not report holes
            while start < end:
                length = min(end - start, len(_ZEROS))
                if any(self.read(start, length)):
                    self.write(start, memoryview(_ZEROS)[:length])
                start += length

    def __enter__(self) -> WritableFile:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()


@cache
def _fallocate() -> Callable[[int, int, int, int], int] | None:
    """Linux's call. os.posix_fallocate would write every block where the file system cannot reserve."""
    try:
        function = ctypes.CDLL(None).fallocate
    except (AttributeError, OSError):
        return None
    function.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long)
    call: Callable[[int, int, int, int], int] = function
    return call


def reserve(descriptor: int, position: int, length: int) -> bool:
    """Reserves blocks for a large write, so that the kernel need not find a block for every page.

    256 MiB in writes of 4 MiB take 42 instead of 64 ms of processor time with it (ext4, Linux 6.18). The
    blocks read as zeros until the write, as a hole. The file's size stays. Returns False where the file
    system cannot reserve: the write needs no reservation, and reports a full disk.
    """
    call = _fallocate()
    return call is not None and call(descriptor, _KEEP_SIZE, position, length) == 0


class FileWrites:
    """All changes of store files. With `sync` every change waits for the disk, as with SYNC_FLUSH.

    `sync_seconds` is the time spent in waiting.
    """

    def __init__(self, *, sync: bool) -> None:
        self.is_sync = sync
        self.sync_seconds = 0.0
        self._sums = Lock()
        self._opened: dict[str, tuple[int, int]] = {}  # path -> device and inode

    def displaced(self) -> list[str]:
        """Returns the files opened for writing here that another process has removed or replaced since."""
        return [
            path for path, identity in self._opened.items() if files_at(path).named_identity(path) != identity
        ]

    # ---- files ---------------------------------------------------------------------------------------------

    def open(self, path: str) -> WritableFile:
        """Opens an existing file. Raises CorruptStoreError for a link and for anything but a regular file."""
        with naming(path, "open"):
            descriptor = os.open(path, _OPEN)
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            os.close(descriptor)
            raise CorruptStoreError(path, 0, "a regular file", "something else")
        self._opened[path] = status.st_dev, status.st_ino
        return WritableFile(path, descriptor, status.st_size)

    def open_full(self, path: str, size: int, *, extend: bool = False) -> tuple[WritableFile, bool]:
        """Opens a file of `size` bytes. Returns it and whether it was created. New bytes are zeros.

        Extends an empty file, which a crash can leave; with `extend` a short one. Raises CorruptStoreError.
        """
        try:
            file = self.open(path)
        except StoreWriteError as error:
            if not isinstance(error.__cause__, FileNotFoundError):
                raise
            return self.create(path, size), True
        if file.size < size and (extend or not file.size):
            with naming(path, "extend"):
                os.ftruncate(file.fileno(), size)
            file.size = size
        if file.size != size:
            file.close()
            found = f"{file.size} bytes. Restore the file, or rebuild it: rmqlog recover STORE"
            raise CorruptStoreError(path, 0, f"a file of {size} bytes", found)
        return file, False

    def create(self, path: str, size: int) -> WritableFile:
        """Creates a file of `size` zero bytes: 0 for a file of this project, which grows with each write.

        The caller syncs the directory.
        """
        with naming(path, "create"):
            descriptor = _make(path)
            try:
                if size:
                    os.ftruncate(descriptor, size)
            except BaseException:
                os.close(descriptor)
                os.unlink(path)
                raise
        self._opened[path] = open_identity(descriptor)
        return WritableFile(path, descriptor, size)

    def remove(self, path: str) -> bool:
        """Removes a file; returns False when it is missing."""
        self._opened.pop(path, None)
        with naming(path, "remove"):
            try:
                os.unlink(path)
            except FileNotFoundError:
                return False
        return True

    def replace(self, path: str, data: bytes, aside: str | None = None) -> None:
        """Replaces a file of this project atomically: writes `aside`, syncs and renames."""
        aside = aside or f"{path}.new"
        self.write_whole(aside, data, like=_status(path))
        self.rename(aside, path)
        self.sync_directory(os.path.dirname(path))

    def write_whole(self, path: str, data: bytes, *, like: os.stat_result | None = None) -> None:
        """Writes the whole content of a file in place. A new file gets mode and owner of `like`."""
        with naming(path, "write"):
            descriptor, is_new = _make_or_open(path, os.O_TRUNC)
            if is_new and like is not None:
                _give(descriptor, like.st_uid, like.st_gid)
                # _give() gave the file away, and this root may not change files of other users
                with suppress(PermissionError):
                    os.fchmod(descriptor, stat.S_IMODE(like.st_mode))
        with WritableFile(path, descriptor, len(data)) as file:
            file.write(0, data)
            self.sync(file)

    def touch(self, path: str) -> None:
        """Sets the time of a file to now, in ns, and creates a missing file. Does not wait for the disk."""
        now = time.time_ns()  # the clock of the file system may give two changes in a row the same time
        with naming(path, "touch"):
            try:
                os.utime(path, ns=(now, now), follow_symlinks=False)
            except PermissionError:  # another user's file; whoever may write it may set the time of today
                os.utime(path, follow_symlinks=False)
            except FileNotFoundError:
                os.close(_make_or_open(path, 0)[0])

    def set_modified(self, path: str, modified_ms: int) -> None:
        """Sets the time at which a file was last written to, in ms."""
        with naming(path, "set the time of"):
            os.utime(path, ns=(modified_ms * 1_000_000, modified_ms * 1_000_000), follow_symlinks=False)

    def persist_config(self, path: str, data: bytes, *, is_good: bool = True) -> None:
        """Saves a file of `config/` as a 5.4 broker: renames the old file to .bak (ConfigManager.persist).

        A damaged old file (`is_good` False), which a crash between the two steps leaves, does not replace the
        .bak.
        """
        with naming(path, "rename"):
            replaced = _status(path)
            if is_good and replaced is not None:
                os.rename(path, f"{path}.bak")
                self._opened = {k: v for k, v in self._opened.items() if k not in (path, f"{path}.bak")}
                self.sync_directory(os.path.dirname(path))
        self.write_whole(path, data, like=replaced or _status(f"{path}.bak"))
        self.sync_directory(os.path.dirname(path))

    # ---- directories ---------------------------------------------------------------------------------------

    def make_directories(self, root: str, *names: str) -> str:
        """Creates `root`/names[0]/names[1]… where missing and returns the path.

        Raises CorruptStoreError for a symbolic link below the first level.
        """
        path = root
        for depth, name in enumerate(names):
            parent, path = path, f"{path}/{name}"
            with naming(path, "make"):
                try:
                    os.mkdir(path, _DIRECTORY_MODE)
                except FileExistsError:
                    if depth and stat.S_ISLNK(os.lstat(path).st_mode):
                        raise symbolic_link(path) from None
                    continue
                if os.geteuid() == 0:
                    with _opened_directory(path) as descriptor:
                        _give_to_owner_of(parent, descriptor)
            self.sync_directory(parent)
        return path

    def give_like(self, path: str, like: str) -> None:
        """Gives a directory the owner, group and mode of `like`, whose place it will take."""
        status = os.stat(like)
        with naming(path, "change"), _opened_directory(path) as descriptor:
            _give(descriptor, status.st_uid, status.st_gid)
            with suppress(PermissionError):  # a directory of another user
                os.fchmod(descriptor, stat.S_IMODE(status.st_mode))

    def remove_directory(self, path: str) -> bool:
        """Removes an empty directory; returns False when it is missing or not empty."""
        with naming(path, "remove"):
            try:
                os.rmdir(path)
            except OSError as error:
                if error.errno not in (errno.ENOENT, errno.ENOTEMPTY, errno.EEXIST):
                    raise
                return False
        return True

    def remove_tree(self, path: str) -> None:
        """Removes a directory of this project and all its content; does not follow links."""
        with naming(path, "remove"), suppress(FileNotFoundError):
            shutil.rmtree(path)
            self.sync_directory(os.path.dirname(path))

    def move(self, source: str, target: str) -> bool:
        """Renames a directory atomically; `target` must be missing or an empty directory. The caller syncs.

        Returns False when `target` is on another file system or is not empty.
        """
        with naming(target, "move"):
            try:
                os.rename(source, target)
            except OSError as error:
                if error.errno not in _NOT_MOVABLE:
                    raise
                return False
        return True

    def rename(self, source: str, target: str) -> None:
        """Renames a file atomically, over an existing one too. The caller syncs the directory."""
        with naming(target, "rename"):
            os.rename(source, target)
        self._opened.pop(source, None)
        self._opened.pop(target, None)

    # ---- waiting for the disk ------------------------------------------------------------------------------

    def sync(self, file: WritableFile) -> None:
        if self.is_sync:
            self._sync(file.path, file.fileno())

    def sync_directory(self, path: str) -> None:
        """Makes the creation and removal of names in a directory survive a power loss."""
        if not self.is_sync:
            return
        with naming(path, "open"):
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY)
        try:
            self._sync(path, descriptor)
        finally:
            os.close(descriptor)

    def _sync(self, path: str, descriptor: int) -> None:
        begun = time.perf_counter()
        with naming(path, "sync"):
            os.fsync(descriptor)
        with self._sums:
            self.sync_seconds += time.perf_counter() - begun


# ---- directories until the process ends --------------------------------------------------------------------


def directory_until_exit(prefix: str) -> str:
    """The path of a new directory in the system's place for them; it is removed when the process ends."""
    path = tempfile.mkdtemp(prefix=prefix)
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    return path
