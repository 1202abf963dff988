"""Spark's stream reader. It passes Spark's calls on to the stream's positions, planning and the scan."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NoReturn

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from rmq_spark.plan.scan import Scan
from rmq_spark.plan.splits import Split
from rmq_spark.spark.compat import SupportsTriggerAvailableNow, ignored_limits, without_limits
from rmq_spark.spark.short_errors import short_errors, short_errors_of_rows
from rmq_spark.stream.positions import StreamPositions
from rmq_spark.stream.stores import StreamStores
from store_format.errors import StoreError

if TYPE_CHECKING:
    import pyarrow as pa

    from rmq_spark.broker import PopPositions

_log = logging.getLogger("rmq_spark")


class RmqLogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One reader lives in a process of the driver as long as the query. Tasks call `read` on another one.

    Offsets are dicts that Spark writes as JSON and compares as text (`rmq_spark.consume.stream_offset`).
    """

    def __init__(self, scan: Scan) -> None:
        self._scan = scan
        self._positions = _positions(scan)
        # Where the next micro-batch begins, for Spark 4.0 and 4.1. It is the last answer of `latestOffset`.
        # After a restart Spark first plans the empty micro-batch from the newest offset of the checkpoint to
        # the same offset (`test_spark_plans_from_the_checkpoint_before_it_asks`).
        self._newest: dict[str, Any] | None = None
        self._warning = ignored_limits(scan.options)

    @short_errors
    def initialOffset(self) -> dict[str, Any]:
        _log.info(
            "streaming %s", ", ".join(f"{name}={value}" for name, value in self._scan.options.resolved())
        )
        return self._positions.initial()

    @short_errors
    def latestOffset(self, start: dict[str, Any] | None = None, limit: object = None) -> dict[str, Any]:
        # Spark 4.2 and later pass both arguments, 4.0 and 4.1 none. `limit` is not used: limits are options,
        # because Spark cannot combine several.
        if self._warning:
            _log.warning(self._warning)
            self._warning = ""
        if start is None:
            start = self._positions.initial() if self._newest is None else self._newest
        self._newest = self._positions.latest(start)
        return self._newest

    @short_errors
    def reportLatestOffset(self) -> dict[str, Any] | None:
        return self._positions.report()

    @short_errors
    def prepareForTriggerAvailableNow(self) -> None:
        self._positions.bound_now()

    @short_errors
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        self._newest = end
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
    options = without_limits(scan.options)
    stores = StreamStores(options)
    # imported here: each process of a stream imports this module, and few are members of a group
    if options.pop is not None:
        from rmq_spark.broker import PopPositions

        return PopPositions(stores, scan, options.pop)
    if options.group is not None:
        from rmq_spark.stream.group_positions import GroupPositions

        return GroupPositions(stores, options.group)
    return StreamPositions(stores)
