"""The life of one message: every copy that brokers stored, what clients traced, and which groups passed it.

All copies have the producer's id (UNIQ_KEY): the half message and its commit, the delayed and the delivered
message, each retry, the dead letter. For a message without UNIQ_KEY, the retries name the first message by
its offset message id (ORIGIN_MESSAGE_ID).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from store_format.display.columns import BROKER, INT, LONG, TEXT, TIME, ViewColumn, batch_of, time_us
from store_format.display.rows import iso_utc
from store_format.java.numbers import parse_long
from store_format.message import sysflag
from store_format.metadata.group_offsets import RetryOwners, read_committed
from store_format.names import (
    DELAY,
    DISCARDED_TOPIC,
    DLQ_PREFIX,
    FIRST_POP_TIME,
    HALF_TOPICS,
    OP_TOPIC,
    ORIGIN_GROUP,
    PGROUP,
    REAL_QID,
    REAL_TOPIC,
    RESENT_FROM,
    RETRY_PREFIX,
    RETRY_TOPIC,
    SCHEDULE_TOPIC,
    SYSTEM_GROUP_PREFIX,
    TIMER_OUT_MS,
    TIMER_TOPIC,
    TRACE_PREFIXES,
    UNIQ_KEY,
    is_retry_topic,
)
from store_format.pop.in_flight import read_pop_progress
from store_format.read.choice import MessageChoice
from store_format.read.store import Store
from store_format.search.look_up import How, Searched, look_up
from store_format.views.consume_time import trace_events
from store_format.views.transactions import find_transactions
from store_format.views.view import read_queues

_log = logging.getLogger(__name__)
_LAST = 1 << 63

NAMED_AS_KEY = "named as a key"  # what another message does with the id

TRACE_COLUMNS = (
    ViewColumn("time", TIME, "When it happened; null for the current positions of groups."),
    ViewColumn("what", TEXT, "What happened."),
    ViewColumn("topic", TEXT, "The topic of the copy."),
    BROKER,
    ViewColumn("queueId", INT, "The queue of the copy."),
    ViewColumn("queueOffset", LONG, "The offset of the copy in the queue."),
    ViewColumn("physicalOffset", LONG, "The physical offset of the copy in the commitlog."),
    ViewColumn(
        "group",
        TEXT,
        "The consumer or producer group.",
    ),
    ViewColumn("detail", TEXT, "More facts."),
)

_COLUMNS = (
    "topic", "queueId", "queueOffset", "physicalOffset", "bornTimestampMs", "storeTimestampMs", "bornHost",
    "reconsumeTimes", "tagsCode",
    "msgId", "offsetMsgId", "body", "preparedTransactionOffset", UNIQ_KEY, REAL_TOPIC, REAL_QID, DELAY,
    TIMER_OUT_MS,
    "TIMER_ROLL_TIMES", "TIMER_DEL_UNIQKEY", "sysFlag", "TRANSACTION_CHECK_TIMES", "ORIGIN_MESSAGE_ID",
    PGROUP, RESENT_FROM, ORIGIN_GROUP, RETRY_TOPIC, FIRST_POP_TIME,
)  # fmt: skip

_Row = dict[str, Any]  # Any: values of _COLUMNS
_RowsOf = Callable[[MessageChoice, tuple[str, ...]], list[_Row]]  # the messages of a choice, with columns


@dataclass(frozen=True, slots=True)
class _Event:
    """One line of the timeline; `row` is the copy of the message."""

    time_ms: int | None
    what: str
    row: _Row | None = None
    group: str | None = None
    detail: str = ""
    topic: str | None = None


@dataclass(slots=True)
class LifeSearch:
    """Searches for the lives of messages in a store, which warn of each damaged place once.

    `searches` is what they have read; `on_scanned` is that of `How`.
    """

    store: Store
    on_scanned: Callable[[int, int], object] | None = None
    searches: list[Searched] = field(default_factory=list)
    _warned: set[str] = field(default_factory=set)

    def life_of(self, message_id: str) -> pa.Table:
        """What happened to a message, oldest first, with the columns `TRACE_COLUMNS`.

        `message_id` is the id that clients show (UNIQ_KEY), or an offset message id. The table is empty if
        the store has no such message. Damaged copies are left out, with a warning.
        """
        return _events(replace(self.store, log=self.store.log.relisted()), message_id, self._rows)

    def ids_of(self, choice: MessageChoice) -> list[str]:
        """The ids of the messages with a key, each once, in the order of the log, without clients' traces."""
        rows = self._rows(choice, ("msgId", "topic"))
        ids = (row["msgId"] for row in rows if not row["topic"].startswith(TRACE_PREFIXES))
        return list(dict.fromkeys(ids))

    def missing_parts(self) -> list[str]:
        """What may be missing from the lives, because bytes are damaged or lost; see `Searched`."""
        return Searched.together(self.searches).missing_parts()

    def warn_of_missing(self) -> None:
        """Logs what may be missing."""
        if missing := self.missing_parts():
            _log.warning("trace: %s", "; ".join(missing))

    def _rows(self, choice: MessageChoice, columns: tuple[str, ...]) -> list[_Row]:
        how = How(columns, on_damage="DROPMALFORMED", on_scanned=self.on_scanned, warned=self._warned)
        found = look_up(self.store, choice, how)
        self.searches.append(found.searched)
        rows: list[_Row] = found.table.to_pylist()
        return rows


