"""Bytes that are gone, and bytes that are wrong: an error that says where, or exactly the other rows.

Files are deleted between planning and reading. `tests/store_format/read/test_queue_reader.py` has more of it;
here the options of a read decide.
"""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from store_format.errors import ChecksumError, StoreError
from tests.rmq_spark.stream.test_positions import Stream
from tests.support.fixtures import Golden
from tests.support.reads import PLACE, Read, Row, copy_of, flip, read, told, told_places

STORE = "basic-5.5.0"
HEAD_SIZE = 88  # of a unit with IPv4 hosts: its body begins there
FIRST_FILE = 262144


def planned(frame: Read) -> Read:
    assert frame.splits
    return frame


def message_of(frame: Read, kind: type[StoreError] = StoreError) -> str:
    with pytest.raises(kind) as caught:
        frame.rows()
    return str(caught.value)


# ---- gone --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("split_by", ["queue", "commitlog"])
def test_a_commitlog_file_deleted_after_planning(golden: Golden, tmp_path: Path, split_by: str) -> None:
    root = copy_of(golden, STORE, tmp_path)
    options: dict[str, str | bool] = {"includeSystemTopics": True, "columns": PLACE, "splitBy": split_by}
    strict = planned(read(root, **options))
    lenient = planned(read(root, failOnDataLoss=False, **options))
    (root / "commitlog" / f"{0:020d}").unlink()
    message = message_of(strict)
    assert "was deleted (retention); the log now begins at 262144" in message
    assert "failOnDataLoss=false" in message
    assert lenient.places() == told_places(told(STORE, lambda row: row["physicalOffset"] >= FIRST_FILE))
    # A new plan sees a store whose retention took that file: nothing of it is asked for, so nothing is lost.
    assert read(root, **options).places() == lenient.places()


def test_a_scanned_file_deleted_after_planning(golden: Golden, tmp_path: Path) -> None:
    root = copy_of(golden, STORE, tmp_path)
    (root / "consumequeue").rename(tmp_path / "elsewhere")
    options = {"columns": PLACE, "maxBytesPerPartition": "200k"}
    strict = planned(read(root, **options))
    lenient = planned(read(root, failOnDataLoss=False, **options))
    (root / "commitlog" / f"{0:020d}").unlink()
    assert "the commitlog from 0 to 262144 was deleted (retention) after planning" in message_of(strict)
    expected = told(
        STORE,
        lambda row: row["topic"] in ("Audit", "Metrics", "Orders") and row["physicalOffset"] >= FIRST_FILE,
    )
    assert lenient.places() == told_places(expected)


# ---- wrong -------------------------------------------------------------------------------------------------


def harmed(golden: Golden, directory: Path, at: int, bit: int = 0x01) -> tuple[Path, Row, Path, int]:
    """A copy with one byte changed, `at` bytes into a unit of Orders: (root, the broker's row, file, the
    unit's position in it).
    """
    root = copy_of(golden, STORE, directory)
    row = told(
        STORE, lambda row: row["topic"] == "Orders" and row["queueId"] == 1 and row["queueOffset"] == 150
    )[0]
    file, position = flip(root, row["physicalOffset"] + at, bit)
    return root, row, file, position - at


def others(harmed_row: Row) -> list[tuple[str, int, int]]:
    return told_places(
        told(
            STORE,
            lambda row: row["topic"] == "Orders" and row["physicalOffset"] != harmed_row["physicalOffset"],
        )
    )


def test_a_flipped_body(golden: Golden, tmp_path: Path) -> None:
    root, row, file, position = harmed(golden, tmp_path, HEAD_SIZE + 3)
    options = {"subscribe": "Orders", "columns": f"{PLACE},body"}
    message = message_of(read(root, **options), ChecksumError)
    assert f"{file} at byte {position + 8}: expected body CRC" in message
    assert read(root, mode="DROPMALFORMED", **options).places() == others(row)
    unchecked = {
        (found["topic"], found["queueId"], found["queueOffset"]): found["body"]
        for found in read(root, verifyCrc=False, **options).rows()
    }
    assert sorted(unchecked) == sorted([*others(row), ("Orders", 1, 150)])
    told_body = base64.b64decode(row["body"])
    changed = bytearray(told_body)
    changed[3] ^= 0x01
    assert unchecked["Orders", 1, 150] == changed != told_body


