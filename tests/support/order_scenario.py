"""Pop in order for `failing_service`: hand-outs, acknowledgements, a dead letter, files for a broker."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from store_format.opened.store import Opened
from tests.support.staged import make_store, numbered
from tests.support.waiting import BEGIN_MS, append

_QUEUES = (0, 1)
_LAST = range(9, 12)  # the offsets of the last batch of each queue
_MINUTE = 60_000


def make_ordered_pop(root: Path) -> None:
    make_store(root)
    append(root, numbered("T", 0, 30, queues=2))


def run_ordered_pop(root: str) -> None:
    """Pops batches of three up to the last one, of which one message becomes a dead letter and one stays.

    A run after a kill goes on with the batches that the run before has popped.
    """
    from rmq_spark.broker.pop.share import PopGroup, ShareOptions
    from store_format import MessageStore
    from store_format.pop import log

    vars(log).update(_COMPACT_SIZE=400, _COMPACT_FACTOR=1)
    options = ShareOptions(init_mode="MIN", fifo=True, clock_ms=lambda: BEGIN_MS)
    share = PopGroup.open(MessageStore.open(root), "g", "T", options)
    share.begin([(0, queue_id) for queue_id in _QUEUES])
    for queue_id in _QUEUES:
        while not _is_last(share, queue_id):
            share.run(lambda state, queue_id=queue_id: _next_batch(state, queue_id))  # type: ignore[misc]
            share.keep()
        _finish(share, queue_id)
    share.keep()
    share.close()


def _is_last(share: Any, queue_id: int) -> bool:
    batch = share.run(lambda state: state.order.batches.get(queue_id))
    return batch is not None and batch.offsets == tuple(_LAST)


def _next_batch(state: Any, queue_id: int) -> None:
    """Acknowledges the batch of the queue, the last message first, and hands out the next."""
    batch = state.order.batches.get(queue_id)
    for offset in reversed(batch.offsets if batch is not None else ()):
        state.order.acknowledge(queue_id, offset, batch.pop_time)
    start = state.queues[0, queue_id].next_offset
    state.order.hand_out(queue_id, range(start, start + 3), pop_time=BEGIN_MS, invisible_ms=_MINUTE)


def _finish(share: Any, queue_id: int) -> None:
    """Of the last batch: the first message becomes a dead letter, the second is acknowledged, one waits."""
    from store_format.metadata.values import SubscriptionGroup

    batch = share.run(lambda state: state.order.batches[queue_id])
    point = share.run(lambda state: state.order.check_point((0, queue_id, _LAST[0], batch.pop_time)))
    if not point.acked & 1:
        share.bury(SubscriptionGroup("g"), [(point, 0)])
    share.run(lambda state: state.order.acknowledge(queue_id, _LAST[1], batch.pop_time))
    later = BEGIN_MS + 5 * _MINUTE
    share.run(lambda state: state.order.change_invisible(queue_id, _LAST[2], batch.pop_time, later))


def ordered_pop_seen(root: str) -> object:
    """Whether the last consumer has closed the log; the file with the batches is compared as a state file."""
    from store_format.pop.log import in_flight_directory, read_in_flight

    state = read_in_flight(in_flight_directory(Opened(root), "g", "T"))
    return None if state is None else (state.is_closed, state.reviving, state.order.in_flight)
