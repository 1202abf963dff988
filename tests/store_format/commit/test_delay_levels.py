"""messageDelayLevel of `.rmqlog/broker.conf` counts wherever the delivery time of a message is computed."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from store_format import MessageStore
from store_format.commit.append import recover
from store_format.commit.prepare_store import CommitOptions
from store_format.metadata.broker_conf import BrokerConf
from store_format.names import SCHEDULE_TOPIC
from tests.support.staged import columns_of, make_store
from tests.support.waiting import BEGIN_MS, append, delayed

_LEVELS = "2s 1m 3d"
_SECOND_LEVEL_MS = 60_000


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store with a message of level 2, and one of level 20: a queue above those of topics.json."""
    root = make_store(tmp_path / "store")
    (root / ".rmqlog").mkdir(exist_ok=True)
    (root / ".rmqlog" / "broker.conf").write_text(f"messageDelayLevel = {_LEVELS}\n")
    append(root, delayed("T", 2, 0, 1) + delayed("T", 20, 1, 1))
    return root


def _times(root: Path) -> dict[int, list[int]]:
    """Level -> delivery times after the store time."""
    return {
        queue.queue_id + 1: [
            time - BEGIN_MS
            for batch in queue.read(columns=["tagsCode"])
            for time in batch["tagsCode"].to_pylist()
        ]
        for queue in MessageStore.open(str(root)).queues(SCHEDULE_TOPIC.__eq__)
    }


def test_an_append_writes_the_delivery_time(store: Path) -> None:
    assert _times(store) == {2: [_SECOND_LEVEL_MS], 20: [3 * 24 * 3_600_000]}


def test_given_settings_count_more_than_those_of_the_store(store: Path) -> None:
    conf = BrokerConf.of({"messageDelayLevel": "7s 8s"}, "broker.conf")
    options = CommitOptions(clock=lambda: BEGIN_MS, conf=conf)
    MessageStore.open(str(store)).append(columns_of(delayed("T", 2, 5, 1)), options=options)
    assert _times(store)[2] == [_SECOND_LEVEL_MS, 8_000]


@pytest.mark.parametrize("lost", ["consumequeue", f"consumequeue/{SCHEDULE_TOPIC}/1"])
def test_rebuilt_queues_have_the_delivery_time(store: Path, lost: str) -> None:
    wanted = _times(store)
    shutil.rmtree(store / lost)
    options = CommitOptions(rebuild_lost_queues=True, clock=lambda: BEGIN_MS)
    MessageStore.open(str(store)).append(columns_of(delayed("T", 1, 7, 1)), options=options)
    assert _times(store) == wanted | {1: [2_000]}


def test_a_crashed_store_is_read_and_repaired_with_the_delivery_time(store: Path) -> None:
    wanted = _times(store)
    (store / "abort").write_text("")
    for queue in (store / "consumequeue" / SCHEDULE_TOPIC).iterdir():
        for file in queue.iterdir():
            file.write_bytes(bytes(file.stat().st_size))
    assert _times(store) == wanted
    recover(str(store))
    assert not (store / "abort").exists()
    assert _times(store) == wanted


def test_the_view_delayed_knows_the_levels(store: Path) -> None:
    shutil.rmtree(store / "consumequeue")
    opened = MessageStore.open(str(store))
    due = {row["delayLevel"]: row for row in opened.view("delayed", now_ms=BEGIN_MS).to_pylist()}
    assert due[2]["dueInMs"] == _SECOND_LEVEL_MS
