"""Which of two messages counts that claim one place: a topic, a queue id and a queue offset.

Brokers have stored two messages with one queue offset: in batches, in light queues, after a change of the
master. The first counts (ConsumeQueue.putMessagePositionInfo): a broker files the messages one after the
other, and leaves out one whose offset is before the end of the queue, so that it is in no queue. A message
whose offset is behind the end gets the next entry, which is another one's: such a message counts until the
entries come to its offset. A flipped bit makes both of a message.

The offsets of a queue begin at 0 again if its topic was deleted and created again: 1 follows then. A 0 that
no 1 follows, or that follows the queue's only message, is the second of two messages with offset 0.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Self

import numpy as np
from numpy.typing import NDArray

from store_format.layouts import OFFSET_MAX

# what a message claims: `batch_size` queue offsets from `offset` on
CLAIM = np.dtype([("physical", "i8"), ("offset", "i8"), ("batch_size", "i8")])

GAPS_MAX = 1 << 16  # of one queue: a message in a gap behind them does not count
_LEFT_MAX = 1 << 16

_Rows = NDArray[np.void]


@dataclass(slots=True)
class Claims:
    """The queue offsets that the messages of one queue claim, taken in by `add` in the order of the log.

    Offsets `first` to `stop` are claimed, apart from the `gaps`. The queue begins with the message at the
    physical offset `begin`. `left` are the messages that do not count: those at physical offsets [low, high)
    with queue offsets [start, stop). `repeated` counts those of them since `begin`.
    """

    first: int = 0
    stop: int = 0
    begin: int = -1
    gaps: list[tuple[int, int]] = field(default_factory=list)
    left: list[tuple[int, int, int, int]] = field(default_factory=list)
    _filed: int = 0  # the offset of the next entry, as a broker counts
    repeated: int = 0
    _messages: int = 0
    # a last message with offset 0
    _zero: _Rows = field(default_factory=lambda: np.empty(0, CLAIM), compare=False)

    def copy(self) -> Self:
        return replace(self, gaps=[*self.gaps], left=[*self.left])

    def add(self, rows: _Rows, *, begins: bool = False) -> Iterator[tuple[bool, _Rows]]:
        """Takes in messages, records with the fields of `CLAIM`. Yields those that count, in runs of
        consecutive offsets, each with whether the queue begins again with it.

        With `begins`, something else shows that the queue begins again with the first of them.
        """
        if len(self._zero) and rows["offset"][0] == self._zero["batch_size"][0] and not begins:
            rows = np.concatenate([self._zero, rows])
        self._zero = rows[:0]
        offsets, stops = rows["offset"], rows["offset"] + rows["batch_size"]
        edges = np.flatnonzero(offsets[1:] != stops[:-1]) + 1
        for low, high in zip([0, *edges.tolist()], [*edges.tolist(), len(rows)], strict=True):
            first, stop, begin = int(offsets[low]), int(stops[high - 1]), int(rows["physical"][low])
            if not first and high == low + 1 == len(rows) and self._messages > 1:
                self._zero = rows[low:]
            is_new = (begins and not low) or (not first and self._messages > 1 and high > low + 1)
            if is_new:
                self.first = self.stop = self._messages = self.repeated = 0
                self.begin, self.gaps, self.left = begin, [], [(-1, begin, 0, OFFSET_MAX)]
            elif not self._messages:
                self.begin = begin
            counted = self.take(first, stop, begin)
            if counted == [(first, stop)]:
                self._messages += high - low
                yield is_new, rows[low:high]
                continue
            done, last = first, int(rows["physical"][high - 1])
            for start, end in [*counted, (stop, stop)]:
                if done < start:
                    self._leave(begin, last + 1, done, start)
                if start < end:
                    inside = (offsets[low:high] >= start) & (stops[low:high] <= end)
                    self._messages += int(inside.sum())
                    yield False, rows[low:high][inside]
                done = end

    def join(self, later: Claims) -> None:
        """Takes in what another walk found behind these messages."""
        again = later.left[:1] and later.left[0][0] < 0  # within that walk
        if again or not self._messages or (not later.first and min(self._messages, later._messages) > 1):
            for name in self.__slots__:
                setattr(self, name, getattr(later.copy(), name))
            return
        edges = [later.first, *(edge for gap in later.gaps for edge in gap), later.stop]
        for first, stop in zip(edges[::2], edges[1::2], strict=True):
            self.take(first, stop)
        self._messages += later._messages

    def take(self, first: int, stop: int, physical: int = -1) -> list[tuple[int, int]]:
        """Takes in messages with the queue offsets [first, stop), the first of them at the physical offset.
        Returns the offsets that they get: [start, stop) in ascending order.
        """
        if not self.stop:
            self.first = self.stop = self._filed = first
        if first == self.stop == self._filed:  # as a broker writes them
            self.stop = self._filed = stop
            return [(first, stop)]
        self._filed += not first  # ConsumeQueue.putMessagePositionInfo files each 0
        filed = min(max(first, self._filed), stop) if first <= self._filed else stop
        self._filed = max(self._filed, stop) if first <= self._filed else self._filed + stop - first
        low = bisect_right(self.gaps, first, key=lambda gap: gap[1])
        high = bisect_left(self.gaps, stop, key=lambda gap: gap[0])
        free = [(max(start, first), min(end, stop)) for start, end in self.gaps[low:high]]
        left = [(start, first) for start, _ in self.gaps[low : low + 1] if low < high and start < first]
        left += [(stop, end) for _, end in self.gaps[high - 1 : high] if low < high and stop < end]
        self.gaps[low:high] = left
        if first < self.first:
            free.insert(0, (first, min(stop, self.first)))
            if stop < self.first and len(self.gaps) < GAPS_MAX:
                self.gaps.insert(0, (stop, self.first))
        if stop > self.stop:
            free.append((max(first, self.stop), stop))
            if first > self.stop and len(self.gaps) < GAPS_MAX:
                self.gaps.append((self.stop, first))
        self.first, self.stop = min(first, self.first), max(stop, self.stop)
        taken, done = list[tuple[int, int]](), filed
        for start, end in free:
            if start < filed:
                taken.append((start, min(end, filed)))
            elif done < start:
                self._leave(self.begin, physical, done, start, taken=start - done)
            done = max(done, end)
        if done < stop:
            self._leave(self.begin, physical, done, stop, taken=stop - done)
        return [*taken, (filed, stop)] if filed < stop else taken

    def _leave(self, low: int, high: int, start: int, stop: int, *, taken: int = 0) -> None:
        self._messages -= taken
        self.repeated += stop - start
        if len(self.left) < _LEFT_MAX:
            self.left.append((low, high, start, stop))


def counted(rows: _Rows) -> _Rows:
    """The messages of one queue that count, by their queue offsets, of all those in the order of the log."""
    parts = list[_Rows]()
    for is_new, part in Claims().add(rows):
        parts = [part] if is_new else [*parts, part]
    later = np.concatenate(parts[::-1])  # of one offset the last that was given counts
    return later[np.unique(later["offset"], return_index=True)[1]]
