"""A streaming query in a process of its own that dies where it is told to: Python, the JVM and its workers at
once, by SIGKILL.

Each file of `source` is a micro-batch. The sink is `rmqlog` as it is; around its commit every change of a
file is looked at, and the environment says at which one, or behind the commit, everything that the query
started ends.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSourceStreamWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from rmq_spark.spark.data_source import RmqLogDataSource
from rmq_spark.spark.writers import RmqLogStreamWriter
from store_format.bookkeeping.journal import Journal
from store_format.opened.store import Opened
from tests.support.failing_writer import Failure, install
from tests.support.spark.processes import end_session
from tests.support.writes import SMALL

# When, how, and at which change, as "new torn pwrite /commitlog/" or "again kill unlink /abort": in a commit
# that begins with a store in order, or with one that another death left; before the change, or in the midst
# of writing; the first of this function whose path has this part. "after 3": the commit of batch 3 has
# returned, and Spark does not know it yet. Empty: never.
KILL = "RMQLOG_TEST_KILL"
REPORT = "RMQLOG_TEST_REPORT"  # a file that gets a line of JSON for each commit


class _Doom(Failure):
    """A change that ends the query instead of this process alone, found by its name and path instead of its
    number.
    """

    def __init__(self, what: str, name: str, part: str) -> None:
        super().__init__(what, 0)
        self._name, self._part = name, part

    def happens(self, name: str, args: tuple[Any, ...]) -> bool:
        super().happens(name, args)
        return name == self._name and self._part in _path(args[0])

    def fail(self, original: Any, name: str, args: tuple[Any, ...]) -> None:
        _report(killed=name, path=_path(args[0]), change=self.count)
        super().fail(original, name, args)

    def die(self) -> None:
        end_session(os.getsid(0))


class _DoomedWriter(RmqLogStreamWriter):
    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        when, what, name, part = (os.environ.get(KILL, "").split() + [""] * 4)[:4]
        is_again = os.path.exists(Journal.path(Opened(self._target.options.path)))
        doom = _Doom(what, name if is_again == (when == "again") else "", part)
        originals = install(doom)
        try:
            super().commit(messages, batchId)
        finally:
            for function, original in originals.items():
                setattr(os, function, original)
        _report(batch=batchId, changes=doom.count)
        if (when, what) == ("after", str(batchId)):
            doom.die()


def _path(file: int | str) -> str:
    return os.readlink(f"/proc/self/fd/{file}") if isinstance(file, int) else file


class DoomedDataSource(RmqLogDataSource):
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        return _DoomedWriter(self._target(schema))


def _report(**what: object) -> None:
    with open(os.environ[REPORT], "a", encoding="utf-8") as file:
        file.write(json.dumps(what) + "\n")


def session() -> SparkSession:
    """Quick to start, for it does not live long: most of that is the JVM's compiler."""
    builder = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
    )
    return builder.config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1").getOrCreate()


def main(directory: Path) -> None:
    """`write`, in a session of this process that dies where it is told to."""
    spark = session()
    spark.dataSource.register(DoomedDataSource)
    write(spark, directory)


def write(spark: SparkSession, directory: Path) -> None:
    """Writes all there is in `directory`/source that its checkpoint does not know yet, and ends."""
    lines = spark.readStream.option("maxFilesPerTrigger", 1).text(str(directory / "source"))
    rows = lines.selectExpr("'T' AS topic", "value AS body", "value AS keys").repartition(2)
    writer = rows.writeStream.format("rmqlog").options(**SMALL).option("path", str(directory / "store"))
    writer = writer.option("checkpointLocation", str(directory / "checkpoint")).trigger(availableNow=True)
    assert writer.start().awaitTermination(200)
