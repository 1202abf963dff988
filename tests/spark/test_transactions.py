"""The write option transaction: half messages, and their commit and rollback by rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from store_format import MessageStore
from store_format.message.encode import MessageColumns
from tests.support.halves import half_store, states, visible


def _write(frame: DataFrame, path: Path, **options: Any) -> None:
    frame.write.format("rmqlog").mode("append").options(**options).save(str(path))


def _halves(spark: SparkSession, first: int, stop: int) -> DataFrame:
    """Half messages with the ids id-0, id-1 … for Orders."""
    return spark.range(first, stop).selectExpr(
        "'Orders' AS topic", "cast(id AS string) AS body", "map('UNIQ_KEY', concat('id-', id)) AS properties"
    )


def _pending(spark: SparkSession, path: Path) -> DataFrame:
    views = spark.read.format("rmqlog").option("view", "transactions")
    return views.load(str(path)).where("state = 'pending'")


def test_half_messages_are_decided_by_the_rows_of_the_view(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "store"
    _write(_halves(spark, 0, 6), path, transaction="half", producerGroup="PG")
    assert visible(path) == []
    pending = _pending(spark, path)
    assert {row["producerGroup"] for row in pending.collect()} == {"PG"}
    _write(pending.where("msgId <= 'id-2'"), path, transaction="commit", producerGroup="PG")
    assert visible(path) == ["id-0", "id-1", "id-2"]
    _write(pending.where("msgId > 'id-3'").drop("msgId"), path, transaction="rollback")
    assert visible(path) == ["id-0", "id-1", "id-2"]
    assert [state for _, state in sorted(states(path).items())] == (
        ["committed"] * 3 + ["pending"] + ["rolled back"] * 2
    )
    read = spark.read.format("rmqlog").option("subscribe", "Orders").load(str(path))
    assert sorted(bytes(row["body"]) for row in read.collect()) == [b"0", b"1", b"2"]


def test_a_stream_decides_half_messages(spark: SparkSession, tmp_path: Path) -> None:
    """Answers arrive as messages of a topic; a streaming sink commits the half messages that they name."""
    path, answers = tmp_path / "store", tmp_path / "answers"
    half_store(path, ["A", "B", "C"])
    MessageStore.create(str(answers)).append(
        MessageColumns(topic="Paid", body=pa.array([b"A", b"C"]), properties=pa.array([b"", b""]))
    )
    stream = (
        spark.readStream.format("rmqlog")
        .options(subscribe="Paid", startingOffsets="earliest")
        .load(str(answers))
    )

    answered = stream.selectExpr("cast(body AS string) AS msgId").writeStream.format("rmqlog")
    answered = answered.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True)
    answered.option("transaction", "commit").start(str(path)).awaitTermination()
    assert visible(path) == ["A", "C"]
