"""The names of Arrow types in Spark SQL."""

from __future__ import annotations

import pyarrow as pa

_DDL = {
    pa.null(): "void",
    pa.string(): "string",
    pa.large_string(): "string",
    pa.binary(): "binary",
    pa.large_binary(): "binary",
    pa.int8(): "tinyint",
    pa.int16(): "smallint",
    pa.int32(): "int",
    pa.int64(): "bigint",
    pa.bool_(): "boolean",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.date32(): "date",
}


def type_name(arrow_type: pa.DataType) -> str:
    """The name of an Arrow type in Spark SQL (DDL); Arrow's own name of a type that Spark does not have.

    >>> type_name(pa.list_(pa.int64()))
    'array<bigint>'
    """
    if pa.types.is_map(arrow_type):
        return f"map<{type_name(arrow_type.key_type)},{type_name(arrow_type.item_type)}>"
    if pa.types.is_list(arrow_type) or pa.types.is_large_list(arrow_type):
        return f"array<{type_name(arrow_type.value_type)}>"
    if pa.types.is_struct(arrow_type):
        return f"struct<{','.join(f'{field.name}:{type_name(field.type)}' for field in arrow_type)}>"
    if pa.types.is_decimal(arrow_type):
        return f"decimal({arrow_type.precision},{arrow_type.scale})"
    if pa.types.is_timestamp(arrow_type):
        return "timestamp_ntz" if arrow_type.tz is None else "timestamp"
    return _DDL.get(arrow_type, str(arrow_type))
