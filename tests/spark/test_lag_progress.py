"""Lag from the progress that Spark itself reports of a stream over a broker's store."""

from __future__ import annotations

from pathlib import Path

from rmq_spark.consume.lag import lag_from_progress
from store_format import MessageStore
from store_format.display.columns import schema_of
from store_format.views.lag import LAG_COLUMNS
from tests.support.fixtures import Golden, SparkSession

_TIMEOUT_S = 120  # a query that hangs fails its test; it takes a few seconds


def test_progress_tells_how_far_behind_a_stream_is(
    spark: SparkSession, golden: Golden, tmp_path: Path
) -> None:
    root = golden("basic-5.5.0")
    ends = {
        queue.queue_id: queue.max_offset
        for queue in MessageStore.open(str(root)).queues()
        if queue.topic == "Orders"
    }
    reader = (
        spark.readStream.format("rmqlog").option("subscribe", "Orders").option("startingOffsets", "earliest")
    )
    frame = reader.option("maxOffsetsPerTrigger", "100").load(str(root))
    query = (
        frame.writeStream.format("noop")
        .option("checkpointLocation", str(tmp_path))
        .trigger(availableNow=True)
        .start()
    )
    try:
        assert query.awaitTermination(_TIMEOUT_S)
        tables = [
            lag_from_progress(progress.json, group="g")
            for progress in query.recentProgress
            if progress.numInputRows
        ]
    finally:
        query.stop()
    assert len(tables) > 2
    total = sum(ends.values())
    for read, table in enumerate(tables, 1):
        assert table.schema == schema_of(LAG_COLUMNS)
        rows = table.to_pylist()
        assert {row["queueId"]: row["maxOffset"] for row in rows} == ends
        assert sum(row["lagMessages"] for row in rows) == max(total - 100 * read, 0)
        assert all(
            row["lagMessages"] == row["maxOffset"] - row["committedOffset"] and row["lagBytes"] is None
            for row in rows
        )
    assert {row["lagMessages"] for row in tables[-1].to_pylist()} == {0}
