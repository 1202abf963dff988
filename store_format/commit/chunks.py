"""The staged messages of a journal in chunks, in the order of the log, and the queue offsets that they get.

Numbers of queues are places in `Journal.queues`; NO_QUEUE and NOT_DISPATCHED are the numbers of messages that
are in no queue.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from store_format import kernels
from store_format.bookkeeping.journal import Journal
from store_format.bookkeeping.staged_file import StagedFile
from store_format.commit.staged_units import StagedUnits, read_staged
from store_format.commit.staging import NO_QUEUE, NOT_DISPATCHED
from store_format.files.view import FileView
from store_format.index.updates import IndexBatch


class Chunk(NamedTuple):
    """Some messages of one staged file, with the queue number and the store time (ms) of each."""

    staged: StagedFile
    units: StagedUnits
    queue: NDArray[np.int32]
    store_timestamps: NDArray[np.int64]

    @property
    def tags_codes(self) -> NDArray[np.int64]:
        """The tags codes of the queue entries. Of a message with a delay: the store time plus the delay."""
        timed = self.units.timed
        return (
            self.units.tags_codes if timed is None else self.units.tags_codes + timed * self.store_timestamps
        )


def read_chunks(
    root: str, journal: Journal, *, chunk_size: int, units_max: int, has_keys: bool
) -> Iterator[Chunk]:
    """All messages behind the first `journal.skip`, in chunks of about `chunk_size` bytes.

    A chunk has at most `units_max` messages. Without `has_keys` they have no key hashes.
    """
    numbers = {queue: number for number, queue in enumerate(journal.queues)}
    skip, done = journal.skip, 0
    for staged in journal.staged:
        # negative numbers find the last two
        number_of = np.array(
            [*(numbers[queue] for queue in staged.queues), NOT_DISPATCHED, NO_QUEUE], np.int32
        )
        at = done + min(skip, staged.units)
        for units in read_staged(
            root, staged, chunk_size=chunk_size, units_max=units_max, skip=skip, has_keys=has_keys
        ):
            times = _store_timestamps(root, journal, at, len(units))
            yield Chunk(staged, units, number_of[units.queue], times)
            at += len(units)
        skip = max(skip - staged.units, 0)
        done += staged.units


def read_groups(root: str, journal: Journal, *, units: int) -> Iterator[list[Chunk]]:
    """The chunks in groups of at least `units` messages, but for the last. A chunk has at most `units`."""
    group: list[Chunk] = []
    count = 0
    for chunk in read_chunks(root, journal, chunk_size=1 << 62, units_max=units, has_keys=journal.index):
        group.append(chunk)
        count += len(chunk.units)
        if count >= units:
            yield group
            group, count = [], 0
    if group:
        yield group


def newest_timestamp(root: str, journal: Journal) -> int:
    """The latest store time (ms) of the journal's messages."""
    if journal.store_timestamps is None:
        return journal.store_timestamp
    return int(_store_timestamps(root, journal, 0, journal.units).max())


def _store_timestamps(root: str, journal: Journal, first: int, count: int) -> NDArray[np.int64]:
    path = journal.times_path(root)
    if path is None:
        return np.full(count, journal.store_timestamp, np.int64)
    with FileView(path) as view:
        return np.frombuffer(view.read(8 * first, 8 * count), "<i8").astype(np.int64)


class QueueCounter:
    """Assigns queue offsets in the order of the log (ConsumeQueueStore.assignQueueOffset), many at once."""

    def __init__(self, bases: tuple[int, ...]) -> None:
        self.next = np.array(bases, np.int64)

    def take(self, queue: NDArray[np.int32]) -> NDArray[np.int64]:
        """The queue offset of each message, by its queue number; 0 for a message in no queue."""
        offsets = np.empty(len(queue), np.int64)
        if kernels.worth(len(queue)):
            kernels.patch.take_offsets(queue, self.next, offsets)
            return offsets
        for i, number in enumerate(queue.tolist()):
            offsets[i] = self.next[number] if number >= 0 else 0
            if number >= 0:
                self.next[number] += 1
        return offsets


def index_batch(
    group: list[Chunk], queue: NDArray[np.int32], offsets: NDArray[np.int64], timestamps: NDArray[np.int64]
) -> IndexBatch:
    """The index entries of a group of chunks, by the queue number, physical offset and store time of each."""
    hashes = np.concatenate([chunk.units.key_hashes for chunk in group])
    firsts = np.cumsum([0, *(len(chunk.units) for chunk in group[:-1])])
    message_index = np.concatenate(
        [chunk.units.message_index + first for chunk, first in zip(group, firsts.tolist(), strict=True)]
    )
    dispatched = queue >= NO_QUEUE
    if not dispatched.all():  # a rolled back message has no entry, and does not make a file either
        message_index = (np.cumsum(dispatched) - 1)[message_index]
        offsets, timestamps = offsets[dispatched], timestamps[dispatched]
    return IndexBatch(offsets, timestamps, hashes, message_index)
