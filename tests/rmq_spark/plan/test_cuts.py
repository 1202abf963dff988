"""How a read is cut into partitions: whole queues together, a large queue in slices, and every offset exactly
once.
"""

from __future__ import annotations

import shutil
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest

from tests.support.fixtures import Golden
from tests.support.reads import PLACE, Row, copy_of, read, told, told_places
from tests.support.staged import append, numbered

STORE = "basic-5.5.0"

Group = dict[tuple[str, int], list[int]]  # queue -> its offsets as they come


def groups(parts: list[list[Row]], store: str = STORE, *topics: str) -> list[Group]:
    """What each partition gives. All together give each message of the topics once."""
    found: list[Group] = []
    for part in parts:
        assert part
        found.append({})
        for row in part:
            found[-1].setdefault((row["topic"], row["queueId"]), []).append(row["queueOffset"])
    given = [(*queue, at) for group in found for queue, offsets in group.items() for at in offsets]
    wanted = topics or ("Audit", "Metrics", "Orders")
    assert sorted(given) == told_places(told(store, lambda row: row["topic"] in wanted))
    return found


def test_a_small_store_is_few_partitions_of_whole_queues(golden: Golden) -> None:
    found = groups(read(golden(STORE), columns=PLACE).parts())
    assert len(found) == 1  # less than 4 MiB for two cores is not worth a second task
    assert len(found[0]) == 13
    assert all(offsets == sorted(offsets) for offsets in found[0].values())  # nothing sorts them later


@pytest.mark.parametrize("wanted", [1, 2, 5])
def test_min_partitions_keep_small_queues_whole(golden: Golden, wanted: int) -> None:
    frame = read(golden(STORE), columns=PLACE, subscribe="Metrics,Orders", minPartitions=wanted)
    found = groups(frame.parts(), STORE, "Metrics", "Orders")
    assert len(found) >= wanted
    at = Counter(queue for group in found for queue in group)
    assert {at["Metrics", queue] for queue in range(8)} == {1}  # the smallest queues are never cut
    assert all(offsets == sorted(offsets) for group in found for offsets in group.values())


def test_min_partitions_beyond_the_queues_cut_them(golden: Golden) -> None:
    frame = read(golden(STORE), columns=PLACE, subscribe="Audit", minPartitions=7)
    slices = sorted(offsets for group in groups(frame.parts(), STORE, "Audit") for offsets in group.values())
    assert len(slices) == 7
    assert [offset for part in slices for offset in part] == list(range(351))  # adjoining, in order
    assert max(map(len, slices)) - min(map(len, slices)) <= 1


def test_min_partitions_beyond_the_messages(golden: Golden) -> None:
    options = {"subscribe": "Audit", "startingOffsets": '{"Audit":{"0":348}}', "columns": PLACE}
    parts = read(golden(STORE), minPartitions=10, **options).parts()
    assert sorted([row["queueOffset"] for row in part] for part in parts) == [[348], [349], [350]]


def test_max_bytes_per_partition(golden: Golden) -> None:
    """200 KiB: a queue of Metrics, 15 KB, shares a partition."""
    found = groups(read(golden(STORE), columns=PLACE, maxBytesPerPartition="200k").parts())
    assert len(found) > 3
    assert max(map(len, found)) > 1


@pytest.mark.parametrize(
    ("options", "least"), [({}, 1), ({"minPartitions": 4}, 4), ({"maxBytesPerPartition": "150k"}, 4)]
)
def test_by_commitlog_each_partition_is_a_range_of_the_log(
    golden: Golden, options: dict[str, str | int], least: int
) -> None:
    parts = read(golden(STORE), columns=f"{PLACE},physicalOffset", splitBy="commitlog", **options).parts()
    assert len(groups(parts)) >= least
    edges = [[row["physicalOffset"] for row in part] for part in parts]
    assert all(offsets == sorted(offsets) for offsets in edges)  # one sequential pass
    assert all(before[-1] < after[0] for before, after in pairwise(sorted(edges)))


@pytest.mark.parametrize("split_by", ["queue", "commitlog"])
def test_batches_are_not_given_twice_where_they_are_cut(golden: Golden, split_by: str) -> None:
    """An entry of a BatchCQ queue covers several offsets; a cut between two of them leaves it in two
    partitions.
    """
    options = {"subscribe": "Inner", "splitBy": split_by, "columns": PLACE}
    frame = read(golden("batchcq-5.5.0"), minPartitions=6, **options)
    assert len(groups(frame.parts(), "batchcq-5.5.0", "Inner")) >= 5


@pytest.mark.parametrize(
    ("options", "count"), [({}, 1), ({"minPartitions": 3}, 3), ({"maxBytesPerPartition": "250k"}, 4)]
)
def test_a_scan_is_cut_too(golden: Golden, tmp_path: Path, options: dict[str, str | int], count: int) -> None:
    root = copy_of(golden, STORE, tmp_path)
    shutil.rmtree(root / "consumequeue")
    assert len(groups(read(root, columns=PLACE, **options).parts())) == count


def test_a_plan_is_a_snapshot(golden: Golden, tmp_path: Path) -> None:
    """Spark plans a DataFrame once (tests/spark/test_spark_facts.py)."""
    root = copy_of(golden, STORE, tmp_path)
    frame = read(root, subscribe="Orders", columns=PLACE)
    assert len(frame.places()) == 1326
    append(root, numbered("Orders", 0, 8))
    assert len(frame.places()) == 1326
    assert len(read(root, subscribe="Orders", columns=PLACE).places()) == 1326 + 8
