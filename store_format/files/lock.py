"""The store's `lock` (DefaultMessageStore.start, spec 5.3): asked who holds it, and taken as a Java broker
takes it.

Writers of ours lock the second byte too, which no broker does: who waits for one knows that it will not take
long.

Closing any descriptor of a file drops every POSIX lock the process holds on it. So all opening and closing of
lock files happens here, under one mutex, and never for a file whose lock this process holds.
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
from collections.abc import Callable
from types import TracebackType

from store_format.errors import CorruptStoreError, StoreError, StoreInUseError, StoreWriteError
from store_format.files.read import entry_names, open_descriptor, read_bytes
from store_format.files.write import open_lock_descriptor

__all__ = ["StoreLock", "described", "foreign_holder", "lock_holder", "own_holder"]

# struct flock of 64-bit Linux: type, whence, start, length, pid; padded to 32 bytes.
_FLOCK = struct.Struct("hhqqi4x")
_STORE_BYTE = 0  # Java locks byte range [0, 1)
_OWN_BYTE = 1  # says that a writer of ours has it, or is about to take it
_LINUX = sys.platform.startswith("linux")
_POLL_SECONDS = 0.02
# a reader that asks has the file open for microseconds, a broker for as long as it lives
_GLANCE_SECONDS = 0.25
_LET_GO = "a process that let go of it just now"
_mutex = threading.Lock()
_held: dict[tuple[int, int], int] = {}  # (device, inode) -> the descriptor whose lock this process holds


def _forget_after_fork() -> None:
    """A forked child inherits descriptors but no locks: it must neither believe it holds one nor look as if
    it had the file open.
    """
    global _mutex
    _mutex = threading.Lock()
    for descriptor in _held.values():
        os.close(descriptor)
    _held.clear()


os.register_at_fork(after_in_child=_forget_after_fork)


def lock_holder(path: str) -> int | None:
    """The process id that holds the lock file `path`, as the system tells it; None when nobody else does or
    it is missing.

    0 or -1 is a holder on another host or in another process namespace. Only Linux can be asked; elsewhere a
    store counts as not held.
    """
    return _holders(path)[0]


def foreign_holder(path: str) -> int | None:
    """The same, None also for a writer of ours: what is left is a broker, which lets go of the store only
    when it is stopped.
    """
    found = _holders(path)
    if found[0] in (None, found[1]):
        return None
    time.sleep(_POLL_SECONDS)  # a writer may have come or gone between two questions
    return found[0] if _holders(path) == found else None


def own_holder(path: str) -> int | None:
    """The process id of a writer of this project that holds the lock; None when a broker does, or nobody."""
    found = _holders(path)
    return found[0] if found[0] == found[1] else None


def _holders(path: str) -> tuple[int | None, int | None]:
    """Of the store's byte, and of our own."""
    if not _LINUX:
        return None, None
    with _mutex:
        try:
            status = os.stat(path, follow_symlinks=False)
            if (status.st_dev, status.st_ino) in _held:
                return None, None
            descriptor = open_descriptor(path)
        except FileNotFoundError:
            return None, None
        except BlockingIOError:
            # the lease of a writer that holds the lock and looks just now who else has it open: see
            # _is_only_opener
            return 0, 0
        try:
            # Again: the path may have got another file meanwhile, but nobody here takes its lock under this
            # mutex.
            if _identity(descriptor) in _held:
                return None, None
            return _holder_of(descriptor, _STORE_BYTE), _holder_of(descriptor, _OWN_BYTE)
        finally:
            os.close(descriptor)


def _identity(descriptor: int) -> tuple[int, int]:
    status = os.fstat(descriptor)
    return status.st_dev, status.st_ino


def _is_named(path: str, descriptor: int) -> bool:
    try:
        status = os.stat(path, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return (status.st_dev, status.st_ino) == _identity(descriptor)


def _holder_of(descriptor: int, byte: int) -> int | None:
    answer = fcntl.fcntl(descriptor, fcntl.F_GETLK, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, byte, 1, 0))
    kind, _, _, _, holder = _FLOCK.unpack(answer)
    return None if kind == fcntl.F_UNLCK else int(holder)


