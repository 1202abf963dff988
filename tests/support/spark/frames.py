"""What the Spark tests share: a read with options, and the places of its rows."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tests.support.reads import PLACE, Place

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def read(spark: SparkSession, path: Path | list[Path], **options: str | int | bool) -> DataFrame:
    """`spark.read.format("rmqlog")` of one path or several."""
    reader = spark.read.format("rmqlog").options(**{name: _text(value) for name, value in options.items()})
    return reader.load([str(root) for root in path]) if isinstance(path, list) else reader.load(str(path))


def _text(value: str | int | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def places(frame: DataFrame) -> list[Place]:
    """The places of all rows, sorted; a row that comes twice is there twice."""
    return sorted(
        (row.topic, row.queueId, row.queueOffset) for row in frame.select(*PLACE.split(",")).collect()
    )
