"""The size of a micro-batch: `maxOffsetsPerTrigger`, `maxBytesPerTrigger` and `minOffsetsPerTrigger`
combined.

Spark has no limit that combines several, so this module does. It is arithmetic over the messages that wait in
each queue. The positions alone decide which queue's turn it is, so the same state gives the same batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rmq_spark.options.read_options import ReadOptions

_NO_LIMIT = (1 << 63) - 1

# fit(i, count, size) is (n, bytes): the first n of at most `count` messages of queue i have together at most
# `size` bytes.
Fit = Callable[[int, int, int], tuple[int, int]]


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
