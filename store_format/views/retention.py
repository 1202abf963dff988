"""The view `retention`: which groups have lost or will lose unconsumed messages to retention, and when.

A broker deletes whole commitlog files, the oldest first, consumed or not
(DefaultMessageStore.CleanCommitLogService): at the hour deleteWhen, files that were not modified for
fileReservedTime; earlier if the disk is full. `unread_before` has the messages that nobody has read yet and
that a deletion would lose.
"""

from __future__ import annotations

import datetime
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

import pyarrow as pa

from store_format.commit.expiry import ExpiredFile
from store_format.commitlog.dledger import RESERVED_HOURS_MORE
from store_format.display.columns import (
    BROKER,
    INT,
    LONG,
    TEXT,
    TIME,
    TIME_MS_STOP,
    ViewColumn,
    batches_of,
    time_us,
)
from store_format.errors import OptionError
from store_format.files.read import files_at
from store_format.metadata.read import BrokerConf
from store_format.names import QueueKey
from store_format.pop.in_flight import read_pop_progress
from store_format.read.store import Store
from store_format.views.delayed import VIEW as DELAYED
from store_format.views.lag import GroupQueue, group_queues
from store_format.views.measure import FirstMessage, Stretches, measure
from store_format.views.transactions import find_transactions
from store_format.views.view import View

# ---- messages that nobody has read -------------------------------------------------------------------------


UNREAD_COLUMNS = (
    BROKER,
    ViewColumn(
        "group",
        TEXT,
        "The consumer group; null for messages that a broker holds back: not delivered or not decided.",
    ),
    ViewColumn("topic", TEXT, "The topic."),
    ViewColumn("queueId", INT, "The queue."),
    ViewColumn("committedOffset", LONG, "The next offset to consume; null without a group."),
    ViewColumn("messages", LONG, "Messages that are deleted before they are read; null if unknown."),
)


def unread_before(store: Store, physical_stop: int, now_ms: int) -> list[tuple[object, ...]]:
    """Rows with `UNREAD_COLUMNS`: unread messages in the commitlog before `physical_stop`.

    First those of consumer groups, by group and queue; then delayed messages that are not delivered, and half
    messages without a decision.
    """
    rows: list[tuple[object, ...]] = []
    for place in group_queues(store, progress=read_pop_progress(store)):
        start, limits = place.first_unconsumed, place.limits
        if start is None or limits is None or start >= limits[1]:
            continue
        count = count_before(place, physical_stop)
        if count != 0:
            rows.append((store.broker_name, place.group, place.topic, place.queue_id, place.committed, count))
    waiting = Counter(_undelivered(store, physical_stop, now_ms))
    return rows + [(store.broker_name, None, *queue, None, count) for queue, count in sorted(waiting.items())]


def _undelivered(store: Store, physical_stop: int, now_ms: int) -> list[tuple[str, int]]:
    found = []
    for batch in DELAYED.rows(store, now_ms, BrokerConf()):
        columns = (
            batch[name].to_pylist() for name in ("storedTopic", "storedQueueId", "physicalOffset", "state")
        )
        found += [
            (topic, queue_id)
            for topic, queue_id, physical_offset, state in zip(*columns, strict=True)
            if physical_offset < physical_stop and state in ("waiting", "due", "unknown")
        ]
    for each in find_transactions(store):
        last = each.copies[-1]
        if each.state == "pending" and last["physicalOffset"] < physical_stop:
            found.append((last["topic"], last["queueId"]))
    return found


def count_before(place: GroupQueue, physical_stop: int) -> int | None:
    """How many unconsumed messages of a group lie before a physical offset; None without a consume queue.

    Messages that are in flight with pop count: nobody can deliver them again once they are deleted.
    """
    queue, first, start = place.queue, place.first_unconsumed, place.next_readable
    if queue is None or queue.scanned is not None or first is None or start is None:
        return None
    if place.is_compacted:
        return 0
    kept, in_log = queue.range.kept_stop, queue.range.in_log if queue.range.parts else queue.range
    first, start = max(first, kept), max(start, kept)
    before, *_ = in_log.piece(max(first, in_log.min_offset), queue.max_offset).split_at([physical_stop])
    in_flight = place.in_flight or ()
    held = bisect_left(in_flight, before.stop) - bisect_left(in_flight, first)
    return held + max(before.stop - max(start, first), 0)


