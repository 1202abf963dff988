"""Partitions mapped to consume queues: one a queue (`splitBy=wholeQueue`), or one a client (`consumers`)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rmq_spark.consume.consumer import MessageQueue, sort_queues
from rmq_spark.options.group_options import GroupOptions
from rmq_spark.options.read_options import ReadOptions, parse_read_options
from rmq_spark.plan.batch import plan
from rmq_spark.plan.splits import Split
from store_format import MessageStore
from store_format.bookkeeping.settings import StoreSettings
from store_format.commit.options import CommitOptions
from tests.support.fixtures import Golden
from tests.support.staged import append, make_store, numbered, update_topic

VECTORS: dict[str, Any] = json.loads(
    (Path(__file__).parents[2] / "vectors" / "allocate_vectors.json").read_bytes()
)
Ranges = dict[MessageQueue, list[tuple[int, int]]]

NEW_GROUP = {"group": "g", "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET", "offsetStore": "none"}
BROKER = "broker-a"


def ranges(split: Split) -> Ranges:
    """The offsets that a partition reads, by queue."""
    found: Ranges = {}
    for share in split.shares:
        for piece in share.slices:
            name = MessageQueue(piece.topic, share.broker_name, piece.queue_id)
            found.setdefault(name, []).append((piece.start, piece.stop))
    return found


def planned(path: Path, **options: str) -> list[Ranges]:
    found = plan(parse_read_options({"path": str(path), **options}), cores=2).splits
    return [ranges(split) for split in found]


# ---- splitBy=wholeQueue ------------------------------------------------------------------------------------


def test_each_queue_is_one_partition(golden: Golden) -> None:
    root = golden("basic-5.5.0")
    found = planned(root, splitBy="wholeQueue")
    assert len(found) == 13
    queues = MessageStore.open(str(root)).queues(lambda topic: topic in ("Audit", "Metrics", "Orders"))
    limits = {MessageQueue.of(each): [(each.min_offset, each.max_offset)] for each in queues}
    assert found == [{queue: limits[queue]} for queue in sort_queues(limits)]


def test_a_large_queue_is_not_cut(tmp_path: Path) -> None:
    root = make_store(tmp_path / "store", StoreSettings(BROKER, 16 << 20, 20 * 20, 50, 200))
    append(root, [replace(each, body=bytes(1 << 20)) for each in numbered("T", 0, 12, queues=2)])
    assert len(planned(root, minPartitions="5")) == 5
    whole = planned(root, splitBy="wholeQueue")
    assert whole == [{MessageQueue("T", BROKER, queue): [(0, 6)]} for queue in range(2)]


def test_the_places_of_a_key_are_in_one_partition_of_their_queue(root: Path) -> None:
    append(root, numbered("T", 0, 12, queues=1))
    found = planned(root, splitBy="wholeQueue", key="even")
    assert found == [{MessageQueue("T", BROKER, 0): [(offset, offset + 1) for offset in range(0, 12, 2)]}]
    assert planned(root, splitBy="wholeQueue", key="none") == [{}]


def test_queues_without_files_are_partitions_too(root: Path, tmp_path: Path) -> None:
    append(root, numbered("T", 0, 9, queues=3))
    (root / "consumequeue" / "T").rename(tmp_path / "lost")
    options = {"path": str(root), "splitBy": "wholeQueue", "unfiledQueues": "read"}
    found = plan(parse_read_options(options), cores=2).splits
    assert [ranges(split) for split in found] == [
        {MessageQueue("T", BROKER, queue): [(0, 3)]} for queue in range(3)
    ]
    assert all(share.scan is not None for split in found for share in split.shares)


# ---- consumers of a batch ----------------------------------------------------------------------------------


class NamedClients(GroupOptions):
    """Logical clients with the ids of a vector, which the option clientId cannot make."""

    ids: tuple[str, ...] = ()

    def make_client_ids(self) -> tuple[str, ...]:
        return type(self).ids


def with_clients(options: ReadOptions, ids: Sequence[str]) -> ReadOptions:
    assert options.group is not None
    kind = type("Clients", (NamedClients,), {"ids": tuple(ids), "__slots__": ()})
    group = options.group
    return replace(options, group=kind(**{name: getattr(group, name) for name in GroupOptions.__slots__}))


def vector_options(name: str) -> dict[str, str]:
    """The options of a strategy by the vectors' key: `CONSISTENT_HASH/vn=3`, `MACHINE_ROOM/idcs=a,b`."""
    strategy, _, argument = name.partition("/")
    option = {"vn": "virtualNodeCount", "idcs": "consumerIdcs"}.get(argument.partition("=")[0])
    return {"allocateMessageQueueStrategy": strategy} | (
        {} if option is None else {option: argument.partition("=")[2]}
    )


