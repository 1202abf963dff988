"""Arrow batches as rows of plain values: times as ISO 8601 in UTC, maps as dicts, bytes as bytes.

The module imports nothing that would slow down the start of the command line.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

Row = dict[str, Any]  # Any: a value of the column's type


def iso_utc(stamp_ms: int) -> str:
    """A time in ms as ISO 8601; the number itself if it is outside the calendar.

    >>> iso_utc(1700000000123)
    '2023-11-14T22:13:20.123Z'
    """
    try:
        moment = _EPOCH + timedelta(milliseconds=stamp_ms)
    except OverflowError:
        return str(stamp_ms)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def plain_rows(batch: pa.RecordBatch) -> Iterator[Row]:
    """The rows of a batch as JSON values; binary values stay bytes."""
    import pyarrow as pa

    columns: list[list[object]] = []
    for field, array in zip(batch.schema, batch.columns, strict=True):
        if pa.types.is_timestamp(field.type):
            # As numbers: for datetimes pyarrow loads a time zone database, which takes 0.1 s.
            columns.append(
                [None if us is None else iso_utc(us // 1000) for us in array.cast(pa.int64()).to_pylist()]
            )
        elif pa.types.is_date(field.type):
            columns.append([None if day is None else day.isoformat() for day in array.to_pylist()])
        elif pa.types.is_map(field.type):
            columns.append([None if pairs is None else dict(pairs) for pairs in array.to_pylist()])
        else:
            columns.append(array.to_pylist())
    names = batch.schema.names
    yield from (dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True))
