"""The service `timer`: delivers messages with a delivery time (TimerMessageStore, spec 7.4, 8.3).

A turn puts new messages of rmq_sys_wheel_timer into the timerlog and the wheel, delivers copies of the
messages whose slot has passed, puts those that it stored in rmq_sys_wheel_timer again into the wheel too, and
writes timercheck. A broker that starts afterwards continues from these files. `recall` cancels a waiting
message.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from rmq_spark.services.recall import RecallPlan, recall
from rmq_spark.services.service import TURN_BYTES_MAX, TURN_MESSAGES_MAX, Now, Tally, tallied
from rmq_spark.services.timer_slots import DueSlot, TimerCopies, copies_of, parts_of
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
from store_format.bookkeeping.ledger import SERVICE_PREFIX, Ledger, ServiceTurn
from store_format.commit.session import WriteSession
from store_format.commit.unsupported import refuse_timeline
from store_format.display.columns import INT, LONG, TEXT, TIME, ViewColumn, batch_of, time_us
from store_format.errors import CorruptStoreError, IllegalMessageError
from store_format.message.stored import StoredMessages
from store_format.metadata.read import config_path
from store_format.metadata.timer import read_timer_check
from store_format.metadata.timer_state import TimerState, recover_timer
from store_format.metadata.timer_write import (
    write_timer_log,
    write_timer_wheel,
)
from store_format.names import TIMER_TOPIC, UNIQ_KEY
from store_format.read.store import Queue, Store

__all__ = ["RecallPlan", "Timer", "TimerPlan", "recall"]

_log = logging.getLogger(__name__)

_SLOT_TURN = f"{TIMER_PART}/slot"  # of the ledger's keys: parts of a slot

_COLUMNS = (
    ViewColumn("dueTimestamp", TIME, "The time of the slot in the wheel; the slot fires when it has passed."),
    ViewColumn("topic", TEXT, "The destination topic: REAL_TOPIC, or rmq_sys_wheel_timer for a longer wait."),
    ViewColumn("queueId", INT, "The destination queue."),
    ViewColumn("msgId", TEXT, "The message id that the producer assigned (UNIQ_KEY)."),
    ViewColumn("physicalOffset", LONG, "The physical offset of the waiting message."),
)


class Timer:
    """Puts new timer messages into the wheel, and delivers those whose time has come."""

    name = "timer"

    def plan(self, store: Store, ledger: Ledger, now: Now) -> TimerPlan:
        """Raises UnsupportedFormatError for a timeline in RocksDB, CorruptStoreError for damaged files."""
        conf = now.conf
        plan = TimerPlan(store, now)
        queue = timer_queue(store)
        check = read_timer_check(config_path(store.path, "timercheck"))
        if not conf.timer_wheel_enable or (queue is None and check is None):
            return plan
        if queue is None and check is not None and check.last_timer_queue_offset > 0:
            raise lost_queue(f"{store.path}/consumequeue/{TIMER_TOPIC}/0")
        plan.state = state = recover_timer(store.path, conf.timer_precision_ms, conf.timer_log_file_size)
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
        if plan.changes:
            refuse_timeline(store.path, conf)
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
    slots: list[DueSlot] = field(default_factory=list)
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
        for part in parts_of(self.slots):
            copied = copies_of(self.store, part, self.now, self.clock_ms)
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
        write_timer_log(state, session.files)
        write_timer_wheel(state, session.files)
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
        for part in parts_of(self.slots):
            copied = copies_of(self.store, part, self.now, self.clock_ms)
            turn = ServiceTurn(TIMER_PART, self.after_ms, began)
            if part.stop is not None:
                turn = ServiceTurn(_SLOT_TURN, part.stop, part.slots[0].time_ms)
            copied = _appended(session, copied, turn)
            tally.done += len(copied.messages)
            self.waiting.subtract(real_topics(copied.messages))


def _appended(session: WriteSession, copied: TimerCopies, turn: ServiceTurn) -> TimerCopies:
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
            session.root, copied.messages.physical_offsets[place], error,
        )  # fmt: skip
    kept = np.ones(len(copied.messages), bool)
    kept[list(refused)] = False
    return _appended(session, copied.take(kept), turn)


def _refuse_future(plan: TimerPlan) -> None:
    """A broker with such a timercheck would deliver nothing until then."""
    latest = plan.now.ms + BEHIND_SLOTS_MAX * plan.now.conf.timer_precision_ms
    if plan.read_ms > latest:
        raise CorruptStoreError(
            config_path(plan.store.path, "timercheck"), 0, f"a time up to {plan.now.ms} (ms), the clock",
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
        due = DueSlot.of(time_ms, *state.chain(slot.last), done_until)
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
    ended = ledger.keys.get(SERVICE_PREFIX + TIMER_PART)
    if ended is not None and ended.number > time_ms:
        return 0
    position = ledger.resume(_SLOT_TURN, time_ms, store.log)
    return 0 if position == time_ms else position
