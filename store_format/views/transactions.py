"""The view `transactions`: one row for each transaction with a half message, and how it ended.

A broker keeps half messages in a topic of its own. An op message lists the queue offsets of half messages
that were decided, but not the decision. A commit also stores a message that names the physical offset of the
half message; a rollback leaves nothing but the op message.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from store_format.display.columns import (
    BROKER,
    INT,
    LONG,
    NAMES,
    TEXT,
    TIME,
    ViewColumn,
    batches_of,
    time_us,
)
from store_format.java.numbers import parse_long
from store_format.message import sysflag
from store_format.message.columns import DecodeOptions
from store_format.metadata.group_offsets import read_committed
from store_format.metadata.read import read_topics
from store_format.names import (
    CHECKER_GROUP,
    DISCARDED_TOPIC,
    HALF_TOPIC,
    HALF_TOPICS,
    OP_TOPIC,
    PGROUP,
    PREPARED_QUEUE_OFFSET,
    REAL_QID,
    REAL_TOPIC,
    ROCKSDB_OP_TOPIC,
    SCHEDULE_TOPIC,
    TIMER_TOPIC,
    UNIQ_KEY,
)
from store_format.read.store import Store, read_pieces
from store_format.read.tolerance import Tolerance
from store_format.views.view import View, read_queues

TRANSACTION_COLUMNS = (
    BROKER,
    ViewColumn(
        "state",
        TEXT,
        "`pending`, `committed`, `rolled back`, `discarded` (checked too often); `decided` if the "
        "destination "
        "topic is deleted; `unknown` if the op messages are deleted.",
    ),
    ViewColumn("topic", TEXT, "The destination topic."),
    ViewColumn("queueId", INT, "The destination queue."),
    ViewColumn("producerGroup", TEXT, "The producer group that the broker asks for the decision."),
    ViewColumn("msgId", TEXT, "The message id that clients show."),
    ViewColumn("keys", NAMES, "The keys."),
    ViewColumn("ageMs", LONG, "Time since the half message was first stored."),
    ViewColumn(
        "checkTimes", INT, "How often the broker has asked; it stores the half message again each time."
    ),
    ViewColumn("bornTimestamp", TIME, "When the producer created the message."),
    ViewColumn("firstStoreTimestamp", TIME, "When the oldest remaining copy was stored."),
    ViewColumn("storeTimestamp", TIME, "When the newest copy was stored."),
    ViewColumn("decidedTimestamp", TIME, "When the op message was stored; null without an op message."),
    ViewColumn("halfQueueOffset", LONG, "The newest copy's offset in the half topic."),
    ViewColumn("halfPhysicalOffset", LONG, "The newest copy's physical offset."),
    ViewColumn("copies", INT, "Number of copies in the half topic."),
    ViewColumn("committedQueueOffset", LONG, "The committed message's offset in its queue."),
    ViewColumn("committedPhysicalOffset", LONG, "The committed message's physical offset."),
)

PENDING = "pending"
HALF_COLUMNS = (
    "topic", "queueId", "queueOffset", "physicalOffset", "storeSize", "storeTimestampMs", "bornTimestampMs",
    "msgId", "keys", UNIQ_KEY, REAL_TOPIC, REAL_QID, PGROUP, "TRANSACTION_CHECK_TIMES", PREPARED_QUEUE_OFFSET,
)  # fmt: skip
_COMMIT_COLUMNS = (
    "topic",
    "queueId",
    "queueOffset",
    "physicalOffset",
    "preparedTransactionOffset",
    "sysFlag",
    "storeTimestampMs",
)


@dataclass(slots=True)
class Transaction:
    """The copies of a half message in the order of its queue, and the decision if one was found.

    The transaction is decided once any copy is: an op message lists it, or a committed message names it.
    `unlisted` are the queue offsets of the copies that no op message lists: a broker that has not passed such
    a copy asks about it, also after the decision.
    """

    copies: list[dict[str, Any]] = field(default_factory=list)  # Any: values of HALF_COLUMNS
    unlisted: list[int] = field(default_factory=list)
    decided_ms: int | None = None
    op_physical_offset: int | None = None
    commit: dict[str, Any] | None = None
    state: str = PENDING


def transactions(store: Store, now_ms: int) -> Iterator[pa.RecordBatch]:
    """One row for each transaction with a half message in the log, sorted by the newest copy's offset."""
    return batches_of(
        TRANSACTION_COLUMNS, (_transaction_row(store, each, now_ms) for each in find_transactions(store))
    )


