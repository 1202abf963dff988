"""Lag of groups against what the broker's own classes told of offsets and messages, and where a file says
nothing: null.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from store_format.store import MessageStore
from store_format.views.lag import lag_table
from tests.support import goldens
from tests.support.fixtures import Golden
from tests.support.popped import popped_and_open

STORES = [
    (name, broker)
    for name in goldens.NAMES
    for broker, (_, answers) in goldens.brokers(name, Path()).items()
    if answers["consumerOffset"] is not None
]
NOW = 1_800_000_000_000
REVIVE = "CID_RMQ_SYS_REVIVE_GROUP"


def _rows(root: Path, group: str | None = None) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = lag_table(MessageStore.open(str(root)), group, now_ms=NOW).to_pylist()
    return rows


def _ms(row: dict[str, Any], name: str) -> int | None:
    return None if row[name] is None else round(row[name].timestamp() * 1000)


@pytest.mark.parametrize(("name", "broker"), STORES)
def test_lag_is_what_the_brokers_queues_and_offsets_say(golden: Golden, name: str, broker: str) -> None:
    root, answers = goldens.brokers(name, golden(name))[broker]
    queues = {(queue["topic"], queue["queueId"]): queue for queue in answers["queues"]}
    messages: dict[tuple[str, int], dict[int, dict[str, Any]]] = {}
    for row in goldens.expected_rows(name):
        if broker in ("", row.get("brokerName")):
            messages.setdefault((row["topic"], row["queueId"]), {})[row["queueOffset"]] = row
    committed = {
        (group, topic, int(queue_id)): offset + (group == REVIVE)
        for key, table in answers["consumerOffset"]["offsetTable"].items()
        for topic, group in [key.split("@")]
        for queue_id, offset in table.items()
    }
    popped = {place for place in popped_and_open() if name == "pop-5.5.0"}
    rows = _rows(root)
    known = [row for row in rows if row["committedOffset"] is not None]
    assert {(row["group"], row["topic"], row["queueId"]) for row in known} == set(committed)
    for row in rows:
        queue = queues.get((row["topic"], row["queueId"]), {"minOffset": 0, "maxOffset": 0})
        assert (row["minOffset"], row["maxOffset"]) == (queue["minOffset"], queue["maxOffset"])
        offset = committed.get((row["group"], row["topic"], row["queueId"]))
        assert row["committedOffset"] == offset
        if offset is None:
            assert {row[column] for column in ("lagMessages", "lagBytes", "lagMs", "lostMessages")} == {None}
            continue
        here = messages.get((row["topic"], row["queueId"]), {})
        flight = sorted(at for *place, at in popped if place == [row["topic"], row["queueId"]])
        ready = range(max(offset, queue["minOffset"]), queue["maxOffset"])
        left = [here[at] for at in [*flight, *ready]]
        assert row["lagMessages"] == queue["maxOffset"] - offset + len(flight)
        if row["group"] == "CG_pop":
            assert (row["readyMessages"], row["inFlightMessages"]) == (len(ready), len(flight))
        assert row["lostMessages"] == max(queue["minOffset"] - offset, 0)
        units = {message["physicalOffset"]: message["storeSize"] for message in left}  # a batch is one
        assert row["lagBytes"] == sum(units.values())
        assert row["lagMs"] == (NOW - left[0]["storeTimestamp"] if left else 0)
        assert _ms(row, "nextTimestamp") == (left[0]["storeTimestamp"] if left else None)
        before = here.get(min([offset, *flight]) - 1, {"storeTimestamp": None})
        assert _ms(row, "lastConsumedTimestamp") == before["storeTimestamp"]


def test_one_group_and_none(golden: Golden) -> None:
    root = golden("basic-5.5.0")
    rows = _rows(root, "CG_some")
    assert rows == [row for row in _rows(root) if row["group"] == "CG_some"] != []
    assert _rows(root, "nobody") == []


def test_what_pullers_hold_is_told_where_the_broker_wrote_it(golden: Golden) -> None:
    first, *_ = [row for row in _rows(golden("basic-5.5.0"), "CG_tags") if row["topic"] == "Orders"]
    assert (first["queueId"], first["inFlightMessages"]) == (0, 300 - 36)
    assert {row["inFlightMessages"] for row in _rows(golden("basic-4.9.7"))} == {None}


def test_offsets_in_rocksdb(golden: Golden) -> None:
    rows = _rows(golden("rocksdb-5.5.0"), "CG_all")
    (audit,) = [row for row in rows if row["committedOffset"] is not None]
    assert (audit["topic"], audit["committedOffset"], audit["maxOffset"]) == ("Audit", 38, 38)


def test_offsets_are_unknown_without_the_file(golden: Golden) -> None:
    assert lag_table(MessageStore.open(str(golden("edge-5.5.0")))).num_rows == 0


@pytest.fixture
def copy(copy_of: Golden) -> Path:
    return copy_of("basic-5.5.0")


def _put_offsets(
    root: Path, table: dict[str, Any], name: str = "consumerOffset.json", timestamp: int = 1, **more: Any
) -> None:
    text = json.dumps({"dataVersion": {"counter": 1, "timestamp": timestamp}, "offsetTable": table, **more})
    (root / "config" / name).write_text(text)


@pytest.mark.parametrize("name", ["basic-5.5.0", "batchcq-5.5.0"])
def test_without_consume_queues_the_log_gives_the_same_lag(copy_of: Golden, name: str) -> None:
    root = copy_of(name)
    expected = [row for row in _rows(root) if row["maxOffset"]]
    assert any(row["lagBytes"] for row in expected)
    for folder in ("consumequeue", "batchconsumequeue"):
        shutil.rmtree(root / folder, ignore_errors=True)
    found = [row for row in _rows(root) if row["maxOffset"] is not None]
    assert found == expected


def test_offsets_that_fit_no_queue(copy: Path) -> None:
    """Of a deleted topic, of a queue that is not there, below 0, ahead of the queue, and keys a broker would
    not take apart.
    """
    table = {
        "Gone@g": {"0": 5},
        "Audit@g": {"0": -1, "7": 3},
        "Orders@g": {"0": 9_999_999},
        "a@b@c": {"0": 1},
        "nothing": {"0": 1},
    }
    _put_offsets(copy, table)
    rows = {(row["topic"], row["queueId"]): row for row in _rows(copy)}
    assert {topic for topic, _ in rows} == {"Gone", "Audit", "Orders"}
    assert rows["Gone", 0]["maxOffset"] is None
    for queue, offset in {("Gone", 0): 5, ("Audit", 0): None, ("Audit", 7): 3}.items():
        assert (rows[queue]["committedOffset"], rows[queue]["lagMessages"]) == (offset, None)
    ahead = rows["Orders", 0]
    assert ahead["lagMessages"] == ahead["maxOffset"] - 9_999_999 < 0
    assert (ahead["lagBytes"], ahead["lagMs"], ahead["lastConsumedTimestamp"]) == (0, 0, None)


def test_hostile_names_and_numbers_are_shown_harmlessly(copy: Path) -> None:
    _put_offsets(copy, {"t\ud800@g\x1b[2J": {"0": 1, "-4": 1}, "Orders@": {"0": 1}})
    rows = _rows(copy)
    assert [(row["topic"], row["group"], row["queueId"]) for row in rows] == [("t\ufffd", "g\x1b[2J", 0)]


def test_the_later_of_the_two_offset_files_counts(copy: Path) -> None:
    """A broker with enableLmq keeps all offsets in lmqConsumerOffset.json (LmqConsumerOffsetManager)."""
    _put_offsets(copy, {"Orders@g": {"0": 1}}, timestamp=5)
    _put_offsets(
        copy, {"Orders@g": {"0": 2}}, "lmqConsumerOffset.json", 6, lmqOffsetTable={"%LMQ%a@%LMQ%g": 8}
    )
    found = {(row["group"], row["topic"], row["queueId"]): row["committedOffset"] for row in _rows(copy)}
    assert found["g", "Orders", 0] == 2
    assert found["%LMQ%g", "%LMQ%a", 0] == 8
    _put_offsets(copy, {"Orders@g": {"0": 1}}, timestamp=7)
    assert {row["committedOffset"] for row in _rows(copy, "g") if row["queueId"] == 0} == {1}
