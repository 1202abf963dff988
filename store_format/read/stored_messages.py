"""Reads messages by their place, as stored, so that a service can write copies of them.

A place is a physical offset and a size, an entry of a consume queue, or what somebody names: topic, queue id
and queue offset, or a physical offset.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from store_format.commitlog.log import CommitLog, cuts
from store_format.consumequeue.slices import QueueRange, QueueSlice
from store_format.errors import OffsetOutOfRangeError, StoreError, StoreNotFoundError, UnsupportedFormatError
from store_format.files.paths import StoreFile
from store_format.files.view import read_sizes
from store_format.message.encode import StoredMessages, stored_messages
from store_format.message.locate import BadUnit, Identity, UnitRefs, Units, locate
from store_format.names import QueueKey
from store_format.read.store import Queue, Store
from store_format.survey.entry_proofs import LogEntries

_GAP_MAX = 1 << 10  # entries of other messages that are read between two wanted ones
_CHUNK_MESSAGES = 10_000
_CHUNK_BYTES = 32 << 20
_LENGTH_SIZE = 4  # a message unit begins with its size

# (commitlog file, bytes from the unit's first); b"" or too few bytes where the file ends earlier
UnitBytes = tuple[StoreFile, bytes]
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
        for low, high in cuts(read_sizes(offsets, sizes[start:stop])):
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
    return stored_messages(parts), np.concatenate([np.empty(0, np.int64), *found]), bad


def read_units(log: CommitLog, places: Sequence[tuple[int, int]]) -> list[UnitBytes | None]:
    """The bytes of the units at (physical offset, size), ascending; None for a unit whose file is not there.

    Neighbours are read together. Nothing is checked. Of a long unit that stores another size, only the head
    is sure to be there.
    """
    found: list[UnitBytes | None] = []
    for file, group in groupby(places, lambda place: log.file_at(place[0])):
        mine = list(group)
        found += [None] * len(mine) if file is None else _in_file(log, file, mine)
    return found


def _in_file(log: CommitLog, file: StoreFile, places: list[tuple[int, int]]) -> Sequence[UnitBytes | None]:
    offsets, sizes = np.array(places, np.int64).T
    try:
        (window,) = log.unit_windows(file, [(offsets, sizes)])
    except StoreNotFoundError:
        return [None] * len(places)
    ends = window.positions + np.maximum(sizes, 0)
    return [
        (file, window.data[start:end].tobytes())
        for start, end in zip(window.positions.tolist(), ends.tolist(), strict=True)
    ]


# ---- entries of a queue ------------------------------------------------------------------------------------


def read_stored_slice(
    log: CommitLog, piece: QueueSlice
) -> tuple[StoredMessages, _Ints, dict[int, StoreError]]:
    """`read_stored_units` for all units of a slice of a queue."""
    return read_stored_units(log, (piece.topic, piece.queue_id), *LogEntries(log).read(piece))


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


def units_at(queue: QueueRange, offsets: _Ints) -> tuple[_Ints, NDArray[np.void]]:
    """(queue offsets, units) of these ascending offsets, as `QueueSlice.read`; those that the queue has."""
    parts = [queue.piece(queue.min_offset, queue.min_offset).read()]
    wanted = offsets[(offsets >= queue.min_offset) & (offsets < queue.max_offset)]
    runs = np.split(wanted, np.flatnonzero(np.diff(wanted) > _GAP_MAX) + 1) if len(wanted) else []
    for run in runs:
        for piece in queue.piece(int(run[0]), int(run[-1]) + 1).parts():
            found, units = piece.read()
            kept = np.isin(found, run)
            parts.append((found[kept], units[kept]))
    return np.concatenate([found for found, _ in parts]), np.concatenate([units for _, units in parts])


# ---- places that somebody names ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FoundPlaces:
    """Messages in the order of the commitlog, each once. `first[i]` is the first place that names message i.

    `names` are the places for errors.
    """

    store: Store
    physical_offsets: _Ints
    sizes: _Ints
    first: _Ints
    names: tuple[str, ...]
    identity: Identity | None = None  # the queue and the queue offset that each message must have

    def __len__(self) -> int:
        return len(self.physical_offsets)

    def read(self) -> Iterator[tuple[StoredMessages, _Ints]]:
        """(messages, their part of `first`) in chunks of at most 10,000 messages and about 32 MiB.

        Raises CorruptStoreError for a damaged message, and OffsetOutOfRangeError for one that retention
        deleted meanwhile.
        """
        ends = np.cumsum(self.sizes)
        start = 0
        while start < len(self):
            begun = int(ends[start] - self.sizes[start])
            by_bytes = int(np.searchsorted(ends, begun + _CHUNK_BYTES, side="right"))
            stop = max(start + 1, min(by_bytes, start + _CHUNK_MESSAGES))
            messages, places, damaged = read_stored(
                self.store.log,
                self.physical_offsets[start:stop],
                self.sizes[start:stop],
                None if self.identity is None else self.identity.select(np.arange(start, stop)),
            )
            if damaged:
                raise damaged[0].error
            if len(places) < stop - start:
                row = int(np.setdiff1d(np.arange(stop - start), places)[0]) + start
                raise _missing(self.store, self.names[int(self.first[row])], "retention has deleted it")
            yield messages, self.first[start:stop]
            start = stop


def find_places(store: Store, places: Iterable[tuple[str, int, int]]) -> FoundPlaces:
    """The messages at these (topic, queue id, queue offset); the topic is the stored one, as `storedTopic`.

    Raises OffsetOutOfRangeError, naming the first place that has no message.
    """
    given = list(places)
    names = [f"topic {topic}, queue {queue_id}, offset {offset}" for topic, queue_id, offset in given]
    by_queue: dict[QueueKey, list[int]] = {}
    for number, (topic, queue_id, _) in enumerate(given):
        by_queue.setdefault((topic, queue_id), []).append(number)
    topics = {topic: index for index, topic in enumerate(dict.fromkeys(topic for topic, _ in by_queue))}
    identity = Identity(
        tuple(topics),
        np.array([topics[topic] for topic, _, _ in given], np.int32),
        np.array([queue_id for _, queue_id, _ in given], np.int32),
        np.array([offset for _, _, offset in given], np.int64),
    )
    queues = {queue.key: queue for queue in store.queues(topics.__contains__)} if topics else {}
    physical, sizes = np.full(len(names), -1, np.int64), np.zeros(len(names), np.int64)
    for key, numbers in by_queue.items():
        queue = queues.get(key)
        if queue is not None:
            _refuse_queue_kind(queue)
            physical[numbers], sizes[numbers] = _entries_at(queue, identity.queue_offsets[numbers])
        missing = np.flatnonzero(physical[numbers] < 0)
        if len(missing):
            raise _missing(store, names[numbers[int(missing[0])]], _range_of(key, queues))
    return _found_places(store, physical, sizes, names, identity)


def find_physical(store: Store, offsets: Iterable[int]) -> FoundPlaces:
    """The messages at these physical offsets. Raises OffsetOutOfRangeError as `find_places` does."""
    given = [int(offset) for offset in offsets]
    names = [f"physical offset {offset}" for offset in given]
    sizes = []
    for offset, name in zip(given, names, strict=True):
        if store.log.file_at(offset) is None:
            have = f"the commitlog has {store.log.min_offset} to {store.log.stop}"
            raise _missing(store, name, have)
        sizes.append(int.from_bytes(store.log.read(offset, _LENGTH_SIZE), "big", signed=True))
    return _found_places(store, np.array(given, np.int64), np.array(sizes, np.int64), names)


def _found_places(
    store: Store, physical: _Ints, sizes: _Ints, names: list[str], identity: Identity | None = None
) -> FoundPlaces:
    distinct, first = np.unique(physical, return_index=True)
    chosen = None if identity is None else identity.select(first)
    return FoundPlaces(store, distinct, sizes[first], first, tuple(names), chosen)


def _entries_at(queue: Queue, offsets: _Ints) -> tuple[_Ints, _Ints]:
    """(physical offsets, sizes) of the messages at these queue offsets; -1 for an offset without one."""
    found, units = units_at(queue.range, np.unique(offsets))
    physical, sizes = np.full(len(offsets), -1, np.int64), np.zeros(len(offsets), np.int64)
    there = np.isin(offsets, found)
    index = np.searchsorted(found, offsets[there])
    physical[there], sizes[there] = units["physical_offset"][index], units["size"][index]
    return physical, sizes


def _refuse_queue_kind(queue: Queue) -> None:
    what = None
    if queue.range.is_batch:
        what = "is a topic with queue.type=BatchCQ, whose messages cannot be named one by one"
    elif queue.scanned is not None:
        what = "has no consume queue files; rebuild them first (rmqlog recover)"
    if what is not None:
        raise UnsupportedFormatError(f"{queue.store.path}: topic {queue.topic} {what}")


def _range_of(key: QueueKey, queues: Mapping[QueueKey, Queue]) -> str:
    queue = queues.get(key)
    if queue is not None:
        return f"the queue has offsets {queue.min_offset} to {queue.max_offset}, without the last"
    ids = sorted(queue_id for topic, queue_id in queues if topic == key[0])
    return f"the queues of the topic are {ids}" if ids else "the store has no messages of this topic"


def _missing(store: Store, place: str, why: str) -> OffsetOutOfRangeError:
    return OffsetOutOfRangeError(f"{store.path}: {place}: expected a message, found none: {why}")
