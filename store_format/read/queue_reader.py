"""From slices of queues to record batches: queue entries point to messages, messages are checked and decoded.

One reader reads many queues at once. Their entries come in commitlog order, so that thousands of small queues
cost about as much as one large queue, and each file is read once from front to back.

Messages of a topic's queues lie interleaved in the log. Queues that are read together are therefore read in
the same stretches of the log: a few blocks of entries of each queue are held, and the entries of all queues
up to a common physical offset leave as one chunk. The order within a queue is kept, even where its entries
are not in the order of the log.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from itertools import groupby, pairwise
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from store_format.commitlog.log import CommitLog
from store_format.consumequeue.own_files import gone_since
from store_format.consumequeue.slices import QueueSlice
from store_format.consumequeue.units import FiledQueue, is_ext_address, resolve_tags_codes
from store_format.display.text import shown
from store_format.errors import (
    CorruptStoreError,
    FileReplacedError,
    OffsetOutOfRangeError,
    StoreNotFoundError,
)
from store_format.files.paths import StoreFile
from store_format.files.view import Buffers, FileWindow, read_sizes
from store_format.layouts import BATCH_CQ_UNIT, CQ_EXT_ADDRESS_MAX, CQ_UNIT, MESSAGE_SIZE_MIN, OFFSET_MAX
from store_format.message.columns import COLUMNS, DecodeOptions, arrow_schema
from store_format.message.locate import BadUnit, Identity, UnitRefs
from store_format.names import SCHEDULE_TOPIC, QueueKey, is_light_queue
from store_format.read.tolerance import Tolerance
from store_format.survey.entry_proofs import LogEntries
from store_format.survey.gone import QueueProofs

_log = logging.getLogger(__name__)

CHUNK_ENTRIES = 1 << 16  # their arrays fit a core's own cache: 28 ns an entry, 43 ns in chunks of 2^18
_GROUP_CHUNKS = 4  # so many slices are read at once that their first blocks are at most four chunks
_BLOCK_ENTRIES_MIN = 256  # a smaller read of a queue costs more for each entry than decoding the message
_SHIFTED_MAX = 1 << 16
_UNREAD, _EVERYTHING = -(2**63), 2**63 - 1

# (bytes, rows): a batch has at least so many rows as long as it stays below so many bytes. Spark's socket
# moves 2 to 4 MB fastest; few rows are dear to decode.
_BATCH_SIZES = ((2 << 20, 1 << 20), (4 << 20, 4096), (8 << 20, 512))
# of rows without content 8,192 are decoded within a core's own cache, more are not
_ROW_BYTES_WITHOUT_CONTENT = 256
_WITHOUT_CONTENT_SHIFT = 5
_READ_SIZE = 16 << 20  # bytes of the log that are read for a batch: bodies are looked at for their CRC
_CONTENT = frozenset({"body", "rawBody", "properties"})

_Ints = NDArray[np.int64]
_Suspect = tuple[QueueKey, int, tuple[int, int]]  # queue, queue offset, (physical offset, size)


# ---- entries in the order of the log -----------------------------------------------------------------------


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

    def select(self, index: slice) -> Entries:
        """The entries of a range, which are not copied."""
        return self._of_each(lambda values: values[index])

    def take(self, index: _Ints) -> Entries:
        """The entries at `index`, in that order."""
        return self._of_each(lambda values: values.take(index))

    def _of_each(self, chosen: Callable[[NDArray[Any]], NDArray[Any]]) -> Entries:
        return Entries(
            chosen(self.piece),
            chosen(self.queue_offset),
            chosen(self.physical_offset),
            chosen(self.size),
            None if self.tags_code is None else chosen(self.tags_code),
            None if self.count is None else chosen(self.count),
        )


@dataclass(slots=True)
class _Block:
    """Entries of one piece of a slice. `keys` sorts them into the order of the log; it never decreases."""

    piece: QueueSlice
    offsets: _Ints
    units: NDArray[np.void]
    keys: _Ints

    def __len__(self) -> int:
        return len(self.keys)

    def cut(self, count: int) -> tuple[_Block, _Block]:
        """The first `count` entries, and the others."""
        return tuple(  # type: ignore[return-value] # two
            _Block(self.piece, self.offsets[part], self.units[part], self.keys[part])
            for part in (slice(count), slice(count, None))
        )


@dataclass(slots=True)
class _Cursor:
    """How far a slice has been read: the blocks that are held, the largest key, and the pieces to read."""

    stop: int
    pieces: Iterator[QueueSlice]
    held: list[_Block] = field(default_factory=list)
    key: int = _UNREAD
    is_finished: bool = False  # the last piece has been read

    @property
    def first_key(self) -> int:
        return int(self.held[0].keys[0])

    def hold(self, piece: QueueSlice, offsets: _Ints, units: NDArray[np.void]) -> int:
        """Holds a block. Returns the number of its entries."""
        self.is_finished = piece.stop >= self.stop
        if not len(units):
            return 0
        keys = units["physical_offset"].astype(np.int64)
        if keys[0] < self.key or (keys[1:] < keys[:-1]).any():
            keys = np.maximum(np.maximum.accumulate(keys), self.key)
        self.held.append(_Block(piece, offsets, units, keys))
        self.key = int(keys[-1])
        return len(units)

    def take(self, key: int) -> Iterator[_Block]:
        """Gives up the held entries with keys up to and including `key`."""
        while self.held:
            block = self.held[0]
            if block.keys[-1] <= key:
                yield self.held.pop(0)
                continue
            count = int(np.searchsorted(block.keys, key, side="right"))
            if count:
                taken, self.held[0] = block.cut(count)
                yield taken
            return


@dataclass(slots=True)
class EntryReader:
    """Reads the entries of slices of one store, without those that `tags_codes` (None: all) leaves out."""

    log: CommitLog
    tolerance: Tolerance
    tags_codes: frozenset[int] | None = None
    ext_directory: str = ""
    chunk_entries: int = CHUNK_ENTRIES

    def chunks(self, slices: Sequence[QueueSlice]) -> Iterator[tuple[list[QueueSlice], Entries]]:
        """(pieces of the slices, their entries in the order of the log), about `chunk_entries` at a time."""
        group: list[QueueSlice] = []
        held = 0
        for piece in slices:
            group.append(piece)
            held += min(piece.stop - piece.start, _BLOCK_ENTRIES_MIN)
            if held >= _GROUP_CHUNKS * self.chunk_entries:
                yield from self._merged(group)
                group, held = [], 0
        if group:
            yield from self._merged(group)

    def _merged(self, slices: Sequence[QueueSlice]) -> Iterator[tuple[list[QueueSlice], Entries]]:
        """The entries of slices that are read at once.

        Always the slice whose held entries end first in the log is read on, so that the same stretch of the
        log is held of each slice. Where slices lie one behind the other in the log, each step takes entries
        of few slices: a chunk is made of many steps, and a step looks at these slices only.
        """
        step = max(self.chunk_entries // (2 * len(slices)), min(_BLOCK_ENTRIES_MIN, self.chunk_entries))
        cursors = [_Cursor(piece.stop, piece.parts(step)) for piece in slices]
        unfinished = [(_UNREAD, number) for number in range(len(cursors))]  # by the last key that was read
        holding: list[tuple[int, int]] = []  # by the first key that is held
        blocks: list[_Block] = []
        held = taken = 0
        while unfinished or held:
            # the first slice must hold something: nothing else is certain to lie up to its last key
            while unfinished and (held < self.chunk_entries or not cursors[unfinished[0][1]].held):
                _, number = heappop(unfinished)
                cursor = cursors[number]
                was_empty = not cursor.held
                count = self._load(cursor, step)
                if count is None:
                    continue
                held += count
                if was_empty and cursor.held:
                    heappush(holding, (cursor.first_key, number))
                if not cursor.is_finished:
                    heappush(unfinished, (cursor.key, number))
            stop = unfinished[0][0] if unfinished else _EVERYTHING
            numbers = []
            while holding and holding[0][0] <= stop:
                numbers.append(heappop(holding)[1])
            given: list[_Block] = []
            for number in sorted(numbers):
                given += cursors[number].take(stop)
                if cursors[number].held:
                    heappush(holding, (cursors[number].first_key, number))
            count = sum(map(len, given))
            if blocks and taken + count > self.chunk_entries:
                yield [block.piece for block in blocks], self._entries(blocks)
                blocks, taken = [], 0
            blocks += given
            held, taken = held - count, taken + count
        if blocks:
            yield [block.piece for block in blocks], self._entries(blocks)

    def _load(self, cursor: _Cursor, step: int) -> int | None:
        """Reads the next block of a slice. Returns the number of its entries, None at the slice's end."""
        piece = next(cursor.pieces, None)
        if piece is None:
            return None
        try:
            return cursor.hold(piece, *LogEntries(self.log).read(piece))
        except (OffsetOutOfRangeError, StoreNotFoundError) as error:
            cursor.pieces = self._after_loss(piece._replace(stop=cursor.stop), error).parts(step)
        piece = next(cursor.pieces, None)
        return None if piece is None else cursor.hold(piece, *LogEntries(self.log).read(piece))

    def _after_loss(self, piece: QueueSlice, error: OffsetOutOfRangeError | StoreNotFoundError) -> QueueSlice:
        """The rest of a slice whose first files retention has deleted since planning."""
        bounds = piece.queue.bounds
        if bounds is None:
            raise error
        filed = FiledQueue(piece.topic, piece.queue_id, bounds.directory, bounds.kind)
        now = filed.bounds(self.log.min_offset)
        start, stop = (
            (piece.stop, piece.stop)
            if now is None
            else (max(piece.start, now.min_offset), min(piece.stop, now.max_offset))
        )
        stop = piece.stop if piece.queue.extra else stop
        start = min(start, stop)
        self.tolerance.lose(piece.stop - piece.start - (stop - start), error)
        return QueueSlice(piece.queue._replace(bounds=now), start, stop)

    # ---- arrays --------------------------------------------------------------------------------------------

    def _entries(self, blocks: Sequence[_Block]) -> Entries:
        """The entries of all blocks, in the order of the log.

        There may be thousands of blocks of a few entries each.
        """
        kinds = [
            np.array(
                [i for i, block in enumerate(blocks) if block.piece.queue.is_batch == is_batch], np.int32
            )
            for is_batch in (False, True)
        ]
        made = [self._entries_of(index, [blocks[i] for i in index.tolist()]) for index in kinds if len(index)]
        entries, keys = made[0] if len(made) == 1 else _joined(made)
        if len(blocks) > 1 and (keys[1:] < keys[:-1]).any():
            entries = entries.take(np.argsort(keys, kind="stable"))
        return entries

    def _entries_of(self, index: NDArray[np.int32], blocks: Sequence[_Block]) -> tuple[Entries, _Ints]:
        """(entries of the blocks, all of one kind of queue, their keys); `index` numbers the blocks."""
        is_batch = blocks[0].piece.queue.is_batch
        # to native byte order in the same pass, which is faster than a copy as stored
        layout = (BATCH_CQ_UNIT if is_batch else CQ_UNIT).newbyteorder("=")
        units = np.concatenate([block.units for block in blocks], dtype=layout)
        piece_of = np.repeat(index, [len(block) for block in blocks])
        tags = units["tags_code"].astype(np.int64)
        external = is_ext_address(tags)
        for i in np.unique(piece_of[external]).tolist() if external.any() else ():
            piece, mine = blocks[int(np.searchsorted(index, i))].piece, piece_of == i
            tags[mine] = resolve_tags_codes(
                f"{self.ext_directory}/{piece.topic}/{piece.queue_id}", tags[mine]
            )
        entries = Entries(
            piece_of,
            np.concatenate([block.offsets for block in blocks]),
            units["physical_offset"].astype(np.int64),
            units["size"].astype(np.int64),
            tags,
            units["batch_size"].astype(np.int16) if is_batch else None,
        )
        keys = np.concatenate([block.keys for block in blocks])
        if self.tags_codes is None or is_batch:
            return entries, keys  # a batch unit has the code of the batch, not of its messages
        # ExpressionMessageFilter.isMatchedByConsumeQueue: (int) tagsCode. A scheduled message's is a time.
        timed = np.repeat(
            [block.piece.topic == SCHEDULE_TOPIC for block in blocks], [len(block) for block in blocks]
        )
        kept = timed | np.isin(tags.astype(np.int32), np.array(sorted(self.tags_codes), np.int32))
        kept |= external & is_ext_address(tags)  # unknown: the message decides
        return entries.take(np.flatnonzero(kept)), keys[kept]


