"""`option("view", …)` through Spark: the rows and columns of `MessageStore.view`."""

from __future__ import annotations

import pytest

from store_format import MessageStore
from tests.rmq_spark.spark.test_view_reader import without_ages
from tests.support.fixtures import Golden, SparkSession
from tests.support.spark.frames import read

_TIMEOUT_S = 60  # a query that hangs fails its test; it takes a few seconds


# Between them they have every type of column; tests/rmq_spark/spark/test_view_reader.py has all views.
@pytest.mark.parametrize("view", ["topics", "groups", "files", "usage"])
def test_a_view_is_that_of_the_store(spark: SparkSession, golden: Golden, view: str) -> None:
    root = golden("delay-tx-5.5.0")
    frame = read(spark, root, view=view)
    expected = MessageStore.open(str(root)).view(view)
    assert frame.columns == expected.schema.names
    assert without_ages([row.asDict() for row in frame.collect()]) == without_ages(expected.to_pylist())


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
        query.awaitTermination(_TIMEOUT_S)
