"""The lease of a stream that pops: a thread renews the invisible time of the ranges of its micro-batch.

The thread ends with the process. Whatever it renewed last becomes visible to the other members an invisible
time later, at most.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence

from rmq_spark.consume.pop_offset import PoppedRange
from rmq_spark.pop.stream_shares import StreamShares

_log = logging.getLogger(__name__)

_TURNS = 4  # renewals in an invisible time: three may come late
_PAUSE_MAX = 1.0  # seconds: how late messages of dead members become visible, and a broker is noticed


class StreamLease:
    """Renews the held ranges. `check` raises what the thread could not do."""

    def __init__(self, shares: StreamShares, invisible_ms: int) -> None:
        self._shares = shares
        self._invisible_ms = invisible_ms
        self._lock = threading.Lock()
        self._held: tuple[PoppedRange, ...] = ()
        self._renewed_ms = 0
        self._error: Exception | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="rmqlog-pop-lease", daemon=True)
        self._thread.start()

    def hold(self, ranges: Sequence[PoppedRange]) -> None:
        """From now on renews these ranges, which were taken just now, and no others."""
        with self._lock:
            self._held = tuple(ranges)
            self._renewed_ms = self._shares.now_ms()

    def replay(self, ranges: Sequence[PoppedRange]) -> None:
        """Renews the ranges of a micro-batch that Spark repeats, and holds those that are still taken.

        Ranges that became visible meanwhile are delivered again: this query repeats them, and another member
        gets them too.
        """
        with self._lock:
            lost = self._shares.renew(ranges, self._invisible_ms)
            self._held = tuple(each for each in ranges if each not in lost)
            self._renewed_ms = self._shares.now_ms()
        _warn(lost, "the query was down for longer than invisibleDuration")

    def check(self) -> None:
        """Raises the error with which the thread failed last, if it still fails."""
        if self._error is not None:
            raise self._error

    def stop(self) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        pause = min(self._invisible_ms / 1000 / _TURNS, _PAUSE_MAX)
        while not self._ended.wait(pause):
            try:
                self._turn()
                self._error = None
            except Exception as error:  # the query raises it, unless the next turn succeeds
                if self._error is None:
                    _log.warning("the invisible time could not be renewed: %s", error)
                self._error = error

    def _turn(self) -> None:
        lost: list[PoppedRange] = []
        with self._lock:
            now = self._shares.now_ms()
            if self._held and now - self._renewed_ms >= self._invisible_ms / _TURNS:
                lost = self._shares.renew(self._held, self._invisible_ms)
                self._held = tuple(each for each in self._held if each not in lost)
                self._renewed_ms = now
        _warn(lost, "the process did not run for longer than invisibleDuration")
        self._shares.keep()


def _warn(lost: Sequence[PoppedRange], reason: str) -> None:
    for queue, start, stop, _ in lost:
        _log.warning(
            "%s: the messages %d to %d of this micro-batch became visible to other members and are delivered "
            "twice: %s",
            queue,
            start,
            stop,
            reason,
        )
