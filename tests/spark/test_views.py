"""`option("view", …)`: the tables of a store, and of a cluster, through Spark: same rows and columns as
`MessageStore.view`.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from store_format import MessageStore
from store_format.views.registry import VIEWS
from tests.support.spark.frames import read

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Golden = Callable[[str], Path]


def _rows(frame: DataFrame) -> list[dict[str, Any]]:
    return [row.asDict() for row in frame.collect()]


def _naive(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Times as Spark hands them out in a session in UTC; ages depend on the moment."""
    ages = {"lagMs", "ageMs", "dueInMs", "expiresInMs", "state"}
    return [
        {
            name: value.replace(tzinfo=None) if hasattr(value, "tzinfo") else value
            for name, value in row.items()
            if name not in ages
        }
        for row in rows
    ]


@pytest.mark.parametrize("view", [view.name for view in VIEWS])
def test_every_view_is_that_of_the_store(spark: SparkSession, golden: Golden, view: str) -> None:
    root = golden("delay-tx-5.5.0")
    frame = read(spark, root, view=view)
    expected = MessageStore.open(str(root)).view(view)
    assert frame.columns == expected.schema.names
    assert _naive(_rows(frame)) == _naive(expected.to_pylist())


def test_a_cluster_is_one_table(spark: SparkSession, golden: Golden) -> None:
    frame = read(spark, golden("cluster-5.5.0"), view="queues")
    assert frame.rdd.getNumPartitions() == 2
    assert {row.brokerName for row in frame.collect()} == {"broker-a", "broker-b"}


def test_the_name_of_a_broker_can_be_given(spark: SparkSession, golden: Golden) -> None:
    frame = read(spark, golden("basic-5.5.0"), view="topics", brokerName="mine")
    assert {row.brokerName for row in frame.select("brokerName").distinct().collect()} == {"mine"}


def test_columns_of_a_view(spark: SparkSession, golden: Golden) -> None:
    root = golden("basic-5.5.0")
    assert read(spark, root, view="lag", columns="lagmessages,group").columns == ["lagMessages", "group"]
    declared = (
        spark.read.format("rmqlog")
        .schema("LAGBYTES bigint, topic string")
        .option("view", "lag")
        .load(str(root))
    )
    assert declared.columns == ["LAGBYTES", "topic"]
    expected = MessageStore.open(str(root)).view("lag").column("lagBytes").to_pylist()
    assert [row.LAGBYTES for row in declared.collect()] == expected


def test_a_view_takes_the_settings_of_a_broker(spark: SparkSession, golden: Golden, tmp_path: Path) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text("fileReservedTime=1\n")
    root = golden("cleaned-5.5.0")
    times = [
        {row.expiresTimestamp for row in read(spark, root, view="retention", **given).collect()} - {None}
        for given in ({}, {"brokerConf": str(conf)})
    ]
    assert {time - timedelta(hours=71) for time in times[0]} == times[1] != set()


def test_sql_over_a_view(spark: SparkSession, golden: Golden) -> None:
    spark.sql(f"CREATE TABLE views_lag USING rmqlog OPTIONS (path '{golden('basic-5.5.0')}', view 'lag')")
    try:
        (row,) = spark.sql("SELECT sum(lagMessages) AS lag FROM views_lag WHERE group = 'CG_some'").collect()
    finally:
        spark.sql("DROP TABLE views_lag")
    assert row.lag == 1076


def test_a_view_is_no_stream(spark: SparkSession, golden: Golden) -> None:
    stream = spark.readStream.format("rmqlog").option("view", "lag").load(str(golden("basic-5.5.0")))
    query = stream.writeStream.format("noop").trigger(availableNow=True).start()
    with pytest.raises(Exception, match="view does not apply to a stream query"):
        query.awaitTermination(60)
