"""Spark's stream reader. It passes Spark's calls on to the stream's positions, planning and the scan."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NoReturn

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow

from rmq_spark.plan.scan import Scan
from rmq_spark.plan.splits import Split
from rmq_spark.spark.short_errors import short_errors, short_errors_of_rows
from rmq_spark.stream.positions import StreamPositions
from rmq_spark.stream.stores import StreamStores
from store_format.errors import StoreError

if TYPE_CHECKING:
    import pyarrow as pa

    from rmq_spark.pop.stream import PopPositions

_log = logging.getLogger("rmq_spark")


class RmqLogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One reader lives in a process of the driver as long as the query. Tasks call `read` on another one.

    Offsets are dicts that Spark writes as JSON and compares as text (`rmq_spark.consume.stream_offset`).
    """

    def __init__(self, scan: Scan) -> None:
        self._scan = scan
        self._positions = _positions(scan)

    @short_errors
    def initialOffset(self) -> dict[str, Any]:
        _log.info(
            "streaming %s", ", ".join(f"{name}={value}" for name, value in self._scan.options.resolved())
        )
        return self._positions.initial()

    @short_errors
    def latestOffset(self, start: dict[str, Any] | None = None, limit: object = None) -> dict[str, Any]:
        # Spark passes both arguments; the defaults are for calls by hand. `limit` is not used: limits are
        # options, because Spark cannot combine several.
        return self._positions.latest(self._positions.initial() if start is None else start)

    @short_errors
    def reportLatestOffset(self) -> dict[str, Any] | None:
        return self._positions.report()

    @short_errors
    def prepareForTriggerAvailableNow(self) -> None:
        self._positions.bound_now()

    @short_errors
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        return [InputPartition(split) for split in self._positions.plan(start, end).splits]

    @short_errors_of_rows
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:  # Spark takes batches too
        split = partition.value
        assert isinstance(split, Split)
        return self._scan.read(split)


class FailedStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Takes the place of a reader that cannot be constructed, and raises the error when Spark first calls it.

    If `DataSource.streamReader` itself raises, Spark 4.3 reports its own UnboundLocalError instead
    (`test_spark_masks_the_error_of_stream_reader_4_3`).
    """

    def __init__(self, error: StoreError) -> None:
        self._error = error

    def initialOffset(self) -> dict[str, Any]:
        self._fail()

    def latestOffset(self, start: dict[str, Any] | None = None, limit: object = None) -> dict[str, Any]:
        self._fail()

    def prepareForTriggerAvailableNow(self) -> None:
        self._fail()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        self._fail()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        self._fail()

    @short_errors
    def _fail(self) -> NoReturn:
        raise self._error


def _positions(scan: Scan) -> StreamPositions | PopPositions:
    stores, options = StreamStores(scan.options), scan.options
    # imported here: each process of a stream imports this module, and few are members of a group
    if options.pop is not None:
        from rmq_spark.pop.stream import PopPositions

        return PopPositions(stores, scan, options.pop)
    if options.group is not None:
        from rmq_spark.stream.group_positions import GroupPositions

        return GroupPositions(stores, options.group)
    return StreamPositions(stores)
