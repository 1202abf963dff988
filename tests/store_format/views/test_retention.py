"""The view `retention`: lost messages, and when the next messages are lost."""

from __future__ import annotations

import os
from bisect import bisect_right
from pathlib import Path
from typing import Any

import pytest

from store_format.store import MessageStore
from store_format.views.retention import retention_rows
from tests.support import goldens
from tests.support.fixtures import Golden

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
