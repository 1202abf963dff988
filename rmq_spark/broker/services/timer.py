"""The service `timer`: delivers messages with a delivery time (TimerMessageStore, spec 7.4, 8.3).

A turn puts new messages of rmq_sys_wheel_timer into the timerlog and the wheel, delivers copies of the
messages whose slot has passed, puts those that it stored in rmq_sys_wheel_timer again into the wheel too, and
writes timercheck. A broker that starts afterwards continues from these files. `recall` cancels a waiting
message (RecallMessageProcessor of RocketMQ 5.3 and later).
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rmq_spark.broker.services.service import TURN_BYTES_MAX, TURN_MESSAGES_MAX, Now, Tally, tallied
from rmq_spark.consume.consumer import check_group
from rmq_spark.produce.delivered import real_queues, recall_messages, recalled, timer_copies
from rmq_spark.write.timer_wheel import (
    BEHIND_SLOTS_MAX,
    TIMER_PART,
    WheelTimes,
    WheelTurn,
    enqueue,
    enqueue_again,
    fill_wheel,
    lost_queue,
    real_topics,
    save_check,
    save_timer,
    timer_queue,
)
from store_format.bookkeeping.ledger import Ledger, ServiceTurn
from store_format.bookkeeping.settings import broker_conf_of
from store_format.commit.options import CommitOptions
from store_format.commit.session import WriteSession, write_session
from store_format.commit.unsupported import StoreRefusals
from store_format.display.columns import INT, LONG, TEXT, TIME, ViewColumn, batch_of, time_us
from store_format.errors import (
    CorruptStoreError,
    IllegalMessageError,
    OptionError,
    StoreError,
    UnsupportedFormatError,
)
from store_format.java.number_columns import read_integers
from store_format.message.encode import EncodedTopics, MessageColumns, StoredMessages
from store_format.metadata.read import BrokerConf, config_path, read_topics
from store_format.metadata.timer import MAGIC_DELETE, MAGIC_ROLL, TimerCheck, TimerState
from store_format.metadata.values import TopicConfig
from store_format.names import REAL_TOPIC, TIMER_DEL_UNIQKEY, TIMER_OUT_MS, TIMER_TOPIC, UNIQ_KEY
from store_format.opened.store import Opened
from store_format.read.store import Queue, Store
from store_format.read.stored_messages import read_stored
from store_format.views.delayed import delayed

__all__ = ["RecallPlan", "Timer", "TimerPlan", "recall"]

_log = logging.getLogger(__name__)

_SLOT_TURN = f"{TIMER_PART}/slot"  # of the ledger's keys: parts of a slot
_PART_MESSAGES_MAX = TURN_MESSAGES_MAX  # of one commit; a slot with more is delivered in parts

_COLUMNS = (
    ViewColumn("dueTimestamp", TIME, "The time of the slot in the wheel; the slot fires when it has passed."),
    ViewColumn("topic", TEXT, "The destination topic: REAL_TOPIC, or rmq_sys_wheel_timer for a longer wait."),
    ViewColumn("queueId", INT, "The destination queue."),
    ViewColumn("msgId", TEXT, "The message id that the producer assigned (UNIQ_KEY)."),
    ViewColumn("physicalOffset", LONG, "The physical offset of the waiting message."),
)

_Ints = NDArray[np.int64]
_Flags = NDArray[np.bool_]

_RECALL_COLUMNS = ["topic", "queueId", "msgId", "dueTimestamp", "physicalOffset"]


class Timer:
    """Puts new timer messages into the wheel, and delivers those whose time has come."""

    name = "timer"

    def plan(self, store: Store, ledger: Ledger, now: Now) -> TimerPlan:
        """Raises UnsupportedFormatError for a timeline in RocksDB, CorruptStoreError for damaged files."""
        conf = now.conf
        plan = TimerPlan(store, now)
        queue = timer_queue(store)
        check = TimerCheck.read(store.opened)
        if not conf.timer_wheel_enable or (queue is None and check is None):
            return plan
        if queue is None and check is not None and check.last_timer_queue_offset > 0:
            raise lost_queue(f"{store.path}/consumequeue/{TIMER_TOPIC}/0")
        plan.state = state = TimerState.recover(
            store.opened, conf.timer_precision_ms, conf.timer_log_file_size
        )
        plan.read_ms = ledger.resume(TIMER_PART, state.check.last_read_time, store.log)
        _refuse_future(plan)
        plan.queue_offset = state.check.last_timer_queue_offset
        oldest = plan.clock_ms - BEHIND_SLOTS_MAX * conf.timer_precision_ms
        # The wheel turns in 14 days: slots that are far behind are read before new ones take their places.
        plan.is_far_behind = plan.read_ms > 0 and bool(state.slots_between(plan.read_ms, oldest))
        plan.after_ms = plan.read_ms if plan.is_far_behind else max(plan.read_ms, oldest)
        if queue is not None and not conf.timer_stop_enqueue and not plan.is_far_behind:
            _enqueue(plan, state, queue)
        if not conf.timer_stop_dequeue and not plan.has_more_new:
            _choose_slots(plan, state, ledger)
        if plan.lost:
            text = "%s: %d timer messages that are due are not in the commitlog, where the timerlog has them"
            _log.warning(text, store.path, plan.lost)
        if plan.changes:
            StoreRefusals(store.opened).refuse_timeline(conf)
            _warn_of_clock(plan)
        return plan


@dataclass(slots=True)
class TimerPlan:
    """What a turn puts into the wheel and takes out of it. `state` is None if the store has no timer.

    `read_ms` is the time up to which slots were read before the turn, `after_ms` afterwards; `queue_offset`
    is the next offset of the timer topic after the turn.
    """

    store: Store
    now: Now
    state: TimerState | None = None
    read_ms: int = 0
    after_ms: int = 0
    queue_offset: int = 0
    has_more_new: bool = False
    has_more_due: bool = False
    is_far_behind: bool = False
    slots: list[_DueSlot] = field(default_factory=list)
    lost: int = 0  # units of due slots whose messages the commitlog does not have
    waiting: Counter[str] = field(default_factory=Counter)  # by topic, what the turn adds

    @property
    def clock_ms(self) -> int:
        """The clock in whole units of the precision: the slots before have fired.

        If the clock was set back, time goes on where slots were read last.
        """
        precision = self.now.conf.timer_precision_ms
        return max(self.now.ms // precision * precision, self.read_ms)

    @property
    def due(self) -> int:
        """The number of messages that the turn delivers or stores again."""
        return sum(len(each.units) for each in self.slots)

    @property
    def changes(self) -> bool:
        """Whether `apply` writes anything."""
        state = self.state
        return state is not None and (
            bool(self.slots) or self._fills or self.read_ms != state.check.last_read_time
        )

    @property
    def next_due(self) -> int | None:
        """When the next message is due, in ms since 1970; None if no message waits."""
        if self.state is None:
            return None
        if self.has_more_new or self.has_more_due or self._must_fill:
            return self.now.ms  # The next turn knows.
        time = self.state.next_slot_ms(self.clock_ms)
        return None if time is None else time + self.now.conf.timer_precision_ms

    @property
    def late_ms(self) -> int | None:
        """How late the oldest due message is, in ms; None if no message is due."""
        times = [each.time_ms for each in self.slots if len(each.units)]
        return self.now.ms - times[0] - self.now.conf.timer_precision_ms if times else None

    def table(self) -> pa.Table:
        """One row for each message that is delivered, or stored again for a longer wait."""
        return pa.Table.from_batches([batch_of(_COLUMNS, list(self._rows()))])

    def _rows(self) -> Iterator[tuple[object, ...]]:
        for part in _parts_of(self.slots):
            copied = _copies_of(self.store, part, self.now, self.clock_ms)
            (keys,) = copied.messages.properties(UNIQ_KEY)
            yield from zip(
                map(time_us, copied.slot_ms.tolist()),
                pa.array(copied.copies.topic).to_pylist(),
                np.asarray(copied.copies.queue_id).tolist(),
                keys.to_pylist(),
                copied.messages.physical_offsets.tolist(),
                strict=True,
            )

    def apply(self, session: WriteSession) -> int:
        """Writes the timerlog and the wheel, stores the copies, and fills the wheel again.

        Each time timercheck comes last, so that a broker never takes a slot for read whose messages are not
        stored. After a crash the units that are in the log already are found there, and the ledger knows
        which slots were delivered.

        Raises PartsFailedError for an error after copies were stored. The slots that are left wait for the
        next turn, because a broker reads the slots in their order.
        """
        if self.state is None:
            return 0
        with tallied() as tally:
            self._apply(session, self.state, tally)
        return tally.done

    def _apply(self, session: WriteSession, state: TimerState, tally: Tally) -> None:
        began = state.check.last_read_time
        state.write(session.files)
        turn = _wheel_turn(self, state)
        if not self.slots:
            # While the ledger knows of later slots, unread messages may be of times before them.
            save_timer(turn, session, began if self.has_more_new else self.after_ms, self.now.ms)
            return
        if self._fills:
            save_check(turn, session, began, self.now.ms)
        self._store_copies(session, began, tally)
        times = WheelTimes(self.clock_ms, self.read_ms, self.after_ms)
        if self._must_fill:
            turn = fill_wheel(session, self.now.conf, times, self.waiting) or turn
        save_timer(turn, session, self.after_ms, self.now.ms)

    @property
    def _fills(self) -> bool:
        """Whether the turn puts units into the wheel before it delivers."""
        state = self.state
        assert state is not None
        return (
            bool(state.slots)
            or state.is_damaged
            or state.has_lost_units
            or self.queue_offset != state.check.last_timer_queue_offset
        )

    @property
    def _must_fill(self) -> bool:
        """Whether messages are left for the wheel after the delivery: stored again, or not read before.

        Not while slots far behind are left, whose places they might take.
        """
        if self.now.conf.timer_stop_enqueue or (self.is_far_behind and self.has_more_due):
            return False
        return self.is_far_behind or any(each.rolls.any() for each in self.slots)

    def _store_copies(self, session: WriteSession, began: int, tally: Tally) -> None:
        for part in _parts_of(self.slots):
            copied = _copies_of(self.store, part, self.now, self.clock_ms)
            turn = ServiceTurn(TIMER_PART, self.after_ms, began)
            if part.stop is not None:
                turn = ServiceTurn(_SLOT_TURN, part.stop, part.slots[0].time_ms)
            copied = _appended(session, copied, turn)
            tally.done += len(copied.messages)
            self.waiting.subtract(real_topics(copied.messages))


def _appended(session: WriteSession, copied: _TimerCopies, turn: ServiceTurn) -> _TimerCopies:
    """Stores the copies. A copy that is too large is left out, as is a message without a queue to go to."""
    if not len(copied.messages):
        return copied
    try:
        session.append(copied.copies, turn=turn)
        return copied
    except IllegalMessageError:
        refused = session.refused(StoredMessages(copied.copies))
        if not refused:
            raise
    for place, error in refused.items():
        _log.warning(
            "%s: the timer message at physical offset %d is not delivered: %s",
            session.opened.path, copied.messages.physical_offsets[place], error,
        )  # fmt: skip
    kept = np.ones(len(copied.messages), bool)
    kept[list(refused)] = False
    return _appended(session, copied.take(kept), turn)


def _refuse_future(plan: TimerPlan) -> None:
    """A broker with such a timercheck would deliver nothing until then."""
    if plan.read_ms > plan.now.ms + BEHIND_SLOTS_MAX * plan.now.conf.timer_precision_ms:
        raise CorruptStoreError(
            config_path(plan.store.opened, "timercheck"), 0, f"a time up to {plan.now.ms} (ms), the clock",
            f"{plan.read_ms}; set the clock, or the first 8 bytes of the file",
        )  # fmt: skip


def _warn_of_clock(plan: TimerPlan) -> None:
    ahead_ms = plan.read_ms - plan.now.ms
    if ahead_ms > plan.now.conf.timer_precision_ms:
        _log.warning(
            "%s: the timer has delivered up to %d (ms), %d ms ahead of the clock, which was set back; timer "
            "messages that are due before are delivered late, when the clock has passed that time",
            plan.store.path, plan.read_ms, ahead_ms,
        )  # fmt: skip


def _wheel_turn(plan: TimerPlan, state: TimerState) -> WheelTurn:
    times = WheelTimes(plan.clock_ms, plan.read_ms, plan.after_ms)
    return WheelTurn(plan.store, plan.now.conf, state, times, plan.queue_offset, waiting=plan.waiting)


def _enqueue(plan: TimerPlan, state: TimerState, queue: Queue) -> None:
    """Puts the next messages of the timer topic into the state."""
    turn, limits = _wheel_turn(plan, state), (TURN_MESSAGES_MAX, TURN_BYTES_MAX)
    if state.has_lost_units:
        enqueue_again(turn, queue, limits)
    enqueue(turn, queue, limits=limits)
    plan.queue_offset, plan.has_more_new = turn.queue_offset, turn.has_more_new


def _choose_slots(plan: TimerPlan, state: TimerState, ledger: Ledger) -> None:
    """The slots of a turn: as many as fit into a commit, at least one.

    A slot that is larger is stored in several commits of one turn. The ledger notes after each the position
    in the timerlog, so that a crash repeats nothing.
    """
    messages = size = 0
    precision = plan.now.conf.timer_precision_ms
    for slot in state.slots_between(plan.after_ms, plan.clock_ms):
        time_ms = slot.time * precision
        done_until = 0 if plan.slots else _done_until(ledger, time_ms, plan.store)
        positions, units = state.chain(slot.last)
        places = units["physical_offset"].tolist()
        there = np.array([plan.store.log.has_message_at(place) for place in places], bool)
        plan.lost += int(np.count_nonzero(~there))
        due = _DueSlot.of(time_ms, positions[there], units[there], done_until)
        messages, size = messages + len(due.units), size + due.bytes
        if plan.slots and (messages > TURN_MESSAGES_MAX or size > TURN_BYTES_MAX):
            plan.has_more_due, plan.after_ms = True, time_ms
            return
        plan.slots.append(due)
    if plan.slots:
        plan.after_ms = plan.clock_ms


def _done_until(ledger: Ledger, time_ms: int, store: Store) -> int:
    """The timerlog position up to which a crashed turn has stored the units of a slot; 0: none.

    If a later turn has ended the slot, somebody has set timercheck back, who wants all of the slot again.
    """
    ended = ledger.entry_of(TIMER_PART)
    if ended is not None and ended.number > time_ms:
        return 0
    position = ledger.resume(_SLOT_TURN, time_ms, store.log)
    return 0 if position == time_ms else position


# ---- slots whose time has come -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _DueSlot:
    """The units of a slot whose time has come, oldest first, without those of an earlier commit.

    `marks` are all units of the slot that recall other messages. A mark that rolls is among `units` too: it
    is stored again like any message, if its time has not passed.
    """

    time_ms: int
    positions: _Ints
    units: NDArray[np.void]
    marks: NDArray[np.void]

    @staticmethod
    def of(time_ms: int, positions: _Ints, units: NDArray[np.void], done_until: int) -> _DueSlot:
        """The slot with this chain, of which the units before position `done_until` are done."""
        is_mark, rolls = units["magic"] & MAGIC_DELETE != 0, units["magic"] & MAGIC_ROLL != 0
        left = (rolls | ~is_mark) & (positions >= done_until)
        return _DueSlot(time_ms, positions[left], units[left], units[is_mark])

    @property
    def bytes(self) -> int:
        return int(self.units["message_size"].sum())

    @property
    def rolls(self) -> _Flags:
        """Units whose messages are stored in the timer topic again, if their times have not passed."""
        rolls: _Flags = self.units["magic"] & MAGIC_ROLL != 0
        return rolls


@dataclass(frozen=True, slots=True)
class _DuePart:
    """Units that are stored with one commit.

    `stop` is the timerlog position where the slot goes on; None: the part ends with its slot.
    """

    slots: tuple[_DueSlot, ...]
    stop: int | None = None


def _parts_of(slots: Sequence[_DueSlot]) -> Iterator[_DuePart]:
    """All slots in one part, or the only slot in several parts if it is larger than a turn."""
    if len(slots) != 1:
        if slots:
            yield _DuePart(tuple(slots))
        return
    (slot,) = slots
    start, count = 0, len(slot.units)
    sizes = np.cumsum(slot.units["message_size"].astype(np.int64))
    while start < count or count == 0:
        before = int(sizes[start - 1]) if start else 0
        stop = int(np.searchsorted(sizes, before + TURN_BYTES_MAX, side="right"))
        stop = min(max(stop, start + 1), start + _PART_MESSAGES_MAX, count)
        part = _DueSlot(slot.time_ms, slot.positions[start:stop], slot.units[start:stop], slot.marks)
        yield _DuePart((part,), int(slot.positions[stop]) if stop < count else None)
        if stop >= count:
            return
        start = stop


@dataclass(frozen=True, slots=True)
class _TimerCopies:
    """The waiting messages that have a copy, the time of each one's slot in ms, and the copies."""

    messages: StoredMessages
    slot_ms: _Ints
    copies: MessageColumns

    def take(self, kept: _Flags) -> _TimerCopies:
        copies = StoredMessages(self.copies).take(kept).messages
        return _TimerCopies(self.messages.take(kept), self.slot_ms[kept], copies)


