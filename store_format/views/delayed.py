"""The view `delayed`: messages that wait for their delivery time, at a delay level or in the timer wheel."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from store_format.display.columns import BROKER, INT, LONG, NAMES, TEXT, TIME, ViewColumn, batches_of, time_us
from store_format.errors import StoreError
from store_format.java.numbers import parse_long
from store_format.metadata.read import BrokerConf, read_delay_offsets
from store_format.metadata.timer import (
    TimerCheck,
    TimerLog,
    TimerState,
    TimerWheel,
)
from store_format.names import REAL_QID, REAL_TOPIC, SCHEDULE_TOPIC, TIMER_OUT_MS, TIMER_TOPIC, UNIQ_KEY
from store_format.opened.store import Opened
from store_format.read.store import Store
from store_format.views.view import View, read_queues

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
        "`waiting`; `due`: the time has come (kind `timer`: a second after `dueTimestamp`) and the "
        "message is not delivered; `recalled` by another message; `recall`: such a message; or `unknown`.",
    ),
    ViewColumn(
        "dueTimestamp",
        TIME,
        "The delivery time, as the broker wrote it to the consume queue. If a message of kind `level` has no "
        "consume queue entry, messageDelayLevel of `.rmqlog/broker.conf` counts, else its default.",
    ),
    ViewColumn("dueInMs", LONG, "Time until `dueTimestamp`; negative if it has passed."),
    ViewColumn("topic", TEXT, "The destination topic (REAL_TOPIC)."),
    ViewColumn("queueId", INT, "The destination queue (REAL_QID)."),
    ViewColumn("delayLevel", INT, "For kind `level`: the delay level, 1 to 18."),
    ViewColumn(
        "rollTimes",
        INT,
        "For kind `timer`: how often the broker stored the message again because its time was too far away.",
    ),
    ViewColumn("msgId", TEXT, "The message id that clients show."),
    ViewColumn("tags", TEXT, "The tags."),
    ViewColumn("keys", NAMES, "The keys."),
    ViewColumn("bornTimestamp", TIME, "When the producer created the message."),
    ViewColumn("storeTimestamp", TIME, "When the message, or its last copy, was stored."),
    ViewColumn("storedTopic", TEXT, "The topic where the message waits."),
    ViewColumn("storedQueueId", INT, "The queue where the message waits."),
    ViewColumn("storedQueueOffset", LONG, "The offset in that queue."),
    ViewColumn("physicalOffset", LONG, "The physical offset in the commitlog."),
    ViewColumn("bytes", LONG, "The size in the commitlog."),
)

_COLUMNS = (
    "queueId", "queueOffset", "physicalOffset", "storeSize", "storeTimestampMs", "bornTimestampMs", "msgId",
    "tags", "keys", "tagsCode",
    REAL_TOPIC, REAL_QID, UNIQ_KEY, TIMER_OUT_MS, "TIMER_ROLL_TIMES", "TIMER_DEL_UNIQKEY",
)  # fmt: skip


def delayed(store: Store, now_ms: int, conf: BrokerConf) -> Iterator[pa.RecordBatch]:
    """One row for each message that is not delivered yet: delay levels first, each queue in its order."""
    rows = (
        row for found in (_level_rows(store, now_ms, conf), _timer_rows(store, now_ms, conf)) for row in found
    )
    return batches_of(DELAYED_COLUMNS, rows)


def _level_rows(store: Store, now_ms: int, conf: BrokerConf) -> Iterator[tuple[object, ...]]:
    """The messages after the offsets in delayOffset.json, which a running broker writes every 10 s.

    A level that is not in the file begins at 0 (ScheduleMessageService).
    """
    done = read_delay_offsets(store.opened)
    queues = store.queues(SCHEDULE_TOPIC.__eq__)
    scanned = {queue.queue_id for queue in queues if queue.scanned is not None}
    starts = (
        {}
        if done is None
        else {(queue.topic, queue.queue_id): done.get(queue.queue_id + 1, 0) for queue in queues}
    )
    for batch in read_queues(queues, _COLUMNS, starts):
        for row in batch.to_pylist():
            # ScheduleMessageService.computeDeliverTimestamp; the consume queue has it as the tags code
            due, delay = row["tagsCode"], conf.delay_ms(row["queueId"] + 1)
            if (due is None or row["queueId"] in scanned) and delay is not None:
                due = row["storeTimestampMs"] + delay
            # correctDeliverTimestamp: a time that is later than the level allows has come
            is_too_late = "messageDelayLevel" in conf.given and delay is not None and due > now_ms + delay
            state = "unknown"
            if done is not None and due is not None:
                state = "waiting" if due > now_ms and not is_too_late else "due"
            yield _delayed_row(store, row, "level", state, due, now_ms)


def _timer_rows(store: Store, now_ms: int, conf: BrokerConf) -> Iterator[tuple[object, ...]]:
    """The messages that the wheel has not read yet or has not fired yet, by config/timercheck.

    A broker stores a message again at the end of each roll window until its time is within the window
    (TimerMessageStore.needRoll); the last copy counts. A message is due when its slot of the wheel has
    passed, and a recall counts for messages of its own slot.
    """
    precision = conf.timer_precision_ms
    queues = store.queues(TIMER_TOPIC.__eq__)
    check = TimerCheck.read(store.opened) if queues else None
    late = _late_places(store.opened, check or TimerCheck(), precision)
    pending: dict[Any, dict[str, Any]] = {}
    recalls: set[tuple[str, int]] = set()
    for batch in read_queues(queues, _COLUMNS):
        times = map(parse_long, batch[TIMER_OUT_MS].to_pylist())
        due = np.array([-1 if time is None else time for time in times], np.int64)
        waits = np.ones(len(due), bool)
        if check is not None:
            waits = (due >= check.last_read_time) | (
                batch["queueOffset"].to_numpy() >= check.last_timer_queue_offset
            )
            waits |= np.isin(batch["physicalOffset"].to_numpy(), late)
        for row in batch.append_column("due", pa.array(due)).filter(pa.array(waits)).to_pylist():
            victim = row["TIMER_DEL_UNIQKEY"]
            if victim is not None:
                recalls.add((victim, row["due"] // precision))
            key = (
                row["physicalOffset"]
                if row[UNIQ_KEY] is None or victim is not None
                else (row[UNIQ_KEY], row["due"], row[REAL_TOPIC])
            )
            pending[key] = row
    for row in sorted(pending.values(), key=lambda row: row["queueOffset"]):
        slot = row["due"] // precision
        # the second up to 5.3, and with appendTopicForTimerDeleteKey=true
        named = {(row[UNIQ_KEY], slot), (f"{row[REAL_TOPIC]}+{row[UNIQ_KEY]}", slot)}
        state = "due" if slot < now_ms // precision else "waiting"
        state = "unknown" if check is None else state
        state = "recalled" if named & recalls else state
        state = "recall" if row["TIMER_DEL_UNIQKEY"] is not None else state
        yield _delayed_row(store, row, "timer", state, row["due"], now_ms)


def _late_places(opened: Opened, check: TimerCheck, precision_ms: int) -> NDArray[np.int64]:
    """The physical offsets of the messages in the slot that is read next.

    Among them are those that came when their own slots had been read. A damaged wheel or log counts as empty:
    the view `problems` shows the damage.
    """
    try:
        wheel = TimerWheel.newest(opened, precision_ms)
        log = TimerLog.open(f"{opened.path}/timerlog")
        slot = None if wheel is None else wheel.slot(check.last_read_time)
        if slot is None or not log.files:
            return np.empty(0, np.int64)
        state = TimerState(opened, precision_ms, log.files[0].size, check, log, wheel)
        return state.chain(int(slot["last_pos"]))[1]["physical_offset"].astype(np.int64)
    except StoreError:
        return np.empty(0, np.int64)


def _delayed_row(
    store: Store, row: dict[str, Any], kind: str, state: str, due: int | None, now_ms: int
) -> tuple[object, ...]:
    level = row["queueId"] + 1 if kind == "level" else None
    rolled = parse_long(row["TIMER_ROLL_TIMES"]) if kind == "timer" else None
    return (
        store.broker_name, kind, state, time_us(due), None if due is None else due - now_ms, row[REAL_TOPIC],
        parse_long(row[REAL_QID]),
        level, rolled, row["msgId"], row["tags"], row["keys"], time_us(row["bornTimestampMs"]),
        time_us(row["storeTimestampMs"]),
        SCHEDULE_TOPIC if kind == "level" else TIMER_TOPIC, row["queueId"], row["queueOffset"],
        row["physicalOffset"], row["storeSize"],
    )  # fmt: skip


VIEW = View(
    "delayed",
    "Messages that wait for their delivery time, at a delay level or in the timer.",
    DELAYED_COLUMNS,
    with_conf=delayed,
)
