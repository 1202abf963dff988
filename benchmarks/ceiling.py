"""The transport ceiling: a data source that hands Spark ready Arrow batches, the fastest any Python source of this schema can be.

The batches are some of those `rmqlog` itself gives for the store, of the same sizes and with the same content; a worker loads
them once, and a task gives them over and over until it has given as many rows as a task of `rmqlog`.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from rmq_spark.plan import plan
from rmq_spark.scan import Scan

__all__ = ["CeilingDataSource", "prepare_batches", "split_rows"]

_PREPARED_BYTES_MAX = 32 << 20


def prepare_batches(scan: Scan, path: Path) -> None:
    """Write the first batches that a task of `scan` gives to `path`, as Arrow's file format."""
    splits = plan(scan.options).splits
    held = 0
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, scan.projection.to_arrow_schema()) as writer:
        for batch in scan.read(splits[0]):
            writer.write_batch(batch)
            held += batch.nbytes
            if held > _PREPARED_BYTES_MAX:
                break


def split_rows(scan: Scan) -> list[int]:
    """How many rows each task of `scan` gives."""
    return [sum(piece.stop - piece.start for share in split.shares for piece in share.slices) for split in plan(scan.options).splits]


@lru_cache(maxsize=8)
def _load(path: str) -> tuple[pa.RecordBatch, ...]:
    """Read into memory once a worker process; workers live as long as the Spark session."""
    with pa.OSFile(path, "rb") as source:
        reader = pa.ipc.open_file(source)
        return tuple(reader.get_batch(i) for i in range(reader.num_record_batches))


class CeilingDataSource(DataSource):
    """`spark.read.format("rmqlog_ceiling").schema(…)`, with the options `batches` (a file) and `rows` (of each task)."""

    @classmethod
    def name(cls) -> str:
        return "rmqlog_ceiling"

    def reader(self, schema: StructType) -> DataSourceReader:
        return _CeilingReader(self.options["batches"], [int(rows) for rows in self.options["rows"].split(",")])


class _CeilingReader(DataSourceReader):
    def __init__(self, path: str, rows: list[int]) -> None:
        self._path = path
        self._rows = rows

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(rows) for rows in self._rows]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        left = partition.value
        while left:
            for batch in _load(self._path):
                given = batch[:left]
                yield given
                left -= given.num_rows
                if not left:
                    break
