"""A commit being carried out: the staged messages get their positions and go to commitlog, queues and index.

Everything follows from the journal and the staged files, so doing it again writes the same bytes at the same
places. Memory is bounded by a chunk. The staged files are read twice, because no queue entry may be written
before the log is complete.
"""

from __future__ import annotations

import datetime
from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import NamedTuple
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from store_format.bookkeeping.journal import Journal
from store_format.bookkeeping.ledger import LedgerEntry
from store_format.bookkeeping.settings import broker_conf_of
from store_format.commit.queue_changes import fill_gap
from store_format.commit.staged_units import (
    Chunk,
    QueueCounter,
    RecordsCheck,
    index_batch,
    read_chunks,
    read_groups,
)
from store_format.commitlog.log import CommitLog
from store_format.commitlog.write import Extent, LogFiles, LogLayout, blank_head
from store_format.consumequeue.updates import CqBatch, QueueFiles
from store_format.errors import StoreError, StoreInUseError, TruncatedRecordError
from store_format.files.background import BackgroundCalls
from store_format.files.read import files_at
from store_format.files.view import FileView
from store_format.files.write import FileWrites
from store_format.index import updates
from store_format.index.file import IndexFile, IndexGeometry, list_index_files
from store_format.index.updates import IndexFiles, last_index_file
from store_format.layouts import CHECKPOINT, CHECKPOINT_FILE_SIZE, CQ_UNIT, pack
from store_format.message.encode import EncodedUnits, assign
from store_format.metadata.read import Checkpoint, read_checkpoint
from store_format.opened.store import Opened

_CHUNK_SIZE = 4 << 20  # bytes of the log; smaller chunks cost 15 % more at 100 B, larger ones gain nothing
# Messages of one group for queues and index: about 8 MB, and 5 MB for every three keys of a message.
_QUEUE_UNITS = 1 << 17
_QUEUE_UNITS_MAX = 1 << 19
_UNITS_OF_QUEUE = 64  # With many queues a group is larger, so that each queue gets more with one write.
_NO_BROKER = "Do not start a broker on the store during a write"
_GAP_MAX = 64 << 20  # bytes of the log that are looked through for messages without an index entry
_WRITING = ("", "")  # while the index is written its end is not known


class _Patched(NamedTuple):
    """A chunk as it goes into the log: positions and store times are filled in."""

    data: NDArray[np.uint8]
    starts: NDArray[np.int64]  # of each unit in data, and the end
    extents: list[Extent]
    chunk: Chunk
    queue_offsets: NDArray[np.int64]

    def torn(self, i: int, equal: int) -> Torn:
        data = self.data[self.starts[i] : self.starts[i + 1]].tobytes()
        return Torn(
            equal, data, int(self.chunk.queue[i]), int(self.queue_offsets[i]), int(self.chunk.tags_codes[i])
        )


class Torn(NamedTuple):
    """The unit that was being written when a batch was interrupted: its right bytes, and its queue entry."""

    equal: int  # the number of its first bytes that are in the log
    data: bytes
    queue: int
    queue_offset: int
    tags_code: int


class Present(NamedTuple):
    """The units of a batch that are in the log.

    `position` is the physical offset of the next unit, `torn` the part of this unit that is there.
    """

    units: int
    position: int
    torn: Torn | None = None


