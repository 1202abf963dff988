"""The check of half messages that wait too long: TransactionalMessageServiceImpl.check (spec 7.5).

A broker stores such a message again at the end of the half topic and asks a producer of its group. Here the
user's function answers. After transactionCheckMax checks, or when it is older than fileReservedTime, the
message is moved to TRANS_CHECK_MAX_TIME_TOPIC: effectively rolled back.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rmq_spark.broker.services.decisions import COMMIT, decision_columns
from rmq_spark.broker.services.half_message import Decide, answer_of, half_messages
from rmq_spark.broker.services.half_queue import CHECK_PART, HalfQueue, find_half_queue
from rmq_spark.broker.services.service import TURN_BYTES_MAX, TURN_MESSAGES_MAX, Now, tallied
from rmq_spark.produce.half import HALF_QUEUE_ID, check_times, checked, committed, delayed, discarded
from rmq_spark.produce.real_queue import real_queues
from store_format.bookkeeping.ledger import Ledger, ServiceTurn
from store_format.commit.session import WriteSession
from store_format.commit.unsupported import refuse_topics
from store_format.consumequeue.slices import read_slice
from store_format.display.columns import INT, LONG, TEXT, ViewColumn, batch_of
from store_format.errors import IllegalMessageError, StoreError
from store_format.java.numbers import parse_long
from store_format.message.encode import MessageColumns
from store_format.message.locate import Identity
from store_format.message.stored import StoredMessages, join_columns
from store_format.metadata.broker_conf import BrokerConf
from store_format.metadata.group_offsets import is_broker_49, write_group_offsets_held
from store_format.metadata.read import read_topics
from store_format.metadata.values import TopicConfig
from store_format.names import (
    CHECK_IMMUNITY_TIME,
    CHECKER_GROUP,
    DISCARDED_TOPIC,
    HALF_TOPIC,
    OP_TOPIC,
    UNIQ_KEY,
)
from store_format.read.store import Store
from store_format.read.stored_messages import read_stored
from store_format.views.transactions import PENDING, Transaction, find_transactions

_log = logging.getLogger(__name__)
_NOT_COMMITTED = "%s: a half message cannot be committed and is checked again: %s"

# messages that a turn reads at a time: most turns need only the first
_CHUNKS = (16, 1024, TURN_MESSAGES_MAX - 1040)


CHECK_COLUMNS = (
    ViewColumn("msgId", TEXT, "The message id that the producer assigned (UNIQ_KEY)."),
    ViewColumn("topic", TEXT, "The destination topic."),
    ViewColumn("queueId", INT, "The destination queue."),
    ViewColumn("producerGroup", TEXT, "The producer group."),
    ViewColumn("halfQueueOffset", LONG, "The offset in the half topic."),
    ViewColumn("checkTimes", INT, "How often the message was checked before."),
    ViewColumn("ageMs", LONG, "The time since the message was born."),
    ViewColumn(
        "action",
        TEXT,
        "`commit`, `rollback`; `check again`: the decision is unknown; `wait`: its own immunity time is not "
        "over; `discard`: checked too often, or too old.",
    ),
)


class Checker:
    """The service `transaction`: asks `decide` about each half message that waits too long.

    `decide` gets a `HalfMessage` and returns "commit", "rollback", or None if the decision is not known yet.
    It runs while the store is locked, so it should answer fast. An error counts as None, as in a producer.
    """

    name = "transaction"

    def __init__(self, decide: Decide) -> None:
        self._decide = decide

    def plan(self, store: Store, ledger: Ledger, now: Now) -> CheckPlan:
        """The half messages that are due, at most a turn of them. Does not call `decide`."""
        queue = find_half_queue(store, now.conf)
        plan = CheckPlan(store, queue, now, self._decide)
        if queue is not None:
            plan.walk(queue)
        return plan


@dataclass(slots=True)
class CheckPlan:
    """What a check does: `halves` and `acts` in the order of the half queue, up to offset `stop`."""

    store: Store
    queue: HalfQueue | None
    now: Now
    decide: Decide
    acts: list[_Act] = field(default_factory=list)
    parts: list[StoredMessages] = field(default_factory=list)
    unlisted: list[tuple[int, ...]] = field(default_factory=list)  # of each act's transaction
    decided: list[StoredMessages] = field(default_factory=list)  # copies of which another one is decided
    decided_unlisted: set[int] = field(default_factory=set)  # the offsets of all their unlisted copies
    stop: int = 0
    op_stop: int = 0
    next_due: int | None = None
    late_ms: int | None = None
    answers: list[str | None] | None = None

    # ---- the walk ----

    def walk(self, queue: HalfQueue) -> None:
        """Goes on until a half message must wait, as the broker does."""
        ops = queue.op_messages(queue.op_offset)
        decided = {offset for _, listed in ops for offset in listed}
        self.stop = queue.half_offset
        size = 0
        for chunk in _CHUNKS:
            halves, last = _read_undecided(queue, self.store, self.stop, decided, chunk)
            size += int(halves.sizes.sum())
            if not self._walk_chunk(halves, last):
                break
            if len(self.acts) >= TURN_MESSAGES_MAX or size >= TURN_BYTES_MAX:
                break
            if last >= queue.half.max_offset:
                break
        self.op_stop = _op_stop(queue.op_offset, ops, self.stop)
        if self.acts:
            again = self.now.ms + self.now.conf.transaction_check_interval_ms
            self.next_due = again if self.next_due is None else min(again, self.next_due)
        if self.stop < queue.half.max_offset and self.next_due is None:
            self.next_due = self.now.ms

    def _walk_chunk(self, halves: StoredMessages, last: int) -> bool:
        """Adds the acts of these messages; False if one must wait, whose offset is then `stop`.

        A copy is passed if a newer copy exists, or if the transaction is decided.
        """
        transactions: dict[int, Transaction] | None = None
        kept: list[int] = []
        decided: list[int] = []
        must_wait = False
        for place, facts in enumerate(_facts_of(halves)):
            act, due = _act_of(facts, self.now)
            if due > self.now.ms:
                self.next_due, last, must_wait = due, facts.queue_offset, True
                break
            if transactions is None:  # nothing is read while nothing is due
                transactions = _transactions_of(self.store, halves)
            each = transactions.get(facts.queue_offset) or Transaction()
            if each.state not in (PENDING, "unknown"):
                decided.append(place)
                self.decided_unlisted.update(each.unlisted)
            elif not each.copies or each.copies[-1]["queueOffset"] <= facts.queue_offset:
                self.late_ms = max(self.late_ms or 0, self.now.ms - due)
                kept.append(place)
                self.acts.append(act)
                self.unlisted.append(tuple(each.unlisted))
        self.stop = last
        if kept:
            self.parts.append(halves.take(np.array(kept)))
        if decided:
            self.decided.append(halves.take(np.array(decided)))
        return not must_wait

    # ---- the plan ----

    @property
    def due(self) -> int:
        return len(self.acts)

    @property
    def changes(self) -> bool:
        queue = self.queue
        return queue is not None and (
            bool(self.acts or self.decided)
            or self.stop != queue.half_stored
            or self.op_stop != queue.op_offset
        )

    def halves(self) -> StoredMessages:
        return StoredMessages(join_columns([part.messages for part in self.parts]))

    def answered(self) -> list[str | None]:
        """The answer of the user's function for each act; None for an act that does not ask. Asks once."""
        if self.answers is None:
            messages = half_messages(self.halves()) if self.acts else []
            self.answers = [
                answer_of(self.decide, message) if act is _Act.ASK else None
                for act, message in zip(self.acts, messages, strict=True)
            ]
        return self.answers

    def table(self) -> pa.Table:
        """One row for each half message that is checked or discarded; asks the user's function."""
        rows = []
        if self.acts:
            halves = self.halves()
            names = {
                _Act.IMMUNE: "wait",
                _Act.DISCARD: "discard",
                _Act.EXPIRE: "discard",
                _Act.ASK: "check again",
            }
            for message, offset, act, answer in zip(
                half_messages(halves), halves.queue_offsets.tolist(), self.acts, self.answered(), strict=True
            ):
                rows.append(
                    (
                        message.msg_id, message.topic, message.queue_id, message.producer_group, offset,
                        message.check_times, self.now.ms - message.born_timestamp, answer or names[act],
                    )
                )  # fmt: skip
        return pa.Table.from_batches([batch_of(CHECK_COLUMNS, rows)])

    def apply(self, session: WriteSession) -> int:
        """One commit of checked and discarded messages and of the decisions; then the offsets.

        Raises PartsFailedError if only the offsets cannot be written.
        """
        assert self.queue is not None
        offsets = {(HALF_TOPIC, HALF_QUEUE_ID): self.stop}
        if self.queue.op is not None:
            offsets[OP_TOPIC, HALF_QUEUE_ID] = self.op_stop
        with tallied() as tally:
            if self.acts or self.decided:
                self._append(session)
                tally.done = len(self.acts)
            write_group_offsets_held(
                session.root, CHECKER_GROUP, offsets,
                timestamp=self.now.ms, is_reset=True, files=session.files,
            )  # fmt: skip
        return tally.done

    def _append(self, session: WriteSession) -> None:
        """A broker stores a message again, asks, and then decides the new copy; so the copies come first.

        An op message lists all copies of a decided transaction, so that no broker asks about another copy.
        """
        assert self.queue is not None
        again = _Again.of(self, session) if self.acts else _Again()
        parts = [*again.columns]
        halves = [*again.answered, *self.decided]
        new_topics = dict(again.new_topics)
        if halves:
            decided = StoredMessages(join_columns([each.messages for each in halves]))
            is_commit = np.zeros(len(decided), bool)
            is_commit[: len(again.is_commit)] = again.is_commit
            columns, _ = decision_columns(
                decided, is_commit, sorted({*again.offsets, *self.decided_unlisted}), self.now.ms,
                is_old=is_broker_49(session.root),
            )  # fmt: skip
            parts.append(columns)
            new_topics[OP_TOPIC] = 1
        turn = ServiceTurn(CHECK_PART, self.stop, self.queue.half_stored)
        session.append(join_columns(parts), turn=turn, new_topics=new_topics)


