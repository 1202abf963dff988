"""A queue as the messages of the commitlog show it, with the places where its offsets began again."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from store_format.consumequeue.slices import QueueRange

_Ints = NDArray[np.int64]


@dataclass(slots=True)
class LogQueue:
    """A queue as the commitlog shows it: offsets [min_offset, max_offset) of its messages.

    `epochs` has one element for each time that the queue's offsets started again: the physical offset of that
    place, the first queue offset and the offset after the last. Usually there is one; more mean that the
    topic was deleted and created again. `last` is the physical offset of the last message, `last_old` that of
    the last message before the newest epoch. `gaps` counts the queue offsets between others that no message
    has, since the offsets last began at 0.
    """

    topic: str
    queue_id: int
    is_batch: bool = False
    bytes: int = 0
    physical_stop: int = 0  # the end of the log when it was walked
    epochs: list[tuple[int, int, int]] = field(default_factory=list)
    last: int = -1
    last_old: int = -1
    gaps: int = 0

    @property
    def min_offset(self) -> int:
        return min(first for _, first, _ in self.epochs)

    @property
    def max_offset(self) -> int:
        """The offset after the last message since the queue last started at 0.

        Messages of a deleted topic do not count.
        """
        starts = [number for number, (_, first, _) in enumerate(self.epochs) if first == 0]
        return max(stop for _, _, stop in self.epochs[starts[-1] if starts else 0 :])

    @property
    def range(self) -> QueueRange:
        """The offsets of the queue. No file has them."""
        return QueueRange(
            self.topic, self.queue_id, self.min_offset, self.max_offset, None, is_batch=self.is_batch
        )

    @property
    def hides_messages(self) -> bool:
        """Whether messages from before the queue restarted have offsets that the queue does not have now."""
        return any(stop > self.max_offset for _, _, stop in self.epochs)

    def add(self, physical: _Ints, offset: _Ints, stop: _Ints) -> None:
        """Takes in messages in commitlog order; at least one."""
        starts = np.flatnonzero(offset[1:] < stop[:-1]) + 1
        for low, high in zip([0, *starts.tolist()], [*starts.tolist(), len(offset)], strict=True):
            first, last = int(offset[low]), int(stop[high - 1])
            gaps = last - first - int((stop[low:high] - offset[low:high]).sum())
            if low == 0 and self.epochs and first >= self.epochs[-1][2]:
                self.gaps += gaps + first - self.epochs[-1][2]
                self.epochs[-1] = (*self.epochs[-1][:2], last)
            else:
                self.gaps = gaps + (self.gaps if first else 0)
                self.last_old = int(physical[low - 1]) if low else self.last
                self.epochs.append((int(physical[low]), first, last))
        self.last = int(physical[-1])

    def join(self, later: LogQueue) -> None:
        """Takes in what another walk found after this part of the commitlog."""
        for number, (begin, first, stop) in enumerate(later.epochs):
            if self.epochs and first >= self.epochs[-1][2]:
                self.epochs[-1] = (*self.epochs[-1][:2], stop)
            else:
                self.last_old = later.last_old if number else self.last
                self.epochs.append((begin, first, stop))
        self.last = later.last

    def counts(self, physical: _Ints, offset: _Ints) -> NDArray[np.bool_]:
        """Which messages count: those whose queue offset no later epoch has."""
        keep = physical >= self.epochs[0][0]
        for begin, first, stop in self.epochs[1:]:
            keep &= (physical >= begin) | (offset < first) | (offset >= stop)
        return keep
