"""The splits of a micro-batch, from its two offsets alone, so that a repeated batch returns the same rows.

Messages between the two offsets that no longer exist are data loss: reported for each queue, and counted.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from rmq_spark.consume.consumer import MessageQueue, offset_limits
from rmq_spark.consume.stream_offset import FROM, StreamOffset
from rmq_spark.options.read_options import ReadOptions
from rmq_spark.plan.splits import Plan, Split, StoreSlices, available_cores, make_splits, splits_of_clients
from rmq_spark.stream.stores import StreamStores
from store_format import Queue
from store_format.consumequeue.slices import QueueSlice
from store_format.errors import OffsetOutOfRangeError, OptionError

_log = logging.getLogger(__name__)

QueueRange = tuple[MessageQueue, int, int]  # the messages [low, high) of a queue


def ranges(start: StreamOffset, end: StreamOffset) -> dict[MessageQueue, tuple[int, int]]:
    """[start, stop) of every queue with messages in the micro-batch; `$from` overrides the first offset."""
    found: dict[MessageQueue, tuple[int, int]] = {}
    for name, stop in end.positions.items():
        low = end.starts.get(name, start.positions.get(name))
        if low is None:
            raise OptionError(
                f'the checkpoint has no start offset for {name}, neither in "{FROM}" nor before; '
                "was it edited?"
            )
        if low > stop:
            raise OptionError(f"the checkpoint moves {name} back from offset {low} to {stop}; was it edited?")
        if low < stop:
            found[name] = low, stop
    return found


def plan_stream(
    options: ReadOptions,
    stores: StreamStores,
    start: StreamOffset,
    end: StreamOffset,
    *,
    clients: Sequence[frozenset[MessageQueue]] | None = None,
    cores: int | None = None,
    deleted: frozenset[MessageQueue] = frozenset(),
) -> Plan:
    """The splits of a micro-batch, at least one. With `clients`, each partition reads exactly these queues.

    The `deleted` queues belong to topics that were deleted and created again: what the micro-batch had from
    them no longer exists.

    Raises OffsetOutOfRangeError for messages that no longer exist, or with failOnDataLoss=false counts them.
    """
    wanted = [(name, low, high) for name, (low, high) in ranges(start, end).items()]
    return plan_ranges(options, stores, wanted, clients=clients, cores=cores, deleted=deleted)


def plan_ranges(
    options: ReadOptions,
    stores: StreamStores,
    wanted: Sequence[QueueRange],
    *,
    clients: Sequence[frozenset[MessageQueue]] | None = None,
    cores: int | None = None,
    deleted: frozenset[MessageQueue] = frozenset(),
) -> Plan:
    """The plan of a micro-batch for these ranges; a queue may have several that do not overlap."""
    if not all(_holds(stores.queues.get(name), low, high) for name, low, high in wanted):
        stores.look(anew=True)  # a repeated batch, or retention deleted files since the end was decided
    unchosen = [each for each in wanted if each[0] not in stores.queues and not stores.chooses(each[0])]
    names = {name for name, _, _ in unchosen}
    planning = _BatchPlanning(options)
    found = {
        follower.store.broker_name: StoreSlices(follower.store, follower.cuts)
        for follower in stores.followers
    }
    planning.add([each for each in wanted if each[0] not in names | deleted], stores.queues, found)
    planning.add([each for each in wanted if each[0] in deleted - names], {}, {})
    every = list(found.values())
    for store, there in stores.find_unchosen(names):
        queues = {MessageQueue.of(queue): queue for queue in (*there.queues, *there.scanned)}
        of_store = StoreSlices(store, there.cuts)
        planning.add([each for each in unchosen if each[0] in queues], queues, {store.broker_name: of_store})
        names -= queues.keys()
        every.append(of_store)
    planning.add([each for each in unchosen if each[0] in names], {}, {})  # queues that no longer exist
    if clients is not None:
        return Plan(splits_of_clients(every, clients) or [Split()], planning.lost)
    return Plan(make_splits(every, options, cores or available_cores()), planning.lost)


def _holds(queue: Queue | None, low: int, high: int) -> bool:
    return queue is not None and queue.min_offset <= low and high <= queue.max_offset


@dataclass(slots=True)
class _BatchPlanning:
    """Adds ranges of queues to the slices of their stores, and counts the messages that are `lost`."""

    options: ReadOptions
    lost: int = 0

    def add(
        self,
        wanted: Iterable[QueueRange],
        queues: Mapping[MessageQueue, Queue],
        found: Mapping[str, StoreSlices],
    ) -> None:
        """`found` has the stores by broker name."""
        for name, low, high in wanted:
            queue = queues.get(name)
            piece = self._slice(name, queue, low, high)
            if queue is not None and piece is not None:
                found[name.broker_name].add(queue, piece)

    def _slice(self, name: MessageQueue, queue: Queue | None, low: int, high: int) -> QueueSlice | None:
        """What exists of [low, high); None if nothing does."""
        first, end = offset_limits(queue)
        start, stop = min(max(low, first), high), max(min(high, end), low)
        lost = (high - low) - max(stop - start, 0)
        if lost:
            held = "the queue no longer exists" if queue is None else f"the queue holds {first} to {end}"
            message = f"{name}: {lost} of the messages {low} to {high} of this batch no longer exist; {held}"
            if self.options.fail_on_data_loss:
                raise OffsetOutOfRangeError(f"{message}. Set failOnDataLoss=false to continue without them")
            self.lost += lost
            _log.warning("%d messages lost: %s", lost, message)
        return None if queue is None or start >= stop else queue.range.piece(start, stop)
