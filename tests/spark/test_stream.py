"""Streams through Spark: started, bounded, continued and broken, over stores that a broker wrote and that
grow while they are read.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import StreamingQueryException

from store_format import MessageStore
from tests.rmq_spark.stream.test_positions import expected
from tests.support.live_writer import LOG_FILE_SIZE, QUEUES, message_body
from tests.support.reads import PLACE, Place, told, told_places
from tests.support.spark.frames import places
from tests.support.staged import append, make_store, numbered, update_topic
from tests.test_live_store import writer

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Golden = Callable[[str], Path]
STORE = "basic-5.5.0"
_TIMEOUT_S = 120


class Stream:
    """One query over one store, with a checkpoint that outlives its runs; what its batches held is kept by
    batch id.
    """

    def __init__(self, spark: SparkSession, root: Path, checkpoint: Path, **options: str | int) -> None:
        self.spark, self.root, self.checkpoint = spark, root, checkpoint
        self.options = {name: str(value) for name, value in options.items()}
        self.batches: dict[int, list[Place]] = {}

    def run(self, **more: str | int) -> list[Place]:
        """Everything that is there now (Trigger.AvailableNow); the places of this run's rows in the order of
        batches.
        """
        before = set(self.batches)
        reader = self.spark.readStream.format("rmqlog").options(
            **self.options | {name: str(value) for name, value in more.items()}
        )
        writer = reader.load(str(self.root)).writeStream.foreachBatch(self._take)
        query = writer.option("checkpointLocation", str(self.checkpoint)).trigger(availableNow=True).start()
        try:
            assert query.awaitTermination(_TIMEOUT_S)
        finally:
            query.stop()
        return [place for batch in sorted(self.batches.keys() - before) for place in self.batches[batch]]

    def _take(self, frame: DataFrame, batch: int) -> None:
        self.batches[batch] = [
            (row.topic, row.queueId, row.queueOffset) for row in frame.select(*PLACE.split(",")).collect()
        ]


@pytest.fixture
def stream(spark: SparkSession, tmp_path: Path) -> Callable[..., Stream]:
    return lambda root, **options: Stream(spark, root, tmp_path / "checkpoint", **options)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Topic T, four queues of 5 messages."""
    root = make_store(tmp_path / "store")
    append(root, numbered("T", 0, 20))
    return root


@pytest.mark.parametrize(
    "limit",
    [{"maxOffsetsPerTrigger": 700}, {"minOffsetsPerTrigger": 10**6}],
)
def test_available_now_reads_all_once_whatever_the_limit(
    golden: Golden, stream: Callable[..., Stream], limit: dict[str, str | int]
) -> None:
    query = stream(golden(STORE), startingOffsets="earliest", **limit)
    expected = told_places(
        told(STORE, lambda row: not row["topic"].startswith("%") and row["topic"] != "SCHEDULE_TOPIC_XXXX")
    )
    assert sorted(query.run()) == expected
    assert (len(query.batches) > 1) == ("maxOffsetsPerTrigger" in limit)
    assert query.run() == []


def test_a_restart_goes_on_at_the_checkpoint(root: Path, stream: Callable[..., Stream]) -> None:
    query = stream(root, startingOffsets="earliest")
    assert sorted(query.run()) == expected("T", *[(0, 5)] * 4)
    append(root, numbered("T", 20, 2))
    append(root, numbered("New", 0, 4, queues=2))
    update_topic(root, "T", 6)
    append(root, numbered("T", 22, 6, queues=6))
    assert sorted(query.run(startingOffsets="latest")) == sorted(
        [*expected("T", (5, 7), (5, 7), (5, 6), (5, 6), (0, 1), (0, 1)), *expected("New", (0, 2), (0, 2))]
    )
    assert query.run() == []


def test_data_loss_is_an_error_or_counted(tmp_path: Path, stream: Callable[..., Stream]) -> None:
    root = make_store(tmp_path / "store")
    append(root, numbered("T", 0, 40))
    query = stream(root, startingOffsets="earliest")
    query.run()
    for number in range(40, 400, 40):
        append(root, numbered("T", number, 40))
    for path in sorted((root / "commitlog").iterdir())[:3]:
        path.unlink()
    low = MessageStore.open(str(root)).queue("T", 0).min_offset
    with pytest.raises(StreamingQueryException) as caught:
        query.run()
    said = (
        f"T-0 of broker-a: the next offset is 10 and the queue holds {low} to 100: retention deleted "
        f"{low - 10} messages"
    )
    assert said in str(caught.value)
    assert "set failOnDataLoss=false to continue" in str(caught.value)
    rows = query.run(failOnDataLoss="false")
    lows = [MessageStore.open(str(root)).queue("T", queue).min_offset for queue in range(4)]
    assert sorted(rows) == expected("T", *[(low, 100) for low in lows])


