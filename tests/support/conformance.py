"""What each column of each message must be in stores that real brokers wrote, by the brokers' own answers."""

from __future__ import annotations

import base64
from pathlib import Path

import pyarrow as pa

from store_format.message.columns import COLUMNS
from tests.support import goldens, oracle
from tests.support.reads import Row

NAMES = tuple(name for name in COLUMNS if name != "_corrupt_record")
YEAR_1_MS, YEAR_10000_MS = -62135596800000, 253402300800000
STATIC_STARTS = {"broker-a": 0, "broker-b": 10_000}  # of the brokers' items in the static golden
MEMBER_PREFIX = "rmq_sys_SYNC_BROKER_MEMBER_"


# The stores with topics in RocksDB: expected.json has none. Version 2 does not keep the broker's own topic.
IN_ROCKSDB = dict.fromkeys(
    ("rocksdb-5.5.0", "rocksdbcq-5.5.0", "rocksdbcq-crash-5.5.0", "rocksdbcq-crash2-5.5.0"), "broker-a"
)


def broker_name(store: str) -> str:
    """Of a single store: what topics.json or RocksDB says, else the directory's name."""
    if store in IN_ROCKSDB:
        return IN_ROCKSDB[store]
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
        "logicalQueueId": told["queueId"] if told["topic"] == "Static" else None,
        "logicalQueueOffset": (
            told["queueOffset"] + STATIC_STARTS[told["brokerName"]] if told["topic"] == "Static" else None
        ),
    }


def microseconds(timestamp_ms: int) -> int | None:
    return timestamp_ms * 1000 if YEAR_1_MS <= timestamp_ms < YEAR_10000_MS else None


def place(row: Row) -> tuple[str, str, int, int]:
    return row["topic"], row["brokerName"], row["queueId"], row["queueOffset"]


def expected(store: str, root: Path) -> list[Row]:
    outer = outer_units(store, root)
    broker = "" if "brokers" in goldens.expected(store) else broker_name(store)
    return sorted((expected_row(told, broker, outer) for told in goldens.expected_rows(store)), key=place)


def rows_of(table: pa.Table) -> list[Row]:
    """All rows as Python values, by queue and offset; timestamps as microseconds, so that no time zone has a
    say.
    """
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
