"""Values of Arrow batches as JSON has them and as a cell of a table shows them.

Times become ISO 8601 in UTC, bytes base64 (as Spark's `to_json` does) or text, maps objects.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from rmq_spark.cli.text import body_text, shown
from rmq_spark.values import iso_utc

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["BODY_CHARACTERS", "Row", "cell", "csv_value", "json_value", "plain_rows"]

BODY_CHARACTERS = 40  # with the note of its size, what a cell has room for
_TEXT_CHARACTERS = 200  # a cell is one look; a value beyond that is cut with a note

Row = dict[str, Any]  # Any: a value of the column's type


def plain_rows(batch: pa.RecordBatch) -> Iterator[Row]:
    """The rows of a batch as values that JSON knows, and bytes, which stay bytes."""
    import pyarrow as pa

    columns: list[list[object]] = []
    for field, array in zip(batch.schema, batch.columns, strict=True):
        if pa.types.is_timestamp(field.type):
            # As numbers: pyarrow makes datetimes with a time zone database, which takes a tenth of a second to load.
            columns.append([None if us is None else _time(us) for us in array.cast(pa.int64()).to_pylist()])
        elif pa.types.is_date(field.type):
            columns.append([None if day is None else day.isoformat() for day in array.to_pylist()])
        elif pa.types.is_map(field.type):
            columns.append([None if pairs is None else dict(pairs) for pairs in array.to_pylist()])
        else:
            columns.append(array.to_pylist())
    names = batch.schema.names
    for values in zip(*columns, strict=True):
        yield dict(zip(names, values, strict=True))


def _time(us: int) -> str:
    return iso_utc(us // 1000)


def json_value(value: object, *, bodies_as_text: bool) -> object:
    """A value for JSON."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace") if bodies_as_text else base64.b64encode(value).decode()
    return value


def csv_value(value: object, *, bodies_as_text: bool) -> object:
    """A value for CSV: null is empty, lists and maps are JSON."""
    if isinstance(value, dict | list):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, bool):
        return "true" if value else "false"
    return json_value(value, bodies_as_text=bodies_as_text)


def cell(value: object, characters_max: int = BODY_CHARACTERS) -> str:
    """A value for people: on one line, harmless, and cut with a note where it is long."""
    if value is None:
        return "-"
    if isinstance(value, bytes):
        return body_text(value, characters_max)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return f"{value:.3g}"
    if isinstance(value, Mapping):
        return _long(" ".join(f"{name}={text}" for name, text in value.items()))
    if isinstance(value, list | tuple):
        return _long(" ".join(map(str, value)))
    return _long(str(value))


def _long(text: str) -> str:
    if len(text) <= _TEXT_CHARACTERS:
        return shown(text)
    return f"{shown(text[:_TEXT_CHARACTERS])}… ({len(text):,} characters)"
