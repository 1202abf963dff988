"""One store under two brokers: 4.9.7, then 5.5.0, then 4.9.7 again, with rmqlog's writes between them.

docs/howto-upgrade.md says what is seen here.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

import pyarrow as pa

from rmq_spark.store import LogStore
from store_format.store import MessageStore
from tests.interop.harness import Client, RocketMQ
from tests.interop.programs import Line
from tests.interop.rows import as_client, data_files, ours
from tests.support import goldens
from tests.support.fixtures import Golden
from tests.support.referee.answers import rmqlog

TOPIC, GROUP = "Orders", "CG_orders"
_SENT, _LATE, _APPENDED = 40, 3, 8
_FILES = {
    "mappedFileSizeCommitLog": str(1 << 16),
    "mappedFileSizeConsumeQueue": "2000",
    "maxHashSlotNum": "100",
    "maxIndexNum": "400",
}
# The first broker keeps the delayed messages; with the shorter level they are due at once.
_WAITS, _IS_DUE = (_FILES | {"messageDelayLevel": f"{time} 1h"} for time in ("1h", "1s"))
# What a 5.5.0 broker without timer and pop adds to a store of 4.9.7, and 4.9.7 leaves as it is.
_ADDED = {
    "compaction/position-checkpoint",
    "config/consumerOrderInfo.json",
    "config/transactionMetrics",
    "rocksdbstore/CURRENT",
}


def test_a_store_of_4_9_is_upgraded_and_goes_back(
    rocketmq: Callable[[str], RocketMQ], tmp_path: Path
) -> None:
    store, old, new = tmp_path / "store", rocketmq("4.9.7"), rocketmq("5.5.0")
    with old.broker(store, _WAITS) as broker:
        client = broker.client()
        _send_and_consume(client, "old")
        client.send(TOPIC, _LATE, seed="late", delay=1)
    before = _verified(store)
    assert MessageStore.open(str(store)).broker_name == store.name
    _append(store, "between")

    with new.broker(store, _IS_DUE) as broker:
        client = broker.client()
        _serves(client, before, ["old-7", "between-7"])
        _send_and_consume(client, "new")
        _until_delivered(client, 2 * _SENT + _LATE + _APPENDED)
        assert "\nverdict: in use, and sound so far: " in rmqlog(store, "verify", store).out
    upgraded = _verified(store)
    assert MessageStore.open(str(store)).broker_name == "broker-a"
    assert _places(before) < _places(upgraded)
    assert {name for name in _ADDED if not (store / name).exists()} == set()
    _append(store, "back")

    with old.broker(store, _IS_DUE) as broker:
        client = broker.client()
        _serves(client, upgraded, ["old-7", "between-7", "new-7", "back-7"])
        assert "RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC" in client.topics()
        _send_and_consume(client, "again")
    gone_back = _verified(store)
    assert _places(upgraded) < _places(gone_back)
    assert {name for name in _ADDED if not (store / name).exists()} == set()

    with new.broker(store, _IS_DUE) as broker:
        client = broker.client()
        acknowledged = client.send(TOPIC, _SENT, seed="killed")
        broker.kill()
    with old.broker(store, _IS_DUE) as broker:
        client = broker.client()
        _serves(client, gone_back, ["old-7", "new-7", "again-7", "killed-7"])
        served = {line["msgId"] for line in client.messages([TOPIC])}
        assert {line["msgId"] for line in acknowledged} <= served
    assert _places(gone_back) < _places(_verified(store))


def test_4_9_cuts_the_log_at_a_topic_of_more_than_127_characters(
    rocketmq: Callable[[str], RocketMQ], tmp_path: Path
) -> None:
    """Such a message has the magic code of version 2, which 4.9 takes for the end of the log."""
    name = "edge-5.5.0"
    store = goldens.unpack(name, tmp_path / "store")
    first = min(row["physicalOffset"] for row in goldens.expected_rows(name) if len(_stored_topic(row)) > 127)
    assert _long_topics(store)
    opened = rocketmq("4.9.7").open_store(store, goldens.config(name), start=True)
    assert opened.commit_log == (0, first)
    assert {line["physicalOffset"] for line in opened.messages if line["physicalOffset"] >= first} == set()
    assert first < goldens.expected(name)["commitLog"]["maxOffset"]


def test_4_9_leaves_inner_batches_and_serves_the_other_topics(
    rocketmq: Callable[[str], RocketMQ], tmp_path: Path
) -> None:
    name = "batchcq-5.5.0"
    store = goldens.unpack(name, tmp_path / "store")
    before, rows = data_files(store), ours(store)
    assert _long_topics(store) == set()
    opened = rocketmq("4.9.7").open_store(store, goldens.config(name), start=True)
    others = [row for row in rows if row["topic"] != "Inner"]
    assert _places(opened.messages) == _places(others) != _places(rows)
    assert data_files(store) == before
    assert ours(store) == rows


def test_4_9_delivers_delay_levels_of_5_5_and_no_timer_messages(
    rocketmq: Callable[[str], RocketMQ], copy_of: Golden
) -> None:
    name = "delay-tx-5.5.0"
    store = copy_of(name)
    before = _due(store)
    assert set(before) == {"level", "timer"}
    with rocketmq("4.9.7").broker(store, goldens.config(name)):
        end = time.monotonic() + 60
        while "level" in _due(store):
            assert time.monotonic() < end
            time.sleep(0.5)
    assert _due(store) == {"timer": before["timer"]}


def _due(store: Path) -> dict[str, int]:
    """Delayed messages whose time has come and that were not delivered, by kind."""
    rows = LogStore.open(str(store)).view("delayed").to_pylist()
    return Counter(row["kind"] for row in rows if row["state"] == "due")


def _long_topics(store: Path) -> set[str]:
    """What docs/howto-upgrade.md asks before the way back."""
    batches = MessageStore.open(str(store)).scan(columns=["storedTopic"])
    topics = {topic for batch in batches for topic in batch["storedTopic"].unique().to_pylist()}
    return {topic for topic in topics if len(topic) > 127}


def _stored_topic(row: Line) -> str:
    return str(row.get("storedTopic", row["topic"]))


def _send_and_consume(client: Client, seed: str) -> None:
    """Sends, and lets the group read on from where it is: its offsets are those of the last broker."""
    behind = client.group_offsets(GROUP, TOPIC) if seed != "old" else {}
    sent = client.send(TOPIC, _SENT, seed=seed, shards=3)
    seen = client.push_consume(GROUP, TOPIC, [(line["queueId"], line["queueOffset"]) for line in sent])
    assert {line["properties"]["UNIQ_KEY"] for line in sent} <= {
        line["properties"]["UNIQ_KEY"] for line in seen
    }
    assert [line for line in seen if line["queueOffset"] < behind.get((TOPIC, line["queueId"]), 0)] == []


def _serves(client: Client, rows: list[Line], keys: Iterable[str]) -> None:
    """The broker serves these messages of TOPIC at their places, and finds messages by key."""
    served = {(line["queueId"], line["queueOffset"]): line for line in as_client(client.messages([TOPIC]))}
    expected = as_client(line for line in rows if line["topic"] == TOPIC)
    assert [served.get((line["queueId"], line["queueOffset"])) for line in expected] == expected
    assert [len(client.by_key(TOPIC, f"key-{key}")) for key in keys] == [1 for _ in keys]


def _until_delivered(client: Client, count: int) -> None:
    """The new broker delivers the delayed messages that the old one has left."""
    end = time.monotonic() + 60
    while sum(stop for _, stop in client.ends([TOPIC]).values()) < count:
        assert time.monotonic() < end
        time.sleep(0.2)


def _append(store: Path, seed: str) -> None:
    rows = [
        {"body": f"{seed} {i}", "keys": f"key-{seed}-{i}", "tags": "TagA", "queueId": i % 4}
        for i in range(_APPENDED)
    ]
    result = LogStore.open(str(store)).append(pa.Table.from_pylist(rows), options={"topic": TOPIC})
    assert result.committed


def _verified(store: Path) -> list[Line]:
    """All messages of a stopped store, in which `rmqlog verify` finds nothing."""
    answer = rmqlog(store, "verify", store)
    rows = ours(store)
    assert (answer.code, answer.err, answer.warnings) == (0, "", ())
    assert f"verdict: sound: {len(rows):,} messages readable, none lost; nothing has to be done" in answer.out
    return rows


def _places(rows: list[Line]) -> set[tuple[str, int, int, int]]:
    return {(row["topic"], row["queueId"], row["queueOffset"], row["physicalOffset"]) for row in rows}