def cluster_of(root: Path, topic: str, names: Sequence[str]) -> None:
    """A cluster whose brokers have the queues of a vector, with one message each."""
    by_broker: dict[str, int] = {}
    for name in names:
        broker, _, queue_id = name.rpartition("#")
        by_broker[broker] = max(by_broker.get(broker, 0), int(queue_id) + 1)
    root.mkdir()
    for broker, queues in by_broker.items():
        made = make_store(root / broker, StoreSettings(broker, 1 << 14, 20 * 20, 50, 200))
        append(
            made, numbered(topic, 0, queues, queues=queues), options=CommitOptions(new_topics={topic: queues})
        )


def _cases() -> list[Any]:
    """Of each naming scheme the largest groups, and one with more clients than queues."""
    found: dict[str, Any] = {}
    for case in VECTORS["grid"]:
        queues, clients = len(case["queues"]), len(case["clients"])
        if queues >= 3 and clients >= 2 and queues % clients:
            found[case["topic"] if queues > clients else "few queues"] = case
    return list(found.values())


@pytest.mark.parametrize("case", _cases(), ids=lambda case: f"{case['topic']}-{len(case['clients'])}")
def test_partitions_are_the_allocation_vectors_answer(case: Any, tmp_path: Path) -> None:
    queues = [MessageQueue(case["topic"], *_split(name)) for name in case["queues"]]
    cluster_of(tmp_path / "cluster", case["topic"], case["queues"])
    for name, expected in case["alloc"].items():
        given = {"path": str(tmp_path / "cluster"), "consumers": str(len(case["clients"])), **NEW_GROUP}
        options = with_clients(parse_read_options(given | vector_options(name)), case["clients"])
        found = [set(ranges(split)) for split in plan(options, cores=2).splits]
        assert found == [{queues[index] for index in indexes} for indexes in expected], name


def _split(name: str) -> tuple[str, int]:
    broker, _, queue_id = name.rpartition("#")
    return broker, int(queue_id)


def test_config_gives_each_client_its_queues_and_leaves_others_out(tmp_path: Path) -> None:
    cluster_of(tmp_path / "cluster", "T", ["a#0", "a#1", "a#2", "b#0"])
    options = {"consumers": "2", "allocateMessageQueueStrategy": "CONFIG", **NEW_GROUP}
    config = json.dumps([{"T": {"a": [2, 0]}}, {"T": {"b": [0]}, "Other": [1]}])
    found = planned(tmp_path / "cluster", allocateConfig=config, subscribe="T", **options)
    assert found == [
        {MessageQueue("T", "a", 0): [(0, 1)], MessageQueue("T", "a", 2): [(0, 1)]},
        {MessageQueue("T", "b", 0): [(0, 1)]},
    ]


def test_a_client_without_queues_is_an_empty_partition(root: Path) -> None:
    append(root, numbered("T", 0, 4, queues=2))
    update_topic(root, "T", 2)
    found = planned(root, consumers="3", **NEW_GROUP)
    assert found == [*({MessageQueue("T", BROKER, queue): [(0, 2)]} for queue in range(2)), {}]
    assert planned(root, messageModel="BROADCASTING", clientId="c", **NEW_GROUP) == [
        {MessageQueue("T", BROKER, queue): [(0, 2)] for queue in range(2)}
    ]