class Publication:
    """One commit to one store.

    `touched_queues` becomes True with the first byte of a consume queue: the commit cannot be undone then.
    `is_little`: a thread would cost more than it saves.
    """

    def __init__(self, opened: Opened, journal: Journal, log: CommitLog, files: FileWrites) -> None:
        self.opened = opened
        self.journal = journal
        self._files = files
        self._log = log
        read_only = broker_conf_of(opened).read_only_log_paths if len(log.directories) > 1 else ()
        self.log_files = LogFiles(log, log.directories, journal.file_size, files, read_only)
        self.log_directories = log.directories
        self.touched_queues = False
        self.index_msg_timestamp: int | None = None  # the end of the index; None until it is written
        self._index_end: tuple[str, str] | None = journal.index_base
        self._last_timestamp = 0
        self._last_queued = (-1, 0)  # physical offset and store time of the last message in a queue
        self._entry: LedgerEntry | None = None
        self._queue_stops = list(journal.queue_bases)
        self._buffers = deque([np.empty(0, np.uint8)] * (BackgroundCalls.AHEAD + 1))
        self.is_little = sum(each.records_size for each in journal.staged) <= _CHUNK_SIZE
        self._queue_units = min(max(_QUEUE_UNITS, _UNITS_OF_QUEUE * len(journal.queues)), _QUEUE_UNITS_MAX)

    @property
    def entry(self) -> LedgerEntry:
        """The ledger's entry of the batch; known when the log is written."""
        assert self._entry is not None
        return self._entry

    @property
    def queue_stops(self) -> list[int]:
        """The offset behind the last message of the batch, for each of the journal's queues."""
        return self._queue_stops

    @property
    def last_queued(self) -> tuple[int, int]:
        return self._last_queued

    @property
    def last_timestamp(self) -> int:
        return self._last_timestamp

    # ---- the log -------------------------------------------------------------------------------------------

    def append_log(self) -> None:
        """Writes the staged messages, with their positions, to the log: one chunk while the next are read."""
        with BackgroundCalls(is_little=self.is_little) as writer:
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
        """How many of the batch's units are in the log from the base on, byte for byte and without a gap."""
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
        """The chunks as they go into the log, and where. Then `entry` and `queue_stops` are known."""
        layout = LogLayout(self.journal.base, self.journal.file_size)
        counter = QueueCounter(self.journal.queue_bases)
        last, last_unit = -1, b""
        for chunk, data, starts in self._with_bytes():
            offsets, extents = layout.place(chunk.units.sizes)
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
        self._queue_stops = counter.next.tolist()
        self._entry = self._ledger_entry(layout.position, last, last_unit)

    def _ledger_entry(self, stop: int, last_offset: int, last_unit: bytes) -> LedgerEntry:
        journal = self.journal
        return LedgerEntry(
            journal.key[1] if journal.key else 0,
            journal.id,
            journal.base,
            stop,
            last_offset,
            len(last_unit),
            crc32(last_unit),
            journal.units - journal.skip,
            messages=journal.messages,
            bodies=journal.bodies,
            kept=journal.keeps_key,
            began=journal.began,
            members=journal.members,
            queues=tuple(
                (*queue, first, stop)
                for queue, first, stop in zip(
                    journal.queues, journal.queue_bases, self._queue_stops, strict=True
                )
            ),
        )

    def _with_bytes(self) -> Iterator[tuple[Chunk, NDArray[np.uint8], NDArray[np.int64]]]:
        """(Chunk, the bytes of its messages, the start of each message and the end). Checks the sum."""
        view: FileView | None = None
        check: RecordsCheck | None = None
        chunks = read_chunks(
            self.opened, self.journal, chunk_size=_CHUNK_SIZE, units_max=self._queue_units, has_keys=False
        )
        try:
            for chunk in chunks:
                path = chunk.staged.records_path(self.opened)
                if view is None or view.path != path:
                    if view is not None:
                        view.close()
                    view = files_at(path).view(path)
                    # A file of which a part is skipped was checked as a whole before.
                    check = RecordsCheck(self.opened, chunk.staged) if chunk.units.position == 0 else None
                starts = np.zeros(len(chunk.units) + 1, np.int64)
                np.cumsum(chunk.units.sizes, out=starts[1:])
                data = self._chunk_buffer(int(starts[-1]))
                if view.read_into(chunk.units.position, data) < len(data):
                    expected = f"{len(data)} bytes from byte {chunk.units.position} on"
                    raise TruncatedRecordError(path, view.size, expected, "the end of the file")
                if check is not None:
                    check.update(data)
                yield chunk, data, starts
        finally:
            if view is not None:
                view.close()

    def _chunk_buffer(self, size: int) -> NDArray[np.uint8]:
        """One of a few buffers, in turn: a thread may still write the others.

        New memory would cost as much as reading into it.
        """
        self._buffers.rotate()
        if len(self._buffers[0]) < size:
            self._buffers[0] = np.empty(max(size, _CHUNK_SIZE), np.uint8)
        return self._buffers[0][:size]

    # ---- queues and index ----------------------------------------------------------------------------------

    def write_queues(self) -> None:
        """Writes the consume queue units and index entries of all messages."""
        journal = self.journal
        layout = LogLayout(journal.base, journal.file_size)
        counter = QueueCounter(journal.queue_bases)
        queues = QueueFiles(
            self.opened, journal.queues, journal.queue_bases, journal.queue_file_size, self._files
        )
        gaps = dict(journal.gaps)
        self.touched_queues = True
        self.check_undisturbed()
        index = self._open_index() if journal.index else None
        # A thread sorts one group into queues and slots, and writes it, while the next is read here.
        with BackgroundCalls(is_little=self.is_little) as writer:
            for group in read_groups(self.opened, journal, units=self._queue_units):
                queue = np.concatenate([chunk.queue for chunk in group])
                timestamps = np.concatenate([chunk.store_timestamps for chunk in group])
                batch, offsets = _queue_batch(group, queue, layout, counter)
                if len(batch.sizes):
                    for number in gaps.keys() & set(batch.queue_index.tolist()) if gaps else ():
                        writer.call(partial(self._fill_gap, number, gaps.pop(number), batch))
                    writer.call(partial(queues.write, batch))
                    last = int(np.flatnonzero(queue >= 0)[-1])
                    self._last_queued = (int(offsets[last]), int(timestamps[last]))
                if index is not None:
                    entries = index_batch(group, queue, offsets, timestamps)
                    writer.call(partial(index.write, entries))
        queues.close()
        if index is not None:
            index.close()
            self.index_msg_timestamp = index.end_timestamp
            self._index_end = last_index_file(f"{self.opened.path}/index")

    def _fill_gap(self, number: int, end: int, batch: CqBatch) -> None:
        """Fills the queue offsets before the base that no message has; `batch` has the first message."""
        first = int(np.flatnonzero(batch.queue_index == number)[0])
        unit = np.zeros(1, CQ_UNIT)
        unit["physical_offset"], unit["size"] = batch.physical_offsets[first], batch.sizes[first]
        queue, base = self.journal.queues[number], self.journal.queue_bases[number]
        fill_gap(self.opened, queue, end, base, unit, self._files)

    def _open_index(self) -> IndexFiles:
        journal = self.journal
        self._index_end = _WRITING
        zone = datetime.timezone(datetime.timedelta(seconds=journal.zone_seconds))
        geometry = IndexGeometry(journal.hash_slot_num, journal.index_num)
        lower_index_mark(self.opened, geometry)
        return IndexFiles(
            f"{self.opened.path}/index",
            geometry,
            journal.written_at,
            zone,
            self._files,
            indexed=self._is_indexed,
        )

    def _is_indexed(self, end: int) -> bool:
        """Whether no message with a key lies between the index's last message, at `end`, and the commit.

        A write without an index, or index files from an older backup, leave such messages.
        """
        if self.journal.base - end > _GAP_MAX:
            return False
        for run in self._log.runs(max(end, self._log.min_offset), self.journal.base):
            refs = self._log.refs_of(run)
            new = refs.select(np.flatnonzero(refs.physical_offsets > end))
            if len(updates.index_batch(new, tag_keys=False).key_hashes):
                return False
        return True

    def disturbance(self) -> str | None:
        """What another process has changed during this commit, as a sentence; None for nothing.

        A broker recovers a store before it takes the lock. It then removes index files, and log and queue
        files behind the end that it finds, and makes entries of the units that it finds.
        """
        gone = self._files.displaced()
        if gone:
            return f"{gone[0]}: another process removed this file while a batch was written. {_NO_BROKER}"
        if self.journal.index and not self._index_is_ours():
            path = f"{self.opened.path}/index"
            return f"{path}: another process changed the index while a batch was written. {_NO_BROKER}"
        return None

    def _index_is_ours(self) -> bool:
        directory, base = f"{self.opened.path}/index", self.journal.index_base
        if base is not None and base[0] not in files_at(directory).names(directory, missing_ok=True):
            return False
        return self._index_end is _WRITING or last_index_file(directory) == self._index_end

    def check_undisturbed(self) -> None:
        """Raises StoreInUseError if another process has changed the store."""
        disturbance = self.disturbance()
        if disturbance is not None:
            raise StoreInUseError(disturbance)


