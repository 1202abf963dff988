"""How many bytes of messages lie between queue offsets, and when the messages there were stored: for sizes, lag and days.

Consume queue units know sizes, so a queue's bytes cost 20 bytes of reading a message; queues without units are served, all
of them, by one walk over the log.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from store_format.columns import Projection
from store_format.errors import OffsetOutOfRangeError, StoreNotFoundError
from store_format.layouts import BATCH_CQ_UNIT
from store_format.log_reading import LogReader
from store_format.reading import Tolerance, cut_slice, read_slice

if TYPE_CHECKING:
    from store_format.store import MessageStore, Queue

__all__ = ["Stretches", "measure"]

_COLUMNS = ("topic", "queueId", "queueOffset", "physicalOffset", "storeSize", "storeTimestampMs")

_Key = tuple[str, int]
_Ints = NDArray[np.int64]


@dataclass(slots=True)
class Stretches:
    """What lies between the edges of one queue, which are queue offsets, ascending, each once.

    `bytes[i]` are those of the units that begin from edge i up to edge i + 1, so there is one less than edges. `times[i]` is
    the store time in ms of the message at edge i; None where there is no message. `cut[i]` are the bytes of a batch that edge i cuts.
    """

    edges: list[int]
    bytes: list[int] = field(default_factory=list)
    times: list[int | None] = field(default_factory=list)
    cut: list[int] = field(default_factory=list)

    def bytes_between(self, start: int, stop: int) -> int:
        """Of all units that hold any of the messages [start, stop), both edges."""
        first = self.edges.index(start)
        return sum(self.bytes[first : self.edges.index(stop)]) + (self.cut[first] if start < stop else 0)

    def time_at(self, offset: int) -> int | None:
        return self.times[self.edges.index(offset)] if offset in self.edges else None


def measure(store: MessageStore, queues: Sequence[Queue], edges: Mapping[_Key, Sequence[int]]) -> dict[_Key, Stretches]:
    """For each queue what lies between its edges, as far as they are inside of [min_offset, max_offset].

    What retention deletes meanwhile counts nothing.
    """
    found: dict[_Key, Stretches] = {}
    scanned: list[Queue] = []
    for queue in queues:
        key = (queue.topic, queue.queue_id)
        wanted = {edge for edge in edges.get(key, ()) if queue.min_offset <= edge <= queue.max_offset}
        stretches = Stretches(sorted(wanted))
        found[key] = stretches
        if queue.scanned is not None:
            scanned.append(queue)
            continue
        looked_at = [_look(store, queue, edge) for edge in stretches.edges]
        stretches.times, stretches.cut = [time for time, _ in looked_at], [cut for _, cut in looked_at]
        stretches.bytes = [_bytes_of(queue, i, stretches.edges) for i in range(len(stretches.edges) - 1)]
    if scanned:
        _walk(store, scanned, found)
    return found


def _bytes_of(queue: Queue, i: int, edges: Sequence[int]) -> int:
    total = 0
    for piece in cut_slice(queue.piece(edges[i], edges[i + 1])):
        try:
            offsets, units = read_slice(piece)
        except (OffsetOutOfRangeError, StoreNotFoundError):
            continue
        sizes = units["size"].astype(np.int64)
        if piece.is_batch:  # one that began before is counted there
            sizes = sizes[offsets >= piece.start]
        total += int(sizes[sizes > 0].sum())
    return total


def _look(store: MessageStore, queue: Queue, offset: int) -> tuple[int | None, int]:
    """The store time of the message at an offset, and the bytes of the batch that it is in the midst of."""
    if offset >= queue.max_offset:
        return None, 0
    try:
        _, units = read_slice(queue.piece(offset, offset + 1))
    except (OffsetOutOfRangeError, StoreNotFoundError):
        return None, 0
    if not len(units):
        return None, 0
    unit, cut = units[0], 0
    if units.dtype == BATCH_CQ_UNIT:
        time = int(unit["store_timestamp"])
        cut = int(unit["size"]) if int(unit["base_offset"]) < offset else 0
    else:
        time = store.log.store_timestamp_at(int(unit["physical_offset"]))
    return (time if time >= 0 else None), max(cut, 0)


def _walk(store: MessageStore, queues: Sequence[Queue], found: Mapping[_Key, Stretches]) -> None:
    """One pass over the log for all queues that no units describe."""
    by_key = {(queue.topic, queue.queue_id): queue for queue in queues}
    for key in by_key:
        found[key].bytes = [0] * max(len(found[key].edges) - 1, 0)
        found[key].times = [None] * len(found[key].edges)
        found[key].cut = [0] * len(found[key].edges)
    reader = store.reader(Projection(_COLUMNS, verify_crc=False), Tolerance("DROPMALFORMED", fail_on_data_loss=False))
    log_queues = {key: queue.scanned for key, queue in by_key.items() if queue.scanned is not None}
    stop = max(queue.physical_stop for queue in log_queues.values())
    for batch in LogReader(reader, [queue.piece() for queue in queues], log_queues).read(store.log.min_offset, stop):
        for key, rows in _by_queue(batch).items():
            if key in by_key:
                _add(found[key], *rows)


def _by_queue(batch: pa.RecordBatch) -> dict[_Key, tuple[_Ints, _Ints, _Ints, NDArray[np.bool_]]]:
    """(queue offsets, sizes, store times, whether a unit begins there) of each queue; messages of an inner batch share a unit."""
    topics = batch["topic"].dictionary_encode()
    combined = topics.indices.to_numpy().astype(np.int64) << 32 | batch["queueId"].to_numpy().astype(np.int64)
    offsets, places = batch["queueOffset"].to_numpy(), batch["physicalOffset"].to_numpy()
    sizes, times = batch["storeSize"].to_numpy().astype(np.int64), batch["storeTimestampMs"].to_numpy()
    found = {}
    for value in np.unique(combined).tolist():
        rows = np.flatnonzero(combined == value)
        begins = np.ones(len(rows), bool)
        begins[1:] = places[rows][1:] != places[rows][:-1]
        found[topics.dictionary[value >> 32].as_py(), value & 0xFFFFFFFF] = (offsets[rows], sizes[rows], times[rows], begins)
    return found


def _add(stretches: Stretches, offsets: _Ints, sizes: _Ints, times: _Ints, begins: NDArray[np.bool_]) -> None:
    place = np.searchsorted(np.array(stretches.edges, np.int64), offsets, "right") - 1
    place = np.where(begins, place, -1)
    for i in np.unique(place[(place >= 0) & (place < len(stretches.bytes))]).tolist():
        stretches.bytes[i] += int(sizes[place == i].sum())
    for i, edge in enumerate(stretches.edges):
        at = np.flatnonzero(offsets == edge)
        if len(at):
            last = int(at[-1])
            stretches.times[i] = int(times[last])
            stretches.cut[i] = 0 if begins[last] else int(sizes[last])
