"""Whether a queue is still the queue that a group has popped, or that of a topic that was created again.

No file says that a topic was deleted and created again, and its new queues begin at offset 0. So the
in-flight log keeps an entry of each queue, the witness: the queue offset of a message, and its physical
offset. Entries never change, and physical offsets grow with the queue offsets of a queue. An entry that leads
elsewhere now is thus of a new topic. What a broker has in flight has no physical offset, but a pop time: a
message that was stored later is of a new topic.

What the in-flight log has of a deleted topic does not count. The new topic is read from its first message. An
offset counts that somebody has set in consumerOffset.json since: a broker, from which the group has popped
the new topic.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

import numpy as np

from store_format.commitlog.log import CommitLog
from store_format.consumequeue.slices import QueueRange
from store_format.display.text import first_names, shown
from store_format.errors import StoreError
from store_format.metadata.group_offsets import read_group_offsets
from store_format.metadata.values import OrderInfo
from store_format.names import QueueKey
from store_format.pop.broker_in_flight import BrokerInFlight
from store_format.pop.log import InFlightLog, PopName
from store_format.pop.records import WitnessEntry
from store_format.pop.state import PopQueue, PopState
from store_format.read.store import Store
from store_format.read.stored_messages import read_stored_slice, units_at

# A broker notes the pop time, and then reads what the queue has.
_POP_TAKES_MS = 1_000

_log = logging.getLogger(__name__)

_Ranges = Mapping[QueueKey, QueueRange]
_Noted = Mapping[PopQueue, tuple[WitnessEntry | None, tuple[int, int] | None]]


def physical_offset_at(queue: QueueRange, offset: int) -> int:
    """The physical offset of the message at the queue offset; -1 if the entry cannot be read."""
    entry = _entry(queue, offset)
    return -1 if entry is None else entry.physical_offset


def witness_before(queue: QueueRange, next_offset: int) -> WitnessEntry | None:
    """The last entry before the offset, else the first of the queue; None if no entry can be read."""
    return _entry(queue, max(min(next_offset, queue.max_offset) - 1, queue.min_offset))


def is_of_new_topic(queue: QueueRange, witness: WitnessEntry) -> bool:
    """Whether the topic was created again since its queue had this entry.

    False if the files do not tell: the queue has no entry, or retention has deleted that of the witness.
    """
    found = _entry(queue, min(witness.offset, queue.max_offset - 1))
    if found is None:
        return False
    if found.offset == witness.offset:
        return found.physical_offset != witness.physical_offset
    return found.offset < witness.offset and found.physical_offset > witness.physical_offset


def popped_entry(
    log: CommitLog, queue: QueueRange, offset: int, pop_time: int
) -> tuple[WitnessEntry | None, int]:
    """(the entry at the offset, how many ms after the pop time its message was stored; 0: before).

    The first message that is left counts if retention has deleted that one. None if it cannot be read.
    """
    entry = _entry(queue, max(offset, queue.min_offset))
    if entry is None:
        return None, 0
    try:
        messages, _, _ = read_stored_slice(log, queue.piece(entry.offset, entry.offset + 1))
    except StoreError:
        return None, 0
    return entry, max(int(messages.store_timestamps[0]) - pop_time, 0) if len(messages) else 0


def is_point_deleted(log: CommitLog, queue: QueueRange | None, found: BrokerInFlight) -> bool:
    """Whether a broker's check point is of a deleted topic, or of a newer state of the store.

    The queue has not got as far as the check point, or its message was stored after the pop time. A clock may
    be wrong, so the message must also be behind the check point in the commitlog. If not, messages may be
    delivered twice, and none is lost. `queue` is None without a queue.
    """
    record = found.record
    if queue is None or record.offsets[-1] >= queue.max_offset:
        return True
    entry = _entry(queue, max(record.start, queue.min_offset))
    if entry is None or entry.physical_offset <= found.physical_offset:
        return False
    return is_after_pop(popped_entry(log, queue, record.start, record.pop_time)[1])


def is_batch_deleted(log: CommitLog, queue: QueueRange | None, batch: OrderInfo, committed: int) -> bool:
    """Whether a batch of consumerOrderInfo.json is of a deleted topic: its first message was stored later.

    With a topic, a broker deletes the committed offsets; `committed` is -1 then. It leaves the batches for
    some time. `queue` is None without a queue.
    """
    if queue is None or not batch.offsets or committed >= 0:
        return False
    return is_after_pop(popped_entry(log, queue, batch.offsets[0], batch.pop_time)[1])


def is_after_pop(later_ms: int) -> bool:
    """Whether a message that was stored so long after the pop time cannot have been popped then."""
    return later_ms > _POP_TAKES_MS


def _entry(queue: QueueRange, offset: int) -> WitnessEntry | None:
    if queue.is_batch or not queue.min_offset <= offset < queue.max_offset:
        return None
    try:
        offsets, units = units_at(queue, np.array([offset]))
    except StoreError:  # damaged, or deleted by retention since: its readers say so
        return None
    return WitnessEntry(offset, int(units["physical_offset"][0])) if len(offsets) else None


# ---- topics that were created again ------------------------------------------------------------------------


def queue_ranges(name: PopName, store: Store) -> _Ranges:
    """The queues of the topic and of the group's retry topics that can be read; {} without consume queues."""
    return store.snapshot(name.flags().__contains__).queues if store.has_consume_queues else {}


