"""Messages for later: where a broker parks them until they are due, and what it writes into them (HookUtils,
spec 8.1, 8.3).

A level parks a message in SCHEDULE_TOPIC_XXXX, in the level's queue; a time parks it in rmq_sys_wheel_timer.
Both remember the topic and the queue it is meant for.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rmq_spark.produce.rows import Rows
from store_format.message.tags_code import DELAY_LEVELS_MS
from store_format.names import DELAY, REAL_QID, REAL_TOPIC, SCHEDULE_TOPIC, TIMER_OUT_MS, TIMER_TOPIC

TIMER_DELAY_MAX_MS = 3 * 24 * 3_600_000  # MessageStoreConfig.timerMaxDelaySec
TIMER_PRECISION_MS = 1000  # MessageStoreConfig.timerPrecisionMs

_KIND = pa.large_binary()
_INT_MAX = (1 << 31) - 1


@dataclass(frozen=True, slots=True)
class Parked:
    """Where the messages are stored. `asked` are properties a client sets, `added` those that the broker adds
    when it parks one.
    """

    topics: tuple[str, ...]
    topic: NDArray[np.int64]
    queue_id: NDArray[np.int64]
    delay_ms: NDArray[np.int64]  # of the level; 0: not in SCHEDULE_TOPIC_XXXX
    asked: dict[str, pa.LargeBinaryArray]
    added: dict[str, pa.LargeBinaryArray]


def park(rows: Rows, queue_id: NDArray[np.int64], now_ms: int) -> Parked:
    """The stored places of rows that are meant for `queue_id`: those themselves, and where messages for later
    are parked.

    Raises IllegalMessageError for a row with a level and a time, and a time more than three days off.
    """
    level = rows.integers("delayTimeLevel", 0, 0, _INT_MAX)
    times = rows.times_ms("deliverTimestamp")
    if times is None and (level is None or not level.any()):
        return Parked(rows.topics, rows.codes, queue_id, np.zeros(rows.count, np.int64), {}, {})
    level = np.zeros(rows.count, np.int64) if level is None else np.minimum(level, len(DELAY_LEVELS_MS))
    deliver, timed = (
        (np.zeros(rows.count, np.int64), np.zeros(rows.count, np.bool_)) if times is None else times
    )
    _refuse_bad_delays(rows, level, deliver, timed, now_ms)
    scheduled, parked = level > 0, timed & (deliver > now_ms)
    # One precision early when it is already a multiple: floor of the millisecond before, in both cases.
    out = (deliver - 1) // TIMER_PRECISION_MS * TIMER_PRECISION_MS
    moved = scheduled | parked
    topic = np.where(scheduled, len(rows.topics), np.where(parked, len(rows.topics) + 1, rows.codes))
    asked = {DELAY: _numbers(level, scheduled), "TIMER_DELIVER_MS": _numbers(deliver, timed)}
    real_topics = pa.array([name.encode() for name in rows.topics], _KIND)
    added = {
        TIMER_OUT_MS: _numbers(out, parked),
        REAL_TOPIC: real_topics.take(pa.array(rows.codes, mask=~moved)),
        REAL_QID: _numbers(queue_id, moved),
    }
    return Parked(
        (*rows.topics, SCHEDULE_TOPIC, TIMER_TOPIC),
        topic,
        np.where(scheduled, level - 1, np.where(parked, 0, queue_id)),
        np.array((0, *DELAY_LEVELS_MS), np.int64)[level],
        _without_empty(asked),
        _without_empty(added),
    )


def _refuse_bad_delays(
    rows: Rows, level: NDArray[np.int64], deliver: NDArray[np.int64], timed: NDArray[np.bool_], now_ms: int
) -> None:
    both = (level > 0) & timed
    if both.any():
        row = int(both.argmax())
        rows.refuse(row, f"delayTimeLevel {level[row]} and deliverTimestamp {deliver[row]}: give one of them")
    late = timed & (deliver > now_ms + TIMER_DELAY_MAX_MS)
    if late.any():
        row = int(late.argmax())
        rows.refuse(
            row,
            f"deliverTimestamp {deliver[row]} is {deliver[row] - now_ms} ms from now, at most {TIMER_DELAY_MAX_MS} are allowed",
        )


def _numbers(values: NDArray[np.int64], where: NDArray[np.bool_]) -> pa.LargeBinaryArray:
    return pc.cast(pa.array(values, mask=~where), pa.large_string()).cast(_KIND)


def _without_empty(columns: dict[str, pa.LargeBinaryArray]) -> dict[str, pa.LargeBinaryArray]:
    return {name: values for name, values in columns.items() if values.null_count < len(values)}
