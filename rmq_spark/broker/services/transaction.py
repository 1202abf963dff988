"""Transactions without a broker: `decide` ends half messages by name, `check` asks your function about them.

Both return a plan: look at `table()`, then call `apply()`. The broker of the store must be stopped.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import pyarrow as pa

from rmq_spark.broker.services.decisions import (
    COMMIT,
    ROLLBACK,
    HalfName,
    TransactionDecision,
    find_decisions,
    refuse_unknown,
    write_decisions,
)
from rmq_spark.broker.services.half_check import Checker, CheckPlan
from rmq_spark.broker.services.half_message import Decide, HalfMessage
from rmq_spark.broker.services.service import Now, tallied
from rmq_spark.broker.services.turn import now_of
from store_format.bookkeeping.ledger import read_ledger, refuse_service_key
from store_format.commit.options import CommitOptions
from store_format.commit.session import write_session
from store_format.display.columns import BROKER, INT, LONG, TEXT, ViewColumn, batch_of
from store_format.errors import OptionError
from store_format.files import paths
from store_format.java.numbers import parse_long
from store_format.metadata.broker_conf import BrokerConf
from store_format.names import PGROUP, REAL_QID, REAL_TOPIC
from store_format.read.store import Store
from store_format.read.store_root import store_roots
from store_format.store import MessageStore

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
            refuse_service_key(key[0])
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
    return CheckRun(store, service, now, service.plan(store, read_ledger(store.path), now))


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
    plan: CheckPlan

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
