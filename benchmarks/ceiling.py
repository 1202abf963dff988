"""The transport ceiling: a data source that hands Spark ready Arrow batches, the fastest any Python source of
this schema can be.

The batches are some of those `rmqlog` itself gives for the store, of the same sizes and with the same
content; a worker loads them once, and a task gives them over and over until it has given as many rows as a
task of `rmqlog`.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import chain, pairwise
from pathlib import Path

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from rmq_spark.plan.batch import plan
from rmq_spark.plan.scan import Scan

_PREPARED_BYTES_MAX = 32 << 20


def prepare_batches(scan: Scan, path: Path) -> None:
    """Write the first batches that a task of `scan` gives to `path`, as Arrow's file format."""
    batches = scan.read(plan(scan.options).splits[0])
    first = next(batches)
    held = 0
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, first.schema) as writer:
        for batch in chain([first], batches):
            writer.write_batch(batch)
            held += batch.nbytes
            if held > _PREPARED_BYTES_MAX:
                break


def split_rows(scan: Scan) -> list[int]:
    """How many rows each task of `scan` gives."""
    return [
        sum(piece.stop - piece.start for share in split.shares for piece in share.slices)
        for split in plan(scan.options).splits
    ]


@lru_cache(maxsize=8)
def _load(path: str) -> tuple[pa.RecordBatch, ...]:
    """Read into memory once a worker process; workers live as long as the Spark session."""
    with pa.OSFile(path, "rb") as source:
        reader = pa.ipc.open_file(source)
        return tuple(reader.get_batch(i) for i in range(reader.num_record_batches))


class CeilingDataSource(DataSource):
    """`spark.read.format("rmqlog_ceiling").schema(…)`, with the options `batches` (a file) and `rows` (of
    each task).

    A stream of it takes `batches`, `rows` (in all), `rowsPerBatch` and `partitions`.
    """

    @classmethod
    def name(cls) -> str:
        return "rmqlog_ceiling"

    def reader(self, schema: StructType) -> DataSourceReader:
        return _CeilingReader(
            self.options["batches"], [int(rows) for rows in self.options["rows"].split(",")]
        )

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return _CeilingStream(
            self.options["batches"],
            *(int(self.options[name]) for name in ("rows", "rowsPerBatch", "partitions")),
        )


class _CeilingReader(DataSourceReader):
    def __init__(self, path: str, rows: list[int]) -> None:
        self._path = path
        self._rows = rows

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(rows) for rows in self._rows]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _give(self._path, partition.value)


class _CeilingStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """So many rows in all, so many at most in a micro-batch, each in so many partitions of one size."""

    def __init__(self, path: str, rows: int, rows_per_batch: int, partitions: int) -> None:
        self._path = path
        self._rows = rows
        self._rows_per_batch = rows_per_batch
        self._partitions = partitions

    def prepareForTriggerAvailableNow(self) -> None:
        pass  # the end is known

    def initialOffset(self) -> dict[str, int]:
        return {"row": 0}

    def latestOffset(self, start: dict[str, int] | None = None, limit: object = None) -> dict[str, int]:
        return {"row": min((start or self.initialOffset())["row"] + self._rows_per_batch, self._rows)}

    def reportLatestOffset(self) -> dict[str, int]:
        return {"row": self._rows}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        edges = [
            start["row"] + (end["row"] - start["row"]) * part // self._partitions
            for part in range(self._partitions + 1)
        ]
        return [InputPartition(stop - begin) for begin, stop in pairwise(edges)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _give(self._path, partition.value)


def _give(path: str, rows: int) -> Iterator[pa.RecordBatch]:
    """So many rows of the prepared batches, over and over."""
    left = rows
    while left:
        for batch in _load(path):
            given = batch[:left]
            yield given
            left -= given.num_rows
            if not left:
                break
