"""Which groups lose messages they have not consumed, to retention: those that are lost already, and those
next to go, and when.

A broker deletes whole commitlog files, the oldest first, whether or not anybody has read them
(DefaultMessageStore.CleanCommitLogService): when a file was not modified for fileReservedTime, at the hour
deleteWhen; sooner when the disk is full.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from itertools import accumulate
from typing import TYPE_CHECKING

import pyarrow as pa

from store_format.consumequeue.slices import split_at
from store_format.display.columns import BROKER, INT, LONG, TEXT, TIME, ViewColumn, batches_of, time_us
from store_format.files.status import file_status
from store_format.names import QueueKey
from store_format.views.lag import GroupQueue, group_queues
from store_format.views.measure import Stretches, measure
from store_format.views.view import View

if TYPE_CHECKING:
    from store_format.read.store import Queue, Store

__all__ = ["FILE_RESERVED_HOURS", "VIEW", "retention_rows"]

FILE_RESERVED_HOURS = 72  # MessageStoreConfig.fileReservedTime, which is not stored
_HOUR_MS = 3_600_000

RETENTION_COLUMNS = (
    BROKER,
    ViewColumn("group", TEXT, "The consumer group."),
    ViewColumn("topic", TEXT, "The topic."),
    ViewColumn("queueId", INT, "The queue."),
    ViewColumn("committedOffset", LONG, "The next offset to consume."),
    ViewColumn("lostMessages", LONG, "Messages it had not consumed and retention has deleted."),
    ViewColumn(
        "nextLostMessages",
        LONG,
        "Those that go with the file that holds the first message it has not consumed.",
    ),
    ViewColumn(
        "file", TEXT, "That file of the commitlog; null when it is the last one, which is never deleted."
    ),
    ViewColumn(
        "expiresTimestamp",
        TIME,
        f"When the file may be deleted: {FILE_RESERVED_HOURS} hours after it, and all before it, were last modified. "
        "The default of fileReservedTime is assumed, because no file of the store says what its broker has. A broker then waits for the "
        "hour deleteWhen (04), or until its disk is 75 % full. A copy of a store has the times of the copying.",
    ),
    ViewColumn("expiresInMs", LONG, "How long until then; 0 or less: any time now."),
)


def retention(store: Store, now_ms: int) -> Iterator[pa.RecordBatch]:
    """One row for each group and queue that has lost messages or will, the next to lose some first."""
    return batches_of(RETENTION_COLUMNS, retention_rows(store, now_ms))


def retention_rows(
    store: Store, now_ms: int, file_reserved_hours: float = FILE_RESERVED_HOURS
) -> list[tuple[object, ...]]:
    """The same for another fileReservedTime."""
    places = [place for place in group_queues(store) if place.next_readable is not None]
    queues = {(place.topic, place.queue_id): place.queue for place in places if place.queue is not None}
    edges: dict[QueueKey, list[int]] = {}
    for place in places:
        edges.setdefault((place.topic, place.queue_id), []).append(place.next_readable or 0)
    measured = measure(store, list(queues.values()), edges)
    expiry = _expiry(store, file_reserved_hours)
    rows = [row for place in places if (row := _row(store, place, measured, expiry, now_ms)) is not None]
    return sorted(rows, key=lambda row: (row[-1] is None, row[-1], row[1:4]))


def _expiry(store: Store, hours: float) -> list[int]:
    """When each file may be deleted, in ms: deletion stops at the first file that is too young."""
    modified = [
        status[1] if (status := file_status(file.path)) is not None else 0 for file in store.log.files
    ]
    return [time + int(hours * _HOUR_MS) for time in accumulate(modified, max)]


def _row(
    store: Store,
    place: GroupQueue,
    measured: dict[QueueKey, Stretches],
    expiry: list[int],
    now_ms: int,
) -> tuple[object, ...] | None:
    assert place.committed is not None
    assert place.limits is not None
    low, high = place.limits
    lost = max(min(low, high) - place.committed, 0)
    stretches = measured.get((place.topic, place.queue_id))
    start = max(place.committed, low)
    physical = stretches.place_of(start) if stretches is not None else None
    files = store.log.files
    number = bisect_right([file.start for file in files], physical) - 1 if physical is not None else -1
    file = expires = going = None
    if 0 <= number < len(files) - 1:
        file, expires = files[number].path, expiry[number]
        going = _until(place.queue, start, high, files[number].stop)
    if not lost and file is None:
        return None
    shown = None if file is None else file.removeprefix(f"{store.path}/")
    return (
        store.broker_name, place.group, place.topic, place.queue_id, place.committed, lost, going, shown, time_us(expires),
        None if expires is None else expires - now_ms,
    )  # fmt: skip


def _until(queue: Queue | None, start: int, stop: int, physical_stop: int) -> int | None:
    """How many of the messages [start, stop) stand below a physical offset; None where no consume queue says
    it.
    """
    if queue is None or queue.scanned is not None:
        return None
    first, *_ = split_at(queue.piece(start, stop), [physical_stop])
    return first.stop - first.start


VIEW = View(
    "retention",
    "Groups that have lost messages to retention or will lose some, and when.",
    RETENTION_COLUMNS,
    retention,
)
