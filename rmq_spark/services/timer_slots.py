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
from store_format.display.text import shown
from store_format.errors import IllegalMessageError, StoreError, UnsupportedFormatError
from store_format.message.encode import MessageColumns
from store_format.message.encode_parts import Topics
from store_format.message.stored import StoredMessages
from store_format.metadata.read import read_topics
from store_format.metadata.timer import MAGIC_DELETE, MAGIC_ROLL
from store_format.metadata.values import TopicConfig
from store_format.names import REAL_TOPIC, TIMER_DEL_UNIQKEY, UNIQ_KEY
from store_format.read.store import Store
from store_format.read.stored_messages import read_stored

_log = logging.getLogger(__name__)

_Ints = NDArray[np.int64]
_Flags = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class DueSlot:
    """The units of a slot whose time has come, oldest first, without those of an earlier commit.

    `marks` are all units of the slot that recall other messages. One that rolls is not among them: it is
    stored again like any message.
    """

    time_ms: int
    positions: _Ints
    units: NDArray[np.void]
    marks: NDArray[np.void]

    @staticmethod
    def of(time_ms: int, positions: _Ints, units: NDArray[np.void], done_until: int) -> DueSlot:
        """The slot with this chain, of which the units before position `done_until` are done."""
        is_mark = (units["magic"] & MAGIC_DELETE != 0) & (units["magic"] & MAGIC_ROLL == 0)
        left = ~is_mark & (positions >= done_until)
        return DueSlot(time_ms, positions[left], units[left], units[is_mark])

    @property
    def bytes(self) -> int:
        return int(self.units["message_size"].sum())

    @property
    def rolls(self) -> _Flags:
        """Units whose messages are stored in the timer topic again."""
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
class Found:
    """The waiting messages that have a copy, the time of each one's slot in ms, and the copies."""

    messages: StoredMessages
    slot_ms: _Ints
    copies: MessageColumns


def copies_of(store: Store, part: DuePart, now: Now) -> Found:
    """The copies for the units of a part.

    Recalled messages have none, nor those that retention deleted or whose topic is not written to.
    """
    units = np.concatenate([each.units for each in part.slots])
    slot = np.repeat(np.arange(len(part.slots)), [len(each.units) for each in part.slots])
    messages, places, damaged = read_stored(
        store.log, units["physical_offset"].astype(np.int64), units["message_size"].astype(np.int64)
    )
    for each in damaged:
        _log.warning("%s: a timer message cannot be delivered: %s", store.path, each.error)
    kept = ~_recalled(store, part, messages, slot[places])
    rolls = units["magic"][places] & MAGIC_ROLL != 0
    kept &= rolls | ~_refused(store, messages, kept & ~rolls)
    messages, places, rolls = messages.take(kept), places[kept], rolls[kept]
    copies, good = timer_copies(messages, units["write_timestamp"][places].astype(np.int64), rolls, now.ms)
    for offset in np.delete(messages.physical_offsets, good).tolist():
        _log.warning(
            "%s: the timer message at physical offset %d is not delivered: its properties are too long, or "
            "do not name a queue (REAL_TOPIC, REAL_QID)", store.path, offset,
        )  # fmt: skip
    times = np.array([each.time_ms for each in part.slots], np.int64)
    return Found(messages.take(good), times[slot[places[good]]], copies)


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
                store.path, messages.physical_offsets[row], shown(str(error)),
            )  # fmt: skip
    return refused


def _refused_topics(root: str, names: Collection[str]) -> dict[str, StoreError]:
    """The topics that a commit refuses, and why."""
    configured: Mapping[str, TopicConfig] = read_topics(root) or {}
    errors: dict[str, StoreError] = {}
    for name in names:
        try:
            Topics(name)
            refuse_topics(root, [(name, 0)], configured)
        except (IllegalMessageError, UnsupportedFormatError) as error:
            errors[name] = error
    return errors


def _recalled(store: Store, part: DuePart, messages: StoredMessages, slot: _Ints) -> _Flags:
    """Which messages are recalled by a mark in their own slot."""
    found = np.zeros(len(messages), bool)
    for number, each in enumerate(part.slots):
        if not len(each.marks):
            continue
        marks, _, _ = read_stored(
            store.log,
            each.marks["physical_offset"].astype(np.int64),
            each.marks["message_size"].astype(np.int64),
        )
        (keys,) = marks.properties(TIMER_DEL_UNIQKEY)
        here = np.flatnonzero(slot == number)
        topics, unique = messages.take(here).properties(REAL_TOPIC, UNIQ_KEY)
        named = frozenset(key for key in keys.to_pylist() if key is not None)
        found[here] = recalled(topics.to_pylist(), unique.to_pylist(), named)
    return found
