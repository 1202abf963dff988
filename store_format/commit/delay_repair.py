"""The delay levels whose next message lies behind the end of their queue: they are lowered to this end.

A service that goes on from there would skip as many new messages as the queue has lost. A broker corrects the
same when it starts (ScheduleMessageService.correctDelayOffset).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from store_format.commitlog.log import CommitLog
from store_format.consumequeue.bounds import queue_bounds
from store_format.consumequeue.files import QueueBounds
from store_format.consumequeue.listing import queue_directory
from store_format.errors import StoreError
from store_format.metadata.read import read_delay_offsets
from store_format.names import SCHEDULE_TOPIC, QueueKey
from store_format.survey.queues import ComparedQueue


class LoweredLevel(NamedTuple):
    """A delay level (from 1): its next queue offset in delayOffset.json, and the end of its queue."""

    level: int
    offset: int
    end: int


def lowered_levels(
    source: str,
    root: str,
    log: CommitLog,
    compared: Mapping[QueueKey, ComparedQueue],
    ahead: Sequence[tuple[QueueBounds, int]],
) -> list[LoweredLevel]:
    """The levels in `source`'s delayOffset.json that are ahead of their queues in `root`.

    `compared` are the queues by the messages of the log, `ahead` the queues that are cut, with the number of
    the first unit that is cut. Nothing is known of other queues.
    """
    cut = {(queue.topic, queue.queue_id): unit for queue, unit in ahead if queue.kind == "simple"}
    found = []
    try:
        offsets = read_delay_offsets(source) or {}
    except StoreError:  # A broker does not start with such a file; a recovery leaves it as it is.
        return []
    for level, offset in sorted(offsets.items()):
        key = (SCHEDULE_TOPIC, level - 1)
        end = cut.get(key, -1)
        if key in compared and compared[key].places.entries:
            end = max(end, compared[key].places.max_offset)
            if key not in cut:
                try:
                    bounds = queue_bounds("simple", queue_directory(root, *key), *key, log.min_offset)
                except StoreError:
                    continue
                end = max(end, bounds.max_offset if bounds is not None else 0)
        if 0 <= end < offset:
            found.append(LoweredLevel(level, offset, end))
    return found
