"""Half, committed, op and checked messages against what the golden broker stored: the same bytes."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from rmq_spark.produce import half
from store_format.errors import IllegalMessageError
from store_format.message.encode import MessageColumns, StoredMessages, encode
from store_format.metadata.values import TopicConfig
from store_format.read.store import Store
from store_format.read.stored_messages import read_stored_slice
from tests.support.fixtures import Golden
from tests.support.produced_batches import batch_of, produce, routes_of

NAME = "delay-tx-5.5.0"


def units(columns: MessageColumns) -> list[bytes]:
    return list(encode(columns))


def queue(store: Store, topic: str, queue_id: int) -> StoredMessages:
    messages, _, damaged = read_stored_slice(store.log, store.queue(topic, queue_id).piece())
    assert not damaged
    return messages


@pytest.fixture
def store(golden: Golden) -> Store:
    return Store.open(str(golden(NAME)))


def placed(messages: StoredMessages, columns: MessageColumns) -> list[bytes]:
    """The units of `columns` at the places and times of the stored messages that they are compared with."""
    there = messages.messages
    return units(
        dataclasses.replace(
            columns,
            queue_offset=there.queue_offset,
            physical_offset=there.physical_offset,
            store_timestamp=there.store_timestamp,
        )
    )


def test_committed_messages_are_the_brokers(store: Store) -> None:
    halves = queue(store, "RMQ_SYS_TRANS_HALF_TOPIC", 0)
    row = {offset: place for place, offset in enumerate(halves.physical_offsets.tolist())}
    compared = 0
    for queue_id in range(4):
        stored = queue(store, "Tx", queue_id)
        mine = stored.take(np.asarray(stored.messages.prepared_transaction_offset) > 0)
        origins = [row[each] for each in np.asarray(mine.messages.prepared_transaction_offset).tolist()]
        made = placed(mine, half.committed(halves.take(np.array(origins))))
        assert made == units(mine.messages)
        compared += len(made)
    assert compared == 32


def test_checked_halves_are_the_brokers(store: Store) -> None:
    """Each copy of a half message but the first is its last copy, checked once more."""
    halves = queue(store, "RMQ_SYS_TRANS_HALF_TOPIC", 0)
    (keys,) = halves.properties("UNIQ_KEY")
    last: dict[str, int] = {}
    before, after = [], []
    for place, key in enumerate(keys.to_pylist()):
        if key in last:
            before.append(last[key])
            after.append(place)
        last[key] = place
    copies = halves.take(np.array(after))
    made = half.checked(halves.take(np.array(before)), np.zeros(len(before), bool))
    assert placed(copies, made) == units(copies.messages)
    assert len(after) == 197
    assert half.check_times(copies) == [
        times + 1 for times in half.check_times(halves.take(np.array(before)))
    ]


def test_op_messages_are_the_brokers(store: Store) -> None:
    ops = queue(store, "RMQ_SYS_TRANS_OP_HALF_TOPIC", 0)
    bodies = ops.messages.body.to_pylist()
    offsets = [[int(each) for each in body.split(b",") if each] for body in bodies]
    assert [half.op_bodies(each) for each in offsets] == [[body] for body in bodies]
    made = half.op_messages(bodies, (bytes([127, 0, 0, 1]), 30911), 0)
    made = dataclasses.replace(made, born_timestamp=ops.messages.born_timestamp)  # the broker's clock
    assert placed(ops, made) == units(ops.messages)


def test_op_bodies_end_at_4096_bytes() -> None:
    bodies = half.op_bodies(range(100_000, 102_000))
    assert b"".join(bodies) == b"".join(b"%d," % offset for offset in range(100_000, 102_000))
    assert [len(body) for body in bodies] == [4102, 4102, 4102, 1694]
    assert half.op_bodies([]) == []


def test_rows_become_the_half_messages_of_the_broker(store: Store) -> None:
    """A half message that a producer of 5.5 sent, made again of a row. MSG_REGION, TRACE_ON and CLUSTER are
    a broker's marks of its own, which rows bring as properties."""
    (batch,) = store.queue("RMQ_SYS_TRANS_HALF_TOPIC", 0).read(
        columns=("body", "flag", "bornTimestampMs", "bornHost", "properties")
    )
    rows = [row for row in batch.to_pylist() if "TRANSACTION_CHECK_TIMES" not in dict(row["properties"])]
    own = [dict(row["properties"]) for row in rows]
    produced = produce(
        batch_of(
            topic=[each["REAL_TOPIC"] for each in own],
            queueId=[int(each["REAL_QID"]) for each in own],
            body=[row["body"] for row in rows],
            flag=[row["flag"] for row in rows],
            bornTimestampMs=[row["bornTimestampMs"] for row in rows],
            bornHost=[row["bornHost"] for row in rows],
            properties=[_of_the_user(each) for each in own],
        ),
        routes_of(TopicConfig("Tx", read_queue_nums=4, write_queue_nums=4)),
        transaction_group="PG_tx",
    )
    halves = queue(store, "RMQ_SYS_TRANS_HALF_TOPIC", 0)
    first = halves.take(np.array(half.check_times(halves)) == 0)
    made = placed(first, produced.columns((bytes([127, 0, 0, 1]), 30911)))
    compressed = np.asarray(first.messages.sys_flag) != 0
    assert [a for a, z in zip(made, compressed, strict=True) if not z] == units(
        first.take(~compressed).messages
    )
    assert len(made) == 80


def _of_the_user(properties: dict[str, str]) -> dict[str, str]:
    names = ("TRAN_MSG", "PGROUP", "__transactionId__", "REAL_TOPIC", "REAL_QID")
    return {name: value for name, value in properties.items() if name not in names}


@pytest.mark.parametrize(("column", "value"), [("delayTimeLevel", 3), ("deliverTimestamp", 1)])
def test_a_half_message_is_not_delayed(column: str, value: int) -> None:
    rows = batch_of(topic=["T", "T"], body=[b"a", b"b"], **{column: [None, value]})
    with pytest.raises(IllegalMessageError, match=f"row 1 .*{column}.*transaction=half"):
        produce(rows, transaction_group="PG")
