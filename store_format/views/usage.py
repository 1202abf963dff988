"""The view `usage`: bytes of the commitlog by topic and day, and the bytes that belong to no queue."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from store_format.display.columns import BROKER, DAY, LONG, TEXT, ViewColumn, batches_of
from store_format.names import is_light_queue
from store_format.views.files import log_end
from store_format.views.measure import look, measure, walk_queues
from store_format.views.view import View

if TYPE_CHECKING:
    from store_format.read.store import Queue, Store

USAGE_COLUMNS = (
    BROKER,
    ViewColumn(
        "topic",
        TEXT,
        "The topic; null for bytes that are in no queue: padding, deleted topics, undecided transactions, "
        "damage.",
    ),
    ViewColumn("day", DAY, "The day of the store time, in UTC; null if unknown."),
    ViewColumn("messages", LONG, "Messages of the topic stored on that day."),
    ViewColumn("bytes", LONG, "Bytes of these messages in the commitlog."),
)

_DAY_MS = 86_400_000
_DAYS = (-719162, 2932896)  # of the years 1 to 9999, counted from 1970

_Days = dict[tuple[str, int | None], list[int]]  # (topic, day) -> [messages, bytes]


def usage(store: Store, now_ms: int) -> Iterator[pa.RecordBatch]:
    """One row for each topic and day, sorted by topic, and one row for the bytes in no queue.

    The rows add up to the written part of the commitlog. Light queues (`%LMQ%`) are left out, since their
    messages are stored and counted under another topic.
    """
    queues = store.queues()
    found: _Days = defaultdict(lambda: [0, 0])
    own = [queue for queue in queues if not is_light_queue(queue.topic)]
    for queue in own:
        if queue.scanned is None:
            _add_queue(store, queue, found)
    _add_scanned(store, [queue for queue in own if queue.scanned is not None], found)
    end = log_end(store, {(queue.topic, queue.queue_id): queue.range for queue in queues})
    rest = max(end - store.log.min_offset - sum(size for _, size in found.values()), 0)
    rows = [
        (store.broker_name, topic, day, *sums) for (topic, day), sums in sorted(found.items(), key=_order)
    ]
    return batches_of(USAGE_COLUMNS, [*rows, (store.broker_name, None, None, None, rest)] if rest else rows)


def _order(item: tuple[tuple[str, int | None], list[int]]) -> tuple[str, int]:
    (topic, day), _ = item
    return topic, _DAYS[0] - 1 if day is None else day


def _day(time_ms: int | None) -> int | None:
    day = None if time_ms is None else time_ms // _DAY_MS
    return day if day is not None and _DAYS[0] <= day <= _DAYS[1] else None


def _add_queue(store: Store, queue: Queue, found: _Days) -> None:
    """Adds one queue, cut where the day changes.

    Store times rise along a queue, so a range that begins and ends on the same day lies within that day.
    """
    if queue.min_offset >= queue.max_offset:
        return
    days: dict[int, int | None] = {}

    def day_at(offset: int) -> int | None:
        if offset not in days:
            days[offset] = _day(look(queue, offset)[0])
        return days[offset]

    edges: list[tuple[int, int | None]] = []
    open_ranges = [(queue.min_offset, queue.max_offset - 1)]
    while open_ranges:
        low, high = open_ranges.pop()
        if day_at(low) == day_at(high) or low == high:
            if not edges or edges[-1][1] != day_at(low):
                edges.append((low, day_at(low)))
        else:
            middle = (low + high) // 2
            open_ranges += [(middle + 1, high), (low, middle)]
    offsets = [offset for offset, _ in edges] + [queue.max_offset]
    stretches = measure(store, [queue], {(queue.topic, queue.queue_id): offsets})[queue.topic, queue.queue_id]
    for i, (offset, day) in enumerate(edges):
        sums = found[queue.topic, day]
        sums[0] += offsets[i + 1] - offset
        sums[1] += stretches.bytes[i] + (stretches.cut[i] if i == 0 else 0)


def _add_scanned(store: Store, queues: list[Queue], found: _Days) -> None:
    for (topic, _), part in walk_queues(queues):
        days = part.times // _DAY_MS
        for value in np.unique(days).tolist():
            mine = days == value
            sums = found[topic, _day(value * _DAY_MS)]
            sums[0] += int(mine.sum())
            sums[1] += int(part.sizes[mine & part.begins].sum())


VIEW = View("usage", "Bytes of the commitlog by topic and day.", USAGE_COLUMNS, usage)
