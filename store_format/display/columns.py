"""Columns of views: name, Arrow type and meaning; and record batches from rows of plain values.

Text that is not valid Unicode gets replacement characters. A number that does not fit its column is null.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

import pyarrow as pa

TEXT, INT, LONG, BOOL, REAL, DAY = pa.string(), pa.int32(), pa.int64(), pa.bool_(), pa.float64(), pa.date32()
TIME = pa.timestamp("us", tz="UTC")
NAMES = pa.list_(pa.field("element", TEXT))

# Times that Python can show in every time zone: the years 1 to 9999 without two days at each end, since
# `datetime.fromtimestamp`, which Spark's collect() calls, looks a day back before it takes the local time.
# Stores also contain times outside, such as Long.MAX_VALUE.
TIME_MS_MIN, TIME_MS_STOP = -62135596800000 + 2 * 86_400_000, 253402300800000 - 2 * 86_400_000

_ROWS_A_BATCH = 4096
_BITS = {INT: 31, LONG: 63}


@dataclass(frozen=True, slots=True)
class ViewColumn:
    """One column. Every column may be null, which means unknown or not applicable."""

    name: str
    type: pa.DataType
    about: str


BROKER = ViewColumn("brokerName", TEXT, "The broker of the store.")


def schema_of(columns: Sequence[ViewColumn]) -> pa.Schema:
    """The Arrow schema of the columns."""
    return pa.schema([pa.field(column.name, column.type) for column in columns])


# Any: values of the columns' types
def batch_of(columns: Sequence[ViewColumn], rows: Iterable[Sequence[Any]]) -> pa.RecordBatch:
    """A record batch of rows with one value a column. Times are microseconds since the epoch (`time_us`)."""
    held = list(rows)
    arrays = [
        pa.array([_fit_column(row[i], column.type) for row in held], column.type)
        for i, column in enumerate(columns)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema_of(columns))


def batches_of(columns: Sequence[ViewColumn], rows: Iterable[Sequence[Any]]) -> Iterator[pa.RecordBatch]:
    """The rows in batches of some thousand rows; at least one batch."""
    left = iter(rows)
    yield batch_of(columns, islice(left, _ROWS_A_BATCH))
    yield from (batch_of(columns, chain([row], islice(left, _ROWS_A_BATCH - 1))) for row in left)


def time_us(ms: int | None) -> int | None:
    """A broker's time in ms as a value of a TIME column; None outside TIME_MS_MIN to TIME_MS_STOP."""
    return None if ms is None or not TIME_MS_MIN <= ms < TIME_MS_STOP else ms * 1000


def _fit_column(value: Any, kind: pa.DataType) -> Any:
    if isinstance(value, str):
        return value if value.isascii() else value.encode("utf-8", "replace").decode()
    if isinstance(value, list | tuple):
        return [_fit_column(each, TEXT) for each in value]
    bits = _BITS.get(kind)
    return None if bits is not None and value is not None and not -(1 << bits) <= value < 1 << bits else value
