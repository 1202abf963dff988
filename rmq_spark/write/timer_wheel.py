"""Puts the messages of the timer topic into the timerlog and the wheel (TimerMessageStore, spec 8.3).

A broker that starts reads the slots in their order, from the read time of timercheck on. While it starts, it
puts a message that nobody has put into the wheel into the slot of its own time. If timercheck says that this
slot was read, no broker ever delivers the message. So timercheck must not say of a time that it was read
while the timer topic has messages of that time that are not in the wheel.
"""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import dataclass, field

import numpy as np
import pyarrow.compute as pc

from rmq_spark.produce.delivered import roll_window_slots, wait_in_wheel
from store_format.bookkeeping.settings import broker_conf_of
from store_format.commit.options import CommitOptions
from store_format.commit.session import WriteSession, write_session
from store_format.errors import CorruptStoreError, StoreError
from store_format.java.number_columns import read_integers
from store_format.java.text import java_hash_many
from store_format.message.encode import StoredMessages
from store_format.message.locate import Identity
from store_format.metadata.read import BrokerConf
from store_format.metadata.timer import (
    WHEEL_SLOTS,
    TimerCheck,
    TimerState,
    with_wheel_precision,
)
from store_format.metadata.timer_metrics import write_timer_metrics
from store_format.names import REAL_TOPIC, TIMER_DEL_UNIQKEY, TIMER_OUT_MS, TIMER_TOPIC
from store_format.opened.store import Opened
from store_format.read.store import Queue, Store
from store_format.read.stored_messages import read_stored
from store_format.survey.snapshot import Snapshot

_log = logging.getLogger(__name__)

TIMER_PART = "timer"  # of the ledger's keys: slots that are read
BEHIND_SLOTS_MAX = WHEEL_SLOTS // 2 - 60  # a broker that starts looks no further back
ENQUEUED_MAX = 10_000, 32 << 20  # messages and bytes that are read at once


@dataclass(frozen=True, slots=True)
class WheelTimes:
    """`clock_ms` is the clock, `read_ms` the time up to which slots were read before a turn and `after_ms`
    afterwards, all multiples of the precision.
    """

    clock_ms: int
    read_ms: int
    after_ms: int


@dataclass(slots=True)
class WheelTurn:
    """How far the timer is, and what a turn changes.

    `queue_offset` is the next offset of the timer topic to put into the wheel. `waiting` counts by topic what
    the turn adds.
    """

    store: Store
    conf: BrokerConf
    state: TimerState
    times: WheelTimes
    queue_offset: int
    has_more_new: bool = False
    waiting: Counter[str] = field(default_factory=Counter)


def put_late_in_wheel(root: str, first_ms: int, options: CommitOptions) -> None:
    """Puts all messages of the timer topic into the wheel if a broker would miss one of them.

    `first_ms` is the earliest TIMER_OUT_MS of the messages that were committed now. They may have been staged
    long before, and the service may have read their slots meanwhile.
    """
    opened = Opened(root)
    check = TimerCheck.read(opened)
    if check is None or first_ms >= check.last_read_time:
        return
    conf = with_wheel_precision(opened, broker_conf_of(opened, options.conf))
    if conf.timer_stop_enqueue:
        return
    try:
        with write_session(root, options) as session:
            put_in_wheel(session, conf, options.clock())
    except StoreError as error:
        # Not an error of the write: the messages are committed.
        _log.warning(
            "%s: messages whose delivery time passed during the write are not in the timer's wheel yet. Run "
            "the service `timer` before a broker starts, which would not deliver them: %s", root, error,
        )  # fmt: skip


