"""Spark's reader of a view: a table about the stores instead of their messages, one partition per store."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from rmq_spark.options.read_options import ReadOptions
from rmq_spark.plan.starts import open_stores, reach_stores
from rmq_spark.spark.short_errors import short_errors, short_errors_of_rows
from rmq_spark.spark.view_schema import ViewFields
from store_format import MessageStore
from store_format.errors import StoreError, UnsupportedFormatError
from store_format.metadata.read import BrokerConf, read_broker_conf
from store_format.views.registry import view_batches

if TYPE_CHECKING:
    import pyarrow as pa

_log = logging.getLogger("rmq_spark")


@dataclass(frozen=True, slots=True)
class _StoreAt:
    """One partition: a store. Spark keeps it for all queries of a temporary SQL view, so it has no time."""

    path: str
    broker_name: str
    commit_log_paths: tuple[str, ...]
    broker_conf: BrokerConf | None


class RmqLogViewReader(DataSourceReader):
    """Tasks compute the view, so that a large view needs no memory of the driver."""

    def __init__(self, fields: ViewFields, options: ReadOptions) -> None:
        self._fields = fields
        self._options = options

    @short_errors
    def partitions(self) -> list[InputPartition]:
        _log.info("reading %s", ", ".join(f"{name}={value}" for name, value in self._options.resolved()))
        given = self._options.broker_conf
        conf = None if given is None else read_broker_conf(given)
        try:
            stores = open_stores(self._options, skip_unreadable=True)
        except UnsupportedFormatError as error:
            raise StoreError(str(error)) from error  # as in RmqLogReader.partitions
        return [
            InputPartition(_StoreAt(store.path, store.broker_name, store.commit_log_paths, conf))
            for store in stores
        ]

    @short_errors_of_rows
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        at = partition.value
        assert isinstance(at, _StoreAt)
        reach_stores(self._options)
        store = MessageStore.open(
            at.path, broker_name=at.broker_name, commit_log_paths=at.commit_log_paths, skip_unreadable=True
        )
        try:
            for batch in view_batches(store, self._fields.view, broker_conf=at.broker_conf):
                yield self._fields.apply(batch)
        except UnsupportedFormatError as error:
            raise StoreError(str(error)) from error
