"""Stores with half messages, made by the producer's rules, and what consumers and the checker see in them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rmq_spark.produce.half import op_bodies, op_messages
from store_format.commit.options import CommitOptions
from store_format.commit.session import write_session
from store_format.message.encode import edited_properties
from store_format.metadata.group_offsets import read_group_offsets
from store_format.metadata.values import TopicConfig
from store_format.opened.store import Opened
from store_format.store import MessageStore
from tests.support.produced_batches import STORE_HOST, batch_of, produce, routes_of
from tests.support.stored_rows import rows_in

BORN_MS = 1_700_000_000_000
_ORDERS = routes_of(TopicConfig("Orders", read_queue_nums=2, write_queue_nums=2))


def half_store(root: Path, ids: Sequence[str], **columns: Any) -> Path:
    """A new store with these half messages, for queues 0 and 1 of Orders in turn."""
    MessageStore.create(
        str(root), mapped_file_size_commit_log=1 << 16, max_hash_slot_num=50, max_index_num=400
    )
    add_halves(root, ids, **columns)
    return root


def add_halves(
    root: Path,
    ids: Sequence[str],
    *,
    born_ms: int = BORN_MS,
    stored: dict[str, str] | None = None,
    properties: dict[str, str] | None = None,
    **columns: Any,
) -> None:
    rows = batch_of(
        topic=["Orders"] * len(ids),
        queueId=[place % 2 for place in range(len(ids))],
        body=[f"body of {name}".encode() for name in ids],
        keys=[f"key-{name}" for name in ids],
        tags=["paid"] * len(ids),
        bornTimestampMs=[born_ms] * len(ids),
        properties=[{"UNIQ_KEY": name, **(properties or {})} for name in ids],
        **columns,
    )
    columns_ = produce(rows, _ORDERS, transaction_group="PG_orders").columns(STORE_HOST)
    if stored:  # what a row cannot have
        columns_ = replace(columns_, properties=edited_properties(columns_.properties, stored))
    with write_session(str(root), CommitOptions(clock=lambda: born_ms)) as session:
        session.append(columns_, new_topics={"Orders": 2, "RMQ_SYS_TRANS_HALF_TOPIC": 1})


def op_message(root: Path, offsets: Sequence[int], born_ms: int = BORN_MS) -> None:
    """Stores an op message that lists these offsets of the half topic, as a broker does for a rollback."""
    with write_session(str(root), CommitOptions(clock=lambda: born_ms)) as session:
        columns = op_messages(op_bodies(offsets), (bytes([127, 0, 0, 1]), 10911), born_ms)
        session.append(columns, new_topics={"RMQ_SYS_TRANS_OP_HALF_TOPIC": 1})


def visible(root: Path, topic: str = "Orders") -> list[str]:
    """The ids of the messages that consumers of the topic get, sorted."""
    return sorted(row["msgId"] for row in rows_in(root, "msgId", topic=topic))


def states(root: Path) -> dict[str, str]:
    """The state of each transaction by id, from the view `transactions`."""
    rows = MessageStore.open(str(root)).view("transactions", now_ms=BORN_MS).to_pylist()
    return {row["msgId"]: row["state"] for row in rows}


def checker_offsets(root: Path) -> tuple[int | None, int | None]:
    """(half offset, op offset) of the broker's checker; None without an entry."""
    known = read_group_offsets(Opened(str(root)), "CID_RMQ_SYS_TRANS")
    return known.get(("RMQ_SYS_TRANS_HALF_TOPIC", 0)), known.get(("RMQ_SYS_TRANS_OP_HALF_TOPIC", 0))


def property_of(
    root: Path, name: str, topic: str = "RMQ_SYS_TRANS_HALF_TOPIC"
) -> list[tuple[str, str | None]]:
    """(id, the property) of the messages in queue 0 of a topic, in their order."""
    queue = MessageStore.open(str(root)).queue(topic, 0)
    return [
        (row["msgId"], dict(row["properties"]).get(name))
        for batch in queue.read(columns=("msgId", "properties"))
        for row in batch.to_pylist()
    ]
