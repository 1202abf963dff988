"""A store that a real broker wrote, read with Spark: messages, counts per queue, one SQL query. Then a stream
from it into a new log.

`make demo` runs it; with a path it reads that store instead, and writes nothing: `python examples/demo.py
/data/store`.
"""

from __future__ import annotations

import sys
import tarfile
import tempfile
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as f

import rmq_spark

ARCHIVE = Path(__file__).resolve().parent.parent / "tests" / "golden" / "basic-5.5.0" / "store.tar.gz"


def show(spark: SparkSession, store: str) -> None:
    messages = spark.read.format("rmqlog").load(store)

    print("\nMessages (the first ten with a tag; every column is in docs/columns.md)\n")
    (
        messages.where("tags IS NOT NULL")
        .orderBy("topic", "queueId", "queueOffset")
        .select(
            "topic",
            "queueId",
            "queueOffset",
            "storeTimestamp",
            "tags",
            "keys",
            f.length("body").alias("bodyBytes"),
        )
        .show(10, truncate=40)
    )

    print("Messages per queue\n")
    counts = messages.groupBy("topic", "queueId").agg(
        f.count("*").alias("messages"),
        f.min("queueOffset").alias("first"),
        f.max("queueOffset").alias("last"),
        f.sum(f.length("body")).alias("bodyBytes"),
    )
    counts.orderBy("topic", "queueId").show(50)

    print("SQL: what the regions order\n")
    path = store.replace("'", "\\'")
    spark.sql(f"CREATE TEMPORARY VIEW messages USING rmqlog OPTIONS (path '{path}')")
    query = """
        SELECT topic, properties['region'] AS region, count(*) AS messages, max(storeTimestamp) AS latest
        FROM messages
        WHERE properties['region'] IS NOT NULL
        GROUP BY topic, region
        ORDER BY messages DESC, topic, region
        LIMIT 10"""
    print(query.replace("\n        ", "\n  "), "\n")
    spark.sql(query).show(truncate=False)


def copy(spark: SparkSession, store: str, log: str) -> None:
    """One topic into a new log, as a stream: each micro-batch once, however often it is repeated."""
    print("A stream writes the topic Orders into a new log, as OrdersCopy\n")
    orders = (
        spark.readStream.format("rmqlog").option("subscribe", "Orders").option("startingOffsets", "earliest")
    )
    query = (
        orders.option("maxOffsetsPerTrigger", 1000)
        .load(store)
        .writeStream.format("rmqlog")
        .option("topic", "OrdersCopy")
        .option("mappedFileSizeCommitLog", "16m")
        .option("checkpointLocation", f"{log}-checkpoint")
        .trigger(availableNow=True)
        .start(log)
    )
    query.awaitTermination()
    rows = [progress.numInputRows for progress in query.recentProgress if progress.numInputRows]
    print(f"{sum(rows)} messages, by {len(rows)} micro-batches. What is in the new log:\n")
    written = spark.read.format("rmqlog").load(log)
    written.groupBy("topic").agg(f.count("*").alias("messages"), f.countDistinct("msgId").alias("ids")).show()


def main() -> None:
    spark = (
        SparkSession.builder.master("local[2]")
        .appName("rmqlog demo")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", "2")  # as many as cores, for so few messages
        .config("spark.sql.adaptive.enabled", "false")  # a stream turns it off itself, and warns
        # With this socket, which conf/ turns on for speed, Spark 4.3 leaves a harmless traceback behind the
        # commit of a stream's batch.
        .config("spark.python.unix.domain.socket.enabled", "false")
        .getOrCreate()
    )
    rmq_spark.register(spark)
    try:
        if len(sys.argv) > 1:
            show(spark, sys.argv[1])
            return
        with tempfile.TemporaryDirectory(prefix="rmqlog-demo-") as place:
            store = f"{place}/store"
            with tarfile.open(ARCHIVE) as archive:
                # since Python 3.11.4
                archive.extraction_filter = getattr(tarfile, "data_filter", lambda member, path: member)
                archive.extractall(store)
            show(spark, store)
            copy(spark, store, f"{place}/log")
    finally:
        spark.stop()


if __name__ == "__main__":
    main()