def put_in_wheel(session: WriteSession, conf: BrokerConf, now_ms: int) -> None:
    """Puts all messages of the timer topic into the wheel, and delivers none."""
    check = TimerCheck.read(session.opened) or TimerCheck()
    # Also after a turn that a crash broke off:
    read_ms = session.ledger().resume(TIMER_PART, check.last_read_time, session.store().log)
    precision = conf.timer_precision_ms
    clock_ms = max(now_ms // precision * precision, read_ms)
    times = WheelTimes(clock_ms, read_ms, max(read_ms, clock_ms - BEHIND_SLOTS_MAX * precision))
    turn = fill_wheel(session, conf, times, Counter())
    if turn is not None:
        save_timer(turn, session, turn.state.check.last_read_time, now_ms)


def fill_wheel(
    session: WriteSession, conf: BrokerConf, times: WheelTimes, waiting: Counter[str]
) -> WheelTurn | None:
    """Puts all messages of the timer topic into the timerlog and the wheel, and counts them in `waiting`.

    Returns None if all are there. The caller writes timercheck.
    """
    store = session.store()
    queue = timer_queue(store)
    if queue is None:
        return None
    state = TimerState.recover(store.opened, conf.timer_precision_ms, conf.timer_log_file_size)
    turn = WheelTurn(store, conf, state, times, state.check.last_timer_queue_offset, waiting=waiting)
    if state.has_lost_units:
        enqueue_again(turn, queue)
    elif turn.queue_offset >= queue.max_offset:
        return None
    enqueue(turn, queue)
    while turn.has_more_new:
        enqueue(turn, queue)
    state.write(session.files)
    return turn


def save_timer(turn: WheelTurn, session: WriteSession, read_ms: int, now_ms: int) -> None:
    """Writes timercheck, with slots read up to `read_ms`, and the counts of what waits."""
    save_check(turn, session, read_ms, now_ms)
    try:
        write_timer_metrics(session.opened, turn.waiting, timestamp=now_ms, files=session.files)
    except CorruptStoreError as error:  # only statistics: a broker counts again at night
        _log.warning("%s", error)


def save_check(turn: WheelTurn, session: WriteSession, read_ms: int, now_ms: int) -> None:
    """Writes timercheck, with slots read up to `read_ms`."""
    turn.state.check = turn.state.check.after_turn(
        read_time=read_ms,
        queue_offset=turn.queue_offset,
        log_end=turn.state.end,
        now_ms=now_ms,
    )
    aside = session.opened.own("timercheck.new")
    turn.state.check.write(session.opened, session.files, aside)


def real_topics(messages: StoredMessages) -> list[str]:
    """The REAL_TOPIC of each message that has one."""
    (topics,) = messages.properties(REAL_TOPIC)
    return [topic for topic in topics.to_pylist() if topic is not None]


def timer_queue(store: Store) -> Queue | None:
    """The queue of the timer topic; None if no timer message was ever stored."""
    if not store.has_consume_queues:
        raise lost_queue(f"{store.path}/consumequeue")
    taken = Snapshot.take(store.opened, store.log.relisted(), store.state, TIMER_TOPIC.__eq__)
    damage = taken.damaged.get((TIMER_TOPIC, 0))
    if damage is not None:
        raise damage
    return next((each for each in store.queues_of(taken) if each.queue_id == 0), None)


def lost_queue(path: str) -> CorruptStoreError:
    return CorruptStoreError(
        path, 0, "consume queue files", "none, but the store had messages; run rmqlog recover"
    )


def enqueue_again(turn: WheelTurn, queue: Queue, limits: tuple[int, int] = ENQUEUED_MAX) -> None:
    """Puts the messages whose units are lost into the state again (TimerMessageStore.reviseQueueOffset).

    Messages whose slots were read are passed over. A message that was stored again for a longer wait may be
    delivered twice, as by a broker.
    """
    read_before, last = turn.queue_offset, turn.state.last_unit
    turn.queue_offset = queue.min_offset
    if last is not None:
        place = np.array([last["physical_offset"]], np.int64), np.array([last["message_size"]], np.int64)
        messages, _, _ = read_stored(turn.store.log, *place)
        turn.queue_offset = int(messages.queue_offsets[0]) + 1 if len(messages) else read_before
    _log.warning(
        "%s: the timerlog has lost units; messages from queue offset %d on are put into it again",
        turn.store.path, turn.queue_offset,
    )  # fmt: skip
    while turn.queue_offset < min(read_before, queue.max_offset):
        enqueue(turn, queue, read_before, limits)


def enqueue(
    turn: WheelTurn, queue: Queue, read_before: int = 0, limits: tuple[int, int] = ENQUEUED_MAX
) -> None:
    """Puts the next messages of the timer topic into the state (TimerMessageStore.enqueue).

    Messages that a crashed turn has put into the log already are passed over, and those before the offset
    `read_before` whose slots were read.
    """
    conf, store, state = turn.conf, turn.store, turn.state
    start = min(max(turn.queue_offset, queue.min_offset), queue.max_offset)
    stop = min(start + limits[0], queue.max_offset)
    offsets, entries = queue.range.piece(start, stop).read()
    sizes = np.cumsum(entries["size"].astype(np.int64))
    fits = max(int(np.searchsorted(sizes, limits[1], side="right")), 1)
    # Units of lost messages are not among the entries: a piece may have none, and messages may follow.
    turn.queue_offset = stop if fits >= len(offsets) else int(offsets[fits])
    offsets, entries = offsets[:fits], entries[:fits]
    turn.has_more_new = turn.queue_offset < queue.max_offset
    new = ~np.isin(entries["physical_offset"], state.unflushed)
    offsets, entries = offsets[new], entries[new]
    if not len(offsets):
        return
    places, sizes = entries["physical_offset"].astype(np.int64), entries["size"].astype(np.int64)
    identity = Identity((TIMER_TOPIC,), None, np.zeros(len(offsets), np.int32), offsets)
    messages, rows, damaged = read_stored(store.log, places, sizes, identity)
    for each in damaged:
        _log.warning("%s: a timer message is passed over: %s", store.path, each.error)
    outs, recalls, topics = messages.properties(TIMER_OUT_MS, TIMER_DEL_UNIQKEY, REAL_TOPIC)
    out_ms, is_time = read_integers(outs)
    for row in np.flatnonzero(~is_time).tolist():
        _log.warning(
            "%s: the timer message at physical offset %d is passed over: expected a time in the property %s, "
            "found none", store.path, messages.physical_offsets[row], TIMER_OUT_MS,
        )  # fmt: skip
    is_time &= (offsets[rows] >= read_before) | (out_ms >= turn.times.read_ms)
    is_recall = pc.is_valid(recalls).to_numpy(zero_copy_only=False)
    if not read_before:  # else the messages are counted already
        turn.waiting.update(real_topics(messages.take(is_time & ~is_recall)))
        turn.waiting.subtract(real_topics(messages.take(is_time & is_recall)))
    waiting = wait_in_wheel(
        out_ms[is_time],
        is_recall[is_time],
        write_ms=turn.times.clock_ms,
        read_ms=turn.times.after_ms,
        precision_ms=conf.timer_precision_ms,
        window_slots=roll_window_slots(conf.timer_roll_window_slots),
    )
    rows = rows[is_time]
    hashes = java_hash_many(topics)[is_time].astype(np.int64)
    state.add(waiting.slot_ms, waiting.write_ms, waiting.magic, places[rows], sizes[rows], hashes)
