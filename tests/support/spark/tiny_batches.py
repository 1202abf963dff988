"""A stream from one log to another in micro-batches of ten messages, in a process of its own.

What the sink logs of each commit goes to a file, and behind it the milliseconds of processor time that the
commit took.
"""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path

from pyspark.sql.datasource import DataSourceStreamWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from rmq_spark.spark.data_source import RmqLogDataSource
from rmq_spark.spark.writers import RmqLogStreamWriter
from tests.support.spark.doomed_query import session

LOG = "RMQLOG_TEST_LOG"
ROWS = 10  # of a batch


class _ToldWriter(RmqLogStreamWriter):
    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        logger, handler = logging.getLogger("rmq_spark"), logging.FileHandler(os.environ[LOG])
        logger.setLevel(logging.INFO)
        logger.addHandler(handler)
        begun = time.process_time()
        try:
            super().commit(messages, batchId)
            logger.info("process %d took %.1f ms", os.getpid(), (time.process_time() - begun) * 1000)
        finally:
            logger.removeHandler(handler)
            handler.close()


class ToldDataSource(RmqLogDataSource):
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        return _ToldWriter(self._target(schema))


def main(directory: Path) -> None:
    """All of the store `source` to the store `target`."""
    spark = session()
    spark.dataSource.register(ToldDataSource)
    options = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": str(ROWS), "columns": "topic,body,keys"}
    rows = spark.readStream.format("rmqlog").options(**options).load(str(directory / "source"))
    writer = rows.writeStream.format("rmqlog").option("path", str(directory / "target"))
    query = (
        writer.option("checkpointLocation", str(directory / "checkpoint")).trigger(availableNow=True).start()
    )
    assert query.awaitTermination(2400)
