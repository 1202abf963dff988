"""`tail -f`: the last messages of stores, then what is written to them, for as long as somebody listens."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from rmq_spark.cli.filters import Filters
from rmq_spark.cli.reading import chosen_queues, last_messages, read_range
from store_format.reading import Tolerance

if TYPE_CHECKING:
    from store_format import MessageStore, Queue

__all__ = ["follow_stores"]

_Key = tuple[str, str, int]


def follow_stores(
    stores: Sequence[MessageStore], filters: Filters, names: Sequence[str], tolerance: Tolerance, *, pause: Callable[[], object]
) -> Iterator[pa.RecordBatch]:
    """Batches with the columns `names`, without an end. `pause` is called after each look; it may raise to end it.

    The ends of the queues are noted before the last messages are read, so that nothing falls between, and each message comes once.
    """
    assert filters.limit is not None
    ends: dict[_Key, int] = {}
    for store in stores:
        for queue in chosen_queues(store, filters):
            ends[_key(store, queue)] = queue.max_offset
        for batch in last_messages(store, filters, names, filters.limit, tolerance).to_batches():
            yield _before(batch, store, ends).select(names)
    while True:
        pause()
        for store in stores:
            yield from _news(store, filters, names, tolerance, ends)


def _key(store: MessageStore, queue: Queue) -> _Key:
    return store.path, queue.topic, queue.queue_id


def _before(batch: pa.RecordBatch, store: MessageStore, ends: dict[_Key, int]) -> pa.RecordBatch:
    """Without what was written while the last messages were read: it comes with the next look."""
    places = zip(batch["topic"].to_pylist(), batch["queueId"].to_pylist(), batch["queueOffset"].to_pylist(), strict=True)
    return batch.filter(pa.array([offset < ends.get((store.path, topic, queue), 0) for topic, queue, offset in places], pa.bool_()))


def _news(
    store: MessageStore, filters: Filters, names: Sequence[str], tolerance: Tolerance, ends: dict[_Key, int]
) -> Iterator[pa.RecordBatch]:
    """What came since the last look, in the order of the log. A queue that was cut back begins again at its end."""
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
