"""Every store that a real broker wrote, through MessageStore and as a batch read: each row and column,
bounds, offsets by time and the walk over the log.

`tests/spark/test_batch.py` reads two of the stores through Spark, and `tests/sparks` all of them.
"""

from __future__ import annotations

import shutil
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from store_format import MessageStore
from store_format.bookkeeping.journal import StoreState
from store_format.commitlog.walk import Damage
from store_format.message.columns import COLUMNS
from store_format.survey.snapshot import Snapshot
from tests.support import goldens
from tests.support.conformance import NAMES, broker_name, differences, expected, rows_of
from tests.support.fixtures import Golden, Unchanged
from tests.support.reads import Row, read
from tests.support.rows import table_rows

Key = tuple[str, int]

NAMES_OF_ALL = (*goldens.NAMES, *goldens.KINDS)
CRASHED = tuple(name for name in NAMES_OF_ALL if goldens.expected(name).get("abort"))
STORES = [
    (name, broker) for name in NAMES_OF_ALL for broker in goldens.expected(name).get("brokers", {"": None})
]


class Case:
    """One store, what its broker answered, and the rows it must have."""

    def __init__(self, name: str, broker: str, root: Path) -> None:
        self.name = name
        self.answers: dict[str, Any] = goldens.expected(name)
        told = expected(name, root)
        self.root = root
        if broker:
            self.root, self.answers = root / broker, self.answers["brokers"][broker]
            told = [row for row in told if row["brokerName"] == broker]
        self.broker_name = broker or broker_name(name)
        self.rows: dict[Key, list[Row]] = defaultdict(list)
        for row in told:
            self.rows[row["topic"], row["queueId"]].append(row)

    def store(self) -> MessageStore:
        return MessageStore.open(str(self.root), broker_name=self.broker_name)


@pytest.fixture(scope="module", params=STORES, ids="-".join)
def case(request: pytest.FixtureRequest, golden: Golden) -> Case:
    name, broker = request.param
    return Case(name, broker, golden(name))


def found_rows(store: MessageStore) -> dict[Key, list[Row]]:
    found = {}
    for queue in store.queues():
        rows = table_rows(queue.read(columns=NAMES))
        for row in rows:
            row["properties"] = dict(row["properties"])
        if rows:
            found[queue.topic, queue.queue_id] = rows
    return found


@pytest.mark.process
def test_every_row_and_column(case: Case, unchanged: Unchanged) -> None:
    assert set(NAMES) == set(COLUMNS) - {"_corrupt_record"}
    with unchanged(case.root):
        found = found_rows(case.store())
    assert found.keys() == case.rows.keys()
    for key, rows in found.items():
        # in order
        assert [row["queueOffset"] for row in rows] == [row["queueOffset"] for row in case.rows[key]]
        assert differences(rows, case.rows[key]) == []
    assert sum(map(len, found.values())) == case.answers["rows"] > 0


@pytest.mark.process
@pytest.mark.parametrize("split_by", ["queue", "commitlog"])
@pytest.mark.parametrize("name", NAMES_OF_ALL)
def test_every_row_and_column_of_a_batch_read(
    golden: Golden, unchanged: Unchanged, name: str, split_by: str
) -> None:
    root = golden(name)
    with unchanged(root):
        found = rows_of(
            read(root, includeSystemTopics=True, columns=",".join(NAMES), splitBy=split_by).table()
        )
    assert differences(found, expected(name, root)) == []
    assert len(found) == len(goldens.expected_rows(name)) > 0


def test_queues_and_their_bounds(case: Case, unchanged: Unchanged) -> None:
    with unchanged(case.root):
        store = case.store()
        found = {
            (queue.topic, queue.queue_id): (queue.min_offset, queue.max_offset) for queue in store.queues()
        }
        topics = store.topics()
    told = {
        (q["topic"], q["queueId"]): (q.get("minOffsetOfGet", q["minOffset"]), q["maxOffset"])
        for q in case.answers["queues"]
    }
    # A queue without messages may have no directory (4.9.7), and the commitlog shows none (RocksDB).
    assert {key: bounds for key, bounds in told.items() if bounds[1] or key in found} == found
    assert topics == sorted({topic for topic, _ in found})


