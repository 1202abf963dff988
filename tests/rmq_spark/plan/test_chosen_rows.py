"""Which rows a read gives: of chosen stores, topics and queues, of tags, keys and ids. The answers are the
broker's own rows.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.fixtures import Golden
from tests.support.reads import PLACE, Row, copy_of, read, told, told_places

STORE = "basic-5.5.0"
PLAIN = ("Audit", "Metrics", "Orders")


# ---- topics and queues -------------------------------------------------------------------------------------

TOPICS: dict[str, tuple[dict[str, str | bool], Callable[[Row], bool]]] = {
    "nothing: no system topic": ({}, lambda row: row["topic"] in PLAIN),
    "includeSystemTopics": ({"includeSystemTopics": True}, lambda row: True),
    "subscribe one": ({"subscribe": "Orders"}, lambda row: row["topic"] == "Orders"),
    "subscribe two": ({"subscribe": "Orders, Audit"}, lambda row: row["topic"] in ("Orders", "Audit")),
    "subscribe a system topic":
        ({"subscribe": "SCHEDULE_TOPIC_XXXX"}, lambda row: row["topic"] == "SCHEDULE_TOPIC_XXXX"),
    "subscribe a retry topic":
        ({"subscribe": "%RETRY%CG_tags,Audit"}, lambda row: row["topic"] in ("%RETRY%CG_tags", "Audit")),
    "pattern": ({"subscribePattern": "(Ord|Aud).*"}, lambda row: row["topic"] in ("Orders", "Audit")),
    "pattern matches whole names": ({"subscribePattern": "Order"}, lambda row: False),
    "pattern with %": ({"subscribePattern": "%RETRY%.*"}, lambda row: row["topic"].startswith("%RETRY%")),
    "pattern of everything": ({"subscribePattern": ".*"}, lambda row: row["topic"] in PLAIN),
    "pattern of everything, system topics too":
        ({"subscribePattern": ".*", "includeSystemTopics": True}, lambda row: True),
    "assign":
        ({"assign": '{"Orders":[1,3]}'}, lambda row: row["topic"] == "Orders" and row["queueId"] in (1, 3)),
    "assign with the broker":
        ({"assign": '{"Orders":{"broker-a":[0]},"Metrics":[7]}'},
         lambda row: (row["topic"], row["queueId"]) in (("Orders", 0), ("Metrics", 7))),
    "a topic without messages": ({"subscribe": "TBW102"}, lambda row: False),
    "a topic without messages and one with":
        ({"subscribe": "BenchmarkTest,Audit"}, lambda row: row["topic"] == "Audit"),
}  # fmt: skip


@pytest.mark.parametrize("case", TOPICS)
def test_topics_and_queues(golden: Golden, case: str) -> None:
    options, keep = TOPICS[case]
    assert read(golden(STORE), columns=PLACE, **options).places() == told_places(told(STORE, keep))


def test_a_store_without_a_message_is_a_partition_without_a_row(tmp_path: Path) -> None:
    """Of no partition at all Spark makes one of its own (tests/spark/test_spark_facts.py)."""
    (tmp_path / "commitlog").mkdir()
    frame = read(tmp_path)
    assert frame.columns[:3] == ["topic", "flag", "body"]
    assert frame.parts() == [[]]


# ---- tags, keys, ids ---------------------------------------------------------------------------------------


# "Aa" and "BB" have one Java hash, which is all that a consume queue holds of a tag. The tags code of
# SCHEDULE_TOPIC_XXXX is a time: it may not decide.
@pytest.mark.parametrize(
    ("store", "expression"),
    [
        (STORE, "Aa||TagB"),
        (STORE, " 标签 || étiquette "),
        ("batchcq-5.5.0", "Aa"),
        ("rocksdb-5.5.0", "Aa"),
        ("edge-5.5.0", "Aa"),
        ("delay-tx-5.5.0", "TagA"),
    ],
)
def test_tags_are_compared_by_text(golden: Golden, store: str, expression: str) -> None:
    tags = {word.strip() for word in expression.split("||")}
    rows = told(store, lambda row: row["properties"].get("TAGS") in tags)
    assert len(rows) > 10
    found = read(golden(store), columns=PLACE, subExpression=expression, includeSystemTopics=True)
    assert found.places() == told_places(rows)


def has_key(row: Row, key: str) -> bool:
    return key in row["properties"].get("KEYS", "").split(" ") or row["properties"].get("UNIQ_KEY") == key


@pytest.mark.parametrize(
    "key", ["several", "b1", "7F00000123B25FFD2B276878DF600001", "sever", "key with several"]
)
def test_one_key(golden: Golden, key: str) -> None:
    rows = told(STORE, lambda row: row["topic"] in PLAIN and has_key(row, key))
    # a part of a word, and three words, are no key
    assert bool(rows) == (key not in ("sever", "key with several"))
    assert read(golden(STORE), columns=PLACE, key=key).places() == told_places(rows)


def test_one_message_by_each_kind_of_id(golden: Golden) -> None:
    rows = told(STORE, lambda row: row["topic"] in PLAIN)
    row = rows[len(rows) // 2]
    for identifier in (row["properties"]["UNIQ_KEY"], row["msgId"], row["msgId"].lower()):
        found = read(golden(STORE), columns=PLACE, messageId=identifier).places()
        assert found == told_places(
            other for other in rows if identifier.upper() in (other["properties"]["UNIQ_KEY"], other["msgId"])
        )
    (row, *_) = told("edge-5.5.0", lambda row: row["storeHost"].startswith("[") and row["queueOffset"] > 3)
    assert len(row["msgId"]) == 56  # of an IPv6 host
    assert read(golden("edge-5.5.0"), messageId=row["msgId"]).places() == told_places([row])
    assert read(golden(STORE), messageId="7F000001000078BF00000000FFFFFFFF").places() == []


# ---- several stores, and other places of the log -----------------------------------------------------------


def test_a_cluster_its_brokers_and_their_queues(golden: Golden) -> None:
    root = golden("cluster-5.5.0")
    rows = told("cluster-5.5.0", lambda row: row["topic"] == "Orders")
    expected = sorted((row["brokerName"], row["queueId"], row["queueOffset"]) for row in rows)

    def found(path: Path | list[Path], **options: str) -> list[tuple[str, int, int]]:
        rows = read(path, columns="brokerName,queueId,queueOffset", **options).rows()
        return sorted((row["brokerName"], row["queueId"], row["queueOffset"]) for row in rows)

    assert found(root, subscribe="Orders") == expected
    assert found([root / "broker-b", root / "broker-a"], subscribe="Orders") == expected
    alone = [place for place in expected if place[0] == "broker-b"]
    assert found(root / "broker-b", subscribe="Orders") == alone
    late = {"startingOffsets": '{"Orders":{"broker-b":{"0":30}}}', "assign": '{"Orders":{"broker-b":[0]}}'}
    assert found(root, **late) == [("broker-b", 0, offset) for offset in range(30, 38)]


def test_a_name_of_ones_own(golden: Golden) -> None:
    start = '{"Audit":{"lab":{"0":350}}}'
    frame = read(golden(STORE), brokerName="lab", subscribe="Audit", startingOffsets=start)
    assert [row["brokerName"] for row in frame.rows()] == ["lab"]


def test_a_commitlog_on_two_disks(golden: Golden, tmp_path: Path) -> None:
    root = copy_of(golden, STORE, tmp_path)
    disks = (tmp_path / "disk1", tmp_path / "disk2")
    for disk in disks:
        disk.mkdir()
    for i, file in enumerate(sorted((root / "commitlog").iterdir())):
        file.rename(disks[i % 2] / file.name)
    (root / "commitlog").rmdir()
    elsewhere = ",".join(map(str, disks))
    options: dict[str, str | bool] = {"includeSystemTopics": True, "columns": PLACE}
    options["storePathCommitLog"] = elsewhere
    assert read(root, **options).places() == told_places(told(STORE))
    shutil.rmtree(root / "consumequeue")
    assert read(root, **options).places() == told_places(told(STORE))


def test_rocksdb_is_scanned_and_says_so(golden: Golden, caplog: pytest.LogCaptureFixture) -> None:
    name = "rocksdb-5.5.0"
    start = '{"Orders":{"1":30}}'
    frame = read(golden(name), includeSystemTopics=True, columns=PLACE, startingOffsets=start)
    late = told(name, lambda row: (row["topic"], row["queueId"]) != ("Orders", 1) or row["queueOffset"] >= 30)
    with caplog.at_level(logging.WARNING):
        assert frame.places() == told_places(late)
    sentence = "has no consume queue files (RocksDB, or deleted): scanning its commitlog"
    assert f"{golden(name)} {sentence}" in caplog.text
