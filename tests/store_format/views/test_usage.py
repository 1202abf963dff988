"""The view `usage` against the rows that the brokers' own classes read."""

from __future__ import annotations

import datetime
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from store_format.message.encode import MessageColumns
from store_format.store import MessageStore
from tests.support import goldens
from tests.support.fixtures import Golden

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


def test_days_are_cut_where_they_change(root: Path) -> None:
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
