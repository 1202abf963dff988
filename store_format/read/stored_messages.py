"""Reads messages by their place in the commitlog, as stored, so that a service can write copies of them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from store_format.commitlog.log import CommitLog, cuts
from store_format.consumequeue.slices import QueueRange, QueueSlice, read_slice
from store_format.errors import StoreError
from store_format.files.view import read_sizes
from store_format.message.locate import Units, locate
from store_format.message.stored import StoredMessages, stored_messages
from store_format.message.unit_refs import BadUnit, Identity, UnitRefs
from store_format.names import QueueKey

_Ints = NDArray[np.int64]


def read_stored(
    log: CommitLog, physical_offsets: _Ints, sizes: _Ints, identity: Identity | None = None
) -> tuple[StoredMessages, _Ints, list[BadUnit]]:
    """(the messages, the indices of those that are there, the damaged ones).

    A message before the log's first file was deleted by retention: it is in neither list. The messages are in
    the order of `physical_offsets`. A message with another queue than `identity` says is damaged.
    """
    parts: list[Units] = []
    found: list[_Ints] = []
    bad: list[BadUnit] = []
    file_of = log.file_index(physical_offsets)
    edges = np.flatnonzero(np.diff(file_of)) + 1
    for start, stop in zip([0, *edges.tolist()], [*edges.tolist(), len(file_of)], strict=True):
        if start == stop or file_of[start] < 0:
            continue
        file = log.files[int(file_of[start])]
        offsets = physical_offsets[start:stop]
        for low, high in cuts(read_sizes(offsets, offsets + sizes[start:stop])):
            rows = slice(start + low, start + high)
            (window,) = log.unit_windows(file, [(physical_offsets[rows], sizes[rows])])
            refs = UnitRefs(
                file, window.data, window.positions, physical_offsets[rows], sizes[rows],
                None, None if identity is None else identity.select(rows),
            )  # fmt: skip
            units, wrong = locate(refs, verify_crc=True)
            bad += [BadUnit(rows.start + each.index, each.error) for each in wrong]
            good = np.setdiff1d(np.arange(len(refs)), [each.index for each in wrong])
            parts.append(units)
            found.append(good + rows.start)
    places = np.concatenate([np.empty(0, np.int64), *found])
    return stored_messages(parts), places, bad


def read_stored_slice(log: CommitLog, piece: QueueSlice) -> tuple[StoredMessages, _Ints, list[BadUnit]]:
    """`read_stored` for a slice of a queue; the second element has the queue offsets of the messages."""
    offsets, units = read_slice(piece)
    identity = Identity((piece.topic,), None, np.full(len(offsets), piece.queue_id, np.int32), offsets)
    messages, places, bad = read_stored(
        log, units["physical_offset"].astype(np.int64), units["size"].astype(np.int64), identity
    )
    return messages, offsets[places], bad


_GAP_MAX = 1 << 10  # entries of other messages that are read between two wanted ones


def units_at(queue: QueueRange, offsets: _Ints) -> tuple[_Ints, NDArray[np.void]]:
    """(queue offsets, units) of these ascending offsets, as `read_slice`; those that the queue has."""
    parts: list[tuple[_Ints, NDArray[np.void]]] = [
        read_slice(queue.piece(queue.min_offset, queue.min_offset))
    ]
    wanted = offsets[(offsets >= queue.min_offset) & (offsets < queue.max_offset)]
    for run in np.split(wanted, np.flatnonzero(np.diff(wanted) > _GAP_MAX) + 1):
        if len(run):
            found, units = read_slice(queue.piece(int(run[0]), int(run[-1]) + 1))
            kept = np.isin(found, run)
            parts.append((found[kept], units[kept]))
    return np.concatenate([found for found, _ in parts]), np.concatenate([units for _, units in parts])


def read_stored_units(
    log: CommitLog, key: QueueKey, offsets: _Ints, units: NDArray[np.void]
) -> tuple[StoredMessages, _Ints, dict[int, StoreError]]:
    """(the messages of units of a queue, their queue offsets, the errors of the damaged ones by offset).

    A message that retention has deleted is in neither.
    """
    identity = Identity((key[0],), None, np.full(len(offsets), key[1], np.int32), offsets)
    messages, there, bad = read_stored(
        log, units["physical_offset"].astype(np.int64), units["size"].astype(np.int64), identity
    )
    return messages, offsets[there], {int(offsets[each.index]): each.error for each in bad}
