"""The entries of a queue that lie ahead of its next offset, matched against the subscription and cached.

A pop chooses messages while it holds the in-flight log, which all processes of the group wait for. So the
consume queue is read before, a stretch of entries at a time, and the choice itself is a lookup in arrays. The
messages are read after the hand-out, when no other consumer can get them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rmq_spark.consume.sql92 import CountingFilter
from rmq_spark.consume.tag_filter import Tags
from store_format.consumequeue.slices import read_slice
from store_format.consumequeue.units import is_ext_address, resolve_tags_codes
from store_format.errors import OffsetOutOfRangeError, StoreNotFoundError, UnsupportedFormatError
from store_format.java.hashes import java_hash
from store_format.message.locate import Identity
from store_format.read.store import Queue
from store_format.read.stored_messages import read_stored

_ENTRIES_MIN, _ENTRIES_MAX = 256, 8192  # each next stretch of a queue is twice as long
_EVALUATED_MAX = 512  # SQL92 needs the messages themselves

_Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class QueueWindow:
    """The matching entries of queue offsets [start, stop): queue offsets, physical offsets and sizes."""

    start: int
    stop: int
    offsets: _Ints
    physical_offsets: _Ints
    sizes: _Ints

    def covers(self, offset: int) -> bool:
        """Whether the window says which message at or after `offset` is the next."""
        return self.start <= offset < self.stop

    def take(self, start: int, count: int) -> tuple[list[int], int]:
        """(up to `count` matching queue offsets from `start` on, the next offset of the queue after them).

        The next offset passes over the entries behind the last message that do not match.
        """
        first = int(self.offsets.searchsorted(start))
        taken: list[int] = self.offsets[first : first + count].tolist()
        if first + len(taken) < len(self.offsets):
            return taken, int(self.offsets[first + len(taken)])
        return taken, self.stop

    def physical_offset(self, offset: int) -> int:
        """The physical offset of the message at this queue offset, which the window has."""
        return int(self.physical_offsets[self.offsets.searchsorted(offset)])

    def places(self, offsets: Sequence[int]) -> list[tuple[int, int]]:
        """(physical offset, size) of the messages at these queue offsets, which the window has."""
        index = self.offsets.searchsorted(offsets)
        return list(zip(self.physical_offsets[index].tolist(), self.sizes[index].tolist(), strict=True))


@dataclass(slots=True)
class Subscription:
    """What a consumer reads of one topic: a TAG or an SQL92 expression, compiled."""

    tags: Tags = None
    where: CountingFilter | None = None


def read_window(queue: Queue, start: int, count: int, subscription: Subscription) -> QueueWindow:
    """About `count` entries of a queue from `start` on, within limits.

    Queues of retry topics are filtered too, as by a broker. The window is empty (`stop` == `start`) at the
    end of the queue. Raises UnsupportedFormatError for a queue that can only be scanned, and for a BatchCQ.
    """
    _refuse(queue)
    where = subscription.where
    count = min(max(count, _ENTRIES_MIN), _ENTRIES_MAX if where is None else _EVALUATED_MAX)
    start = max(start, queue.min_offset)
    stop = max(min(start + count, queue.max_offset), start)
    try:
        offsets, units = read_slice(queue.piece(start, stop))
    except (OffsetOutOfRangeError, StoreNotFoundError):
        # retention has deleted the files since the queue was listed; the next look lists it again
        return QueueWindow(start, start, *(np.empty(0, np.int64) for _ in range(3)))
    physical, sizes = units["physical_offset"].astype(np.int64), units["size"].astype(np.int64)
    if subscription.tags is not None:
        kept = _matching_codes(queue, units["tags_code"].astype(np.int64), subscription.tags)
        offsets, physical, sizes = offsets[kept], physical[kept], sizes[kept]
    if where is not None and len(offsets):
        kept = _matching_messages(queue, offsets, physical, sizes, where)
        offsets, physical, sizes = offsets[kept], physical[kept], sizes[kept]
    return QueueWindow(start, stop, offsets, physical, sizes)


def _refuse(queue: Queue) -> None:
    where = f"{queue.store.path}: queue {queue.topic}-{queue.queue_id}"
    if queue.scanned is not None:
        raise UnsupportedFormatError(
            f"{where}: expected consume queue files, found none; pop reads consume queues only. Rebuild them "
            "with `rmqlog recover`"
        )
    if queue.range.is_batch:
        raise UnsupportedFormatError(
            f"{where}: expected a simple consume queue, found a BatchCQ (queue.type), which pop does not read"
        )


def _matching_codes(queue: Queue, codes: _Ints, tags: frozenset[str]) -> NDArray[np.bool_]:
    """ExpressionMessageFilter.isMatchedByConsumeQueue: the hash decides here, the text after the hand-out."""
    external = is_ext_address(codes)
    if external.any():
        directory = f"{queue.store.path}/consumequeue_ext/{queue.topic}/{queue.queue_id}"
        codes[external] = resolve_tags_codes(directory, codes[external])
    wanted = np.array(sorted(map(java_hash, tags)), np.int32)
    kept: NDArray[np.bool_] = np.isin(codes.astype(np.int32), wanted)
    return kept


def _matching_messages(
    queue: Queue, offsets: _Ints, physical: _Ints, sizes: _Ints, where: CountingFilter
) -> NDArray[np.bool_]:
    """Which messages match the SQL92 expression; a damaged message counts, and its receiver is told."""
    identity = Identity((queue.topic,), None, np.full(len(offsets), queue.queue_id, np.int32), offsets)
    messages, index, _ = read_stored(queue.store.log, physical, sizes, identity)
    kept = np.ones(len(offsets), bool)
    if len(messages):
        names = where.expression.names
        columns = dict(zip(names, messages.properties(*names), strict=True))
        kept[index] = where.mask(len(messages), columns.__getitem__).to_numpy(zero_copy_only=False)
    return kept
