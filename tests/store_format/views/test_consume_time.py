"""The view `consumeTime`: percentiles and failures by group; records of any bytes are only counted."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from store_format import MessageStore
from store_format.views import consume_time
from store_format.views.consume_time import ConsumeTimes, consume_records
from tests.support import oracle
from tests.support.oracle import Message
from tests.support.staged import append, make_store


def _before(group: str, request: str, at_ms: int, retries: int = 0) -> list[str]:
    return ["SubBefore", str(at_ms), "DefaultRegion", group, request, f"M{request}", str(retries), "key"]


def _after(group: str, request: str, cost: int, success: str = "true", at_ms: int = 0) -> list[str]:
    return ["SubAfter", request, f"M{request}", str(cost), success, "key", "0", str(at_ms), group]


def _body(*records: list[str]) -> bytes:
    return "".join("\x01".join(record) + "\x02" for record in records).encode()


def _store(root: Path, *bodies: bytes, topic: str = "RMQ_SYS_TRACE_TOPIC") -> MessageStore:
    if not root.exists():
        make_store(root)
    properties = oracle.encode_properties({"UNIQ_KEY": "T"})
    append(root, [Message(topic.encode(), body, properties, born_timestamp=1) for body in bodies])
    return MessageStore.open(str(root))


def test_times_and_failures_of_each_group(tmp_path: Path) -> None:
    costs = list(range(1, 201))
    random.Random(1).shuffle(costs)
    records = [
        record
        for i, cost in enumerate(costs)
        for record in (
            _before("A", f"R{i}", 1000 + i, int(i < 3)),
            _after("A", f"R{i}", cost, "false" if cost <= 5 else "true", 2000 + i),
        )
    ]
    sent = ["Pub", "1", "r", "P", "Orders", "ID", "t", "k", "h", "1", "7", "0", "FF", "true"]
    _store(tmp_path / "s", _body(sent, *records[:100]), _body(*records[100:]))
    store = _store(tmp_path / "s", _body(_before("B", "X", 5000)), topic="rmq_sys_TRACE_DATA_region")
    rows = store.view("consumeTime").to_pylist()
    names = ("group", "began", "consumed", "failed", "retried", "p50Ms", "p99Ms", "maxMs")
    assert [tuple(row[name] for name in names) for row in rows] == [
        ("A", 200, 200, 5, 3, 100, 198, 200),
        ("B", 1, 0, 0, 0, None, None, None),
    ]
    assert [row["firstTimestamp"].timestamp() for row in rows] == [1.0, 5.0]
    assert rows[0]["lastTimestamp"].timestamp() == 2.199
    assert {row["skipped"] for row in rows} == {None}


def test_a_record_without_group_belongs_to_the_group_of_its_request() -> None:
    times = ConsumeTimes()
    times.add(
        consume_records(_body(_before("A", "R1", 1), _after("A", "R1", 40)[:7], _after("", "R9", 5)[:7]))
    )
    assert times.groups["A"].percentile(50) == 40
    assert times.skipped == 1


@pytest.mark.parametrize(
    ("body", "skipped"),
    [
        (b"\xff\xfe\x02\x02nonsense", 2),
        (b"SubAfter", 1),
        (_body(_after("G", "R", -1)), 1),
        (_body(_after("G", "R", 2**31)), 1),
        (_body(_after("G", "R", 5, "perhaps")), 1),
        (_body(["SubAfter", "R", "M", "x", "true", "k", "0", "1", "G"]), 1),
        (_body(_before("G", "R", 1)) + b"SubBefore\x01" * 1000, 1),
    ],
)
def test_records_of_any_bytes_are_counted(tmp_path: Path, body: bytes, skipped: int) -> None:
    rows = _store(tmp_path / "s", body).view("consumeTime").to_pylist()
    assert [row["skipped"] for row in rows if row["group"] is None] == [skipped]
    assert all(not row["consumed"] for row in rows)


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consume_time, "_GROUPS_MAX", 3)
    monkeypatch.setattr(consume_time, "_REQUESTS_MAX", 5)
    times = ConsumeTimes()
    for i in range(20):
        times.add(consume_records(_body(_before(f"G{i}", f"R{i}", 1))))
        times.add(consume_records(_body(_after("G0", f"R{i}", i * 100_003))))
    assert len(times.groups) == 3
    assert len(times.requests) <= 5
    assert times.skipped == 17
    found = times.groups["G0"].percentile(99)
    assert found is not None
    assert 0 <= 19 * 100_003 - found < 19 * 100_003 / 500
