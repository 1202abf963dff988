"""Arrow types by their names in Spark SQL."""

from __future__ import annotations

import doctest

import pyarrow as pa
import pytest

from store_format.arrays import sql_types
from store_format.arrays.sql_types import type_name


@pytest.mark.parametrize(
    ("arrow_type", "name"),
    [
        (pa.map_(pa.string(), pa.binary()), "map<string,binary>"),
        (pa.large_list(pa.int32()), "array<int>"),
        (pa.struct([("a", pa.int64())]), "struct<a:bigint>"),
        (pa.decimal128(10, 2), "decimal(10,2)"),
        (pa.timestamp("us"), "timestamp_ntz"),
        (pa.timestamp("us", "UTC"), "timestamp"),
        (pa.duration("s"), "duration[s]"),
    ],
)
def test_the_name_is_the_one_of_spark_sql(arrow_type: pa.DataType, name: str) -> None:
    assert type_name(arrow_type) == name


def test_the_example_holds() -> None:
    assert doctest.testmod(sql_types).failed == 0
