"""A Spark driver that dies, or stands still, in the middle of a commit: run as `python -m
tests.interop.stopping_driver`.

It runs a stream into a store, as `tests.interop.spark.write_stream` does, and meets its end in the commit of
batch 1. Arguments: store, directory of source and checkpoint, `Point` and write options as JSON.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSourceStreamWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from rmq_spark.spark.data_source import RmqLogDataSource
from rmq_spark.spark.writers import RmqLogStreamWriter
from tests.interop.stopping import End, Point
from tests.support.failing_writer import install

_BATCH = 1


def _die(driver: int) -> None:
    """From the driver down, so that nobody notices a death below: its JVM, what that has started, this
    process.
    """
    ids = [os.getpid()]
    while ids[-1] != driver:
        assert ids[-1] > 1, "the driver is no ancestor of the process that commits"
        ids.append(int(Path(f"/proc/{ids[-1]}/stat").read_text().rpartition(") ")[2].split()[1]))
    for process_id in reversed(ids):
        os.kill(process_id, signal.SIGKILL)


class _Writer(RmqLogStreamWriter):
    point: Point
    driver: int

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        if batchId == _BATCH:
            driver = self.driver
            install(End(self.point, lambda: _die(driver)))
        super().commit(messages, batchId)


class _Source(RmqLogDataSource):
    """The format under its own name, with the options `point` and `driver` for this file."""

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        point, driver = self.options.pop("point"), self.options.pop("driver")
        made = super().streamWriter(schema, overwrite)
        assert isinstance(made, RmqLogStreamWriter)
        writer = _Writer(made._target)
        writer.point, writer.driver = Point.from_json(point), int(driver)
        return writer


def main(store: str, directory: str, point: str, options: str) -> None:
    from tests.interop.spark import stream_into

    spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
    spark.dataSource.register(_Source)
    stream_into(
        spark, Path(store), Path(directory), point=point, driver=str(os.getpid()), **json.loads(options)
    )
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
