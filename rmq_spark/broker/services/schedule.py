"""The service `schedule`: delivers messages with a delay level (ScheduleMessageService, spec 7.3).

Messages of level n wait in queue n-1 of SCHEDULE_TOPIC_XXXX. The tags code of a queue entry is the time of
delivery, so a turn without a due message reads one queue entry for each level and no message.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rmq_spark.broker.services.service import TURN_BYTES_MAX, TURN_MESSAGES_MAX, Now, PartsFailedError
from rmq_spark.produce.delivered import RealQueues, delivered_from_level, real_queues
from rmq_spark.write.timer_wheel import lost_queue
from store_format.bookkeeping.ledger import Ledger, ServiceTurn
from store_format.commit.session import WriteSession
from store_format.consumequeue.files import ext_directory
from store_format.consumequeue.slices import QueueSlice
from store_format.consumequeue.units import is_ext_address, resolve_tags_codes
from store_format.display.columns import INT, LONG, TEXT, TIME, ViewColumn, batch_of, time_us
from store_format.errors import (
    CorruptStoreError,
    IllegalMessageError,
    OptionError,
    StoreError,
    UnsupportedFormatError,
)
from store_format.message.encode import StoredMessages
from store_format.metadata.group_offsets import write_delay_offsets
from store_format.metadata.read import config_path, read_delay_offsets
from store_format.names import SCHEDULE_TOPIC, UNIQ_KEY
from store_format.read.store import Queue, Store
from store_format.read.stored_messages import read_stored_slice
from store_format.survey.scan import LogQueues
from store_format.survey.snapshot import Snapshot

_log = logging.getLogger(__name__)

_Ints = NDArray[np.int64]

_COLUMNS = (
    ViewColumn("delayLevel", INT, "The delay level, from 1."),
    ViewColumn("queueOffset", LONG, "The offset in queue delayLevel - 1 of SCHEDULE_TOPIC_XXXX."),
    ViewColumn("dueTimestamp", TIME, "The delivery time."),
    ViewColumn("topic", TEXT, "The destination topic (REAL_TOPIC)."),
    ViewColumn("queueId", INT, "The destination queue (REAL_QID)."),
    ViewColumn("msgId", TEXT, "The message id that the producer assigned (UNIQ_KEY)."),
)


class Schedule:
    """Delivers the messages of all delay levels of messageDelayLevel, the levels in turn."""

    name = "schedule"

    def plan(self, store: Store, ledger: Ledger, now: Now) -> SchedulePlan:
        """Raises CorruptStoreError for lost consume queues and for a damaged delayOffset.json."""
        if not store.has_consume_queues:
            raise lost_queue(f"{store.path}/consumequeue")
        progress = read_delay_offsets(store.opened) or {}
        taken = Snapshot.take(store.opened, store.log.relisted(), store.state, SCHEDULE_TOPIC.__eq__)
        queues = {queue.queue_id + 1: queue for queue in store.queues_of(taken)}
        foreign = _foreign_levels(len(now.conf.message_delay_levels_ms), queues, taken, progress, store)
        levels, errors = [], []
        for level, delay in enumerate(now.conf.message_delay_levels_ms, 1):
            try:
                began = progress.get(level, 0)
                queue = _queue_of_level(level, queues, taken, 0 if level in foreign else began, store)
                if queue is not None:
                    start = ledger.resume(_level_part(level), began, store.log)
                    levels.append(_Level(level, delay, queue, began, _corrected(start, queue), now.ms))
            except StoreError as error:
                errors.append(error)
        errors += _above_levels(queues, len(now.conf.message_delay_levels_ms), progress, store)
        due = [each for each in levels if each.is_first_due]
        share = max(1, TURN_MESSAGES_MAX // max(1, len(due))), TURN_BYTES_MAX // max(1, len(due))
        return SchedulePlan(store, now, [_due_of(each, share) for each in levels], progress, errors, foreign)


def _level_part(level: int) -> str:
    return f"schedule/{level}"


def _foreign_levels(
    level_max: int, queues: Mapping[int, Queue], taken: Snapshot, progress: Mapping[int, int], store: Store
) -> dict[int, int]:
    """The `foreign` levels of a plan: without a queue, and without a message in the log, which is read."""
    lacking = [
        level for level in range(1, level_max + 1) if progress.get(level, 0) > 0 and level not in queues
    ]
    logged = (
        LogQueues.of(store.log, SCHEDULE_TOPIC.__eq__).queues.keys() | taken.damaged.keys() if lacking else ()
    )
    return {level: 0 for level in lacking if (SCHEDULE_TOPIC, level - 1) not in logged}


def _queue_of_level(
    level: int, queues: Mapping[int, Queue], taken: Snapshot, began: int, store: Store
) -> Queue | None:
    """The queue of the level; None if no message was ever stored with this level."""
    damage = taken.damaged.get((SCHEDULE_TOPIC, level - 1))
    if damage is not None:
        raise damage
    queue = queues.get(level)
    if (queue is None or queue.range.bounds is None) and began > 0:
        raise lost_queue(f"{store.path}/consumequeue/{SCHEDULE_TOPIC}/{level - 1}")
    return queue


def _above_levels(
    queues: Mapping[int, Queue], level_max: int, progress: Mapping[int, int], store: Store
) -> list[StoreError]:
    """An error for each queue of a level that messageDelayLevel lacks, if messages wait there.

    A broker leaves them there without a word; mostly the setting is not that of the store's broker.
    """
    return [
        OptionError(
            f"{store.path}: messageDelayLevel has {level_max} levels, and "
            f"{queue.max_offset - max(progress.get(level, 0), queue.min_offset)} messages wait at level "
            f"{level}. Give the setting of the store's broker (--broker-conf, broker_conf=, "
            ".rmqlog/broker.conf)"
        )
        for level, queue in sorted(queues.items())
        if level > level_max and queue.max_offset > max(progress.get(level, 0), queue.min_offset)
    ]


def _corrected(offset: int, queue: Queue) -> int:
    """The offset, or the nearest that the queue has (ScheduleMessageService.correctDelayOffset)."""
    corrected = min(max(offset, queue.min_offset), queue.max_offset)
    if corrected != offset:
        _log.warning(
            "%s-%d: delayOffset.json says %d, the queue holds %d to %d; going on at %d",
            SCHEDULE_TOPIC, queue.queue_id, offset, queue.min_offset, queue.max_offset, corrected,
        )  # fmt: skip
    return corrected


@dataclass(slots=True)
class _Level:
    """One delay level: where its delivery goes on, and when the message there is due."""

    level: int
    delay_ms: int
    queue: Queue
    began: int  # what delayOffset.json says
    start: int
    now_ms: int
    first_due_ms: int | None = field(init=False)  # None: no message waits

    def __post_init__(self) -> None:
        """Looks at the next entry. Blank entries, of messages that were lost, are passed over."""
        times, step = np.empty(0, np.int64), 1
        while not len(times) and self.start < self.queue.max_offset:
            offsets, times, _ = self.entries(self.start, self.start + step)
            self.start = int(offsets[0]) if len(offsets) else self.start + step
            step = TURN_MESSAGES_MAX
        self.start = min(self.start, self.queue.max_offset)
        self.first_due_ms = int(times[0]) if len(times) else None

    @property
    def is_first_due(self) -> bool:
        return self.first_due_ms is not None and self.first_due_ms <= self.now_ms

    def entries(self, start: int, stop: int) -> tuple[_Ints, _Ints, _Ints]:
        """(queue offsets, delivery times in ms, sizes in bytes) of the entries [start, stop).

        A time that is later than the level allows is now: messageDelayLevel was made shorter, or the clock
        was set back (ScheduleMessageService.correctDeliverTimestamp).
        """
        offsets, units = self.queue.piece(start, stop).read()
        directory = ext_directory(self.queue.store.opened, SCHEDULE_TOPIC, self.queue.queue_id)
        times = resolve_tags_codes(directory, units["tags_code"])
        for i in np.flatnonzero(is_ext_address(times)).tolist():  # ScheduleMessageService recomputes them
            times[i] = self.queue.store.time_at(int(units["physical_offset"][i])) + self.delay_ms
        times[times > self.now_ms + self.delay_ms] = self.now_ms
        return offsets, times, units["size"].astype(np.int64)


@dataclass(frozen=True, slots=True)
class _DueOfLevel:
    """What a turn delivers of a level: the queue offsets [start, stop), of which `offsets` are due."""

    level: _Level
    stop: int
    offsets: _Ints
    times: _Ints
    next_due: int | None

    @property
    def piece(self) -> QueueSlice:
        return self.level.queue.range.piece(self.level.start, self.stop)


def _due_of(level: _Level, share: tuple[int, int]) -> _DueOfLevel:
    """The due messages of a level, at most `share` (messages, bytes) and at least one.

    The first message that is not due ends the level's turn, as in the broker.
    """
    if not level.is_first_due:
        none = np.empty(0, np.int64)
        return _DueOfLevel(level, level.start, none, none, level.first_due_ms)
    offsets, times, sizes = level.entries(level.start, level.start + share[0])
    later = np.flatnonzero(times > level.now_ms)
    count = int(later[0]) if len(later) else len(offsets)
    count = min(count, max(1, int(np.searchsorted(np.cumsum(sizes), share[1], side="right"))))
    stop = int(offsets[count - 1]) + 1
    after = int(times[count]) if count < len(times) else level.now_ms
    waits = stop < level.queue.max_offset
    return _DueOfLevel(
        level, stop, offsets[:count], times[:count], max(after, level.now_ms) if waits else None
    )


@dataclass(frozen=True, slots=True)
class SchedulePlan:
    """The due messages of all levels, at most a turn of them. `progress` is what delayOffset.json says.

    `foreign` are the levels that the file has from another store, with 0: their queues are empty here, and a
    broker lowers the offset when it starts (ScheduleMessageService.correctDelayOffset).
    """

    store: Store
    now: Now
    levels: list[_DueOfLevel]
    progress: Mapping[int, int]
    errors: list[StoreError]
    foreign: Mapping[int, int]

    @property
    def due(self) -> int:
        return sum(len(each.offsets) for each in self.levels)

    @property
    def changes(self) -> bool:
        return bool(self.errors or self.foreign) or any(each.stop != each.level.began for each in self.levels)

    @property
    def next_due(self) -> int | None:
        return _first_due(self.levels)

    @property
    def late_ms(self) -> int | None:
        oldest = min((int(each.times.min()) for each in self.levels if len(each.times)), default=None)
        return None if oldest is None else self.now.ms - oldest

    def table(self) -> pa.Table:
        """One row for each due message that can be delivered."""
        rows = [row for each in self.levels if len(each.offsets) for row in _due_rows(self.store, each)]
        return pa.Table.from_batches([batch_of(_COLUMNS, rows)])

    def apply(self, session: WriteSession) -> int:
        """Delivers level by level, a commit for each, then writes delayOffset.json once.

        Raises PartsFailedError after all levels have had their turn: a level with a message that cannot be
        delivered stops there, as in the broker.
        """
        done, errors, going = 0, list(self.errors), list[_DueOfLevel]()
        progress = dict(self.foreign)
        for each in self.levels:
            if not len(each.offsets):
                if each.next_due is not None or each.stop != each.level.began:
                    progress[each.level.level] = each.stop
                going.append(each)
                continue
            try:
                delivery = _appended(session, each, _read(self.store, each))
            except StoreError as error:
                errors.append(error)
                continue
            done += len(delivery.messages)
            progress[each.level.level] = delivery.stop
            if delivery.error is None:
                going.append(each)
            else:
                errors.append(delivery.error)
        try:
            write_delay_offsets(session.opened, progress, timestamp=self.now.ms, files=session.files)
        except StoreError as error:  # the ledger knows what was delivered
            errors.append(error)
        if errors:
            raise PartsFailedError(done, _first_due(going), errors)
        return done


def _first_due(levels: Iterable[_DueOfLevel]) -> int | None:
    return min((each.next_due for each in levels if each.next_due is not None), default=None)


@dataclass(frozen=True, slots=True)
class _LevelDelivery:
    """The messages to deliver, and the queue offset at which the delivery of the level goes on."""

    messages: StoredMessages
    queues: RealQueues
    times: _Ints
    stop: int
    error: StoreError | None


def _read(store: Store, due: _DueOfLevel) -> _LevelDelivery:
    """Reads the due messages up to the first that cannot be delivered.

    A message that retention has deleted is left out, and a message for the half topic too, as in the broker.
    """
    messages, offsets, damaged = read_stored_slice(store.log, due.piece)
    queues = real_queues(messages)
    stops = damaged | {int(offset): _undeliverable(due, int(offset)) for offset in offsets[queues.bad]}
    stops |= _outside_of_log(store, due, offsets, stops)
    stop = min(stops, default=due.stop)
    kept = (offsets < stop) & ~queues.is_half
    skipped = int((due.offsets < stop).sum()) - int(kept.sum())
    if skipped:
        _log.warning(
            "%s: %d messages of delay level %d are not delivered: retention has deleted them, or they are "
            "for the topic of half messages", store.path, skipped, due.level.level,
        )  # fmt: skip
    messages = messages.take(kept)
    times = due.times[np.searchsorted(due.offsets, offsets[kept])]
    return _LevelDelivery(messages, real_queues(messages), times, stop, stops.get(stop))


def _appended(session: WriteSession, due: _DueOfLevel, delivery: _LevelDelivery) -> _LevelDelivery:
    """Stores the copies; if a message cannot be stored, those before it, and `error` names it.

    A commit refuses all messages for one of them, so half of them are tried next: later turns store the rest.
    """
    level = due.level
    while len(delivery.messages):
        turn = ServiceTurn(_level_part(level.level), delivery.stop, level.began)
        try:
            session.append(delivered_from_level(delivery.messages, delivery.queues), turn=turn)
            return delivery
        except (IllegalMessageError, UnsupportedFormatError) as error:
            offsets = delivery.messages.queue_offsets
            refused = type(error)(
                f"{SCHEDULE_TOPIC}-{level.queue.queue_id} offset {offsets[0]}: {error}. "
                f"{_how_to_skip(due, int(offsets[0]))}"
            )
            half = np.arange(len(delivery.messages) // 2)
            kept = delivery.messages.take(half)
            stop = int(offsets[len(half)])
            error_then = None if len(half) else refused
            delivery = _LevelDelivery(kept, real_queues(kept), delivery.times[: len(half)], stop, error_then)
    return delivery


def _how_to_skip(due: _DueOfLevel, offset: int) -> str:
    path = config_path(due.level.queue.store.opened, "delayOffset.json")
    return f"To skip the message, set level {due.level.level} in {path} to {offset + 1}"


def _undeliverable(due: _DueOfLevel, offset: int) -> StoreError:
    path, byte = due.piece.place_of(offset)
    return CorruptStoreError(
        path, byte, f"a message of {SCHEDULE_TOPIC}-{due.level.queue.queue_id} offset {offset} with "
        "REAL_TOPIC and REAL_QID of a queue", f"another topic or queue id. {_how_to_skip(due, offset)}",
    )  # fmt: skip


def _outside_of_log(
    store: Store, due: _DueOfLevel, found: _Ints, known: Mapping[int, StoreError]
) -> dict[int, StoreError]:
    """Errors for entries that point behind the end of the commitlog, or into a gap between its files."""
    absent = np.setdiff1d(due.offsets, np.append(found, np.array(list(known), np.int64)))
    errors: dict[int, StoreError] = {}
    for offset in absent.tolist():
        _, units = due.level.queue.range.piece(offset, offset + 1).read()
        physical = int(units["physical_offset"][0])
        if physical >= store.log.min_offset:
            path, byte = due.piece.place_of(offset)
            errors[offset] = CorruptStoreError(
                path, byte, f"a message of the commitlog, which ends at {store.log.stop}",
                f"physical offset {physical}",
            )  # fmt: skip
    return errors


def _due_rows(store: Store, due: _DueOfLevel) -> list[tuple[object, ...]]:
    delivery = _read(store, due)
    (keys,) = delivery.messages.properties(UNIQ_KEY)
    offsets = delivery.messages.queue_offsets.tolist()
    topics, ids = delivery.queues.topics.to_pylist(), delivery.queues.queue_ids.tolist()
    times = [time_us(time) for time in delivery.times.tolist()]
    level = due.level.level
    return [(level, *row) for row in zip(offsets, times, topics, ids, keys.to_pylist(), strict=True)]
