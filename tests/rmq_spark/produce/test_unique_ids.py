"""UNIQ_KEY against the vectors of the Java client, and that no two are equal."""

from __future__ import annotations

import ipaddress
import json
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pytest

from rmq_spark.produce.unique_ids import UniqueIds, format_ids, own_address

VECTORS: list[dict[str, Any]] = json.loads(
    (Path(__file__).parents[2] / "vectors" / "vectors.json").read_text("utf-8")
)["uniq_key_id"]
IP = bytes([127, 0, 0, 1])
MAY_2ND_MS = int(datetime(2024, 5, 2, tzinfo=UTC).timestamp()) * 1000
DAY_MS = 86_400_000


def ids_at(zone: Any = UTC) -> UniqueIds:
    return UniqueIds(IP, 1, instance=b"\xaa\xbb\xcc\xdd", zone=zone)


@pytest.mark.parametrize("row", VECTORS, ids=lambda row: row["id"])
def test_ids_of_the_java_client(row: dict[str, Any]) -> None:
    prefix = ipaddress.ip_address(row["ip"]).packed + (row["pid"] & 0xFFFF).to_bytes(2, "big")
    prefix += row["class_loader_hash"].to_bytes(4, "big", signed=True)
    ids = format_ids(prefix, np.array([row["ms_since_month_start"]] * 2), np.array([row["counter"]] * 2))
    assert ids.to_pylist() == [row["id"].encode()] * 2


def test_the_parts_of_an_id() -> None:
    assert ids_at().take(2, MAY_2ND_MS).to_pylist() == [
        b"7F0000010001AABBCCDD05265C000000",
        b"7F0000010001AABBCCDD05265C000001",
    ]
    assert UniqueIds(bytes(15) + b"\x01", 65537, instance=bytes(4), zone=UTC).take(
        1, MAY_2ND_MS
    ).to_pylist() == [b"0" * 31 + b"1" + b"0001" + b"0" * 8 + b"05265C00" + b"0000"]


@pytest.mark.parametrize("zone", [ZoneInfo("America/New_York"), timezone(timedelta(hours=-4))])
def test_the_month_begins_in_the_zone(zone: Any) -> None:
    (text,) = ids_at(zone).take(1, MAY_2ND_MS).to_pylist()
    assert int(text[20:28], 16) == DAY_MS - 4 * 3_600_000


def test_the_month_begins_before_a_change_of_the_clock() -> None:
    zone = ZoneInfo("Europe/Berlin")  # an hour is missing on March 31
    now_ms = int(datetime(2024, 3, 31, 12, tzinfo=zone).timestamp()) * 1000
    (text,) = ids_at(zone).take(1, now_ms).to_pylist()
    assert int(text[20:28], 16) == 30 * DAY_MS + 11 * 3_600_000


def test_no_two_are_equal_whatever_the_clock_does() -> None:
    ids = ids_at()
    taken = [
        ids.take(count, now).to_pylist()
        for count, now in ((70_000, MAY_2ND_MS), (3, MAY_2ND_MS), (2, MAY_2ND_MS - 5000), (1, MAY_2ND_MS + 1))
    ]
    flat = [text for some in taken for text in some]
    assert len(set(flat)) == len(flat) == 70_006
    assert flat == sorted(flat)
    assert ids.take(1, MAY_2ND_MS + 2).to_pylist() == [b"7F0000010001AABBCCDD05265C020000"]


def test_attempts_differ() -> None:
    one, other = (UniqueIds.of_this_process().take(1, MAY_2ND_MS).to_pylist()[0] for _ in range(2))
    assert one[:12] == other[:12]  # address and process
    assert one[12:20] != other[12:20]
    assert one[:8] == own_address().hex().upper().encode()


def test_none_at_all() -> None:
    assert ids_at().take(0, MAY_2ND_MS).to_pylist() == []
