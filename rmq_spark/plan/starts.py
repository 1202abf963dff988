"""Where a read begins in a queue by the `starting…` options, of a batch and of a new stream."""

from __future__ import annotations

from rmq_spark.consume.message_queue import MessageQueue
from rmq_spark.options.offset_spec import Earliest, Latest, Offset, Timestamp
from rmq_spark.options.read_options import ReadOptions
from store_format import Queue
from store_format.consumequeue.slices import read_slice
from store_format.errors import OffsetOutOfRangeError


def start_offset(queue: Queue, options: ReadOptions) -> int:
    """The first offset to read by the `starting…` options. It may be outside of the queue."""
    match options.starting.for_queue(queue.topic, queue.store.broker_name, queue.queue_id):
        case Earliest():
            return queue.min_offset
        case Latest():
            return queue.max_offset
        case Offset(value):
            return value
        case Timestamp(ms):
            offset = offset_at(queue, ms, options.mode)
            missing = offset == queue.max_offset > queue.min_offset
            if missing and options.starting_offsets_by_timestamp_strategy == "error":
                raise OffsetOutOfRangeError(
                    f"{MessageQueue.of(queue)}: no message at or after {Timestamp(ms)}; take an earlier "
                    "time, or set startingOffsetsByTimestampStrategy=latest to skip this queue"
                )
            return offset


def offset_at(queue: Queue, timestamp_ms: int, mode: str) -> int:
    """The offset of the first message stored at or after a time; the maximum offset if there is none.

    For a time after the end of a BatchCQ queue a broker answers with the last unit, which is older than the
    time.
    """
    offset = queue.offset_at(timestamp_ms, "LOWER", on_damage=mode)
    if queue.range.is_batch and offset < queue.max_offset:
        _, units = read_slice(queue.piece(offset, offset + 1))
        if len(units) and int(units["store_timestamp"][0]) < timestamp_ms:
            return queue.max_offset
    return offset
