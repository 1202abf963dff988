"""Transactions without a broker: `decide` ends half messages by name, `check` asks your function about them.

Both return a plan: look at `table()`, then call `apply()`. The broker of the store must be stopped.

The check is that of half messages that wait too long: TransactionalMessageServiceImpl.check (spec 7.5). A
broker stores such a message again at the end of the half topic and asks a producer of its group. Here the
user's function answers. After transactionCheckMax checks, or when it is older than fileReservedTime, the
message is moved to TRANS_CHECK_MAX_TIME_TOPIC: effectively rolled back.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rmq_spark.broker.services.decisions import (
    CHECK_PART,
    COMMIT,
    ROLLBACK,
    Decide,
    HalfMessage,
    HalfName,
    HalfQueue,
    TransactionDecision,
    answer_of,
    decision_columns,
    find_decisions,
    find_half_queue,
    half_messages,
    refuse_unknown,
    write_decisions,
)
from rmq_spark.broker.services.service import TURN_BYTES_MAX, TURN_MESSAGES_MAX, Now, now_of, tallied
from rmq_spark.produce.delivered import real_queues
from rmq_spark.produce.half import HALF_QUEUE_ID, check_times, checked, committed, delayed, discarded
from store_format.bookkeeping.ledger import Ledger, ServiceTurn
from store_format.commit.options import CommitOptions
from store_format.commit.session import WriteSession, write_session
from store_format.commit.unsupported import StoreRefusals
from store_format.display.columns import BROKER, INT, LONG, TEXT, ViewColumn, batch_of
from store_format.errors import IllegalMessageError, OptionError, StoreError
from store_format.files import paths
from store_format.java.numbers import parse_long
from store_format.message.encode import MessageColumns, StoredMessages, join_columns
from store_format.message.locate import Identity
from store_format.metadata.group_offsets import is_broker_49, write_group_offsets_held
from store_format.metadata.read import BrokerConf, read_topics
from store_format.metadata.values import TopicConfig
from store_format.names import (
    CHECK_IMMUNITY_TIME,
    CHECKER_GROUP,
    DISCARDED_TOPIC,
    HALF_TOPIC,
    OP_TOPIC,
    PGROUP,
    REAL_QID,
    REAL_TOPIC,
    UNIQ_KEY,
)
from store_format.read.store import Store
from store_format.read.store_root import store_roots
from store_format.read.stored_messages import read_stored
from store_format.store import MessageStore
from store_format.views.transactions import PENDING, Transaction, find_transactions

DECISION_COLUMNS = (
    BROKER,
    ViewColumn("msgId", TEXT, "The message id that clients show."),
    ViewColumn("topic", TEXT, "The destination topic."),
    ViewColumn("queueId", INT, "The destination queue."),
    ViewColumn("producerGroup", TEXT, "The producer group."),
    ViewColumn("decision", TEXT, "`commit` or `rollback`."),
    ViewColumn("state", TEXT, "`pending`, or how the transaction ended: then nothing is written."),
    ViewColumn("halfQueueOffset", LONG, "The newest copy's offset in the half topic."),
    ViewColumn("halfPhysicalOffset", LONG, "The newest copy's physical offset."),
)
_LOCK_SECONDS = 10.0

Name = str | int | HalfName

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


# ---- the check of a turn -----------------------------------------------------------------------------------


class Checker:
    """The service `transaction`: asks `decide` about each half message that waits too long.

    `decide` gets a `HalfMessage` and returns "commit", "rollback", or None if the decision is not known yet.
    It runs while the store is locked, so it should answer fast. An error counts as None, as in a producer.
    """

    name = "transaction"

    def __init__(self, decide: Decide) -> None:
        self._decide = decide

    def plan(self, store: Store, ledger: Ledger, now: Now) -> _CheckPlan:
        """The half messages that are due, at most a turn of them. Does not call `decide`."""
        queue = find_half_queue(store, now.conf)
        plan = _CheckPlan(store, queue, now, self._decide)
        if queue is not None:
            plan.walk(queue)
        return plan


@dataclass(slots=True)
class _CheckPlan:
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
            if len(self.acts) >= TURN_MESSAGES_MAX or size >= TURN_BYTES_MAX or last >= queue.half.max_offset:
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
            rows = [
                (
                    message.msg_id, message.topic, message.queue_id, message.producer_group, offset,
                    message.check_times, self.now.ms - message.born_timestamp, answer or names[act],
                )
                for message, offset, act, answer in zip(
                    half_messages(halves), halves.queue_offsets.tolist(), self.acts, self.answered(),
                    strict=True,
                )
            ]  # fmt: skip
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
                session.opened, CHECKER_GROUP, offsets,
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
                is_old=is_broker_49(session.opened),
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
    def of(plan: _CheckPlan, session: WriteSession) -> _Again:
        """A half message whose properties get too long with one more check in them is discarded."""
        assert plan.queue is not None
        halves, acts, answers = plan.halves(), np.array(plan.acts), list(plan.answered())
        for place, error in _without_room(session, halves, acts).items():
            _log.warning(
                "%s: the half message at offset %d cannot be stored again and is discarded: %s",
                session.opened.path, halves.queue_offsets[place], error,
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
    refused = session.refused(StoredMessages(checked(halves.take(counted), acts[counted] == _Act.IMMUNE)))
    return {int(counted[index]): error for index, error in refused.items()}


def _possible_answers(
    session: WriteSession, halves: StoredMessages, answers: Sequence[str | None]
) -> list[str | None]:
    """The answers, None for a commit to a topic that is not written to: it is checked again."""
    opened = session.opened
    topics: Mapping[str, TopicConfig] = read_topics(opened) or {}
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
            StoreRefusals(opened).refuse_topics([(topic, queue_id)], topics)
        except StoreError as error:
            _log.warning(_NOT_COMMITTED, opened.path, error)
            found[place] = None
    commits = [place for place, answer in enumerate(found) if answer == COMMIT]
    if commits:
        refused = session.refused(StoredMessages(committed(halves.take(np.array(commits)))))
        for index, why in refused.items():
            _log.warning(_NOT_COMMITTED, opened.path, why)
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
    recovery writes for lost messages (`lost_units`) are passed too: `QueueSlice.read` leaves them out.
    """
    piece = queue.half.piece(start, start + count + len(decided))
    offsets, units = piece.read()
    open_ = ~np.isin(offsets, np.fromiter(decided, np.int64, len(decided)))
    sizes = np.cumsum(np.where(open_, units["size"].astype(np.int64), 0))
    cut = int(np.searchsorted(np.cumsum(open_), count, side="right"))
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


