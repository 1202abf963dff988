"""From slices of queues to record batches: queue entries point to messages, messages are checked and decoded.

One reader reads many queues at once. Their entries are sorted into commitlog order, so that thousands of
small queues cost about as much as one large queue, and each file is read from front to back. The order within
a queue is kept.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from store_format.commitlog.log import CommitLog
from store_format.consumequeue.bounds import queue_bounds
from store_format.consumequeue.ext import is_ext_address, resolve_tags_codes
from store_format.consumequeue.slices import CHUNK_ENTRIES, QueueSlice, cut_slice, place_of_entry, read_slice
from store_format.errors import CorruptStoreError, OffsetOutOfRangeError, StoreNotFoundError
from store_format.layouts import BATCH_CQ_UNIT, CQ_UNIT, MESSAGE_SIZE_MIN
from store_format.message.columns import COLUMNS, DecodeOptions, arrow_schema, decode_parts
from store_format.message.unit_refs import BadUnit, Identity, UnitRefs
from store_format.names import SCHEDULE_TOPIC, is_light_queue
from store_format.read.tolerance import Tolerance

_log = logging.getLogger(__name__)

# (bytes, rows): a batch has at least so many rows as long as it stays below so many bytes. Spark's socket
# moves 2 to 4 MB fastest; few rows are dear to decode.
_BATCH_SIZES = ((2 << 20, 1 << 20), (4 << 20, 4096), (8 << 20, 512))
# of rows without content 8,192 are decoded within a core's own cache, more are not
_ROW_BYTES_WITHOUT_CONTENT = 256
_WITHOUT_CONTENT_SHIFT = 5  # but bodies are looked at for their CRC: at most 256 MB of the log
_CONTENT = frozenset({"body", "rawBody", "properties"})

_Ints = NDArray[np.int64]
_SliceUnits = tuple[_Ints, NDArray[np.void]]  # queue offsets and units


@dataclass(frozen=True, slots=True)
class Entries:
    """Queue entries as arrays; `piece` is the index of the slice to which an entry belongs.

    `tags_code` is None for a scan of the commitlog, where no entry gives it. `count` is the number of queue
    offsets of each entry, None if all have one.
    """

    piece: NDArray[np.int32]
    queue_offset: _Ints
    physical_offset: _Ints
    size: _Ints
    tags_code: _Ints | None
    count: NDArray[np.int16] | None = None

    def __len__(self) -> int:
        return len(self.piece)

    def select(self, index: NDArray[np.generic] | slice) -> Entries:
        tags_code = None if self.tags_code is None else self.tags_code[index]
        count = None if self.count is None else self.count[index]
        return Entries(
            self.piece[index],
            self.queue_offset[index],
            self.physical_offset[index],
            self.size[index],
            tags_code,
            count,
        )


@dataclass(slots=True)
class QueueReader:
    """Reads slices of queues of one store.

    With `tags_codes`, entries of other tags are skipped by their hash before the message is read.
    """

    log: CommitLog
    broker_name: str
    decode_options: DecodeOptions = field(default_factory=DecodeOptions)
    tolerance: Tolerance = field(default_factory=Tolerance)
    tags_codes: frozenset[int] | None = None
    ext_directory: str = ""
    chunk_entries: int = CHUNK_ENTRIES

    def read(self, slices: Sequence[QueueSlice]) -> Iterator[pa.RecordBatch]:
        """Batches of about 2 MB. Rows of one queue are in queue order; queues read together may interleave.

        Raises CorruptStoreError for a damaged message in mode FAILFAST, OffsetOutOfRangeError or
        StoreNotFoundError for a deleted one.
        """
        for chunk, entries in self._chunks(slices):
            yield from self.read_entries(chunk, entries)

    # ---- entries -------------------------------------------------------------------------------------------

    def _chunks(self, slices: Sequence[QueueSlice]) -> Iterator[tuple[list[QueueSlice], Entries]]:
        """The entries of as many slices as fit a chunk; a larger slice comes in several chunks."""
        pieces: list[QueueSlice] = []
        parts: list[_SliceUnits] = []
        held = 0
        for whole in slices:
            for piece in cut_slice(whole):
                part = self._units(piece)
                pieces.append(piece)
                parts.append(part)
                held += len(part[1])
                if held >= self.chunk_entries:
                    yield pieces, self._entries(pieces, parts)
                    pieces, parts, held = [], [], 0
        if pieces:
            yield pieces, self._entries(pieces, parts)

    def _units(self, piece: QueueSlice) -> _SliceUnits:
        try:
            return read_slice(piece)
        except (OffsetOutOfRangeError, StoreNotFoundError) as error:
            return read_slice(self._after_loss(piece, error))

    def _entries(self, pieces: Sequence[QueueSlice], parts: Sequence[_SliceUnits]) -> Entries:
        """The entries of all slices, one kind of queue at a time.

        There may be thousands of slices of a few entries each.
        """
        kinds = [
            np.array([i for i, piece in enumerate(pieces) if piece.queue.is_batch == is_batch], np.int32)
            for is_batch in (False, True)
        ]
        made = [
            self._entries_of(index, pieces, [parts[i] for i in index.tolist()])
            for index in kinds
            if len(index)
        ]
        return made[0] if len(made) == 1 else _joined_entries(made)

    def _entries_of(
        self, index: NDArray[np.int32], pieces: Sequence[QueueSlice], parts: Sequence[_SliceUnits]
    ) -> Entries:
        """The entries of the slices at `index`, all of one kind of queue."""
        is_batch = pieces[int(index[0])].queue.is_batch
        offsets = np.concatenate([offsets for offsets, _ in parts])
        # Without a dtype, numpy concatenates records in native byte order.
        units = np.concatenate([units for _, units in parts], dtype=BATCH_CQ_UNIT if is_batch else CQ_UNIT)
        piece_of = np.repeat(index, [len(units) for _, units in parts])
        tags = units["tags_code"].astype(np.int64)
        external = is_ext_address(tags)
        for i in np.unique(piece_of[external]).tolist():
            mine = piece_of == i
            tags[mine] = resolve_tags_codes(
                f"{self.ext_directory}/{pieces[i].topic}/{pieces[i].queue_id}", tags[mine]
            )
        physical, size = units["physical_offset"].astype(np.int64), units["size"].astype(np.int64)
        entries = Entries(
            piece_of,
            offsets,
            physical,
            size,
            tags,
            units["batch_size"].astype(np.int16) if is_batch else None,
        )
        if self.tags_codes is None or is_batch:
            return entries  # a batch unit has the code of the batch, not of its messages
        # ExpressionMessageFilter.isMatchedByConsumeQueue: (int) tagsCode. A scheduled message's is a time.
        timed = np.array([pieces[i].topic == SCHEDULE_TOPIC for i in range(len(pieces))])[piece_of]
        return entries.select(
            timed | np.isin(tags.astype(np.int32), np.array(sorted(self.tags_codes), np.int32))
        )

    def _after_loss(self, piece: QueueSlice, error: OffsetOutOfRangeError | StoreNotFoundError) -> QueueSlice:
        """The rest of a slice whose first files retention has deleted since planning."""
        bounds = piece.queue.bounds
        if bounds is None:
            raise error
        now = queue_bounds(bounds.kind, bounds.directory, piece.topic, piece.queue_id, self.log.min_offset)
        start, stop = (
            (piece.stop, piece.stop)
            if now is None
            else (max(piece.start, now.min_offset), min(piece.stop, now.max_offset))
        )
        stop = piece.stop if piece.queue.extra else stop
        start = min(start, stop)
        self.tolerance.lose(piece.stop - piece.start - (stop - start), error)
        return QueueSlice(replace(piece.queue, bounds=now), start, stop)

    # ---- messages ------------------------------------------------------------------------------------------

    def read_entries(self, pieces: Sequence[QueueSlice], entries: Entries) -> Iterator[pa.RecordBatch]:
        """The messages to which entries of these slices point."""
        names = tuple(dict.fromkeys(piece.topic for piece in pieces))
        entries = self._in_log(pieces, entries)
        if not len(entries):
            return
        if len(pieces) > 1:
            entries = _in_log_order(entries)
        files = self.log.file_index(entries.physical_offset)
        for start, stop in _file_runs(files):
            yield from self._read_file(int(files[start]), pieces, names, entries.select(slice(start, stop)))

    def _in_log(self, pieces: Sequence[QueueSlice], entries: Entries) -> Entries:
        """Without the entries whose messages retention has deleted since planning."""
        gone = (entries.physical_offset >= 0) & (entries.physical_offset < self.log.min_offset)
        if not gone.any():
            return entries
        first = int(np.flatnonzero(gone)[0])
        piece, offset = pieces[int(entries.piece[first])], int(entries.queue_offset[first])
        self.tolerance.lose(
            int(gone.sum()),
            OffsetOutOfRangeError(
                f"{piece.topic}-{piece.queue_id} offset {offset}: the message at commitlog "
                f"{int(entries.physical_offset[first])} was "
                f"deleted (retention); the log now begins at {self.log.min_offset}"
            ),
            "Start later, or set failOnDataLoss=false to continue without these messages",
        )
        return entries.select(~gone)

    def _read_file(
        self, file_index: int, pieces: Sequence[QueueSlice], names: tuple[str, ...], entries: Entries
    ) -> Iterator[pa.RecordBatch]:
        if file_index < 0:
            yield from self._outside(pieces, entries)
            return
        file = self.log.files[file_index]
        try:
            view = self.log.view(file)
        except StoreNotFoundError as error:
            self.tolerance.lose(len(entries), error)
            return
        ranks = {name: rank for rank, name in enumerate(names)}
        topic_of_piece = np.array([ranks[piece.topic] for piece in pieces], np.int32)
        queue_of_piece = np.array([piece.queue_id for piece in pieces], np.int32)
        light = tuple(is_light_queue(name) for name in names)
        buffer = view.map()
        for start, stop in self._cuts(entries.size):
            part = entries.select(slice(start, stop))
            topic_index = topic_of_piece[part.piece] if len(names) > 1 else None
            identity = Identity(
                names,
                topic_index,
                queue_of_piece[part.piece],
                part.queue_offset,
                light,
                _wanted_offsets(pieces, part),
                part.count,
            )
            refs = UnitRefs(
                view.path,
                buffer,
                file.start,
                part.physical_offset - file.start,
                part.size,
                part.tags_code,
                identity,
            )
            yield from self._decode(refs)

    def _outside(self, pieces: Sequence[QueueSlice], entries: Entries) -> Iterator[pa.RecordBatch]:
        """Entries that point outside all commitlog files: damage of the queue, not loss."""
        end = self.log.stop
        expected = f"a commitlog offset between {self.log.min_offset} and {end}, inside a file"
        bad = []
        for i in range(len(entries)):
            physical, offset = int(entries.physical_offset[i]), int(entries.queue_offset[i])
            path, position = place_of_entry(pieces[int(entries.piece[i])], offset)
            bad.append(
                BadUnit(
                    i, CorruptStoreError(path, position, expected, f"{physical} at queue offset {offset}")
                )
            )
        self.tolerance.drop(bad)
        if self.tolerance.mode == "PERMISSIVE":
            names = tuple(piece.topic for piece in pieces)
            queue_ids = np.array([piece.queue_id for piece in pieces], np.int32)[entries.piece]
            identity = Identity(names, entries.piece, queue_ids, entries.queue_offset)
            nowhere = np.empty(0, np.uint8)
            refs = UnitRefs(
                "", nowhere, 0, entries.physical_offset, entries.size, entries.tags_code, identity
            )
            for unit in bad:
                yield _corrupt_row(refs, unit, self.decode_options.names, self.broker_name)

    def _cuts(self, sizes: _Ints) -> Iterator[tuple[int, int]]:
        """Ranges of about 2 MB, more where that is few rows (`_BATCH_SIZES`), at least one row."""
        sizes = np.maximum(
            sizes, MESSAGE_SIZE_MIN
        )  # a smaller size is damage, and must not let more rows into the batch
        if not _CONTENT.intersection(self.decode_options.names):
            sizes = np.maximum(sizes >> _WITHOUT_CONTENT_SHIFT, _ROW_BYTES_WITHOUT_CONTENT)
        ends = np.cumsum(sizes)
        start, total = 0, len(sizes)
        while start < total:
            base = int(ends[start - 1]) if start else 0
            fits = np.searchsorted(ends, [base + size for size, _ in _BATCH_SIZES], side="right").tolist()
            stop = max(
                start + 1,
                *(min(fit, start + rows) for fit, (_, rows) in zip(fits, _BATCH_SIZES, strict=True)),
            )
            yield start, min(stop, total)
            start = stop

    def _decode(self, refs: UnitRefs) -> Iterator[pa.RecordBatch]:
        for part, batch, bad in decode_parts(refs, self.decode_options, self.broker_name):
            self.tolerance.drop(bad)
            if bad and self.tolerance.mode == "PERMISSIVE":
                yield from self._with_corrupt_rows(part, bad)
            elif batch.num_rows:
                yield batch

    def _with_corrupt_rows(self, refs: UnitRefs, bad: list[BadUnit]) -> Iterator[pa.RecordBatch]:
        """The same messages again, with a row for each damaged one in its place."""
        start = 0
        for unit in bad:
            yield from self._good(refs, start, unit.index)
            yield _corrupt_row(refs, unit, self.decode_options.names, self.broker_name)
            start = unit.index + 1
        yield from self._good(refs, start, len(refs))

    def _good(self, refs: UnitRefs, start: int, stop: int) -> Iterator[pa.RecordBatch]:
        if start < stop:
            for _, batch, _ in decode_parts(
                refs.select(np.arange(start, stop)), self.decode_options, self.broker_name
            ):
                if batch.num_rows:
                    yield batch


def _joined_entries(parts: list[Entries]) -> Entries:
    if len(parts) == 1:
        return parts[0]
    names = ("piece", "queue_offset", "physical_offset", "size", "tags_code")
    joined = Entries(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))
    if all(part.count is None for part in parts):
        return joined
    return replace(
        joined,
        count=np.concatenate(
            [np.ones(len(part), np.int16) if part.count is None else part.count for part in parts]
        ),
    )


def _in_log_order(entries: Entries) -> Entries:
    """Entries by physical offset, if that keeps the order of every queue, as in all logs of brokers."""
    same_queue = entries.piece[1:] == entries.piece[:-1]
    if (entries.physical_offset[1:] <= entries.physical_offset[:-1])[same_queue].any():
        return entries
    return entries.select(np.argsort(entries.physical_offset, kind="stable"))


def _file_runs(files: _Ints) -> Iterator[tuple[int, int]]:
    """Ranges of equal file numbers."""
    edges = np.flatnonzero(np.diff(files)) + 1
    starts = [0, *edges.tolist()]
    yield from zip(starts, [*edges.tolist(), len(files)], strict=True)


def _wanted_offsets(pieces: Sequence[QueueSlice], part: Entries) -> tuple[_Ints, _Ints] | None:
    """The range of the slice for each entry, for entries of several offsets; None if there are none."""
    if not any(piece.queue.is_batch for piece in pieces):
        return None
    starts, stops = np.array([piece.start for piece in pieces]), np.array([piece.stop for piece in pieces])
    return starts[part.piece], stops[part.piece]


def _corrupt_row(refs: UnitRefs, unit: BadUnit, names: tuple[str, ...], broker_name: str) -> pa.RecordBatch:
    """A row for a message that could not be decoded: its place and the error; all other columns are null."""
    known: dict[str, object] = {
        "brokerName": broker_name,
        "physicalOffset": refs.base + int(refs.positions[unit.index]),
        "storeSize": int(refs.sizes[unit.index]),
        "tagsCode": None if refs.tags_codes is None else int(refs.tags_codes[unit.index]),
        "_corrupt_record": str(unit.error),
    }
    if refs.identity is not None:
        known |= {
            "topic": refs.identity.topic_of(unit.index),
            "queueId": int(refs.identity.queue_ids[unit.index]),
            "queueOffset": int(refs.identity.queue_offsets[unit.index]),
        }
    schema = arrow_schema(names)
    arrays = [pa.array([known.get(name)], COLUMNS.get(name, pa.string())) for name in names]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