# ---- the view ----------------------------------------------------------------------------------------------


FILE_RESERVED_HOURS = BrokerConf().file_reserved_hours
_HOUR_MS = 3_600_000

RETENTION_COLUMNS = (
    BROKER,
    ViewColumn("group", TEXT, "The consumer group."),
    ViewColumn("topic", TEXT, "The topic."),
    ViewColumn("queueId", INT, "The queue."),
    ViewColumn("committedOffset", LONG, "The next offset to consume."),
    ViewColumn(
        "lostMessages",
        LONG,
        "Unconsumed messages that retention has deleted; null if tiered storage may have them.",
    ),
    ViewColumn(
        "nextLostMessages",
        LONG,
        "Unconsumed messages in `file`, which retention deletes next; null if tiered storage may have them.",
    ),
    ViewColumn(
        "file",
        TEXT,
        "The commitlog file with the first unconsumed message; null if it is the last file, which is never "
        "deleted.",
    ),
    ViewColumn(
        "expiresTimestamp",
        TIME,
        "When the file expires: fileReservedTime after it and all older files were last modified. "
        "fileReservedTime is that of the given broker.conf (`--broker-conf`, `broker_conf=`), else of the "
        f"store's `.rmqlog/broker.conf`, else the default of {FILE_RESERVED_HOURS} hours. A broker "
        "deletes an expired file at the next deleteWhen (04), or once its disk is 75 % full. In a copy of a "
        "store, the times are those of the copying.",
    ),
    ViewColumn(
        "expiresInMs",
        LONG,
        "Time until `expiresTimestamp`; 0 or less: the file has expired.",
    ),
)


def retention(store: Store, now_ms: int, conf: BrokerConf) -> Iterator[pa.RecordBatch]:
    """One row for each group and queue that has lost or will lose messages, the soonest loss first."""
    return batches_of(RETENTION_COLUMNS, retention_rows(store, now_ms, conf.file_reserved_hours))


def retention_rows(
    store: Store, now_ms: int, file_reserved_hours: float = FILE_RESERVED_HOURS
) -> list[tuple[object, ...]]:
    """The rows of the view, for any fileReservedTime."""
    places = [
        place
        for place in group_queues(store, progress=read_pop_progress(store))
        if place.first_unconsumed is not None
    ]
    queues = {(place.topic, place.queue_id): place.queue for place in places if place.queue is not None}
    edges: dict[QueueKey, list[int]] = {}
    for place in places:
        edges.setdefault((place.topic, place.queue_id), []).append(place.first_unconsumed or 0)
    measured = measure(store, list(queues.values()), edges)
    expiry = expiry_ms(store, file_reserved_hours)[: ExpiredFile.last_written(store.log)]
    rows = [
        row for place in places if (row := _retention_row(store, place, measured, expiry, now_ms)) is not None
    ]
    return sorted(rows, key=lambda row: (row[-1] is None, row[-1], row[1:4]))


def expiry_ms(store: Store, hours: float) -> list[int]:
    """When each commitlog file expires, in ms. A young file also protects all files after it."""
    expiry = []
    for file in store.log.files:
        status = files_at(file.path).status(file.path)
        kept = hours + RESERVED_HOURS_MORE * bool(file.head_size)
        expiry.append((0 if status is None else status[1]) + int(kept * _HOUR_MS))
    return list(accumulate(expiry, max))


def _retention_row(
    store: Store,
    place: GroupQueue,
    measured: dict[QueueKey, Stretches],
    expiry: list[int],
    now_ms: int,
) -> tuple[object, ...] | None:
    lost, files = place.lost, store.log.files
    number = _next_file(store, place, measured, len(expiry))
    file = expires = going = None
    if number is not None:
        file, expires = files[number].path, expiry[number]
        going = _going(place, measured, files[number].stop)
    if file is None and (lost == 0 or (lost is None and not place.is_tiered)):
        return None
    shown = None if file is None else file.removeprefix(f"{store.path}/")
    return (
        store.broker_name, place.group, place.topic, place.queue_id, place.committed, lost, going, shown,
        time_us(expires), None if expires is None else expires - now_ms,
    )  # fmt: skip


