"""What a broker stores when waiting messages are delivered: copies in the queues that they are for.

A broker stores a message with a delay level or a delivery time in a system topic; REAL_TOPIC and REAL_QID
name its queue (HookUtils, spec 8.1, 8.3). On delivery, it stores a copy in the real queue. A timer message
waits in a slot of the wheel; its copy is stored when the slot's time has come (TimerMessageStore, spec
consumption.md 7.4, store-format.md 8.3).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from store_format.consumequeue.files import can_be_queue
from store_format.java.number_columns import read_integers
from store_format.message import sysflag
from store_format.message.encode import PROPERTIES_SIZE_MAX, MessageColumns, StoredMessages, edited_properties
from store_format.message.property_encoder import encode_property_columns
from store_format.metadata.timer import MAGIC_DELETE, MAGIC_NORMAL, MAGIC_ROLL, WHEEL_SLOTS
from store_format.names import (
    BORN_TIMESTAMP,
    HALF_TOPIC,
    PGROUP,
    REAL_QID,
    REAL_TOPIC,
    TAGS,
    TIMER_DEL_UNIQKEY,
    TIMER_DELIVER_MS,
    TIMER_DEQUEUE_MS,
    TIMER_ENQUEUE_MS,
    TIMER_OUT_MS,
    TIMER_ROLL_TIMES,
    TIMER_TOPIC,
    UNIQ_KEY,
)

_Ints = NDArray[np.int64]
_Flags = NDArray[np.bool_]

_WINDOW_SLOTS_MAX = WHEEL_SLOTS // 2 - 60  # TimerMessageStore: slotsTotal - TIMER_BLANK_SLOTS

_QUEUE_ID_MAX = 2**31 - 1


# ---- the queue that a message waits for --------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RealQueues:
    """The real queue of each message; `bad` marks messages without a queue that can exist."""

    topics: pa.StringArray
    queue_ids: NDArray[np.int64]
    bad: NDArray[np.bool_]

    @property
    def is_half(self) -> NDArray[np.bool_]:
        """Messages for the half topic, which a broker discards: only a producer's half may be there."""
        found: NDArray[np.bool_] = pc.equal(self.topics, HALF_TOPIC).to_numpy(zero_copy_only=False)
        return found & ~self.bad


def real_queues(messages: StoredMessages) -> RealQueues:
    """Where the messages are delivered to."""
    names, ids = messages.properties(REAL_TOPIC, REAL_QID)
    queue_ids, is_number = read_integers(ids)
    encoded = names.dictionary_encode()
    can_be = pa.array([can_be_queue(name, 0) for name in encoded.dictionary.to_pylist()], pa.bool_())
    is_topic = pc.fill_null(can_be.take(encoded.indices), False).to_numpy(zero_copy_only=False)
    good = is_topic & is_number & (queue_ids >= 0) & (queue_ids <= _QUEUE_ID_MAX)
    return RealQueues(pc.fill_null(names, ""), queue_ids, ~good)


def delivered_from_level(messages: StoredMessages, queues: RealQueues) -> MessageColumns:
    """The copies that a broker stores when the time of delay levels has come.

    Body, flags, hosts, birth and reconsumeTimes stay. DELAY, REAL_TOPIC and REAL_QID stay in the properties,
    because the broker encodes them before it removes DELAY from the map
    (ScheduleMessageService.messageTimeUp).
    """
    return messages.copies(
        topic=queues.topics,
        queue_id=queues.queue_ids,
        properties=edited_properties(messages.messages.properties, {}),
        prepared_transaction_offset=0,
    )


# ---- the timer ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Waiting:
    """The slot of each message (ms), the time when it was put there (ms), and the magic of its unit."""

    slot_ms: _Ints
    write_ms: _Ints
    magic: _Ints


def roll_window_slots(setting: int) -> int:
    """The slots of timerRollWindowSlot; a value that the wheel has no room for counts as the longest one."""
    return setting if 2 <= setting <= _WINDOW_SLOTS_MAX else _WINDOW_SLOTS_MAX