def _copies_of(store: Store, part: _DuePart, now: Now, clock_ms: int) -> _TimerCopies:
    """The copies for the units of a part; slots before `clock_ms` have fired.

    A message that rolls, but is due before `clock_ms`, is delivered: the service did not run at the end of
    the roll window. Recalled messages have no copy, nor those that retention deleted or whose topic is not
    written to.
    """
    units = np.concatenate([each.units for each in part.slots])
    slot_ms = np.repeat(
        np.array([each.time_ms for each in part.slots], np.int64), [len(each.units) for each in part.slots]
    )
    messages, places, damaged = read_stored(
        store.log, units["physical_offset"].astype(np.int64), units["message_size"].astype(np.int64)
    )
    for each in damaged:
        _log.warning("%s: a timer message cannot be delivered: %s", store.path, each.error)
    units, slot_ms = units[places], slot_ms[places]
    rolls, second_ms = _rolls(messages, units["magic"], slot_ms, now, clock_ms)
    kept = rolls | (units["magic"] & MAGIC_DELETE == 0)
    kept &= ~_recalled(store, part, messages, second_ms, now, clock_ms)
    kept &= rolls | ~_refused(store, messages, kept & ~rolls)
    messages, units, slot_ms, rolls = messages.take(kept), units[kept], slot_ms[kept], rolls[kept]
    copies, good = timer_copies(messages, units["write_timestamp"].astype(np.int64), rolls, now.ms)
    for offset in np.delete(messages.physical_offsets, good).tolist():
        _log.warning(
            "%s: the timer message at physical offset %d is not delivered: its properties are too long, or "
            "do not name a queue (REAL_TOPIC, REAL_QID)", store.path, offset,
        )  # fmt: skip
    return _TimerCopies(messages.take(good), slot_ms[good], copies)


