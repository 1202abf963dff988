"""Finds messages that somebody names by their place: topic, queue id and queue offset, or physical offset."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from store_format.consumequeue.slices import cut_slice, read_slice
from store_format.errors import OffsetOutOfRangeError, UnsupportedFormatError
from store_format.message.stored import StoredMessages
from store_format.message.unit_refs import Identity
from store_format.names import QueueKey
from store_format.read.store import Queue, Store
from store_format.read.stored_messages import read_stored

_Ints = NDArray[np.int64]

_GAP_MAX = 4096  # entries between two places that are read, because a second read would take longer
_CHUNK_MESSAGES = 10_000
_CHUNK_BYTES = 32 << 20
_LENGTH_SIZE = 4  # a message unit begins with its size


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
    by_queue: dict[QueueKey, list[tuple[int, int]]] = {}
    names = []
    for number, (topic, queue_id, offset) in enumerate(places):
        by_queue.setdefault((topic, queue_id), []).append((offset, number))
        names.append(f"topic {topic}, queue {queue_id}, offset {offset}")
    topics = tuple(dict.fromkeys(topic for topic, _ in by_queue))
    identity = Identity(
        topics, np.zeros(len(names), np.int32), np.zeros(len(names), np.int32), np.zeros(len(names), np.int64)
    )
    queues = {queue.key: queue for queue in store.queues(topics.__contains__)} if topics else {}
    physical, sizes = np.full(len(names), -1, np.int64), np.zeros(len(names), np.int64)
    for key, wanted in by_queue.items():
        numbers = np.array([number for _, number in wanted], np.int64)
        offsets = np.array([offset for offset, _ in wanted], np.int64)
        assert identity.topic_index is not None
        identity.topic_index[numbers] = topics.index(key[0])
        identity.queue_ids[numbers], identity.queue_offsets[numbers] = key[1], offsets
        queue = queues.get(key)
        if queue is not None:
            _refuse_queue_kind(queue)
            physical[numbers], sizes[numbers] = _entries_at(queue, offsets)
        if (physical[numbers] < 0).any():
            place = names[int(numbers[physical[numbers] < 0][0])]
            raise _missing(store, place, _range_of(key, queues))
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
    physical, sizes = np.full(len(offsets), -1, np.int64), np.zeros(len(offsets), np.int64)
    order = np.argsort(offsets, kind="stable")
    ordered = offsets[order]
    edges = np.flatnonzero(np.diff(ordered) > _GAP_MAX) + 1
    for run in np.split(order, edges):
        low, high = int(offsets[run[0]]), int(offsets[run[-1]]) + 1
        for piece in cut_slice(queue.piece(low, high)):
            here, units = read_slice(piece)
            if not len(here):
                continue
            index = np.minimum(np.searchsorted(here, offsets[run]), len(here) - 1)
            there = here[index] == offsets[run]
            physical[run[there]] = units["physical_offset"][index[there]].astype(np.int64)
            sizes[run[there]] = units["size"][index[there]].astype(np.int64)
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