def find_transactions(
    store: Store,
    uniq_key: str | None = None,
    *,
    msg_ids: Collection[str] | None = None,
    queue_offsets: Collection[int] = (),
) -> list[Transaction]:
    """All transactions, or those of one UNIQ_KEY, or of these message ids and offsets in the half topic.

    The view, the check and decisions by name all ask here whether a transaction is decided. Reads the half
    and op topics, and the destination topics from the first half message on.
    """
    if msg_ids is not None:
        msg_ids = {*msg_ids, *_msg_ids_at(store, queue_offsets)}
    found = _halves(store, uniq_key, msg_ids)
    if not found:
        return []
    ops = _ops(store)
    commits, known = _commits(store, found)
    discarded = _discarded(store)
    consumed = read_committed(store.opened).offsets.get((CHECKER_GROUP, HALF_TOPIC), {})
    for each in found:
        for copy in each.copies:
            op = ops.get((copy["topic"], copy["queueId"], copy["queueOffset"])) or ops.get(
                ("", 0, copy["physicalOffset"])
            )
            if op is None:
                each.unlisted.append(copy["queueOffset"])
            elif each.op_physical_offset is None or op[1] < each.op_physical_offset:
                each.decided_ms, each.op_physical_offset = op
            each.commit = commits.get(copy["physicalOffset"], each.commit)
        each.state = _transaction_state(each, consumed, known, discarded)
    return sorted(found, key=lambda each: int(each.copies[-1]["physicalOffset"]))


def _transaction_state(
    each: Transaction, consumed: dict[int, int], known: set[str], discarded: set[tuple[str, str]]
) -> str:
    last = each.copies[-1]
    if each.commit is not None:
        return "committed"
    if (last[UNIQ_KEY], last[REAL_TOPIC]) in discarded:
        return "discarded"
    if each.decided_ms is not None:
        # A commit comes after its half message in the log, so retention has not deleted it. But its topic may
        # be deleted.
        return "rolled back" if last[REAL_TOPIC] in known else "decided"
    # If the checker has passed a half message without a newer copy and without an op message, retention has
    # deleted the op message.
    return (
        PENDING
        if last["topic"] != HALF_TOPIC or last["queueOffset"] >= consumed.get(last["queueId"], 0)
        else "unknown"
    )


def _msg_ids_at(store: Store, queue_offsets: Collection[int]) -> Iterator[str]:
    """The message ids of the half messages at these offsets of the half topic, and of their first copies.

    Copies without a UNIQ_KEY have other ids than their first copies.
    """
    if not queue_offsets:
        return
    options = DecodeOptions(("msgId", UNIQ_KEY, PREPARED_QUEUE_OFFSET), verify_crc=False)
    tolerance = Tolerance("DROPMALFORMED", fail_on_data_loss=False)
    first: set[int | None] = set()
    for queue in store.queues(HALF_TOPIC.__eq__):
        pieces = [(queue, queue.piece(offset, offset + 1)) for offset in sorted(queue_offsets)]
        for batch in read_pieces(pieces, options, tolerance):
            yield from batch["msgId"].to_pylist()
            first |= {_first_offset(row) for row in batch.to_pylist() if row[UNIQ_KEY] is None}
    yield from _msg_ids_at(store, [each for each in first if each is not None and each not in queue_offsets])


def _first_offset(row: Mapping[str, Any]) -> int | None:
    """The offset of the first copy in the half topic, which a copy with an immunity time names."""
    return parse_long(row[PREPARED_QUEUE_OFFSET])


def _halves(store: Store, uniq_key: str | None, msg_ids: Collection[str] | None) -> list[Transaction]:
    by_key: dict[object, Transaction] = {}
    chosen = None if msg_ids is None else pa.array(list(msg_ids), pa.string())
    for batch in read_queues(store.queues(HALF_TOPICS.__contains__), HALF_COLUMNS):
        if chosen is not None:
            batch = batch.filter(pc.is_in(batch["msgId"], chosen))
        for row in batch.to_pylist():
            if uniq_key is None or row[UNIQ_KEY] == uniq_key:
                key: tuple[object, ...] = (row[UNIQ_KEY], row[REAL_TOPIC])
                if row[UNIQ_KEY] is None:
                    first = _first_offset(row)
                    key = (row["topic"], row["queueId"], row["queueOffset"] if first is None else first)
                by_key.setdefault(key, Transaction()).copies.append(row)
    return list(by_key.values())


