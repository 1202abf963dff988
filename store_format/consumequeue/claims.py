"""Which of two messages counts that claim one place: a topic, a queue id and a queue offset.

Brokers have stored two messages with one queue offset: in batches, in light queues, after a change of the
master. The first counts (ConsumeQueue.putMessagePositionInfo): a broker files the messages one after the
other, and leaves out one whose offset is before the end of the queue, so that it is in no queue. A message
whose offset is behind the end gets the next entry, which is another one's: such a message counts until the
entries come to its offset. A flipped bit makes both of a message.

The offsets of a queue begin at 0 again if its topic was deleted and created again: 1 follows then. A 0 that
no 1 follows, or that follows the queue's only message, is the second of two messages with offset 0. So is
each 0 that a broker files which makes the queue: no file shows a deletion.

A broker that starts after a stop in order files the messages behind the greatest end of a message that any
queue has (CommitLog.recoverNormally), and that at the end only if no other follows: of two messages of which
it files only the second, that one counts.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from types import MappingProxyType
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from store_format.consumequeue.files import QueueBounds
from store_format.layouts import OFFSET_MAX
from store_format.names import QueueKey

# what a message claims: `batch_size` queue offsets from `offset` on
CLAIM = np.dtype([("physical", "i8"), ("offset", "i8"), ("batch_size", "i8")])

_RUNS_MAX = 1 << 16  # of one queue: gaps behind them count as claimed

_Range = tuple[int, int]
_Rows = NDArray[np.void]


@dataclass(slots=True)
class Claims:
    """The queue offsets that the messages of one queue claim, taken in by `add` in the order of the log.

    The `runs` are ranges [first, stop) of claimed offsets, in ascending order. The queue begins with the
    message at the physical offset `begin`. `left` are the messages that do not count: those at physical
    offsets [low, high) with queue offsets [start, stop). `repeated` counts those of them since `begin`.

    A broker that starts files the messages from the physical offset `start` on, behind the queue's `end`, the
    queue offset behind its last entry (-1: the queue has no files, and begins with the message's own offset).
    """

    runs: list[_Range] = field(default_factory=list)
    begin: int = -1
    left: list[tuple[int, int, int, int]] = field(default_factory=list)
    repeated: int = 0
    start: int = OFFSET_MAX
    end: int = -1
    _is_built: bool = False  # by the broker
    _filed: int = -1  # the offset of the next entry, as a broker counts; -1 before the first one
    # a last message with offset 0: what follows decides
    _zero: _Rows = field(default_factory=lambda: np.empty(0, CLAIM), compare=False)

    @property
    def gaps(self) -> list[_Range]:
        """The ranges between others that no message claims."""
        return [(one[1], other[0]) for one, other in pairwise(self.runs)]

    @property
    def has_more(self) -> bool:
        """Whether the queue has more than one message: then a new 0 with a 1 behind it begins it again."""
        return bool(self.runs) and self.runs[-1][1] - self.runs[0][0] > 1

    def copy(self) -> Self:
        return replace(self, runs=[*self.runs], left=[*self.left])

    def count(self, start: int = 0, stop: int = OFFSET_MAX) -> int:
        """How many of the queue offsets [start, stop) are claimed."""
        return sum(max(min(high, stop) - max(low, start), 0) for low, high in self.runs)

    def add(self, rows: _Rows, *, begins: bool = False) -> Iterator[tuple[bool, _Rows]]:
        """Takes in messages, records with the fields of `CLAIM`. Yields those that count, in runs of
        consecutive offsets, each with whether the queue begins again with it.

        With `begins`, something else shows that the queue begins again with the first of them.
        """
        if len(self._zero) and rows["offset"][0] == self._zero["batch_size"][0] and not begins:
            rows = np.concatenate([self._zero, rows])
        self._zero = rows[:0]
        offsets, stops = rows["offset"], rows["offset"] + rows["batch_size"]
        starts = rows["physical"] >= self.start
        edges = np.flatnonzero((offsets[1:] != stops[:-1]) | (starts[1:] != starts[:-1])) + 1
        for low, high in zip([0, *edges.tolist()], [*edges.tolist(), len(rows)], strict=True):
            first, stop, begin = int(offsets[low]), int(stops[high - 1]), int(rows["physical"][low])
            has_next = low + 1 < len(rows) and offsets[low + 1] == stops[low]
            is_new = (begins and not low) or (not first and self.has_more and has_next)
            is_new &= not self._is_built
            if not first and self.has_more and high == low + 1 == len(rows):
                self._zero = rows[low:]
            if is_new:
                self.runs, self.repeated, self._filed = [], 0, -1
                self.left = [(-1, begin, 0, OFFSET_MAX)]
            self.begin = self.begin if self.runs else begin
            if begin >= self.start:
                self._is_built = self.end < 0
                self._filed, self.start = self.end, OFFSET_MAX
            done, behind = first, int(rows["physical"][high - 1]) + 1
            for start, end in [*self.take(first, stop, begin), (stop, stop)]:
                if done < start:
                    self._leave(begin, behind, done, start)
                if start < end:
                    part = rows[low:high]
                    inside = (offsets[low:high] >= start) & (stops[low:high] <= end)
                    yield is_new, part if inside.all() else part[inside]
                done = end

    def take(self, first: int, stop: int, physical: int = -1) -> list[_Range]:
        """Takes in messages with the queue offsets [first, stop), the first of them at the physical offset.
        Returns those that they get, ranges in ascending order.
        """
        runs, counted, done = self.runs, list[_Range](), first
        # putMessagePositionInfo files each 0
        self._filed = first if self._filed < 0 else self._filed + (not first)
        is_behind = first > self._filed
        filed = stop if is_behind else min(max(first, self._filed), stop)
        self._filed = self._filed + stop - first if is_behind else max(self._filed, stop)
        low = bisect_left(runs, first, key=lambda run: run[1])
        high = bisect_right(runs, stop, key=lambda run: run[0])
        for start, end in [*runs[low:high], (stop, stop)]:
            if done < start:
                counted.append((done, min(start, stop)))
            over = max(start, filed), min(end, stop)  # a broker files these after all
            if over[0] < over[1]:
                self._leave(self.begin, physical, *over)
                counted.append(over)
            done = max(done, end)
        if low == high == len(runs) >= _RUNS_MAX:
            low, first = low - 1, runs[-1][0]
        both = [*runs[low:high], (first, stop)]
        runs[low:high] = [(min(both)[0], max(end for _, end in both))]
        return counted

    def _leave(self, low: int, high: int, start: int, stop: int) -> None:
        self.repeated += stop - start
        if len(self.left) < _RUNS_MAX:
            self.left.append((low, high, start, stop))


class Filing(NamedTuple):
    """What a broker that starts files: the messages from the physical offset `start` on, each behind the
    `ends` of its queue: the queue offset, and the physical offset behind the last message. By default nothing
    is known of that.
    """

    start: int = OFFSET_MAX
    ends: Mapping[QueueKey, tuple[int, int]] = MappingProxyType({})

    @staticmethod
    def behind(queues: Collection[QueueBounds], start: int | None = None, *, is_old: bool = False) -> Filing:
        """That behind all queues of a store, after a crash from `start` on. After a stop in order a 4.9
        broker (`is_old`) begins at the end of all queues, another one behind it.
        """
        ends = {
            (queue.topic, queue.queue_id): (queue.max_offset, queue.last_physical_offset + queue.last_size)
            for queue in queues
        }
        simple = (ends[queue.topic, queue.queue_id][1] for queue in queues if queue.kind == "simple")
        last = max(simple, default=-1) + (not is_old)
        return Filing(last if start is None else start, ends)

    def claims(self, queue: QueueKey) -> Claims:
        """Those of one queue, without a message yet."""
        end, stop = self.ends.get(queue, (-1, -1))
        return Claims(start=max(self.start, stop), end=end)


NO_FILING = Filing()


def counted(rows: _Rows, claims: Claims | None = None) -> _Rows:
    """The messages of one queue that count, by their queue offsets, of all those in the order of the log."""
    parts = list[_Rows]()
    for is_new, part in (claims or Claims()).add(rows):
        parts = [part] if is_new else [*parts, part]
    later = np.concatenate(parts[::-1])  # of one offset the last that was given counts
    return later[np.unique(later["offset"], return_index=True)[1]]
