"""Batch reads through Spark: its schemas and types, its tasks, and paths and options as it passes them on.

Which rows a read gives is tested without Spark, in tests/rmq_spark/plan.
"""

from __future__ import annotations

import base64
from pathlib import Path

import pytest
from chispa import assert_df_equality
from pyspark.errors import PySparkException

from tests.support.conformance import NAMES, differences, expected, rows_of
from tests.support.fixtures import Golden, SparkSession
from tests.support.reads import PLACE, copy_of, flip, told, told_places
from tests.support.spark.frames import places, read

STORE = "basic-5.5.0"
FIRST_FILE = 262144
BODY = 88  # of a unit with IPv4 hosts: its body begins there


# tests/test_conformance.py reads every store without Spark, and tests/sparks with each Spark.
@pytest.mark.parametrize(
    ("store", "split_by"),
    [("edge-5.5.0", "queue"), ("batchcq-5.5.0", "commitlog"), ("dledger-upgraded-5.5.0", "queue")],
)
def test_every_row_and_column(spark: SparkSession, golden: Golden, store: str, split_by: str) -> None:
    options = {"columns": ",".join(NAMES), "splitBy": split_by}
    frame = read(spark, golden(store), includeSystemTopics=True, minPartitions=3, **options)
    assert frame.rdd.getNumPartitions() > 2
    assert differences(rows_of(frame.toArrow()), expected(store, golden(store))) == []


def test_columns_options_and_paths_as_spark_passes_them_on(
    spark: SparkSession, copy_of: Golden, tmp_path: Path
) -> None:
    root = copy_of(STORE)
    assert read(spark, root).schema.simpleString() == (
        "struct<topic:string,flag:int,body:binary,properties:map<string,string>,brokerName:string,queueId:int,queueOffset:bigint,"
        "bornTimestamp:timestamp,storeTimestamp:timestamp,tags:string,keys:array<string>,msgId:string>"
    )
    reader = spark.read.format("RMQLOG").option("SUBSCRIBE", "Orders").option("minpartitions", 5)
    reader = reader.option("propertyColumns", "WAIT,region").option("columns", "queueOffset,MSGID,queueId")
    (tmp_path / "link").symlink_to(root)
    rows = told(STORE, lambda row: row["topic"] == "Orders")
    for path in (str(root), f"file://{tmp_path}/link", [str(root)]):
        frame = reader.load(path)
        assert frame.columns == ["queueOffset", "msgId", "queueId", "WAIT", "region"]
        assert frame.count() == len(rows)
    assert {tuple(row) for row in frame.collect()} == {
        (
            row["queueOffset"],
            row["properties"]["UNIQ_KEY"],
            row["queueId"],
            row["properties"].get("WAIT"),
            row["properties"].get("region"),
        )
        for row in rows
    }


def test_a_schema_in_another_order_and_case(spark: SparkSession, golden: Golden) -> None:
    ddl = "region string, BODY binary, queueoffset long not null, STORETIMESTAMP timestamp, queueId int"
    reader = spark.read.format("rmqlog").schema(ddl).options(subscribe="Orders", propertyColumns="region")
    frame = reader.load(str(golden(STORE)))
    names = ["region", "BODY", "queueoffset", "STORETIMESTAMP", "queueId"]
    assert frame.columns == names
    usual = read(spark, golden(STORE), subscribe="Orders", propertyColumns="region").selectExpr(*names)
    assert_df_equality(frame, usual, ignore_row_order=True, ignore_nullable=True)
    assert frame.count() == len(told(STORE, lambda row: row["topic"] == "Orders"))


def test_functions_of_spark_over_every_kind_of_column(spark: SparkSession, golden: Golden) -> None:
    frame = read(spark, golden(STORE), subscribe="Orders").selectExpr(
        "length(body)", "properties['UNIQ_KEY'] = msgId", "size(keys)", "year(storeTimestamp)", "brokerName"
    )
    rows = told(STORE, lambda row: row["topic"] == "Orders")
    found = frame.collect()
    assert len(found) == len(rows)
    assert {tuple(row)[1:] for row in found if row[2] == 3} == {(True, 3, 2026, "broker-a")}
    assert sum(row[0] for row in found) == sum(len(base64.b64decode(row["body"])) for row in rows)


def test_a_file_deleted_after_planning(spark: SparkSession, golden: Golden, tmp_path: Path) -> None:
    """A DataFrame is planned once; its tasks fail, or leave out what is gone."""
    root = copy_of(golden, STORE, tmp_path)
    strict = read(spark, root, includeSystemTopics=True, columns=PLACE)
    lenient = read(spark, root, includeSystemTopics=True, columns=PLACE, failOnDataLoss=False)
    assert strict.rdd.getNumPartitions() == lenient.rdd.getNumPartitions() == 1  # planned
    (root / "commitlog" / f"{0:020d}").unlink()
    with pytest.raises(PySparkException, match=r"was deleted \(retention\); the log now begins at 262144"):
        strict.collect()
    assert places(lenient) == told_places(told(STORE, lambda row: row["physicalOffset"] >= FIRST_FILE))


def test_a_row_for_a_damaged_message(spark: SparkSession, golden: Golden, tmp_path: Path) -> None:
    root = copy_of(golden, STORE, tmp_path)
    rows = told(STORE, lambda row: row["topic"] == "Orders")
    file, position = flip(root, rows[0]["physicalOffset"] + BODY + 3)
    options = {"subscribe": "Orders", "mode": "PERMISSIVE"}
    frame = read(spark, root, **options)
    assert frame.columns[-1] == "_corrupt_record"
    (bad,) = frame.where("body IS NULL").collect()
    assert (bad.queueId, bad.queueOffset) == (rows[0]["queueId"], rows[0]["queueOffset"])
    assert bad._corrupt_record.startswith(f"{file} at byte {position - BODY - 3 + 8}: expected body CRC")
    declared = spark.read.format("rmqlog").schema("_CORRUPT_RECORD string, queueId int").options(**options)
    assert declared.load(str(root)).where("_CORRUPT_RECORD IS NOT NULL").count() == 1
    assert declared.load(str(root)).count() == len(rows)
