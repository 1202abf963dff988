"""How a read is cut into partitions: whole queues together, a large queue in slices, and every offset exactly
once.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import functions

from tests.support.spark.frames import PLACE, copy_of, places, read, told, told_places
from tests.support.staged import append, numbered

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

STORE = "basic-5.5.0"

Golden = Callable[[str], Path]
Group = dict[tuple[str, int], list[int]]  # queue -> its offsets as they come


def groups(frame: DataFrame) -> dict[int, Group]:
    """What each partition with rows gives, by its number."""
    found: dict[int, Group] = {}
    for row in frame.withColumn("partition", functions.spark_partition_id()).collect():
        found.setdefault(row.partition, {}).setdefault((row.topic, row.queueId), []).append(row.queueOffset)
    return found


def partitions(frame: DataFrame) -> int:
    return frame.rdd.getNumPartitions()


def assert_each_offset_once(
    found: dict[int, Group], store: str = STORE, topics: tuple[str, ...] = ("Audit", "Metrics", "Orders")
) -> None:
    given = [
        (*queue, offset) for group in found.values() for queue, offsets in group.items() for offset in offsets
    ]
    assert sorted(given) == told_places(told(store, lambda row: row["topic"] in topics))


def test_a_small_store_is_few_partitions_of_whole_queues(spark: SparkSession, golden: Golden) -> None:
    frame = read(spark, golden(STORE), columns=PLACE)
    found = groups(frame)
    assert partitions(frame) == len(found) == 1  # less than 4 MiB for two cores is not worth a second task
    assert len(found[0]) == 13
    assert_each_offset_once(found)


@pytest.mark.parametrize("wanted", [1, 2, 5])
def test_min_partitions_keep_small_queues_whole(spark: SparkSession, golden: Golden, wanted: int) -> None:
    frame = read(spark, golden(STORE), columns=PLACE, subscribe="Metrics,Orders", minPartitions=wanted)
    found = groups(frame)
    assert partitions(frame) == len(found) >= wanted
    assert_each_offset_once(found, topics=("Metrics", "Orders"))
    at = Counter(queue for group in found.values() for queue in group)
    assert {at["Metrics", queue] for queue in range(8)} == {1}  # the smallest queues are never cut
    assert all(offsets == sorted(offsets) for group in found.values() for offsets in group.values())


def test_min_partitions_beyond_the_queues_cut_them(spark: SparkSession, golden: Golden) -> None:
    frame = read(spark, golden(STORE), columns=PLACE, subscribe="Audit", minPartitions=7)
    found = groups(frame)
    assert partitions(frame) == len(found) == 7
    slices = sorted(offsets for group in found.values() for offsets in group.values())
    assert [offset for part in slices for offset in part] == list(range(351))  # adjoining, in order
    assert max(map(len, slices)) - min(map(len, slices)) <= 1


def test_min_partitions_beyond_the_messages(spark: SparkSession, golden: Golden) -> None:
    options = {"subscribe": "Audit", "startingOffsets": '{"Audit":{"0":348}}', "columns": PLACE}
    found = groups(read(spark, golden(STORE), minPartitions=10, **options))
    assert sorted(found[number]["Audit", 0] for number in found) == [[348], [349], [350]]


def test_max_bytes_per_partition(spark: SparkSession, golden: Golden) -> None:
    """200 KiB: a queue of Metrics, 15 KB, shares a partition; nothing is read twice or left out."""
    frame = read(spark, golden(STORE), columns=f"{PLACE},storeSize", maxBytesPerPartition="200k")
    found = groups(frame)
    sizes = frame.groupBy(functions.spark_partition_id()).sum("storeSize").collect()
    assert partitions(frame) == len(found) > 3
    assert_each_offset_once(found)
    assert max(len(group) for group in found.values()) > 1
    assert sum(row[1] for row in sizes) == sum(
        row["storeSize"] for row in told(STORE, lambda row: row["topic"][0] in "AMO")
    )


@pytest.mark.parametrize(
    ("options", "least"), [({}, 1), ({"minPartitions": 4}, 4), ({"maxBytesPerPartition": "150k"}, 4)]
)
def test_by_commitlog_each_partition_is_a_range_of_the_log(
    spark: SparkSession, golden: Golden, options: dict[str, str | int], least: int
) -> None:
    frame = read(spark, golden(STORE), columns=f"{PLACE},physicalOffset", splitBy="commitlog", **options)
    assert_each_offset_once(groups(frame))
    edges: dict[int, list[int]] = {}
    for row in frame.withColumn("partition", functions.spark_partition_id()).collect():
        edges.setdefault(row.partition, []).append(row.physicalOffset)
    assert len(edges) >= least
    assert all(offsets == sorted(offsets) for offsets in edges.values())  # one sequential pass
    ranges = sorted((min(offsets), max(offsets)) for offsets in edges.values())
    assert all(before[1] < after[0] for before, after in pairwise(ranges))


@pytest.mark.parametrize("options", [{"minPartitions": 6}, {"splitBy": "commitlog", "minPartitions": 6}])
def test_batches_are_not_given_twice_where_they_are_cut(
    spark: SparkSession, golden: Golden, options: dict[str, str | int]
) -> None:
    """An entry of a BatchCQ queue covers several offsets; a cut between two of them leaves it in two
    partitions.
    """
    frame = read(spark, golden("batchcq-5.5.0"), columns=PLACE, subscribe="Inner", **options)
    found = groups(frame)
    assert len(found) >= 5
    assert_each_offset_once(found, "batchcq-5.5.0", ("Inner",))


@pytest.mark.parametrize(
    ("options", "count"), [({}, 1), ({"minPartitions": 3}, 3), ({"maxBytesPerPartition": "250k"}, 4)]
)
def test_a_scan_is_cut_too(
    spark: SparkSession, golden: Golden, tmp_path: Path, options: dict[str, str | int], count: int
) -> None:
    root = copy_of(golden, STORE, tmp_path)
    shutil.rmtree(root / "consumequeue")
    frame = read(spark, root, columns=PLACE, **options)
    found = groups(frame)
    assert partitions(frame) == len(found) == count
    assert_each_offset_once(found)


def test_a_frame_is_a_snapshot(spark: SparkSession, golden: Golden, tmp_path: Path) -> None:
    """Planned once: what comes later is for the next DataFrame."""
    root = copy_of(golden, STORE, tmp_path)
    frame = read(spark, root, subscribe="Orders", columns=PLACE)
    assert frame.count() == 1326
    append(root, numbered("Orders", 0, 8))
    assert frame.count() == len(places(frame)) == 1326
    assert read(spark, root, subscribe="Orders", columns=PLACE).count() == 1326 + 8
