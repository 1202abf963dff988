"""A file that several processes append to in turn, and locks between them (flock).

The store's own `lock` is a lock of RocketMQ and costs a commit. These locks are held for microseconds, or for
as long as a process lives; the system releases them when their process ends, however it ends.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager

from store_format.errors import CorruptStoreError, StoreInUseError
from store_format.files.paths import Descriptor
from store_format.files.polling import Clocks
from store_format.files.read import files_at
from store_format.files.write import naming, open_or_create

_PAUSE_MIN, _PAUSE_MAX = 50e-6, 2e-3  # seconds between two attempts to take a lock


class FileLock(Descriptor):
    """A lock file that this process opens once: `exclusive` for a moment, `share` as long as it lives.

    One thread at a time may use it. A forked child opens the file again.
    """

    def __init__(self, path: str) -> None:
        super().__init__()
        self.path = path
        self._pid = 0

    @contextmanager
    def exclusive(self, timeout: float = 10.0) -> Iterator[None]:
        """Holds the lock alone. Raises StoreInUseError when others still have it after `timeout` seconds."""
        if not self.try_exclusive(timeout):
            raise StoreInUseError(
                f"{self.path}: expected to get the lock within {timeout:g} s, but another process holds it; "
                "look for a consumer that was stopped (state T in ps) and continue or end it"
            )
        try:
            yield
        finally:
            self.release()

    def try_exclusive(self, timeout: float = 0.0) -> bool:
        """Takes the lock alone; False when others still have it after `timeout` seconds."""
        return self._take(fcntl.LOCK_EX, timeout)

    def share(self, timeout: float = 10.0) -> bool:
        """Takes the lock together with other processes that share it; False when one has it alone."""
        return self._take(fcntl.LOCK_SH, timeout)

    def release(self) -> None:
        """Releases the lock, and keeps the file open; `close` releases it too."""
        if self._descriptor >= 0 and self._pid == os.getpid():
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)

    def _take(self, kind: int, timeout: float) -> bool:
        return any(self._try(kind) for _ in Clocks().attempts(timeout, _PAUSE_MIN, pause_max=_PAUSE_MAX))

    def _try(self, kind: int) -> bool:
        self._open()
        try:
            fcntl.flock(self._descriptor, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        if files_at(self.path).is_named(self.path, self._descriptor):
            return True
        self.close()  # another file has the name now: the directory was removed or restored
        return self._try(kind)

    def _open(self) -> None:
        if self._descriptor >= 0 and self._pid != os.getpid():
            self.close()  # a forked child shares its parent's lock through the same descriptor
        if self._descriptor < 0:
            self._descriptor, self._pid = open_or_create(self.path), os.getpid()


class SharedLog(Descriptor):
    """The bytes that processes append in turn. The callers hold a FileLock around every method.

    The file is opened, and made if it is missing, by the first method.
    """

    def __init__(self, path: str) -> None:
        super().__init__()
        self.path = path

    def is_named(self, size: int) -> bool:
        """Whether the path still names the file that is open, and the file still has this size or more."""
        return (
            self._descriptor >= 0
            and files_at(self.path).is_named(self.path, self._descriptor)
            and os.fstat(self._descriptor).st_size >= size
        )

    def read(self, start: int, size_max: int) -> bytes:
        """The bytes from `start` on.

        Raises CorruptStoreError for more than `size_max` bytes, and for anything but a regular file.
        """
        status = os.fstat(self._opened())
        if not stat.S_ISREG(status.st_mode):
            raise CorruptStoreError(self.path, 0, "a regular file", "something else")
        if status.st_size - start > size_max:
            raise CorruptStoreError(self.path, 0, f"at most {size_max} bytes", f"{status.st_size} bytes")
        parts, position = [], start
        with naming(self.path, "read"):
            while position < status.st_size and (
                part := os.pread(self._descriptor, status.st_size - position, position)
            ):
                parts.append(part)
                position += len(part)
        return b"".join(parts)

    def append(self, data: bytes, end: int) -> None:
        """Writes the bytes behind the first `end`, all or none. Raises StoreWriteError on a full disk."""
        with naming(self.path, "write"):
            if os.pwrite(self._opened(), data, end) < len(data):
                os.ftruncate(self._descriptor, end)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def cut(self, end: int) -> None:
        """Removes what is behind the first `end` bytes."""
        with naming(self.path, "cut"):
            os.ftruncate(self._opened(), end)

    def sync(self) -> None:
        """Waits until the appended bytes are on the disk."""
        with naming(self.path, "sync"):
            os.fdatasync(self._opened())

    def _opened(self) -> int:
        if self._descriptor < 0:
            self._descriptor = open_or_create(self.path)
        return self._descriptor
