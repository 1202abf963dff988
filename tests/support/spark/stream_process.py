"""A streaming query in a process of its own, to be killed: a batch goes to a directory named after its id,
anew when it comes again.

python -m tests.support.spark.stream_process STORE CHECKPOINT OUTPUT [OPTION=VALUE …]
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

COLUMNS = "topic string, queueId int, queueOffset long, body binary"


def main(store: str, checkpoint: str, output: str, *options: str) -> None:
    """Streams until it is killed; prints a line when the query runs."""
    from pyspark.sql import SparkSession

    import rmq_spark

    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )
    rmq_spark.register(spark)
    query = start_query(spark, store, checkpoint, output, *options)
    print("running", flush=True)
    query.awaitTermination()


def start_query(
    spark: SparkSession, store: str, checkpoint: str, output: str, *options: str
) -> StreamingQuery:
    def keep(frame: DataFrame, batch: int) -> None:
        frame.write.mode("overwrite").parquet(f"{output}/batch={batch}")

    reader = (
        spark.readStream.format("rmqlog")
        .schema(COLUMNS)
        .options(**dict(option.split("=", 1) for option in options))
    )
    return reader.load(store).writeStream.foreachBatch(keep).option("checkpointLocation", checkpoint).start()


if __name__ == "__main__":
    main(*sys.argv[1:])
