"""The messages of pop's check points and acks: byte for byte those of golden pop-5.5.0."""

from __future__ import annotations

import pathlib

import numpy as np
import pyarrow as pa
import pytest

from rmq_spark.broker.pop.hand_over import PopRecord, pop_record_messages
from rmq_spark.produce.delivered import timer_copies
from store_format.message.encode import StoredMessages, encode
from store_format.message.properties import PropertyTable
from store_format.names import REVIVE_PREFIX, TIMER_DELIVER_MS, TIMER_ENQUEUE_MS, TIMER_TOPIC
from store_format.pop.broker_in_flight import BrokerCheckPoint, parse_record
from store_format.read.store import Store
from store_format.read.stored_messages import read_stored_slice
from tests.support import goldens

_REVIVE = f"{REVIVE_PREFIX}GoldenCluster"


def _stored(root: pathlib.Path, topic: str) -> list[StoredMessages]:
    store = Store.open(str(root))
    return [read_stored_slice(each.store.log, each.piece())[0] for each in store.queues(topic.__eq__)]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    return goldens.unpack("pop-5.5.0", tmp_path_factory.mktemp("pop"))


def test_records_in_the_timer_topic_have_the_bytes_of_the_broker(root: pathlib.Path) -> None:
    (stored,) = _stored(root, TIMER_TOPIC)
    columns = stored.messages
    tags, delivers, queue_ids = stored.properties("TAGS", TIMER_DELIVER_MS, "REAL_QID")
    assert len(stored) == 81
    for i, body in enumerate(columns.body.to_pylist()):
        record = parse_record(tags[i].as_py(), body, "")
        queue_id = int(queue_ids[i].as_py())
        made = PopRecord(record, queue_id, int(delivers[i].as_py()))
        if isinstance(record, BrokerCheckPoint):
            assert PopRecord.of(record, queue_id) == made
        born = int(np.asarray(columns.born_timestamp)[i])
        ours = pop_record_messages(
            [made], _REVIVE, now_ms=born, precision_ms=1000, broker_host=(bytes([127, 0, 0, 1]), 30911)
        )
        placed = StoredMessages(columns).take([i]).messages
        whole = encode(
            ours.__class__(**{
                **{name: getattr(ours, name) for name in ours.__dataclass_fields__},
                "queue_offset": placed.queue_offset, "physical_offset": placed.physical_offset,
                "store_timestamp": placed.store_timestamp,
            })
        )  # fmt: skip
        assert bytes(whole.data) == bytes(encode(placed).data)


def test_records_that_the_timer_delivers_have_the_bytes_of_the_broker(root: pathlib.Path) -> None:
    """The timer's copy of each record that we write is the broker's message in the revive topic."""
    seen = 0
    for stored in _stored(root, _REVIVE):
        tags, delivers, enqueued, dequeued, queue_ids = stored.properties(
            "TAGS", TIMER_DELIVER_MS, TIMER_ENQUEUE_MS, "TIMER_DEQUEUE_MS", "REAL_QID"
        )
        for i, body in enumerate(stored.messages.body.to_pylist()):
            record = parse_record(tags[i].as_py(), body, "")
            born = int(np.asarray(stored.messages.born_timestamp)[i])
            made = PopRecord(record, int(queue_ids[i].as_py()), int(delivers[i].as_py()))
            ours = pop_record_messages(
                [made], _REVIVE, now_ms=born, precision_ms=1000, broker_host=(bytes([127, 0, 0, 1]), 30911)
            )
            raw = PropertyTable(ours.properties.cast(pa.binary()))
            assert raw.values("TIMER_OUT_MS")[0].as_py() is not None
            source = stored.take([i])
            columns = source.copies(
                topic=ours.topic, queue_id=np.zeros(1, np.int64), properties=ours.properties
            )
            copies, kept = timer_copies(
                StoredMessages(columns), np.array([int(enqueued[i].as_py())]), np.zeros(1, bool),
                int(dequeued[i].as_py()),
            )  # fmt: skip
            assert kept.tolist() == [0]
            assert pa.array(copies.topic).to_pylist() == [_REVIVE]
            assert np.asarray(copies.queue_id).tolist() == np.asarray(source.messages.queue_id).tolist()
            assert copies.properties.to_pylist() == source.messages.properties.to_pylist()
            seen += 1
    assert seen == 54


def test_a_record_whose_time_has_passed_goes_to_the_revive_topic() -> None:
    point = BrokerCheckPoint("T", "g", 2, 100, 1, 10_000, 5_000, "a", diffs=(0,))
    for now_ms, topic, names in (
        (13_999, TIMER_TOPIC, {"TIMER_OUT_MS": "13000", "REAL_TOPIC": _REVIVE, "REAL_QID": "5"}),
        (14_000, _REVIVE, {}),
    ):
        made = pop_record_messages(
            [PopRecord.of(point, 5)], _REVIVE, now_ms=now_ms, precision_ms=1000, broker_host=(bytes(4), 0)
        )
        assert pa.array(made.topic).to_pylist() == [topic]
        assert np.asarray(made.queue_id).tolist() == [0 if names else 5]
        assert dict(PropertyTable(made.properties.cast(pa.binary())).map_array()[0].as_py()) == {
            "TAGS": "ck", "UNIQ_KEY": "T@2@100@g@10000@a@ck", TIMER_DELIVER_MS: "14000", **names
        }  # fmt: skip
