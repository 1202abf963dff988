"""A queue of a snapshot, and slices of it as plain values that travel to tasks: how slices are cut, and the
units of a slice.

`read/queue_reader.py` reads the messages that the units point at.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from store_format.consumequeue.files import LAYOUTS, QueueBounds, QueueKind, place_in_files
from store_format.consumequeue.units import RULES
from store_format.layouts import CQ_UNIT, OFFSET_MAX

CHUNK_ENTRIES = 1 << 18  # entries held at a time: about 10 MB
_SPLIT_WHOLE_MAX = 1 << 16  # to be cut, a slice up to this many entries is read; a longer one is bisected …
_EDGES_BISECTED = 64  # … unless it has many more edges than these


_Ints = NDArray[np.int64]


class QueueRange(NamedTuple):
    """One queue in a snapshot: queue offsets [min_offset, max_offset), and where its units are.

    `bounds` describes the queue's files; None without files. After a crash `extra` holds the units (as
    stored) that a broker's recovery would add behind the files, all at or behind offset `extra_start`;
    `extra_offsets` are their queue offsets (int64).
    """

    topic: str
    queue_id: int
    min_offset: int
    max_offset: int
    bounds: QueueBounds | None
    extra_start: int = OFFSET_MAX
    extra: bytes = b""
    extra_offsets: bytes = b""
    kind: QueueKind = "simple"

    @property
    def is_batch(self) -> bool:
        """Whether a unit covers several queue offsets."""
        return self.kind == "batch"

    @property
    def extra_units(self) -> NDArray[np.void]:
        """The units in `extra`."""
        return np.frombuffer(self.extra, LAYOUTS[self.kind])

    @property
    def gaps(self) -> int:
        """How many queue offsets behind the files have no unit: their messages are damaged or given up."""
        if self.is_batch or not self.extra:
            return 0
        behind = self.min_offset if self.bounds is None else min(self.extra_start, self.bounds.max_offset)
        return self.max_offset - max(self.min_offset, behind) - len(self.extra) // CQ_UNIT.itemsize

    @property
    def readable_offset(self) -> int:
        """The first queue offset whose unit can be read, also if it is expired."""
        if self.bounds is None or self.is_batch:
            return self.min_offset
        return self.bounds.first_file // CQ_UNIT.itemsize

    def place(self, offset: int) -> tuple[int, int]:
        """(physical offset, size) in the entry of a queue offset; (-1, 0) without one."""
        _, units = self.piece(offset, offset + 1).read()
        return (int(units[0]["physical_offset"]), int(units[0]["size"])) if len(units) else (-1, 0)

    def piece(self, start: int, stop: int) -> QueueSlice:
        """Queue offsets [start, stop) of this queue."""
        return QueueSlice(self, start, stop)


class QueueSlice(NamedTuple):
    """Queue offsets [start, stop) of one queue, in plain values that travel to a task."""

    queue: QueueRange
    start: int
    stop: int

    @property
    def topic(self) -> str:
        return self.queue.topic

    @property
    def queue_id(self) -> int:
        return self.queue.queue_id

    def read(self) -> tuple[_Ints, NDArray[np.void]]:
        """(queue offsets, units) of the slice without pre-blank units: from files, then from `extra`."""
        queue = self.queue
        stop = min(self.stop, queue.extra_start)
        if queue.bounds is not None and self.start < stop:
            offsets, units = RULES[queue.kind].read(queue.bounds, self.start, stop)
        else:
            offsets, units = np.empty(0, np.int64), np.empty(0, LAYOUTS[queue.kind])
        if self.stop > queue.extra_start:
            extra = queue.extra_units
            extra_offsets = np.frombuffer(queue.extra_offsets, np.int64)
            ends = extra_offsets + (extra["batch_size"] if queue.is_batch else 1)
            mine = (extra_offsets < self.stop) & (ends > self.start)
            offsets, units = (
                np.concatenate((offsets, extra_offsets[mine])),
                np.concatenate((units, extra[mine])),
            )
        return offsets, units

    def split_at(self, edges: Sequence[int]) -> list[QueueSlice]:
        """Cuts the slice where its messages pass the ascending physical offsets `edges`.

        Parts may be empty. They adjoin, so no message is lost or doubled even if entries are not in log
        order.
        """
        return [self._replace(start=low, stop=high) for low, high in pairwise(self.cuts_at(edges).tolist())]

    def cuts_at(self, edges: Sequence[int]) -> _Ints:
        """The queue offsets at which `split_at` cuts, with the start and the stop of the slice; ascending."""
        entries = self.stop - self.start
        # an entry covers several offsets, and a damaged one any number
        bounds = self.queue.bounds
        if self.queue.is_batch and bounds is not None:
            entries = min(entries, bounds.unit_stop - bounds.unit_start + len(self.queue.extra_offsets))
        if entries <= _SPLIT_WHOLE_MAX * max(len(edges) // _EDGES_BISECTED, 1):
            found = _cuts_read(self, np.array(edges, np.int64))
        else:
            found = np.array([_first_offset_at(self, edge) for edge in edges], np.int64)
        return np.maximum.accumulate(np.concatenate(([self.start], found, [self.stop])))

    def parts(self, step: int | None = None) -> Iterator[QueueSlice]:
        """The slice in parts of at most `step` entries (None: CHUNK_ENTRIES).

        In a batch queue the parts follow the number of entries: damaged units can cover a huge range of
        offsets.
        """
        queue, step = self.queue, CHUNK_ENTRIES if step is None else step
        if self.stop - self.start <= step and self.stop <= queue.extra_start and queue.bounds is not None:
            yield self
            return
        if queue.bounds is not None:
            stop = min(self.stop, queue.extra_start)
            if queue.is_batch:
                chunks = (queue.bounds.unit_stop - queue.bounds.unit_start) // step + 1
                step = max(step, (stop - self.start) // chunks + 1)
            for start in range(self.start, stop, step):
                yield self._replace(start=start, stop=min(start + step, stop))
        if self.stop > queue.extra_start:
            yield self._replace(start=max(self.start, queue.extra_start))

    def place_of(self, queue_offset: int) -> tuple[str, int]:
        """(file, byte) of an entry; (directory, 0) in a batch queue, whose units have no place by offset."""
        bounds = self.queue.bounds
        if bounds is None or self.queue.is_batch or queue_offset >= self.queue.extra_start:
            return f"{self.topic}-{self.queue_id}" if bounds is None else bounds.directory, 0
        return place_in_files(bounds.directory, bounds.file_size, queue_offset * CQ_UNIT.itemsize)


def _cuts_read(piece: QueueSlice, edges: _Ints) -> _Ints:
    """The cuts, by reading all entries, a chunk at a time."""
    cuts = np.full(len(edges), piece.stop, np.int64)
    done = 0
    for part in piece.parts():
        offsets, units = part.read()
        places = np.maximum.accumulate(
            np.searchsorted(units["physical_offset"].astype(np.int64), edges[done:])
        )
        here = int(np.count_nonzero(places < len(units)))
        cuts[done : done + here] = np.maximum(offsets[places[:here]], piece.start)
        done += here
    return cuts


def _first_offset_at(piece: QueueSlice, physical_offset: int) -> int:
    """The first queue offset whose message is at or behind `physical_offset`, by bisection."""
    low, high = piece.start, piece.stop
    while low < high:
        middle = (low + high) // 2
        offsets, units = piece._replace(start=middle, stop=middle + 1).read()
        if not len(units) or int(units["physical_offset"][0]) < physical_offset:
            low = middle + 1
        else:
            high = int(offsets[0]) if low <= int(offsets[0]) <= middle else middle
    return low
