"""The size of a micro-batch: `maxOffsetsPerTrigger`, `maxBytesPerTrigger` and `minOffsetsPerTrigger`
combined, and applied to the messages that wait in each queue and to their bytes.

Spark has no limit that combines several, so this module does. It is arithmetic over the messages that wait in
each queue. The positions alone decide which queue's turn it is, so the same state gives the same batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rmq_spark.consume.consumer import MessageQueue
from rmq_spark.options.read_options import ReadOptions
from rmq_spark.plan.splits import estimate_bytes
from rmq_spark.stream.stores import StreamStores
from store_format import Queue
from store_format.consumequeue.slices import read_slice

_NO_LIMIT = (1 << 63) - 1

# fit(i, count, size) is (n, bytes): the first n of at most `count` messages of queue i have together at most
# `size` bytes.
Fit = Callable[[int, int, int], tuple[int, int]]

_FIRST_READ = 64
_READ_MAX = 1 << 16


# ---- the limits --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Limits:
    """The rate options; None means no limit."""

    max_offsets: int | None = None
    max_bytes: int | None = None
    min_offsets: int | None = None
    max_delay_ms: int = 15 * 60_000

    @staticmethod
    def of(options: ReadOptions) -> Limits:
        return Limits(
            options.max_offsets_per_trigger,
            options.max_bytes_per_trigger,
            options.min_offsets_per_trigger,
            options.max_trigger_delay_ms,
        )


@dataclass(slots=True)
class Pace:
    """`minOffsetsPerTrigger`: whether a micro-batch waits for more messages
    (KafkaMicroBatchStream.delayBatch).

    The first micro-batch never waits.
    """

    limits: Limits
    last_ms: int | None = None

    def waits(self, waiting: int, now_ms: int) -> bool:
        """Whether the micro-batch waits: too few messages, and the last batch began less than the delay ago.

        If not, the micro-batch begins at `now_ms`.
        """
        if self.limits.min_offsets is None:
            return False
        due = self.last_ms is None or now_ms - self.last_ms >= self.limits.max_delay_ms
        if not due and waiting < self.limits.min_offsets:
            return True
        self.last_ms = now_ms
        return False


def admit_offsets(waiting: Sequence[int], limit: int, turn: int) -> list[int]:
    """The number of admitted messages of each queue, together min(limit, all).

    Each queue gets a number in proportion to what waits in it, and at least 1. If there are more queues than
    `limit`, they take turns of one message, the queue at `turn` first. `turn` grows by the number of admitted
    messages, as the sum of the positions does, so every queue has its turn after at most queues / limit
    batches.

    >>> admit_offsets([1000, 100, 1], 100, 0)
    [90, 9, 1]
    >>> admit_offsets([9, 9, 9, 9], 2, 3)
    [1, 0, 0, 1]
    """
    total = sum(waiting)
    if total <= limit:
        return list(waiting)
    queues = [i for i, count in enumerate(waiting) if count]
    admitted = [0] * len(waiting)
    if len(queues) >= limit:
        for step in range(limit):
            admitted[queues[(turn + step) % len(queues)]] = 1
        return admitted
    left = limit - len(queues)  # after one message for each queue
    rest = total - len(queues)
    for i in queues:
        admitted[i] = 1 + left * (waiting[i] - 1) // rest
    left = limit - sum(admitted)  # the rest from rounding down: less than one message for each queue
    step = 0
    while left:
        i = queues[(turn + step) % len(queues)]
        if admitted[i] < waiting[i]:
            admitted[i] += 1
            left -= 1
        step += 1
    return admitted


def admit_bytes(
    waiting: Sequence[int], bytes_waiting: Sequence[int], limit: int, turn: int, fit: Fit
) -> list[int]:
    """The number of admitted messages of each queue, together at most `limit` bytes.

    A larger message goes alone. `bytes_waiting` is an estimate by which the limit is divided. The queue at
    `turn` gets one message first, however large, so that every queue makes progress. What a queue does not
    use of its share goes to the others.
    """
    queues = [i for i, count in enumerate(waiting) if count]
    admitted = [0] * len(waiting)
    if not queues:
        return admitted
    order = [queues[(turn + step) % len(queues)] for step in range(len(queues))]
    first = order[0]
    admitted[first], used = 1, fit(first, 1, _NO_LIMIT)[1]
    if used >= limit:
        return admitted
    total = max(sum(bytes_waiting[i] for i in queues), 1)
    sizes = dict.fromkeys(queues, 0) | {first: used}
    for i in queues:
        admitted[i], sizes[i] = fit(i, waiting[i], sizes[i] + (limit - used) * bytes_waiting[i] // total)
    left = limit - sum(sizes.values())
    for i in order:
        if left <= 0:
            break
        if admitted[i] < waiting[i]:
            admitted[i], size = fit(i, waiting[i], sizes[i] + left)
            left -= size - sizes[i]
    return admitted


# ---- the messages that wait --------------------------------------------------------------------------------


def admit(
    stores: StreamStores,
    begins: Mapping[MessageQueue, int],
    stops: Mapping[MessageQueue, int],
    limits: Limits,
) -> dict[MessageQueue, int]:
    """Queue -> the number of its messages in [begin, stop) that go into the next micro-batch."""
    keys = sorted(key for key, stop in stops.items() if stop > begins[key])
    waiting = [stops[key] - begins[key] for key in keys]
    turn = sum(begins.values())
    if limits.max_offsets is not None:
        waiting = admit_offsets(waiting, limits.max_offsets, turn)
    if limits.max_bytes is not None:
        sizes = [_Sizes(stores.queues[key], begins[key]) for key in keys]
        estimates = [each.estimate(count) for each, count in zip(sizes, waiting, strict=True)]
        waiting = admit_bytes(
            waiting, estimates, limits.max_bytes, turn, lambda i, count, size: sizes[i].fit(count, size)
        )
    return dict(zip(keys, waiting, strict=True))


class _Sizes:
    """The sizes of a queue's messages from offset `start` on, read from its consume queue as needed."""

    def __init__(self, queue: Queue, start: int) -> None:
        self._queue = queue
        self._start = start
        self._ends: NDArray[np.int64] = np.zeros(1, np.int64)  # bytes of the first n messages

    def estimate(self, count: int) -> int:
        if not count:
            return 0
        if self._queue.scanned is not None:
            return count * self._mean_scanned()
        return estimate_bytes(self._queue.range.piece(self._start, self._start + count))

    def fit(self, count: int, size: int) -> tuple[int, int]:
        """(n, bytes): the first n of at most `count` messages have together at most `size` bytes."""
        if self._queue.scanned is not None:  # without a consume queue only the mean size is known
            mean = self._mean_scanned()
            fitting = min(count, size // mean)
            return fitting, fitting * mean
        while len(self._ends) - 1 < count and self._ends[-1] <= size:
            self._read_on(count)
        fitting = int(np.searchsorted(self._ends[: count + 1], size, side="right")) - 1
        return fitting, int(self._ends[fitting])

    def _mean_scanned(self) -> int:
        scanned = self._queue.scanned
        assert scanned is not None
        messages = sum(stop - first for _, first, stop in scanned.epochs)
        return max(scanned.bytes // max(messages, 1), 1)

    def _read_on(self, count: int) -> None:
        done = len(self._ends) - 1
        step = min(max(_FIRST_READ, done), _READ_MAX, count - done)
        low = self._start + done
        offsets, units = read_slice(self._queue.range.piece(low, low + step))
        self._ends = np.concatenate(
            (self._ends, self._ends[-1] + np.cumsum(_sizes_of(low, step, offsets, units)))
        )


def _sizes_of(low: int, count: int, offsets: NDArray[np.int64], units: NDArray[np.void]) -> NDArray[np.int64]:
    """Bytes for each of `count` offsets from `low` on; 0 for an offset without a unit.

    All bytes of a message batch count at its first offset in this range.
    """
    sizes = np.zeros(count, np.int64)
    places: Sequence[int] | NDArray[np.int64] = np.clip(offsets - low, 0, count - 1)
    np.add.at(sizes, places, np.maximum(units["size"].astype(np.int64), 0))
    return sizes
