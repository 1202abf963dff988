"""The ceiling of writing: a sink whose tasks take Spark's Arrow batches and count their rows, and do nothing
else.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, DataSourceWriter, WriterCommitMessage
from pyspark.sql.types import StructType


@dataclass
class _Counted(WriterCommitMessage):
    rows: int


class CountingDataSource(DataSource):
    """`df.write.format("rmqlog_count").mode("append").option("rows", n)`: fails unless n rows came."""

    @classmethod
    def name(cls) -> str:
        return "rmqlog_count"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        return _CountingWriter(int(self.options["rows"]))


class _CountingWriter(DataSourceArrowWriter):
    def __init__(self, rows: int) -> None:
        self._rows = rows

    def write(self, iterator: Iterator[pa.RecordBatch]) -> _Counted:
        return _Counted(sum(batch.num_rows for batch in iterator))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        counted = sum(message.rows for message in messages if isinstance(message, _Counted))
        if counted != self._rows:
            raise ValueError(f"{counted} rows came, {self._rows} were expected")