def _events(store: Store, message_id: str, rows_of: _RowsOf) -> pa.Table:
    copies, mentions = _copies(store, message_id, rows_of)
    owners = RetryOwners.read(store.opened, store.configured_topics() or store.topics())
    events = [_event_of(row, owners) for row in copies]
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
                _Event(row["storeTimestampMs"], NAMED_AS_KEY, row, None, f"by the message {row['msgId']}")
            )
    events += _decisions(store, copies)
    events.sort(key=_order)
    lines = (_trace_row(store, event) for event in [*events, *_group_positions(store, copies)])
    return pa.Table.from_batches([batch_of(TRACE_COLUMNS, lines)])


def _order(event: _Event) -> tuple[int, int]:
    place = -1 if event.row is None else int(event.row["physicalOffset"])
    return _LAST if event.time_ms is None else event.time_ms, place


def _copies(store: Store, message_id: str, rows_of: _RowsOf) -> tuple[list[_Row], list[_Row]]:
    """The copies of the message, and the other messages that have its id among their keys."""
    first = rows_of(MessageChoice(message_id=message_id), _COLUMNS)
    unique = sorted({row[UNIQ_KEY] for row in first} - {None})
    named = [row for key in unique or [message_id] for row in rows_of(MessageChoice(key=key), _COLUMNS)]
    copies = [row for row in named if row[UNIQ_KEY] in unique]
    if first and not unique:
        copies = [*first, *_sent_back(store, {row["offsetMsgId"] for row in first})]
    return copies, [row for row in named if row[UNIQ_KEY] not in unique]


def _sent_back(store: Store, offset_ids: Collection[str]) -> list[_Row]:
    """Retries and dead letters of a message without UNIQ_KEY.

    Only ORIGIN_MESSAGE_ID names the first message, and no index has it, so the topics are read.
    """
    queues = store.queues(
        lambda topic: topic == SCHEDULE_TOPIC or topic.startswith((RETRY_PREFIX, DLQ_PREFIX))
    )
    rows = (row for batch in read_queues(queues, _COLUMNS) for row in batch.to_pylist())
    return [row for row in rows if row["ORIGIN_MESSAGE_ID"] in offset_ids]


# ---- what each copy says -----------------------------------------------------------------------------------


