"""What a read is about: topics and queues, tags, keys and ids, columns. The answers are the broker's own
rows.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from chispa import assert_df_equality

from tests.support.spark.frames import PLACE, places, read, told, told_places

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STORE = "basic-5.5.0"
PLAIN = ("Audit", "Metrics", "Orders")

Golden = Callable[[str], Path]
Row = dict[str, Any]  # a line of expected.jsonl.gz

# ---- topics and queues -------------------------------------------------------------------------------------

TOPICS: dict[str, tuple[dict[str, str | bool], Callable[[Row], bool]]] = {
    "nothing: no system topic": ({}, lambda row: row["topic"] in PLAIN),
    "includeSystemTopics": ({"includeSystemTopics": True}, lambda row: True),
    "subscribe one": ({"subscribe": "Orders"}, lambda row: row["topic"] == "Orders"),
    "subscribe two": ({"subscribe": "Orders, Audit"}, lambda row: row["topic"] in ("Orders", "Audit")),
    "subscribe a system topic": (
        {"subscribe": "SCHEDULE_TOPIC_XXXX"},
        lambda row: row["topic"] == "SCHEDULE_TOPIC_XXXX",
    ),
    "subscribe a retry topic": (
        {"subscribe": "%RETRY%CG_tags,Audit"},
        lambda row: row["topic"] in ("%RETRY%CG_tags", "Audit"),
    ),
    "pattern": ({"subscribePattern": "(Ord|Aud).*"}, lambda row: row["topic"] in ("Orders", "Audit")),
    "pattern matches whole names": ({"subscribePattern": "Order"}, lambda row: False),
    "pattern with %": ({"subscribePattern": "%RETRY%.*"}, lambda row: row["topic"].startswith("%RETRY%")),
    "pattern of everything": ({"subscribePattern": ".*"}, lambda row: row["topic"] in PLAIN),
    "pattern of everything, system topics too": (
        {"subscribePattern": ".*", "includeSystemTopics": True},
        lambda row: True,
    ),
    "assign": (
        {"assign": '{"Orders":[1,3]}'},
        lambda row: row["topic"] == "Orders" and row["queueId"] in (1, 3),
    ),
    "assign with the broker": (
        {"assign": '{"Orders":{"broker-a":[0]},"Metrics":[7]}'},
        lambda row: (row["topic"], row["queueId"]) in (("Orders", 0), ("Metrics", 7)),
    ),
    "a topic without messages": ({"subscribe": "TBW102"}, lambda row: False),
    "a topic without messages and one with": (
        {"subscribe": "BenchmarkTest,Audit"},
        lambda row: row["topic"] == "Audit",
    ),
}


@pytest.mark.parametrize("case", TOPICS)
def test_topics_and_queues(spark: SparkSession, golden: Golden, case: str) -> None:
    options, keep = TOPICS[case]
    frame = read(spark, golden(STORE), columns=PLACE, **options)
    assert places(frame) == told_places(told(STORE, keep))


def test_a_store_without_a_message(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "commitlog").mkdir()
    frame = read(spark, tmp_path)
    assert frame.columns[:3] == ["topic", "flag", "body"]
    assert frame.collect() == []
    assert frame.count() == 0


# ---- tags, keys, ids ---------------------------------------------------------------------------------------


def tag(row: Row) -> str | None:
    value = row["properties"].get("TAGS")
    assert value is None or isinstance(value, str)
    return value


# "Aa" and "BB" have one Java hash, which is all that a consume queue holds of a tag.
@pytest.mark.parametrize("expression", ["Aa", "BB", "Aa||TagB", " 标签 || étiquette ", "*", "neverSeen"])
@pytest.mark.parametrize("split_by", ["queue", pytest.param("commitlog", marks=pytest.mark.slow)])
def test_tags_are_compared_by_text(
    spark: SparkSession, golden: Golden, expression: str, split_by: str
) -> None:
    frame = read(spark, golden(STORE), columns=f"{PLACE},tags", subExpression=expression, splitBy=split_by)
    tags = {word.strip() for word in expression.split("||")}
    rows = told(STORE, lambda row: row["topic"] in PLAIN and (tags == {"*"} or tag(row) in tags))
    assert (len(rows) > 0) == (expression != "neverSeen")
    assert places(frame) == told_places(rows)
    assert {row.tags for row in frame.select("tags").distinct().collect()} == {tag(row) for row in rows}


@pytest.mark.parametrize("store", ["batchcq-5.5.0", "rocksdb-5.5.0", "edge-5.5.0"])
def test_tags_in_batches_and_without_consume_queues(spark: SparkSession, golden: Golden, store: str) -> None:
    frame = read(spark, golden(store), columns=PLACE, subExpression="Aa", includeSystemTopics=True)
    rows = told(store, lambda row: tag(row) == "Aa")
    assert len(rows) > 10
    assert places(frame) == told_places(rows)


def test_delayed_messages_keep_their_tags(spark: SparkSession, golden: Golden) -> None:
    """The tags code of SCHEDULE_TOPIC_XXXX is a time: it may not decide."""
    rows = told("delay-tx-5.5.0", lambda row: row["topic"] == "SCHEDULE_TOPIC_XXXX" and tag(row) == "TagA")
    assert rows
    frame = read(
        spark, golden("delay-tx-5.5.0"), subscribe="SCHEDULE_TOPIC_XXXX", subExpression="TagA", columns=PLACE
    )
    assert places(frame) == told_places(rows)


def has_key(row: Row, key: str) -> bool:
    return key in row["properties"].get("KEYS", "").split(" ") or row["properties"].get("UNIQ_KEY") == key


@pytest.mark.parametrize(
    "key", ["several", "b1", "7F00000123B25FFD2B276878DF600001", "sever", "key with several"]
)
def test_one_key(spark: SparkSession, golden: Golden, key: str) -> None:
    rows = told(STORE, lambda row: row["topic"] in PLAIN and has_key(row, key))
    # a part of a word, and three words, are no key
    assert bool(rows) == (key not in ("sever", "key with several"))
    assert places(read(spark, golden(STORE), columns=PLACE, key=key)) == told_places(rows)


def test_one_message_by_each_kind_of_id(spark: SparkSession, golden: Golden) -> None:
    rows = told(STORE, lambda row: row["topic"] in PLAIN)
    for row in (rows[0], rows[len(rows) // 2], rows[-1]):
        for identifier in (row["properties"]["UNIQ_KEY"], row["msgId"], row["msgId"].lower()):
            alike = told_places(
                other
                for other in rows
                if identifier.upper() in (other["properties"]["UNIQ_KEY"], other["msgId"])
            )
            assert places(read(spark, golden(STORE), columns=PLACE, messageId=identifier)) == alike
            assert (row["topic"], row["queueId"], row["queueOffset"]) in alike


def test_an_id_of_an_ipv6_store_host(spark: SparkSession, golden: Golden) -> None:
    (row, *_) = told("edge-5.5.0", lambda row: row["storeHost"].startswith("[") and row["queueOffset"] > 3)
    assert len(row["msgId"]) == 56
    assert places(read(spark, golden("edge-5.5.0"), messageId=row["msgId"])) == told_places([row])


def test_an_id_of_nobody(spark: SparkSession, golden: Golden) -> None:
    assert read(spark, golden(STORE), messageId="7F000001000078BF00000000FFFFFFFF").count() == 0


# ---- columns -----------------------------------------------------------------------------------------------


def test_columns_in_the_order_asked_for_and_property_columns_behind_them(
    spark: SparkSession, golden: Golden
) -> None:
    frame = read(
        spark,
        golden(STORE),
        subscribe="Orders",
        columns="queueOffset,MSGID,queueId",
        propertyColumns="WAIT,region,__SHARDINGKEY",
    )
    assert frame.columns == ["queueOffset", "msgId", "queueId", "WAIT", "region", "__SHARDINGKEY"]
    found = {tuple(row) for row in frame.collect()}
    names = ("WAIT", "region", "__SHARDINGKEY")
    rows = told(STORE, lambda row: row["topic"] == "Orders")
    expected = {
        (
            row["queueOffset"],
            row["properties"]["UNIQ_KEY"],
            row["queueId"],
            *map(row["properties"].get, names),
        )
        for row in rows
    }
    assert found == expected
    assert len(expected) == len(rows) == frame.count()
    assert len({row[5] for row in expected}) > 2


def test_a_schema_in_another_order_and_case(spark: SparkSession, golden: Golden) -> None:
    ddl = "region string, BODY binary, queueoffset long not null, STORETIMESTAMP timestamp, queueId int"
    reader = spark.read.format("rmqlog").schema(ddl).options(subscribe="Orders", propertyColumns="region")
    frame = reader.load(str(golden(STORE)))
    names = ["region", "BODY", "queueoffset", "STORETIMESTAMP", "queueId"]
    assert frame.columns == names
    usual = read(spark, golden(STORE), subscribe="Orders", propertyColumns="region").selectExpr(*names)
    assert_df_equality(frame, usual, ignore_row_order=True, ignore_nullable=True)
    assert frame.count() == len(told(STORE, lambda row: row["topic"] == "Orders"))


def test_one_column_is_enough(spark: SparkSession, golden: Golden) -> None:
    frame = (
        spark.read.format("rmqlog")
        .schema("queueOffset long")
        .option("subscribe", "Audit")
        .load(str(golden(STORE)))
    )
    assert frame.agg({"queueOffset": "sum"}).collect()[0][0] == sum(range(351))


def test_the_default_schema(spark: SparkSession, golden: Golden) -> None:
    assert read(spark, golden(STORE)).schema.simpleString() == (
        "struct<topic:string,flag:int,body:binary,properties:map<string,string>,brokerName:string,queueId:int,queueOffset:bigint,"
        "bornTimestamp:timestamp,storeTimestamp:timestamp,tags:string,keys:array<string>,msgId:string>"
    )


def test_functions_of_spark_over_every_kind_of_column(spark: SparkSession, golden: Golden) -> None:
    frame = read(spark, golden(STORE), subscribe="Orders").selectExpr(
        "length(body)", "properties['UNIQ_KEY'] = msgId", "size(keys)", "year(storeTimestamp)", "brokerName"
    )
    rows = told(STORE, lambda row: row["topic"] == "Orders")
    found = frame.collect()
    assert len(found) == len(rows)
    assert {tuple(row)[1:] for row in found if row[2] == 3} == {(True, 3, 2026, "broker-a")}
    assert sum(row[0] for row in found) == sum(len(json_bytes(row)) for row in rows)


def json_bytes(row: Row) -> bytes:
    import base64

    return base64.b64decode(row["body"])


def test_order_within_a_queue_is_the_queue_s(spark: SparkSession, golden: Golden) -> None:
    """Nothing sorts here: rows of one queue come in the order of offsets within a partition."""
    rows = read(spark, golden(STORE), subscribe="Orders", columns=PLACE, minPartitions=1).collect()
    by_queue: dict[int, list[int]] = {}
    for row in rows:
        by_queue.setdefault(row.queueId, []).append(row.queueOffset)
    assert {
        queue: offsets == list(range(len(offsets))) for queue, offsets in by_queue.items()
    } == dict.fromkeys(range(4), True)


def test_options_of_any_case_and_a_json_as_spark_gives_it(spark: SparkSession, golden: Golden) -> None:
    reader = (
        spark.read.format("RMQLOG")
        .option("SUBSCRIBE", "Audit")
        .option("startingoffsets", json.dumps({"Audit": {"0": 350}}))
    )
    assert places(reader.load(str(golden(STORE)))) == [("Audit", 0, 350)]
