"""Files that change under Spark: a job ends with right rows, or with an error that names the file."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from store_format import errors
from tests.support.shrinking import COLUMNS, LOST, NAMELESS, check, make_store, round_of

_ERRORS = [name for name in errors.__all__ if name != "StoreError"]


def _without_crash(error: PySparkException) -> errors.StoreError:
    """The error of the data source. Raises the error of Spark if it is another one."""
    if not any(name in str(error) for name in _ERRORS):
        raise error
    return errors.StoreError(str(error))


def _batch(spark: SparkSession, root: str) -> Iterator[int]:
    frame = spark.read.format("rmqlog").option("subscribe", "T").load(root).select(*COLUMNS)
    yield 0
    try:
        yield check(frame.toArrow())
    except PySparkException as error:
        raise _without_crash(error) from error


def _stream(spark: SparkSession, root: str, checkpoint: Path) -> Iterator[int]:
    rows = []

    def keep(batch: DataFrame, number: int) -> None:
        rows.append(check(batch.toArrow()))

    stream = spark.readStream.format("rmqlog").option("subscribe", "T").option("startingOffsets", "earliest")
    writer = stream.load(root).select(*COLUMNS).writeStream.foreachBatch(keep)
    yield 0
    query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    try:
        query.awaitTermination()
    except PySparkException as error:
        raise _without_crash(error) from error
    yield sum(rows)


# store_format/read/test_torn_copy.py changes files in other ways, too.
@pytest.mark.parametrize("what", ["batch", "stream"])
def test_a_file_that_changes_under_a_job(spark: SparkSession, tmp_path: Path, what: str, whole: bool) -> None:
    root, chance = str(tmp_path / "store"), random.Random(what)
    make_store(root)
    for number in range(200 if whole else 1):
        reader = (
            _batch(spark, root)
            if what == "batch"
            else _stream(spark, root, tmp_path / f"checkpoint-{number}")
        )
        ended = round_of(root, "cp", reader, chance, counted=False, delay_s=0.5)
        assert not ended.startswith((NAMELESS, LOST)), ended
