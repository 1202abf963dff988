"""Spark's batch reader. It introduces Spark to the plan and to the scan, and does nothing itself."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from rmq_spark.plan.batch import plan
from rmq_spark.plan.scan import Scan
from rmq_spark.plan.splits import Split
from store_format.errors import StoreError, UnsupportedFormatError

if TYPE_CHECKING:
    import pyarrow as pa

_log = logging.getLogger("rmq_spark")


class RmqLogReader(DataSourceReader):
    """Plans once per DataFrame; `read` runs in tasks, on a pickled copy.

    `pushFilters` is not defined: Spark keeps what it pushes on an object that other uses of the DataFrame
    share, so they would be filtered too (tests/spark/test_spark_facts.py).
    """

    def __init__(self, scan: Scan) -> None:
        self._scan = scan  # plain values only

    def partitions(self) -> list[InputPartition]:
        options = self._scan.options
        _log.info("reading %s", ", ".join(f"{name}={value}" for name, value in options.resolved()))
        try:
            planned = plan(options)
        except UnsupportedFormatError as error:
            # Spark takes a NotImplementedError, which this is, for a reader without partitions() and calls
            # read() with none.
            raise StoreError(str(error)) from error
        # A list, and never an empty one: for [] Spark calls read() with a partition of its own.
        return [InputPartition(split) for split in planned.splits]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        split = partition.value
        assert isinstance(split, Split)
        return self._scan.read(split)
