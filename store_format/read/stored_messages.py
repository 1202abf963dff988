"""Reads messages by their place in the commitlog, as stored, so that a service can write copies of them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from store_format.commitlog.log import CommitLog
from store_format.consumequeue.slices import QueueSlice, read_slice
from store_format.message.locate import Units, locate
from store_format.message.stored import StoredMessages, stored_messages
from store_format.message.unit_refs import BadUnit, Identity, UnitRefs

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
        view = log.view(file)
        refs = UnitRefs(
            view.path, view.map(), file.start, physical_offsets[start:stop] - file.start, sizes[start:stop],
            None, None if identity is None else identity.select(np.arange(start, stop)),
        )  # fmt: skip
        units, wrong = locate(refs, verify_crc=True)
        bad += [BadUnit(start + each.index, each.error) for each in wrong]
        good = np.setdiff1d(np.arange(stop - start), [each.index for each in wrong])
        parts.append(units)
        found.append(good + start)
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
