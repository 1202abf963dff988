"""The views `index`, `checkpoint` and `problems` against the brokers' own classes and `diagnose`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from store_format.index.file import index_key, key_hash
from store_format.store import MessageStore
from tests.support import goldens
from tests.support.fixtures import Golden

STORES = [(name, broker) for name in goldens.NAMES for broker in goldens.brokers(name, Path())]
NOW = 1_795_244_400_000


def view(root: Path, name: str, now: int = NOW) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = MessageStore.open(str(root)).view(name, now_ms=now).to_pylist()
    return rows


def test_index_entries_lead_to_the_messages_of_their_keys(golden: Golden) -> None:
    rows = view(golden("basic-5.5.0"), "index")
    by_hash: dict[int, set[int]] = {}
    for row in rows:
        by_hash.setdefault(row["keyHash"], set()).add(row["physicalOffset"])
    told = [row for row in goldens.expected_rows("basic-5.5.0") if "UNIQ_KEY" in row["properties"]]
    assert len(told) > 1000
    for message in told[::7]:
        hashed = key_hash(index_key(message["topic"], message["properties"]["UNIQ_KEY"]))
        assert message["physicalOffset"] in by_hash[hashed]
    slots = int(goldens.config("basic-5.5.0")["maxHashSlotNum"])
    assert all(row["slot"] == row["keyHash"] % slots for row in rows)
    chained = {(row["file"], row["number"]): row for row in rows}
    linked = [row for row in rows if row["previous"]]
    assert all(chained[row["file"], row["previous"]]["slot"] == row["slot"] for row in linked)
    times = {row["physicalOffset"]: row["storeTimestamp"] for row in goldens.expected_rows("basic-5.5.0")}
    for row in rows:
        off = row["storeTimestamp"].timestamp() * 1000 - times[row["physicalOffset"]]
        assert row["number"] == 1 or abs(off) < 1000


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
