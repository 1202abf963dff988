"""A queue of a snapshot, and slices of it as plain values that travel to tasks: how slices are cut, and the
units of a slice. Many queues are columns of arrays (`QueueRanges`): of 10,000 queues, objects would take
longer than the reads of their files.

`read/queue_reader.py` reads the messages that the units point at.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple, Self, overload

import numpy as np
from numpy.typing import NDArray

from store_format.consumequeue.database import first_entries_at
from store_format.consumequeue.files import LAYOUTS, QueueBounds, QueueKind, place_in_files
from store_format.consumequeue.own_files import OwnFiles, joined_entries
from store_format.consumequeue.units import RULES, SHORT_QUEUE, FiledQueue, short_bounds
from store_format.layouts import CQ_UNIT, OFFSET_MAX
from store_format.names import QueueKey

CHUNK_ENTRIES = 1 << 18  # entries held at a time: about 10 MB
_SPLIT_WHOLE_MAX = 1 << 16  # to be cut, a slice up to this many entries is read; a longer one is bisected …
_EDGES_BISECTED = 64  # … unless it has many more edges than these


_Ints = NDArray[np.int64]


class Newest(NamedTuple):
    """The newest message of a queue, as the log has it. `stop` is the queue offset after the message, `start`
    that of the first of the messages which the walk has seen: one behind the other, if they are consecutive.

    `tags_code` None: the queue entry does not follow from the message alone (a light queue, a message batch).
    `is_whole` says that the body's CRC is right. `mark` is the CRC32 of the message's first bytes.
    """

    stop: int
    physical_offset: int
    size: int
    tags_code: int | None
    is_whole: bool
    start: int
    mark: int


class QueueRange(NamedTuple):
    """One queue in a snapshot: queue offsets [min_offset, max_offset), and where its units are.

    `bounds` describes the queue's files; None without files. After a crash `extra` holds the units (as
    stored) that a broker's recovery would add behind the files, all at or behind offset `extra_start`;
    `extra_offsets` are their queue offsets (int64).

    A queue whose messages are not only in the commitlog has `parts`, one behind the other, which are read in
    its place; `bounds` are those of its consume queue. A part with `own` files is read from these.
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
    parts: tuple[QueueRange, ...] = ()
    own: OwnFiles | None = None

    def grown(self, newest: Newest) -> QueueRange:
        """Returns the queue, which has files and no `extra`, up to its newest message. `_replace` would take
        four times as long.
        """
        assert self.bounds is not None
        stop, last_offset, last_size, *_ = newest
        topic, number, path, kind, size, first_file, _, log, start, _, low, _, first, _, _, *rest = (
            self.bounds
        )
        position = (stop - 1) * CQ_UNIT.itemsize
        last_file = position - position % size
        edges = (start, stop, low, stop, first, last_offset, last_size, *rest)
        grown = QueueBounds(topic, number, path, kind, size, first_file, last_file, log, *edges)
        return QueueRange(topic, number, self.min_offset, stop, grown)

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
        """How many queue offsets behind the files have no unit: their messages are damaged or given up. In a
        part with files of its own, how many queue offsets have no entry.
        """
        if self.parts:
            return self.max_offset - self.min_offset - sum(part.entries for part in self.parts)
        if self.own is not None:
            return self.max_offset - self.min_offset - self.entries
        if self.is_batch or not self.extra:
            return 0
        behind = self.min_offset if self.bounds is None else min(self.extra_start, self.bounds.max_offset)
        return self.max_offset - max(self.min_offset, behind) - len(self.extra) // CQ_UNIT.itemsize

    @property
    def entries(self) -> int:
        """How many entries a simple queue, or a part of one, has; pre-blank ones count."""
        if self.own is not None:
            return 0 if self.bounds is None else self.bounds.unit_stop - self.bounds.unit_start
        if self.bounds is None:
            return len(self.extra) // CQ_UNIT.itemsize
        return self.max_offset - self.min_offset - self.gaps

    @property
    def served_from(self) -> int:
        """The least queue offset at which a consumer can begin without a loss."""
        first = self.parts[0].own if self.parts else None
        return self.min_offset if first is None else first.served_from(self.min_offset)

    @property
    def kept_stop(self) -> int:
        """The queue offset before which other files than the commitlog keep the messages."""
        own = self.parts[0].own if self.parts else None
        return 0 if own is None else own.stop

    @property
    def in_log(self) -> QueueRange:
        """The queue with parts as its consume queue has it."""
        bounds = self.bounds
        low, high = (0, 0) if bounds is None else (bounds.min_offset, bounds.max_offset)
        return self._replace(parts=(), min_offset=low, max_offset=high)

    def until(self, stop: int) -> QueueRange:
        """A part with files of its own, of which only the queue offsets before `stop` are read."""
        assert self.bounds is not None
        bounds = self.bounds._replace(max_offset=stop, unit_stop=min(stop, self.bounds.unit_stop))
        return self._replace(max_offset=stop, bounds=bounds)

    @property
    def is_derived(self) -> bool:
        """Whether each entry follows from one message of the commitlog, so that it can be made again."""
        return not self.is_batch and self.own is None

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
        """(queue offsets, units) of the slice without pre-blank units: from files, then from `extra`.

        The physical offsets of a part with files of its own are those in its own log (`by_part`).
        """
        queue = self.queue
        if queue.parts:
            return joined_entries(piece.read() for piece in self.by_part())
        if queue.own is not None:
            return queue.own.read(self.start, self.stop)
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

    def by_part(self) -> list[QueueSlice]:
        """The slice as slices of the parts of its queue, each with the messages of one log."""
        if not self.queue.parts:
            return [self]
        cuts = (
            QueueSlice(part, max(self.start, part.min_offset), min(self.stop, part.max_offset))
            for part in self.queue.parts
        )
        return [piece for piece in cuts if piece.start < piece.stop]

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
        if not self.queue.is_derived and bounds is not None:
            entries = min(entries, bounds.unit_stop - bounds.unit_start + len(self.queue.extra_offsets))
        if entries <= _SPLIT_WHOLE_MAX * max(len(edges) // _EDGES_BISECTED, 1):
            found = _cuts_read(self, np.array(edges, np.int64))
        elif bounds is not None and bounds.kind == "database" and self.stop <= self.queue.extra_start:
            found = np.clip(first_entries_at(bounds, self.stop, edges), self.start, self.stop)
        else:
            found = np.array([_first_offset_at(self, edge) for edge in edges], np.int64)
        return np.maximum.accumulate(np.concatenate(([self.start], found, [self.stop])))

    def parts(self, step: int | None = None) -> Iterator[QueueSlice]:
        """The slice in parts of at most `step` entries (None: CHUNK_ENTRIES).

        In a batch queue and in a compacted one the parts follow the number of entries: a few can cover a huge
        range of offsets.
        """
        if self.queue.parts:
            for piece in self.by_part():
                yield from piece.parts(step)
            return
        queue, step = self.queue, CHUNK_ENTRIES if step is None else step
        if self.stop - self.start <= step and self.stop <= queue.extra_start and queue.bounds is not None:
            yield self
            return
        if queue.bounds is not None:
            stop = min(self.stop, queue.extra_start)
            if not queue.is_derived:
                chunks = (queue.bounds.unit_stop - queue.bounds.unit_start) // step + 1
                step = max(step, (stop - self.start) // chunks + 1)
            for start in range(self.start, stop, step):
                yield self._replace(start=start, stop=min(start + step, stop))
        if self.stop > queue.extra_start:
            yield self._replace(start=max(self.start, queue.extra_start))

    def place_of(self, queue_offset: int) -> tuple[str, int]:
        """(file, byte) of an entry; (directory, 0) in a batch queue, whose units have no place by offset, and
        in a database.
        """
        bounds = self.queue.bounds
        if self.queue.own is not None:
            return self.queue.own.place_of(queue_offset)
        if bounds is None or bounds.kind != "simple" or queue_offset >= self.queue.extra_start:
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


# ---- many queues -------------------------------------------------------------------------------------------


class QueueRanges(Mapping[QueueKey, QueueRange]):
    """Queues in the order of a look. `columns` has a row (`SHORT_QUEUE`) for each: all that is known of a
    queue of `short_queues`, and of the queues `others`, by the number of their row, what `_row_of` says.
    """

    __slots__ = ("_numbers", "columns", "commit_log_min", "directories", "keys_in_order", "others")

    def __init__(
        self,
        keys: Sequence[QueueKey],
        directories: Sequence[str],
        columns: NDArray[np.void],
        commit_log_min: int,
        others: dict[int, QueueRange],
    ) -> None:
        self.keys_in_order, self.directories, self.columns = keys, directories, columns
        self.commit_log_min, self.others = commit_log_min, others
        self._numbers: dict[QueueKey, int] | None = None

    @staticmethod
    def of(queues: Mapping[QueueKey, QueueRange]) -> QueueRanges:
        """The table of any queues."""
        if isinstance(queues, QueueRanges):
            return queues
        columns = np.array([_row_of(queue) for queue in queues.values()], SHORT_QUEUE)
        return QueueRanges([*queues], [""] * len(queues), columns, 0, dict(enumerate(queues.values())))

    @staticmethod
    def of_look(
        filed: Sequence[FiledQueue],
        short: NDArray[np.int64],
        commit_log_min: int,
        others: dict[int, QueueRange],
    ) -> QueueRanges:
        """The table of those of the queues that `short` has, as `short_queues` returns them, and `others`, by
        their places. Of two queues with one name, the last one counts.
        """
        columns = np.zeros(len(filed), SHORT_QUEUE)
        columns[short[:, 0]] = short[:, 1:].copy().view(SHORT_QUEUE)[:, 0]
        for number, queue in others.items():
            columns[number] = _row_of(queue)
        keys = [(topic, queue_id) for topic, queue_id, _, _ in filed]
        table = QueueRanges(keys, [each.directory for each in filed], columns, commit_log_min, others)
        if len(short) + len(others) < len(filed):
            table = table.rows(np.sort(np.concatenate((short[:, 0], np.array([*others], np.int64)))))
        if len(table.numbers) < len(table):
            table = table.rows(np.array([*table.numbers.values()], np.int64))
        return table

    @property
    def numbers(self) -> dict[QueueKey, int]:
        """The number of the row of each queue."""
        if self._numbers is None:
            self._numbers = dict(zip(self.keys_in_order, range(len(self.keys_in_order)), strict=True))
        return self._numbers

    def rows(self, numbers: NDArray[np.int64]) -> QueueRanges:
        """The queues of these rows."""
        every, others = numbers.tolist(), self.others
        return QueueRanges(
            [self.keys_in_order[i] for i in every],
            [self.directories[i] for i in every],
            self.columns[numbers],
            self.commit_log_min,
            {at: others[i] for at, i in enumerate(every) if i in others} if others else {},
        )

    def without(self, keys: Collection[QueueKey]) -> QueueRanges:
        """The queues without these."""
        gone = [self.numbers[key] for key in keys if key in self.numbers]
        return self.rows(np.delete(np.arange(len(self)), gone)) if gone else self

    def changed(self, queues: Mapping[QueueKey, QueueRange]) -> QueueRanges:
        """The queues, some of which are other ones now."""
        if not queues:
            return self
        columns, others = self.columns.copy(), dict(self.others)
        for key, queue in queues.items():
            number = self.numbers[key]
            columns[number], others[number] = _row_of(queue), queue
        return QueueRanges(self.keys_in_order, self.directories, columns, self.commit_log_min, others)

    def queue(self, number: int) -> QueueRange:
        """The queue of a row."""
        found = self.others.get(number)
        if found is not None:
            return found
        filed = FiledQueue(*self.keys_in_order[number], self.directories[number], "simple")
        bounds = short_bounds(filed, self.columns[number].item(), self.commit_log_min)
        return QueueRange(*filed.key, bounds.min_offset, bounds.max_offset, bounds)

    def __getitem__(self, key: QueueKey) -> QueueRange:
        return self.queue(self.numbers[key])

    def __iter__(self) -> Iterator[QueueKey]:
        return iter(self.keys_in_order)

    def __len__(self) -> int:
        return len(self.keys_in_order)


class WholeSlices(Sequence[QueueSlice]):
    """The slices of queues of a table that are read from their first to their last offset."""

    __slots__ = ("queues",)

    def __init__(self, queues: QueueRanges) -> None:
        self.queues = queues

    @overload
    def __getitem__(self, number: int) -> QueueSlice: ...

    @overload
    def __getitem__(self, number: slice) -> Self: ...

    def __getitem__(self, number: int | slice) -> QueueSlice | Self:
        if isinstance(number, slice):
            return type(self)(self.queues.rows(np.arange(len(self))[number]))
        queue = self.queues.queue(range(len(self))[number])
        return QueueSlice(queue, queue.min_offset, queue.max_offset)

    def __len__(self) -> int:
        return len(self.queues)


def _row_of(queue: QueueRange) -> tuple[int, ...]:
    """The row of a queue: the length and the start of its files, 0 without files; the offsets; the physical
    offset of the first message and of the last one, -1 without it; and the size of the last message if it is
    that of the newest entry of a simple queue's files, else 0.
    """
    bounds = queue.bounds
    if bounds is None:
        return 0, 0, queue.min_offset, queue.max_offset, -1, -1, 0
    is_newest = bounds.kind == "simple" and bounds.max_offset == queue.max_offset
    places = bounds.first_physical_offset, bounds.last_physical_offset, bounds.last_size * is_newest
    return bounds.file_size, bounds.first_file, queue.min_offset, queue.max_offset, *places