def _joined(parts: Sequence[tuple[Entries, _Ints]]) -> tuple[Entries, _Ints]:
    names = ("piece", "queue_offset", "physical_offset", "size", "tags_code")
    joined = Entries(*(np.concatenate([getattr(part, name) for part, _ in parts]) for name in names))
    counts = [np.ones(len(part), np.int16) if part.count is None else part.count for part, _ in parts]
    return replace(joined, count=np.concatenate(counts)), np.concatenate([keys for _, keys in parts])


# ---- messages ----------------------------------------------------------------------------------------------


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
    _buffers: Buffers = field(default_factory=list)
    _damage: dict[StoreFile, list[tuple[int, int]]] = field(default_factory=dict)

    def read(self, slices: Sequence[QueueSlice]) -> Iterator[pa.RecordBatch]:
        """Batches of about 2 MB. Rows of one queue are in queue order; queues read together may interleave.

        Parts of queues with files of their own come first, each from its own log. Raises CorruptStoreError
        for a damaged message in mode FAILFAST, OffsetOutOfRangeError or StoreNotFoundError for a deleted one,
        and FileReplacedError if a broker has replaced a file of such a part since planning.
        """
        parts = [part for piece in slices for part in piece.by_part()]
        apart = (piece for piece in parts if piece.queue.own is not None)
        for _, mine in groupby(apart, lambda piece: id(piece.queue)):
            yield from self._read_own(list(mine))
        yield from self._read_log([piece for piece in parts if piece.queue.own is None])

    def _read_own(self, pieces: Sequence[QueueSlice]) -> Iterator[pa.RecordBatch]:
        """`read` of slices of one part that has files of its own."""
        own = pieces[0].queue.own
        assert own is not None
        try:
            yield from replace(self, log=own.log(self.log.cache), _buffers=[], _damage={})._read_log(pieces)
        except StoreNotFoundError as error:
            raise gone_since(str(error).partition(":")[0]) from error

    def _read_log(self, slices: Sequence[QueueSlice]) -> Iterator[pa.RecordBatch]:
        reader = EntryReader(
            self.log, self.tolerance, self.tags_codes, self.ext_directory, self.chunk_entries
        )
        for pieces, entries in reader.chunks(slices):
            yield from self.read_entries(pieces, entries)

    def read_entries(self, pieces: Sequence[QueueSlice], entries: Entries) -> Iterator[pa.RecordBatch]:
        """The messages to which entries of these slices point, in the order of the entries."""
        names = tuple(dict.fromkeys(piece.topic for piece in pieces))
        if not len(entries):
            return
        lowest, highest = entries.physical_offset.min(), entries.physical_offset.max()
        first, last = self.log.file_index(np.array([lowest, highest])).tolist()
        if first == last >= 0:  # of the first file on, and of one file
            yield from self._read_file(first, pieces, names, entries)
            return
        entries = self._in_log(pieces, entries)
        if not len(entries):
            return
        files = self.log.file_index(entries.physical_offset)
        edges = np.flatnonzero(np.diff(files)) + 1
        for start, stop in pairwise([0, *edges.tolist(), len(files)]):
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
        bounds = _bounds_of_batches(pieces)
        parts = [entries.select(slice(*cut)) for cut in self._cuts(entries)]
        for part, window in zip(parts, self._windows(file, parts), strict=False):
            topic_index = topic_of_piece[part.piece] if len(names) > 1 else None
            identity = Identity(
                names,
                topic_index,
                queue_of_piece[part.piece],
                part.queue_offset,
                light,
                None if bounds is None else (bounds[0][part.piece], bounds[1][part.piece]),
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
            yield from self._decode(refs, pieces)

    def _windows(self, file: StoreFile, parts: Sequence[Entries]) -> Iterator[FileWindow]:
        """The bytes of the messages of each part; ends with a part that is lost."""
        done = 0
        try:
            ranges = ((each.physical_offset, each.size) for each in parts)
            for window in self.log.unit_windows(file, ranges, self._buffers):
                done += 1
                yield window
        except (StoreNotFoundError, FileReplacedError) as error:
            if file.is_remote:
                raise  # a program copies the store again: the messages are not lost
            self.tolerance.lose(sum(len(part) for part in parts[done:]), error)

    def _outside(self, pieces: Sequence[QueueSlice], entries: Entries) -> Iterator[pa.RecordBatch]:
        """Entries that point outside all commitlog files: damage of the queue, not loss."""
        end = self.log.stop
        expected = f"a commitlog offset between {self.log.min_offset} and {end}, inside a file"
        bad = []
        suspects = {}
        for i in range(len(entries)):
            physical, offset = int(entries.physical_offset[i]), int(entries.queue_offset[i])
            piece = pieces[int(entries.piece[i])]
            path, position = piece.place_of(offset)
            found = "no message" if physical == LogEntries.NOWHERE else str(physical)
            error = CorruptStoreError(path, position, expected, f"{found} at queue offset {offset}")
            bad.append(BadUnit(i, error))
            if physical != LogEntries.NOWHERE:
                suspects[i] = (piece.topic, piece.queue_id), offset, (physical, int(entries.size[i]))
        right = self._right_entries(pieces, suspects)
        bad = [unit for unit in bad if unit.index not in right]
        self.tolerance.drop(bad)
        for each in right.values():
            yield from self.read_entries(pieces, each)
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

    def _cuts(self, entries: Entries) -> Iterator[tuple[int, int]]:
        """Ranges of about 2 MB, more where that is few rows (`_BATCH_SIZES`), at least one row."""
        sizes = entries.size
        if (
            sizes.min(initial=MESSAGE_SIZE_MIN) < MESSAGE_SIZE_MIN
        ):  # damage, which must not let more rows into the batch
            sizes = np.maximum(sizes, MESSAGE_SIZE_MIN)
        read_each = read_sizes(entries.physical_offset, sizes)
        if not _CONTENT.intersection(self.decode_options.names):
            sizes = np.maximum(sizes >> _WITHOUT_CONTENT_SHIFT, _ROW_BYTES_WITHOUT_CONTENT)
        ends = np.cumsum(sizes)
        reads = ends if read_each is sizes else np.cumsum(read_each)
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

    def _decode(self, refs: UnitRefs, pieces: Sequence[QueueSlice]) -> Iterator[pa.RecordBatch]:
        from store_format.message.decode import decode_parts  # planning imports this module, too

        for part, batch, bad in decode_parts(refs, self.decode_options, self.broker_name):
            right = self._right_entries(pieces, _suspects(part, bad)) if bad else {}
            self.tolerance.drop([unit for unit in bad if unit.index not in right])
            if right or (bad and self.tolerance.mode == "PERMISSIVE"):
                yield from self._with_bad(part, bad, right, pieces)
            elif batch.num_rows:
                yield batch

    def _right_entries(
        self, pieces: Sequence[QueueSlice], suspects: Mapping[int, _Suspect]
    ) -> dict[int, Entries]:
        """Of entries that lead to no message of their queue, by index: the right one, if the log has it."""
        numbers = {(piece.topic, piece.queue_id): i for i, piece in enumerate(pieces) if _is_plain(piece)}
        suspects = {
            i: each
            for i, each in suspects.items()
            if each[0] in numbers and not LogEntries(self.log).is_own(*each)
        }
        # with offsets of messages in lost or damaged bytes, the log may have those of a deleted topic
        lost = [*QueueProofs.lost_ranges(self.log), *self._damaged(suspects.values())] if suspects else []
        bounds = [pieces[numbers[key]].queue.bounds for key in {key for key, _, _ in suspects.values()}]
        begun = QueueProofs.begun_again(self.log, [each for each in bounds if each is not None])
        suspects = {
            i: each
            for i, each in suspects.items()
            if each[0] not in begun and not any(start <= each[2][0] < stop for start, stop in lost)
        }
        wanted: dict[QueueKey, set[int]] = {}
        before = dict[int, range]()  # shifted entries hide the first messages of a queue
        for i, (key, offset, (physical, _)) in suspects.items():
            wanted.setdefault(key, set()).add(offset)
            if offset == pieces[numbers[key]].queue.min_offset:
                there = LogEntries(self.log).message_at(physical)
                if there is not None and there.key == key and offset - there.offset <= _SHIFTED_MAX:
                    before[i] = range(there.offset, offset)
                    wanted[key].update(before[i])
        found = LogEntries(self.log).entries_of(
            [(pieces[numbers[key]].queue, np.array(sorted(mine))) for key, mine in wanted.items()]
        )
        right: dict[int, Entries] = {}
        for i, (key, offset, place) in suspects.items():
            if key not in found:
                continue
            offsets, units = found[key].queue_offsets, found[key].units
            mine = (offsets == offset) | np.isin(offsets, before.get(i, ()))
            offsets, units = offsets[mine], units[mine]
            columns = [units[name].astype(np.int64) for name in ("physical_offset", "size", "tags_code")]
            if len(units) and (columns[0][-1], columns[1][-1]) != place:
                right[i] = Entries(np.full(len(units), numbers[key], np.int32), offsets, *columns)
        if right:
            (topic, queue_id), offset, _ = suspects[min(right)]
            _log.warning(
                "%d entries of consume queues lead to other messages, the first at offset %d of %s-%d: their "
                "messages are read from the commitlog",
                sum(map(len, right.values())), offset, shown(topic), queue_id,
            )  # fmt: skip
        return right

    def _damaged(self, suspects: Iterable[_Suspect]) -> Iterator[tuple[int, int]]:
        """The damaged bytes [start, stop) of the commitlog files to which entries lead. Each is read once."""
        for file in {self.log.file_at(physical) for _, _, (physical, _) in suspects}:
            if file is not None and file not in self._damage:
                self._damage[file] = [each.range for each in self.log.damage(file.start, file.stop)]
            yield from () if file is None else self._damage[file]

    def _with_bad(
        self, refs: UnitRefs, bad: list[BadUnit], right: Mapping[int, Entries], pieces: Sequence[QueueSlice]
    ) -> Iterator[pa.RecordBatch]:
        """The messages of `refs` in their order, where the units in `bad` cannot be decoded.

        A bad unit with an entry in `right` becomes the message of that entry. Any other becomes a row with
        the error in the mode PERMISSIVE, and else no row.
        """
        start = 0
        for unit in bad:
            yield from self._good(refs, start, unit.index)
            if unit.index in right:
                yield from self.read_entries(pieces, right[unit.index])
            elif self.tolerance.mode == "PERMISSIVE":
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


def _is_plain(piece: QueueSlice) -> bool:
    """Whether the messages of the piece say its queue, and each has an entry of its own."""
    return piece.queue.is_derived and not is_light_queue(piece.topic)


def _suspects(refs: UnitRefs, bad: Sequence[BadUnit]) -> dict[int, _Suspect]:
    """The entries of bad units, by their index; none for a scan of the commitlog, which has no entries."""
    who = refs.identity
    if who is None or refs.tags_codes is None:
        return {}
    return {
        i: (
            (who.topic_of(i), int(who.queue_ids[i])),
            int(who.queue_offsets[i]),
            (int(refs.physical_offsets[i]), int(refs.sizes[i])),
        )
        for i in (unit.index for unit in bad)
    }


def _bounds_of_batches(pieces: Sequence[QueueSlice]) -> tuple[_Ints, _Ints] | None:
    """For each slice, the first offset that is wanted of its entries, and the one behind the last; None if
    all entries have one offset.

    Only an entry of several offsets can reach beyond its slice. For an entry of one offset the range is
    unlimited, because `_right_entries` may have added entries from outside of the slice.
    """
    if not any(piece.queue.is_batch for piece in pieces):
        return None
    edges = [(each.start, each.stop) if each.queue.is_batch else (0, OFFSET_MAX) for each in pieces]
    starts, stops = np.array(edges, np.int64).T
    return starts, stops


def _corrupt_row(refs: UnitRefs, unit: BadUnit, names: tuple[str, ...], broker_name: str) -> pa.RecordBatch:
    """A row for a message that could not be decoded: its place and the error; all other columns are null."""
    code = None if refs.tags_codes is None else int(refs.tags_codes[unit.index])
    known: dict[str, object] = {
        "brokerName": broker_name,
        "physicalOffset": int(refs.physical_offsets[unit.index]),
        "storeSize": int(refs.sizes[unit.index]),
        "tagsCode": None if code is None or code <= CQ_EXT_ADDRESS_MAX else code,
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
