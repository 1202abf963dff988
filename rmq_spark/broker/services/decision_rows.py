"""The write options `transaction=commit` and `rollback`: each row names a half message, which is decided.

Tasks collect the names, which are small. The driver looks the half messages up, and writes the decisions.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import pyarrow as pa

from rmq_spark.broker.services.decisions import HalfName, TransactionDecision
from rmq_spark.broker.services.service import Now, PartsFailedError
from rmq_spark.broker.services.transaction import DecisionPlan, plan_decisions
from rmq_spark.produce.columns import column_places
from rmq_spark.write.stage_and_commit import abort_write, commit_options
from rmq_spark.write.target import WriteTarget
from store_format.arrays.sql_types import type_name
from store_format.bookkeeping.ledger import Ledger
from store_format.errors import IllegalMessageError, OptionError, StoreInUseError, StoreNotFoundError
from store_format.names import PGROUP
from store_format.store import MessageStore

_log = logging.getLogger("rmq_spark")

_COLUMNS = {  # name -> Spark's types, Arrow's type
    "brokerName": (("string", "void"), pa.string()),
    "msgId": (("string", "void"), pa.string()),
    "halfQueueOffset": (("tinyint", "smallint", "int", "bigint", "void"), pa.int64()),
}
_NAMES = pa.schema(
    [
        *((name, kind) for name, (_, kind) in _COLUMNS.items()),
        ("row", pa.int64()),
        ("partition", pa.int64()),
    ]
)


def check_name_columns(columns: Sequence[tuple[str, str]], target: WriteTarget) -> None:
    """Checks the columns of a DataFrame, pairs of a name and a type as Spark writes it. Others are ignored.

    Raises OptionError for a missing column and a wrong type, StoreNotFoundError if there is no store.
    """
    what = f"transaction={target.options.transaction}"
    for store in target.stores:
        if store.is_new:
            raise StoreNotFoundError(f"{store.root}: expected the store of the half messages, found none")
    found = column_places([name for name, _ in columns], _COLUMNS, what)
    for name, (types, _) in _COLUMNS.items():
        if name in found and not columns[found[name]][1].startswith(types):
            raise OptionError(f"{what}: column {name}: expected {types[-2]}, found {columns[found[name]][1]}")
    if not found.keys() & {"msgId", "halfQueueOffset"}:
        raise OptionError(f"{what}: expected the column msgId or halfQueueOffset, found neither")


# ---- in a task ---------------------------------------------------------------------------------------------


def collect_names(
    target: WriteTarget, batches: Iterable[pa.RecordBatch], *, partition: int | None = None
) -> pa.Table:
    """The names of the rows' half messages. Raises IllegalMessageError for a row without one."""
    what = f"transaction={target.options.transaction}"
    parts, first = [], 0
    for batch in batches:
        found = column_places(batch.schema.names, _COLUMNS, what)
        columns = [_values_of_column(batch, found.get(name), kind) for name, (_, kind) in _COLUMNS.items()]
        rows = pa.array(range(first, first + len(batch)), pa.int64())
        partitions = pa.array([partition] * len(batch), pa.int64())
        names = pa.RecordBatch.from_arrays([*columns, rows, partitions], schema=_NAMES)
        for row in names.to_pylist():
            if row["msgId"] is None and row["halfQueueOffset"] is None:
                raise IllegalMessageError(
                    f"{what}: {_label(row)}: expected the msgId of a half message, found null"
                )
        parts.append(names)
        first += len(batch)
    return pa.Table.from_batches(parts, _NAMES)


def _values_of_column(batch: pa.RecordBatch, place: int | None, kind: pa.DataType) -> pa.Array:
    if place is None or type_name(batch.column(place).type) == "void":
        return pa.nulls(len(batch), kind)
    return batch.column(place).cast(kind)


def _label(row: dict[str, object]) -> str:
    """The row as errors name it."""
    place = f"row {row['row']}" + ("" if row["partition"] is None else f" of partition {row['partition']}")
    if row["msgId"] is not None:
        return f"{place} (msgId {row['msgId']!r})"
    return place if row["halfQueueOffset"] is None else f"{place} (halfQueueOffset {row['halfQueueOffset']})"


# ---- on the driver -----------------------------------------------------------------------------------------


def commit_decisions(
    target: WriteTarget,
    names: Sequence[pa.Table],
    key: tuple[str, int] | None,
    *,
    keeps_key: bool = False,
) -> int:
    """Decides the half messages of these names, once for each key; returns how many were pending.

    All are looked up first: a row without a pending half message, or with one that was decided the other way,
    is an error, and nothing is written. The stores of a cluster are then written one after the other; a
    repetition with the same key writes what is left.
    """
    kind = target.options.transaction
    assert kind is not None
    wanted = [(name, kind) for name in _half_names(target, names)]
    done_in = [key is not None and Ledger.read(store.opened).has(key) for store in target.stores]
    left = [
        MessageStore.open(store.root, broker_name=store.settings.broker_name)
        for store, done in zip(target.stores, done_in, strict=True)
        if not done
    ]
    written = 0
    if key is not None and any(done_in):
        _log.warning("batch %d of %s is committed already in %d stores", key[1], key[0], sum(done_in))
    if left:
        confs = [store.conf for store in target.stores]
        conf = next((each for each in confs if each.transaction_rocksdb_enable), confs[0])
        now = Now(time.time_ns() // 1_000_000, conf)
        plan = plan_decisions(left, wanted, now, must_find=not any(done_in))
        _refuse_plan(target, plan)
        try:
            written = plan.apply(key=key, options=replace(commit_options(target, []), keeps_key=keeps_key))
        except PartsFailedError as error:
            _log.warning("transaction=%s: %d half messages were decided before an error", kind, error.done)
            raise
        _log.info("transaction=%s: %d half messages decided, of %d named", kind, written, len(wanted))
    abort_write(target)  # removes the empty staging directories
    return written


def _half_names(target: WriteTarget, tables: Sequence[pa.Table]) -> Iterator[HalfName]:
    known = {store.settings.broker_name for store in target.stores}
    seen: set[tuple[object, object, object]] = set()
    for row in pa.concat_tables([_NAMES.empty_table(), *tables]).to_pylist():
        msg_id, broker = row["msgId"], row["brokerName"]
        offset = row["halfQueueOffset"] if msg_id is None else None
        if broker is not None and broker not in known:
            have = ", ".join(sorted(map(repr, known)))
            raise IllegalMessageError(f"{_label(row)}: expected a half message of {have}, found {broker!r}")
        if (msg_id, offset, broker) not in seen:
            seen.add((msg_id, offset, broker))
            yield HalfName(msg_id, offset, broker, label=_label(row))


def _refuse_plan(target: WriteTarget, plan: DecisionPlan) -> None:
    """Raises for a store that takes no messages now, and for a half message of another producer group."""
    closed = {store.root: store.closed for store in target.stores}
    group = target.options.producer_group
    for store, decisions in plan.parts:
        if closed[store.path] is not None:
            raise StoreInUseError(f"{store.path} takes no messages now: {closed[store.path]}")
        for each in decisions:
            _refuse_group(each, group)


def _refuse_group(decision: TransactionDecision, group: str | None) -> None:
    found = decision.row[PGROUP]
    if group is not None and found != group:
        raise IllegalMessageError(
            f"{decision.name}: expected a half message of producerGroup {group}, found one of {found}"
        )