def test_damage_in_the_middle_of_a_crashed_log(golden: Golden, tmp_path: Path) -> None:
    """A broker's recovery ends the log at the damage; the modes step over it, and FAILFAST and a stream fail
    with its place.
    """
    root = copy_of(golden, "crash-5.5.0", tmp_path)
    rows = sorted(told("crash-5.5.0"), key=lambda row: int(row["physicalOffset"]))
    file, position = flip(root, rows[30]["physicalOffset"] + HEAD_SIZE + 3)
    options: dict[str, str | bool] = {"includeSystemTopics": True, "columns": PLACE}
    assert read(root, mode="DROPMALFORMED", **options).places() == told_places(rows[:30] + rows[31:])
    expected = f"{file} at byte {position - HEAD_SIZE - 3 + 8}: expected body CRC"
    assert expected in message_of(read(root, **options))
    with pytest.raises(ChecksumError) as caught:
        Stream(root).step()
    assert expected in str(caught.value)


@pytest.mark.parametrize("split_by", ["queue", "commitlog"])
@pytest.mark.parametrize(
    ("at", "field", "what"),
    [(HEAD_SIZE + 3, 8, "body CRC"), (3, 0, "total size"), (4, 4, "magic code"), (35, 28, "physicalOffset")],
)
def test_a_row_for_what_is_wrong(
    golden: Golden, tmp_path: Path, split_by: str, at: int, field: int, what: str
) -> None:
    """PERMISSIVE: as many rows as the queue has offsets; the bad one says what led there, and which byte is
    wrong.
    """
    root, row, file, position = harmed(golden, tmp_path, at)
    frame = read(root, subscribe="Orders", mode="PERMISSIVE", splitBy=split_by)
    assert frame.columns[-1] == "_corrupt_record"
    rows = frame.rows()
    assert len(rows) == len(others(row)) + 1
    (bad,) = [found for found in rows if found["_corrupt_record"] is not None]
    assert [bad[name] for name in ("topic", "brokerName", "queueId", "queueOffset")] == [
        "Orders", "broker-a", 1, 150,
    ]  # fmt: skip
    assert [bad[name] for name in ("body", "properties", "tags", "storeTimestamp")] == [None] * 4
    assert bad["_corrupt_record"].startswith(f"{file} at byte {position + field}: expected ")
    assert what in bad["_corrupt_record"]


@pytest.mark.parametrize(
    ("at", "bit"),
    [(HEAD_SIZE + 3, 0x01), (3, 0x01), (2, 0x80), (0, 0x7F), (4, 0xFF)],
)
def test_damage_in_a_scan(golden: Golden, tmp_path: Path, at: int, bit: int) -> None:
    """Without consume queues a length that lies hides only its own message: the walk goes on at the next
    unit.
    """
    root, row, file, position = harmed(golden, tmp_path, at, bit)
    (root / "consumequeue").rename(tmp_path / "elsewhere")
    options = {"subscribe": "Orders", "columns": PLACE}
    message = message_of(read(root, **options))
    assert f"{file} at byte {position + (8 if at > HEAD_SIZE else 0)}" in message
    assert read(root, mode="DROPMALFORMED", **options).places() == others(row)


def test_an_entry_that_leads_to_another_queue(golden: Golden, tmp_path: Path) -> None:
    """A consume queue that was exchanged with another: its messages are read from the commitlog."""
    root = copy_of(golden, STORE, tmp_path)
    queues = root / "consumequeue" / "Orders"
    (queues / "0").rename(queues / "9")
    (queues / "1").rename(queues / "0")
    (queues / "9").rename(queues / "1")
    found = read(root, assign='{"Orders":[0]}').places()
    right = told_places(told(STORE, lambda row: row["topic"] == "Orders" and row["queueId"] == 0))
    assert sorted(found) == sorted(right) != []


def test_a_body_larger_than_believed(golden: Golden) -> None:
    """Decompression stops at `maxMessageSize`; a body that is stored as it is has the size it has."""
    options = {"subscribe": "Orders", "columns": f"{PLACE},body", "maxMessageSize": "200"}
    message = message_of(read(golden(STORE), **options))
    assert "at most 200 bytes" in message
    rows = told(STORE, lambda row: row["topic"] == "Orders")
    large = [row for row in rows if row["sysFlag"] & 1 and len(base64.b64decode(row["body"])) > 200]
    assert large
    assert len(read(golden(STORE), mode="DROPMALFORMED", **options).rows()) == len(rows) - len(large)