def _queue_batch(
    group: list[Chunk], queue: NDArray[np.int32], layout: LogLayout, counter: QueueCounter
) -> tuple[CqBatch, NDArray[np.int64]]:
    """(The consume queue units of a group of chunks, the physical offsets of all its messages)."""
    sizes = np.concatenate([chunk.units.sizes for chunk in group])
    offsets, _ = layout.place(sizes)
    queue_offsets = counter.take(queue)
    tags_codes = np.concatenate([chunk.tags_codes for chunk in group])
    queued = slice(None) if int(queue.min()) >= 0 else np.flatnonzero(queue >= 0)
    batch = CqBatch(
        queue[queued].astype(np.int64),
        queue_offsets[queued],
        offsets[queued],
        sizes[queued],
        tags_codes[queued],
    )
    return batch, offsets


def _equal_bytes(log: CommitLog, offset: int, expected: NDArray[np.uint8]) -> int:
    """How many of the first bytes at a physical offset are the expected ones."""
    try:
        found = np.frombuffer(log.read(offset, len(expected)), np.uint8)
    except StoreError:  # no such file
        return 0
    different = np.flatnonzero(found != expected)
    return int(different[0]) if len(different) else len(expected)


# ---- the checkpoint ----------------------------------------------------------------------------------------
# After a crash a broker deletes each index file that ends after `index_msg_timestamp`, and indexes again only
# the messages that its recovery scans (IndexService.load): older keys are lost. A broker moves this time when
# an index file is full. We move it with each flushed commit, so that a crash in a later commit, before its
# index entries, costs no key.


