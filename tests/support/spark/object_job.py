"""A program: reads a store on object storage with Spark, and prints JSON.

`python -m tests.support.spark.object_job URL DIRECTORY`
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

import rmq_spark

_KEYS = ("topic", "queueId", "queueOffset", "msgId", "body")


def main(url: str, directory: Path) -> None:
    (directory / "events").mkdir()
    session = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.eventLog.enabled", "true")
        .config("spark.eventLog.dir", str(directory / "events"))
        .getOrCreate()
    )
    rmq_spark.register(session)
    reader = session.read.format("rmqlog")
    batch = reader.load(url)
    found = {
        "batch": rows_of(batch),
        "orders": rows_of(reader.option("subscribe", "Orders").load(url)),
        "queues": batch.sparkSession.read.format("rmqlog").option("view", "queues").load(url).count(),
        "stream": _streamed(session, url, directory),
        "plan": batch._jdf.queryExecution().toString(),
    }
    session.stop()
    print(json.dumps(found))


def _streamed(session: SparkSession, url: str, directory: Path) -> list[str]:
    rows: list[str] = []
    reader = session.readStream.format("rmqlog").option("startingOffsets", "earliest")
    query = (
        reader.option("includeLastFile", "true")
        .load(url)
        .writeStream.foreachBatch(lambda frame, _: rows.extend(rows_of(frame)))
        .option("checkpointLocation", str(directory / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return sorted(rows)


def rows_of(frame: DataFrame) -> list[str]:
    return sorted(str(row) for row in frame.select(*_KEYS).collect())


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
