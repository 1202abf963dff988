"""Spark's types of the columns, derived from their Arrow types here and nowhere else; and the fields of a
read for which the caller gives a schema: `spark.read.schema(...)`.
"""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from rmq_spark.options.read_options import ReadOptions
from rmq_spark.plan.output_fields import (
    OutputField,
    OutputFields,
    column_named,
    fields_of,
    property_columns,
    refuse_duplicates,
)
from store_format.arrays.sql_types import type_name
from store_format.errors import OptionError

_PLAIN: dict[pa.DataType, DataType] = {
    pa.string(): StringType(),
    pa.binary(): BinaryType(),
    pa.int32(): IntegerType(),
    pa.int64(): LongType(),
    pa.bool_(): BooleanType(),
    pa.float64(): DoubleType(),
    pa.date32(): DateType(),
}


def to_spark_schema(schema: pa.Schema) -> StructType:
    """The Spark schema of batches with this Arrow schema."""
    return StructType([StructField(field.name, _spark_type(field.type), field.nullable) for field in schema])


def same_type(found: DataType, arrow_type: pa.DataType) -> bool:
    """Whether a column of a caller's schema has the Spark type of `arrow_type`.

    A string of any collation counts as a string. Elements and values declared NOT NULL make another type, as
    they do in Arrow.
    """
    return found == _spark_type(arrow_type) or (arrow_type == pa.string() and isinstance(found, StringType))


def _spark_type(arrow_type: pa.DataType) -> DataType:
    if pa.types.is_map(arrow_type):
        return MapType(_spark_type(arrow_type.key_type), _spark_type(arrow_type.item_type))
    if pa.types.is_list(arrow_type):
        return ArrayType(_spark_type(arrow_type.value_type))
    return TimestampType() if pa.types.is_timestamp(arrow_type) else _PLAIN[arrow_type]


# ---- a caller's schema -------------------------------------------------------------------------------------


def fields_from_schema(schema: StructType, options: ReadOptions) -> OutputFields:
    """The fields of a caller's schema, under its names; raises OptionError for a wrong name, type or NOT
    NULL.

    A name is a column or one of `propertyColumns`. If `columns` is given too, it must name the same columns.
    """
    properties = {name.lower(): name for name in property_columns(options)}
    fields = [_output_field(field, properties, options) for field in schema.fields]
    refuse_duplicates("schema", (field.name for field in fields))
    if options.columns is not None:
        named = {field.source for field in fields_of(options.columns, options)}
        differing = named ^ {
            field.source for field in fields if not field.is_property or field.source in named
        }
        if differing:
            raise OptionError(
                f"the option columns and the schema differ in {', '.join(sorted(differing))}; "
                "give only one of them"
            )
    return OutputFields(tuple(fields))


def _output_field(given: StructField, properties: Mapping[str, str], options: ReadOptions) -> OutputField:
    name = given.name
    spelled = properties.get(name.lower())
    if spelled is None:
        source = column_named(name, "schema", properties.values()).name
    elif spelled == name:  # names of properties are case-sensitive
        source = spelled
    else:
        raise OptionError(
            f"schema: expected the property column {spelled} as propertyColumns spells it, found {name}"
        )
    field = OutputField(name, source, is_property=spelled is not None, nullable=given.nullable)
    # in PERMISSIVE the row of a damaged message is null in every other column
    may_be_null = options.permissive or not field.is_never_null
    refuse_field(name, given.dataType, field.arrow_type, nullable=given.nullable or not may_be_null)
    return field


def refuse_field(name: str, found: DataType, expected: pa.DataType, *, nullable: bool) -> None:
    """Raises OptionError if a field of a schema has another type than `expected`, or is not `nullable`."""
    if not same_type(found, expected):
        text = found.simpleString()
        if text == type_name(expected):
            text += " whose elements may not be null"
        raise OptionError(f"schema: expected {name} {type_name(expected)}, found {name} {text}")
    if not nullable:
        raise OptionError(f"schema: expected {name} to allow null, found {name} NOT NULL; remove NOT NULL")
