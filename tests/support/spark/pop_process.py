"""A continuous query that pops, in a process of its own, to be killed: each attempt at a batch has a
directory of its own, named after the batch and the process.

python -m tests.support.spark.pop_process STORE CHECKPOINT OUTPUT [OPTION=VALUE …]. Each batch takes a little
longer than it needs, so that one is in flight when the process is killed.
"""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

COLUMNS = "topic string, queueId int, queueOffset long, body binary"
_PAUSE_S = 0.2


def start_query(
    spark: SparkSession,
    store: str,
    checkpoint: str,
    output: str,
    *options: str,
    available_now: bool = False,
    pause_s: float = 0.0,
) -> StreamingQuery:
    """Starts the query; `batch=N/PID` below `output` gets the rows of each attempt at batch N."""

    def keep(frame: DataFrame, batch: int) -> None:
        frame.write.mode("overwrite").parquet(f"{output}/batch={batch}/{os.getpid()}")
        time.sleep(pause_s)

    reader = (
        spark.readStream.format("rmqlog")
        .schema(COLUMNS)
        .options(group="g", subscribe="T", consumeMode="pop", consumeFromWhere="CONSUME_FROM_FIRST_OFFSET")
        .options(**dict(option.split("=", 1) for option in options))
    )
    writer = reader.load(store).writeStream.foreachBatch(keep).option("checkpointLocation", checkpoint)
    return (writer.trigger(availableNow=True) if available_now else writer).start()


def main(store: str, checkpoint: str, output: str, *options: str) -> None:
    """Streams until it is killed; prints a line when the query runs."""
    from pyspark.sql import SparkSession

    import rmq_spark

    spark = (
        SparkSession.builder.master("local[1]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1")
        .getOrCreate()
    )
    rmq_spark.register(spark)
    query = start_query(spark, store, checkpoint, output, *options, pause_s=_PAUSE_S)
    print("running", flush=True)
    query.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
