"""A member's lease: a file that its process keeps locked, and a beat that a daemon thread writes. Who looks
judges by both.

On one host the system drops a dead process's lock at once. Across hosts, and for a process that is stopped,
the beat decides: it counts as gone when it stood still for the lease time by the watcher's own clock, so
hosts need not agree about the time of day.
"""

from __future__ import annotations

import logging
import os
import socket
import sys
import threading
from collections.abc import Callable
from contextlib import suppress

from rmq_spark.consume.group.state import MemberEntry
from store_format.errors import CorruptStoreError, StoreError
from store_format.files.lock import StoreLock, lock_holder
from store_format.files.read import read_bytes
from store_format.files.write import FileWrites

__all__ = ["Lease", "Watch", "host_name", "lease_directory", "remove_lease"]

_log = logging.getLogger(__name__)

_LOOKS_A_LEASE = 12  # at the others
_LOOKS_A_BEAT = 3
_BEAT_SIZE = 20  # digits: one write of one page, never seen in part


def lease_directory(group_directory: str, member: str) -> str:
    """`member` is an id of ours, hexadecimal: safe in a path."""
    return f"{group_directory}/leases/{member}"


def host_name() -> str:
    """Whose locks this process can ask about: the host's name, and which start of it, so that a reboot is
    another host.
    """
    boot = read_bytes("/proc/sys/kernel/random/boot_id", 4096) if sys.platform.startswith("linux") else None
    return f"{socket.gethostname()}/{(boot or b'').decode().strip()}"


class Lease:
    """One member's own. `begin` takes it, `renew` is the beat, `end` gives it back; the thread lives as long
    as the process.

    `look` is called a dozen times a lease: a member whose boundaries are far apart still knows since when
    another one has been silent.
    """

    def __init__(self, group_directory: str, member: str, seconds: float, look: Callable[[], None]) -> None:
        self._group_directory = group_directory
        self._member = member
        self._seconds = seconds
        self._directory = lease_directory(group_directory, member)
        self._lock = StoreLock(self._directory)
        self._files = FileWrites(sync=False)  # a lease need not outlast the machine
        self._count = 0
        self._look = look
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._beat, name=f"lease {member}", daemon=True)

    def begin(self) -> None:
        self._files.make_directories(self._group_directory, "leases", self._member)
        self._lock.__enter__()
        self.renew()
        self._thread.start()

    def renew(self) -> None:
        self._count += 1
        # Opened anew each time: a network filesystem hands on what was written when it is closed.
        self._files.write_whole(f"{self._directory}/beat", b"%020d" % self._count)

    def _beat(self) -> None:
        looks = 0
        while not self._stop.wait(self._seconds / _LOOKS_A_LEASE):
            looks += 1
            try:
                if looks % _LOOKS_A_BEAT == 0:
                    self.renew()
                self._look()
            except (StoreError, OSError) as error:  # tried again: a lease is lost by silence only
                if not self._stop.is_set():
                    _log.warning(
                        "the lease of this query could not be renewed, others may take its queues: %s", error
                    )

    def end(self) -> None:
        self._stop.set()
        self._thread.join()
        self._lock.__exit__(None, None, None)
        remove_lease(self._group_directory, self._member)


def remove_lease(group_directory: str, member: str) -> None:
    """What a member leaves behind."""
    directory = lease_directory(group_directory, member)
    files = FileWrites(sync=False)
    with suppress(StoreError):
        for name in ("beat", "lock"):
            files.remove(f"{directory}/{name}")
        files.remove_directory(directory)


class Watch:
    """What one process has seen of another member's lease. `clock` is in seconds and never goes back."""

    def __init__(
        self, group_directory: str, member: str, entry: MemberEntry, clock: Callable[[], float]
    ) -> None:
        self._directory = lease_directory(group_directory, member)
        # A process asks about its own locks in vain; and those of other hosts are not always handed on.
        is_near = entry.host == host_name() and entry.process_id != os.getpid()
        self._can_ask = is_near and sys.platform.startswith("linux")
        self._seconds = entry.lease_seconds
        self._clock = clock
        self._seen: tuple[bytes | None, float] = (None, clock())  # a beat, and since when it stands still
        self._beats = 0

    def look(self) -> bytes | None:
        """The beat now; None when there is none any more. May be called from any thread."""
        beat = self._read()
        if beat != self._seen[0]:
            self._seen = (beat, self._clock())
            self._beats += 1
        return beat

    @property
    def has_beaten(self) -> bool:
        """Whether the member was alive while it was watched; the first beat found may be an old one."""
        return self._beats > 1

    def why_gone(self) -> str | None:
        """Why the member counts as gone now; None while it lives."""
        # before looking: a watcher that is stopped in between must not take its own absence for the other's
        now = self._clock()
        if self.look() is None:
            return "its lease was given back"
        if self._can_ask and lock_holder(f"{self._directory}/lock") is None:
            return "its process has ended"
        return (
            f"its lease was not renewed for {self._seconds:g} s"
            if now - self._seen[1] >= self._seconds
            else None
        )

    def _read(self) -> bytes | None:
        try:
            return read_bytes(f"{self._directory}/beat", _BEAT_SIZE)
        except CorruptStoreError:
            return b""  # something else in its place does not beat
