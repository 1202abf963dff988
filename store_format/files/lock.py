"""The store's `lock` file (DefaultMessageStore.start, spec 5.3): asks who holds it, and takes it.

A writer of this project also locks the second byte, which no broker does. So another writer knows whether it
waits for a broker or for a writer, which needs the lock for a short time only.

To close any descriptor of a file drops every POSIX lock that the process has on the file. So lock files are
opened and closed in this module only, under one mutex, and never while this process holds their lock.
"""

from __future__ import annotations

import fcntl
import os
import signal
import stat
import struct
import sys
import threading
import time

from store_format.errors import CorruptStoreError, StoreError, StoreInUseError, StoreWriteError
from store_format.files import paths
from store_format.files.paths import open_descriptor, open_identity
from store_format.files.polling import Clocks
from store_format.files.read import files_at
from store_format.files.write import open_lock_descriptor

# struct flock of 64-bit Linux: type, whence, start, length, pid; padded to 32 bytes.
_FLOCK = struct.Struct("hhqqi4x")
_STORE_BYTE = 0  # Java locks byte range [0, 1)
_OWN_BYTE = 1  # locked by a writer of this project that has the lock or is about to take it
_LINUX = sys.platform.startswith("linux")
_POLL_SECONDS = 0.02
# A reader that asks for the holder has the file open for microseconds, a broker as long as it runs.
_GLANCE_SECONDS = 0.25
_LET_GO = "a process that has just released it"
_mutex = threading.Lock()
_held: dict[tuple[int, int], int] = {}  # (device, inode) -> the descriptor whose lock this process holds


def _forget_after_fork() -> None:
    """Closes the lock files in a forked child, which inherits the descriptors but not the locks."""
    global _mutex
    _mutex = threading.Lock()
    for descriptor in _held.values():
        os.close(descriptor)
    _held.clear()


os.register_at_fork(after_in_child=_forget_after_fork)


def _holders(path: str) -> tuple[int | None, int | None]:
    """Returns the holders of the store's byte and of the second byte."""
    if not _LINUX or paths.is_remote(path):
        return None, None
    with _mutex:
        try:
            if files_at(path).named_identity(path) in _held:
                return None, None
            descriptor = open_descriptor(path)
        except FileNotFoundError:
            return None, None
        except BlockingIOError:
            # A writer that holds the lock has a lease on the file at this moment: see _is_only_opener.
            return 0, 0
        try:
            # Check again: the path may name another file now. No thread takes its lock under this mutex.
            if open_identity(descriptor) in _held:
                return None, None
            return _holder_of(descriptor, _STORE_BYTE), _holder_of(descriptor, _OWN_BYTE)
        finally:
            os.close(descriptor)


def _holder_of(descriptor: int, byte: int) -> int | None:
    answer = fcntl.fcntl(descriptor, fcntl.F_GETLK, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, byte, 1, 0))
    kind, _, _, _, holder = _FLOCK.unpack(answer)
    return None if kind == fcntl.F_UNLCK else int(holder)


