"""Waits for other processes by asking again and again: for a lock, or for another member of a group."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Clocks:
    """`monotonic` in seconds measures leases and intervals, `epoch_ms` dates what is written."""

    monotonic: Callable[[], float] = time.monotonic
    epoch_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000
    sleep: Callable[[float], None] = time.sleep


_REAL = Clocks()


def attempts(
    timeout: float, pause: float, *, pause_max: float = 0.0, clocks: Clocks = _REAL
) -> Iterator[None]:
    """Yields at least once, and then after each pause until `timeout` seconds are over.

    Pauses double up to `pause_max`.
    """
    deadline = clocks.monotonic() + timeout
    while True:
        yield
        if clocks.monotonic() >= deadline:
            return
        clocks.sleep(pause)
        pause = max(pause, min(2 * pause, pause_max))