@dataclass(frozen=True, slots=True)
class _Again:
    """What a check stores for its acts: `columns` are the checked and discarded messages.

    `answered` are the new copies of half messages with an answer, at most one part; `is_commit` are their
    answers, and `offsets` those of all unlisted copies.
    """

    columns: tuple[MessageColumns, ...] = ()
    answered: tuple[StoredMessages, ...] = ()
    is_commit: Sequence[bool] = ()
    offsets: frozenset[int] = frozenset()
    new_topics: Mapping[str, int] = field(default_factory=dict)

    @staticmethod
    def of(plan: CheckPlan, session: WriteSession) -> _Again:
        """A half message whose properties get too long with one more check in them is discarded."""
        assert plan.queue is not None
        halves, acts, answers = plan.halves(), np.array(plan.acts), list(plan.answered())
        for place, error in _without_room(session, halves, acts).items():
            _log.warning(
                "%s: the half message at offset %d cannot be stored again and is discarded: %s",
                session.root, halves.queue_offsets[place], error,
            )  # fmt: skip
            acts[place], answers[place] = _Act.DISCARD, None
        again = (acts == _Act.ASK) | (acts == _Act.IMMUNE)
        parts = []
        if again.any():
            parts.append(checked(halves.take(again), acts[again] == _Act.IMMUNE))
        if not again.all():
            parts.append(discarded(halves.take(~again), acts[~again] == _Act.EXPIRE))
        order = np.argsort(np.concatenate([np.flatnonzero(again), np.flatnonzero(~again)]))
        columns = StoredMessages(join_columns(parts)).take(order).messages
        answers = _possible_answers(session, halves, answers)
        new_topics = {} if again.all() else {DISCARDED_TOPIC: 1}
        known = np.array([answer is not None for answer in answers], bool)
        if not known.any():
            return _Again((columns,), new_topics=new_topics)
        copies = StoredMessages(
            replace(
                columns,
                physical_offset=session.next_places(columns),
                queue_offset=plan.queue.half.max_offset + np.cumsum(again) - 1,
            )
        ).take(known)
        older = (each for each, is_known in zip(plan.unlisted, known.tolist(), strict=True) if is_known)
        return _Again(
            (columns,),
            (copies,),
            [answer == COMMIT for answer in answers if answer is not None],
            frozenset(copies.queue_offsets.tolist()).union(*older),
            new_topics,
        )


