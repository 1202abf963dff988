"""The steps of a commit that change the store, in their order: commitlog, consume queues and index,
checkpoint, ledger.

Everything follows from the journal and the staged files, so doing it again writes the same bytes at the same
places. Memory is that of a chunk; the staged files are gone through twice, because no queue entry may be
written before the log is complete.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from store_format.bookkeeping.journal import Journal
from store_format.bookkeeping.ledger import LedgerEntry
from store_format.bookkeeping.staged_file import StagedFile, staging_path
from store_format.commit.checkpoint import lower_index_mark
from store_format.commit.queue_counter import QueueCounter
from store_format.commit.staged_units import RecordsCheck, StagedUnits, read_staged
from store_format.commit.staging import NO_QUEUE
from store_format.commitlog.log import CommitLog
from store_format.commitlog.place import Extent, LogLayout, blank_head
from store_format.commitlog.write import LogFiles
from store_format.consumequeue.updates import CqBatch
from store_format.consumequeue.write import QueueFiles
from store_format.errors import StoreError, StoreInUseError, TruncatedRecordError
from store_format.files.background import Behind
from store_format.files.read import FileView, entry_names
from store_format.files.write import FileWrites
from store_format.index.geometry import IndexGeometry
from store_format.index.updates import IndexBatch
from store_format.index.write import IndexFiles, last_index_file
from store_format.message.encode import EncodedUnits, assign

__all__ = ["Present", "Publication", "Torn"]

_CHUNK_SIZE = 4 << 20  # of the log; smaller ones cost 15 % more at 100 B, larger ones gain nothing
# messages of one batch for queues and index: about 8 MB, 5 more for each three keys of a message
_QUEUE_UNITS = 1 << 17
_QUEUE_UNITS_MAX = 1 << 19
_UNITS_OF_QUEUE = 64  # where queues are many a batch is larger, so that each of them gets more with one write
_WRITING = ("", "")  # the index's end is not known


class _Chunk(NamedTuple):
    staged: StagedFile
    units: StagedUnits
    queue: NDArray[np.int32]  # numbers in the journal's list
    store_timestamps: NDArray[np.int64]

    @property
    def tags_codes(self) -> NDArray[np.int64]:
        timed = self.units.timed
        return (
            self.units.tags_codes if timed is None else self.units.tags_codes + timed * self.store_timestamps
        )


class _Patched(NamedTuple):
    data: NDArray[np.uint8]
    starts: NDArray[np.int64]  # of each unit in data, and the end
    extents: list[Extent]
    chunk: _Chunk
    queue_offsets: NDArray[np.int64]

    def torn(self, i: int, equal: int) -> Torn:
        data = self.data[self.starts[i] : self.starts[i + 1]].tobytes()
        return Torn(
            equal, data, int(self.chunk.queue[i]), int(self.queue_offsets[i]), int(self.chunk.tags_codes[i])
        )


class Torn(NamedTuple):
    """The unit that was being written when a batch was broken off: its bytes as they should be, and its entry
    in its queue.
    """

    equal: int  # so many of its first bytes stand in the log
    data: bytes
    queue: int
    queue_offset: int
    tags_code: int


class Present(NamedTuple):
    """Units of a batch that stand in the log; `position` is where the next one would go, `torn` what stands
    of it there.
    """

    units: int
    position: int
    torn: Torn | None = None


class Publication:
    """One commit being carried out. `touched_queues` turns true with the first byte of a queue: from there on
    it goes only forward.
    """

    def __init__(self, root: str, journal: Journal, log: CommitLog, files: FileWrites) -> None:
        self.root = root
        self.journal = journal
        self._files = files
        self.log_files = LogFiles(log, journal.log_directories, journal.file_size, files)
        self.touched_queues = False
        self.index_msg_timestamp: int | None = None  # the end of the index, once it is written
        self._index_end: tuple[str, str] | None = journal.index_base
        self._last_timestamp = 0
        self._last_queued = (-1, 0)  # physical offset and store time of the last message in a queue
        self._entry: LedgerEntry | None = None
        self._queue_stops = list(journal.queue_bases)
        self._buffers = [np.empty(0, np.uint8)] * 2
        self._is_little = sum(each.records_size for each in journal.staged) <= _CHUNK_SIZE
        self._queue_units = min(max(_QUEUE_UNITS, _UNITS_OF_QUEUE * len(journal.queues)), _QUEUE_UNITS_MAX)

    @property
    def entry(self) -> LedgerEntry:
        """What the ledger gets; there once the log is written."""
        assert self._entry is not None
        return self._entry

    @property
    def queue_stops(self) -> list[int]:
        """Behind the last offset that each of the journal's queues got."""
        return self._queue_stops

    @property
    def last_queued(self) -> tuple[int, int]:
        return self._last_queued

    @property
    def last_timestamp(self) -> int:
        return self._last_timestamp

    # ---- the log -------------------------------------------------------------------------------------------

    def append_log(self) -> None:
        """Patches the staged units and writes them behind the base: a chunk is written while the next one is
        read and patched.
        """
        with Behind(is_little=self._is_little) as writer:
            for part in self._patched():
                writer.call(partial(self._write_part, part))
        self.log_files.close()

    def _write_part(self, part: _Patched) -> None:
        for extent in part.extents:
            if extent.first == extent.stop:
                self.log_files.write_blank(extent.offset)
            else:
                self.log_files.write(
                    extent.offset, part.data[part.starts[extent.first] : part.starts[extent.stop]]
                )

    def count_present(self, log: CommitLog) -> Present:
        """How many of the patched units stand in the log already, byte for byte, from the base on and without
        a break.
        """
        count, position = 0, self.journal.base
        for part in self._patched():
            for extent in part.extents:
                expected = part.data[part.starts[extent.first] : part.starts[extent.stop]]
                if extent.first == extent.stop:
                    expected = np.frombuffer(blank_head(extent.offset, self.journal.file_size), np.uint8)
                equal = _equal_bytes(log, extent.offset, expected)
                if equal < len(expected):
                    if extent.first == extent.stop:
                        return Present(count, position)
                    whole = (
                        int(np.searchsorted(part.starts, part.starts[extent.first] + equal, side="right")) - 1
                    )
                    position = extent.offset + int(part.starts[whole] - part.starts[extent.first])
                    return Present(
                        count + whole - extent.first,
                        position,
                        part.torn(whole, extent.offset + equal - position),
                    )
                if extent.first < extent.stop:
                    count += extent.stop - extent.first
                    position = extent.offset + len(expected)
        return Present(count, position)

    def _patched(self) -> Iterator[_Patched]:
        """The units chunk by chunk with positions and store times, and where they go. At the end `entry` is
        known.
        """
        journal = self.journal
        layout = LogLayout(journal.base, journal.file_size)
        counter = QueueCounter(journal.queue_bases)
        last, last_unit = -1, b""
        check: RecordsCheck | None = None
        staged: StagedFile | None = None
        for chunk, view in self._with_records():
            sizes = chunk.units.sizes
            starts = np.zeros(len(sizes) + 1, np.int64)
            np.cumsum(sizes, out=starts[1:])
            data = self._chunk_buffer(int(starts[-1]))
            if view.read_into(chunk.units.position, data) < len(data):
                raise TruncatedRecordError(
                    view.path,
                    view.size,
                    f"{len(data)} bytes from byte {chunk.units.position} on",
                    "the end of the file",
                )
            if chunk.staged is not staged:
                staged = chunk.staged
                # A file of which a part is skipped was checked as a whole before.
                check = RecordsCheck(self.root, staged) if chunk.units.position == 0 else None
            if check is not None:
                check.update(data)
            offsets, extents = layout.place(sizes)
            queue_offsets = counter.take(chunk.queue)
            assign(
                EncodedUnits(data, starts, chunk.staged.crc_property),
                physical_offset=offsets,
                queue_offset=queue_offsets,
                store_timestamp=chunk.store_timestamps,
            )
            last, last_unit = int(offsets[-1]), data[starts[-2] :].tobytes()
            self._last_timestamp = int(chunk.store_timestamps[-1])
            yield _Patched(data, starts, extents, chunk, queue_offsets)
        self._queue_stops = counter.next[:-2].tolist()
        number = journal.key[1] if journal.key else 0
        self._entry = LedgerEntry(
            number,
            journal.id,
            journal.base,
            layout.position,
            last,
            len(last_unit),
            crc32(last_unit),
            journal.units - journal.skip,
            messages=journal.messages,
            bodies=journal.bodies,
            kept=journal.keeps_key,
        )

    def _chunk_buffer(self, size: int) -> NDArray[np.uint8]:
        """The same memory for every other chunk: fresh pages would cost as much as reading into them, and one
        may be in writing.
        """
        self._buffers.reverse()
        if len(self._buffers[0]) < size:
            self._buffers[0] = np.empty(max(size, _CHUNK_SIZE), np.uint8)
        return self._buffers[0][:size]

    def _with_records(self) -> Iterator[tuple[_Chunk, FileView]]:
        view: FileView | None = None
        try:
            for chunk in self._chunks(_CHUNK_SIZE):
                path = chunk.staged.records_path(self.root)
                if view is None or view.path != path:
                    if view is not None:
                        view.close()
                    view = FileView(path)
                yield chunk, view
        finally:
            if view is not None:
                view.close()

    def _chunks(self, chunk_size: int) -> Iterator[_Chunk]:
        journal = self.journal
        numbers = {queue: number for number, queue in enumerate(journal.queues)}
        skip, done = journal.skip, 0
        for staged in journal.staged:
            number_of = np.array([*(numbers[queue] for queue in staged.queues), -2, NO_QUEUE], np.int32)
            at = done + min(skip, staged.units)
            for units in read_staged(
                self.root, staged, chunk_size=chunk_size, units_max=self._queue_units, skip=skip
            ):
                yield _Chunk(staged, units, number_of[units.queue], self._store_timestamps(at, len(units)))
                at += len(units)
            skip = max(skip - staged.units, 0)
            done += staged.units

    def newest_timestamp(self) -> int:
        """The latest store time (ms) of the journal's messages."""
        if self.journal.store_timestamps is None:
            return self.journal.store_timestamp
        return int(self._store_timestamps(0, self.journal.units).max())

    def _store_timestamps(self, first: int, count: int) -> NDArray[np.int64]:
        journal = self.journal
        if journal.store_timestamps is None:
            return np.full(count, journal.store_timestamp, np.int64)
        with FileView(
            f"{staging_path(self.root, journal.staged[0].write)}/{journal.store_timestamps}"
        ) as view:
            return np.frombuffer(view.read(8 * first, 8 * count), "<i8").astype(np.int64)

    # ---- queues and index ----------------------------------------------------------------------------------

    def write_queues(self) -> None:
        """Consume queue units and index entries of all units, in batches."""
        journal = self.journal
        layout = LogLayout(journal.base, journal.file_size)
        counter = QueueCounter(journal.queue_bases)
        queues = QueueFiles(
            self.root, journal.queues, journal.queue_bases, journal.queue_file_size, self._files
        )
        index = None
        self.touched_queues = True
        self.check_undisturbed()
        if journal.index:
            self._index_end = _WRITING
            zone = datetime.timezone(datetime.timedelta(seconds=journal.zone_seconds))
            geometry = IndexGeometry(journal.hash_slot_num, journal.index_num)
            lower_index_mark(self.root, geometry)
            index = IndexFiles(f"{self.root}/index", geometry, journal.written_at, zone, self._files)
        # queues in a thread, the index in this one: neither needs the other
        with Behind(is_little=self._is_little) as writer:
            for part in self._batches():
                sizes = np.concatenate([chunk.units.sizes for chunk in part])
                offsets, _ = layout.place(sizes)
                queue = np.concatenate([chunk.queue for chunk in part])
                queue_offsets = counter.take(queue)
                tags_codes = np.concatenate([chunk.tags_codes for chunk in part])
                timestamps = np.concatenate([chunk.store_timestamps for chunk in part])
                queued = slice(None) if int(queue.min()) >= 0 else np.flatnonzero(queue >= 0)
                batch = CqBatch(
                    queue[queued].astype(np.int64),
                    queue_offsets[queued],
                    offsets[queued],
                    sizes[queued],
                    tags_codes[queued],
                )
                if len(batch.sizes):
                    writer.call(partial(queues.write, batch))
                    self._last_queued = (int(batch.physical_offsets[-1]), int(timestamps[queued][-1]))
                if index is not None:
                    index.write(_index_batch(part, queue, offsets, timestamps))
        queues.close()
        if index is not None:
            index.close()
            self.index_msg_timestamp = index.end_timestamp
            self._index_end = last_index_file(f"{self.root}/index")

    def disturbance(self) -> str | None:
        """What somebody else has changed while this commit held the lock: files are gone, or the index has
        other entries at its end.

        A broker recovers a store before it asks for the lock. It then removes index files, and log and queue
        files behind the end it finds, and makes entries of the units that it finds.
        """
        gone = self._files.displaced()
        if gone:
            return f"{gone[0]} was removed by somebody else while a batch was written; a broker that was started?"
        if self.journal.index and not self._index_is_ours():
            return f"{self.root}/index was changed by somebody else while a batch was written; a broker that was started?"
        return None

    def _index_is_ours(self) -> bool:
        directory, base = f"{self.root}/index", self.journal.index_base
        if self._index_end is _WRITING:
            return base is None or base[0] in entry_names(directory, missing_ok=True)
        return last_index_file(directory) == self._index_end

    def check_undisturbed(self) -> None:
        """Raises StoreInUseError when it was."""
        disturbance = self.disturbance()
        if disturbance is not None:
            raise StoreInUseError(disturbance)

    def _batches(self) -> Iterator[list[_Chunk]]:
        part: list[_Chunk] = []
        units = 0
        for chunk in self._chunks(1 << 62):
            part.append(chunk)
            units += len(chunk.units)
            if units >= self._queue_units:
                yield part
                part, units = [], 0
        if part:
            yield part


def _index_batch(
    part: list[_Chunk], queue: NDArray[np.int32], offsets: NDArray[Any], timestamps: NDArray[Any]
) -> IndexBatch:
    hashes = np.concatenate([chunk.units.key_hashes for chunk in part])
    firsts = np.cumsum([0, *(len(chunk.units) for chunk in part[:-1])])
    message_index = np.concatenate(
        [chunk.units.message_index + first for chunk, first in zip(part, firsts.tolist(), strict=True)]
    )
    dispatched = queue >= NO_QUEUE
    if not dispatched.all():  # a rolled back message has no entry, and does not make a file either
        message_index = (np.cumsum(dispatched) - 1)[message_index]
        offsets, timestamps = offsets[dispatched], timestamps[dispatched]
    return IndexBatch(offsets, timestamps, hashes, message_index)


def _equal_bytes(log: CommitLog, offset: int, expected: NDArray[np.uint8]) -> int:
    """How many of the first bytes at a physical offset are the expected ones."""
    try:
        found = np.frombuffer(log.read(offset, len(expected)), np.uint8)
    except StoreError:  # no such file
        return 0
    different = np.flatnonzero(found != expected)
    return int(different[0]) if len(different) else len(expected)
