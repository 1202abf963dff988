"""The life of one message as a timeline: every copy a broker made of it, what clients traced, and which
groups have passed it.

All copies carry the producer's id (UNIQ_KEY): the half message and its commit, the one that waits and the one
delivered, each retry, the dead letter. Where a message has none, its offset message id leads from the retries
back to it (ORIGIN_MESSAGE_ID).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from store_format.display.columns import BROKER, INT, LONG, TEXT, TIME, ViewColumn, batch_of, time_us
from store_format.display.rows import iso_utc
from store_format.java.numbers import parse_long
from store_format.message import sysflag
from store_format.metadata.group_offsets import read_committed
from store_format.names import (
    DELAY,
    DISCARDED_TOPIC,
    DLQ_PREFIX,
    HALF_TOPICS,
    OP_TOPIC,
    PGROUP,
    REAL_QID,
    REAL_TOPIC,
    RETRY_PREFIX,
    SCHEDULE_TOPIC,
    SYSTEM_GROUP_PREFIX,
    TIMER_OUT_MS,
    TIMER_TOPIC,
    TRACE_PREFIXES,
    UNIQ_KEY,
    is_retry_topic,
)
from store_format.search.look_up import How, Question, look_up
from store_format.views.messages import read_queues
from store_format.views.trace_records import trace_events
from store_format.views.transactions import find_transactions

if TYPE_CHECKING:
    from store_format.read.store import Store

__all__ = ["TRACE_COLUMNS", "trace"]

_LAST = 1 << 63

TRACE_COLUMNS = (
    ViewColumn("time", TIME, "When; null for what has no time of its own: where groups stand now."),
    ViewColumn("what", TEXT, "What happened."),
    ViewColumn("topic", TEXT, "Where."),
    BROKER,
    ViewColumn("queueId", INT, "Where."),
    ViewColumn("queueOffset", LONG, "Where."),
    ViewColumn("physicalOffset", LONG, "The place of that copy in the commitlog."),
    ViewColumn(
        "group",
        TEXT,
        "The group it happened to; of a pop retry topic the group and the topic, as in its name.",
    ),
    ViewColumn("detail", TEXT, "What else is known."),
)

_COLUMNS = (
    "topic", "queueId", "queueOffset", "physicalOffset", "bornTimestampMs", "storeTimestampMs", "bornHost", "reconsumeTimes", "tagsCode",
    "msgId", "offsetMsgId", "body", "preparedTransactionOffset", UNIQ_KEY, REAL_TOPIC, REAL_QID, DELAY, TIMER_OUT_MS,
    "TIMER_ROLL_TIMES", "TIMER_DEL_UNIQKEY", "sysFlag", "TRANSACTION_CHECK_TIMES", "ORIGIN_MESSAGE_ID", PGROUP,
)  # fmt: skip

_Row = dict[str, Any]  # Any: values of _COLUMNS


@dataclass(frozen=True, slots=True)
class _Event:
    """One line of the timeline; `row` is the copy it is about."""

    time_ms: int | None
    what: str
    row: _Row | None = None
    group: str | None = None
    detail: str = ""
    topic: str | None = None


def trace(store: Store, message_id: str) -> pa.Table:
    """What happened to a message, oldest first, by `TRACE_COLUMNS`. Empty when the store has no message with
    this id.

    `message_id` is what a client shows (UNIQ_KEY), or an offset message id. Damaged copies are left out, with
    a warning.
    """
    copies, mentions = _copies(store, message_id)
    events = [_event_of(row) for row in copies]
    if copies:
        first = min(copies, key=lambda row: int(row["physicalOffset"]))
        topic = first[REAL_TOPIC] or first["topic"]
        events.append(_Event(first["bornTimestampMs"], "born", None, None, f"at {first['bornHost']}", topic))
    ids = {message_id} | {row[name] for row in copies for name in (UNIQ_KEY, "offsetMsgId")}
    for row in mentions:
        if row["topic"].startswith(TRACE_PREFIXES):
            events += [
                _Event(each.time_ms, each.what, row, each.group, each.detail)
                for each in trace_events(row["body"], ids)
            ]
        else:
            events.append(
                _Event(row["storeTimestampMs"], "named as a key", row, None, f"by the message {row['msgId']}")
            )
    events += _decisions(store, copies)
    events.sort(key=_order)
    lines = (_line(store, event) for event in [*events, *_standing(store, copies)])
    return pa.Table.from_batches([batch_of(TRACE_COLUMNS, lines)])


def _order(event: _Event) -> tuple[int, int]:
    place = -1 if event.row is None else int(event.row["physicalOffset"])
    return _LAST if event.time_ms is None else event.time_ms, place


def _copies(store: Store, message_id: str) -> tuple[list[_Row], list[_Row]]:
    """The copies of the message, and other messages that have its id among their keys."""
    how = How(_COLUMNS, on_damage="DROPMALFORMED")
    first = look_up(store, Question(message_id=message_id), how).table.to_pylist()
    unique = sorted({row[UNIQ_KEY] for row in first} - {None})
    named = [
        row
        for key in unique or [message_id]
        for row in look_up(store, Question(key=key), how).table.to_pylist()
    ]
    copies = [row for row in named if row[UNIQ_KEY] in unique]
    mentions = [row for row in named if row[UNIQ_KEY] not in unique]
    if first and not unique:
        copies = [*first, *_sent_back(store, {row["offsetMsgId"] for row in first})]
    return copies, mentions


def _sent_back(store: Store, offset_ids: Collection[str]) -> list[_Row]:
    """Retries and dead letters of a message without UNIQ_KEY: nothing but ORIGIN_MESSAGE_ID leads back to it,
    and no index.
    """
    queues = store.queues(
        lambda topic: topic == SCHEDULE_TOPIC or topic.startswith((RETRY_PREFIX, DLQ_PREFIX))
    )
    rows = (row for batch in read_queues(store, queues, _COLUMNS) for row in batch.to_pylist())
    return [row for row in rows if row["ORIGIN_MESSAGE_ID"] in offset_ids]


# ---- what each copy says -----------------------------------------------------------------------------------


def _event_of(row: _Row) -> _Event:
    """What storing this copy was: its topic says it, and for delivered ones what they still carry of their
    waiting.
    """
    topic, time = row["topic"], row["storeTimestampMs"]
    real = row[REAL_TOPIC]
    if topic == SCHEDULE_TOPIC:
        retry = real is not None and is_retry_topic(real)
        detail = f"level {row['queueId'] + 1} for {real}, due {_iso(row['tagsCode'])}"
        what = f"waits for retry {row['reconsumeTimes']}" if retry else "delayed"
        return _Event(time, what, row, real.removeprefix(RETRY_PREFIX) if retry else None, detail)
    if topic == TIMER_TOPIC:
        if row["TIMER_DEL_UNIQKEY"] is not None:
            return _Event(time, "recall", row, None, f"of {row['TIMER_DEL_UNIQKEY']}")
        rolled = f", put back {row['TIMER_ROLL_TIMES']} times" if row["TIMER_ROLL_TIMES"] else ""
        return _Event(
            time,
            "delayed",
            row,
            None,
            f"timer for {real}, due {_iso(parse_long(row['TIMER_OUT_MS']))}{rolled}",
        )
    if topic in HALF_TOPICS:
        checks = row["TRANSACTION_CHECK_TIMES"]
        what = "half message" if checks is None else f"asked for the {checks}. time"
        return _Event(time, what, row, row[PGROUP], f"for {real}")
    if topic == DISCARDED_TOPIC:
        return _Event(time, "discarded", row, row[PGROUP], "asked too often how the transaction ended")
    if is_retry_topic(topic):
        return _Event(time, f"retry {row['reconsumeTimes']}", row, topic.removeprefix(RETRY_PREFIX))
    if topic.startswith(DLQ_PREFIX):
        return _Event(
            time,
            "dead letter",
            row,
            topic.removeprefix(DLQ_PREFIX),
            f"reconsumeTimes {row['reconsumeTimes']}",
        )
    if row["sysFlag"] & sysflag.TRANSACTION_MASK == sysflag.TRANSACTION_COMMIT:
        return _Event(
            time, "committed", row, row[PGROUP], f"half message at {row['preparedTransactionOffset']}"
        )
    waited = real is not None and (row[DELAY] is not None or row[TIMER_OUT_MS] is not None)
    return _Event(time, "delivered" if waited else "stored", row)


def _iso(ms: int | None) -> str:
    if ms is None or time_us(ms) is None:
        return "never"
    return iso_utc(ms)


def _decisions(store: Store, copies: Sequence[_Row]) -> Iterator[_Event]:
    """How the transaction ended, as far as the broker wrote it down."""
    keys = {row[UNIQ_KEY] for row in copies if row["topic"] in HALF_TOPICS} - {None}
    for key in sorted(keys):
        for each in find_transactions(store, key):
            place = (
                {"physicalOffset": each.op_physical_offset, "topic": OP_TOPIC}
                if each.op_physical_offset is not None
                else None
            )
            yield _Event(each.decided_ms, f"transaction {each.state}", place, each.copies[-1][PGROUP])


def _standing(store: Store, copies: Sequence[_Row]) -> Iterator[_Event]:
    """For each copy that groups read, where each group stands: a broker keeps no record of a message's
    consumption but this.
    """
    committed = read_committed(store.path).offsets
    for row in sorted(copies, key=lambda row: int(row["physicalOffset"])):
        for (group, topic), offsets in sorted(committed.items()):
            offset = offsets.get(row["queueId"])
            if topic == row["topic"] and offset is not None and not group.startswith(SYSTEM_GROUP_PREFIX):
                passed = offset > row["queueOffset"]
                yield _Event(
                    None, "passed" if passed else "not reached", row, group, f"the group goes on at {offset}"
                )


def _line(store: Store, event: _Event) -> tuple[object, ...]:
    row = event.row or {}
    return (
        time_us(event.time_ms), event.what, event.topic or row.get("topic"), store.broker_name, row.get("queueId"), row.get("queueOffset"),
        row.get("physicalOffset"), event.group, event.detail,
    )  # fmt: skip
