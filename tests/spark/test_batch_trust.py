"""Bytes that are gone, and bytes that are wrong: an error that says where, or exactly the other rows.

What happens between planning and reading is done by hand: a DataFrame is planned once, so a file can be
deleted in between.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException

from tests.support.spark.frames import PLACE, copy_of, flip, places, read, told, told_places

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

STORE = "basic-5.5.0"
HEAD_SIZE = 88  # of a unit with IPv4 hosts: its body begins there
FIRST_FILE = 262144
_WHOLE = (pytest.mark.whole, pytest.mark.slow)  # test_bad_input.py has every byte, without Spark

Golden = Callable[[str], Path]
Row = dict[str, Any]


def planned(frame: DataFrame) -> DataFrame:
    """`frame`, planned: its partitions stay what they are now."""
    assert frame.rdd.getNumPartitions() >= 1
    return frame


def message_of(frame: DataFrame) -> str:
    with pytest.raises(PySparkException) as caught:
        frame.collect()
    return str(caught.value)


# ---- gone --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("split_by", ["queue", "commitlog"])
def test_a_commitlog_file_deleted_after_planning(
    spark: SparkSession, golden: Golden, tmp_path: Path, split_by: str
) -> None:
    root = copy_of(golden, STORE, tmp_path)
    options: dict[str, str | bool] = {"includeSystemTopics": True, "columns": PLACE, "splitBy": split_by}
    strict = planned(read(spark, root, **options))
    lenient = planned(read(spark, root, failOnDataLoss=False, **options))
    (root / "commitlog" / f"{0:020d}").unlink()
    message = message_of(strict)
    assert "was deleted (retention); the log now begins at 262144" in message
    assert "failOnDataLoss=false" in message
    assert places(lenient) == told_places(told(STORE, lambda row: row["physicalOffset"] >= FIRST_FILE))
    # A new plan sees a store whose retention took that file: nothing of it is asked for, so nothing is lost.
    assert places(read(spark, root, **options)) == places(lenient)


def test_a_consume_queue_file_deleted_after_planning(
    spark: SparkSession, golden: Golden, tmp_path: Path
) -> None:
    root = copy_of(golden, STORE, tmp_path)
    options = {"subscribe": "Orders", "columns": PLACE}
    strict = planned(read(spark, root, **options))
    lenient = planned(read(spark, root, failOnDataLoss=False, **options))
    file = root / "consumequeue" / "Orders" / "2" / f"{0:020d}"
    file.unlink()
    message = message_of(strict)
    assert "Orders-2" in message
    assert str(file) in message
    assert "no longer exists: it was deleted (retention?) after planning" in message
    expected = told(
        STORE, lambda row: row["topic"] == "Orders" and (row["queueId"] != 2 or row["queueOffset"] >= 100)
    )
    assert places(lenient) == told_places(expected)


def test_a_whole_queue_deleted_after_planning(spark: SparkSession, golden: Golden, tmp_path: Path) -> None:
    root = copy_of(golden, STORE, tmp_path)
    frame = planned(read(spark, root, subscribe="Orders", columns=PLACE, failOnDataLoss=False))
    directory = root / "consumequeue" / "Orders" / "3"
    for file in directory.iterdir():
        file.unlink()
    directory.rmdir()
    assert places(frame) == told_places(
        told(STORE, lambda row: row["topic"] == "Orders" and row["queueId"] != 3)
    )


def test_a_scanned_file_deleted_after_planning(spark: SparkSession, golden: Golden, tmp_path: Path) -> None:
    root = copy_of(golden, STORE, tmp_path)
    (root / "consumequeue").rename(tmp_path / "elsewhere")
    options = {"columns": PLACE, "maxBytesPerPartition": "200k"}
    strict = planned(read(spark, root, **options))
    lenient = planned(read(spark, root, failOnDataLoss=False, **options))
    (root / "commitlog" / f"{0:020d}").unlink()
    assert "the commitlog from 0 to 262144 was deleted (retention) after planning" in message_of(strict)
    expected = told(
        STORE,
        lambda row: row["topic"] in ("Audit", "Metrics", "Orders") and row["physicalOffset"] >= FIRST_FILE,
    )
    assert places(lenient) == told_places(expected)


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


def test_a_flipped_body(spark: SparkSession, golden: Golden, tmp_path: Path) -> None:
    root, row, file, position = harmed(golden, tmp_path, HEAD_SIZE + 3)
    options = {"subscribe": "Orders", "columns": f"{PLACE},body"}
    message = message_of(read(spark, root, **options))
    assert f"{file} at byte {position + 8}: expected body CRC" in message
    assert "ChecksumError" in message
    assert places(read(spark, root, mode="DROPMALFORMED", **options)) == others(row)
    unchecked = {
        tuple(found[:3]): found.body for found in read(spark, root, verifyCrc=False, **options).collect()
    }
    assert sorted(unchecked) == sorted([*others(row), ("Orders", 1, 150)])
    told_body = base64.b64decode(row["body"])
    changed = bytearray(told_body)
    changed[3] ^= 0x01
    assert unchecked["Orders", 1, 150] == changed != told_body


def test_damage_in_the_middle_of_a_crashed_log(spark: SparkSession, golden: Golden, tmp_path: Path) -> None:
    """A broker's recovery ends the log at the damage; the modes step over it, and FAILFAST and a stream fail
    with its place.
    """
    root = copy_of(golden, "crash-5.5.0", tmp_path)
    rows = sorted(told("crash-5.5.0"), key=lambda row: int(row["physicalOffset"]))
    file, position = flip(root, rows[30]["physicalOffset"] + HEAD_SIZE + 3)
    options: dict[str, str | bool] = {"includeSystemTopics": True, "columns": PLACE}
    assert places(read(spark, root, mode="DROPMALFORMED", **options)) == told_places(rows[:30] + rows[31:])
    expected = f"{file} at byte {position - HEAD_SIZE - 3 + 8}: expected body CRC"
    assert expected in message_of(read(spark, root, **options))
    stream = spark.readStream.format("rmqlog").option("startingOffsets", "earliest").load(str(root))
    query = (
        stream.writeStream.format("noop")
        .option("checkpointLocation", str(tmp_path / "ck"))
        .trigger(availableNow=True)
        .start()
    )
    with pytest.raises(PySparkException) as caught:
        query.awaitTermination()
    assert expected in str(caught.value)


@pytest.mark.parametrize("split_by", ["queue", pytest.param("commitlog", marks=_WHOLE)])
@pytest.mark.parametrize(
    ("at", "field", "what"),
    [(HEAD_SIZE + 3, 8, "body CRC"), (3, 0, "total size"), (4, 4, "magic code"), (35, 28, "physicalOffset")],
)
def test_a_row_for_what_is_wrong(
    spark: SparkSession, golden: Golden, tmp_path: Path, split_by: str, at: int, field: int, what: str
) -> None:
    """PERMISSIVE: as many rows as the queue has offsets; the bad one says what led there, and which byte is
    wrong.
    """
    root, row, file, position = harmed(golden, tmp_path, at)
    frame = read(spark, root, subscribe="Orders", mode="PERMISSIVE", splitBy=split_by)
    assert frame.columns[-1] == "_corrupt_record"
    rows = frame.collect()
    assert len(rows) == len(others(row)) + 1
    (bad,) = [found for found in rows if found._corrupt_record is not None]
    assert (bad.topic, bad.brokerName, bad.queueId, bad.queueOffset) == ("Orders", "broker-a", 1, 150)
    assert (bad.body, bad.properties, bad.tags, bad.storeTimestamp) == (None, None, None, None)
    assert bad._corrupt_record.startswith(f"{file} at byte {position + field}: expected ")
    assert what in bad._corrupt_record


def test_mode_and_columns_of_ones_own(spark: SparkSession, golden: Golden, tmp_path: Path) -> None:
    """With `columns`, `_corrupt_record` comes only if it is named; a schema may name it too."""
    root, row, _, _ = harmed(golden, tmp_path, HEAD_SIZE + 3)
    options = {"subscribe": "Orders", "mode": "PERMISSIVE"}
    unnamed = read(spark, root, columns="queueOffset,body", **options)
    assert unnamed.columns == ["queueOffset", "body"]
    assert [found.queueOffset for found in unnamed.where("body is null").collect()] == [150]
    reader = spark.read.format("rmqlog").schema("_CORRUPT_RECORD string, queueId int").options(**options)
    assert reader.load(str(root)).where("_CORRUPT_RECORD is not null").count() == 1
    assert reader.load(str(root)).count() == len(others(row)) + 1


@pytest.mark.parametrize(
    ("at", "bit"),
    [
        (HEAD_SIZE + 3, 0x01),
        (3, 0x01),
        *(pytest.param(at, bit, marks=_WHOLE) for at, bit in ((2, 0x80), (0, 0x7F), (4, 0xFF))),
    ],
)
def test_damage_in_a_scan(spark: SparkSession, golden: Golden, tmp_path: Path, at: int, bit: int) -> None:
    """Without consume queues a length that lies hides only its own message: the walk goes on at the next
    unit.
    """
    root, row, file, position = harmed(golden, tmp_path, at, bit)
    (root / "consumequeue").rename(tmp_path / "elsewhere")
    options = {"subscribe": "Orders", "columns": PLACE}
    message = message_of(read(spark, root, **options))
    assert f"{file} at byte {position + (8 if at > HEAD_SIZE else 0)}" in message
    assert places(read(spark, root, mode="DROPMALFORMED", **options)) == others(row)


def test_an_entry_that_leads_to_another_queue(spark: SparkSession, golden: Golden, tmp_path: Path) -> None:
    """A consume queue that was swapped with another: no row is given under a wrong name."""
    root = copy_of(golden, STORE, tmp_path)
    queues = root / "consumequeue" / "Orders"
    (queues / "0").rename(queues / "9")
    (queues / "1").rename(queues / "0")
    (queues / "9").rename(queues / "1")
    message = message_of(read(spark, root, assign='{"Orders":[0]}'))
    assert "CorruptStoreError" in message
    assert str(root / "commitlog") in message
    found = places(read(spark, root, assign='{"Orders":[0]}', mode="DROPMALFORMED"))
    right = told_places(told(STORE, lambda row: row["topic"] == "Orders" and row["queueId"] == 0))
    assert set(found) <= set(right)  # what is between two known places of the log is read from there
    assert len(found) == len(set(found)) > 0


def test_a_link_below_the_root_is_not_followed(spark: SparkSession, golden: Golden, tmp_path: Path) -> None:
    root = copy_of(golden, STORE, tmp_path)
    file = root / "commitlog" / f"{0:020d}"
    file.rename(tmp_path / "elsewhere")
    file.symlink_to(tmp_path / "elsewhere")
    message = message_of(read(spark, root))
    assert f"{file} at byte 0: expected a file or directory, found a symbolic link" in message


def test_a_body_larger_than_believed(spark: SparkSession, golden: Golden) -> None:
    """Decompression stops at `maxMessageSize`; a body that is stored as it is has the size it has."""
    options = {"subscribe": "Orders", "columns": f"{PLACE},body", "maxMessageSize": "200"}
    message = message_of(read(spark, golden(STORE), **options))
    assert "at most 200 bytes" in message
    rows = told(STORE, lambda row: row["topic"] == "Orders")
    large = [row for row in rows if row["sysFlag"] & 1 and len(base64.b64decode(row["body"])) > 200]
    assert large
    assert read(spark, golden(STORE), mode="DROPMALFORMED", **options).count() == len(rows) - len(large)