def wait_in_wheel(
    out_ms: _Ints, recalls: _Flags, *, write_ms: int, read_ms: int, precision_ms: int, window_slots: int
) -> Waiting:
    """Where messages with these TIMER_OUT_MS wait (TimerMessageStore.doEnqueue).

    `write_ms` and `read_ms` are the clock and the time up to which slots were read, multiples of the
    precision. A message that is due after the roll window waits for half a window or for one, and is then
    stored again. `recalls` marks messages that recall another one.

    A message whose slot was read already, because it was written too late, waits in the next slot that is
    read. A broker delivers it at once instead, and marks it with TIMER_ENQUEUE_MS 9223372036854775807; a
    broker that starts then delivers such a message again.
    """
    window = window_slots * precision_ms
    excess = out_ms - write_ms - window
    rolls = excess >= 0
    is_near = excess < window_slots // 3 * precision_ms  # so the last stretch is not too short
    slot = np.where(rolls, write_ms + np.where(is_near, window_slots // 2 * precision_ms, window), out_ms)
    slot = np.maximum(slot, read_ms)
    magic = MAGIC_NORMAL | np.where(rolls, MAGIC_ROLL, 0) | np.where(recalls, MAGIC_DELETE, 0)
    return Waiting(slot, np.minimum(write_ms, slot), magic)


def recall_key(topic: str, unique_key: str, *, has_topic: bool) -> str:
    """The value of TIMER_DEL_UNIQKEY that recalls a message (TimerMessageStore.buildDeleteKey).

    `has_topic` is appendTopicForTimerDeleteKey, always true before 5.4.
    """
    return f"{topic}+{unique_key}" if has_topic else unique_key


def recalled(topics: Iterable[str | None], unique_keys: Iterable[str | None], keys: frozenset[str]) -> _Flags:
    """Which messages with these REAL_TOPIC and UNIQ_KEY one of the recall keys of their slot names.

    Both forms of a key count, so that a store keeps its recalls when its broker's setting changes.
    """
    return np.array(
        [
            unique is not None
            and not keys.isdisjoint((unique, recall_key(str(topic), unique, has_topic=True)))
            for topic, unique in zip(topics, unique_keys, strict=True)
        ],
        bool,
    )


def timer_copies(
    messages: StoredMessages, write_ms: _Ints, rolls: _Flags, now_ms: int
) -> tuple[MessageColumns, _Ints]:
    """(the copies that a broker stores when slots fire, the indices of the messages that have one).

    `write_ms` is when each message was put into the wheel. A message that `rolls` is stored in the timer
    topic again, with one more in TIMER_ROLL_TIMES; the others go to REAL_TOPIC and REAL_QID, and keep these
    properties (TimerMessageStore.convert). A message without a queue to go to, or whose properties become too
    long, has no copy.
    """
    queues = real_queues(messages)
    (times,) = messages.properties(TIMER_ROLL_TIMES)
    properties = edited_properties(
        messages.messages.properties,
        {
            TIMER_ENQUEUE_MS: pc.cast(pa.array(write_ms), pa.string()),
            TIMER_ROLL_TIMES: _next_times(times, rolls),
            TIMER_DEQUEUE_MS: str(now_ms),
        },
    )
    is_short = pc.binary_length(properties).to_numpy() <= PROPERTIES_SIZE_MAX
    kept = np.flatnonzero((rolls | ~queues.bad) & is_short)
    rows, rolls = pa.array(kept), rolls[kept]
    good = messages.take(kept)
    copies = good.copies(
        topic=pc.if_else(pa.array(rolls), TIMER_TOPIC, queues.topics.take(rows)),
        queue_id=np.where(rolls, np.asarray(good.messages.queue_id, np.int64), queues.queue_ids[kept]),
        properties=properties.take(rows),
        prepared_transaction_offset=np.zeros(len(kept), np.int64),
    )
    return copies, kept


def _next_times(times: pa.StringArray, rolls: _Flags) -> pa.StringArray:
    """TIMER_ROLL_TIMES of the messages that roll; null for the others, which keep theirs."""
    numbers, _ = read_integers(times)
    return pc.cast(pa.array(numbers + 1, mask=~rolls), pa.string())


def recall_messages(
    victims: StoredMessages, *, has_topic: bool, producer_group: str, now_ms: int
) -> MessageColumns:
    """The messages that recall these timer messages, as the broker stores them.

    Each has the time of its victim, so that both are in one slot of the wheel, and the hosts of its victim.
    The broker writes an empty TRACE_CONTEXT too, which no reader sees (RecallMessageProcessor.buildMessage).
    """
    topics, keys, outs = victims.properties(REAL_TOPIC, UNIQ_KEY, TIMER_OUT_MS)
    times, _ = read_integers(outs)
    named = [
        recall_key(topic, key, has_topic=has_topic)
        for topic, key in zip(topics.to_pylist(), keys.to_pylist(), strict=True)
    ]
    properties = encode_property_columns(
        len(victims),
        {
            TAGS: "_RECALL_TAG_",
            TIMER_DEL_UNIQKEY: pa.array(named, pa.string()),
            UNIQ_KEY: keys,
            TIMER_DELIVER_MS: pc.cast(pa.array(times + 1), pa.string()),
            BORN_TIMESTAMP: str(now_ms),
            PGROUP: producer_group,
            TIMER_OUT_MS: outs,
            REAL_TOPIC: topics,
            REAL_QID: "0",
        },
    )
    return victims.copies(
        topic=TIMER_TOPIC,
        queue_id=0,
        body=pa.array([b"0"] * len(victims), pa.large_binary()),
        properties=properties,
        flag=0,
        sys_flag=np.asarray(victims.messages.sys_flag) & (sysflag.BORN_HOST_V6 | sysflag.STORE_HOST_V6),
        born_timestamp=now_ms,
        reconsume_times=0,
        prepared_transaction_offset=0,
    )
