"""The views of disk usage, retention, index entries, checkpoints and problems."""

from __future__ import annotations

import datetime
import os
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from store_format.index.file import index_key, key_hash
from store_format.message.encode import MessageColumns
from store_format.store import MessageStore
from store_format.views.retention import retention_rows
from tests.support import goldens
from tests.support.staged import make_store

Golden = Callable[[str], Path]

STORES = [(name, broker) for name in goldens.NAMES for broker in goldens.brokers(name, Path())]
NOW = 1_795_244_400_000
HOUR = 3_600_000


def view(root: Path, name: str, now: int = NOW) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = MessageStore.open(str(root)).view(name, now_ms=now).to_pylist()
    return rows


def _rows_of(name: str, broker: str) -> list[dict[str, Any]]:
    return [row for row in goldens.expected_rows(name) if broker in ("", row.get("brokerName"))]


def _day(ms: int) -> datetime.date | None:
    if not -62135596800000 <= ms < 253402300800000:
        return None
    return datetime.date(1970, 1, 1) + datetime.timedelta(days=ms // 86_400_000)


# ---- usage -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "broker"), STORES)
def test_usage_by_topic_and_day(golden: Golden, name: str, broker: str) -> None:
    root, _ = goldens.brokers(name, golden(name))[broker]
    messages: Counter[tuple[str, Any]] = Counter()
    sizes: Counter[tuple[str, Any]] = Counter()
    seen: set[int] = set()
    for row in _rows_of(name, broker):
        if row["topic"].startswith("%LMQ%"):
            continue
        key = (row["topic"], _day(row["storeTimestamp"]))
        messages[key] += 1
        sizes[key] += row["storeSize"] * (row["physicalOffset"] not in seen)
        seen.add(row["physicalOffset"])
    rows = view(root, "usage")
    found = {(row["topic"], row["day"]): row for row in rows if row["topic"] is not None}
    # its times go back and forth over the ages: days are those of the ends of stretches, sums are exact
    if name == "edge-5.5.0":
        for sums, column in ((messages, "messages"), (sizes, "bytes")):
            by_topic = {topic: sum(sums[key] for key in sums if key[0] == topic) for topic, _ in messages}
            assert {
                topic: sum(row[column] for key, row in found.items() if key[0] == topic) for topic in by_topic
            } == by_topic
    else:
        assert {key: (row["messages"], row["bytes"]) for key, row in found.items()} == {
            key: (messages[key], sizes[key]) for key in messages
        }
    files = [row for row in view(root, "files") if row["kind"] == "commitlog"]
    assert sum(row["bytes"] for row in rows) == sum(row["usedBytes"] for row in files)


def test_days_are_cut_where_they_change(tmp_path: Path) -> None:
    root = make_store(tmp_path / "store")
    times = [day * 86_400_000 + 5 * HOUR for day in (0, 0, 1, 1, 1, 4, 9, 9)] + [
        10 * 86_400_000 - 1,
        10 * 86_400_000,
    ]
    body = pa.array([b"x" * (10 + i) for i in range(len(times))], pa.binary())
    properties = pa.array([b""] * len(times), pa.binary())
    columns = MessageColumns(
        topic="Orders", body=body, properties=properties, queue_id=np.arange(len(times)) % 2
    )
    MessageStore.open(str(root)).append(columns, store_timestamps=np.array(times, np.int64))
    sizes = {row["physicalOffset"]: row["storeSize"] for row in scan(root)}
    assert len(sizes) == len(times)
    expected: dict[int, list[int]] = {}
    for time, size in zip(times, sizes.values(), strict=True):
        sums = expected.setdefault(time // 86_400_000, [0, 0])
        sums[0] += 1
        sums[1] += size
    for cleared in (False, True):
        if cleared:
            shutil.rmtree(root / "consumequeue")
        rows = {
            (row["day"] - datetime.date(1970, 1, 1)).days: [row["messages"], row["bytes"]]
            for row in view(root, "usage")
        }
        assert rows == expected


def scan(root: Path) -> list[dict[str, Any]]:
    return [
        row
        for batch in MessageStore.open(str(root)).scan(["physicalOffset", "storeSize"])
        for row in batch.to_pylist()
    ]


# ---- retention ---------------------------------------------------------------------------------------------


@pytest.fixture
def aged(golden: Golden, tmp_path: Path) -> Path:
    """A store whose commitlog files were modified an hour apart, the last one now."""
    root = Path(shutil.copytree(golden("cleaned-5.5.0"), tmp_path / "store"))
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
            left = [
                places[topic, int(queue_id), offset]
                for offset in range(max(committed, queue["minOffset"]), queue["maxOffset"])
            ]
            number = max(
                (i for i, start in enumerate(files) if left and start <= left[0]), default=len(files) - 1
            )
            goes = number < len(files) - 1
            assert ((group, topic, int(queue_id)) in found) == bool(lost or goes)
            if not (lost or goes):
                continue
            told += 1
            row = found[group, topic, int(queue_id)]
            assert (row["committedOffset"], row["lostMessages"]) == (committed, lost)
            assert row["nextLostMessages"] == (
                sum(place < files[number + 1] for place in left) if goes else None
            )
            assert row["file"] == (f"commitlog/{files[number]:020d}" if goes else None)
            age = (len(files) - 1 - number) * HOUR
            assert row["expiresInMs"] == (72 * HOUR - age if goes else None)
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


def test_who_is_at_the_end_loses_nothing(golden: Golden) -> None:
    assert view(golden("retry-dlq-5.5.0"), "retention") == []
    assert view(golden("rocksdb-5.5.0"), "retention") == []


# ---- index, checkpoint, problems ---------------------------------------------------------------------------


def test_index_entries_lead_to_the_messages_of_their_keys(golden: Golden) -> None:
    rows = view(golden("basic-5.5.0"), "index")
    by_hash: dict[int, set[int]] = {}
    for row in rows:
        by_hash.setdefault(row["keyHash"], set()).add(row["physicalOffset"])
    told = [row for row in goldens.expected_rows("basic-5.5.0") if "UNIQ_KEY" in row["properties"]]
    assert len(told) > 1000
    for message in told[::7]:
        assert (
            message["physicalOffset"]
            in by_hash[key_hash(index_key(message["topic"], message["properties"]["UNIQ_KEY"]))]
        )
    slots = int(goldens.config("basic-5.5.0")["maxHashSlotNum"])
    assert all(row["slot"] == row["keyHash"] % slots for row in rows)
    chained = {(row["file"], row["number"]): row for row in rows}
    assert all(
        row["previous"] == 0 or chained[row["file"], row["previous"]]["slot"] == row["slot"] for row in rows
    )
    times = {row["physicalOffset"]: row["storeTimestamp"] for row in goldens.expected_rows("basic-5.5.0")}
    off = [
        abs(row["storeTimestamp"].timestamp() * 1000 - times[row["physicalOffset"]])
        for row in rows
        if row["number"] > 1
    ]
    assert max(off) < 1000


@pytest.mark.parametrize(("name", "broker"), STORES)
def test_checkpoint(golden: Golden, name: str, broker: str) -> None:
    root, answers = goldens.brokers(name, golden(name))[broker]
    rows = {row["name"]: row for row in view(root, "checkpoint") if row["file"] == "checkpoint"}
    assert {key: row["value"] for key, row in rows.items()} == answers["checkpoint"]
    for key, row in rows.items():
        assert (row["timestamp"] is not None) == (key.endswith("Timestamp") and row["value"] > 0)
    assert rows["logicsPhysicalOffset"]["since"] == "5.5"


def test_problems_are_those_of_diagnose(golden: Golden) -> None:
    root = golden("crash-torn-5.5.0")
    found = MessageStore.open(str(root)).diagnose()
    rows = view(root, "problems")
    assert len(rows) == len(found) > 0
    assert [(row["severity"], row["file"], row["position"]) for row in rows] == [
        (each.severity, each.file, each.position) for each in found
    ]
    assert view(golden("basic-5.5.0"), "problems") == []