def _without_room(
    session: WriteSession, halves: StoredMessages, acts: NDArray[np.object_]
) -> dict[int, IllegalMessageError]:
    """The places of half messages that cannot be stored with one more check in their properties."""
    counted = np.flatnonzero(acts != _Act.DISCARD)
    if not len(counted):
        return {}
    copies = checked(halves.take(counted), acts[counted] == _Act.IMMUNE)
    refused = session.refused(StoredMessages(copies))
    return {int(counted[index]): error for index, error in refused.items()}


def _possible_answers(
    session: WriteSession, halves: StoredMessages, answers: Sequence[str | None]
) -> list[str | None]:
    """The answers, None for a commit to a topic that is not written to: it is checked again."""
    root = session.root
    topics: Mapping[str, TopicConfig] = read_topics(root) or {}
    queues = real_queues(halves)
    bads = queues.bad | delayed(halves)
    found = list(answers)
    for place, (answer, bad, topic, queue_id) in enumerate(
        zip(answers, bads.tolist(), queues.topics.to_pylist(), queues.queue_ids.tolist(), strict=True)
    ):
        if answer != COMMIT:
            continue
        try:
            if bad:
                raise IllegalMessageError("expected REAL_TOPIC and REAL_QID of a queue, and no delay")
            refuse_topics(root, [(topic, queue_id)], topics)
        except StoreError as error:
            _log.warning(_NOT_COMMITTED, root, error)
            found[place] = None
    commits = [place for place, answer in enumerate(found) if answer == COMMIT]
    if commits:
        refused = session.refused(StoredMessages(committed(halves.take(np.array(commits)))))
        for index, why in refused.items():
            _log.warning(_NOT_COMMITTED, root, why)
            found[commits[index]] = None
    return found


