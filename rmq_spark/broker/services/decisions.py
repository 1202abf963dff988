"""Decides transactions: finds the half messages that are named, and commits or rolls them back.

EndTransactionProcessor answers the producer's request; here a person, a program or the user's function
decides. The rule that a late commit with CHECK_IMMUNITY_TIME_IN_SECONDS is refused is for requests of
producers, so it does not apply.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rmq_spark.broker.services.service import TURN_BYTES_MAX, TURN_MESSAGES_MAX, Tally
from rmq_spark.produce.delivered import real_queues
from rmq_spark.produce.half import (
    HALF_QUEUE_ID,
    OP_TAG,
    check_times,
    committed,
    delayed,
    op_bodies,
    op_messages,
)
from store_format.bookkeeping.ledger import Ledger, ServiceTurn
from store_format.commit.session import WriteSession
from store_format.errors import CorruptStoreError, OptionError, StoreError, UnsupportedFormatError
from store_format.java.numbers import parse_long
from store_format.message import sysflag
from store_format.message.columns import BODY_SIZE_MAX
from store_format.message.compression import decompress
from store_format.message.encode import MessageColumns, StoredMessages, join_columns
from store_format.message.properties import PropertyTable
from store_format.metadata.group_offsets import is_broker_49, read_group_offsets
from store_format.metadata.read import BrokerConf
from store_format.names import (
    CHECKER_GROUP,
    HALF_TOPIC,
    OP_TOPIC,
    PGROUP,
    REAL_QID,
    REAL_TOPIC,
    ROCKSDB_HALF_TOPIC,
    ROCKSDB_OP_TOPIC,
    TAGS,
    UNIQ_KEY,
)
from store_format.read.store import Queue, Store
from store_format.read.stored_messages import read_stored
from store_format.views.transactions import PENDING, Transaction, find_transactions
from store_format.views.view import read_queues

COMMIT, ROLLBACK = "commit", "rollback"
_PART = "transaction/decide"
_DONE = {  # decision -> states in which nothing is left to do
    COMMIT: frozenset({"committed"}),
    ROLLBACK: frozenset({"rolled back", "discarded"}),
}

CHECK_PART = "transaction"  # of the keys of a check's turns in the ledger

_log = logging.getLogger(__name__)


# ---- the half topic ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class HalfQueue:
    """The half queue and the op queue of a store, with the checker's offsets in them.

    `half_stored` and `op_offset` are those of group CID_RMQ_SYS_TRANS; without them, 0 and the first of the
    op queue. `half_offset` is where the checker goes on: later than `half_stored` after a crash, or after
    retention. `half_stored` does not follow retention, because a turn in the ledger is known by it.
    """

    half: Queue
    op: Queue | None
    half_offset: int
    half_stored: int
    op_offset: int

    def op_messages(self, start: int | None = None) -> list[tuple[int, list[int]]]:
        """(queue offset, the queue offsets of half messages that it lists) of each op message from `start`.

        An op message with another tag than `d` lists nothing, as in the broker.
        """
        if self.op is None:
            return []
        starts = {} if start is None else {self.op.key: max(start, self.op.min_offset)}
        found = []
        for batch in read_queues([self.op], ("queueOffset", "tags", "body"), starts):
            for row in batch.to_pylist():
                texts = row["body"].decode("latin-1").split(",") if row["tags"] == OP_TAG else ()
                offsets = [parse_long(text) for text in texts]
                found.append((row["queueOffset"], [each for each in offsets if each is not None]))
        return found


def find_half_queue(store: Store, conf: BrokerConf) -> HalfQueue | None:
    """The half queue of a store; None if it has no half message.

    Raises UnsupportedFormatError for a store whose transactions are in RocksDB (transRocksDBEnable), and
    CorruptStoreError if its consume queues are lost.
    """
    topics = (HALF_TOPIC, OP_TOPIC, ROCKSDB_HALF_TOPIC, ROCKSDB_OP_TOPIC)
    queues = {queue.key: queue for queue in store.queues(topics.__contains__)}
    in_rocksdb = any(
        queue.max_offset > 0 for (topic, _), queue in queues.items() if topic not in (HALF_TOPIC, OP_TOPIC)
    )
    if conf.transaction_rocksdb_enable or in_rocksdb:
        raise UnsupportedFormatError(
            f"{store.path}: its broker keeps transactions in RocksDB (transRocksDBEnable=true). Decide them "
            "with the broker and its producers"
        )
    half = queues.get((HALF_TOPIC, HALF_QUEUE_ID))
    op = queues.get((OP_TOPIC, HALF_QUEUE_ID))
    if half is None or half.max_offset == 0:
        return None
    if half.scanned is not None:
        raise CorruptStoreError(
            f"{store.path}/consumequeue", 0, "consume queue files", "none; run rmqlog recover"
        )
    known = read_group_offsets(store.opened, CHECKER_GROUP)
    stored = known.get(half.key, 0)
    resumed = Ledger.read(store.opened).resume(CHECK_PART, stored, store.log)
    op_start = 0 if op is None else op.min_offset
    return HalfQueue(
        half,
        op,
        min(max(resumed, half.min_offset), half.max_offset),
        stored,
        known.get((OP_TOPIC, HALF_QUEUE_ID), op_start),
    )


# ---- decisions ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class HalfName:
    """Names a half message: by its message id, or by its offset in the half queue of a broker.

    `label` is the name in errors. `broker_name` may be None: then every store is searched.
    """

    msg_id: str | None = None
    queue_offset: int | None = None
    broker_name: str | None = None
    label: str = ""

    def __str__(self) -> str:
        if self.label:
            return self.label
        return f"msgId {self.msg_id!r}" if self.queue_offset is None else f"half offset {self.queue_offset}"


@dataclass(frozen=True, slots=True)
class TransactionDecision:
    """One named transaction of a store, and its state: only `pending` ones are written.

    `row` has the newest copy, `offsets` are the queue offsets of all copies that no op message lists.
    """

    name: HalfName
    decision: str
    state: str
    row: Mapping[str, Any]  # Any: values of HALF_COLUMNS
    offsets: tuple[int, ...] = ()

    @property
    def is_due(self) -> bool:
        return self.state == PENDING

    @property
    def key(self) -> tuple[object, object]:
        return self.row["msgId"], self.row[REAL_TOPIC]


def find_decisions(
    store: Store, wanted: Sequence[tuple[HalfName, str]], conf: BrokerConf
) -> dict[HalfName, TransactionDecision]:
    """The transactions of this store that `wanted`, pairs of a name and a decision, names.

    Raises OptionError for a name of two transactions, for two decisions about one, and for a transaction that
    ended the other way.
    """
    if not wanted or find_half_queue(store, conf) is None:
        return {}
    ids = {name.msg_id for name, _ in wanted if name.msg_id is not None}
    offsets = {name.queue_offset for name, _ in wanted if name.queue_offset is not None}
    by_name: dict[object, list[Transaction]] = {}
    for each in find_transactions(store, msg_ids=ids, queue_offsets=offsets):
        for place in (each.copies[-1]["msgId"], *(copy["queueOffset"] for copy in each.copies)):
            by_name.setdefault(place, []).append(each)
    known = {
        name: _decision(name, decision, named)
        for name, decision in wanted
        if (named := by_name.get(name.msg_id if name.queue_offset is None else name.queue_offset))
    }
    _refuse_contrary(known)
    _refuse_unopened(store, [each for each in known.values() if each.is_due and each.decision == COMMIT])
    return known


def _refuse_unopened(store: Store, commits: Sequence[TransactionDecision]) -> None:
    """Raises CorruptStoreError for a half message that no consumer could read once it is committed."""
    places = sorted((each.row["physicalOffset"], each.row["storeSize"]) for each in commits)
    halves, _, _ = read_stored(store.log, *np.array(places, np.int64).reshape(-1, 2).T.copy())
    for place, error in halves.unopened().items():
        physical = int(halves.physical_offsets[place])
        where = f"{HALF_TOPIC}-{HALF_QUEUE_ID}@{halves.queue_offsets[place]}"
        raise CorruptStoreError(
            f"{store.path}/commitlog", physical, f"{error.expected} in the half message {where}",
            f"{error.found}; no consumer could read it, so it can only be rolled back",
        )  # fmt: skip


def _decision(name: HalfName, decision: str, named: Sequence[Transaction]) -> TransactionDecision:
    """The decision about the transaction of this name that is pending, else about one that ended."""
    pending = [each for each in named if each.state == PENDING]
    if len(pending) > 1:
        topics = ", ".join(sorted(str(each.copies[-1][REAL_TOPIC]) for each in pending))
        raise OptionError(
            f"{name}: expected one transaction, found {len(pending)}, for topics {topics}; "
            "name it by its half offset"
        )
    if pending:
        return TransactionDecision(name, decision, PENDING, pending[0].copies[-1], tuple(pending[0].unlisted))
    states = {each.state for each in named}
    state = min(states - _DONE[decision], default=min(states))
    return TransactionDecision(name, decision, state, named[0].copies[-1])


def _refuse_contrary(found: Mapping[HalfName, TransactionDecision]) -> None:
    by_key: dict[tuple[object, object], TransactionDecision] = {}
    for each in found.values():
        other = by_key.setdefault(each.key, each)
        if other.decision != each.decision:
            raise OptionError(
                f"{each.name}: expected one decision, found {other.decision} and {each.decision} for the "
                f"transaction {each.row['msgId']}"
            )
        if not each.is_due and each.state not in _DONE[each.decision]:
            raise OptionError(
                f"{each.name}: expected a pending half message to {each.decision}, found a transaction that "
                f"is {each.state}"
            )
        if each.is_due and each.decision == COMMIT and not _has_queue(each.row):
            raise OptionError(
                f"{each.name}: expected REAL_TOPIC and REAL_QID with a queue, found "
                f"{each.row[REAL_TOPIC]!r} and {each.row[REAL_QID]!r}; it can only be rolled back"
            )


def _has_queue(row: Mapping[str, Any]) -> bool:
    number = parse_long(row[REAL_QID])
    return bool(row[REAL_TOPIC]) and number is not None and 0 <= number < 2**31


# ---- writing -----------------------------------------------------------------------------------------------


def write_decisions(
    session: WriteSession,
    decisions: Sequence[TransactionDecision],
    now_ms: int,
    tally: Tally,
    *,
    key: tuple[str, int] | None = None,
) -> None:
    """Writes the pending ones of these decisions, in their order; `tally` counts their transactions.

    Each commit holds committed messages and the op messages that list their half messages, so that a crash
    leaves both or none. With `key` the last commit notes this batch in the ledger.
    """
    store = session.store()
    due = {each.key: each for each in decisions if each.is_due}
    chunks = list(_decision_chunks(list(due.values())))
    for number, chunk in enumerate(chunks, 1):
        _write_decisions(session, store, chunk, now_ms, key if number == len(chunks) else None)
        tally.done += len(chunk)
    if not chunks and key is not None:
        turn = ServiceTurn(_PART, key[1], -1, batch=key[0])
        session.append(op_messages([], (bytes(4), 0), now_ms), turn=turn)


def _decision_chunks(due: Sequence[TransactionDecision]) -> Iterator[list[TransactionDecision]]:
    chunk: list[TransactionDecision] = []
    size = 0
    for each in due:
        size += each.row["storeSize"]
        if chunk and (len(chunk) >= TURN_MESSAGES_MAX or size > TURN_BYTES_MAX):
            yield chunk
            chunk, size = [], each.row["storeSize"]
        chunk.append(each)
    if chunk:
        yield chunk


def _write_decisions(
    session: WriteSession,
    store: Store,
    chunk: Sequence[TransactionDecision],
    now_ms: int,
    key: tuple[str, int] | None,
) -> None:
    is_old = is_broker_49(session.opened)
    halves, _, damaged = read_stored(
        store.log,
        np.array([each.row["physicalOffset"] for each in chunk], np.int64),
        np.array([each.row["storeSize"] for each in chunk], np.int64),
    )
    if damaged:
        raise damaged[0].error
    is_commit = np.array([each.decision == COMMIT for each in chunk], bool)
    queues = real_queues(halves)
    if (queues.bad & is_commit).any():
        place = int(halves.physical_offsets[(queues.bad & is_commit).argmax()])
        raise CorruptStoreError(
            store.path, place, "a half message with REAL_TOPIC and REAL_QID of a queue", "another"
        )
    late = delayed(halves) & is_commit
    if late.any():
        raise UnsupportedFormatError(
            f"{chunk[int(late.argmax())].name}: a half message with a delay (DELAY, TIMER_…) cannot "
            "be committed here, because a broker would deliver it later; it can be rolled back"
        )
    offsets = [offset for each in chunk for offset in each.offsets]
    columns, ops = decision_columns(halves, is_commit, offsets, now_ms, is_old=is_old)
    op = {queue.key: queue for queue in store.queues(OP_TOPIC.__eq__)}.get((OP_TOPIC, HALF_QUEUE_ID))
    stop = 0 if op is None else op.max_offset
    turn = (
        ServiceTurn(_PART, stop + ops, stop)
        if key is None
        else ServiceTurn(_PART, key[1], stop, batch=key[0])
    )
    session.append(columns, turn=turn, new_topics={OP_TOPIC: 1})


def decision_columns(
    halves: StoredMessages,
    is_commit: NDArray[np.bool_],
    offsets: Sequence[int],
    now_ms: int,
    *,
    is_old: bool,
) -> tuple[MessageColumns, int]:
    """(the committed messages, then op messages for the half offsets `offsets`; how many op messages)."""
    bodies = op_bodies(offsets, is_old=is_old)
    parts = [op_messages(bodies, _broker_address(halves), now_ms)]
    chosen = halves.take(is_commit)
    if len(chosen):
        parts.insert(0, committed(chosen, is_old=is_old))
    return join_columns(parts), len(bodies)


def _broker_address(halves: StoredMessages) -> tuple[bytes, int]:
    """The broker's address: the store host of the last half message."""
    messages = halves.messages
    v6 = int(np.asarray(messages.sys_flag)[-1]) & sysflag.STORE_HOST_V6
    ip = np.asarray(messages.store_ip)[-1].tobytes()
    return ip if v6 else ip[:4], int(np.asarray(messages.store_port)[-1])


