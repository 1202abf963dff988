"""Every store that a real broker wrote, every row and every column, through Spark: the broker's own answers,
0 differences.

One job a store and mode reads all columns at once; the rows are compared in Python, so that a difference is
shown as it is.
"""

from __future__ import annotations

import base64
import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from store_format.message.columns import COLUMNS
from tests.support import goldens, oracle

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NAMES = tuple(name for name in COLUMNS if name != "_corrupt_record")
YEAR_1_MS, YEAR_10000_MS = -62135596800000, 253402300800000
MEMBER_PREFIX = "rmq_sys_SYNC_BROKER_MEMBER_"

Row = dict[str, Any]  # column name -> value of any column type


def broker_name(store: str) -> str:
    """Of a single store: what topics.json says, else the directory's name."""
    members = [topic for topic in goldens.expected(store)["topics"] or () if topic.startswith(MEMBER_PREFIX)]
    return members[0].removeprefix(MEMBER_PREFIX) if members else store


def outer_units(store: str, root: Path) -> dict[int, oracle.Message]:
    """The units that hold inner batches, by physical offset: what the expected rows leave out of them is in
    the bytes.
    """
    if not any("batchNum" in told for told in goldens.expected_rows(store)):
        return {}
    files = {int(path.name): path.read_bytes() for path in (root / "commitlog").iterdir()}
    return {message.physical_offset: message for message in oracle.walk_files(files, len(files[0])).messages}


def expected_row(told: Row, broker: str, outer: dict[int, oracle.Message]) -> Row:
    """One line of expected.jsonl.gz as the columns show it."""
    properties, body = told["properties"], base64.b64decode(told["body"])
    batch = outer.get(told["physicalOffset"]) if "batchNum" in told else None
    # of a batch each message has its own
    raw = base64.b64decode(told["rawBody"]) if "rawBody" in told and batch is None else body
    offset_msg_id = told["msgId"] if batch is None else batch.offset_msg_id
    return {
        "topic": told["topic"],
        "flag": told["flag"],
        "body": body,
        "properties": properties,
        "brokerName": told.get("brokerName", broker),
        "queueId": told["queueId"],
        "queueOffset": told["queueOffset"],
        "bornTimestamp": microseconds(told["bornTimestamp"]),
        "storeTimestamp": microseconds(told["storeTimestamp"]),
        "tags": properties.get("TAGS"),
        "keys": [key for key in properties["KEYS"].split(" ") if key] if "KEYS" in properties else None,
        "msgId": properties.get("UNIQ_KEY", offset_msg_id),
        "bornTimestampMs": told["bornTimestamp"],
        "storeTimestampMs": told["storeTimestamp"],
        "offsetMsgId": offset_msg_id,
        "bornHost": told["bornHost"],
        "storeHost": told["storeHost"],
        "sysFlag": told["sysFlag"],
        "bodyCRC": told["bodyCRC"],
        "reconsumeTimes": told["reconsumeTimes"],
        "preparedTransactionOffset": told["preparedTransactionOffset"],
        "physicalOffset": told["physicalOffset"],
        "storeSize": told["storeSize"],
        "tagsCode": told["tagsCode"],
        "storedTopic": told.get("storedTopic", told["topic"]),
        "rawBody": raw,
    }


def microseconds(timestamp_ms: int) -> int | None:
    return timestamp_ms * 1000 if YEAR_1_MS <= timestamp_ms < YEAR_10000_MS else None


def place(row: Row) -> tuple[str, str, int, int]:
    return row["topic"], row["brokerName"], row["queueId"], row["queueOffset"]


def expected(store: str, root: Path) -> list[Row]:
    outer = outer_units(store, root)
    broker = "" if store.startswith("cluster") else broker_name(store)
    return sorted((expected_row(told, broker, outer) for told in goldens.expected_rows(store)), key=place)


def rows_of(frame: DataFrame) -> list[Row]:
    """All rows as Python values, by queue and offset; timestamps as microseconds, so that no time zone has a
    say.
    """
    table = frame.toArrow()
    for i, column in enumerate(table.schema):
        if pa.types.is_timestamp(column.type):
            table = table.set_column(i, column.name, table[i].cast(pa.int64()))
    rows = table.to_pylist()
    for row in rows:
        pairs = row["properties"]
        row["properties"] = dict(pairs)
        assert len(row["properties"]) == len(pairs), f"a name twice in {pairs}"
    return sorted(rows, key=place)


def differences(found: list[Row], told: list[Row]) -> list[str]:
    """What differs, a line each: places on one side only, then columns."""
    by_place = {place(row): row for row in told}
    assert len(by_place) == len(told)
    lines = [f"{at} only in the expected rows" for at in by_place.keys() - {place(row) for row in found}]
    for row in found:
        other = by_place.pop(place(row), None)
        if other is None:
            lines.append(f"{place(row)} unexpected, or twice")
            continue
        lines += [
            f"{place(row)} {name}: {row[name]!r}, expected {other[name]!r}"
            for name in NAMES
            if row[name] != other[name]
        ]
    return lines


@pytest.mark.golden
@pytest.mark.parametrize("split_by", ["queue", "commitlog"])
@pytest.mark.parametrize("store", goldens.NAMES)
def test_every_row_and_column(
    spark: SparkSession,
    golden: Callable[[str], Path],
    unchanged: Callable[[Path], AbstractContextManager[None]],
    store: str,
    split_by: str,
) -> None:
    root = golden(store)
    told = expected(store, root)
    with unchanged(root):
        frame = (
            spark.read.format("rmqlog")
            .options(includeSystemTopics="true", columns=",".join(NAMES), splitBy=split_by)
            .load(str(root))
        )
        found = rows_of(frame)
    assert differences(found, told) == []
    assert len(found) == len(told) == len(goldens.expected_rows(store)) > 0


@pytest.mark.parametrize(
    "store",
    ["basic-5.5.0", "batchcq-5.5.0", "cleaned-5.5.0", "crash-torn-5.5.0", "edge-5.5.0", "delay-tx-5.5.0"],
)
def test_without_consume_queues_the_commitlog_gives_every_row_and_column(
    spark: SparkSession, golden: Callable[[str], Path], tmp_path: Path, store: str
) -> None:
    root = tmp_path / store
    shutil.copytree(golden(store), root)
    for directory in ("consumequeue", "batchconsumequeue"):
        shutil.rmtree(root / directory, ignore_errors=True)
    frame = (
        spark.read.format("rmqlog")
        .options(includeSystemTopics="true", columns=",".join(NAMES))
        .load(str(root))
    )
    assert differences(rows_of(frame), expected(store, root)) == []
