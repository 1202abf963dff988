"""A micro-batch becomes splits: from the two offsets alone, so that a replay gives the same rows.

What lies between them and is no longer there is data loss, told queue by queue and counted.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from rmq_spark.options import ReadOptions
from rmq_spark.plan import Plan, available_cores
from rmq_spark.splits import Findings, Piece, Split, estimate_bytes, make_splits, splits_of_clients
from rmq_spark.stream_offsets import FROM, QueueKey, StreamOffset, queue_name
from rmq_spark.stream_stores import StreamStores
from store_format import Queue
from store_format.errors import OffsetOutOfRangeError, OptionError
from store_format.slices import QueueSlice

__all__ = ["plan_stream", "ranges"]

_log = logging.getLogger(__name__)


def ranges(start: StreamOffset, end: StreamOffset) -> dict[QueueKey, tuple[int, int]]:
    """[start, stop) of every queue that has messages in the micro-batch: from `$from`, else from the offset before."""
    found: dict[QueueKey, tuple[int, int]] = {}
    for key, stop in end.positions.items():
        low = end.starts.get(key, start.positions.get(key))
        if low is None:
            raise OptionError(f'the checkpoint tells no start of {queue_name(key)}, neither in "{FROM}" nor before; was it edited?')
        if low > stop:
            raise OptionError(f"the checkpoint has {queue_name(key)} from {low} back to {stop}; was it edited?")
        if low < stop:
            found[key] = low, stop
    return found


def plan_stream(
    options: ReadOptions,
    stores: StreamStores,
    start: StreamOffset,
    end: StreamOffset,
    *,
    clients: Sequence[frozenset[QueueKey]] | None = None,
    cores: int | None = None,
) -> Plan:
    """The splits of a micro-batch, at least one. `clients` are the queues of each partition, where a group's strategy says it.

    Raises OffsetOutOfRangeError for messages that are gone, unless failOnDataLoss is false: then they are counted in the plan.
    """
    wanted = ranges(start, end)
    if not all(_holds(stores.queues.get(key), *bounds) for key, bounds in wanted.items()):
        stores.look(anew=True)  # a replay, or retention since the end was decided
    found = Findings()
    by_broker = {store.broker_name: store for store in stores.stores}
    scanned: dict[str, list[QueueSlice]] = {}
    for key, (low, high) in wanted.items():
        queue = stores.queues.get(key)
        piece = _slice(key, queue, low, high, options, found)
        if queue is None or piece is None or piece.start >= piece.stop:
            continue
        if queue.scanned is None:
            store = by_broker[key[1]]  # one object for all its queues, however old what is known of each
            found.pieces.append(Piece(store, piece, min(estimate_bytes(piece), store.log.size_bytes)))
        else:
            scanned.setdefault(queue.store.path, []).append(piece)
    for follower in stores.followers if scanned else ():
        slices = scanned.get(follower.store.path, [])
        if slices:
            queues = [follower.queues[piece.topic, piece.queue_id].scanned for piece in slices]
            repeated = [queue for queue in queues if queue is not None and len(queue.epochs) > 1]
            found.scanned.append((follower.store, slices, repeated, follower.cuts))
    if clients is not None:
        return Plan(splits_of_clients(found, clients) or [Split()], found.lost)
    return Plan(make_splits(found, options, cores or available_cores()), found.lost)


def _holds(queue: Queue | None, low: int, high: int) -> bool:
    return queue is not None and queue.min_offset <= low and high <= queue.max_offset


def _slice(key: QueueKey, queue: Queue | None, low: int, high: int, options: ReadOptions, found: Findings) -> QueueSlice | None:
    there = (0, 0) if queue is None else (queue.min_offset, queue.max_offset)
    start, stop = min(max(low, there[0]), high), max(min(high, there[1]), low)
    lost = (high - low) - max(stop - start, 0)
    if lost:
        held = "the queue is gone" if queue is None else f"the queue holds {there[0]} to {there[1]}"
        message = f"{queue_name(key)}: of offsets {low} to {high} of this batch {lost} are no longer there; {held}"
        if options.fail_on_data_loss:
            raise OffsetOutOfRangeError(f"{message}. Set failOnDataLoss=false to go on without them")
        found.lost += lost
        _log.warning("%d messages lost: %s", lost, message)
    return None if queue is None or start >= stop else queue.range.piece(start, stop)
