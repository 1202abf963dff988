"""The view `retention`: lost messages, and when the next messages are lost."""

from __future__ import annotations

import json
import os
import re
from bisect import bisect_right
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from store_format.commit.recover import recover
from store_format.metadata.group_offsets import write_group_offsets
from store_format.opened.store import Opened
from store_format.store import MessageStore
from store_format.views.retention import retention_rows
from tests.support import goldens
from tests.support.file_edits import overwrite
from tests.support.fixtures import Golden
from tests.support.referee.made import made

NOW = 1_795_244_400_000
HOUR = 3_600_000


def view(root: Path, name: str, now: int = NOW) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = MessageStore.open(str(root)).view(name, now_ms=now).to_pylist()
    return rows


@pytest.fixture
def aged(copy_of: Golden) -> Path:
    """A store whose commitlog files were modified an hour apart, the last one now."""
    root = copy_of("cleaned-5.5.0")
    files = sorted((root / "commitlog").iterdir())
    for age, file in enumerate(reversed(files)):
        os.utime(file, ns=(0, (NOW - age * HOUR) * 1_000_000))
    return root


def test_groups_that_lose_messages(aged: Path) -> None:
    name = "cleaned-5.5.0"
    answers = goldens.expected(name)
    queues = {(queue["topic"], queue["queueId"]): queue for queue in answers["queues"]}
    files = sorted(int(file.name) for file in (aged / "commitlog").iterdir())
    places = {
        (row["topic"], row["queueId"], row["queueOffset"]): row["physicalOffset"]
        for row in goldens.expected_rows(name)
    }
    found = {(row["group"], row["topic"], row["queueId"]): row for row in view(aged, "retention")}
    told = 0
    for key, table in answers["consumerOffset"]["offsetTable"].items():
        topic, group = key.split("@")
        for queue_id, committed in table.items():
            queue = queues[topic, int(queue_id)]
            lost = max(queue["minOffset"] - committed, 0)
            ready = range(max(committed, queue["minOffset"]), queue["maxOffset"])
            left = [places[topic, int(queue_id), offset] for offset in ready]
            number = bisect_right(files, left[0]) - 1 if left else len(files) - 1
            goes = number < len(files) - 1
            assert ((group, topic, int(queue_id)) in found) == bool(lost or goes)
            if not (lost or goes):
                continue
            told += 1
            row = found[group, topic, int(queue_id)]
            assert (row["committedOffset"], row["lostMessages"]) == (committed, lost)
            going: tuple[object, ...] = (None, None, None)
            if goes:
                in_file = sum(place < files[number + 1] for place in left)
                age = (len(files) - 1 - number) * HOUR
                going = (in_file, f"commitlog/{files[number]:020d}", 72 * HOUR - age)
            assert (row["nextLostMessages"], row["file"], row["expiresInMs"]) == going
    assert told == len(found) > 5


def test_another_retention_and_a_young_file_before(aged: Path) -> None:
    store = MessageStore.open(str(aged))
    default = retention_rows(store, NOW)
    short = retention_rows(store, NOW, file_reserved_hours=1)
    assert [row[-1] and row[-1] - 71 * HOUR for row in default] == [row[-1] for row in short]  # type: ignore[operator]
    first = min((aged / "commitlog").iterdir())
    # deletion stops there, so nothing behind it goes before
    os.utime(first, ns=(0, (NOW + 5 * HOUR) * 1_000_000))
    assert {row[-1] for row in retention_rows(store, NOW)} <= {None, 77 * HOUR}


def test_file_reserved_time_comes_from_a_given_broker_conf_else_from_the_stores(aged: Path) -> None:
    def times(broker_conf: str | None = None) -> list[int]:
        table = MessageStore.open(str(aged)).view("retention", now_ms=NOW, broker_conf=broker_conf)
        return [time for time in table["expiresInMs"].to_pylist() if time is not None]

    default = times()
    given = aged.parent / "broker.conf"
    given.write_text("fileReservedTime=1\n")
    assert times(str(given)) == [time - 71 * HOUR for time in default]
    (aged / ".rmqlog").mkdir()
    (aged / ".rmqlog" / "broker.conf").write_text("fileReservedTime=2\n")
    assert times() == [time - 70 * HOUR for time in default]
    assert times(str(given)) == [time - 71 * HOUR for time in default]


def test_who_is_at_the_end_loses_nothing(golden: Golden) -> None:
    assert view(golden("retry-dlq-5.5.0"), "retention") == []
    assert view(golden("rocksdb-5.5.0"), "retention") == []


def test_a_file_that_a_broker_has_only_prepared_is_not_the_last_one(golden: Golden) -> None:
    """Sums and rows count the files before the last written one, which is never deleted."""
    root, name = golden("crash-5.5.0"), "crash-5.5.0"
    *_, last = starts = sorted(int(file.name) for file in (root / "commitlog").iterdir())
    assert max(row["physicalOffset"] for row in goldens.expected_rows(name)) < last
    written = (root / "config/consumerOffset.json.bak").read_text()  # of fastjson: keys without quotes
    offsets = json.loads(re.sub(r"\b(\d+):", r'"\1":', written))["offsetTable"]
    expected = {
        tuple(reversed(key.split("@"))): sum(
            row["topic"] == key.split("@")[0]
            and row["physicalOffset"] < starts[-2]
            and row["queueOffset"] >= table.get(str(row["queueId"]), 1 << 60)
            for row in goldens.expected_rows(name)
        )
        for key, table in offsets.items()
    }
    later = NOW + 1000 * HOUR  # all files have expired
    found = {(row["group"], row["topic"]): row for row in view(root, "lagByTopic", later)}
    sums = Counter[tuple[str, str]]()
    for row in view(root, "retention", later):
        sums[row["group"], row["topic"]] += row["nextLostMessages"]
    told = {pair: row["nextLostMessages"] for pair, row in found.items() if row["nextLostMessages"]}
    assert told == sums == {pair: count for pair, count in expected.items() if count}


def test_a_place_that_a_recovery_has_given_up_hides_no_message(tmp_path: Path) -> None:
    """The group stands at a place without a message, the first of its queue."""
    store = made(tmp_path / "store", "A*5 B*40")
    root, copy = store.write(), tmp_path / "copy"
    overwrite(root / "commitlog" / f"{0:020}", 0, bytes(50))
    recover(str(root), into=str(copy), salvage=True).apply()
    write_group_offsets(Opened(str(copy)), "G", {("A", 0): 0}, timestamp=NOW)
    (row,) = view(copy, "retention", NOW + 100_000 * HOUR)
    assert (row["committedOffset"], row["nextLostMessages"]) == (0, 4)
    (lag,) = view(copy, "lag", NOW)
    assert lag["nextTimestamp"] is not None