def _going(place: GroupQueue, measured: dict[QueueKey, Stretches], physical_stop: int) -> int | None:
    """How many unconsumed messages are lost with the files before a physical offset; None if unknown."""
    count, first = count_before(place, physical_stop), _first_message(place, measured)
    if place.is_tiered or count is None or first is None or place.first_unconsumed is None:
        return None if place.is_tiered else count
    return count - min(first.offset - place.first_unconsumed, count)  # a place without a message is not lost


def _first_message(place: GroupQueue, measured: dict[QueueKey, Stretches]) -> FirstMessage | None:
    start, stretches = place.first_unconsumed, measured.get((place.topic, place.queue_id))
    return None if start is None or stretches is None else stretches.first_from(start)


def _next_file(store: Store, place: GroupQueue, measured: dict[QueueKey, Stretches], last: int) -> int | None:
    """The number of the commitlog file with the first unconsumed message; None for that with the number
    `last`, which is never deleted, or without a message.
    """
    first = _first_message(place, measured)
    if first is None or first.place is None:
        return None
    number = bisect_right([file.start for file in store.log.files], first.place) - 1
    return number if 0 <= number < last else None


@dataclass(frozen=True, slots=True)
class NextLoss:
    """The next unconsumed messages of a group and topic that retention deletes.

    At `expires_ms` the file of the first of them expires. At `deleted_ms` it is deleted, and
    with it all files that have expired by then: `messages` counts the unconsumed messages in them; None if
    that is unknown.
    """

    expires_ms: int
    deleted_ms: int
    messages: int | None


def next_losses(
    store: Store,
    places: Sequence[GroupQueue],
    measured: dict[QueueKey, Stretches],
    file_reserved_hours: float,
    deleted_at: Callable[[int, int], int],
    forced: int = 0,
) -> dict[tuple[str, str], NextLoss]:
    """The next loss of each (group, topic) that has one.

    `deleted_at` gives the time of deletion of a commitlog file, by its number and the time at which it
    expires. `forced` is how many files, the oldest first, are deleted at once whatever their age.
    """
    files, last_written = store.log.files, ExpiredFile.last_written(store.log)
    expiry = expiry_ms(store, file_reserved_hours)
    numbers: dict[tuple[str, str], list[tuple[int, GroupQueue]]] = defaultdict(list)
    for place in places:
        number = _next_file(store, place, measured, last_written)
        if number is not None:
            numbers[place.group, place.topic].append((number, place))
    losses = {}
    for pair, found in numbers.items():
        first = min(number for number, _ in found)
        deleted = deleted_at(first, expiry[first])
        gone = max(bisect_right(expiry, deleted), forced, first + 1)
        last = min(gone, last_written) - 1
        counts = [_going(place, measured, files[last].stop) for number, place in found if number <= last]
        known = [count for count in counts if count is not None]
        losses[pair] = NextLoss(expiry[first], deleted, sum(known) if len(known) == len(counts) else None)
    return losses


def deletion_ms(
    expires_ms: int, now_ms: int, conf: BrokerConf, zone: datetime.tzinfo | None, *, is_any_hour: bool
) -> int:
    """The first time from `expires_ms` and `now_ms` on at which a broker deletes expired files."""
    moment = max(expires_ms, now_ms)
    # fileReservedTime may reach beyond the calendar
    if moment >= TIME_MS_STOP or is_any_hour or local_hour(moment, zone) in conf.delete_when:
        return moment
    clock = datetime.datetime.fromtimestamp(moment / 1000, zone).replace(minute=0, second=0, microsecond=0)
    for _ in range(24 + 1):  # one more where the clock is changed
        clock += datetime.timedelta(hours=1)
        if clock.hour in conf.delete_when:
            break
    return int(clock.timestamp()) * 1000


def local_hour(now_ms: int, zone: datetime.tzinfo | None) -> int:
    """The hour of the day in a zone, by default the local one. Raises OptionError for an impossible time."""
    try:
        return datetime.datetime.fromtimestamp(now_ms / 1000, zone).hour
    except (ValueError, OverflowError, OSError) as error:
        raise OptionError(f"now_ms={now_ms}: expected a time in ms since 1970: {error}") from error


VIEW = View(
    "retention",
    "Groups that have lost or will lose unconsumed messages to retention, and when.",
    RETENTION_COLUMNS,
    with_conf=retention,
)
