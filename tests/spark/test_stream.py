"""Streams through Spark: started, bounded, continued and broken, over stores that a broker wrote and that grow while they are read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.spark.frames import PLACE, Place, told, told_places

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Golden = Callable[[str], Path]
STORE = "basic-5.5.0"
_TIMEOUT_S = 120


class Stream:
    """One query over one store, with a checkpoint that outlives its runs; what its batches held is kept by batch id."""

    def __init__(self, spark: SparkSession, root: Path, checkpoint: Path, **options: str | int) -> None:
        self.spark, self.root, self.checkpoint = spark, root, checkpoint
        self.options = {name: str(value) for name, value in options.items()}
        self.batches: dict[int, list[Place]] = {}

    def run(self, **more: str | int) -> list[Place]:
        """Everything that is there now (Trigger.AvailableNow); the places of this run's rows in the order of batches."""
        before = set(self.batches)
        reader = self.spark.readStream.format("rmqlog").options(**self.options | {name: str(value) for name, value in more.items()})
        writer = reader.load(str(self.root)).writeStream.foreachBatch(self._take)
        query = writer.option("checkpointLocation", str(self.checkpoint)).trigger(availableNow=True).start()
        try:
            assert query.awaitTermination(_TIMEOUT_S)
        finally:
            query.stop()
        return [place for batch in sorted(self.batches.keys() - before) for place in self.batches[batch]]

    def _take(self, frame: DataFrame, batch: int) -> None:
        self.batches[batch] = [(row.topic, row.queueId, row.queueOffset) for row in frame.select(*PLACE.split(",")).collect()]


@pytest.fixture
def stream(spark: SparkSession, tmp_path: Path) -> Callable[..., Stream]:
    return lambda root, **options: Stream(spark, root, tmp_path / "checkpoint", **options)


@pytest.mark.parametrize("limit", [{}, {"maxOffsetsPerTrigger": 700}, {"maxBytesPerTrigger": "250k"}, {"minOffsetsPerTrigger": 10**6}])
def test_available_now_reads_all_once_whatever_the_limit(
    golden: Golden, stream: Callable[..., Stream], limit: dict[str, str | int]
) -> None:
    query = stream(golden(STORE), startingOffsets="earliest", **limit)
    expected = told_places(told(STORE, lambda row: not row["topic"].startswith("%") and row["topic"] != "SCHEDULE_TOPIC_XXXX"))
    assert sorted(query.run()) == expected
    assert (len(query.batches) > 1) == bool(limit.keys() & {"maxOffsetsPerTrigger", "maxBytesPerTrigger"})
    assert query.run() == []
