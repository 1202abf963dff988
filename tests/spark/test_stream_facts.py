"""What Spark asks of a Python stream reader, and when: the facts that shape ours, so that we learn when Spark
changes.

A source of numbers writes down every call; the calls come from processes of Spark's own.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

_TIMEOUT_S = 200  # a query that hangs fails its test; it takes a few seconds
_BATCHES = 2


def source(name: str, log: Path, *, bounded: bool, swapped: bool = False) -> type[DataSource]:
    """A stream of 2 batches of one row. `bounded` implements AvailableNow; `swapped` gives its last offset
    once more in another order.
    """

    class Reader(DataSourceStreamReader):
        def __init__(self) -> None:
            self.swaps = 1 if swapped else 0

        def note(self, *told: Any) -> None:
            with log.open("a") as file:
                file.write(json.dumps(told) + "\n")

        def initialOffset(self) -> dict[str, Any]:
            self.note("initialOffset")
            return {"a": 0, "b": 0}

        def latestOffset(self, start: Any = None, limit: Any = None) -> dict[str, Any]:
            self.note("latestOffset", start, type(limit).__name__)
            number = start["a"]
            if number == _BATCHES and self.swaps:
                self.swaps -= 1
                return {"b": number, "a": number}
            return {"a": number + 1, "b": number + 1} if number < _BATCHES else start

        def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
            self.note("partitions", start, end)
            return [InputPartition(end["a"])]

        def commit(self, end: dict[str, Any]) -> None:
            self.note("commit", end)

        def stop(self) -> None:
            self.note("stop")

        def read(self, partition: InputPartition) -> Iterator[tuple[int]]:
            return iter([(partition.value,)])

    class Bounded(Reader, SupportsTriggerAvailableNow):
        def prepareForTriggerAvailableNow(self) -> None:
            self.note("prepareForTriggerAvailableNow")

    class Numbers(DataSource):
        @classmethod
        def name(cls) -> str:
            return name

        def schema(self) -> str:
            return "n bigint"

        def streamReader(self, schema: StructType) -> DataSourceStreamReader:
            return Bounded() if bounded else Reader()

    return Numbers


def run(spark: SparkSession, name: str, checkpoint: Path, *, once: bool = False) -> None:
    writing = (
        spark.readStream.format(name)
        .load()
        .writeStream.format("noop")
        .option("checkpointLocation", str(checkpoint))
    )
    query = (writing.trigger(once=True) if once else writing.trigger(availableNow=True)).start()
    assert query.awaitTermination(_TIMEOUT_S)


def calls(log: Path) -> list[list[Any]]:
    return [json.loads(line) for line in log.read_text().splitlines()]


def test_what_a_stream_reader_is_asked_4_3(spark: SparkSession, tmp_path: Path) -> None:
    log = tmp_path / "log"
    spark.dataSource.register(source("facts_stream", log, bounded=True))
    run(spark, "facts_stream", tmp_path / "checkpoint")
    told = calls(log)
    names = [name for name, *_ in told]
    assert names.count("initialOffset") == 2  # so the first answer is kept
    assert names.index("prepareForTriggerAvailableNow") < names.index("initialOffset")
    starts = [start for name, start, *_ in (call for call in told if len(call) > 2) if name == "latestOffset"]
    # what is committed, and once more after the last batch
    assert starts == [{"a": 0, "b": 0}, {"a": 1, "b": 1}, {"a": 2, "b": 2}]
    assert {
        limit for name, *_, limit in (call for call in told if len(call) > 2) if name == "latestOffset"
    } == {"ReadAllAvailable"}
    # not the last one
    assert [end for name, end in (call for call in told if len(call) == 2) if name == "commit"] == [
        {"a": 1, "b": 1}
    ]
    assert "stop" not in names


def test_offsets_are_compared_as_text_4_3(spark: SparkSession, tmp_path: Path) -> None:
    """Another order of keys is a new offset and makes a batch."""
    spark.dataSource.register(source("facts_order", tmp_path / "log", bounded=True, swapped=True))
    run(spark, "facts_order", tmp_path / "checkpoint")
    planned = [
        (start, end)
        for name, start, end in (call for call in calls(tmp_path / "log") if len(call) == 3)
        if name == "partitions"
    ]
    assert [list(end) for _, end in planned] == [["a", "b"], ["a", "b"], ["b", "a"]]
    assert planned[-1][0] == planned[-1][1]  # equal as objects


def test_without_the_mixin_available_now_ends_early_4_3(spark: SparkSession, tmp_path: Path) -> None:
    log = tmp_path / "log"
    spark.dataSource.register(source("facts_unbounded", log, bounded=False))
    run(spark, "facts_unbounded", tmp_path / "checkpoint")
    ends = [end for name, _, end in (call for call in calls(log) if len(call) == 3) if name == "partitions"]
    assert ends == [{"a": 1, "b": 1}]  # of two, and no error


def test_trigger_once_never_asks_after_its_batch_4_3(spark: SparkSession, tmp_path: Path) -> None:
    """So what a stream does once Spark has committed a batch, it does at the next start."""
    log = tmp_path / "log"
    spark.dataSource.register(source("facts_once", log, bounded=True))
    for _ in range(2):
        run(spark, "facts_once", tmp_path / "checkpoint", once=True)
    starts = [call[1] for call in calls(log) if call[0] == "latestOffset"]
    assert starts == [{"a": 0, "b": 0}, {"a": 1, "b": 1}]


def test_spark_masks_the_error_of_stream_reader_4_3(spark: SparkSession, tmp_path: Path) -> None:
    """The last line is an UnboundLocalError of Spark's. On the day it is ours, FailedStreamReader can go."""

    class Failing(DataSource):
        @classmethod
        def name(cls) -> str:
            return "facts_failing"

        def schema(self) -> str:
            return "n int"

        def streamReader(self, schema: StructType) -> DataSourceStreamReader:
            raise ValueError("the reason")

    spark.dataSource.register(Failing)
    frame = spark.readStream.format("facts_failing").load()
    query = frame.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "c")).start()
    with pytest.raises(StreamingQueryException, match="UnboundLocalError"):
        query.awaitTermination(_TIMEOUT_S)