def _event_of(row: _Row, owners: RetryOwners) -> _Event:
    """The event that stored this copy: by the topic, and by the properties that a delayed message keeps."""
    topic, time = row["topic"], row["storeTimestampMs"]
    if topic in (SCHEDULE_TOPIC, TIMER_TOPIC):
        return _delayed_event(row, owners)
    if topic in HALF_TOPICS:
        checks = row["TRANSACTION_CHECK_TIMES"]
        what = "half message" if checks is None else f"half message, check {checks}"
        return _Event(time, what, row, row[PGROUP], f"for {row[REAL_TOPIC]}")
    if topic == DISCARDED_TOPIC:
        return _Event(time, "discarded", row, row[PGROUP], "checked too often without a decision")
    if row[RESENT_FROM] is not None and row[REAL_TOPIC] is None and not topic.startswith(DLQ_PREFIX):
        return _Event(time, "resent", row, None, f"from the dead letter {row[RESENT_FROM]}")
    if is_retry_topic(topic):
        owner = owners.owner(topic, row)
        detail = "" if owner.topic is None else f"popped from {owner.topic}"
        return _Event(time, f"retry {row['reconsumeTimes']}", row, owner.group, detail)
    if topic.startswith(DLQ_PREFIX):
        detail = f"reconsumeTimes {row['reconsumeTimes']}"
        return _Event(time, "dead letter", row, topic.removeprefix(DLQ_PREFIX), detail)
    if row["sysFlag"] & sysflag.TRANSACTION_MASK == sysflag.TRANSACTION_COMMIT:
        detail = f"half message at {row['preparedTransactionOffset']}"
        return _Event(time, "committed", row, row[PGROUP], detail)
    waited = row[REAL_TOPIC] is not None and (row[DELAY] is not None or row[TIMER_OUT_MS] is not None)
    return _Event(time, "delivered" if waited else "stored", row)


def _delayed_event(row: _Row, owners: RetryOwners) -> _Event:
    """A copy in the topic of a delay level or of the timer."""
    time, real = row["storeTimestampMs"], row[REAL_TOPIC]
    if row["topic"] == SCHEDULE_TOPIC:
        retry = real is not None and is_retry_topic(real)
        due = "at an unknown time" if row["tagsCode"] is None else _iso_or_never(row["tagsCode"])
        detail = f"level {row['queueId'] + 1} for {real}, due {due}"
        what = f"waits for retry {row['reconsumeTimes']}" if retry else "delayed"
        return _Event(time, what, row, owners.owner(real, row).group if retry else None, detail)
    if row["TIMER_DEL_UNIQKEY"] is not None:
        return _Event(time, "recall", row, None, f"of {row['TIMER_DEL_UNIQKEY']}")
    rolled = f", stored again {row['TIMER_ROLL_TIMES']} times" if row["TIMER_ROLL_TIMES"] else ""
    due = _iso_or_never(parse_long(row[TIMER_OUT_MS]))
    return _Event(time, "delayed", row, None, f"timer for {real}, due {due}{rolled}")


def _iso_or_never(ms: int | None) -> str:
    return "never" if ms is None or time_us(ms) is None else iso_utc(ms)


def _decisions(store: Store, copies: Sequence[_Row]) -> Iterator[_Event]:
    """How the transaction ended, if the store has the decision."""
    for key in sorted({row[UNIQ_KEY] for row in copies if row["topic"] in HALF_TOPICS} - {None}):
        for each in find_transactions(store, key):
            place = (
                {"physicalOffset": each.op_physical_offset, "topic": OP_TOPIC}
                if each.op_physical_offset is not None
                else None
            )
            yield _Event(each.decided_ms, f"transaction {each.state}", place, each.copies[-1][PGROUP])


def _group_positions(store: Store, copies: Sequence[_Row]) -> Iterator[_Event]:
    """For each copy, whether each group's committed offset has passed it, or pop has it in flight.

    A broker keeps no other record of the consumption of a message.
    """
    committed, progress = read_committed(store.opened).offsets, read_pop_progress(store)
    for row in sorted(copies, key=lambda row: int(row["physicalOffset"])):
        for (group, topic), offsets in sorted(committed.items()):
            offset = offsets.get(row["queueId"])
            if topic == row["topic"] and offset is not None and not group.startswith(SYSTEM_GROUP_PREFIX):
                key = group, topic, row["queueId"]
                passed = progress.next_offsets.get(key, offset) > row["queueOffset"]
                what, detail = "passed" if passed else "not reached", f"committed offset {offset}"
                for each in progress.in_flight.get(key, ()):
                    if row["queueOffset"] in each.offsets:
                        what, detail = "in flight", f"popped {_iso_or_never(each.pop_time)}, visible from "
                        detail += _iso_or_never(each.visible_at)
                yield _Event(None, what, row, group, detail)


def _trace_row(store: Store, event: _Event) -> tuple[object, ...]:
    row = event.row or {}
    return (
        time_us(event.time_ms), event.what, event.topic or row.get("topic"), store.broker_name,
        row.get("queueId"), row.get("queueOffset"), row.get("physicalOffset"), event.group, event.detail,
    )  # fmt: skip
