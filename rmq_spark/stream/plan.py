"""A micro-batch: how many messages it takes, and the splits that read them.

Spark has no limit that combines `maxOffsetsPerTrigger`, `maxOffsetsPerQueue`, `maxOffsetsPerTopic`,
`maxBytesPerTrigger` and `minOffsetsPerTrigger`, so this module does. It is arithmetic over the messages that
wait in each queue. The positions alone decide which queue's turn it is, so the same state gives the same
batch.

The splits follow from the two offsets alone, so that a repeated batch returns the same rows. Messages between
the two offsets that no longer exist are data loss: reported for each queue, and counted.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from rmq_spark.consume.consumer import MessageQueue, offset_limits
from rmq_spark.consume.stream_offset import FROM, StreamOffset
from rmq_spark.options.read_options import ReadOptions
from rmq_spark.plan.splits import (
    Plan,
    Split,
    StoreSlices,
    available_cores,
    estimate_bytes,
    make_splits,
    splits_of_clients,
)
from rmq_spark.stream.stores import StreamStores
from store_format import Queue
from store_format.consumequeue.slices import QueueSlice
from store_format.errors import OffsetOutOfRangeError, OptionError

_NO_LIMIT = (1 << 63) - 1

# fit(i, count, size) is (n, bytes): the first n of at most `count` messages of queue i have together at most
# `size` bytes.
Fit = Callable[[int, int, int], tuple[int, int]]

_FIRST_READ = 64
_READ_MAX = 1 << 16


# ---- the limits of a micro-batch ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Limits:
    """The rate options; None means no limit."""

    max_offsets: int | None = None
    max_bytes: int | None = None
    max_of_queue: int | None = None
    max_of_topic: int | None = None
    min_offsets: int | None = None
    max_delay_ms: int = 15 * 60_000

    @property
    def has_maximum(self) -> bool:
        """Whether a micro-batch may leave messages for the next one."""
        maxima = self.max_offsets, self.max_bytes, self.max_of_queue, self.max_of_topic
        return any(maximum is not None for maximum in maxima)

    @staticmethod
    def of(options: ReadOptions) -> Limits:
        return Limits(
            options.max_offsets_per_trigger,
            options.max_bytes_per_trigger,
            options.max_offsets_per_queue,
            options.max_offsets_per_topic,
            options.min_offsets_per_trigger,
            options.max_trigger_delay_ms,
        )


@dataclass(slots=True)
class Pace:
    """`minOffsetsPerTrigger`: whether a micro-batch waits for more messages
    (KafkaMicroBatchStream.delayBatch).

    The first micro-batch never waits.
    """

    limits: Limits
    last_ms: int | None = None

    def waits(self, waiting: int, now_ms: int) -> bool:
        """Whether the micro-batch waits: too few messages, and the last batch began less than the delay ago.

        If not, the micro-batch begins at `now_ms`.
        """
        if self.limits.min_offsets is None:
            return False
        due = self.last_ms is None or now_ms - self.last_ms >= self.limits.max_delay_ms
        if not due and waiting < self.limits.min_offsets:
            return True
        self.last_ms = now_ms
        return False


def admit_offsets(waiting: Sequence[int], limit: int, turn: int) -> list[int]:
    """The number of admitted messages of each queue, together min(limit, all).

    Each queue gets a number in proportion to what waits in it, and at least 1. If there are more queues than
    `limit`, they take turns of one message, the queue at `turn` first. `turn` grows by the number of admitted
    messages, as the sum of the positions does, so every queue has its turn after at most queues / limit
    batches.

    >>> admit_offsets([1000, 100, 1], 100, 0)
    [90, 9, 1]
    >>> admit_offsets([9, 9, 9, 9], 2, 3)
    [1, 0, 0, 1]
    """
    total = sum(waiting)
    if total <= limit:
        return list(waiting)
    queues = [i for i, count in enumerate(waiting) if count]
    admitted = [0] * len(waiting)
    if len(queues) >= limit:
        for step in range(limit):
            admitted[queues[(turn + step) % len(queues)]] = 1
        return admitted
    left = limit - len(queues)  # after one message for each queue
    rest = total - len(queues)
    for i in queues:
        admitted[i] = 1 + left * (waiting[i] - 1) // rest
    left = limit - sum(admitted)  # the rest from rounding down: less than one message for each queue
    step = 0
    while left:
        i = queues[(turn + step) % len(queues)]
        if admitted[i] < waiting[i]:
            admitted[i] += 1
            left -= 1
        step += 1
    return admitted


def admit_bytes(
    waiting: Sequence[int], bytes_waiting: Sequence[int], limit: int, turn: int, fit: Fit
) -> list[int]:
    """The number of admitted messages of each queue, together at most `limit` bytes.

    A larger message goes alone. `bytes_waiting` is an estimate by which the limit is divided. The queue at
    `turn` gets one message first, however large, so that every queue makes progress. What a queue does not
    use of its share goes to the others.
    """
    queues = [i for i, count in enumerate(waiting) if count]
    admitted = [0] * len(waiting)
    if not queues:
        return admitted
    order = [queues[(turn + step) % len(queues)] for step in range(len(queues))]
    first = order[0]
    admitted[first], used = 1, fit(first, 1, _NO_LIMIT)[1]
    if used >= limit:
        return admitted
    total = max(sum(bytes_waiting[i] for i in queues), 1)
    sizes = dict.fromkeys(queues, 0) | {first: used}
    for i in queues:
        admitted[i], sizes[i] = fit(i, waiting[i], sizes[i] + (limit - used) * bytes_waiting[i] // total)
    left = limit - sum(sizes.values())
    for i in order:
        if left <= 0:
            break
        if admitted[i] < waiting[i]:
            admitted[i], size = fit(i, waiting[i], sizes[i] + left)
            left -= size - sizes[i]
    return admitted


# ---- the messages that wait --------------------------------------------------------------------------------


def admit(
    stores: StreamStores,
    begins: Mapping[MessageQueue, int],
    stops: Mapping[MessageQueue, int],
    limits: Limits,
) -> dict[MessageQueue, int]:
    """Queue -> the number of its messages in [begin, stop) that go into the next micro-batch."""
    keys = sorted(key for key, stop in stops.items() if stop > begins[key])
    waiting = [stops[key] - begins[key] for key in keys]
    turn = sum(begins.values())
    if limits.max_of_queue is not None:
        waiting = [min(count, limits.max_of_queue) for count in waiting]
    if limits.max_of_topic is not None:
        waiting = _within_topics(keys, waiting, limits.max_of_topic, turn)
    if limits.max_offsets is not None:
        waiting = admit_offsets(waiting, limits.max_offsets, turn)
    if limits.max_bytes is not None:
        sizes = [_Sizes(stores.queues[key], begins[key]) for key in keys]
        estimates = [each.estimate(count) for each, count in zip(sizes, waiting, strict=True)]
        waiting = admit_bytes(
            waiting, estimates, limits.max_bytes, turn, lambda i, count, size: sizes[i].fit(count, size)
        )
    return dict(zip(keys, waiting, strict=True))


def _within_topics(keys: Sequence[MessageQueue], waiting: Sequence[int], limit: int, turn: int) -> list[int]:
    """The number of admitted messages of each queue, together at most `limit` in each topic.

    `keys` are sorted, so the queues of a topic are neighbours.
    """
    admitted: list[int] = []
    for _, queues in groupby(zip(keys, waiting, strict=True), lambda each: each[0].topic):
        admitted += admit_offsets([count for _, count in queues], limit, turn)
    return admitted


class _Sizes:
    """The sizes of a queue's messages from offset `start` on, read from its consume queue as needed."""

    def __init__(self, queue: Queue, start: int) -> None:
        self._queue = queue
        self._start = start
        self._ends: NDArray[np.int64] = np.zeros(1, np.int64)  # bytes of the first n messages

    def estimate(self, count: int) -> int:
        if not count:
            return 0
        if self._queue.scanned is not None:
            return count * self._mean_scanned()
        return estimate_bytes(self._queue.range.piece(self._start, self._start + count))

    def fit(self, count: int, size: int) -> tuple[int, int]:
        """(n, bytes): the first n of at most `count` messages have together at most `size` bytes."""
        if self._queue.scanned is not None:  # without a consume queue only the mean size is known
            mean = self._mean_scanned()
            fitting = min(count, size // mean)
            return fitting, fitting * mean
        while len(self._ends) - 1 < count and self._ends[-1] <= size:
            self._read_on(count)
        fitting = int(np.searchsorted(self._ends[: count + 1], size, side="right")) - 1
        return fitting, int(self._ends[fitting])

    def _mean_scanned(self) -> int:
        scanned = self._queue.scanned
        assert scanned is not None
        messages = sum(stop - first for _, first, stop in scanned.epochs)
        return max(scanned.bytes // max(messages, 1), 1)

    def _read_on(self, count: int) -> None:
        done = len(self._ends) - 1
        step = min(max(_FIRST_READ, done), _READ_MAX, count - done)
        low = self._start + done
        offsets, units = self._queue.range.piece(low, low + step).read()
        self._ends = np.concatenate(
            (self._ends, self._ends[-1] + np.cumsum(_sizes_of(low, step, offsets, units)))
        )


def _sizes_of(low: int, count: int, offsets: NDArray[np.int64], units: NDArray[np.void]) -> NDArray[np.int64]:
    """Bytes for each of `count` offsets from `low` on; 0 for an offset without a unit.

    All bytes of a message batch count at its first offset in this range.
    """
    sizes = np.zeros(count, np.int64)
    places: Sequence[int] | NDArray[np.int64] = np.clip(offsets - low, 0, count - 1)
    np.add.at(sizes, places, np.maximum(units["size"].astype(np.int64), 0))
    return sizes


# ---- the splits --------------------------------------------------------------------------------------------


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
    if planning.losers > 1:
        lost = planning.lost, planning.losers
        _log.warning("in all, %d messages of %d queues are lost in this batch", *lost)
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
    losers: int = 0  # queues that lost messages

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
            if queue is not None and low < first:
                held += f": all {first - low} messages from {low} to {first} were deleted"
            message = f"{name}: {lost} of the messages {low} to {high} of this batch no longer exist; {held}"
            if self.options.fail_on_data_loss:
                raise OffsetOutOfRangeError(f"{message}. Set failOnDataLoss=false to continue without them")
            self.lost += lost
            self.losers += 1
            _log.warning("%d messages lost: %s", lost, message)
        return None if queue is None or start >= stop else queue.range.piece(start, stop)
