"""Staged files in the committing process: checked, read in runs of bounded size, removed after the commit.

The messages of a journal come in chunks, in the order of the log, with the queue offsets that they get.
Numbers of queues are places in `Journal.queues`; NO_QUEUE and NOT_DISPATCHED are the numbers of messages that
are in no queue.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from store_format import kernels
from store_format.bookkeeping.identity import RECORDS_SUFFIX, StagedFile
from store_format.bookkeeping.journal import Journal
from store_format.commit.staging import NO_QUEUE, NOT_DISPATCHED, TIMES_SUFFIX, BlockSum
from store_format.errors import CorruptStoreError, StoreNotFoundError, StoreWriteError
from store_format.files.background import RemovedFiles
from store_format.files.read import files_at
from store_format.files.view import FileView
from store_format.files.write import FileWrites
from store_format.index.updates import IndexBatch
from store_format.opened.store import Opened

_log = logging.getLogger(__name__)

# Bytes of all files, and of one file, for which a thread costs less than it saves.
_FREED_LATER_MIN, _HELD_MIN = 8 << 20, 1 << 20


@dataclass(frozen=True, eq=False, slots=True)
class StagedUnits:
    """A run of staged units: the columns for queues and index.

    `position` is the first byte of the run in the records file.
    `timed` marks units whose tags code is a delay in ms; None if there are none. Unit i has the hashes
    key_hashes[key_ends[i]:key_ends[i + 1]].
    """

    sizes: NDArray[np.int32]
    queue: NDArray[np.int32]
    tags_codes: NDArray[np.int64]
    timed: NDArray[np.bool_] | None
    key_hashes: NDArray[np.int32]
    key_ends: NDArray[np.int32]
    position: int

    def __len__(self) -> int:
        return len(self.sizes)


def check_staged(
    opened: Opened, staged: StagedFile, *, records_sum: bool = True, chunk_size: int = 1 << 20
) -> None:
    """Checks size and checksum of both files. Without `records_sum` a `RecordsCheck` has to sum the records.

    Raises CorruptStoreError for other bytes than the task wrote, and StoreNotFoundError for a missing file:
    another writer removed it as abandoned, or driver and executors see different directories.
    """
    for path, size, expected in (
        (staged.records_path(opened), staged.records_size, staged.records_sum),
        (staged.meta_path(opened), staged.meta_size, staged.meta_sum),
    ):
        found = BlockSum()
        buffer = np.empty(min(chunk_size, max(size, 1)), np.uint8)
        with _open_staged(path) as view:
            if view.size != size:
                raise CorruptStoreError(
                    path,
                    view.size,
                    f"{size} bytes, as the task wrote",
                    f"{view.size} bytes; run the write again",
                )
            if path.endswith(RECORDS_SUFFIX) and not records_sum:
                continue
            for position in range(0, size, chunk_size):
                found.update(buffer[: view.read_into(position, buffer)].data)
        _compare_sum(path, expected, found)


def check_times(path: str | None, units: int) -> None:
    """Checks the size of the file of store times (`Journal.times_path`). Raises as `check_staged` does."""
    if path is not None:
        with _open_staged(path) as view:
            if view.size != 8 * units:
                found = f"{view.size} bytes; run the write again"
                raise CorruptStoreError(path, view.size, f"{units} store times of 8 bytes", found)


class RecordsCheck:
    """Checks the checksum of a records file while `append_log` reads the file.

    Reading the file twice would cost a fifth of a commit.
    """

    def __init__(self, opened: Opened, staged: StagedFile) -> None:
        self._path = staged.records_path(opened)
        self._staged = staged
        self._sum = BlockSum()
        self._position = 0

    def update(self, data: NDArray[np.uint8]) -> None:
        """Takes the next bytes of the file. Raises CorruptStoreError after the last one for another sum."""
        self._sum.update(data.data)
        self._position += len(data)
        if self._position == self._staged.records_size:
            _compare_sum(self._path, self._staged.records_sum, self._sum)


def _compare_sum(path: str, expected: int, found: BlockSum) -> None:
    if found.finish() != expected:
        raise CorruptStoreError(
            path,
            0,
            f"checksum 0x{expected:08X}, as the task wrote",
            f"0x{found.value:08X}; run the write again",
        )


def _open_staged(path: str) -> FileView:
    try:
        return files_at(path).view(path)
    except FileNotFoundError as error:
        raise StoreNotFoundError(
            f"{path}: a staged file is missing. Nothing was written. If this write took longer than "
            "stagingRetention, another writer of the store has removed the file: raise that option. "
            "Otherwise the driver and the executors do not see the same directory: mount it at the same path "
            "everywhere. Then run the write again"
        ) from error


def read_staged(
    opened: Opened,
    staged: StagedFile,
    *,
    chunk_size: int,
    units_max: int,
    skip: int = 0,
    has_keys: bool = True,
) -> Iterator[StagedUnits]:
    """The units behind the first `skip`, in runs of about `chunk_size` bytes, at most `units_max` units.

    Without `has_keys` they have no key hashes.
    """
    path = staged.meta_path(opened)
    position, number = 0, 0
    with _open_staged(path) as view:
        at = 0
        while at < staged.meta_size:
            length = int.from_bytes(view.read(at, 8), "little")
            if not 0 < length <= staged.meta_size - at - 8:
                raise CorruptStoreError(path, at, "the length of a part", str(length))
            part = _part(path, at, view.read(at + 8, length), has_keys=has_keys)
            at += 8 + length
            yield from _runs_of_part(part, position, chunk_size, units_max, max(skip - number, 0))
            number += len(part)
            position += int(part.sizes.sum(dtype=np.int64))


def _part(path: str, at: int, data: bytes, *, has_keys: bool) -> StagedUnits:
    try:
        batch = pa.ipc.open_stream(data).read_next_batch()
    except (pa.ArrowInvalid, StopIteration, OSError) as error:
        raise CorruptStoreError(path, at, "a part of staged units", str(error)) from error
    lists = batch.column(4)
    timed = batch.column(3)
    hashes, key_ends = np.empty(0, np.int32), np.zeros(len(batch) + 1, np.int32)
    if has_keys:
        hashes, key_ends = lists.flatten().to_numpy(), lists.offsets.to_numpy()
    return StagedUnits(
        batch.column(0).to_numpy(),
        batch.column(1).to_numpy(),
        batch.column(2).to_numpy(),
        timed.to_numpy(zero_copy_only=False) if timed.true_count else None,
        hashes,
        key_ends,
        0,
    )


def _runs_of_part(
    part: StagedUnits, position: int, chunk_size: int, units_max: int, skip: int
) -> Iterator[StagedUnits]:
    ends = np.cumsum(part.sizes, dtype=np.int64)
    start = min(skip, len(part))
    while start < len(part):
        before = int(ends[start - 1]) if start else 0
        stop = min(int(np.searchsorted(ends, before + chunk_size, side="right")), start + units_max)
        stop = max(stop, start + 1)  # A unit larger than a chunk is a run of its own.
        low, high = part.key_ends[start], part.key_ends[stop]
        yield StagedUnits(
            part.sizes[start:stop],
            part.queue[start:stop],
            part.tags_codes[start:stop],
            None if part.timed is None else part.timed[start:stop],
            part.key_hashes[low:high],
            part.key_ends[start : stop + 1] - low,
            position + before,
        )
        start = stop


def remove_staging(opened: Opened, staged: Sequence[StagedFile], files: FileWrites) -> None:
    """Removes the staged files, and the directories of their writes. Missing files are no error.

    Large files are gone at once, but a thread frees them. The batch is committed by then: a file that cannot
    be removed is logged, and `abandoned_staging.collect` removes it later.
    """
    sizes = {each.records_path(opened): each.records_size for each in staged}
    sizes |= {each.meta_path(opened): each.meta_size for each in staged}
    removed = RemovedFiles()
    if sum(sizes.values()) >= _FREED_LATER_MIN:
        removed.hold(path for path, size in sizes.items() if size >= _HELD_MIN)
    try:
        for path in sizes:
            files.remove(path)
        removed.close_named()
        for write in dict.fromkeys(each.write for each in staged):
            directory = StagedFile.directory(opened, write)
            for name in files_at(directory).names(directory, missing_ok=True):
                if name.endswith(TIMES_SUFFIX):
                    files.remove(f"{directory}/{name}")
            files.remove_directory(directory)
    except StoreWriteError as error:
        _log.warning("%s", error)
    finally:
        removed.free()


# ---- chunks of a journal -----------------------------------------------------------------------------------


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
    opened: Opened, journal: Journal, *, chunk_size: int, units_max: int, has_keys: bool
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
            opened, staged, chunk_size=chunk_size, units_max=units_max, skip=skip, has_keys=has_keys
        ):
            times = _store_timestamps(opened, journal, at, len(units))
            yield Chunk(staged, units, number_of[units.queue], times)
            at += len(units)
        skip = max(skip - staged.units, 0)
        done += staged.units


def read_groups(opened: Opened, journal: Journal, *, units: int) -> Iterator[list[Chunk]]:
    """The chunks in groups of at least `units` messages, but for the last. A chunk has at most `units`."""
    group: list[Chunk] = []
    count = 0
    for chunk in read_chunks(opened, journal, chunk_size=1 << 62, units_max=units, has_keys=journal.index):
        group.append(chunk)
        count += len(chunk.units)
        if count >= units:
            yield group
            group, count = [], 0
    if group:
        yield group


def newest_timestamp(opened: Opened, journal: Journal) -> int:
    """The latest store time (ms) of the journal's messages."""
    if journal.store_timestamps is None:
        return journal.store_timestamp
    return int(_store_timestamps(opened, journal, 0, journal.units).max())