# ---- what the user calls -----------------------------------------------------------------------------------


def decide(
    store: Store | str | Sequence[Store],
    *,
    commit: Iterable[Name] = (),
    rollback: Iterable[Name] = (),
    now_ms: int | None = None,
    broker_conf: str | BrokerConf | None = None,
) -> DecisionPlan:
    """Returns a plan that commits and rolls back the transactions of the named half messages.

    `store` is a store, its path, the directory of a cluster, or several stores. A name is the message id of a
    half message (UNIQ_KEY, the `msgId` of the view `transactions`), its offset in the half topic, or a
    `HalfName`, which also names the broker. A transaction that already ended in the same way counts as done.
    `now_ms` is the clock (ms since 1970).

    Raises OptionError for a name without a half message, for a transaction that ended in the other way, and
    for two decisions about one transaction. Raises UnsupportedFormatError if transactions are in RocksDB
    (transRocksDBEnable).

    Example::

        plan = transaction.decide("/data/store", commit=["7F0000010001..."])
        plan.apply()
    """
    wanted = [(_shown_name(each), COMMIT) for each in commit] + [
        (_shown_name(each), ROLLBACK) for each in rollback
    ]
    if isinstance(store, str):
        store = [*map(MessageStore.open, store_roots(paths.absolute(store)))]
    stores = [store] if isinstance(store, Store) else store
    return plan_decisions(stores, wanted, now_of(stores[0].path, now_ms, broker_conf))


def _shown_name(name: Name) -> HalfName:
    if isinstance(name, HalfName):
        return name
    return HalfName(msg_id=name) if isinstance(name, str) else HalfName(queue_offset=name)


@dataclass(frozen=True, slots=True)
class DecisionPlan:
    """A plan of decisions by store. `apply` reads the store again, under its lock."""

    parts: list[tuple[Store, list[TransactionDecision]]]
    now: Now

    def table(self) -> pa.Table:
        """Returns one row for each transaction, with `DECISION_COLUMNS`."""
        rows = [
            (
                store.broker_name, each.row["msgId"], each.row[REAL_TOPIC],
                parse_long(each.row[REAL_QID]), each.row[PGROUP], each.decision, each.state,
                each.row["queueOffset"], each.row["physicalOffset"],
            )
            for store, decisions in self.parts
            for each in decisions
        ]  # fmt: skip
        return pa.Table.from_batches([batch_of(DECISION_COLUMNS, rows)])

    def apply(
        self,
        *,
        key: tuple[str, int] | None = None,
        options: CommitOptions | None = None,
    ) -> int:
        """Writes the pending decisions, store by store, and returns their number.

        In each store, the decisions of one commit are all written or none. `key` (id, number) is recorded in
        each store's ledger; a store that already has the key is left unchanged. Its id must not begin with
        `rmqlog/`.

        Raises PartsFailedError, whose `done` is the number of decisions that were written, for an error after
        these: a new plan, applied with the same key, writes the others.
        """
        if key is not None:
            key = ServiceTurn.user_key(key)
        with tallied() as tally:
            for store, decisions in self.parts:
                with write_session(store.path, options or _options(store, self.now)) as session:
                    if key is not None and session.ledger().has(key):
                        continue
                    wanted = [(each.name, each.decision) for each in decisions]
                    found = find_decisions(session.store(), wanted, self.now.conf)
                    _refuse_missing_halves(wanted, found, store.path)
                    write_decisions(session, list(found.values()), self.now.ms, tally, key=key)
        return tally.done


