"""Bytes of messages between queue offsets, and the store times at these offsets: for sizes, lag and days.

Consume queue units contain sizes, so measuring reads 20 bytes for each message. All queues without units are
measured in one walk over the commitlog.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from store_format.consumequeue.own_files import OwnFiles
from store_format.consumequeue.slices import QueueSlice
from store_format.consumequeue.units import few_units, pre_blank_mask
from store_format.errors import OffsetOutOfRangeError, StoreNotFoundError
from store_format.layouts import BATCH_CQ_UNIT
from store_format.message.columns import DecodeOptions
from store_format.names import QueueKey
from store_format.read.store import Queue, Store, read_pieces
from store_format.read.tolerance import Tolerance

_COLUMNS = ("topic", "queueId", "queueOffset", "physicalOffset", "storeSize", "storeTimestampMs")
_KNOWN_MAX = 1 << 12  # entries of a queue that are read at once: 80 kB


class FirstMessage(NamedTuple):
    """The queue offset of a message, its store time in ms and its physical offset; None if unknown."""

    offset: int
    time: int | None
    place: int | None


@dataclass(slots=True)
class Stretches:
    """Sizes between the edges of one queue. Edges are queue offsets, ascending, each once.

    `bytes[i]` is the size of the units that begin at edge i or later and before edge i + 1, so `bytes` has
    one item less than `edges`. `times[i]` is the store time in ms of the message at edge i and `places[i]`
    its physical offset; None if there is no message. `cut[i]` is the size of the batch that edge i cuts.
    `behind` has the first message behind an edge at a place without one, which a recovery has given up.
    """

    edges: list[int]
    bytes: list[int] = field(default_factory=list)
    times: list[int | None] = field(default_factory=list)
    places: list[int | None] = field(default_factory=list)
    cut: list[int] = field(default_factory=list)
    behind: dict[int, FirstMessage] = field(default_factory=dict)

    def first_from(self, offset: int) -> FirstMessage | None:
        """The first message from an edge on; None for another offset, or without a message."""
        if offset not in self.edges:
            return None
        at = self.edges.index(offset)
        return self.behind.get(offset, FirstMessage(offset, self.times[at], self.places[at]))

    def bytes_between(self, start: int, stop: int) -> int:
        """Bytes of all units with a message of [start, stop). Both must be edges."""
        first = self.edges.index(start)
        return sum(self.bytes[first : self.edges.index(stop)]) + (self.cut[first] if start < stop else 0)

    def time_at(self, offset: int) -> int | None:
        """The store time in ms at an edge; None for another offset, or without a message."""
        return self.times[self.edges.index(offset)] if offset in self.edges else None


def measure(
    store: Store, queues: Sequence[Queue], edges: Mapping[QueueKey, Sequence[int]]
) -> dict[QueueKey, Stretches]:
    """Measures each queue between its edges; edges outside [min_offset, max_offset] are left out.

    Messages that retention deletes meanwhile count 0 bytes.
    """
    found: dict[QueueKey, Stretches] = {}
    scanned: list[Queue] = []
    filed: list[tuple[Queue, Sequence[int]]] = []
    for queue in queues:
        key = (queue.topic, queue.queue_id)
        wanted = {edge for edge in edges.get(key, ()) if queue.min_offset <= edge <= queue.max_offset}
        found[key] = Stretches(sorted(wanted))
        if queue.scanned is not None:
            scanned.append(queue)
        else:
            filed.append((queue, found[key].edges))
    for entries in QueueEntries.of_all(filed):
        stretches = found[entries.queue.topic, entries.queue.queue_id]
        for edge in stretches.edges:
            time, place, cut = entries.look(edge)
            stretches.times.append(time)
            stretches.places.append(place)
            stretches.cut.append(cut)
            if (time, place) == (None, None) and (first := entries.first_behind(edge)) is not None:
                stretches.behind[edge] = first
        stretches.bytes = [entries.bytes_between(*edges) for edges in pairwise(stretches.edges)]
    if scanned:
        _measure_scanned(store, scanned, found)
    return found


def bytes_at(queue: Queue, offsets: Sequence[int]) -> int:
    """Bytes of the units with messages at these ascending offsets, as far as they exist; a batch counts once.

    Reads the entries from the first to the last offset. 0 for a queue without a consume queue.
    """
    wanted = np.array(offsets, np.int64)
    wanted = wanted[(wanted >= queue.min_offset) & (wanted < queue.max_offset)]
    if queue.scanned is not None or not len(wanted):
        return 0
    total = 0
    for piece in queue.piece(int(wanted[0]), int(wanted[-1]) + 1).parts():
        try:
            found, units = piece.read()
        except (OffsetOutOfRangeError, StoreNotFoundError):
            continue
        sizes = units["size"].astype(np.int64)
        ends = np.append(found[1:], max(piece.stop, int(found[-1]) + 1)) if len(found) else found
        has = np.searchsorted(wanted, ends) > np.searchsorted(wanted, found)
        total += int(sizes[has & (sizes > 0)].sum())
    return total


@dataclass(frozen=True, slots=True)
class QueueEntries:
    """The entries of one queue, for several looks at them. Those of a short queue are `known`: read at once,
    as (queue offsets, units).
    """

    queue: Queue
    known: tuple[NDArray[np.int64], NDArray[np.void]] | None = None

    @staticmethod
    def of(queue: Queue, edges: Sequence[int]) -> QueueEntries:
        """For looks between the ascending queue offsets `edges`, and at each of them."""
        if queue.range.is_batch or queue.range.parts or not edges or edges[-1] - edges[0] > _KNOWN_MAX:
            return QueueEntries(queue)
        with suppress(OffsetOutOfRangeError, StoreNotFoundError):  # then each look finds what is left
            return QueueEntries(queue, queue.piece(edges[0], edges[-1] + 1).read())
        return QueueEntries(queue)

    @staticmethod
    def of_all(looks: Sequence[tuple[Queue, Sequence[int]]]) -> Iterator[QueueEntries]:
        """`of` for each queue and its edges. The entries of short queues are known until the next one."""
        bounds = [queue.range.bounds if _is_plain(queue) else None for queue, _ in looks]
        known = few_units([each for each in bounds if each is not None])
        for (queue, edges), mine in zip(looks, bounds, strict=True):
            units = None if mine is None else next(known)[1]
            if mine is None or units is None or not edges or edges[0] < mine.unit_start:
                yield QueueEntries.of(queue, edges)
                continue
            units = units[edges[0] - mine.unit_start : edges[-1] + 1 - mine.unit_start]
            messages, offsets = ~pre_blank_mask(units), np.arange(edges[0], edges[0] + len(units))
            yield QueueEntries(queue, (offsets[messages], units[messages]))

    def _parts(self, start: int, stop: int) -> Iterator[tuple[int, NDArray[np.int64], NDArray[np.void]]]:
        """(first queue offset, queue offsets, units) of the parts of [start, stop) that can be read."""
        if self.known is not None:
            offsets, units = self.known
            low, high = offsets.searchsorted((start, stop)).tolist()
            yield start, offsets[low:high], units[low:high]
            return
        for piece in self.queue.piece(start, stop).parts():
            with suppress(OffsetOutOfRangeError, StoreNotFoundError):
                yield piece.start, *piece.read()

    def bytes_between(self, start: int, stop: int) -> int:
        """Bytes of the units with messages that begin in [start, stop)."""
        total = 0
        for first, offsets, units in self._parts(start, stop):
            sizes = units["size"].astype(np.int64)
            if self.queue.range.is_batch:  # a batch that begins earlier counts for the previous edge
                sizes = sizes[offsets >= first]
            total += int(sizes[sizes > 0].sum())
        return total

    def look(self, offset: int) -> tuple[int | None, int | None, int]:
        """Store time in ms, physical offset, and cut bytes of the message at an offset.

        The cut bytes are the size of the batch if the message is not the first of a batch, else 0.
        """
        if offset >= self.queue.max_offset:
            return None, None, 0
        for piece in self.queue.piece(offset, offset + 1).by_part() if self.queue.range.parts else ():
            if piece.queue.own is not None:
                return _time_of_own(self.queue, piece, piece.queue.own), None, 0
        parts = self._parts(offset, offset + 1)
        unit = next((units[0] for _, _, units in parts if len(units)), None)
        if unit is None:
            return None, None, 0
        cut = 0
        place = int(unit["physical_offset"])
        if unit.dtype == BATCH_CQ_UNIT:
            time = int(unit["store_timestamp"])
            cut = int(unit["size"]) if int(unit["base_offset"]) < offset else 0
        else:
            time = self.queue.store.time_at(place)
        return (time if time >= 0 else None), place, max(cut, 0)

    def first_behind(self, offset: int) -> FirstMessage | None:
        """The first message behind a place without one."""
        start, step = offset + 1, 1 << 6
        while start < self.queue.max_offset:
            found, _ = self.queue.piece(start, min(start + step, self.queue.max_offset)).read()
            if len(found):
                time, place, _ = look(self.queue, int(found[0]))
                return FirstMessage(int(found[0]), time, place)
            start, step = start + step, step * 2
        return None


def _is_plain(queue: Queue) -> bool:
    """Whether all entries of a queue are those of its files, on a local disk."""
    mine, bounds = queue.range, queue.range.bounds
    is_filed = mine.kind == "simple" and mine.own is None and not mine.parts and not mine.extra
    return (
        is_filed
        and bounds is not None
        and mine.max_offset == bounds.unit_stop
        and not queue.store.opened.is_remote
    )


def _time_of_own(queue: Queue, piece: QueueSlice, own: OwnFiles) -> int | None:
    """Store time in ms of the message of a slice of one offset, which is not in the commitlog."""
    with suppress(OffsetOutOfRangeError, StoreNotFoundError):
        _, units = piece.read()
        if len(units):
            time = own.log(queue.store.files).store_timestamp_at(int(units[0]["physical_offset"]))
            return time if time >= 0 else None
    return None


def look(queue: Queue, offset: int) -> tuple[int | None, int | None, int]:
    """`QueueEntries.look` at one offset."""
    return QueueEntries(queue).look(offset)


def _measure_scanned(store: Store, queues: Sequence[Queue], found: Mapping[QueueKey, Stretches]) -> None:
    for queue in queues:
        stretches = found[queue.topic, queue.queue_id]
        count = len(stretches.edges)
        stretches.bytes = [0] * max(count - 1, 0)
        stretches.times, stretches.places, stretches.cut = [None] * count, [None] * count, [0] * count
    for key, part in walk_queues(queues):
        _add_part(found[key], part)


@dataclass(frozen=True, slots=True)
class QueueMessagesInLog:
    """Messages of one queue that a walk over the commitlog found, in the order of the commitlog.

    `begins` is True for the first message of a batch and for a message outside a batch.
    """

    offsets: NDArray[np.int64]
    places: NDArray[np.int64]
    sizes: NDArray[np.int64]
    times: NDArray[np.int64]
    begins: NDArray[np.bool_]


def walk_queues(queues: Sequence[Queue]) -> Iterator[tuple[QueueKey, QueueMessagesInLog]]:
    """One walk over the commitlog for all queues without a consume queue (`Queue.scanned`)."""
    tolerance = Tolerance("DROPMALFORMED", fail_on_data_loss=False)
    pieces = [(queue, queue.piece()) for queue in queues if queue.scanned is not None]
    for batch in read_pieces(pieces, DecodeOptions(_COLUMNS, verify_crc=False), tolerance):
        yield from _parts_by_queue(batch)


def _parts_by_queue(batch: pa.RecordBatch) -> Iterator[tuple[QueueKey, QueueMessagesInLog]]:
    topics = batch["topic"].dictionary_encode()
    combined = topics.indices.to_numpy().astype(np.int64) << 32 | batch["queueId"].to_numpy().astype(np.int64)
    columns = [
        batch[name].to_numpy().astype(np.int64)
        for name in ("queueOffset", "physicalOffset", "storeSize", "storeTimestampMs")
    ]
    for value in np.unique(combined).tolist():
        rows = np.flatnonzero(combined == value)
        offsets, places, sizes, times = (column[rows] for column in columns)
        begins = np.ones(len(rows), bool)
        begins[1:] = places[1:] != places[:-1]
        yield (
            (topics.dictionary[value >> 32].as_py(), value & 0xFFFFFFFF),
            QueueMessagesInLog(offsets, places, sizes, times, begins),
        )


def _add_part(stretches: Stretches, part: QueueMessagesInLog) -> None:
    stretch = np.searchsorted(np.array(stretches.edges, np.int64), part.offsets, "right") - 1
    stretch = np.where(part.begins, stretch, -1)
    for i in np.unique(stretch[(stretch >= 0) & (stretch < len(stretches.bytes))]).tolist():
        stretches.bytes[i] += int(part.sizes[stretch == i].sum())
    for i, edge in enumerate(stretches.edges):
        at = np.flatnonzero(part.offsets == edge)
        if len(at):
            last = int(at[-1])
            stretches.times[i], stretches.places[i] = int(part.times[last]), int(part.places[last])
            stretches.cut[i] = 0 if part.begins[last] else int(part.sizes[last])