def _rolls(
    messages: StoredMessages, magic: NDArray[np.integer], slot_ms: _Ints, now: Now, clock_ms: int
) -> tuple[_Flags, _Ints]:
    """(which messages are stored in the timer topic again; the second in which each waits, in ms).

    The second is that of the slot, or TIMER_OUT_MS of a message whose slot is the end of a roll window and
    whose time has passed.
    """
    out_ms, is_time = read_integers(messages.properties(TIMER_OUT_MS)[0])
    rolls = magic & MAGIC_ROLL != 0
    is_late = rolls & is_time & (out_ms < clock_ms)
    precision = now.conf.timer_precision_ms
    return rolls & ~is_late, np.where(is_late, out_ms // precision * precision, slot_ms)


def _refused(store: Store, messages: StoredMessages, due: _Flags) -> _Flags:
    """Which of the `due` messages have a topic that is not written to: a commit would refuse all for one."""
    queues = real_queues(messages)
    topics = queues.topics.to_pylist()
    wanted = np.flatnonzero(due & ~queues.bad).tolist()
    errors = _refused_topics(store.path, {topics[row] for row in wanted})
    refused = np.zeros(len(messages), bool)
    for row in [row for row in wanted if topics[row] in errors]:
        refused[row] = True
        _log.warning(
            "%s: the timer message at physical offset %d is not delivered: %s",
            store.path, messages.physical_offsets[row], errors[topics[row]],
        )  # fmt: skip
    return refused


def _refused_topics(root: str, names: Collection[str]) -> dict[str, StoreError]:
    """The topics that a commit refuses, and why."""
    opened = Opened(root)
    configured: Mapping[str, TopicConfig] = read_topics(opened) or {}
    errors: dict[str, StoreError] = {}
    for name in names:
        try:
            EncodedTopics(name)
            StoreRefusals(opened).refuse_topics([(name, 0)], configured)
        except (IllegalMessageError, UnsupportedFormatError) as error:
            errors[name] = error
    return errors


def _recalled(
    store: Store, part: _DuePart, messages: StoredMessages, second_ms: _Ints, now: Now, clock_ms: int
) -> _Flags:
    """Which messages are recalled by a mark in their own second."""
    found = np.zeros(len(messages), bool)
    named: dict[int, set[str]] = {}
    for each in part.slots:
        if not len(each.marks):
            continue
        marks, places, _ = read_stored(
            store.log,
            each.marks["physical_offset"].astype(np.int64),
            each.marks["message_size"].astype(np.int64),
        )
        slot_ms = np.full(len(marks), each.time_ms)
        rolls, seconds = _rolls(marks, each.marks["magic"][places], slot_ms, now, clock_ms)
        (keys,) = marks.properties(TIMER_DEL_UNIQKEY)
        for key, second, waits in zip(keys.to_pylist(), seconds.tolist(), rolls.tolist(), strict=True):
            if key is not None and not waits:
                named.setdefault(second, set()).add(key)
    for second, recalls in named.items():
        here = np.flatnonzero(second_ms == second)
        topics, unique = messages.take(here).properties(REAL_TOPIC, UNIQ_KEY)
        found[here] = recalled(topics.to_pylist(), unique.to_pylist(), frozenset(recalls))
    return found


# ---- recalls -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RecallPlan:
    """A plan that recalls the waiting timer messages of `topic` with the key `uniq_key`."""

    root: str
    topic: str
    uniq_key: str
    rows: pa.Table
    conf: BrokerConf
    producer_group: str
    now_ms: int | None
    log_directories: tuple[str, ...]
    lock_timeout: float

    def table(self) -> pa.Table:
        """Returns one row for each message that will not be delivered.

        The columns are topic, queueId, msgId, dueTimestamp (the delivery time, UTC) and physicalOffset.
        """
        return self.rows

    def apply(self) -> int:
        """Stores the recalls and returns their number; 0 if all messages are already recalled.

        Raises OptionError if a message of the plan was delivered meanwhile, and StoreInUseError while a
        broker has the store.
        """
        now_ms = _clock(self.now_ms)
        options = CommitOptions(
            lock_timeout=self.lock_timeout,
            log_directories=self.log_directories,
            conf=self.conf,
            clock=lambda: now_ms,
        )
        with write_session(self.root, options) as session:
            store = session.store()
            rows = _waiting_rows(store, self.topic, self.uniq_key, now_ms, self.conf)
            if not rows.num_rows:
                return 0
            victims, _, damaged = read_stored(
                store.log,
                rows["physicalOffset"].to_numpy().astype(np.int64),
                rows["bytes"].to_numpy().astype(np.int64),
            )
            if damaged:
                raise damaged[0].error
            messages = recall_messages(
                victims,
                has_topic=self.conf.timer_delete_key_has_topic,
                producer_group=self.producer_group,
                now_ms=now_ms,
            )
            session.append(messages, new_topics={TIMER_TOPIC: 1})
            return len(victims)


def recall(
    store: Store | str,
    *,
    topic: str,
    uniq_key: str,
    producer_group: str = "rmqlog",
    now_ms: int | None = None,
    broker_conf: str | BrokerConf | None = None,
    lock_timeout: float = 10.0,
) -> RecallPlan:
    """Returns a plan that recalls the timer message of `topic` (its destination) with the UNIQ_KEY
    `uniq_key`.

    `table()` shows the message, `apply()` stores the recall. After that, neither the service `timer` nor a
    broker delivers the message. `now_ms` is the clock (ms since 1970). `broker_conf` is the path of the
    broker's settings (appendTopicForTimerDeleteKey), as for `run_once`. `lock_timeout` is the time to wait
    for the lock, in seconds.

    Raises OptionError if no such message waits: it does not exist, or its time has come.

    Example::

        plan = timer.recall("/data/store", topic="Orders", uniq_key="7F0000010000...")
        plan.table()
        plan.apply()
    """
    store = Store.open(store) if isinstance(store, str) else store
    StoreRefusals(store.opened).refuse_store()
    conf = broker_conf_of(store.opened, broker_conf)
    return RecallPlan(
        store.path,
        topic,
        uniq_key,
        _waiting_rows(store, topic, uniq_key, _clock(now_ms), conf).select(_RECALL_COLUMNS),
        conf,
        check_group(producer_group),
        now_ms,
        store.commit_log_paths,
        lock_timeout,
    )


def _waiting_rows(store: Store, topic: str, uniq_key: str, now_ms: int, conf: BrokerConf) -> pa.Table:
    """The rows of the view `delayed`; none if the message is recalled already."""
    found: list[dict[str, Any]] = []
    states = set()
    batches = list(delayed(store, now_ms, conf))
    for row in (row for batch in batches for row in batch.to_pylist()):
        if (row["kind"], row["topic"], row["msgId"]) == ("timer", topic, uniq_key):
            waits = row["dueInMs"] > -conf.timer_precision_ms and row["state"] in ("waiting", "unknown")
            states.add("waiting" if waits else row["state"])
            if waits:
                found.append(row)
    if not states & {"waiting", "recalled"}:
        reason = "its time has come" if states & {"due", "unknown"} else "none waits in the timer"
        raise OptionError(
            f"{store.path}: expected a message of topic {topic!r} with {UNIQ_KEY} {uniq_key!r} that waits "
            f"for its time, but {reason}; the view `delayed` has those that wait"
        )
    return pa.Table.from_pylist(found, batches[0].schema)


def _clock(now_ms: int | None) -> int:
    return time.time_ns() // 1_000_000 if now_ms is None else now_ms
