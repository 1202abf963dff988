"""`tail -f`: the last messages of stores, then what is written to them, for as long as somebody listens."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from rmq_spark.cli.filters import Filters
from rmq_spark.cli.reading import chosen_queues, last_messages, read_range
from store_format.read.tolerance import Tolerance

if TYPE_CHECKING:
    from store_format import MessageStore, Queue

__all__ = ["Follower"]

_PLACE = ("topic", "queueId")
_Key = tuple[str, str, int]


class Follower:
    """Where each queue of the stores has been read to. First `last` once, then `news` for ever."""

    def __init__(
        self, stores: Sequence[MessageStore], filters: Filters, names: Sequence[str], tolerance: Tolerance
    ) -> None:
        self._stores, self._filters, self._names, self._tolerance = stores, filters, names, tolerance
        self._ends: dict[_Key, int] = {}

    def last(self, count: int) -> list[pa.RecordBatch]:
        """The last messages there are. The ends of the queues are noted before they are read, so that nothing
        falls between.
        """
        found = []
        for store in self._stores:
            for queue in chosen_queues(store, self._filters):
                self._ends[_key(store, queue)] = queue.max_offset
            for batch in last_messages(
                store, self._filters, (*self._names, *_PLACE), count, self._tolerance
            ).to_batches():
                found.append(_before(batch, store, self._ends).select(self._names))
        return found

    def news(self, pause: Callable[[], object]) -> Iterator[pa.RecordBatch]:
        """What is written from then on, each message once. `pause` is called before each look; what it raises
        ends it.
        """
        while True:
            pause()
            for store in self._stores:
                yield from _news(store, self._filters, self._names, self._tolerance, self._ends)


def _key(store: MessageStore, queue: Queue) -> _Key:
    return store.path, queue.topic, queue.queue_id


def _before(batch: pa.RecordBatch, store: MessageStore, ends: dict[_Key, int]) -> pa.RecordBatch:
    """Without what was written while the last messages were read: it comes with the next look."""
    places = zip(
        batch["topic"].to_pylist(),
        batch["queueId"].to_pylist(),
        batch["queueOffset"].to_pylist(),
        strict=True,
    )
    return batch.filter(
        pa.array(
            [offset < ends.get((store.path, topic, queue), 0) for topic, queue, offset in places], pa.bool_()
        )
    )


def _news(
    store: MessageStore, filters: Filters, names: Sequence[str], tolerance: Tolerance, ends: dict[_Key, int]
) -> Iterator[pa.RecordBatch]:
    """What came since the last look, in the order of the log. A queue that was cut back begins again at its
    end.
    """
    ranges = []
    for queue in chosen_queues(store, filters):
        key = _key(store, queue)
        start = max(ends.get(key, queue.min_offset), queue.min_offset)
        if queue.max_offset > start:
            ranges.append((queue, start, queue.max_offset))
        ends[key] = queue.max_offset
    batches = list(read_range(store, ranges, filters, names, tolerance)) if ranges else []
    if batches:
        table = pa.Table.from_batches(batches)
        order = pc.sort_indices(table, [("physicalOffset", "ascending"), ("queueOffset", "ascending")])
        yield from table.take(order).select(names).combine_chunks().to_batches()