class StoreLock:
    """The exclusive lock of a store among all threads and processes; a context manager.

    Waits at most `timeout` seconds for another writer of this project, but not for a broker. Raises
    StoreInUseError, which names the holder.
    """

    @staticmethod
    def holder(path: str) -> int | None:
        """The id of the other process that holds the lock file `path`; None for none or a missing file.

        0 or -1 stands for a process on another host or in another process namespace. Only Linux reports
        holders; on other systems the result is None.
        """
        return _holders(path)[0]

    @staticmethod
    def foreign_holder(path: str) -> int | None:
        """Returns the holder if it is a broker, which keeps the lock until it stops; None for our writers."""
        found = _holders(path)
        if found[0] in (None, found[1]):
            return None
        time.sleep(_POLL_SECONDS)  # a writer may take or release one byte between the two queries
        return found[0] if _holders(path) == found else None

    @staticmethod
    def own_holder(path: str) -> int | None:
        """Returns the holder if it is a writer of this project; None for a broker and for no holder."""
        found = _holders(path)
        return found[0] if found[0] == found[1] else None

    @staticmethod
    def described(process_id: int) -> str:
        """Returns a process in words: its id and its command."""
        if process_id <= 0:
            return "a process on another host or in another process namespace"
        try:
            command = (
                (files_at("/").read(f"/proc/{process_id}/cmdline") or b"")
                .split(b"\0")[0]
                .decode(errors="replace")
            )
        except (OSError, StoreError):
            command = ""
        return f"process {process_id}" + (f" ({command})" if command else "")

    def __init__(self, root: str, *, timeout: float = 0.0) -> None:
        self.path = f"{root}/lock"
        self._timeout = timeout
        self._identity: tuple[int, int] | None = None
        self._is_foreign = False  # whether the last holder found was a broker

    def __enter__(self) -> StoreLock:
        holder: str | None = ""
        for _ in Clocks().attempts(self._timeout, _POLL_SECONDS):
            holder = self._try()
            if holder is None:
                return self
            if self._is_foreign:
                break
        waited = f" (waited {self._timeout:g} s)" if self._timeout and not self._is_foreign else ""
        raise StoreInUseError(
            f"{self.path}: held by {holder}{waited}; "
            "a store has one writer at a time: stop that process first"
        )

    def _try(self) -> str | None:
        """Takes the lock and returns None, or returns the holder in words."""
        self._is_foreign = False
        with _mutex:
            if files_at(self.path).named_identity(self.path) in _held:
                return "another thread of this process"
            try:
                descriptor = open_lock_descriptor(self.path)
            except StoreWriteError as error:
                if isinstance(error.__cause__, BlockingIOError):
                    # The other writer has a lease on the file at this moment: see _is_only_opener.
                    return "another writer"
                raise
            try:
                if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                    raise CorruptStoreError(self.path, 0, "a regular file", "something else")
                refused = (
                    _OWN_BYTE  # first: whoever has this byte competes for the other one with a broker only
                )
                fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, _OWN_BYTE)
                refused = _STORE_BYTE
                fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, _STORE_BYTE)
            except (BlockingIOError, PermissionError):
                self._is_foreign = refused == _STORE_BYTE
                holder = _holder_of(descriptor, refused) if _LINUX else 0
                os.close(descriptor)
                return _LET_GO if holder is None else self.described(holder)
            except BaseException:
                os.close(descriptor)
                raise
            if not files_at(self.path).is_named(self.path, descriptor):
                os.close(descriptor)
                return _LET_GO  # and removed the file: the creation of the store failed
            self._identity = open_identity(descriptor)
            _held[self._identity] = descriptor
            return None

    def refuse_other_openers(self) -> None:
        """Raises StoreInUseError when another process has the lock file open: a broker that is still loading.

        A broker opens `lock` first and takes the lock only after loading and recovery. The check reads /proc:
        it works on Linux only, and only for processes that this user may inspect.
        """
        assert self._identity is not None, "the lock is not held"
        if _is_only_opener(_held[self._identity]):
            return
        opener: int | None = None
        for _ in Clocks().attempts(_GLANCE_SECONDS, _POLL_SECONDS):
            opener = _other_opener(self._identity)
            if opener is None:
                return
        assert opener is not None
        raise StoreInUseError(
            f"{self.path}: opened by {self.described(opener)}, probably a broker that is starting; "
            "stop the broker, then write again"
        )

    def __exit__(self, *raised: object) -> None:
        with _mutex:
            if self._identity in _held:
                os.close(_held.pop(self._identity))
            self._identity = None


class CheckedLock(StoreLock):
    """The store's lock, which also refuses a broker that is starting (`refuse_other_openers`)."""

    def __enter__(self) -> StoreLock:
        super().__enter__()
        try:
            self.refuse_other_openers()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self


def _is_only_opener(descriptor: int) -> bool:
    """Returns True if no other process has the file open: only then Linux grants a write lease.

    The lease is released at once. This is a hundred times faster than a search of /proc, but False means
    nothing: files of other users and some file systems have no leases.
    """
    try:
        # A process that opens the file now triggers this signal, which is ignored; SIGIO would kill.
        fcntl.fcntl(descriptor, fcntl.F_SETSIG, signal.SIGURG)
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    except (OSError, AttributeError):  # no Linux
        return False
    return True


def _other_opener(identity: tuple[int, int]) -> int | None:
    """Returns the id of another process that has the file open; None without one."""
    if not _LINUX:
        return None
    own = str(os.getpid())
    for name in files_at("/").names("/proc"):
        if name.isdigit() and name != own:
            try:
                descriptors = files_at("/").names(f"/proc/{name}/fd", missing_ok=True)
            except (StoreError, OSError):
                continue  # a process of another user, or one that has ended
            for descriptor in descriptors:
                try:
                    status = os.stat(f"/proc/{name}/fd/{descriptor}")
                except OSError:
                    continue
                if (status.st_dev, status.st_ino) == identity:
                    return int(name)
    return None