def test_a_batch_can_be_read_twice(spark: SparkSession, root: Path, tmp_path: Path) -> None:
    """foreachBatch reads the source once an action."""
    counts = []

    def twice(frame: DataFrame, batch: int) -> None:
        counts.append((frame.count(), frame.where("queueId = 1").count()))

    reader = (
        spark.readStream.format("rmqlog")
        .options(startingOffsets="earliest", maxOffsetsPerTrigger="8")
        .load(str(root))
    )
    query = (
        reader.writeStream.foreachBatch(twice)
        .option("checkpointLocation", str(tmp_path / "c"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(_TIMEOUT_S)
    assert [total for total, _ in counts] == [8, 8, 4]
    assert sum(some for _, some in counts) == 5


@pytest.mark.slow
def test_a_store_that_grows_and_loses_its_oldest_files(spark: SparkSession, tmp_path: Path) -> None:
    """A continuous query beside a writer in another process; files all of whose messages were read are
    deleted meanwhile.
    """
    root, total = tmp_path / "store", 4000
    with writer(root, total) as done:
        reader = spark.readStream.format("rmqlog").schema(
            "topic string, queueId int, queueOffset long, body binary"
        )
        frame = reader.option("startingOffsets", "earliest").load(str(root))
        query = (
            frame.writeStream.format("memory")
            .queryName("growing")
            .option("checkpointLocation", str(tmp_path / "c"))
            .trigger(processingTime="500 milliseconds")
            .start()
        )
        try:
            deadline, deleted, seen = time.monotonic() + _TIMEOUT_S, 0, 0
            while seen < total and time.monotonic() < deadline:
                assert query.exception() is None
                seen = spark.table("growing").count()
                deleted += _delete_read_files(root, seen // len(QUEUES) - 50)
                time.sleep(0.5)
            assert done()
            progress = query.lastProgress
        finally:
            query.stop()
    rows = spark.table("growing").collect()
    places = sorted((row.topic, row.queueId, row.queueOffset) for row in rows)
    assert places == sorted((*queue, offset) for queue in QUEUES for offset in range(total // len(QUEUES)))
    assert all(bytes(row.body) == message_body(row.topic, row.queueId, row.queueOffset) for row in rows)
    assert deleted > 3
    assert progress is not None
    latest = json.loads(progress["sources"][0]["latestOffset"] or "{}")
    assert latest["Live"]["store"] == dict.fromkeys("012", total // len(QUEUES))


def _delete_read_files(root: Path, offset: int) -> int:
    """Deletes the commitlog files in front of the one with the first queue's message `offset`; how many."""
    if offset <= 0:
        return 0
    units = b"".join(path.read_bytes() for path in sorted((root / "consumequeue" / "Live" / "0").iterdir()))
    physical = int.from_bytes(units[20 * offset : 20 * offset + 8], "big")
    old = sorted((root / "commitlog").iterdir())[:-1]
    old = [path for path in old if int(path.name) + LOG_FILE_SIZE <= physical]
    for path in old:
        path.unlink()
    return len(old)


def test_a_table_in_the_catalog_is_a_stream_too(spark: SparkSession, root: Path, tmp_path: Path) -> None:
    spark.sql(
        f"CREATE TABLE streamed USING rmqlog OPTIONS (path '{root}', startingOffsets 'earliest', "
        f"maxOffsetsPerTrigger '9')"
    )
    try:
        writing = spark.readStream.table("streamed").writeStream.format("memory").queryName("from_table")
        query = writing.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True).start()
        assert query.awaitTermination(_TIMEOUT_S)
        assert places(spark.table("from_table")) == expected("T", *[(0, 5)] * 4)
        assert spark.table("streamed").count() == 20
    finally:
        spark.sql("DROP TABLE streamed")
