"""A micro-batch becomes splits: from the two offsets alone, so that a replay gives the same rows.

What lies between them and is no longer there is data loss, told queue by queue and counted.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from rmq_spark.consume.message_queue import MessageQueue, offset_limits
from rmq_spark.consume.stream_offset import FROM, StreamOffset
from rmq_spark.options.read_options import ReadOptions
from rmq_spark.plan.batch import Plan, available_cores
from rmq_spark.plan.splits import Findings, Piece, Split, estimate_bytes, make_splits, splits_of_clients
from rmq_spark.stream.stores import StreamStores
from store_format import Queue
from store_format.consumequeue.slices import QueueSlice
from store_format.errors import OffsetOutOfRangeError, OptionError
from store_format.read.store import Store

__all__ = ["plan_stream", "ranges"]

_log = logging.getLogger(__name__)


def ranges(start: StreamOffset, end: StreamOffset) -> dict[MessageQueue, tuple[int, int]]:
    """[start, stop) of every queue that has messages in the micro-batch: from `$from`, else from the offset
    before.
    """
    found: dict[MessageQueue, tuple[int, int]] = {}
    for key, stop in end.positions.items():
        low = end.starts.get(key, start.positions.get(key))
        if low is None:
            raise OptionError(
                f'the checkpoint tells no start of {key}, neither in "{FROM}" nor before; was it edited?'
            )
        if low > stop:
            raise OptionError(f"the checkpoint has {key} from {low} back to {stop}; was it edited?")
        if low < stop:
            found[key] = low, stop
    return found


def plan_stream(
    options: ReadOptions,
    stores: StreamStores,
    start: StreamOffset,
    end: StreamOffset,
    *,
    clients: Sequence[frozenset[MessageQueue]] | None = None,
    cores: int | None = None,
) -> Plan:
    """The splits of a micro-batch, at least one. `clients` are the queues of each partition, where a group's
    strategy says it.

    Raises OffsetOutOfRangeError for messages that are gone, unless failOnDataLoss is false: then they are
    counted in the plan.
    """
    wanted = ranges(start, end)
    if not all(_holds(stores.queues.get(key), *bounds) for key, bounds in wanted.items()):
        stores.look(anew=True)  # a replay, or retention since the end was decided
    found = Findings()
    unchosen = {
        key: wanted.pop(key) for key in [*wanted] if key not in stores.queues and not stores.chooses(key)
    }
    cuts = {follower.store.broker_name: follower.cuts for follower in stores.followers}
    _add(wanted, stores.queues, {store.broker_name: store for store in stores.stores}, cuts, options, found)
    for store, there in stores.find_unchosen(unchosen):
        queues = {MessageQueue.of(queue): queue for queue in (*there.queues, *there.scanned)}
        _add(
            {key: unchosen.pop(key) for key in queues},
            queues,
            {store.broker_name: store},
            {store.broker_name: there.cuts},
            options,
            found,
        )
    _add(unchosen, {}, {}, {}, options, found)  # what is left is gone
    if clients is not None:
        return Plan(splits_of_clients(found, clients) or [Split()], found.lost)
    return Plan(make_splits(found, options, cores or available_cores()), found.lost)


def _add(
    wanted: Mapping[MessageQueue, tuple[int, int]],
    queues: Mapping[MessageQueue, Queue],
    stores: Mapping[str, Store],
    cuts: Mapping[str, list[int]],
    options: ReadOptions,
    found: Findings,
) -> None:
    """Adds the ranges to `found`, by consume queue or by scan. `stores` and `cuts` are by broker."""
    scanned: dict[str, list[tuple[Queue, QueueSlice]]] = {}
    for key, (low, high) in wanted.items():
        queue = queues.get(key)
        piece = _slice(key, queue, low, high, options, found)
        if queue is None or piece is None or piece.start >= piece.stop:
            continue
        if queue.scanned is None:
            store = stores[key[1]]  # one object for all its queues, however old what is known of each
            found.pieces.append(Piece(store, piece, min(estimate_bytes(piece), store.log.size_bytes)))
        else:
            scanned.setdefault(key[1], []).append((queue, piece))
    for broker, members in scanned.items():
        repeated = [
            queue.scanned
            for queue, _ in members
            if queue.scanned is not None and len(queue.scanned.epochs) > 1
        ]
        found.scanned.append((stores[broker], [piece for _, piece in members], repeated, cuts[broker]))


def _holds(queue: Queue | None, low: int, high: int) -> bool:
    return queue is not None and queue.min_offset <= low and high <= queue.max_offset


def _slice(
    key: MessageQueue, queue: Queue | None, low: int, high: int, options: ReadOptions, found: Findings
) -> QueueSlice | None:
    there = offset_limits(queue)
    start, stop = min(max(low, there[0]), high), max(min(high, there[1]), low)
    lost = (high - low) - max(stop - start, 0)
    if lost:
        held = "the queue is gone" if queue is None else f"the queue holds {there[0]} to {there[1]}"
        message = f"{key}: of offsets {low} to {high} of this batch {lost} are no longer there; {held}"
        if options.fail_on_data_loss:
            raise OffsetOutOfRangeError(f"{message}. Set failOnDataLoss=false to go on without them")
        found.lost += lost
        _log.warning("%d messages lost: %s", lost, message)
    return None if queue is None or start >= stop else queue.range.piece(start, stop)
