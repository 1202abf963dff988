"""What a row must be: every column of a message as the oracle sees it, and every column of a batch as plain
values.

Tests of the reading core compare these two, so that a column nobody looks at cannot go wrong unseen.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from store_format.files.paths import StoreFile
from store_format.message.columns import COLUMNS
from store_format.message.locate import Identity, UnitRefs
from tests.support import oracle
from tests.support.oracle import Message

ALL = tuple(COLUMNS)
BROKER = "broker-a"

_TWO_DAYS_MS = 2 * 86_400_000
_YEAR_1_MS, _YEAR_10000_MS = -62135596800000, 253402300800000


def _timestamp(ms: int) -> int | None:
    """Microseconds, or nothing where Spark and Python cannot show it in every time zone."""
    return ms * 1000 if _YEAR_1_MS + _TWO_DAYS_MS <= ms < _YEAR_10000_MS - _TWO_DAYS_MS else None


# Any: values of any column
def expected_row(message: Message, *, tags_code: int = 0, **place: Any) -> dict[str, Any]:
    """The row of a message; `place` are the columns in which the queue that led there has its own say."""
    properties = message.properties
    return {
        "topic": message.topic,
        "flag": message.flag,
        "body": message.decompressed,
        "properties": list(properties.items()),
        "brokerName": BROKER,
        "queueId": message.queue_id,
        "queueOffset": message.queue_offset,
        "bornTimestamp": _timestamp(message.born_timestamp),
        "storeTimestamp": _timestamp(message.store_timestamp),
        "tags": properties.get("TAGS"),
        "keys": [key for key in properties["KEYS"].split(" ") if key] if "KEYS" in properties else None,
        "msgId": message.msg_id,
        "bornTimestampMs": message.born_timestamp,
        "storeTimestampMs": message.store_timestamp,
        "offsetMsgId": message.offset_msg_id,
        "bornHost": oracle.java_host(message.born_host),
        "storeHost": oracle.java_host(message.store_host),
        "sysFlag": message.sys_flag,
        "bodyCRC": message.body_crc,
        "reconsumeTimes": message.reconsume_times,
        "preparedTransactionOffset": message.prepared_transaction_offset,
        "physicalOffset": message.physical_offset,
        "storeSize": message.total_size,
        # an address in the queue's extension (CqExtUnit), which is not there
        "tagsCode": None if tags_code < -(2**31) else tags_code,
        "storedTopic": message.topic,
        "rawBody": message.body,
        "logicalQueueId": None,
        "logicalQueueOffset": None,
        "_corrupt_record": None,
    } | place


def inner_rows(unit: Message, *, tags_code: int = 0, **place: Any) -> list[dict[str, Any]]:
    """The rows of an inner batch: the unit's own columns, but for what each message of the batch has
    itself.
    """
    rows = []
    first = place.pop("queueOffset", unit.queue_offset)
    for i, part in enumerate(oracle.split_inner_batch(unit.decompressed)):
        alone = replace(
            unit,
            body=part.body,
            properties_bytes=part.properties_bytes,
            sys_flag=unit.sys_flag & ~1,
            flag=part.flag,
        )
        own = {"storeSize": unit.total_size, "sysFlag": unit.sys_flag, "bodyCRC": 0, "queueOffset": first + i}
        rows.append(expected_row(alone, tags_code=tags_code, **(place | own)))
    return rows


def rows_of(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """A batch as plain values: timestamps as microseconds, maps as lists of pairs."""
    columns = {}
    for name in batch.schema.names:
        column = batch[name]
        columns[name] = (
            column.view(pa.int64()) if pa.types.is_timestamp(column.type) else column
        ).to_pylist()
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def table_rows(batches: Iterable[pa.RecordBatch]) -> list[dict[str, Any]]:
    return [row for batch in batches for row in rows_of(batch)]


def placed(
    messages: Iterable[Message], base: int, *, crc_property: bool = False
) -> tuple[bytes, list[Message]]:
    """Units one behind the other from physical offset `base` on, and the messages as they stand there."""
    data, stored = b"", []
    for message in messages:
        message = replace(message, physical_offset=base + len(data))
        message = oracle.with_crc_property(message) if crc_property else message
        stored.append(message)
        data += oracle.encode_message(message)
    return data, stored


def refs_of(
    data: bytes,
    messages: Sequence[Message],
    base: int,
    *,
    tags_codes: Sequence[int] | None = None,
    identity: Identity | None = None,
) -> UnitRefs:
    """References to where the messages stand in `data`, whose first byte has physical offset `base`."""
    positions = np.array([message.physical_offset - base for message in messages], np.int64)
    sizes = np.array([message.total_size for message in messages], np.int64)
    codes = None if tags_codes is None else np.array(tags_codes, np.int64)
    return unit_refs(data, base, positions, sizes, codes, identity)


def unit_refs(
    data: bytes,
    base: int,
    positions: NDArray[np.int64],
    sizes: NDArray[np.int64],
    tags_codes: NDArray[np.int64] | None = None,
    identity: Identity | None = None,
) -> UnitRefs:
    """References into a commitlog file that has exactly these bytes, from physical offset `base` on."""
    file = StoreFile("log/0", base, len(data))
    return UnitRefs(
        file, np.frombuffer(data, np.uint8), positions, positions + base, sizes, tags_codes, identity
    )
