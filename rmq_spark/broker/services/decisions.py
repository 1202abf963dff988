"""Decides transactions: finds the half messages that are named, and commits or rolls them back.

EndTransactionProcessor answers the producer's request; here a person, a program or the user's function
decides. The rule that a late commit with CHECK_IMMUNITY_TIME_IN_SECONDS is refused is for requests of
producers, so it does not apply.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rmq_spark.broker.services.half_queue import find_half_queue
from rmq_spark.broker.services.service import TURN_BYTES_MAX, TURN_MESSAGES_MAX, Tally
from rmq_spark.produce.half import HALF_QUEUE_ID, committed, delayed, op_bodies, op_messages
from rmq_spark.produce.real_queue import real_queues
from store_format.bookkeeping.ledger import ServiceTurn
from store_format.commit.session import WriteSession
from store_format.errors import CorruptStoreError, OptionError, StoreError, UnsupportedFormatError
from store_format.java.numbers import parse_long
from store_format.message.encode import MessageColumns
from store_format.message.stored import StoredMessages, join_columns
from store_format.message.sysflag import STORE_HOST_V6
from store_format.metadata.broker_conf import BrokerConf
from store_format.metadata.group_offsets import is_broker_49
from store_format.names import OP_TOPIC, REAL_QID, REAL_TOPIC
from store_format.read.store import Store
from store_format.read.stored_messages import read_stored
from store_format.views.transactions import PENDING, Transaction, find_transactions

COMMIT, ROLLBACK = "commit", "rollback"
_PART = "transaction/decide"
_DONE = {  # decision -> states in which nothing is left to do
    COMMIT: frozenset({"committed"}),
    ROLLBACK: frozenset({"rolled back", "discarded"}),
}


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
    known = {}
    for name, decision in wanted:
        named = by_name.get(name.msg_id if name.queue_offset is None else name.queue_offset)
        if named:
            known[name] = _decision(name, decision, named)
    _refuse_contrary(known)
    return known


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
    due = list({each.key: each for each in decisions if each.is_due}.values())
    store = session.store()
    chunks = list(_decision_chunks(due))
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
    is_old = is_broker_49(session.root)
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
    v6 = int(np.asarray(messages.sys_flag)[-1]) & STORE_HOST_V6
    ip = np.asarray(messages.store_ip)[-1].tobytes()
    return ip if v6 else ip[:4], int(np.asarray(messages.store_port)[-1])


def refuse_unknown(name: HalfName, where: str) -> StoreError:
    """The error for a name without a transaction."""
    return OptionError(
        f"{name}: expected a half message of a transaction in {where}, found none; rmqlog half lists the "
        "pending ones"
    )
