"""From slices of queues to record batches: queue entries point to messages, messages are checked and decoded.

One reader reads many queues at once. Their entries come in commitlog order (`entries.py`), so that thousands
of small queues cost about as much as one large queue, and each file is read once from front to back.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from store_format import kernels
from store_format.commitlog.log import CommitLog
from store_format.consumequeue.slices import QueueSlice, place_of_entry
from store_format.errors import (
    CorruptStoreError,
    FileReplacedError,
    OffsetOutOfRangeError,
    StoreNotFoundError,
)
from store_format.files.read import StoreFile
from store_format.files.view import Window, read_sizes
from store_format.layouts import MESSAGE_SIZE_MIN
from store_format.message.columns import COLUMNS, DecodeOptions, arrow_schema
from store_format.message.unit_refs import BadUnit, Identity, UnitRefs
from store_format.names import is_light_queue
from store_format.read.entries import CHUNK_ENTRIES, Entries, EntryReader
from store_format.read.tolerance import Tolerance

# (bytes, rows): a batch has at least so many rows as long as it stays below so many bytes. Spark's socket
# moves 2 to 4 MB fastest; few rows are dear to decode.
_BATCH_SIZES = ((2 << 20, 1 << 20), (4 << 20, 4096), (8 << 20, 512))
# of rows without content 8,192 are decoded within a core's own cache, more are not
_ROW_BYTES_WITHOUT_CONTENT = 256
_WITHOUT_CONTENT_SHIFT = 5
_READ_SIZE = 16 << 20  # bytes of the log that are read for a batch: bodies are looked at for their CRC
# The first rows of a process, which plain code makes before the kernels are loaded: `take` waits for no more.
_FIRST_ROWS = 1024
_CONTENT = frozenset({"body", "rawBody", "properties"})

_Ints = NDArray[np.int64]


@dataclass(slots=True)
class QueueReader:
    """Reads slices of queues of one store, all slices in one pass over the commitlog.

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
        reader = EntryReader(
            self.log, self.tolerance, self.tags_codes, self.ext_directory, self.chunk_entries
        )
        for pieces, entries in reader.chunks(slices):
            yield from self.read_entries(pieces, entries)

    # ---- messages ------------------------------------------------------------------------------------------

    def read_entries(self, pieces: Sequence[QueueSlice], entries: Entries) -> Iterator[pa.RecordBatch]:
        """The messages to which entries of these slices point, in the order of the entries."""
        names = tuple(dict.fromkeys(piece.topic for piece in pieces))
        entries = self._in_log(pieces, entries)
        if not len(entries):
            return
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
        return entries.take(np.flatnonzero(~gone))

    def _read_file(
        self, file_index: int, pieces: Sequence[QueueSlice], names: tuple[str, ...], entries: Entries
    ) -> Iterator[pa.RecordBatch]:
        if file_index < 0:
            yield from self._outside(pieces, entries)
            return
        file = self.log.files[file_index]
        ranks = {name: rank for rank, name in enumerate(names)}
        topic_of_piece = np.array([ranks[piece.topic] for piece in pieces], np.int32)
        queue_of_piece = np.array([piece.queue_id for piece in pieces], np.int32)
        light = tuple(is_light_queue(name) for name in names)
        parts = [entries.select(slice(*cut)) for cut in self._batches(entries)]
        windows = self._windows(file, parts)
        for part, window in zip(parts, windows, strict=False):
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
                file,
                window.data,
                window.positions,
                part.physical_offset,
                part.size,
                part.tags_code,
                identity,
            )
            yield from self._decode(refs)

    def _windows(self, file: StoreFile, parts: Sequence[Entries]) -> Iterator[Window]:
        """The bytes of the messages of each part; ends with a part that is lost."""
        done = 0
        try:
            for window in self.log.unit_windows(file, ((each.physical_offset, each.size) for each in parts)):
                done += 1
                yield window
        except (StoreNotFoundError, FileReplacedError) as error:
            self.tolerance.lose(sum(len(part) for part in parts[done:]), error)

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
            nowhere, at = np.empty(0, np.uint8), np.zeros(len(entries), np.int64)
            refs = UnitRefs(
                StoreFile("", 0, 0),
                nowhere,
                at,
                entries.physical_offset,
                entries.size,
                entries.tags_code,
                identity,
            )
            for unit in bad:
                yield _corrupt_row(refs, unit, self.decode_options.names, self.broker_name)

    def _batches(self, entries: Entries) -> Iterator[tuple[int, int]]:
        """`_cuts`, but a process begins with few rows at a time."""
        start, total = 0, len(entries)
        while start < total:
            stop = total if kernels.worth(0) else min(start + _FIRST_ROWS, total)
            part = entries.select(slice(start, stop))
            yield from ((start + low, start + high) for low, high in self._cuts(part))
            start = stop

    def _cuts(self, entries: Entries) -> Iterator[tuple[int, int]]:
        """Ranges of about 2 MB, more where that is few rows (`_BATCH_SIZES`), at least one row."""
        reads = np.cumsum(read_sizes(entries.physical_offset, entries.physical_offset + entries.size))
        sizes = entries.size
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
            read = int(reads[start - 1]) if start else 0
            stop = max(start + 1, min(stop, int(np.searchsorted(reads, read + _READ_SIZE, side="right"))))
            yield start, stop
            start = stop

    def _decode(self, refs: UnitRefs) -> Iterator[pa.RecordBatch]:
        from store_format.message.decode import decode_parts  # planning imports this module, too

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
        from store_format.message.decode import decode_parts

        if start < stop:
            for _, batch, _ in decode_parts(
                refs.select(np.arange(start, stop)), self.decode_options, self.broker_name
            ):
                if batch.num_rows:
                    yield batch


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
        "physicalOffset": int(refs.physical_offsets[unit.index]),
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
