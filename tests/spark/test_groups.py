"""Consumer groups through Spark: where a group goes on, whose each queue is, and what stands in the offset
stores afterwards. The rules are tested without Spark, in tests/rmq_spark.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from rmq_spark.consume.group.directory import read_state
from rmq_spark.consume.offset_store import StoreOffsets
from tests.rmq_spark.stream.test_positions import expected
from tests.support.fixtures import Unchanged
from tests.support.ownership import read_events
from tests.support.reads import Place
from tests.support.spark.frames import places, read
from tests.support.staged import append, numbered

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


_TIMEOUT_S = 120  # a query that hangs fails its test; it takes a few seconds


@dataclass
class Run:
    """What one bounded run read: places in the order of batches, and by partition the queues."""

    rows: list[Place] = field(default_factory=list)
    readers: dict[int, set[int]] = field(default_factory=dict)

    @property
    def places(self) -> list[Place]:
        return sorted(self.rows)


class Group:
    """Queries of the group `g` over one path. Each run is a new process with the checkpoint that it names,
    and reads what is there.
    """

    def __init__(self, spark: SparkSession, path: Path, directory: Path, **options: str) -> None:
        self.spark, self.path, self.directory = spark, path, directory
        self.options = {"group": "g", "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET", **options}

    def run(self, checkpoint: str = "c", **more: str) -> Run:
        from pyspark.sql.functions import spark_partition_id

        run = Run()

        def take(frame: DataFrame, batch: int) -> None:
            for row in frame.withColumn("partition", spark_partition_id()).collect():
                run.rows.append((row.storedTopic, row.queueId, row.queueOffset))
                run.readers.setdefault(row.partition, set()).add(row.queueId)

        reader = self.spark.readStream.format("rmqlog").options(**self.options | more).load(str(self.path))
        writer = reader.writeStream.foreachBatch(take).option(
            "checkpointLocation", str(self.directory / checkpoint)
        )
        query = writer.trigger(availableNow=True).start()
        try:
            assert query.awaitTermination(_TIMEOUT_S)
        finally:
            query.stop()
        return run

    def committed(self) -> dict[int, int]:
        """What the broker's file says of the group."""
        found = StoreOffsets("g", {"broker-a": str(self.path)}).read()
        return {queue.queue_id: offset for queue, offset in found.items() if queue.topic == "T"}

    def offsets(self, checkpoint: str = "c") -> str:
        """The newest entry of Spark's offset log."""
        log = self.directory / checkpoint / "offsets"
        newest = max((path for path in log.iterdir() if path.name.isdigit()), key=lambda path: int(path.name))
        return newest.read_text().splitlines()[-1]


@pytest.fixture
def root(root: Path) -> Path:
    """Topic T, four queues of 5 messages."""
    append(root, numbered("T", 0, 20))
    return root


@pytest.fixture
def group(spark: SparkSession, root: Path, tmp_path: Path) -> Group:
    return Group(spark, root, tmp_path)


# ---- where it begins and goes on ---------------------------------------------------------------------------


def test_a_group_goes_on_with_its_checkpoint_and_without(group: Group, root: Path) -> None:
    assert group.run(clientId="me").places == expected("T", *[(0, 5)] * 4)
    assert group.committed() == dict.fromkeys(range(4), 5)
    directory = f"{root}/.rmqlog/groups/g"
    assert [(each.event, each.queue) for each in read_events(directory) if each.topic == "T"] == [
        *(("gain", queue) for queue in range(4)), *(("release", queue) for queue in range(4))
    ]  # fmt: skip
    assert {each.client for each in read_events(directory)} == {"me"}
    assert read_state(directory).members == {}  # it has left when the query has ended
    append(root, numbered("T", 20, 6))
    assert group.run(maxOffsetsPerTrigger="2").places == expected("T", (5, 7), (5, 7), (5, 6), (5, 6))
    assert group.run().rows == []
    append(root, numbered("T", 26, 2))
    assert group.run("another").places == [("T", 2, 6), ("T", 3, 6)]
    assert group.committed() == dict.fromkeys(range(4), 7)
    # The first query's own checkpoint is behind now: the group is not.
    append(root, numbered("T", 28, 1))
    assert group.run().rows == [("T", 0, 7)]
    assert '"$from": {"T": {"broker-a": {"2": 7, "3": 7}}}' in group.offsets()
    append(root, numbered("T", 29, 3))
    assert places(read(group.spark, root, group="g")) == [("T", 1, 7), ("T", 2, 7), ("T", 3, 7)]


def test_a_strategy_of_the_user_decides(spark: SparkSession, root: Path, tmp_path: Path) -> None:
    own = {"allocateMessageQueueStrategy": "tests.support.own_strategies:ByParity"}
    found = Group(spark, root, tmp_path, offsetStore="none", consumers="2", **own).run()
    assert found.places == expected("T", *[(0, 5)] * 4)
    assert found.readers == {0: {0, 2}, 1: {1, 3}}


def test_with_no_offset_store_only_the_checkpoint_knows(
    spark: SparkSession, root: Path, tmp_path: Path, unchanged: Unchanged
) -> None:
    """Each client is one partition."""
    group = Group(spark, root, tmp_path, offsetStore="none", consumers="2")
    with unchanged(root):
        found = group.run("one")
        assert found.places == expected("T", *[(0, 5)] * 4)
        assert found.readers == {0: {0, 1}, 1: {2, 3}}
        assert group.run("one").rows == []
        assert len(group.run("two").rows) == 20