def new_queues(name: PopName, noted: _Noted, ranges: _Ranges) -> dict[PopQueue, tuple[int, bool]]:
    """The queues whose topic was created again since: where the group begins there, and whether that offset
    was set in consumerOffset.json since.
    """
    new: dict[PopQueue, tuple[int, bool]] = {}
    offsets: Mapping[QueueKey, int] | None = None
    for queue, (witness, mirrored) in noted.items():
        key = name.topic_of(queue[0]), queue[1]
        there = ranges.get(key)
        if there is None or witness is None or not is_of_new_topic(there, witness):
            continue
        offsets = read_group_offsets(name.root, name.group) if offsets is None else offsets
        in_file = offsets.get(key, -1)
        is_set = in_file >= 0 and mirrored is not None and in_file not in mirrored
        new[queue] = in_file if is_set else there.min_offset, is_set
    return new


def noted_queues(state: PopState) -> _Noted:
    """What the log notes of each queue: its witness, and the last two offsets in consumerOffset.json."""
    return {queue: (each.witness, state.mirrored.get(queue)) for queue, each in state.queues.items()}


def forget_deleted(name: PopName, log: InFlightLog, ranges: _Ranges) -> None:
    """Forgets what the log has of queues whose topic was created again, with a warning.

    Under the store's lock, before consumerOffset.json is compared.
    """
    new = new_queues(name, log.run(noted_queues), ranges)
    if not new:
        return

    def forget(state: PopState) -> int:
        before = state.in_flight + state.order.in_flight
        for queue, (start, is_set) in new.items():
            state.renew_queue(*queue, start)
            if is_set:
                state.note_mirrored({queue: start})
        return before - state.in_flight - state.order.in_flight

    count = log.run(forget)
    starts = first_names(
        f"{name.topic_of(flag)}-{each} at {start}" for (flag, each), (start, _) in new.items()
    )
    _log.warning(
        "%s: group %s: topic %s was deleted and created again; %d messages of the deleted topic that were in "
        "flight are forgotten, and the group continues at %s",
        name.root, name.group, shown(name.topic), count, starts,
    )  # fmt: skip


def note_witnesses(name: PopName, log: InFlightLog, queues: _Ranges) -> None:
    """Notes a witness of each queue that has none: until the first hand-out it is the entry before."""
    unknown = log.run(
        lambda state: {
            queue: each.next_offset for queue, each in state.queues.items() if each.witness is None
        }
    )
    found = {}
    for queue, next_offset in unknown.items():
        there = queues.get((name.topic_of(queue[0]), queue[1]))
        witness = None if there is None else witness_before(there, next_offset)
        if witness is not None:
            found[queue] = witness

    def note(state: PopState) -> None:
        queues = state.queues
        new = {key: each for key, each in found.items() if key in queues and queues[key].witness is None}
        if new:
            state.note_witnesses(new)

    if found:
        log.run(note)
