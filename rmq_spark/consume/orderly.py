"""Orderly consumption: what happens in each queue when a handler fails.

As in RocketMQ's ConsumeMessageOrderlyService (spec consumption.md 6.5) a queue stops at its first failure,
other queues go on, and a message that failed too often is given up.
`rmq_spark.broker.services.orderly` writes what follows from the reports.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from rmq_spark.consume.consumer import MessageQueue
from store_format.errors import OptionError

FOREVER = -1
_ERROR_SHOWN_MAX = 500


@dataclass(frozen=True, slots=True)
class Stop:
    """Where an orderly handler stopped in a queue (`rmq_spark.services.Orderly`).

    The messages before `offset` are handled. The handler has failed `times` times at the message there, and
    the queue waits until `until_ms`, in ms since the epoch. `times` 0: it has not failed; a micro-batch that
    Spark repeats goes on at `offset`.
    """

    offset: int
    times: int = 0
    until_ms: int = 0


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A message that the handler gave up at `offset`, after it had been delivered again `times` times."""

    offset: int
    times: int


@dataclass(slots=True)
class QueueReport:
    """What was done with the rows of one queue in a micro-batch.

    All messages before `next_offset` are handled or given up. `times` is how often the handler has failed at
    the message there, with `error` as the last reason; 0: it has not failed.
    """

    queue: MessageQueue
    next_offset: int
    dead: list[DeadLetter] = field(default_factory=list)
    times: int = 0
    error: str = ""


class OrderlyRun:
    """One task's way through the rows of its queues. `stops` are the places where queues stopped before."""

    def __init__(self, stops: Mapping[MessageQueue, Stop], max_reconsume_times: int = FOREVER) -> None:
        self._stops = stops
        self._times_max = max_reconsume_times
        self._reports: dict[MessageQueue, QueueReport] = {}
        self._last: dict[MessageQueue, int] = {}

    def takes(self, queue: MessageQueue, offset: int) -> bool:
        """Whether the handler gets this message: no, if it was handled before, or is behind a failure.

        Raises OptionError for rows that are not in the order of their queue.
        """
        last = self._last.get(queue, -1)
        if offset <= last:
            raise OptionError(
                f"{queue}: expected the rows of the queue in order, found offset {offset} after {last}; "
                "leave out joins, sorts and repartitions before foreachBatch"
            )
        self._last[queue] = offset
        report = self._reports.get(queue)
        if report is not None:
            return not report.times
        stop = self._stops.get(queue)
        return stop is None or offset >= stop.offset

    def handle(
        self, queue: MessageQueue, offset: int, stored_times: int, call: Callable[[int], object]
    ) -> None:
        """Calls the handler with the number of deliveries before this one (reconsumeTimes)."""
        report = self._reports.setdefault(queue, QueueReport(queue, offset))
        stop = self._stops.get(queue)
        failed = stop.times if stop is not None and stop.offset == offset else 0
        times = stored_times + failed
        try:
            call(times)
        except Exception as error:
            if self._times_max == FOREVER or times < self._times_max:
                report.next_offset, report.times = offset, failed + 1
                report.error = f"{type(error).__name__}: {error}"[:_ERROR_SHOWN_MAX]
                return
            report.dead.append(DeadLetter(offset, times))
        report.next_offset = offset + 1

    def reports(self) -> list[QueueReport]:
        return list(self._reports.values())
