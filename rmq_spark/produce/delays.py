"""Delayed messages: the topic where a broker keeps them until delivery, and the properties that it adds.

A message with a delay level goes to the level's queue of SCHEDULE_TOPIC_XXXX, a message with a delivery time
to rmq_sys_wheel_timer. Properties keep its real topic and queue (HookUtils, spec 8.1, 8.3).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rmq_spark.produce.columns import WriteRows
from store_format.metadata.read import BrokerConf
from store_format.names import DELAY, REAL_QID, REAL_TOPIC, SCHEDULE_TOPIC, TIMER_OUT_MS, TIMER_TOPIC

_KIND = pa.large_binary()


@dataclass(frozen=True, slots=True)
class Parked:
    """Where messages are stored, and the properties that a client and the broker add to them."""

    topics: tuple[str, ...]
    topic: NDArray[np.int64]
    queue_id: NDArray[np.int64]
    delay_ms: NDArray[np.int64]  # of the delay level; 0: the message is not in SCHEDULE_TOPIC_XXXX
    by_client: dict[str, pa.LargeBinaryArray]
    by_broker: dict[str, pa.LargeBinaryArray]
    first_timer_ms: int | None = None  # the earliest TIMER_OUT_MS; None without messages in the timer


def park(
    rows: WriteRows,
    queue_id: NDArray[np.int64],
    now_ms: int,
    store: NDArray[np.int64] | None = None,
    confs: Sequence[BrokerConf] = (BrokerConf(),),
) -> Parked:
    """The topic and queue in which each row is stored: `queue_id` of its topic, or that of delayed messages.

    `confs` are the settings of the stores, `store` the place of each row's store among them (None: the
    first). A level above the highest of messageDelayLevel is lowered to the highest.

    Raises IllegalMessageError for a row with a level and a time, for a time later than timerMaxDelaySec
    allows, and for any time to come if timerWheelEnable is false.
    """
    level = rows.integers("delayTimeLevel", 0, low=0)
    times = rows.times_ms("deliverTimestamp")
    if times is None and (level is None or not level.any()):
        return Parked(rows.topics, rows.codes, queue_id, np.zeros(rows.count, np.int64), {}, {})
    delays, level_max = _delay_table(confs)
    store = np.zeros(rows.count, np.int64) if store is None else store
    level = np.zeros(rows.count, np.int64) if level is None else np.minimum(level, level_max[store])
    deliver, timed = (
        (np.zeros(rows.count, np.int64), np.zeros(rows.count, np.bool_)) if times is None else times
    )
    _refuse_both(rows, level, deliver, timed)
    scheduled, parked = level > 0, timed & (deliver > now_ms)
    _refuse_times(rows, deliver, parked, now_ms, store, confs)
    # Rounded down from the ms before: a multiple of the precision becomes the multiple before it.
    precision = np.array([conf.timer_precision_ms for conf in confs], np.int64)[store]
    out = (deliver - 1) // precision * precision
    moved = scheduled | parked
    topic = np.where(scheduled, len(rows.topics), np.where(parked, len(rows.topics) + 1, rows.codes))
    by_client = {DELAY: _numbers(level, scheduled), "TIMER_DELIVER_MS": _numbers(deliver, timed)}
    real_topics = pa.array([name.encode() for name in rows.topics], _KIND)
    by_broker = {
        TIMER_OUT_MS: _numbers(out, parked),
        REAL_TOPIC: real_topics.take(pa.array(rows.codes, mask=~moved)),
        REAL_QID: _numbers(queue_id, moved),
    }
    return Parked(
        (*rows.topics, SCHEDULE_TOPIC, TIMER_TOPIC),
        topic,
        np.where(scheduled, level - 1, np.where(parked, 0, queue_id)),
        delays[store, level],
        _without_empty(by_client),
        _without_empty(by_broker),
        int(out[parked].min()) if parked.any() else None,
    )


def _delay_table(confs: Sequence[BrokerConf]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(delays in ms, by place in `confs` and level; the highest level, by place)."""
    levels = [(0, *conf.message_delay_levels_ms) for conf in confs]
    table = np.zeros((len(levels), max(map(len, levels))), np.int64)
    for i, each in enumerate(levels):
        table[i, : len(each)] = each
    return table, np.array([len(each) - 1 for each in levels], np.int64)


def _refuse_both(
    rows: WriteRows, level: NDArray[np.int64], deliver: NDArray[np.int64], timed: NDArray[np.bool_]
) -> None:
    both = (level > 0) & timed
    if both.any():
        row = int(both.argmax())
        rows.refuse(
            row,
            f"expected delayTimeLevel or deliverTimestamp, found both, {level[row]} and {deliver[row]}; "
            "set one of them to null",
        )


def _refuse_times(
    rows: WriteRows,
    deliver: NDArray[np.int64],
    parked: NDArray[np.bool_],
    now_ms: int,
    store: NDArray[np.int64],
    confs: Sequence[BrokerConf],
) -> None:
    """Refuses the times that a broker with these settings refuses (HookUtils.transformTimerMessage)."""
    off = parked & ~np.array([conf.timer_wheel_enable for conf in confs])[store]
    if off.any():
        row = int(off.argmax())
        rows.refuse(
            row,
            f"expected no deliverTimestamp in the future, found {deliver[row]}: the store's broker.conf has "
            "timerWheelEnable=false, so its broker would never deliver the message. Use delayTimeLevel",
        )
    delay_max_ms = 1000 * np.array([conf.timer_max_delay_sec for conf in confs], np.int64)[store]
    late = parked & (deliver > now_ms + delay_max_ms)
    if late.any():
        row = int(late.argmax())
        rows.refuse(
            row,
            f"expected a deliverTimestamp at most {delay_max_ms[row]} ms from now (timerMaxDelaySec), found "
            f"{deliver[row]}, which is {deliver[row] - now_ms} ms from now",
        )


def _numbers(values: NDArray[np.int64], where: NDArray[np.bool_]) -> pa.LargeBinaryArray:
    return pc.cast(pa.array(values, mask=~where), pa.large_string()).cast(_KIND)


def _without_empty(columns: dict[str, pa.LargeBinaryArray]) -> dict[str, pa.LargeBinaryArray]:
    return {name: values for name, values in columns.items() if values.null_count < len(values)}
