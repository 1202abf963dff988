"""Slots of the timer wheel whose time has come: their units, and the copies that are stored for them."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rmq_spark.produce.real_queue import real_queues
from rmq_spark.produce.timers import recalled, timer_copies
from rmq_spark.services.service import TURN_BYTES_MAX, TURN_MESSAGES_MAX, Now
from store_format.commit.unsupported import refuse_topics
from store_format.errors import IllegalMessageError, StoreError, UnsupportedFormatError
from store_format.java.number_columns import read_integers
from store_format.message.encode import EncodedTopics, MessageColumns
from store_format.message.stored import StoredMessages
from store_format.metadata.read import read_topics
from store_format.metadata.timer import MAGIC_DELETE, MAGIC_ROLL
from store_format.metadata.values import TopicConfig
from store_format.names import REAL_TOPIC, TIMER_DEL_UNIQKEY, TIMER_OUT_MS, UNIQ_KEY
from store_format.read.store import Store
from store_format.read.stored_messages import read_stored

_log = logging.getLogger(__name__)

_Ints = NDArray[np.int64]
_Flags = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class DueSlot:
    """The units of a slot whose time has come, oldest first, without those of an earlier commit.

    `marks` are all units of the slot that recall other messages. A mark that rolls is among `units` too: it
    is stored again like any message, if its time has not passed.
    """

    time_ms: int
    positions: _Ints
    units: NDArray[np.void]
    marks: NDArray[np.void]

    @staticmethod
    def of(time_ms: int, positions: _Ints, units: NDArray[np.void], done_until: int) -> DueSlot:
        """The slot with this chain, of which the units before position `done_until` are done."""
        is_mark, rolls = units["magic"] & MAGIC_DELETE != 0, units["magic"] & MAGIC_ROLL != 0
        left = (rolls | ~is_mark) & (positions >= done_until)
        return DueSlot(time_ms, positions[left], units[left], units[is_mark])

    @property
    def bytes(self) -> int:
        return int(self.units["message_size"].sum())

    @property
    def rolls(self) -> _Flags:
        """Units whose messages are stored in the timer topic again, if their times have not passed."""
        rolls: _Flags = self.units["magic"] & MAGIC_ROLL != 0
        return rolls


@dataclass(frozen=True, slots=True)
class DuePart:
    """Units that are stored with one commit.

    `stop` is the timerlog position where the slot goes on; None: the part ends with its slot.
    """

    slots: tuple[DueSlot, ...]
    stop: int | None = None


def parts_of(slots: Sequence[DueSlot]) -> Iterator[DuePart]:
    """All slots in one part, or the only slot in several parts if it is larger than a turn."""
    if len(slots) != 1:
        if slots:
            yield DuePart(tuple(slots))
        return
    (slot,) = slots
    start, count = 0, len(slot.units)
    sizes = np.cumsum(slot.units["message_size"].astype(np.int64))
    while start < count or count == 0:
        before = int(sizes[start - 1]) if start else 0
        stop = int(np.searchsorted(sizes, before + TURN_BYTES_MAX, side="right"))
        stop = min(max(stop, start + 1), start + TURN_MESSAGES_MAX, count)
        part = DueSlot(slot.time_ms, slot.positions[start:stop], slot.units[start:stop], slot.marks)
        yield DuePart((part,), int(slot.positions[stop]) if stop < count else None)
        if stop >= count:
            return
        start = stop


@dataclass(frozen=True, slots=True)
class TimerCopies:
    """The waiting messages that have a copy, the time of each one's slot in ms, and the copies."""

    messages: StoredMessages
    slot_ms: _Ints
    copies: MessageColumns

    def take(self, kept: _Flags) -> TimerCopies:
        copies = StoredMessages(self.copies).take(kept).messages
        return TimerCopies(self.messages.take(kept), self.slot_ms[kept], copies)


def copies_of(store: Store, part: DuePart, now: Now, clock_ms: int) -> TimerCopies:
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
    return TimerCopies(messages.take(good), slot_ms[good], copies)


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
    for row in wanted if errors else ():
        error = errors.get(topics[row])
        if error is not None:
            refused[row] = True
            _log.warning(
                "%s: the timer message at physical offset %d is not delivered: %s",
                store.path, messages.physical_offsets[row], error,
            )  # fmt: skip
    return refused


def _refused_topics(root: str, names: Collection[str]) -> dict[str, StoreError]:
    """The topics that a commit refuses, and why."""
    configured: Mapping[str, TopicConfig] = read_topics(root) or {}
    errors: dict[str, StoreError] = {}
    for name in names:
        try:
            EncodedTopics(name)
            refuse_topics(root, [(name, 0)], configured)
        except (IllegalMessageError, UnsupportedFormatError) as error:
            errors[name] = error
    return errors


def _recalled(
    store: Store, part: DuePart, messages: StoredMessages, second_ms: _Ints, now: Now, clock_ms: int
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