# ---- reading -----------------------------------------------------------------------------------------------


def _transactions_of(store: Store, halves: StoredMessages) -> dict[int, Transaction]:
    """The transactions of these half messages, by the offset of each copy in the half topic."""
    keys = halves.properties(UNIQ_KEY)[0].to_pylist()
    without_key = [
        offset for offset, key in zip(halves.queue_offsets.tolist(), keys, strict=True) if key is None
    ]
    found = find_transactions(
        store, msg_ids=[key for key in keys if key is not None], queue_offsets=without_key
    )
    return {copy["queueOffset"]: each for each in found for copy in each.copies}


def _read_undecided(
    queue: HalfQueue, store: Store, start: int, decided: set[int], count: int
) -> tuple[StoredMessages, int]:
    """(undecided half messages from `start` on, the offset after them).

    At most `count` messages and a turn's bytes. Damaged messages are passed with a warning. The units that a
    recovery writes for lost messages (`lost_units`) are passed too: `read_slice` leaves them out.
    """
    piece = queue.half.piece(start, start + count + len(decided))
    offsets, units = read_slice(piece)
    open_ = ~np.isin(offsets, np.fromiter(decided, np.int64, len(decided)))
    sizes = np.cumsum(np.where(open_, units["size"].astype(np.int64), 0))
    taken = np.cumsum(open_)
    cut = int(np.searchsorted(taken, count, side="right"))
    cut = min(cut, max(1, int(np.searchsorted(sizes, TURN_BYTES_MAX, side="right"))))
    last = int(offsets[cut - 1]) + 1 if cut < len(offsets) else piece.stop
    chosen = open_[:cut]
    units = units[:cut][chosen]
    halves, _, damaged = read_stored(
        store.log,
        units["physical_offset"].astype(np.int64),
        units["size"].astype(np.int64),
        Identity((HALF_TOPIC,), None, np.full(len(units), HALF_QUEUE_ID, np.int32), offsets[:cut][chosen]),
    )
    for each in damaged:
        _log.warning("%s: a half message is passed: %s", store.path, each.error)
    return halves, last


# ---- what is due -------------------------------------------------------------------------------------------


class _Act(Enum):
    """What a check does with a half message."""

    ASK = "ask"
    IMMUNE = "immune"  # stored again without a question
    DISCARD = "discard"  # checked too often
    EXPIRE = "expire"  # too old


@dataclass(frozen=True, slots=True)
class _Facts:
    """What a check looks at in a half message; times in ms."""

    queue_offset: int
    born: int
    stored: int
    check_times: int
    immunity: str | None


def _facts_of(halves: StoredMessages) -> list[_Facts]:
    (immunity,) = halves.properties(CHECK_IMMUNITY_TIME)
    return [
        _Facts(*each)
        for each in zip(
            halves.queue_offsets.tolist(),
            np.asarray(halves.messages.born_timestamp).tolist(),
            halves.store_timestamps.tolist(),
            check_times(halves),
            immunity.to_pylist(),
            strict=True,
        )
    ]


def _act_of(facts: _Facts, now: Now) -> tuple[_Act, int]:
    """(what to do with a message whose transaction is pending, when that is due in ms).

    A broker checks every transactionCheckInterval; here a copy that a check has stored waits that long.
    """
    conf = now.conf
    again = facts.stored + conf.transaction_check_interval_ms if facts.check_times > 0 else 0
    if again > now.ms:
        return _Act.ASK, again
    if facts.check_times >= conf.transaction_check_max:
        return _Act.DISCARD, again
    expires = facts.born + conf.file_reserved_hours * 3_600_000
    if now.ms > expires:
        return _Act.EXPIRE, max(expires, again)
    if facts.stored >= now.ms:
        return _Act.ASK, facts.stored + 1
    age = now.ms - facts.born
    if facts.immunity is None:
        due = facts.born + conf.transaction_timeout_ms
        return _Act.ASK, max(due, again) if age >= 0 else facts.stored
    due = facts.born + _immunity_ms(facts.immunity, conf)
    return (_Act.IMMUNE, again or now.ms) if now.ms < due else (_Act.ASK, max(due, again))


def _immunity_ms(text: str, conf: BrokerConf) -> int:
    """TransactionalMessageServiceImpl.getImmunityTime."""
    seconds = parse_long(text)
    return conf.transaction_timeout_ms if seconds is None or seconds == -1 else seconds * 1000


def _op_stop(start: int, ops: Sequence[tuple[int, list[int]]], half_stop: int) -> int:
    """The offset after the op messages from `start` on that list only passed half messages.

    TransactionalMessageServiceImpl.calculateOpOffset.
    """
    stop = start
    for offset, listed in ops:
        if offset != stop or any(each >= half_stop for each in listed):
            break
        stop += 1
    return stop
