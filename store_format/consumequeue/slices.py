"""Ranges of queues as plain values that travel to tasks: how they are cut, and the units they stand for.

What reads the messages that the units lead to is in `reading.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from store_format.consumequeue.batch import read_batch_units
from store_format.consumequeue.files import QueueBounds
from store_format.consumequeue.plain_value import PlainValue
from store_format.consumequeue.simple import pre_blank_mask, read_units
from store_format.files.read import offset_file_name
from store_format.layouts import BATCH_CQ_UNIT, CQ_UNIT

__all__ = ["CHUNK_ENTRIES", "QueueSlice", "cut_slice", "cuts_at", "place_of_entry", "read_slice", "split_at"]

CHUNK_ENTRIES = 1 << 18  # entries held at a time: about 10 MB
_SPLIT_WHOLE_MAX = 1 << 16  # a slice up to this length is read to be cut; a longer one is bisected …
_EDGES_BISECTED = 64  # … at so many places, and read where there are many more

_Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class QueueSlice(PlainValue):
    """Queue offsets [start, stop) of one queue, in plain values that travel to a task.

    `bounds` says where the queue's files are; `extra` holds units (as stored) that the files lack, all behind
    offset `extra_start`: those a broker's recovery would add after a crash. `extra_offsets` are their queue
    offsets (int64).
    """

    topic: str
    queue_id: int
    start: int
    stop: int
    bounds: QueueBounds | None
    extra_start: int = 2**63 - 1
    extra: bytes = b""
    extra_offsets: bytes = b""
    is_batch: bool = False  # an entry covers several queue offsets


def split_at(piece: QueueSlice, edges: Sequence[int]) -> list[QueueSlice]:
    """A slice cut where its messages pass the physical offsets `edges` (ascending): one part more than edges,
    some perhaps empty.

    The parts adjoin, so nothing is lost or doubled even where entries are not in the order of the log.
    """
    cuts = cuts_at(piece, edges).tolist()
    return [replace(piece, start=low, stop=high) for low, high in pairwise(cuts)]


def cuts_at(piece: QueueSlice, edges: Sequence[int]) -> _Ints:
    """The queue offsets between which `split_at` has its parts, the slice's own first and last: ascending."""
    entries = piece.stop - piece.start
    # an entry covers several offsets, and a hostile one any number
    if piece.is_batch and piece.bounds is not None:
        entries = min(entries, piece.bounds.unit_stop - piece.bounds.unit_start + len(piece.extra_offsets))
    if entries <= _SPLIT_WHOLE_MAX * max(len(edges) // _EDGES_BISECTED, 1):
        found = _cuts_read(piece, np.array(edges, np.int64))
    else:
        found = np.array([_first_offset_at(piece, edge) for edge in edges], np.int64)
    return np.maximum.accumulate(np.concatenate(([piece.start], found, [piece.stop])))


def _cuts_read(piece: QueueSlice, edges: _Ints) -> _Ints:
    """By reading all entries, some at a time."""
    cuts = np.full(len(edges), piece.stop, np.int64)
    done = 0
    for part in cut_slice(piece):
        offsets, units = read_slice(part)
        places = np.maximum.accumulate(
            np.searchsorted(units["physical_offset"].astype(np.int64), edges[done:])
        )
        here = int(np.count_nonzero(places < len(units)))
        cuts[done : done + here] = np.maximum(offsets[places[:here]], piece.start)
        done += here
    return cuts


def _first_offset_at(piece: QueueSlice, physical_offset: int) -> int:
    """The first queue offset of the slice whose message is at or behind `physical_offset`, by bisection."""
    low, high = piece.start, piece.stop
    while low < high:
        middle = (low + high) // 2
        offsets, units = read_slice(replace(piece, start=middle, stop=middle + 1))
        if not len(units) or int(units["physical_offset"][0]) < physical_offset:
            low = middle + 1
        else:
            high = int(offsets[0]) if low <= int(offsets[0]) <= middle else middle
    return low


def cut_slice(whole: QueueSlice) -> Iterator[QueueSlice]:
    """A slice in pieces of at most a chunk of entries. Steps follow entries, not offsets, which hostile units
    can make huge.
    """
    if (
        whole.stop - whole.start <= CHUNK_ENTRIES
        and whole.stop <= whole.extra_start
        and whole.bounds is not None
    ):
        yield whole
        return
    stop = min(whole.stop, whole.extra_start)
    step = CHUNK_ENTRIES
    if whole.is_batch and whole.bounds is not None:
        chunks = (whole.bounds.unit_stop - whole.bounds.unit_start) // CHUNK_ENTRIES + 1
        step = max(step, (stop - whole.start) // chunks + 1)
    if whole.bounds is not None:
        for start in range(whole.start, stop, step):
            yield replace(whole, start=start, stop=min(start + step, stop))
    if whole.stop > whole.extra_start:
        yield replace(whole, start=max(whole.start, whole.extra_start))


def read_slice(piece: QueueSlice) -> tuple[_Ints, NDArray[np.void]]:
    """(queue offsets, units) of the entries of a slice that stand for messages: from files first, then what
    they lack.
    """
    stop = min(piece.stop, piece.extra_start)
    read, of_units = (read_batch_units, _batch_entries) if piece.is_batch else (read_units, _simple_entries)
    if piece.bounds is not None and piece.start < stop:
        offsets, units = of_units(piece, read(piece.bounds, piece.start, stop))
    else:
        offsets, units = np.empty(0, np.int64), np.empty(0, BATCH_CQ_UNIT if piece.is_batch else CQ_UNIT)
    if piece.stop > piece.extra_start:
        extra, extra_offsets = (
            np.frombuffer(piece.extra, units.dtype),
            np.frombuffer(piece.extra_offsets, np.int64),
        )
        ends = extra_offsets + (extra["batch_size"] if piece.is_batch else 1)
        mine = (extra_offsets < piece.stop) & (ends > piece.start)
        offsets, units = np.concatenate((offsets, extra_offsets[mine])), np.concatenate((units, extra[mine]))
    return offsets, units


def _simple_entries(piece: QueueSlice, units: NDArray[np.void]) -> tuple[_Ints, NDArray[np.void]]:
    offsets = np.arange(piece.start, piece.start + len(units), dtype=np.int64)
    # invalid ones stay, to be reported: the queue does not end where they are
    messages = ~pre_blank_mask(units)
    return (offsets, units) if messages.all() else (offsets[messages], units[messages])


def _batch_entries(piece: QueueSlice, units: NDArray[np.void]) -> tuple[_Ints, NDArray[np.void]]:
    return units["base_offset"].astype(np.int64), units


def place_of_entry(piece: QueueSlice, queue_offset: int) -> tuple[str, int]:
    """(file, byte) of a queue unit; of a batch queue, where units are not found by their offset, the
    directory.
    """
    bounds = piece.bounds
    if bounds is None or piece.is_batch or queue_offset >= piece.extra_start:
        return f"{piece.topic}-{piece.queue_id}" if bounds is None else bounds.directory, 0
    position = queue_offset * CQ_UNIT.itemsize
    within = position % bounds.file_size
    return f"{bounds.directory}/{offset_file_name(position - within)}", within