class StoreLock:
    """The exclusive lock of a store, for one writer of all threads and processes; a context manager.

    Waits at most `timeout` seconds for another writer of ours, and not for a broker. Raises StoreInUseError,
    which names the holder.
    """

    def __init__(
        self,
        root: str,
        *,
        timeout: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.path = f"{root}/lock"
        self._timeout = timeout
        self._clock = clock
        self._sleep = sleep
        self._identity: tuple[int, int] | None = None
        self._is_foreign = False  # the holder that was met last

    def __enter__(self) -> StoreLock:
        deadline = self._clock() + self._timeout
        while True:
            holder = self._try()
            if holder is None:
                return self
            if self._is_foreign or self._clock() >= deadline:
                waited = f" (waited {self._timeout:g} s)" if self._timeout and not self._is_foreign else ""
                raise StoreInUseError(
                    f"{self.path}: held by {holder}{waited}; a store has one writer at a time, stop it first"
                )
            self._sleep(_POLL_SECONDS)

    def _try(self) -> str | None:
        """None when the lock is taken now; else who has it."""
        self._is_foreign = False
        with _mutex:
            try:
                status = os.stat(self.path, follow_symlinks=False)
                if (status.st_dev, status.st_ino) in _held:
                    return "another thread of this process"
            except FileNotFoundError:
                pass
            try:
                descriptor = open_lock_descriptor(self.path)
            except StoreWriteError as error:
                if isinstance(error.__cause__, BlockingIOError):
                    # which looks just now, with a lease, who else has it open: see _is_only_opener
                    return "another writer"
                raise
            try:
                if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                    raise CorruptStoreError(self.path, 0, "a regular file", "something else")
                refused = _OWN_BYTE  # first, so that whoever has it meets nobody at the other but a broker
                fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, _OWN_BYTE)
                refused = _STORE_BYTE
                fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, _STORE_BYTE)
            except (BlockingIOError, PermissionError):
                self._is_foreign = refused == _STORE_BYTE
                holder = _holder_of(descriptor, refused) if _LINUX else 0
                os.close(descriptor)
                return _LET_GO if holder is None else described(holder)
            except BaseException:
                os.close(descriptor)
                raise
            if not _is_named(self.path, descriptor):
                os.close(descriptor)
                return _LET_GO  # and took the file away: a store that came to nothing
            self._identity = _identity(descriptor)
            _held[self._identity] = descriptor
            return None

    def refuse_other_openers(self) -> None:
        """Raises StoreInUseError when another process has the lock file open: a broker that is still loading.

        A broker opens `lock` first and takes the lock only when it has loaded and recovered. Looks at /proc,
        so only on Linux and only at processes this user may look into.
        """
        assert self._identity is not None, "the lock is not held"
        if _is_only_opener(_held[self._identity]):
            return
        deadline = self._clock() + _GLANCE_SECONDS
        while (opener := _other_opener(self._identity)) is not None:
            if self._clock() >= deadline:
                raise StoreInUseError(
                    f"{self.path}: opened by {described(opener)}, a broker that is starting? Stop it, then write again"
                )
            self._sleep(_POLL_SECONDS)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with _mutex:
            if self._identity in _held:
                os.close(_held.pop(self._identity))
            self._identity = None


def described(process_id: int) -> str:
    """A holder in words: its id and its command."""
    if process_id <= 0:
        return "a process on another host or in another process namespace"
    try:
        command = (read_bytes(f"/proc/{process_id}/cmdline") or b"").split(b"\0")[0].decode(errors="replace")
    except (OSError, StoreError):
        command = ""
    return f"process {process_id}" + (f" ({command})" if command else "")


def _is_only_opener(descriptor: int) -> bool:
    """True when nobody else has the file open: only then Linux grants a write lease, which is given back at
    once.

    A hundred times faster than a look through /proc, but False says nothing: other users' files and some
    filesystems have no leases.
    """
    try:
        # an opener in these microseconds: this signal is ignored, SIGIO would kill
        fcntl.fcntl(descriptor, fcntl.F_SETSIG, signal.SIGURG)
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    except (OSError, AttributeError):  # no Linux
        return False
    return True


def _other_opener(identity: tuple[int, int]) -> int | None:
    """The id of a process but this one that has the file open."""
    if not _LINUX:
        return None
    own = str(os.getpid())
    for name in entry_names("/proc"):
        if name.isdigit() and name != own:
            try:
                descriptors = entry_names(f"/proc/{name}/fd", missing_ok=True)
            except (StoreError, OSError):
                continue  # another user's, or it ended
            for descriptor in descriptors:
                try:
                    status = os.stat(f"/proc/{name}/fd/{descriptor}")
                except OSError:
                    continue
                if (status.st_dev, status.st_ino) == identity:
                    return int(name)
    return None
