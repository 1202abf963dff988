"""The columns of a view as Spark sees them: all, those of `columns`, or those of a caller's schema."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from rmq_spark.options.read_options import ReadOptions
from rmq_spark.plan.output_fields import refuse_duplicates
from rmq_spark.spark.types import refuse_field
from store_format.errors import OptionError
from store_format.names import did_you_mean
from store_format.views.registry import view_named

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


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