def _ops(store: Store) -> dict[tuple[str, int, int], tuple[int, int]]:
    """Half message -> (store time in ms, physical offset) of its op message.

    The keys are (half topic, queue id, queue offset), and ("", 0, physical offset) for RocksDB's half topic.
    """
    found: dict[tuple[str, int, int], tuple[int, int]] = {}
    columns = ("topic", "queueId", "physicalOffset", "storeTimestampMs", "tags", "body", "TRANS_OFFSET")
    for batch in read_queues(store.queues((OP_TOPIC, ROCKSDB_OP_TOPIC).__contains__), columns):
        for row in batch.to_pylist():
            decided = (row["storeTimestampMs"], row["physicalOffset"])
            if row["topic"] == ROCKSDB_OP_TOPIC:
                offset = parse_long(row["TRANS_OFFSET"])
                keys = [] if offset is None else [("", 0, offset)]
            else:
                offsets = (
                    (parse_long(text) for text in row["body"].decode("latin-1").split(","))
                    if row["tags"] == "d"
                    else ()
                )
                keys = [(HALF_TOPIC, row["queueId"], offset) for offset in offsets if offset is not None]
            for key in keys:
                found.setdefault(key, decided)
    return found


def _commits(store: Store, found: Sequence[Transaction]) -> tuple[dict[int, dict[str, Any]], set[str]]:
    """The committed messages by physical offset of the half message, and the topics that the store knows."""
    halves = np.array(sorted({copy["physicalOffset"] for each in found for copy in each.copies}), np.int64)
    first = min(int(copy["storeTimestampMs"]) for each in found for copy in each.copies)
    topics = {each.copies[-1][REAL_TOPIC] for each in found}
    # up to 5.4 a committed message may also be delayed
    queues = store.queues(lambda topic: topic in topics or topic in (SCHEDULE_TOPIC, TIMER_TOPIC))
    starts = {
        queue.key: queue.offset_at(first, on_damage="DROPMALFORMED")
        if queue.scanned is None
        else queue.min_offset
        for queue in queues
    }
    commits: dict[int, dict[str, Any]] = {}
    for batch in read_queues(queues, _COMMIT_COLUMNS, starts):
        kind = batch["sysFlag"].to_numpy() & sysflag.TRANSACTION_MASK
        mine = (kind == sysflag.TRANSACTION_COMMIT) & np.isin(
            batch["preparedTransactionOffset"].to_numpy(), halves
        )
        for row in batch.filter(pa.array(mine)).to_pylist():
            commits.setdefault(row["preparedTransactionOffset"], row)
    return commits, {queue.topic for queue in queues} | set(read_topics(store.opened) or ())


def _discarded(store: Store) -> set[tuple[str, str]]:
    queues = store.queues(DISCARDED_TOPIC.__eq__)
    rows = (row for batch in read_queues(queues, (UNIQ_KEY, REAL_TOPIC)) for row in batch.to_pylist())
    return {(row[UNIQ_KEY], row[REAL_TOPIC]) for row in rows if row[UNIQ_KEY] is not None}


def _transaction_row(store: Store, each: Transaction, now_ms: int) -> tuple[object, ...]:
    first, last, commit = each.copies[0], each.copies[-1], each.commit or {}
    return (
        store.broker_name, each.state, last[REAL_TOPIC], parse_long(last[REAL_QID]), last[PGROUP],
        last["msgId"], last["keys"],
        now_ms - first["storeTimestampMs"], parse_long(last["TRANSACTION_CHECK_TIMES"]) or 0,
        time_us(last["bornTimestampMs"]),
        time_us(first["storeTimestampMs"]), time_us(last["storeTimestampMs"]), time_us(each.decided_ms),
        last["queueOffset"],
        last["physicalOffset"], len(each.copies), commit.get("queueOffset"), commit.get("physicalOffset"),
    )  # fmt: skip


VIEW = View(
    "transactions",
    "Transactions with a half message, and how each ended.",
    TRANSACTION_COLUMNS,
    transactions,
)
