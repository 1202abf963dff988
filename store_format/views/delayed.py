"""Messages that wait for their time: those of delay levels, and those of the timer wheel, with the topic and
queue they are for.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from store_format.display.columns import BROKER, INT, LONG, NAMES, TEXT, TIME, ViewColumn, batches_of, time_us
from store_format.java.numbers import parse_long
from store_format.metadata.read import config_path, read_delay_offsets
from store_format.metadata.timer import read_timer_check
from store_format.names import REAL_QID, REAL_TOPIC, SCHEDULE_TOPIC, TIMER_OUT_MS, TIMER_TOPIC, UNIQ_KEY
from store_format.views.messages import read_queues
from store_format.views.view import View

if TYPE_CHECKING:
    from store_format.read.store import Store

__all__ = ["VIEW"]


DELAYED_COLUMNS = (
    BROKER,
    ViewColumn(
        "kind",
        TEXT,
        "`level` (a delay level, SCHEDULE_TOPIC_XXXX) or `timer` (any time, rmq_sys_wheel_timer).",
    ),
    ViewColumn(
        "state",
        TEXT,
        "`waiting`; `due`: its time has come and the broker has not delivered it; `recalled` by another message, a `recall`; or `unknown`.",
    ),
    ViewColumn(
        "dueTimestamp",
        TIME,
        "When it is to be delivered, as the broker has put it in the consume queue. Where that is missing, of kind `level`, "
        "the default delays are assumed: messageDelayLevel is in no file of the store.",
    ),
    ViewColumn("dueInMs", LONG, "How long until then; negative when it is over."),
    ViewColumn("topic", TEXT, "The topic it is for (REAL_TOPIC)."),
    ViewColumn("queueId", INT, "The queue it is for (REAL_QID)."),
    ViewColumn("delayLevel", INT, "Of kind `level`: 1 to 18."),
    ViewColumn("rollTimes", INT, "Of kind `timer`: how often it was put back, because its time is far."),
    ViewColumn("msgId", TEXT, "The id a client shows."),
    ViewColumn("tags", TEXT, "Its tags."),
    ViewColumn("keys", NAMES, "Its keys."),
    ViewColumn("bornTimestamp", TIME, "When the producer made it."),
    ViewColumn("storeTimestamp", TIME, "When it began to wait, or was put back."),
    ViewColumn("storedTopic", TEXT, "Where it waits."),
    ViewColumn("storedQueueId", INT, "Where it waits."),
    ViewColumn("storedQueueOffset", LONG, "Where it waits."),
    ViewColumn("physicalOffset", LONG, "Its place in the commitlog."),
    ViewColumn("bytes", LONG, "Its size there."),
)

_COLUMNS = (
    "queueId", "queueOffset", "physicalOffset", "storeSize", "storeTimestampMs", "bornTimestampMs", "msgId", "tags", "keys", "tagsCode",
    REAL_TOPIC, REAL_QID, UNIQ_KEY, TIMER_OUT_MS, "TIMER_ROLL_TIMES", "TIMER_DEL_UNIQKEY",
)  # fmt: skip


def delayed(store: Store, now_ms: int) -> Iterator[pa.RecordBatch]:
    """One row for each message that is not delivered yet, those of levels first, each in the order of its
    queue.
    """
    rows = (row for found in (_of_levels(store, now_ms), _of_timer(store, now_ms)) for row in found)
    return batches_of(DELAYED_COLUMNS, rows)


def _of_levels(store: Store, now_ms: int) -> Iterator[tuple[object, ...]]:
    """Behind delayOffset.json, which a running broker writes every 10 s. A level that is not in it begins at
    0 (ScheduleMessageService).
    """
    done = read_delay_offsets(store.path)
    queues = store.queues(SCHEDULE_TOPIC.__eq__)
    starts = (
        {}
        if done is None
        else {(queue.topic, queue.queue_id): done.get(queue.queue_id + 1, 0) for queue in queues}
    )
    for batch in read_queues(store, queues, _COLUMNS, starts):
        for row in batch.to_pylist():
            # ScheduleMessageService.computeDeliverTimestamp, stored where a tags code is for others
            due = row["tagsCode"]
            state = "unknown" if done is None else "waiting" if due > now_ms else "due"
            yield _row(store, row, "level", state, due, now_ms)


def _of_timer(store: Store, now_ms: int) -> Iterator[tuple[object, ...]]:
    """Not yet read into the wheel, or due when the wheel has not been yet (config/timercheck).

    A message that is due behind the roll window is stored anew when that is over
    (TimerMessageStore.needRoll): the last copy counts.
    """
    queues = store.queues(TIMER_TOPIC.__eq__)
    check = read_timer_check(config_path(store.path, "timercheck")) if queues else None
    pending: dict[Any, dict[str, Any]] = {}
    recalls: set[str] = set()
    for batch in read_queues(store, queues, _COLUMNS):
        times = map(parse_long, batch[TIMER_OUT_MS].to_pylist())
        due = np.array([-1 if time is None else time for time in times], np.int64)
        waits = np.ones(len(due), bool)
        if check is not None:
            waits = (due >= check.last_read_time) | (
                batch["queueOffset"].to_numpy() >= check.last_timer_queue_offset
            )
        kept = batch.append_column("due", pa.array(due)).filter(pa.array(waits))
        for row in kept.to_pylist():
            victim = row["TIMER_DEL_UNIQKEY"]
            if victim is not None:
                recalls.add(victim)
            key = (
                row["physicalOffset"]
                if row[UNIQ_KEY] is None or victim is not None
                else (row[UNIQ_KEY], row["due"])
            )
            pending[key] = row
    for row in sorted(pending.values(), key=lambda row: row["queueOffset"]):
        named = {row[UNIQ_KEY], f"{row[REAL_TOPIC]}+{row[UNIQ_KEY]}"}  # the second up to 5.3
        state = "waiting" if row["due"] > now_ms else "due"
        state = "unknown" if check is None else "recall" if row["TIMER_DEL_UNIQKEY"] is not None else state
        state = "recalled" if state in ("waiting", "due") and named & recalls else state
        yield _row(store, row, "timer", state, row["due"], now_ms)


def _row(
    store: Store, row: dict[str, Any], kind: str, state: str, due: int, now_ms: int
) -> tuple[object, ...]:
    level = row["queueId"] + 1 if kind == "level" else None
    rolled = parse_long(row["TIMER_ROLL_TIMES"]) if kind == "timer" else None
    return (
        store.broker_name, kind, state, time_us(due), due - now_ms, row[REAL_TOPIC], parse_long(row[REAL_QID]), level, rolled,
        row["msgId"], row["tags"], row["keys"], time_us(row["bornTimestampMs"]), time_us(row["storeTimestampMs"]),
        SCHEDULE_TOPIC if kind == "level" else TIMER_TOPIC, row["queueId"], row["queueOffset"], row["physicalOffset"], row["storeSize"],
    )  # fmt: skip


VIEW = View(
    "delayed",
    "Messages that wait for their time, at a delay level or in the timer.",
    DELAYED_COLUMNS,
    delayed,
)
