"""Streams through Spark: bounded, continued, and over a table of the catalog.

What a stream reads when its store changes is tested without Spark, in tests/rmq_spark/stream.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.rmq_spark.stream.test_positions import expected
from tests.support.reads import Place
from tests.support.spark.frames import places
from tests.support.staged import append, deleted_topic, numbered, update_topic

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_TIMEOUT_S = 120  # a query that hangs fails its test; it takes a few seconds


@pytest.fixture
def root(root: Path) -> Path:
    """Topic T, four queues of 5 messages."""
    append(root, numbered("T", 0, 20))
    return root


def run(spark: SparkSession, root: Path, checkpoint: Path, **options: str) -> list[list[Place]]:
    """The places of each batch of everything that is there now (Trigger.AvailableNow)."""
    batches: list[list[Place]] = []

    def take(frame: DataFrame, batch: int) -> None:
        batches.append(places(frame))
        # Each action reads the source again.
        assert frame.where("queueId = 1").count() == sum(queue == 1 for _, queue, _ in batches[-1])

    stream = spark.readStream.format("rmqlog").options(**options).load(str(root))
    writer = stream.writeStream.foreachBatch(take).option("checkpointLocation", str(checkpoint))
    query = writer.trigger(availableNow=True).start()
    try:
        assert query.awaitTermination(_TIMEOUT_S)
    finally:
        query.stop()
    return batches


def test_a_restart_goes_on_at_the_checkpoint(spark: SparkSession, root: Path, tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoint"
    batches = run(spark, root, checkpoint, startingOffsets="earliest", maxOffsetsPerTrigger="8")
    assert list(map(len, batches)) == [8, 8, 4]
    assert sorted(place for batch in batches for place in batch) == expected("T", *[(0, 5)] * 4)
    append(root, numbered("T", 20, 2))
    append(root, numbered("New", 0, 4, queues=2))
    update_topic(root, "T", 6)
    append(root, numbered("T", 22, 6, queues=6))
    (batch,) = run(spark, root, checkpoint, startingOffsets="latest")
    assert batch == sorted(
        [*expected("T", (5, 7), (5, 7), (5, 6), (5, 6), (0, 1), (0, 1)), *expected("New", (0, 2), (0, 2))]
    )
    assert run(spark, root, checkpoint) == []


def test_a_query_without_a_message_yet_notices_a_topic_that_was_created_again(
    spark: SparkSession, root: Path, tmp_path: Path
) -> None:
    assert run(spark, root, tmp_path / "checkpoint", subscribe="T") == [[]]  # from `latest`, the default
    deleted_topic(root, "T")
    append(root, numbered("T", 100, 40))
    batches = run(spark, root, tmp_path / "checkpoint", subscribe="T", failOnDataLoss="false")
    assert batches == [expected("T", *[(0, 10)] * 4)]


def test_a_table_in_the_catalog_is_a_stream_too(spark: SparkSession, root: Path, tmp_path: Path) -> None:
    spark.sql(
        f"CREATE TABLE streamed USING rmqlog OPTIONS (path '{root}', startingOffsets 'earliest', "
        f"maxOffsetsPerTrigger '9')"
    )
    try:
        writing = spark.readStream.table("streamed").writeStream.format("memory").queryName("from_table")
        query = writing.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True).start()
        assert query.awaitTermination(_TIMEOUT_S)
        assert places(spark.table("from_table")) == expected("T", *[(0, 5)] * 4)
        assert spark.table("streamed").count() == 20
    finally:
        spark.sql("DROP TABLE streamed")
