"""Queries that pop through Spark: they share a queue, and what a failed query had comes back."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest
from pyspark.errors import StreamingQueryException

from store_format.opened.store import Opened
from store_format.pop.log import in_flight_directory, read_in_flight
from tests.support.staged import append, make_store, numbered

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

pytestmark = pytest.mark.slow

_TIMEOUT_S = 120  # a query that hangs fails its test; it takes a few seconds


class Queries:
    def __init__(self, spark: SparkSession, base: Path) -> None:
        self.spark, self.base, self.store = spark, base, make_store(base / "store")

    def start(self, name: str, *, fails: bool = False, **options: str) -> StreamingQuery:
        def keep(frame: DataFrame, batch: int) -> None:
            frame.write.mode("overwrite").parquet(f"{self.base}/{name}/batch={batch}")
            if fails:
                raise RuntimeError("the handler failed")

        given = {
            "group": "g",
            "subscribe": "T",
            "consumeMode": "pop",
            "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET",
            "columns": "topic,storedTopic,queueOffset,reconsumeTimes,body",
            **options,
        }
        reader = self.spark.readStream.format("rmqlog").options(**given).load(str(self.store))
        writer = reader.writeStream.foreachBatch(keep).trigger(availableNow=True)
        return writer.option("checkpointLocation", f"{self.base}/{name}-checkpoint").start()

    def read(self, name: str) -> list[dict[str, object]]:
        return pq.ParquetDataset(self.base / name).read().to_pylist() if (self.base / name).exists() else []


def test_what_a_failed_query_had_goes_to_the_other(spark: SparkSession, tmp_path: Path) -> None:
    queries = Queries(spark, tmp_path)
    append(queries.store, numbered("T", 0, 90, queues=1))
    failing = queries.start("one", fails=True, maxOffsetsPerTrigger="30", invisibleDuration="1s")
    with pytest.raises(StreamingQueryException, match="the handler failed"):
        failing.awaitTermination(_TIMEOUT_S)
    failed = {row["body"] for row in queries.read("one")}
    assert len(failed) == 30
    time.sleep(1.1)  # the invisible time: the process of the query is gone, and nobody renews it
    assert queries.start("two", subExpression="T0 || T1").awaitTermination(_TIMEOUT_S)
    rows = queries.read("two")
    wanted = {message.body for message in numbered("T", 0, 90, queues=1)}
    retried = [row for row in rows if row["storedTopic"] == "%RETRY%g_T"]
    assert {row["topic"] for row in rows} == {"T"}
    assert {row["body"] for row in retried} == {row for row in failed if int(row.split()[1]) % 3 != 2}  # type: ignore[attr-defined]
    assert {row["reconsumeTimes"] for row in retried} == {1}
    bodies = [row["body"] for row in rows]
    assert len(bodies) == len(set(bodies)) == 60
    assert set(bodies) < wanted
    state = read_in_flight(in_flight_directory(Opened(str(queries.store)), "g", "T"))
    assert state is not None
    assert state.is_closed  # the second one has acknowledged everything, and was the last
