"""The columns of a view as Spark sees them: all of them, those that `columns` names, or those of a caller's
schema.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from rmq_spark.options.read_options import ReadOptions
from rmq_spark.plan.projection import same_type, to_spark_schema
from store_format.arrays.sql_types import type_name
from store_format.errors import OptionError
from store_format.names import did_you_mean
from store_format.views.registry import view_named

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

__all__ = ["ViewProjection", "view_from_options", "view_from_schema"]


@dataclass(frozen=True, slots=True)
class ViewProjection:
    """A view, the columns taken from it, and what they are called. Plain values: it travels to tasks."""

    view: str
    sources: tuple[str, ...]
    names: tuple[str, ...]

    def to_arrow_schema(self) -> pa.Schema:
        schema = view_named(self.view).schema
        return pa.schema(
            [
                pa.field(name, schema.field(source).type)
                for name, source in zip(self.names, self.sources, strict=True)
            ]
        )

    def to_spark_schema(self) -> StructType:
        return to_spark_schema(self.to_arrow_schema())

    def apply(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays(
            [batch[source] for source in self.sources], schema=self.to_arrow_schema()
        )


def view_from_options(options: ReadOptions) -> ViewProjection:
    """All columns of the view, or those that `columns` names."""
    known = view_named(options.view).schema.names
    sources = tuple(_column(name, known, "columns") for name in options.columns or known)
    _refuse_duplicates(sources, "columns")
    return ViewProjection(options.view, sources, sources)


def view_from_schema(schema: StructType, options: ReadOptions) -> ViewProjection:
    """The columns of a caller's schema, names in any case; types are the view's, and each may be null."""
    view = view_named(options.view).schema
    sources = tuple(_column(field.name, view.names, "schema") for field in schema.fields)
    _refuse_duplicates(sources, "schema")
    for field, source in zip(schema.fields, sources, strict=True):
        expected = view.field(source).type
        if not same_type(field.dataType, expected):
            raise OptionError(
                f"schema: expected {field.name} {type_name(expected)}, found {field.name} {field.dataType.simpleString()}"
            )
        if not field.nullable:
            raise OptionError(
                f"schema: expected {field.name} to allow null, found {field.name} NOT NULL; leave NOT NULL out"
            )
    if options.columns is not None and set(view_from_options(options).sources) != set(sources):
        raise OptionError("columns and the schema are given together and differ; give only one of them")
    return ViewProjection(options.view, sources, tuple(field.name for field in schema.fields))


def _column(name: str, known: Sequence[str], where: str) -> str:
    for column in known:
        if column.lower() == name.lower():
            return column
    hint = did_you_mean(name, known, "columns", listed_max=len(known))
    raise OptionError(f"{where}: the view has no column {name!r}; {hint}")


def _refuse_duplicates(sources: Sequence[str], where: str) -> None:
    for i, source in enumerate(sources):
        if source in sources[:i]:
            raise OptionError(f"{where}: expected each column once, found {source!r}")