def test_state_and_names(case: Case) -> None:
    store = MessageStore.open(str(case.root))
    assert store.state is (StoreState.CRASHED if case.name in CRASHED else StoreState.CLEAN)
    assert case.answers["abort"] is (case.name in CRASHED)
    assert store.broker_name in (case.broker_name, case.root.name)
    is_in_database = case.name.startswith("rocksdb") and case.name != "rocksdbcq-double-5.5.0"
    assert store.has_consume_queues is not is_in_database


def test_offsets_by_time(case: Case, unchanged: Unchanged) -> None:
    """Both boundaries of 5.x. The 4.9.7 method has none and trusts modification times: see
    test_consume_queue_goldens.
    """
    probes = [probe for probe in case.answers["offsetsByTime"] if probe["boundary"] != "V4"]
    assert len(probes) > 100 or case.name in ("basic-4.9.7", "static-5.5.0")  # the latter: 98 a broker
    if (
        case.name == "rocksdbcq-5.5.0"
    ):  # a scan answers UPPER from the first message on, this broker 0 before it
        probes = [probe for probe in probes if probe["boundary"] == "LOWER"]
    with unchanged(case.root):
        queues = {(queue.topic, queue.queue_id): queue for queue in case.store().queues()}
        for probe in probes:
            queue = queues.get((probe["topic"], probe["queueId"]))
            if queue is None:
                assert probe["offset"] == 0
                continue
            assert queue.offset_at(probe["timestamp"], probe["boundary"]) == probe["offset"], probe


def test_parts_of_queues(case: Case) -> None:
    """Any two parts that adjoin are the whole: also in the middle of inner batches, of files and of what a
    crash left.
    """
    for queue in case.store().queues():
        told = case.rows[queue.topic, queue.queue_id]
        whole = [row["body"] for row in told]
        for cut in {
            queue.min_offset,
            (queue.min_offset + queue.max_offset) // 2,
            max(queue.max_offset - 1, queue.min_offset),
            queue.max_offset,
        }:
            parts = [queue.read(None, cut, columns=["body"]), queue.read(cut, None, columns=["body"])]
            counts = [[row["body"] for row in table_rows(part)] for part in parts]
            assert counts[0] + counts[1] == whole
            assert len(counts[0]) == sum(row["queueOffset"] < cut for row in told)


def test_scan_and_walk_see_every_unit_of_the_log(case: Case, unchanged: Unchanged) -> None:
    count, log = case.answers["allCommitLogMessages"], case.answers["commitLog"]
    with unchanged(case.root):
        store = case.store()
        physical = [row["physicalOffset"] for row in table_rows(store.scan(["physicalOffset"]))]
        walk = store.log.walk(store.log.min_offset, verify_crc=True)
        units = sum(len(run.positions) for run in walk if not isinstance(run, Damage))
    assert len(set(physical)) == units == count
    assert physical == sorted(physical)
    assert walk.end is not None
    assert (store.log.min_offset, walk.end.offset) == (log["minOffset"], log["maxOffset"])
    if not case.name.startswith("dledger"):  # there RocketMQ's walk counts no heads of entries
        assert walk.end.offset == case.answers["commitLogWalkEnd"]
    if case.name in CRASHED:
        assert Snapshot.find_log_end(store.opened, store.log, store.state) == log["maxOffset"]


@pytest.mark.process
@pytest.mark.parametrize(
    "name",
    ["basic-5.5.0", "batchcq-5.5.0", "cleaned-5.5.0", "crash-torn-5.5.0", "edge-5.5.0", "delay-tx-5.5.0"],
)
def test_without_consume_queues_the_commitlog_gives_the_same_rows(
    golden: Golden, tmp_path: Path, name: str
) -> None:
    case = Case(name, "", golden(name))
    for part in ("commitlog", "config"):
        (tmp_path / part).symlink_to(case.root / part)  # links at root level are followed
    for part in ("checkpoint", "abort"):
        if (case.root / part).exists():
            shutil.copy(case.root / part, tmp_path)
    store = MessageStore.open(str(tmp_path), broker_name=case.broker_name)
    assert not store.has_consume_queues
    found = found_rows(store)
    assert found.keys() == case.rows.keys()
    for key, rows in found.items():
        assert differences(rows, case.rows[key]) == [], key
