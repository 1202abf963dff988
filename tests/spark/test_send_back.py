"""The write option sendBack: failed rows of a DataFrame become retries and dead letters of their messages."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from store_format import MessageStore

DELAYED = "SCHEDULE_TOPIC_XXXX"


def _make(spark: SparkSession, path: Path, count: int = 20) -> None:
    rows = spark.range(count).selectExpr("'Orders' AS topic", "cast(id AS string) AS body", "'k' AS keys")
    rows.write.format("rmqlog").mode("append").save(str(path))


def _read(spark: SparkSession, path: Path) -> DataFrame:
    return spark.read.format("rmqlog").option("subscribe", "Orders").load(str(path))


def _stored(path: Path, topic: str) -> list[dict[str, Any]]:
    columns = ["body", "queueId", "queueOffset", "reconsumeTimes", "properties"]
    return [
        row
        for queue in MessageStore.open(str(path)).queues(topic.__eq__)
        for batch in queue.read(columns=columns)
        for row in batch.to_pylist()
    ]


def _send_back(frame: DataFrame, path: Path, **options: Any) -> None:
    frame.write.format("rmqlog").mode("append").options(sendBack="CG", **options).save(str(path))


def test_failed_rows_are_sent_back_as_they_are_stored(spark: SparkSession, tmp_path: Path) -> None:
    """Rows may have any other columns, and a changed body does not matter."""
    path = tmp_path / "store"
    _make(spark, path)
    frame = _read(spark, path).withColumn("number", F.expr("int(cast(body AS string))"))
    failed = frame.where("number % 5 = 0").selectExpr(
        "brokerName",
        "topic",
        "cast(null AS string) AS storedTopic",
        "queueId",
        "queueOffset",
        "'changed' AS body",
        "number AS error",
        "if(number = 0, -1, 0) AS delayTimeLevel",
    )
    _send_back(failed, path)
    assert {row["body"] for row in _stored(path, DELAYED)} == {b"5", b"10", b"15"}
    (dead,) = _stored(path, "%DLQ%CG")
    assert (dead["body"], dead["reconsumeTimes"], dict(dead["properties"])["RETRY_TOPIC"]) == (
        b"0",
        1,
        "Orders",
    )
    _send_back(failed.where("error = 5"), path, maxReconsumeTimes=0)
    assert [row["body"] for row in _stored(path, "%DLQ%CG")] == [b"0", b"5"]
    with pytest.raises(Exception, match="row 0 of partition 0: expected the queueId of a stored message"):
        _send_back(failed.coalesce(1).withColumn("queueId", F.lit(None)), path)
    with pytest.raises(Exception, match="expected the column queueOffset of the message, found no such"):
        _send_back(failed.drop("queueOffset"), path)


def test_inside_foreach_batch_the_batch_must_have_a_key(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "store"
    _make(spark, path, 6)

    def run(name: str, send: Callable[[DataFrame, int], None]) -> None:
        stream = spark.readStream.format("rmqlog").option("subscribe", "Orders")
        query = stream.option("startingOffsets", "earliest").load(str(path)).writeStream.foreachBatch(send)
        options = query.option("checkpointLocation", str(tmp_path / name)).trigger(availableNow=True)
        options.start().awaitTermination()

    with pytest.raises(Exception, match="sendBack inside foreachBatch: expected txnAppId and txnVersion"):
        run("without", lambda frame, batch: _send_back(frame, path))
    assert _stored(path, DELAYED) == []

    def twice(frame: DataFrame, batch: int) -> None:
        for _ in range(2):
            _send_back(frame.where("queueOffset < 2"), path, txnAppId="job", txnVersion=batch)

    run("with", twice)
    bodies = [row["body"] for row in _stored(path, DELAYED)]
    assert len(bodies) == len(set(bodies)) > 0


def test_a_stream_of_failed_rows(spark: SparkSession, tmp_path: Path) -> None:
    """As a sink, each batch is sent back once: the stream writer has a key of its own."""
    path = tmp_path / "store"
    _make(spark, path, 4)
    stream = spark.readStream.format("rmqlog").option("subscribe", "Orders")
    frame = stream.option("startingOffsets", "earliest").load(str(path))
    query = frame.writeStream.format("rmqlog").option("sendBack", "CG").trigger(availableNow=True)
    query.option("checkpointLocation", str(tmp_path / "checkpoint")).start(str(path)).awaitTermination()
    assert sorted(row["body"] for row in _stored(path, DELAYED)) == [b"0", b"1", b"2", b"3"]