def refuse_unknown(name: HalfName, where: str) -> StoreError:
    """The error for a name without a transaction."""
    return OptionError(
        f"{name}: expected a half message of a transaction in {where}, found none; rmqlog half lists the "
        "pending ones"
    )


# ---- messages for the function of the user -----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class HalfMessage:
    """A half message, as the function of `transaction.check` receives it.

    `topic` and `queue_id` are the destination. `body` is decompressed. `properties` are the producer's and
    RocketMQ's. `born_timestamp` is in ms since 1970. `check_times` is the number of earlier checks.
    """

    topic: str
    queue_id: int
    body: bytes
    properties: Mapping[str, str]
    msg_id: str | None
    producer_group: str | None
    born_timestamp: int
    check_times: int

    @property
    def keys(self) -> list[str]:
        """The keys of the message: the words of the property KEYS."""
        return [key for key in self.properties.get("KEYS", "").split(" ") if key]

    @property
    def tags(self) -> str | None:
        """The tag of the message (the property TAGS), or None."""
        return self.properties.get(TAGS)


Decide = Callable[[HalfMessage], str | None]


def half_messages(halves: StoredMessages) -> list[HalfMessage]:
    """The messages for the user's function."""
    maps = PropertyTable(halves.messages.properties.cast(pa.binary())).map_array().to_pylist()
    born = np.asarray(halves.messages.born_timestamp).tolist()
    flags = np.asarray(halves.messages.sys_flag).tolist()
    found = []
    for pairs, times, born_ms, flag, body in zip(
        maps, check_times(halves), born, flags, halves.messages.body, strict=True
    ):
        properties = dict(pairs)
        queue_id = parse_long(properties.get(REAL_QID))
        found.append(
            HalfMessage(
                topic=properties.get(REAL_TOPIC, ""),
                queue_id=-1 if queue_id is None else queue_id,
                body=_body(body.as_buffer(), flag),
                properties=properties,
                msg_id=properties.get(UNIQ_KEY),
                producer_group=properties.get(PGROUP),
                born_timestamp=born_ms,
                check_times=times,
            )
        )
    return found


def _body(stored: pa.Buffer, sys_flag: int) -> bytes:
    if not sys_flag & sysflag.COMPRESSED:
        return bytes(stored.to_pybytes())
    body: bytes = decompress(stored, sys_flag, size_max=BODY_SIZE_MAX)
    return body


def answer_of(decide: Decide, message: HalfMessage) -> str | None:
    """TransactionCheckListener: an error in the user's function is an unknown decision."""
    try:
        answer = decide(message)
    except Exception:
        _log.warning("the decision about %s failed and counts as unknown", message.msg_id, exc_info=True)
        return None
    if answer in (None, "unknown"):
        return None
    if answer not in (COMMIT, ROLLBACK):
        raise OptionError(
            f"the function that decides transactions: expected 'commit', 'rollback' or None for "
            f"{message.msg_id}, found {answer!r}"
        )
    return answer
