"""The queue offset of a point in time, as a broker finds it (MessageStore.getOffsetInQueueByTime): by the
steps of its search where files have the whole queue, else, as in damaged queues, by definition.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable

import pyarrow as pa

from store_format.commitlog.log import CommitLog
from store_format.consumequeue.offset_by_time import QueueTimes, offset_at
from store_format.consumequeue.own_files import Boundary
from store_format.consumequeue.slices import QueueRange
from store_format.errors import CorruptStoreError
from store_format.message.single import HEAD_SIZE_MAX, read_head
from store_format.names import is_light_queue


def offset_at_time(
    queue: QueueRange, log: CommitLog, timestamp_ms: int, boundary: Boundary, on_damage: str
) -> int:
    """The offset that the broker's search finds, of a queue with entries; see `Queue.offset_at`.

    By the broker's steps where files describe the whole queue and every message on the way can be read, else
    by definition. A queue with parts is searched as its consume queue has it, as by a broker.
    """
    if queue.parts:
        by_own = _offset_in_own(queue, log, timestamp_ms, boundary)
        if by_own is not None:
            return by_own
        queue = queue.in_log
    bounds = queue.bounds
    if bounds is not None and not queue.extra and queue.max_offset == bounds.max_offset:
        unknown: list[int] = []

        def time_at(physical_offset: int, offset: int) -> int:
            time = _time_at(queue, log, physical_offset, offset, on_damage)
            if time < 0 and (physical_offset >= bounds.commit_log_min or offset >= queue.min_offset):
                unknown.append(physical_offset)
            return time

        found = offset_at(bounds, timestamp_ms, boundary, time_at)
        if not unknown:
            return found
    piece = queue.piece(queue.min_offset, queue.max_offset)
    times = QueueTimes(piece, lambda place, offset: _time_at(queue, log, place, offset, on_damage))
    if boundary == "LOWER":
        return queue.min_offset + bisect_left(times, timestamp_ms)
    return queue.min_offset + max(bisect_right(times, timestamp_ms) - 1, 0)


def _offset_in_own(queue: QueueRange, log: CommitLog, timestamp_ms: int, boundary: Boundary) -> int | None:
    own = queue.parts[0].own
    if own is None:
        return None
    oldest = log.store_timestamp_at(log.min_offset) if log.files and queue.bounds is not None else -1
    return own.offset_at(timestamp_ms, boundary, oldest if oldest >= 0 else None, log.cache)


def offset_in_rows(
    queue: QueueRange, batches: Iterable[pa.RecordBatch], timestamp_ms: int, boundary: Boundary
) -> int:
    """The offset that `offset_at_time` returns, from all rows of a queue that a scan of the log has found.

    LOWER is the first offset stored at or after the time, UPPER the last one stored at or before it.
    """
    found, before = queue.max_offset, queue.min_offset
    for batch in batches:
        offsets, times = batch["queueOffset"].to_numpy(), batch["storeTimestampMs"].to_numpy()
        found = min([found, *offsets[times >= timestamp_ms].tolist()])
        before = max([before, *offsets[times <= timestamp_ms].tolist()])
    return found if boundary == "LOWER" else before


def _time_at(queue: QueueRange, log: CommitLog, physical_offset: int, offset: int, on_damage: str) -> int:
    claim = None if queue.is_batch or is_light_queue(queue.topic) else (queue.queue_id, offset)
    time = log.store_timestamp_at(physical_offset, claim)
    error = _damage_at(queue, log, physical_offset) if time < 0 and on_damage == "FAILFAST" else None
    if error is not None:
        raise error
    return time


def _damage_at(queue: QueueRange, log: CommitLog, physical_offset: int) -> CorruptStoreError | None:
    """Why the time of an entry's message cannot be read; None where retention has deleted the message."""
    log = log.relisted()
    if 0 <= physical_offset < log.min_offset:
        return None
    name = f"{queue.topic}-{queue.queue_id}"
    file = log.file_at(physical_offset)
    if file is None:
        stop = log.stop
        place = name if queue.bounds is None else queue.bounds.directory
        expected = f"commitlog offsets between {log.min_offset} and {stop}, inside a file"
        return CorruptStoreError(place, 0, expected, f"{physical_offset}")
    position = physical_offset - file.start
    head = log.view(file).read(position, HEAD_SIZE_MAX)
    expected = (
        f"a message of {name}, for a search by time: magic code 0xDAA320A7 (V1) or 0xDAA320AB (V2), "
        f"physicalOffset {physical_offset}, the queue id and the offset of the entry"
    )
    return CorruptStoreError(file.path, position, expected, _head_found(head))


def _head_found(data: bytes) -> str:
    head = read_head(data)
    if head is None:
        return "the end of the file"
    return f"0x{head.magic:08X}, {head.physical_offset}, queue id {head.queue_id}, offset {head.queue_offset}"
