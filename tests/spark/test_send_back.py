"""The write option sendBack: failed rows of a DataFrame become retries and dead letters of their messages."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from rmq_spark.services import run_once
from tests.support.stored_rows import rows_in

pytestmark = pytest.mark.slow

DELAYED = "SCHEDULE_TOPIC_XXXX"


def _make(spark: SparkSession, path: Path, count: int = 20) -> None:
    rows = spark.range(count).selectExpr("'Orders' AS topic", "cast(id AS string) AS body", "'k' AS keys")
    rows.write.format("rmqlog").mode("append").save(str(path))


def _read(spark: SparkSession, path: Path) -> DataFrame:
    return spark.read.format("rmqlog").option("subscribe", "Orders").load(str(path))


def _stored(path: Path, topic: str) -> list[dict[str, Any]]:
    return rows_in(path, "body", "queueId", "queueOffset", "reconsumeTimes", "properties", topic=topic)


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


def test_a_group_that_fails_gets_its_messages_again(spark: SparkSession, tmp_path: Path) -> None:
    """A query with `group` reads its retries too, and sends them back by the topic that stores them."""
    path = tmp_path / "store"
    _make(spark, path, 6)
    seen: list[tuple[bytes, str, int]] = []

    def run(send: Callable[[DataFrame, int], None]) -> None:
        options = {"subscribe": "Orders", "group": "CG", "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET"}
        columns = "brokerName,topic,storedTopic,queueId,queueOffset,body,reconsumeTimes"
        stream = spark.readStream.format("rmqlog").options(**options, columns=columns).load(str(path))
        query = stream.writeStream.foreachBatch(send).trigger(availableNow=True)
        query.option("checkpointLocation", str(tmp_path / "checkpoint")).start().awaitTermination()

    def fail_twice(frame: DataFrame, batch: int) -> None:
        failed = frame.where("body IN ('1', '4')")
        seen.extend((bytes(row.body), row.topic, row.reconsumeTimes) for row in failed.collect())
        for _ in range(2):
            _send_back(failed, path, txnAppId="job", txnVersion=batch)

    with pytest.raises(Exception, match="sendBack inside foreachBatch: expected txnAppId and txnVersion"):
        run(lambda frame, batch: _send_back(frame, path))
    assert _stored(path, DELAYED) == []
    run(fail_twice)
    run_once(str(path), ["schedule"], time.time_ns() // 1_000_000 + 60_000, apply=True)
    run(fail_twice)
    assert sorted(seen) == [(body, "Orders", times) for body in (b"1", b"4") for times in (0, 1)]
    waiting = sorted((row["body"], row["reconsumeTimes"], row["queueId"]) for row in _stored(path, DELAYED))
    assert waiting == [(body, times, times + 1) for body in (b"1", b"4") for times in (1, 2)]
    assert {dict(row["properties"])["RETRY_TOPIC"] for row in _stored(path, DELAYED)} == {"Orders"}
