"""Queues that are read together are cut at the same places of the log, so that tasks do not share pages."""

from __future__ import annotations

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
from tests.support.oracle import Message
from tests.support.staged import append, make_store, numbered

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
