"""The oracle against stores a real broker wrote: every row and field the broker's own classes gave, and every
index byte.

When a golden test of the project's code fails and this one passes, the project's code is wrong.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support import goldens, oracle
from tests.support.oracle import Message

pytestmark = pytest.mark.golden


@dataclass(frozen=True)
class Store:
    name: str
    root: Path
    walk: oracle.Walk
    by_offset: dict[int, Message]


@pytest.fixture(scope="module", params=["basic-5.5.0", "edge-5.5.0", "propcrc-5.5.0"])
def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Store:
    name = request.param
    root = goldens.unpack(name, tmp_path_factory.mktemp("oracle"))
    files = {int(path.name): path.read_bytes() for path in (root / "commitlog").iterdir()}
    walk = oracle.walk_files(files, len(files[min(files)]))
    return Store(name, root, walk, {message.physical_offset: message for message in walk.messages})


def row(message: Message) -> dict[str, Any]:
    """The message as a line of expected.jsonl.gz, but for what only its queue knows."""
    raw = {"rawBody": base64.b64encode(message.body).decode()} if message.decompressed != message.body else {}
    return raw | {
        "topic": message.topic,
        "queueId": message.queue_id,
        "queueOffset": message.queue_offset,
        "physicalOffset": message.physical_offset,
        "storeSize": message.total_size,
        "sysFlag": message.sys_flag,
        "flag": message.flag,
        "bornTimestamp": message.born_timestamp,
        "bornHost": oracle.java_host(message.born_host),
        "storeTimestamp": message.store_timestamp,
        "storeHost": oracle.java_host(message.store_host),
        "reconsumeTimes": message.reconsume_times,
        "preparedTransactionOffset": message.prepared_transaction_offset,
        "bodyCRC": message.body_crc,
        "body": base64.b64encode(message.decompressed).decode(),
        "properties": message.properties,
        "msgId": message.offset_msg_id,
        "tagsCode": oracle.tags_code(message),
    }


def test_walk(store: Store) -> None:
    expected = goldens.expected(store.name)
    assert len(store.walk.messages) == expected["allCommitLogMessages"]
    assert store.walk.stop == expected["commitLogWalkEnd"]


def test_every_row_and_field(store: Store) -> None:
    rows = goldens.expected_rows(store.name)
    assert rows
    for told in rows:
        made = row(store.by_offset[told["physicalOffset"]])
        if "storedTopic" in told:  # a light message queue: the place in it is the queue's own
            queue = {"topic": told["topic"], "queueId": told["queueId"], "queueOffset": told["queueOffset"]}
            stored = {
                "storedTopic": made["topic"],
                "storedQueueId": made["queueId"],
                "storedQueueOffset": made["queueOffset"],
            }
            made |= stored | queue
        assert made == told


def test_light_queue_offsets_stand_in_the_message() -> None:
    told = [row for row in goldens.expected_rows("edge-5.5.0") if "storedTopic" in row]
    assert len(told) == 32
    for light in told:
        names = light["properties"]["INNER_MULTI_DISPATCH"].split(",")
        offsets = light["properties"]["INNER_MULTI_QUEUE_OFFSET"].split(",")
        assert dict(zip(names, offsets, strict=True))[light["topic"]] == str(light["queueOffset"])


def test_consume_queue_bytes(store: Store) -> None:
    rows_of: dict[tuple[str, int], dict[int, Message]] = {}
    for told in goldens.expected_rows(store.name):
        queue_rows = rows_of.setdefault((told["topic"], told["queueId"]), {})
        queue_rows[told["queueOffset"]] = store.by_offset[told["physicalOffset"]]
    for queue in goldens.expected(store.name)["queues"]:
        directory = store.root / "consumequeue" / queue["topic"] / str(queue["queueId"])
        data = b"".join(path.read_bytes() for path in sorted(directory.iterdir()))
        rows = rows_of[queue["topic"], queue["queueId"]]
        in_order = [rows[offset] for offset in range(queue["maxOffset"])]
        units = [oracle.cq_unit(m.physical_offset, m.total_size, oracle.tags_code(m)) for m in in_order]
        assert data == b"".join(units).ljust(len(data), b"\0")


def test_index_bytes(store: Store) -> None:
    config = goldens.config(store.name)
    made = oracle.build_index_files(
        store.walk.messages, int(config["maxHashSlotNum"]), int(config["maxIndexNum"])
    )
    files = [path.read_bytes() for path in sorted((store.root / "index").iterdir())]
    assert made == files


def test_crc_property_of_every_unit(store: Store) -> None:
    appended = [oracle.verify_crc_property(oracle.encode_message(message)) for message in store.walk.messages]
    assert set(appended) == {store.name == "propcrc-5.5.0"}


def test_inner_batches(tmp_path: Path) -> None:
    root = goldens.unpack("batchcq-5.5.0", tmp_path)
    files = {int(path.name): path.read_bytes() for path in (root / "commitlog").iterdir()}
    walk = oracle.walk_files(files, len(files[min(files)]))
    units = {message.physical_offset: message for message in walk.messages}
    rows = [row for row in goldens.expected_rows("batchcq-5.5.0") if "outerQueueOffset" in row]
    assert len(rows) == 364
    for told in rows:
        unit = units[told["physicalOffset"]]
        messages = oracle.split_inner_batch(unit.decompressed)
        inner = messages[told["queueOffset"] - told["outerQueueOffset"]]
        assert (unit.queue_offset, unit.sys_flag, unit.properties) == (
            told["outerQueueOffset"],
            told["outerSysFlag"],
            told["outerProperties"],
        )
        assert int(unit.properties["INNER_NUM"]) == len(messages) == told["batchNum"]
        body = base64.b64encode(inner.body).decode()
        assert (inner.flag, body, inner.properties) == (told["flag"], told["body"], told["properties"])
