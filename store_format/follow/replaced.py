"""Queues that have other messages at offsets that were read before.

Store files were restored, a topic was deleted and created again, or the tail of the log was written again.
Queue offsets cannot show it. A message of an earlier look that is another one now shows it: the last message
of the log by its first bytes, the last of each queue by the place to which its entry points.

A checkpoint keeps the *place* of a message: its physical offset, and from bit 63 on the CRC32 of its first
bytes. Messages of equal size stand at equal offsets in a store that was restored and written to again.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from zlib import crc32

import numpy as np

from store_format.commitlog.log import CommitLog
from store_format.consumequeue.slices import QueueRange, read_slice, split_at
from store_format.errors import StoreError
from store_format.follow.log_tail import MARKED_SIZE, read_head
from store_format.layouts import BATCH_CQ_UNIT, CQ_UNIT
from store_format.read.log_reader import survey
from store_format.read.store import Queue

_SAMPLES_MAX = 8
_OFFSET_BITS = 63


@dataclass(frozen=True, slots=True)
class Replaced:
    """A queue that has other messages at offsets below `stop`, its end at the earlier look.

    From offset `begin` all its messages are new, because the topic was deleted and created again; None if
    files were replaced.
    """

    stop: int
    begin: int | None


class LogSamples:
    """The last message of the commitlog at each of the last looks: (physical offset, first bytes)."""

    def __init__(self) -> None:
        self._samples: deque[tuple[int, bytes]] = deque(maxlen=_SAMPLES_MAX)

    def add(self, log: CommitLog, physical_offset: int) -> None:
        """Remembers the message at the offset; the same message again costs nothing."""
        if physical_offset < 0 or (self._samples and self._samples[-1][0] == physical_offset):
            return
        head = read_head(log, physical_offset)
        if head:
            self._samples.append((physical_offset, head[: int.from_bytes(head[:4])]))

    def is_intact(self, log: CommitLog) -> bool:
        """Whether the newest sample is unchanged, or was deleted by retention."""
        return not self._samples or _is_same(log, *self._samples[-1])

    def take_intact(self, log: CommitLog) -> int:
        """The physical offset of the newest unchanged sample, -1 without one; later samples are forgotten."""
        while self._samples and not _is_same(log, *self._samples[-1]):
            self._samples.pop()
        return self._samples[-1][0] if self._samples else -1


def _is_same(log: CommitLog, physical_offset: int, head: bytes) -> bool:
    return physical_offset < log.min_offset or read_head(log, physical_offset)[: len(head)] == head


def replaced_by(before: Queue, now: Queue, intact: int | None) -> Replaced | None:
    """How the queue of an earlier look was replaced; None if the queue continues.

    `intact`: only the log up to this physical offset is the same; None: all of it.
    """
    stop = before.max_offset
    if before.scanned is not None or now.scanned is not None:
        last = last_physical_offset(before.range) if before.scanned is None else before.scanned.last
        begin, first = _begin(now)
        if 0 <= last < begin and first < stop:  # -1: an entry does not say where the last message was
            return Replaced(stop, first)
        return Replaced(stop, None) if intact is not None and stop else None
    last, bounds = last_physical_offset(before.range), now.range.bounds
    if last < 0:
        return None
    if bounds is not None and now.min_offset < stop and _begins_behind(now.range, last):
        return Replaced(stop, now.min_offset)
    if intact is not None and last > intact:
        return Replaced(stop, None)
    if bounds is None or now.min_offset >= stop:  # retention deleted the entry
        return None
    # Offsets show a queue that ends earlier.
    return (
        Replaced(stop, None)
        if now.max_offset >= stop and _physical_offset(now.range, stop - 1) not in (last, None)
        else None
    )


def _begins_behind(queue: QueueRange, physical_offset: int) -> bool:
    """Whether the queue's first entry leads behind a physical offset, and the second one still further: a
    single entry may be wrong.
    """
    first = -1 if queue.bounds is None else queue.bounds.first_physical_offset
    if 0 <= first <= physical_offset:
        return False
    last = physical_offset
    for at in range(queue.min_offset, min(queue.min_offset + 2, queue.max_offset)):
        place = _physical_offset(queue, at)
        if place is None or place <= last:
            return False
        last = place
    return last > physical_offset


def _begin(queue: Queue) -> tuple[int, int]:
    """The physical offset and the queue offset of the first message since the queue began again at 0."""
    if queue.scanned is not None:
        return queue.scanned.epochs[-1][:2]
    bounds = queue.range.bounds
    return (-1 if bounds is None else bounds.first_physical_offset), queue.min_offset


def place_before(queue: Queue, offset: int) -> int | None:
    """The place of the message before a queue offset; None without a message.

    None also without a consume queue, unless that message is the last one.
    """
    physical = _physical_offset_before(queue, offset)
    if physical is None:
        return None
    mark = queue.mark if offset == queue.max_offset else None
    return place_at(physical, _mark(queue.store.log, physical) if mark is None else mark)


def place_at(physical_offset: int, mark: int) -> int:
    """The place of a message whose first bytes have the CRC32 `mark`; 0: not known."""
    return physical_offset | mark << _OFFSET_BITS


def physical_offset_of(place: int) -> int:
    """The physical offset of a place."""
    return place & ((1 << _OFFSET_BITS) - 1)


def mark_of(place: int) -> int:
    """The CRC32 of a place; 0 without one, as in a place of an older release."""
    return place >> _OFFSET_BITS


def _mark(log: CommitLog, physical_offset: int) -> int:
    """The CRC32 of the first bytes of a message; 0 if no message can be read there."""
    if not log.has_message_at(physical_offset):
        return 0
    return crc32(read_head(log, physical_offset)[:MARKED_SIZE])


def _physical_offset_before(queue: Queue, offset: int) -> int | None:
    if not queue.min_offset < offset <= queue.max_offset:
        return None
    if queue.scanned is not None:
        return queue.scanned.last if offset == queue.max_offset else None
    last = last_physical_offset(queue.range) if offset == queue.max_offset else -1
    found = last if last >= 0 else _physical_offset(queue.range, offset - 1)
    return None if found is None or found < 0 else found


def replaced_since(queue: Queue, offset: int, place: int) -> Replaced | None:
    """How the queue was replaced since the message before `offset` was at `place`.

    None if the message is still there, or if nothing can tell: retention deleted it, or its entry or the
    message cannot be read.
    """
    physical_offset = physical_offset_of(place)
    if queue.scanned is not None:
        begin, first, _ = queue.scanned.epochs[-1]
        if begin > physical_offset and first < offset:
            return Replaced(offset, first)
        return Replaced(offset, None) if _is_other(queue.store.log, place) else None
    bounds = queue.range.bounds
    if bounds is None or offset <= queue.min_offset:
        return None
    is_there = offset <= queue.max_offset
    if is_there:
        now = _physical_offset_before(queue, offset)
        if now in (physical_offset, None):
            return Replaced(offset, None) if now is not None and _is_other(queue.store.log, place) else None
    if _begins_behind(queue.range, physical_offset):
        return Replaced(offset, queue.min_offset)
    return Replaced(offset, None) if is_there else None


def _is_other(log: CommitLog, place: int) -> bool:
    """Whether another message is at a place."""
    before, now = mark_of(place), _mark(log, physical_offset_of(place))
    return before != now and 0 not in (before, now)


def offset_behind(queue: Queue, place: int) -> int:
    """The first offset of a queue whose message is behind the message at a place."""
    physical_offset = physical_offset_of(place)
    if queue.scanned is None:
        return split_at(queue.piece(), [physical_offset + 1])[1].start
    if queue.scanned.last <= physical_offset:
        return queue.max_offset
    begin, first, _ = queue.scanned.epochs[-1]
    if begin > physical_offset:
        return first
    behind = survey(queue.store.log, queue.topic.__eq__, start=physical_offset).queues[queue.key]
    begin, first, _ = behind.epochs[-1]
    return first + (begin == physical_offset)


def last_physical_offset(queue: QueueRange) -> int:
    """The physical offset of the last message; -1 without one, or if only the queue's files could tell."""
    if queue.extra:
        units = np.frombuffer(queue.extra, BATCH_CQ_UNIT if queue.is_batch else CQ_UNIT)
        return int(units["physical_offset"][-1])
    bounds = queue.bounds
    return -1 if bounds is None or bounds.max_offset != queue.max_offset else bounds.last_physical_offset


def _physical_offset(queue: QueueRange, offset: int) -> int | None:
    """The physical offset that the entry of a queue offset points to; None if it cannot be read."""
    try:
        _, units = read_slice(queue.piece(offset, offset + 1))
    except StoreError:
        return None
    return int(units["physical_offset"][-1]) if len(units) and units["size"][-1] > 0 else None