def _options(store: Store, now: Now) -> CommitOptions:
    return CommitOptions(
        lock_timeout=_LOCK_SECONDS, clock=lambda: now.ms, log_directories=store.commit_log_paths
    )


def plan_decisions(
    stores: Sequence[Store],
    wanted: Sequence[tuple[HalfName, str]],
    now: Now,
    *,
    must_find: bool = True,
) -> DecisionPlan:
    """`decide` for these stores. Raises OptionError as `decide` does.

    Without `must_find` a name without a half message is left out.
    """
    _refuse_two_decisions(wanted)
    parts: list[tuple[Store, list[TransactionDecision]]] = []
    where: dict[HalfName, str] = {}
    for store in stores:
        mine = [(name, what) for name, what in wanted if name.broker_name in (None, store.broker_name)]
        found = find_decisions(store, mine, now.conf)
        for name in found:
            if where.setdefault(name, store.broker_name) != store.broker_name:
                raise OptionError(
                    f"{name}: expected a half message of one broker, found one in {where[name]} and "
                    f"one in {store.broker_name}; name the broker too"
                )
        if found:
            parts.append((store, list(found.values())))
    if must_find:
        _refuse_missing_halves(wanted, where, " and ".join(store.path for store in stores))
    return DecisionPlan(parts, now)


def _refuse_two_decisions(wanted: Sequence[tuple[HalfName, str]]) -> None:
    decisions: dict[HalfName, str] = {}
    for name, decision in wanted:
        if decisions.setdefault(name, decision) != decision:
            raise OptionError(f"{name}: expected one decision, found commit and rollback")


def _refuse_missing_halves(
    wanted: Sequence[tuple[HalfName, str]], found: Iterable[HalfName], where: str
) -> None:
    known = set(found)
    for name, _ in wanted:
        if name not in known:
            raise refuse_unknown(name, where)


# ---- the check ---------------------------------------------------------------------------------------------


def check(
    store: Store | str,
    decide: Decide,
    now_ms: int | None = None,
    *,
    broker_conf: str | BrokerConf | None = None,
) -> CheckRun:
    """Returns a plan that checks the half messages of a store (or of the store at a path) that wait too long.

    `decide` receives a `HalfMessage` and returns "commit", "rollback", or None if the decision is not known
    yet; an error counts as None. The first check of a half message is due transactionTimeOut (6 s) after its
    birth, or after its own CHECK_IMMUNITY_TIME_IN_SECONDS. Further checks follow every
    transactionCheckInterval (30 s); each check stores the message again. After transactionCheckMax (15)
    checks, or when the message is older than fileReservedTime, it is moved to TRANS_CHECK_MAX_TIME_TOPIC,
    which means that it is rolled back. A transaction is decided once any copy of its half message is, and is
    checked once, by its newest copy.

    Raises UnsupportedFormatError if transactions are in RocksDB (transRocksDBEnable).

    Example: `transaction.check("/data/store", lambda m: "commit" if is_paid(m.keys[0]) else None).apply()`.
    """
    store = MessageStore.open(paths.absolute(store)) if isinstance(store, str) else store
    now = now_of(store.path, now_ms, broker_conf)
    service = Checker(_asked_once(decide))
    return CheckRun(store, service, now, service.plan(store, Ledger.read(store.opened), now))


def checker(decide: Decide) -> Checker:
    """Returns the check as a service `transaction`, for the argument `extra` of `Services` and `run_once`.

    Example::

        with Services("/data/store", extra=[transaction.checker(decide)], apply=True):
            query.awaitTermination()
    """
    return Checker(decide)


def _asked_once(decide: Decide) -> Decide:
    """The function with a memory: `table` and `apply` of a plan show and write the same answers."""
    known: dict[object, str | None] = {}

    def remembered(message: HalfMessage) -> str | None:
        key = message.msg_id, message.topic, message.born_timestamp, message.check_times
        if key not in known:
            known[key] = decide(message)
        return known[key]

    return remembered


@dataclass(frozen=True, slots=True)
class CheckRun:
    """The plan of one check of a store, with at most 10,000 messages."""

    store: Store
    service: Checker
    now: Now
    plan: _CheckPlan

    def table(self) -> pa.Table:
        """Returns one row for each half message that is checked or discarded, with `CHECK_COLUMNS`."""
        return self.plan.table()

    def apply(self) -> int:
        """Carries out the check and returns how many messages were checked or discarded.

        Reads the store again under the lock, so the number may differ from `table`.
        """
        with write_session(self.store.path, _options(self.store, self.now)) as session:
            plan = self.service.plan(session.store(), session.ledger(), self.now)
            return plan.apply(session) if plan.changes else 0
