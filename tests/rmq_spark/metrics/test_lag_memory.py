"""The memory of the lag: after each change it says what the view `lagByTopic` and a forecast say of the
store, and it measures again only what changed.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path

import pytest

from rmq_spark.broker import LOSS_COLUMNS, forecast
from rmq_spark.metrics.lag_memory import LagMemory
from store_format import MessageStore
from store_format.bookkeeping.settings import broker_conf_of
from store_format.files.read import one_look
from store_format.metadata.group_offsets import write_group_offsets
from tests.support.fixtures import Golden
from tests.support.writes import SMALL, numbered_rows, write

GROUPS = {"G1": ("A", "B"), "G2": ("B", "C")}
_DAY_MS = 86_400_000


class _Watched:
    """A store, and a memory of it that is asked again and again."""

    def __init__(self, root: Path, now_ms: int = 1_900_000_000_000) -> None:
        self.root, self.now_ms = root, now_ms
        self.memory = LagMemory(MessageStore.open(str(root)))
        self.conf = broker_conf_of(self.memory.store.opened, None)

    def commit(self, group: str, topic: str, offset: int, *, is_reset: bool = False) -> None:
        opened = self.memory.store.opened
        write_group_offsets(opened, group, {(topic, 0): offset}, timestamp=self.now_ms, is_reset=is_reset)

    def check(self) -> set[tuple[str, str]]:
        """Compares all rows with those of a new look; returns the pairs that were measured again."""
        self.now_ms += 1_000
        store = MessageStore.open(str(self.root))
        with one_look():
            expected = store.view("lagByTopic", now_ms=self.now_ms).to_pylist()
            names = [column.name for column in LOSS_COLUMNS]
            losses = [
                dict(zip(names, row, strict=True)) for row in forecast(store, self.conf, self.now_ms).losses()
            ]
        with one_look():
            _, found = self.memory.look(self.conf, self.now_ms)
        by_clock = {"lagMs", "nextLostMessages", "expiresInMs", "expiresTimestamp"}
        times = {"nextTimestamp", "oldestPopTimestamp"}
        same = [name for name in expected[0] if name not in by_clock | times] if expected else []
        assert [[each.row[name] for name in same] for each in found] == [
            [row[name] for name in same] for row in expected
        ]
        assert [each.lag_ms for each in found] == [row["lagMs"] for row in expected]
        coming = {
            (row["group"], row["topic"]): (row["deletionInMs"], row["nextLostMessages"])
            for row in losses
            if row["deletionInMs"] is not None
        }
        assert {
            (each.row["group"], each.row["topic"]): (each.loss_in_ms, each.next_lost)
            for each in found
            if each.loss_in_ms is not None
        } == coming
        return set(self.memory.measured)


@pytest.fixture
def watched(tmp_path: Path) -> _Watched:
    """Two groups on queue 0 of three topics, each queue with 30 messages, in several commitlog files."""
    root = tmp_path / "store"
    for topic in "ABC":
        write(root, numbered_rows(0, 120, topic), key=None, **SMALL)
    found = _Watched(root)
    for group, topics in GROUPS.items():
        for topic in topics:
            found.commit(group, topic, 10)
    assert len(os.listdir(root / "commitlog")) > 2
    return found


def test_only_what_changed_is_measured_again(watched: _Watched) -> None:
    everything = {(group, topic) for group, topics in GROUPS.items() for topic in topics}
    assert watched.check() == everything
    assert watched.check() == set()
    watched.commit("G1", "A", 20)
    assert watched.check() == {("G1", "A")}
    write(watched.root, numbered_rows(120, 121, "C"))
    assert watched.check() == {("G2", "C")}
    watched.commit("G1", "A", 30)
    watched.commit("G2", "B", 5, is_reset=True)
    assert watched.check() == {("G1", "A"), ("G2", "B")}
    watched.commit("G3", "C", 30)
    assert ("G3", "C") in watched.check()
    assert watched.check() == set()


def test_a_new_commitlog_file_moves_the_next_loss(watched: _Watched) -> None:
    watched.commit("G1", "A", 30)  # has read everything: no file matters
    watched.commit("G2", "C", 25)
    watched.check()
    write(watched.root, numbered_rows(0, 100, "D"))
    measured = watched.check()
    assert ("G1", "A") not in measured
    assert {("G2", "C"), ("G1", "B"), ("G2", "B")} <= measured


def test_the_clock_moves_ages_and_losses(watched: _Watched) -> None:
    """Files expire while nobody writes: what the next deletion takes grows, without a new look at queues."""
    files = sorted((watched.root / "commitlog").iterdir())
    begun = time.time()
    for number, file in enumerate(files):
        at = begun - (len(files) - number) * 86_400
        os.utime(file, (at, at))
    watched = _Watched(watched.root, int(begun * 1000) - 2 * _DAY_MS)
    counts = []
    for _ in range(9):
        watched.check()
        _, groups = watched.memory.look(watched.conf, watched.now_ms)
        counts.append(sum(each.next_lost or 0 for each in groups))
        watched.now_ms += _DAY_MS // 2
    assert counts == sorted(counts)
    assert counts[0] < counts[-1]


def test_a_topic_that_is_deleted_and_created_again(watched: _Watched) -> None:
    """With as many messages as before, so that offsets alone do not show it."""
    watched.check()
    shutil.rmtree(watched.root / "consumequeue" / "A")
    topics = watched.root / "config" / "topics.json"
    table = json.loads(topics.read_text())
    config = table["topicConfigTable"].pop("A")
    topics.write_text(json.dumps(table))
    watched.check()
    assert "A" not in watched.memory.queues
    assert not any(topic == "A" for topic, _ in watched.memory._stretches)
    table["topicConfigTable"]["A"] = config
    topics.write_text(json.dumps(table))
    rows = numbered_rows(0, 120, "A", tags=["t"] * 120)
    write(watched.root, rows)
    assert ("G1", "A") in watched.check()


def test_a_store_that_another_one_replaces(watched: _Watched, tmp_path: Path) -> None:
    watched.check()
    other = tmp_path / "other" / "store"
    other.parent.mkdir()
    write(other, numbered_rows(0, 60, "A"), numbered_rows(0, 30, "B"), key=None, **SMALL)
    write_group_offsets(MessageStore.open(str(other)).opened, "G1", {("A", 0): 3}, timestamp=1)
    watched.root.rename(tmp_path / "away")
    other.rename(watched.root)
    watched.check()
    assert {key[0] for key in watched.memory._stretches} <= {"A", "B"}


@pytest.mark.parametrize("name", ["cleaned-5.5.0", "pop-5.5.0", "crash-5.5.0", "rocksdb-5.5.0"])
def test_stores_of_a_broker(golden: Golden, name: str) -> None:
    watched = _Watched(golden(name))
    watched.check()
    again = watched.check()
    assert (again != set()) == (name == "pop-5.5.0")  # what is in flight changes with the clock
