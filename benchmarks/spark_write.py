"""Writing with Spark, local[2], from a cached DataFrame: `rmqlog` beside a sink that only counts."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from benchmarks.processes import WorkerMemory, cpu_seconds
from benchmarks.rounds import interleave
from benchmarks.spark_read import Comparison, Memory

_COLUMNS = ("topic", "tags", "keys", "properties", "body")
_GIVEN = ("region", "traceId")  # user properties; tags, keys and ids have columns of their own


def measure_spark_write(
    spark: SparkSession, source: Path, directory: Path, rounds: int
) -> tuple[list[Comparison], Memory]:
    """Everything in the store `source`, cached, into a new store each time: both kinds of flush, with and
    without index.
    """
    target = directory / "written"
    with cached_messages(spark, source) as frame:
        cases = write_cases(frame, target)
        try:
            with WorkerMemory() as memory:
                before = {name: partial(remove, target) for name in cases}
                rates = interleave(cases, rounds, cpu_seconds, before=before)
        finally:
            remove(target)
    comparisons = [Comparison(name, rates[name], rates["ceiling"]) for name in cases if name != "ceiling"]
    return comparisons, Memory(memory.resident_bytes, memory.own_bytes)


def write_cases(frame: DataFrame, target: Path) -> dict[str, Callable[[], int]]:
    """The ceiling, and a write for both kinds of flush with and without index. `target` must be removed
    before each.
    """
    rows = frame.count()
    cases: dict[str, Callable[[], int]] = {"ceiling": partial(_count, frame, rows)}
    for flush in ("ASYNC_FLUSH", "SYNC_FLUSH"):
        for index in ("true", "false"):
            name = f"{flush}, {'with' if index == 'true' else 'without'} index"
            cases[name] = partial(
                _write, frame, target, rows, {"flushDiskType": flush, "messageIndexEnable": index}
            )
    return cases


@contextmanager
def cached_messages(spark: SparkSession, source: Path) -> Iterator[DataFrame]:
    """The messages of a store as an application has them, in the session's memory."""
    given = F.map_filter("properties", lambda name, _: name.isin(*_GIVEN))
    frame = spark.read.format("rmqlog").load(str(source)).withColumn("properties", given)
    cached = frame.select(*_COLUMNS).cache()
    try:
        yield cached
    finally:
        cached.unpersist()


def _write(frame: DataFrame, target: Path, rows: int, options: dict[str, str]) -> int:
    frame.write.format("rmqlog").mode("append").options(**options).save(str(target))
    return rows


def _count(frame: DataFrame, rows: int) -> int:
    frame.write.format("rmqlog_count").mode("append").option("rows", str(rows)).save()
    return rows


def remove(target: Path) -> None:
    """The store that a write has left."""
    shutil.rmtree(target, ignore_errors=True)
