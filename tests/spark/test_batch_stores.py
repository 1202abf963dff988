"""Which stores a path means, and what is read where consume queues are missing, damaged or behind: the same
rows.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import PySparkException

from rmq_spark.options.read_options import parse_read_options
from rmq_spark.plan.batch import plan
from tests.support.spark.frames import PLACE, copy_of, places, read, told, told_places

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STORE = "basic-5.5.0"

Golden = Callable[[str], Path]


def warnings_of_planning(caplog: pytest.LogCaptureFixture, path: Path, **options: str) -> str:
    """Planning runs in a process of Spark's whose log is not ours to read; the same call here says the
    same.
    """
    with caplog.at_level(logging.WARNING):
        plan(parse_read_options({"path": str(path), "includeSystemTopics": "true", **options}))
    return caplog.text


# ---- several stores ----------------------------------------------------------------------------------------


def test_a_cluster_and_its_brokers_one_by_one(spark: SparkSession, golden: Golden) -> None:
    root = golden("cluster-5.5.0")
    columns = f"brokerName,{PLACE}"
    rows = told("cluster-5.5.0", lambda row: row["topic"] == "Orders")
    expected = sorted((row["brokerName"], row["topic"], row["queueId"], row["queueOffset"]) for row in rows)
    for path in (root, [root / "broker-b", root / "broker-a"]):
        frame = read(spark, path, columns=columns, subscribe="Orders")
        assert sorted(tuple(row) for row in frame.collect()) == expected
    alone = read(spark, root / "broker-b", columns=columns, subscribe="Orders")
    assert sorted(tuple(row) for row in alone.collect()) == [row for row in expected if row[0] == "broker-b"]


def test_queues_of_one_broker_of_a_cluster(spark: SparkSession, golden: Golden) -> None:
    options = {"assign": '{"Orders":{"broker-b":[0]}}', "startingOffsets": '{"Orders":{"broker-b":{"0":30}}}'}
    frame = read(spark, golden("cluster-5.5.0"), columns=f"brokerName,{PLACE}", **options)
    assert sorted(tuple(row) for row in frame.collect()) == [
        ("broker-b", "Orders", 0, offset) for offset in range(30, 38)
    ]


def test_two_stores_of_one_broker_are_refused(spark: SparkSession, golden: Golden) -> None:
    with pytest.raises(PySparkException) as caught:
        read(spark, [golden(STORE), golden("defaults-5.5.0")]).collect()
    assert f"{golden(STORE)} and {golden('defaults-5.5.0')} both belong to broker broker-a" in str(
        caught.value
    )
    with pytest.raises(PySparkException, match="expected each path once"):
        read(spark, [golden(STORE), golden(STORE)]).collect()


def test_a_name_of_ones_own(spark: SparkSession, golden: Golden) -> None:
    frame = read(
        spark,
        golden(STORE),
        brokerName="lab",
        subscribe="Audit",
        startingOffsets='{"Audit":{"lab":{"0":350}}}',
    )
    assert [row.brokerName for row in frame.collect()] == ["lab"]


def test_a_path_with_a_blank_and_a_hash(spark: SparkSession, golden: Golden, tmp_path: Path) -> None:
    root = Path(shutil.copytree(golden("basic-4.9.7"), tmp_path / "a store #1 of 100%"))
    assert read(spark, root, subscribe="Audit").count() == 88


def test_a_file_uri_and_a_link_to_the_root(spark: SparkSession, golden: Golden, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(golden("basic-4.9.7"))
    reader = spark.read.format("rmqlog").option("subscribe", "Audit")
    assert reader.load(f"file://{tmp_path}/link").count() == 88
    assert reader.load(f"file:{tmp_path}/link/").count() == 88


def test_a_commitlog_on_two_disks(spark: SparkSession, golden: Golden, tmp_path: Path) -> None:
    root = copy_of(golden, STORE, tmp_path)
    disks = (tmp_path / "disk1", tmp_path / "disk2")
    for disk in disks:
        disk.mkdir()
    for i, file in enumerate(sorted((root / "commitlog").iterdir())):
        file.rename(disks[i % 2] / file.name)
    (root / "commitlog").rmdir()
    options: dict[str, str | bool] = {
        "includeSystemTopics": True,
        "columns": PLACE,
        "storePathCommitLog": ",".join(map(str, disks)),
    }
    assert places(read(spark, root, **options)) == told_places(told(STORE))
    shutil.rmtree(root / "consumequeue")
    assert places(read(spark, root, **options)) == told_places(told(STORE))


# ---- without consume queues, and with bad ones -------------------------------------------------------------


def test_rocksdb_is_scanned_and_says_so(
    spark: SparkSession, golden: Golden, caplog: pytest.LogCaptureFixture
) -> None:
    root = golden("rocksdb-5.5.0")
    assert (
        f"{root} has no consume queue files (RocksDB, or deleted): scanning its commitlog"
        in warnings_of_planning(caplog, root)
    )
    frame = read(spark, root, includeSystemTopics=True, columns=PLACE, startingOffsets='{"Orders":{"1":30}}')
    expected = told(
        "rocksdb-5.5.0",
        lambda row: (row["topic"], row["queueId"]) != ("Orders", 1) or row["queueOffset"] >= 30,
    )
    assert places(frame) == told_places(expected)
