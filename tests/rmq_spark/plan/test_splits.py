"""How many partitions a plan has, whatever the options ask for."""

from __future__ import annotations

import logging
import shutil
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from rmq_spark.options.read_options import parse_read_options
from rmq_spark.plan import splits as splits_room
from rmq_spark.plan.batch import plan
from rmq_spark.plan.splits import Split
from store_format import MessageStore
from store_format.bookkeeping.settings import StoreSettings
from tests.support.fixtures import Golden
from tests.support.oracle import Message
from tests.support.reads import PLACE, Row, copy_of, read, told, told_places
from tests.support.staged import append, make_store, numbered


@pytest.mark.timeout(20)
@pytest.mark.parametrize("split_by", ["queue", "commitlog"])
def test_there_is_an_end_to_the_partitions(
    golden: Golden,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    split_by: str,
) -> None:
    options = {"path": str(golden("basic-5.5.0")), "subscribe": "Orders", "splitBy": split_by}
    queues = 4
    every = plan(parse_read_options(options | {"minPartitions": str(2**31 - 1)}), cores=1).splits
    messages = sum(
        piece.stop - piece.start for split in every for share in split.shares for piece in share.slices
    )
    assert messages == 1326
    assert len(every) <= messages
    assert caplog.messages == []
    monkeypatch.setattr(splits_room, "_SPLITS_MAX", 3)
    with caplog.at_level(logging.WARNING):
        few = plan(parse_read_options(options | {"maxBytesPerPartition": "64k"}), cores=1).splits
    assert len(few) <= 3 + queues
    (told,) = caplog.messages
    assert told.startswith("maxBytesPerPartition 65536 would make ")
    assert told.endswith(" bytes per partition")
    assert (
        sum(piece.stop - piece.start for split in few for share in split.shares for piece in share.slices)
        == messages
    )


# ---- how a read is cut into partitions ---------------------------------------------------------------------


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


# ---- queues that are read together -------------------------------------------------------------------------


Places = dict[tuple[str, str, int], list[tuple[int, int]]]  # (queue offset, physical offset) by queue


def places_of(split: Split) -> Places:
    found: Places = {}
    for share in split.shares:
        store = MessageStore.open(share.store_path)
        for piece in share.slices:
            rows = [
                (row["queueOffset"], row["physicalOffset"])
                for batch in store.queue(piece.topic, piece.queue_id).read(
                    piece.start, piece.stop, columns=("queueOffset", "physicalOffset")
                )
                for row in batch.to_pylist()
            ]
            found.setdefault((share.store_path, piece.topic, piece.queue_id), []).extend(rows)
    return found


def planned(path: Path, **options: str) -> list[Places]:
    return [places_of(split) for split in plan(parse_read_options({"path": str(path), **options})).splits]


def messages(topic: str, first: int, count: int, queues: int) -> list[Message]:
    return [replace(each, body=bytes(1024)) for each in numbered(topic, first, count, queues=queues)]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Messages of 1 KiB. broker-a: first 60 of one queue, then 300 of four; and a queue of six small ones.

    broker-b: 120 of two queues.
    """
    found = tmp_path_factory.mktemp("cluster")
    one, other = (
        make_store(found / name, StoreSettings(name, 1 << 18, 20 * 200, 50, 200))
        for name in ("broker-a", "broker-b")
    )
    for first, count, queues in ((0, 60, 1), (60, 300, 4)):
        append(one, messages("T", first, count, queues) + numbered("U", 3 * bool(first), 3, queues=1))
    append(other, messages("T", 0, 120, 2))
    return found


@pytest.fixture
def root(cluster: Path) -> Path:
    return cluster / "broker-a"


def ranges_of(splits: list[Places], topics: str) -> list[tuple[int, int]]:
    """The first and the last physical offset that each split reads of the topics."""
    read = [
        [place for (_, topic, _), rows in split.items() if topic in topics for _, place in rows]
        for split in splits
    ]
    return [(min(places), max(places)) for places in read if places]


@pytest.mark.parametrize("split_by", ["queue", "commitlog"])
def test_splits_do_not_overlap_in_the_log(root: Path, monkeypatch: pytest.MonkeyPatch, split_by: str) -> None:
    monkeypatch.setattr(splits_room, "_PART_BYTES", 8 << 10)
    splits = planned(root, splitBy=split_by, maxBytesPerPartition="64k")
    assert 6 <= len(splits) <= 8  # 360 KiB of bodies and 50 KiB of heads and properties
    offsets: dict[tuple[str, str, int], list[int]] = {}
    for split in splits:
        for queue, rows in split.items():
            offsets.setdefault(queue, []).extend(offset for offset, _ in rows)
    # each once, and also in the order of the splits
    assert {queue[1:]: found for queue, found in offsets.items()} == {
        ("T", 0): list(range(135)),
        **{("T", queue_id): list(range(75)) for queue_id in (1, 2, 3)},
        ("U", 0): list(range(6)),
    }
    ranges = ranges_of(splits, "T" if split_by == "queue" else "TU")
    assert all(before[1] < after[0] for before, after in pairwise(ranges))
    held = [sum(len(rows) for queue, rows in split.items() if queue[1] == "T") for split in splits]
    assert max(held) <= 1.3 * min(held)
    # the small queue stays whole, unless its partition is a range of the log
    assert sum(("U" in {queue[1] for queue in split}) for split in splits) == (
        1 if split_by == "queue" else 2
    )


def test_small_queues_are_not_cut(root: Path) -> None:
    splits = planned(root, minPartitions="4")
    assert len(splits) == 4
    assert sum(len(split) for split in splits) <= 4 + 2 + 4  # the first queue may be cut at each edge


def test_stores_of_a_cluster_count_as_one_log(cluster: Path) -> None:
    splits = planned(cluster, splitBy="commitlog", minPartitions="3")
    stores = [{Path(path).name for path, _, _ in split} for split in splits]
    assert ["broker-a" in names for names in stores[:2]] == [True, True]
    assert ["broker-b" in names for names in stores] == [False, False, True]
    assert sum(len(rows) for split in splits for rows in split.values()) == 60 + 300 + 6 + 120
