"""Writing with Spark, local[2], from a cached DataFrame: `rmqlog` beside a sink that only counts."""

from __future__ import annotations

import shutil
from collections.abc import Callable
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
    frame = _cached(spark, source)
    rows = frame.count()
    target = directory / "written"
    cases: dict[str, Callable[[], int]] = {"ceiling": partial(_count, frame, rows)}
    for flush in ("ASYNC_FLUSH", "SYNC_FLUSH"):
        for index in ("true", "false"):
            name = f"{flush}, {'with' if index == 'true' else 'without'} index"
            cases[name] = partial(
                _write, frame, target, rows, {"flushDiskType": flush, "messageIndexEnable": index}
            )
    try:
        with WorkerMemory() as memory:
            rates = interleave(
                cases, rounds, cpu_seconds, before={name: partial(_remove, target) for name in cases}
            )
    finally:
        frame.unpersist()
        _remove(target)
    comparisons = [Comparison(name, rates[name], rates["ceiling"]) for name in cases if name != "ceiling"]
    return comparisons, Memory(memory.resident_bytes, memory.own_bytes)


def _cached(spark: SparkSession, source: Path) -> DataFrame:
    given = F.map_filter("properties", lambda name, _: name.isin(*_GIVEN))
    frame = spark.read.format("rmqlog").load(str(source)).withColumn("properties", given)
    return frame.select(*_COLUMNS).cache()


def _write(frame: DataFrame, target: Path, rows: int, options: dict[str, str]) -> int:
    frame.write.format("rmqlog").mode("append").options(**options).save(str(target))
    return rows


def _count(frame: DataFrame, rows: int) -> int:
    frame.write.format("rmqlog_count").mode("append").option("rows", str(rows)).save()
    return rows


def _remove(target: Path) -> None:
    shutil.rmtree(target, ignore_errors=True)
