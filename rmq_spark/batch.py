"""Spark's batch reader. It introduces Spark to the plan and to the scan, and does nothing itself."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from rmq_spark.plan import Split, plan
from rmq_spark.scan import Scan

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["RmqLogReader"]

_log = logging.getLogger("rmq_spark")


class RmqLogReader(DataSourceReader):
    """Plans once per DataFrame; `read` runs in tasks, on a pickled copy.

    `pushFilters` is not defined: Spark keeps what it pushes on an object that other uses of the DataFrame share, so they
    would be filtered too (tests/spark/test_spark_facts.py).
    """

    def __init__(self, scan: Scan) -> None:
        self._scan = scan  # plain values only

    def partitions(self) -> list[InputPartition]:
        options = self._scan.options
        _log.info("reading %s", ", ".join(f"{name}={value}" for name, value in options.resolved()))
        planned = plan(options)
        # A list, and never an empty one: for [] Spark calls read() with a partition of its own.
        return [InputPartition(split) for split in planned.splits]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        split = partition.value
        assert isinstance(split, Split)
        return self._scan.read(split)
