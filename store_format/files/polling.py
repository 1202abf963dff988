"""Waits for other processes: asks again and again, because a file cannot tell on every file system that it
has changed. A commit, a lock and another member of a group are waited for in this way. What a process does
from time to time beside its other work is a thread that waits in between.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from store_format.files.paths import YOUNG_NS

_POLL_SECONDS, _POLL_SECONDS_MAX = 0.005, 0.04
_POLL_SHARE = 0.02  # of the time since the last change

_Identity = tuple[int, int, int, int] | None  # device, inode, size, time in ns


@dataclass(frozen=True, slots=True)
class Clocks:
    """`monotonic` in seconds measures leases and intervals, `epoch_ms` dates what is written."""

    monotonic: Callable[[], float] = time.monotonic
    epoch_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000
    sleep: Callable[[float], None] = time.sleep

    def attempts(self, timeout: float, pause: float, *, pause_max: float = 0.0) -> Iterator[None]:
        """Yields at least once, and then after each pause until `timeout` seconds are over.

        Pauses double up to `pause_max`.
        """
        deadline = self.monotonic() + timeout
        while True:
            yield
            if self.monotonic() >= deadline:
                return
            self.sleep(pause)
            pause = max(pause, min(2 * pause, pause_max))


_REAL = Clocks()


class Repeated:
    """Calls `turn` again and again in a daemon thread; before each call it waits `pause()` seconds."""

    def __init__(self, name: str, pause: Callable[[], float], turn: Callable[[], object]) -> None:
        self._pause, self._turn = pause, turn
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    @property
    def is_stopping(self) -> bool:
        return self._stopping.is_set()

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout: float | None = None) -> None:
        """Ends the thread after the present turn, and waits for that. Does not wait in a call from a turn."""
        self._stopping.set()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join(timeout)

    def _run(self) -> None:
        while not self._stopping.wait(self._pause()):
            self._turn()


class PolledFiles:
    """Some files, and which of them have changed since the last question.

    A file counts as changed when its bytes or its time change, or when another file takes its name; a
    directory, when a name appears in it or disappears. A change may be reported twice.
    """

    def __init__(self, clocks: Clocks = _REAL) -> None:
        self._seen: dict[str, tuple[_Identity, bool]] = {}
        self._clocks = clocks
        self._changed_at = clocks.monotonic()

    def watch(self, paths: Iterable[str]) -> None:
        """Watches these paths from now on, and no others. `changed` reports each change after this call."""
        before = self._seen
        # A new dictionary: another thread may be in `changed`. It reports a change at most once more.
        self._seen = {path: before[path] if path in before else self._look(path) for path in paths}

    def changed(self) -> set[str]:
        """The paths that have changed since the last call."""
        seen, found = self._seen, set()
        for path, before in seen.items():
            now = seen[path] = self._look(path)
            # a young file may have changed again within a tick of its file system's clock
            if now[0] != before[0] or (before[1] and not now[1]):
                found.add(path)
        if found:
            self._changed_at = self._clocks.monotonic()
        return found

    def pause(self) -> float:
        """The seconds until the next question: few after a change, more when nothing changes."""
        quiet = self._clocks.monotonic() - self._changed_at
        return min(max(_POLL_SHARE * quiet, _POLL_SECONDS), _POLL_SECONDS_MAX)

    def _look(self, path: str) -> tuple[_Identity, bool]:
        """The file now, and whether it is young. The file is opened, because a network file system may answer
        stat from its memory.
        """
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError:
            return None, False
        try:
            status = os.fstat(descriptor)
        finally:
            os.close(descriptor)
        is_young = status.st_mtime_ns > self._clocks.epoch_ms() * 1_000_000 - YOUNG_NS
        return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns), is_young