def _store_timestamps(opened: Opened, journal: Journal, first: int, count: int) -> NDArray[np.int64]:
    path = journal.times_path(opened)
    if path is None:
        return np.full(count, journal.store_timestamp, np.int64)
    with files_at(path).view(path) as view:
        return np.frombuffer(view.read(8 * first, 8 * count), "<i8").astype(np.int64)


class QueueCounter:
    """Assigns queue offsets in the order of the log (ConsumeQueueStore.assignQueueOffset), many at once."""

    def __init__(self, bases: tuple[int, ...]) -> None:
        self.next = np.array(bases, np.int64)

    def take(self, queue: NDArray[np.int32]) -> NDArray[np.int64]:
        """The queue offset of each message, by its queue number; 0 for a message in no queue."""
        offsets = np.empty(len(queue), np.int64)
        if kernels.ready(len(queue)):
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
    counts = np.concatenate([np.diff(chunk.units.key_ends) for chunk in group])
    message_index = np.repeat(np.arange(len(counts)), counts)
    dispatched = queue >= NO_QUEUE
    if not dispatched.all():  # a rolled back message has no entry, and does not make a file either
        message_index = (np.cumsum(dispatched) - 1)[message_index]
        offsets, timestamps = offsets[dispatched], timestamps[dispatched]
    return IndexBatch(offsets, timestamps, hashes, message_index)
