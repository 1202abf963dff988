"""What brokers stored, read with the default columns and written again: the same body, tags, keys, flag, id,
birth and properties.

User topics of every golden store; of the edge store, what no client could have sent is refused by name.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from rmq_spark.produce.messages import Producer, ProducerSettings
from rmq_spark.produce.queues import QueueSelector, Routes, StoreTopics
from rmq_spark.produce.unique_ids import UniqueIds
from store_format.errors import IllegalMessageError, UnsupportedFormatError
from store_format.java.text import java_hash
from store_format.message.columns import COLUMNS
from store_format.message.encode import encode
from store_format.metadata.read import read_topics
from store_format.names import RESERVED_PROPERTIES, is_system_topic
from store_format.store import MessageStore
from tests.support import goldens, oracle, oracle_units
from tests.support.fixtures import Golden
from tests.support.oracle import Message
from tests.support.produced_batches import NOW_MS, STORE_HOST

EDGE = "edge-5.5.0"


def stores(golden: Golden, name: str) -> Iterator[MessageStore]:
    for broker, (root, _) in goldens.brokers(name, golden(name)).items():
        yield MessageStore.open(str(root), broker_name=broker or None)


def batches(store: MessageStore) -> Iterator[tuple[str, pa.RecordBatch]]:
    for queue in store.queues():
        if not is_system_topic(queue.topic):
            for batch in queue.read(columns=tuple(COLUMNS)):
                yield queue.topic, batch


def rewritten(store: MessageStore, batch: pa.RecordBatch, routes: Routes | None = None) -> list[Message]:
    if routes is None:
        routes = Routes.of(
            [StoreTopics(store.broker_name, dict(read_topics(store.opened) or {}))],
            default_topic_queue_nums=8,
        )
    ids = UniqueIds(bytes([127, 0, 0, 1]), 1, instance=bytes(4))
    making = Producer(ProducerSettings((bytes([127, 0, 0, 1]), 0)), QueueSelector(routes), ids)
    messages = making.produce(batch, NOW_MS)
    assert set(making.left_out) <= RESERVED_PROPERTIES
    decoded = [oracle.decode_message(unit, 0, 0) for unit in encode(messages.columns(STORE_HOST))]
    assert messages.tags_code.tolist() == [
        java_hash(message.properties.get("TAGS", "")) for message in decoded
    ]
    return decoded


def check(batch: pa.RecordBatch, messages: list[Message]) -> None:
    for row, message in zip(batch.to_pylist(), messages, strict=True):
        own = {name: value for name, value in row["properties"] if name not in RESERVED_PROPERTIES}
        assert {"UNIQ_KEY": message.properties["UNIQ_KEY"], "WAIT": "true"} | own == message.properties
        assert (message.topic, message.body, message.flag, message.queue_id) == (
            row["topic"],
            row["body"],
            row["flag"],
            row["queueId"],
        )
        assert message.born_timestamp == row["bornTimestampMs"]
        assert oracle.java_host(message.born_host) == row["bornHost"]
        assert message.properties.get("TAGS") == row["tags"]
        assert [key for key in message.properties.get("KEYS", "").split(" ") if key] == (row["keys"] or [])
        if "UNIQ_KEY" in own:
            assert message.msg_id == row["msgId"]


@pytest.mark.process
@pytest.mark.parametrize(
    "name", [name for name in goldens.NAMES if name not in (EDGE, "batchcq-5.5.0") and "dledger" not in name]
)
def test_golden_user_topics_are_written_as_they_were_read(golden: Golden, name: str) -> None:
    count = 0
    for store in stores(golden, name):
        for _, batch in batches(store):
            check(batch, rewritten(store, batch))
            count += batch.num_rows
    assert count > 0


@pytest.mark.process
def test_properties_strings_are_the_brokers_own_bytes(golden: Golden) -> None:
    """Not only the same properties, the same order too. Messages of a client's batch are stored as the client
    wrote them, and are not.
    """
    for store in stores(golden, "basic-5.5.0"):
        stored = {message.physical_offset: message for message in walk(Path(store.path))}
        same = 0
        for _, batch in batches(store):
            for offset, message in zip(
                batch["physicalOffset"].to_pylist(), rewritten(store, batch), strict=True
            ):
                before = stored[offset]
                ordered = oracle_units.java_hashmap_order(before.properties, 128)
                assert message.properties_bytes == oracle.encode_properties(
                    (name, before.properties[name]) for name in ordered
                )
                same += message.properties_bytes == before.properties_bytes
        assert same > 1000


def walk(root: Path) -> list[Message]:
    files = {int(file.name): file.read_bytes() for file in sorted((root / "commitlog").iterdir())}
    return oracle.walk_files(files, len(files[min(files)])).messages


def test_batch_queues_are_not_written(golden: Golden) -> None:
    written, refused = 0, 0
    for store in stores(golden, "batchcq-5.5.0"):
        kinds = {topic: config.queue_type for topic, config in (read_topics(store.opened) or {}).items()}
        for topic, batch in batches(store):
            if kinds[topic] == "SimpleCQ":
                check(batch, rewritten(store, batch))
                written += batch.num_rows
            else:
                with pytest.raises(UnsupportedFormatError) as caught:
                    rewritten(store, batch)
                assert (
                    str(caught.value)
                    == f"topic {topic}: expected queue.type=SimpleCQ, found BatchCQ, which is not supported: "
                    "its consume queues hold batches"
                )
                refused += batch.num_rows
    assert written > 0
    assert refused > 0


def why(error: IllegalMessageError) -> str:
    """What was wrong, without the topic and the numbers."""
    topic, _, reason = str(error).partition(": ")
    assert topic.startswith("topic ")
    return re.sub(r"\d+", "N", reason)


@pytest.mark.process
def test_the_edge_stores_rows_are_written_or_refused_by_name(golden: Golden) -> None:
    routes = Routes.of([StoreTopics("broker-a")], default_topic_queue_nums=(1 << 31) - 1)
    refusals: Counter[str] = Counter()
    written = 0
    (store,) = stores(golden, EDGE)
    for _, batch in batches(store):
        for place in range(batch.num_rows):
            row = batch.slice(place, 1)
            try:
                check(row, rewritten(store, row, routes))
                written += 1
            except IllegalMessageError as error:
                refusals[why(error)] += 1
    assert refusals == {
        "expected at most N characters, found N": 12,  # topics of %RETRY% length
        "expected a body of at least N byte, found an empty one": 1,
        # at the limit already, and a client adds UNIQ_KEY and WAIT
        "expected properties of at most N bytes, found N bytes": 1,
    }
    assert written > 50
