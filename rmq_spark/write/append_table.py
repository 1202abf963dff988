"""An Arrow table into a store, without Spark: the columns and the options of the Spark writer.

One commit has all rows, or none is written.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa

from rmq_spark.options.write_options import parse_write_options
from rmq_spark.produce.columns import check_columns
from rmq_spark.write.stage_and_commit import abort_write, begin_write, commit_write, stage_rows
from rmq_spark.write.target import open_target
from store_format.arrays.sql_types import type_name
from store_format.commit.append import CommitResult
from store_format.errors import OptionError

_ROWS = 10_000  # of a batch: what Spark sends by default (spark.sql.execution.arrow.maxRecordsPerBatch)


def append_table(
    path: str,
    table: Any,  # Any: whatever has Arrow's stream or array
    options: Mapping[str, object],
    key: tuple[str, int] | None,
) -> CommitResult:
    """See `rmq_spark.store.LogStore.append`."""
    read = parse_write_options({name: _text(value) for name, value in options.items()} | {"path": path})
    if read.send_back is not None or read.decides:
        raise OptionError(
            "append: expected a table of new messages, found the option sendBack, transaction=commit or "
            "transaction=rollback, whose rows name stored messages: use a write of Spark"
        )
    if key is not None and read.txn is not None:
        raise OptionError("append: expected key, or txnAppId and txnVersion, found both")
    reader = _reader(table)
    schema = pa.schema([field.with_type(_plain(field.type)) for field in reader.schema])
    columns = [(field.name, type_name(field.type)) for field in schema]
    check_columns(columns, read.topic, read.property_columns)
    target = begin_write(open_target(read))
    try:
        staged = stage_rows(target, _batches(reader, schema))
        return commit_write(target, [staged], key or read.txn)[path]
    except BaseException:
        abort_write(target)
        raise


def _text(value: object) -> str:
    """The value of an option as Spark passes it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _reader(table: Any) -> pa.RecordBatchReader:
    if hasattr(table, "__arrow_c_stream__"):
        return pa.RecordBatchReader.from_stream(table)
    if hasattr(table, "__arrow_c_array__"):
        batch = pa.record_batch(table)
        return pa.RecordBatchReader.from_batches(batch.schema, [batch])
    raise OptionError(
        "append: expected MessageColumns, an Arrow table, or an object with __arrow_c_stream__, found "
        f"{type(table).__qualname__}"
    )


def _batches(reader: pa.RecordBatchReader, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    for batch in reader:
        for start in range(0, batch.num_rows, _ROWS):
            yield batch.slice(start, _ROWS).cast(schema)


def _plain(kind: pa.DataType) -> pa.DataType:
    """The type of the same values that Spark has: Polars and pandas use others for text and lists."""
    if pa.types.is_dictionary(kind):
        return _plain(kind.value_type)
    if pa.types.is_string_view(kind):
        return pa.string()
    if pa.types.is_binary_view(kind) or pa.types.is_fixed_size_binary(kind):
        return pa.binary()
    if kind in (pa.uint8(), pa.uint16(), pa.uint32()):
        return pa.int64()
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return pa.list_(_plain(kind.value_type))
    return kind
