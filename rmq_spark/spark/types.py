"""Spark's types of the columns, derived from their Arrow types here and nowhere else."""

from __future__ import annotations

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
    if pa.types.is_timestamp(arrow_type):
        return TimestampType()
    return _PLAIN[arrow_type]
