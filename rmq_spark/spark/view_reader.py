"""Spark's reader of a view: a table about the stores instead of their messages, one partition per store; of
the view that compares stores one partition.

The columns are all columns of the view, those of `columns`, or those of a caller's schema.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from rmq_spark.options.read_options import ReadOptions
from rmq_spark.plan.output_fields import refuse_duplicates
from rmq_spark.plan.starts import open_stores, reach_stores
from rmq_spark.spark.short_errors import short_errors, short_errors_of_rows
from rmq_spark.spark.types import refuse_field
from store_format import MessageStore
from store_format.errors import OptionError, StoreError, UnsupportedFormatError
from store_format.metadata.read import BrokerConf, read_broker_conf
from store_format.names import did_you_mean
from store_format.views.registry import view_batches, view_named

# ---- the columns of a view ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ViewFields:
    """A view, the columns taken from it, and their names in the result. Plain values: pickled to tasks."""

    view: str
    sources: tuple[str, ...]
    names: tuple[str, ...]

    def to_arrow_schema(self) -> pa.Schema:
        schema = view_named(self.view).schema
        fields = zip(self.names, self.sources, strict=True)
        return pa.schema([pa.field(name, schema.field(source).type) for name, source in fields])

    def apply(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The fields of a batch that has all columns of the view."""
        columns = [batch[source] for source in self.sources]
        return pa.RecordBatch.from_arrays(columns, schema=self.to_arrow_schema())


def view_from_options(options: ReadOptions) -> ViewFields:
    """All columns of the view, or those that `columns` names."""
    known = view_named(options.view).schema.names
    sources = tuple(_view_column(name, known, "columns") for name in options.columns or known)
    refuse_duplicates("columns", sources)
    return ViewFields(options.view, sources, sources)


def view_from_schema(schema: StructType, options: ReadOptions) -> ViewFields:
    """The columns of a caller's schema, named in any case, with the types of the view; each may be null."""
    view = view_named(options.view).schema
    sources = tuple(_view_column(field.name, view.names, "schema") for field in schema.fields)
    refuse_duplicates("schema", sources)
    for field, source in zip(schema.fields, sources, strict=True):
        refuse_field(field.name, field.dataType, view.field(source).type, nullable=field.nullable)
    if options.columns is not None and set(view_from_options(options).sources) != set(sources):
        raise OptionError("the option columns and the schema differ; give only one of them")
    return ViewFields(options.view, sources, tuple(field.name for field in schema.fields))


def _view_column(name: str, known: Sequence[str], where: str) -> str:
    for column in known:
        if column.lower() == name.lower():
            return column
    hint = did_you_mean(name, known, "columns", listed_max=len(known))
    raise OptionError(f"{where}: the view has no column {name!r}; {hint}")


# ---- the reader --------------------------------------------------------------------------------------------


_log = logging.getLogger("rmq_spark")


@dataclass(frozen=True, slots=True)
class _StoreAt:
    """A store. Spark keeps it for all queries of a temporary SQL view, so it has no time."""

    path: str
    broker_name: str
    commit_log_paths: tuple[str, ...]
    compacted: bool
    tiered_path: str | None

    @classmethod
    def all_of(cls, options: ReadOptions) -> tuple[_StoreAt, ...]:
        stores = open_stores(options, skip_unreadable=True)
        return tuple(
            cls(each.path, each.broker_name, each.commit_log_paths, each.compacted, each.tiered_path)
            for each in stores
        )

    def open(self) -> MessageStore:
        return MessageStore.open(
            self.path,
            broker_name=self.broker_name,
            commit_log_paths=self.commit_log_paths,
            skip_unreadable=True,
            compacted=self.compacted,
            tiered_path=self.tiered_path,
        )


@dataclass(frozen=True, slots=True)
class _ViewPart:
    """One partition: a store, or for a comparison all stores with those of `otherPath`."""

    stores: tuple[_StoreAt, ...]
    others: tuple[_StoreAt, ...]
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
            options = self._options
            if options.tiered_store_file_path is None and conf is not None:
                options = replace(options, tiered_store_file_path=conf.tiered_store_file_path or None)
            stores = _StoreAt.all_of(options)
            if view_named(self._options.view).of_two is not None:
                return [InputPartition(_ViewPart(stores, _StoreAt.all_of(self._other), None))]
        except UnsupportedFormatError as error:
            raise StoreError(str(error)) from error  # as in RmqLogReader.partitions
        return [InputPartition(_ViewPart((store,), (), conf)) for store in stores]

    @property
    def _other(self) -> ReadOptions:
        """The options that lead to the store of `otherPath`."""
        other = self._options.other_path or ()
        return replace(
            self._options, paths=other, broker_name=None, commit_log_paths=(), tiered_store_file_path=None
        )

    @short_errors_of_rows
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        part = partition.value
        assert isinstance(part, _ViewPart)
        reach_stores(self._options)
        of_two = view_named(self._fields.view).of_two
        try:
            stores = [each.open() for each in part.stores]
            if of_two is None:
                batches = view_batches(stores[0], self._fields.view, broker_conf=part.broker_conf)
            else:
                reach_stores(self._other)
                batches = of_two(stores, [each.open() for each in part.others], self._options.choice)
            for batch in batches:
                yield self._fields.apply(batch)
        except UnsupportedFormatError as error:
            raise StoreError(str(error)) from error
