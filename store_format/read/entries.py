"""Queue entries of many slices, merged into the order of the commitlog.

Messages of a topic's queues lie interleaved in the log. Queues that are read together are therefore read in
the same stretches of the log: a few blocks of entries of each queue are held, and the entries of all queues
up to a common physical offset leave as one chunk. The order within a queue is kept, even where its entries
are not in the order of the log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from typing import Any

import numpy as np
from numpy.typing import NDArray

from store_format.commitlog.log import CommitLog
from store_format.consumequeue.bounds import queue_bounds
from store_format.consumequeue.ext import is_ext_address, resolve_tags_codes
from store_format.consumequeue.slices import QueueSlice, cut_slice, read_slice
from store_format.errors import OffsetOutOfRangeError, StoreNotFoundError
from store_format.layouts import BATCH_CQ_UNIT, CQ_UNIT
from store_format.names import SCHEDULE_TOPIC
from store_format.read.tolerance import Tolerance

CHUNK_ENTRIES = 1 << 16  # their arrays fit a core's own cache: 28 ns an entry, 43 ns in chunks of 2^18
_GROUP_CHUNKS = 4  # so many slices are read at once that their first blocks are at most four chunks
_BLOCK_ENTRIES_MIN = 256  # a smaller read of a queue costs more for each entry than decoding the message
_UNREAD, _EVERYTHING = -(2**63), 2**63 - 1

_Ints = NDArray[np.int64]


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

    def hold(self, piece: QueueSlice, offsets: _Ints, units: NDArray[np.void]) -> int:
        """Holds a block. Returns the number of its entries."""
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
        log is held of each slice.
        """
        step = max(self.chunk_entries // (2 * len(slices)), min(_BLOCK_ENTRIES_MIN, self.chunk_entries))
        cursors = [_Cursor(piece.stop, cut_slice(piece, step)) for piece in slices]
        unfinished = [(_UNREAD, number) for number in range(len(cursors))]
        held = 0
        while unfinished or held:
            # the first slice must hold something: nothing else is certain to lie up to its last key
            while unfinished and (held < self.chunk_entries or not cursors[unfinished[0][1]].held):
                _, number = heappop(unfinished)
                count = self._load(cursors[number], step)
                if count is not None:
                    held += count
                    heappush(unfinished, (cursors[number].key, number))
            stop = unfinished[0][0] if unfinished else _EVERYTHING
            blocks = [block for cursor in cursors if cursor.held for block in cursor.take(stop)]
            held -= sum(map(len, blocks))
            if blocks:
                yield [block.piece for block in blocks], self._entries(blocks)

    def _load(self, cursor: _Cursor, step: int) -> int | None:
        """Reads the next block of a slice. Returns the number of its entries, None at the slice's end."""
        piece = next(cursor.pieces, None)
        if piece is None:
            return None
        try:
            return cursor.hold(piece, *read_slice(piece))
        except (OffsetOutOfRangeError, StoreNotFoundError) as error:
            cursor.pieces = cut_slice(self._after_loss(replace(piece, stop=cursor.stop), error), step)
        piece = next(cursor.pieces, None)
        return None if piece is None else cursor.hold(piece, *read_slice(piece))

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
        return entries.take(np.flatnonzero(kept)), keys[kept]


def _joined(parts: Sequence[tuple[Entries, _Ints]]) -> tuple[Entries, _Ints]:
    names = ("piece", "queue_offset", "physical_offset", "size", "tags_code")
    joined = Entries(*(np.concatenate([getattr(part, name) for part, _ in parts]) for name in names))
    counts = [np.ones(len(part), np.int16) if part.count is None else part.count for part, _ in parts]
    return replace(joined, count=np.concatenate(counts)), np.concatenate([keys for _, keys in parts])
