"""The offsets of a stream that pops: what each micro-batch takes, replays and acknowledges.

The query takes ranges of queues when Spark asks where the next micro-batch ends. The ranges are that offset,
so Spark stores them before the batch runs, and a batch that Spark repeats reads the same messages. Spark's
next question begins at the offset of the batch that it has committed: then the ranges are acknowledged.
Until then a thread renews their invisible time. The thread ends with the process. Whatever it renewed last
becomes visible to the other members an invisible time later, at most.

A restarted query knows its check points by the owner in its offsets. Of those, the ranges in Spark's last
offset are replayed or acknowledged; any others were taken for an offset that Spark never stored, and the
next micro-batch reads them. This module does not know Spark.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from rmq_spark.broker.pop.stream_shares import Ready, StreamShares
from rmq_spark.consume.message_queue import MessageQueue
from rmq_spark.consume.pop_offset import PopOffset, PoppedRange
from rmq_spark.consume.stream_offset import StreamOffset
from rmq_spark.options.group_options import PopOptions
from rmq_spark.plan.scan import Scan
from rmq_spark.plan.splits import Plan
from rmq_spark.stream.plan import plan_ranges
from rmq_spark.stream.rates import Limits, Pace
from rmq_spark.stream.stores import StreamStores
from store_format.files.polling import Repeated

_log = logging.getLogger(__name__)

_Json = dict[str, object]

_LOOKS_MAX = 20  # ranges without a matching message, until an unbounded query looks for others again

_TURNS = 4  # renewals in an invisible time: three may come late
_PAUSE_MAX = 1.0  # seconds: how late messages of dead members become visible, and a broker is noticed


def _epoch_ms() -> int:
    """A function with a name: readers are pickled to tasks, and a lambda cannot be pickled."""
    return time.time_ns() // 1_000_000


class PopPositions:
    """The offsets of one stream, as the JSON that Spark stores. `clock_ms` is the time since 1970.

    Nothing is opened, and no thread runs, before Spark asks for the first end of a micro-batch.
    """

    def __init__(
        self,
        stores: StreamStores,
        scan: Scan,
        options: PopOptions,
        *,
        clock_ms: Callable[[], int] = _epoch_ms,
    ) -> None:
        self.stores = stores
        self._scan = scan
        self._options = options
        self._clock_ms = clock_ms
        self._limits = Limits.of(stores.options)
        self._pace = Pace(self._limits)
        self._owner = ""
        self._is_bounded = False
        self._bound: dict[MessageQueue, int] | None = None  # of a bounded run, from its first `latest` on
        self._opened: tuple[StreamShares, _StreamLease] | None = None
        # (version of the stores, offset): at this version there was nothing to take after the offset
        self._idle: tuple[int, _Json] | None = None
        self._acknowledged: _Json | None = None
        self._last: _Json | None = None
        self._has_left = False

    def initial(self) -> _Json:
        """The first offset of a new query: it has taken nothing."""
        return PopOffset().to_json()

    def bound_now(self) -> None:
        """The stream ends where the queues end when `latest` is called first (Trigger.AvailableNow).

        Not where they end now: Spark may repeat a batch before, and its ranges must be renewed before what
        dead members had is made visible.
        """
        self._is_bounded = True
        self._bound = self._idle = None

    def report(self) -> _Json | None:
        """Where the queues ended at the last look, for Spark's progress."""
        if not self.stores.version:
            return None
        ends = {key: queue.max_offset for key, queue in self.stores.queues.items()}
        return StreamOffset(ends).to_json()

    def latest(self, start: _Json) -> _Json:
        """Acknowledges the ranges of `start`, which Spark has committed, and takes the next ones.

        Returns `start` itself if there is nothing to take. Raises OffsetOutOfRangeError for messages that no
        longer exist, unless failOnDataLoss is false, and StoreInUseError while a broker has the store open.
        """
        if self._has_left:
            return start
        version = self.stores.look()
        if self._opened is not None:
            self._opened[1].check()
        is_again = self._opened is not None and self._opened[0].has_again
        if self._idle == (version, start) and not is_again:
            return start
        previous = PopOffset.from_json(start)
        shares, lease = self._open(previous)
        if self._acknowledged != start:
            lease.hold(())
            shares.acknowledge(previous.ranges)
            self._acknowledged = start
        if self._is_bounded and self._bound is None:
            shares.revive()
            version = self.stores.look()
            self._bound = {key: queue.max_offset for key, queue in self.stores.queues.items()}
        ranges = shares.orphans(previous.ranges) or self._take(shares)
        if ranges is None:  # waits for minOffsetsPerTrigger
            return start
        if not ranges:
            self._idle = version, start
            if self._bound is not None:
                self._leave(shares, lease)
            return start
        lease.hold(ranges)
        self._last = PopOffset(self._owner, tuple(sorted(ranges))).to_json()
        return self._last

    def plan(self, start: _Json, end: _Json) -> Plan:
        """The splits of the micro-batch that ends at `end`: its ranges, also when Spark repeats the batch.

        Raises OffsetOutOfRangeError for messages that no longer exist, unless failOnDataLoss is false.
        """
        offset = PopOffset.from_json(end)
        if end != self._last:
            _, lease = self._open(offset)
            lease.replay(offset.ranges)
        wanted = [(each.queue, each.start, each.stop) for each in offset.ranges]
        return plan_ranges(self.stores.options, self.stores, wanted)

    def _open(self, previous: PopOffset) -> tuple[StreamShares, _StreamLease]:
        self._owner = previous.owner or self._owner or f"spark-{os.urandom(8).hex()}"
        if self._opened is None:
            shares = StreamShares(
                self.stores, self._scan, self._options, self._owner, clock_ms=self._clock_ms
            )
            shares.open()
            self._opened = shares, _StreamLease(shares, self._options.invisible_ms)
        return self._opened

    def _take(self, shares: StreamShares) -> list[PoppedRange] | None:
        """Ranges with messages that match, within the limits. None if the micro-batch waits for more."""
        looks = 0
        while self._bound is not None or looks < _LOOKS_MAX:
            looks += 1
            ready = self._within_bound(shares.ready())
            if not ready.total:
                return []
            if self._bound is None and self._pace.waits(ready.total, time.monotonic_ns() // 1_000_000):
                return None
            ranges = shares.take(ready, self._limits)
            if ranges:
                return ranges
        return None

    def _within_bound(self, ready: Ready) -> Ready:
        if self._bound is None:
            return ready
        bound = self._bound
        stops = {key: min(stop, bound.get(key, 0)) for key, stop in ready.stops.items()}
        return replace(ready, stops={key: max(stop, ready.begins[key]) for key, stop in stops.items()})

    def _leave(self, shares: StreamShares, lease: _StreamLease) -> None:
        """A bounded run has read everything."""
        self._has_left = True
        lease.stop()
        shares.close()


# ---- the lease ---------------------------------------------------------------------------------------------


class _StreamLease:
    """Renews the held ranges. `check` raises what the thread could not do."""

    def __init__(self, shares: StreamShares, invisible_ms: int) -> None:
        self._shares = shares
        self._invisible_ms = invisible_ms
        self._lock = threading.Lock()
        self._held: tuple[PoppedRange, ...] = ()
        self._renewed_ms = 0
        self._error: Exception | None = None
        pause = min(invisible_ms / 1000 / _TURNS, _PAUSE_MAX)
        self._thread = Repeated("rmqlog-pop-lease", lambda: pause, self._run)
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
        self._thread.stop()

    def _run(self) -> None:
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
