"""Progress of long work on one line of stderr: bytes, rate, time left. Shown on terminals only."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import TextIO

_STEP_SECONDS = 0.1
_UNITS = ("bytes", "kB", "MB", "GB", "TB", "PB")
_CLEAR = "\r\x1b[K"


def in_bytes(size: float) -> str:
    """A size for people, in powers of 1000, as disks are sold.

    >>> in_bytes(1_234_567)
    '1.2 MB'
    """
    power = 0
    while size >= 1000 and power < len(_UNITS) - 1:
        size, power = size / 1000, power + 1
    return f"{size:.1f} {_UNITS[power]}" if power else f"{size:.0f} {_UNITS[0]}"


class Progress:
    """A context manager that clears the line at the end. A `total` of 0 means unknown."""

    def __init__(
        self,
        what: str,
        total: int,
        *,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
        quiet: bool = False,
    ) -> None:
        self._what, self._total = what, total
        self._stream = sys.stderr if stream is None else stream
        self._clock = clock
        # if False, callers need not find out the total
        self.is_shown = not quiet and self._stream.isatty()
        self._begun = self._drawn = clock()
        self.done = 0

    def add(self, size: int) -> None:
        self.reach(self.done + size)

    def reach(self, done: int) -> None:
        """Sets the number of bytes done. Draws at most ten times a second."""
        self.done = done
        now = self._clock()
        if self.is_shown and now - self._drawn >= _STEP_SECONDS:
            self._drawn = now
            self._stream.write(f"{_CLEAR}{self.line(now)}")
            self._stream.flush()

    def reach_of(self, done: int, total: int) -> None:
        """Like `reach`, for work whose total becomes known on the way."""
        self._total = total
        self.reach(done)

    def line(self, now: float) -> str:
        """The line at a time of the clock."""
        rate = self.done / max(now - self._begun, 1e-6)
        if not self._total:
            return f"{self._what}: {in_bytes(self.done)}, {in_bytes(rate)}/s"
        left = max(self._total - self.done, 0) / rate if rate else 0.0
        share = min(100 * self.done // self._total, 100)
        done = f"{in_bytes(self.done)} of {in_bytes(self._total)} ({share} %)"
        return f"{self._what}: {done}, {in_bytes(rate)}/s, {left:.0f} s left"

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.is_shown:
            self._stream.write(_CLEAR)
            self._stream.flush()
