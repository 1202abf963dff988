"""A program: reads a store on object storage with Spark, and prints JSON.

`python -m tests.support.spark.object_job URL DIRECTORY SETTINGS OTHER`: SETTINGS of the session are a JSON
object, and are for the bucket of the address OTHER.
"""

from __future__ import annotations

import json
import sys
import traceback
from pathlib import Path
from urllib.request import urlopen

from pyspark.sql import DataFrame, DataFrameReader, SparkSession

import rmq_spark

_KEYS = ("topic", "queueId", "queueOffset", "msgId", "body")


def main(url: str, directory: Path, settings: str, other: str) -> None:
    for name in ("events", "pages"):
        (directory / name).mkdir()
    session = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.port", "0")
        .config("spark.sql.debug.maxToStringFields", "1000")
        .config("spark.eventLog.enabled", "true")
        .config("spark.eventLog.compress", "false")  # a test looks for words in it
        .config("spark.eventLog.dir", str(directory / "events"))
        .config(map=json.loads(settings))
        .getOrCreate()
    )
    rmq_spark.register(session)
    reader = session.read.format("rmqlog")
    batch = reader.load(url)
    found = {
        "batch": rows_of(batch),
        "orders": rows_of(reader.option("subscribe", "Orders").load(url)),
        "queues": batch.sparkSession.read.format("rmqlog").option("view", "queues").load(url).count(),
        "stream": _streamed(session, other, directory),
        "plan": batch._jdf.queryExecution().toString(),
        "error": _error_of(f"{url}-denied", reader),
    }
    found["orders by settings"] = rows_of(reader.option("subscribe", "Orders").load(other))
    found["settings refused"] = _error_of(f"{other}-denied", reader)
    session.conf.set("spark.hadoop.fs.s3a.aws.credentials.provider", "com.example.Vault")
    session.conf.set("spark.sql.execution.pyspark.udf.tracebackWithLocals.enabled", "true")
    rmq_spark.register(session)  # with the settings that the session has now
    found["unknown provider"] = _error_of(url, reader)
    _keep_pages(session, directory / "pages")
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


def _error_of(url: str, reader: DataFrameReader) -> str:
    try:
        reader.load(url).collect()
    except Exception as error:  # as a user sees it
        return "".join(traceback.format_exception(error))
    return ""


def _keep_pages(session: SparkSession, directory: Path) -> None:
    """The pages of Spark's UI, and what its API says of the application."""
    context = session.sparkContext
    of_application = f"api/v1/applications/{context.applicationId}"
    paths = [
        *("jobs/", "stages/", "environment/", "executors/", "SQL/", "StreamingQuery/"),
        *(f"SQL/execution/?id={number}" for number in range(6)),
        *(f"{of_application}/{name}" for name in ("jobs", "stages", "environment", "allexecutors")),
        f"{of_application}/sql?details=true&planDescription=true",
    ]
    for number, path in enumerate(paths):
        with urlopen(f"{context.uiWebUrl}/{path}") as page:
            (directory / str(number)).write_bytes(page.read())


def rows_of(frame: DataFrame) -> list[str]:
    return sorted(str(row) for row in frame.select(*_KEYS).collect())


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3], sys.argv[4])
