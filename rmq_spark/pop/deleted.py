"""Messages that retention deleted before they were delivered: counted, with one warning for a run of them."""

from __future__ import annotations

import logging

from rmq_spark.pop.metrics import Counters
from rmq_spark.pop.share import ConsumerShare
from store_format.display.text import shown
from store_format.errors import StoreError
from store_format.pop.state import PopQueue, PopState
from store_format.read.store import Queue

_log = logging.getLogger(__name__)


def note_deleted(counters: Counters, queue: Queue, start: int, count: int) -> None:
    """Counts messages of the queue that were deleted, the first of them at offset `start`, and warns."""
    counters.add(lost=count)
    _log.warning(
        "%s: queue %s-%d: retention deleted %d messages, from offset %d on, before they were delivered",
        queue.store.path, shown(queue.topic), queue.queue_id, count, start,
    )  # fmt: skip


def skip_deleted(share: ConsumerShare, key: PopQueue, queue: Queue) -> int:
    """Moves the next offset to the first message that the store has now. Returns how many it passes over.

    The queue was listed before retention deleted the messages: entries that were read ahead lead to them.
    """
    try:
        found = share.store.snapshot(queue.topic.__eq__).queues.get((queue.topic, queue.queue_id))
    except StoreError:
        return 0  # the next look at the store raises it
    low = 0 if found is None else found.min_offset

    def change(state: PopState) -> int:
        known = state.queues.get(key)
        count = 0 if known is None else low - known.next_offset
        if count > 0:
            state.skip(*key, low)
        return max(count, 0)

    return share.run(change)