def save_checkpoint(opened: Opened, checkpoint: Checkpoint, files: FileWrites) -> None:
    file, made = files.open_full(f"{opened.path}/checkpoint", CHECKPOINT_FILE_SIZE)
    with file:
        file.write(0, pack(CHECKPOINT, {name: getattr(checkpoint, name) for name in CHECKPOINT.names or ()}))
        files.sync(file)
    if made:
        files.sync_directory(opened.path)


def note_flushed(opened: Opened, last_offset: int, timestamp: int) -> None:
    """Notes in the checkpoint that all messages up to `last_offset` are on the disk.

    Called before a commit without flush leaves `abort` in a store that was shut down cleanly. A broker that
    starts then scans the log from the file with the message at `last_offset` on. Without logicsPhysicalOffset
    in the checkpoint (before 5.5, or nothing flushed since) the broker starts at an older file, and cuts the
    log at a damaged message there.
    """
    checkpoint = read_checkpoint(f"{opened.path}/checkpoint") or Checkpoint()
    if 0 <= checkpoint.logics_physical_offset < last_offset:
        noted = replace(
            checkpoint,
            physic_msg_timestamp=max(checkpoint.physic_msg_timestamp, timestamp),
            logics_msg_timestamp=max(checkpoint.logics_msg_timestamp, timestamp),
            logics_physical_offset=last_offset,
        )
        save_checkpoint(opened, noted, FileWrites(sync=True))


def index_end(opened: Opened, geometry: IndexGeometry, *, last: int = 1) -> int | None:
    """The end timestamp (ms) of the `last` index file from the end, 1 being the newest; None without it."""
    listed = list_index_files(f"{opened.path}/index")
    if len(listed) < last:
        return None
    file = IndexFile.open(
        listed[-last].path, hash_slot_num=geometry.hash_slot_num, index_num=geometry.index_num
    )
    return file.header().end_timestamp


def lower_index_mark(opened: Opened, geometry: IndexGeometry) -> None:
    """Lowers `index_msg_timestamp` before the last index file changes.

    If this process dies, a broker then removes the file with its incomplete entries, whatever their time.
    Always synced: the checkpoint must be on the disk before the entries.
    """
    checkpoint = read_checkpoint(f"{opened.path}/checkpoint")
    full = index_end(opened, geometry, last=2) or 0
    if checkpoint is not None and checkpoint.index_msg_timestamp > full:
        save_checkpoint(opened, replace(checkpoint, index_msg_timestamp=full), FileWrites(sync=True))
