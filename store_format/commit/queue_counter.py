"""Queue offsets for messages in the order of the log (ConsumeQueueStore.assignQueueOffset), many at once."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["QueueCounter"]


class QueueCounter:
    """Gives messages their queue offsets, in the order of the log."""

    def __init__(self, bases: tuple[int, ...]) -> None:
        # the last two are NOT_DISPATCHED and NO_QUEUE: their offset is 0
        self.next = np.array([*bases, 0, 0], np.int64)

    def take(self, queue: NDArray[np.int32]) -> NDArray[np.int64]:
        """The offset of each of these messages; `queue` numbers queues, or is one of the two words for none."""
        count = len(self.next)
        some_in_none = bool(queue.min(initial=0) < 0)
        keys = np.where(queue < 0, queue + count, queue) if some_in_none else queue
        keys = keys.astype(np.uint8 if count <= 1 << 8 else np.uint16 if count <= 1 << 16 else np.int64)
        order = np.argsort(keys, kind="stable")  # a radix sort where the keys are short
        counts = np.bincount(keys, minlength=count)
        firsts = np.cumsum(counts) - counts
        offsets = np.empty(len(queue), np.int64)
        offsets[order] = np.arange(len(queue)) + np.repeat(self.next - firsts, counts)
        self.next[:-2] += counts[:-2]
        if some_in_none:
            offsets[queue < 0] = 0
        return offsets
