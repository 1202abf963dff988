"""The limits of a micro-batch, applied to the messages that wait in each queue and to their bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from rmq_spark.consume.message_queue import MessageQueue
from rmq_spark.plan.splits import estimate_bytes
from rmq_spark.stream.rates import Limits, admit_bytes, admit_offsets
from rmq_spark.stream.stores import StreamStores
from store_format import Queue
from store_format.consumequeue.slices import read_slice

_FIRST_READ = 64
_READ_MAX = 1 << 16


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
