"""`tail -f`: the last messages of stores, then each new message, until an interrupt.

The store follower reports which queues changed; this module reads their new messages. Positions that a store
no longer has are handled as a stream with failOnDataLoss=false handles them: a warning with a count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from rmq_spark.cli.reading import last_messages, merged, read_range
from rmq_spark.consume.consumer import MessageQueue
from rmq_spark.stream.stores import Losses
from store_format.follow.follower import StoreFollower
from store_format.read.choice import MessageChoice
from store_format.read.tolerance import Tolerance

if TYPE_CHECKING:
    from store_format import MessageStore, Queue


class Tail:
    """The next offset of each chosen queue of some stores. Call `last` once, then `news`."""

    def __init__(
        self,
        stores: Sequence[MessageStore],
        filters: MessageChoice,
        names: Sequence[str],
        tolerance: Tolerance,
    ) -> None:
        self._filters, self._names, self._tolerance = filters, names, tolerance
        self._followers = [StoreFollower(store, filters) for store in stores]
        self._next: dict[MessageQueue, int] = {}
        self._deleted: set[MessageQueue] = set()
        self._losses = Losses(fail_on_data_loss=False)

    def last(self, count: int) -> list[pa.RecordBatch]:
        """The last `count` messages of all stores, by store time."""
        tables: list[pa.Table] = []
        for follower in self._followers:
            follower.look()
            queues = list(follower.queues.values())
            self._next |= {_name(queue): queue.max_offset for queue in queues}
            tables.append(
                last_messages(follower.store, queues, self._filters, self._names, count, self._tolerance)
            )
        found: list[pa.RecordBatch] = merged(tables, self._names, count, last=True).to_batches()
        return found

    def news(self, pause: Callable[[], object]) -> Iterator[pa.RecordBatch]:
        """Messages written after `last`, each once, in the order of their log. `pause` is called before each
        look; an exception that it raises ends the iteration.
        """
        while True:
            pause()
            for follower in self._followers:
                if follower.look():
                    yield from self._read(follower)

    def _read(self, follower: StoreFollower) -> Iterator[pa.RecordBatch]:
        ranges = []
        for (topic, queue_id), queue in follower.changed.items():
            if queue is None:
                self._deleted.add(MessageQueue(topic, follower.store.broker_name, queue_id))
            else:
                ranges.append((queue, self._start(follower, queue), queue.max_offset))
        self._losses.report()
        self._next |= {_name(queue): stop for queue, _, stop in ranges}
        batches = list(read_range(ranges, self._filters, self._names, self._tolerance))
        if batches:
            table = pa.Table.from_batches(batches)
            order = pc.sort_indices(table, [("physicalOffset", "ascending"), ("queueOffset", "ascending")])
            yield from table.take(order).select(self._names).combine_chunks().to_batches()

    def _start(self, follower: StoreFollower, queue: Queue) -> int:
        name = _name(queue)
        position = self._next.get(name, queue.min_offset)
        if name in self._deleted:
            self._deleted.remove(name)
            if queue.max_offset < position:  # created again: all its messages are new
                return queue.min_offset
        replaced = follower.replaced.get((queue.topic, queue.queue_id))
        if replaced is not None:
            return self._losses.replaced(name, position, queue, replaced)
        return self._losses.begin(name, position, queue)


def _name(queue: Queue) -> MessageQueue:
    return MessageQueue(queue.topic, queue.store.broker_name, queue.queue_id)
