"""Spark's batch reader. It passes Spark's calls on to planning and to the scan."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from rmq_spark.plan.batch import plan
from rmq_spark.plan.scan import Scan
from rmq_spark.plan.splits import Split
from rmq_spark.spark.short_errors import short_errors, short_errors_of_rows
from store_format.errors import StoreError, UnsupportedFormatError

_log = logging.getLogger("rmq_spark")


class RmqLogReader(DataSourceReader):
    """Plans once per DataFrame. `read` runs in tasks, on a pickled copy.

    `pushFilters` is not defined: Spark stores pushed filters on an object that all uses of the DataFrame
    share, so the other uses would be filtered too (tests/spark/test_spark_facts.py).
    """

    def __init__(self, scan: Scan) -> None:
        self._scan = scan  # plain values only

    @short_errors
    def partitions(self) -> list[InputPartition]:
        options = self._scan.options
        _log.info("reading %s", ", ".join(f"{name}={value}" for name, value in options.resolved()))
        try:
            planned = plan(options)
        except UnsupportedFormatError as error:
            # UnsupportedFormatError is a NotImplementedError. Spark takes one from partitions() to mean that
            # the reader has no partitions, and calls read(None).
            raise StoreError(str(error)) from error
        # Never an empty list: for [] Spark calls read(InputPartition(None)).
        return [InputPartition(split) for split in planned.splits]

    @short_errors_of_rows
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        split = partition.value
        assert isinstance(split, Split)
        return self._scan.read(split)
