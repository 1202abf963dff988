"""Columns: the table, what options and a caller's schema make of it, and that Spark would accept the batches."""

from __future__ import annotations

import pickle

import pyarrow as pa
import pytest
from pyspark.sql import types as spark_types
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import ArrayType, DataType, MapType, StringType, StructField, StructType

from rmq_spark.options.read_options import ReadOptions, parse_read_options
from rmq_spark.plan.projection import (
    COLUMN_TABLE,
    Output,
    Projection,
    projection_from_options,
    projection_from_schema,
)
from store_format.errors import OptionError
from store_format.message.columns import COLUMNS, DEFAULT_COLUMNS

DEFAULT = (
    "topic string, flag int, body binary, properties map<string,string>, brokerName string, queueId int, queueOffset bigint, "
    "bornTimestamp timestamp, storeTimestamp timestamp, tags string, keys array<string>, msgId string"
)
ON_REQUEST = (
    "bornTimestampMs bigint, storeTimestampMs bigint, offsetMsgId string, bornHost string, storeHost string, sysFlag int, bodyCRC int, "
    "reconsumeTimes int, preparedTransactionOffset bigint, physicalOffset bigint, storeSize int, tagsCode bigint, storedTopic string, "
    "rawBody binary, _corrupt_record string"
)


def options(**more: str) -> ReadOptions:
    return parse_read_options({"path": "/a", **more})


def schema(*fields: tuple[str, DataType] | tuple[str, DataType, bool]) -> StructType:
    return StructType([StructField(*field) for field in fields])


PROPERTY_ADVICE = "message property becomes a column by the option propertyColumns"
LONG, STRING, BINARY = spark_types.LongType(), StringType(), spark_types.BinaryType()


def test_the_columns_are_those_of_the_design() -> None:
    rows = [(column.default, f"{column.name} {column.ddl}") for column in COLUMN_TABLE]
    assert ", ".join(row for default, row in rows if default) == DEFAULT
    assert ", ".join(row for default, row in rows if not default) == ON_REQUEST
    assert [column.name for column in COLUMN_TABLE] == list(COLUMNS)


def test_pyspark_4_3_derives_the_same_arrow_schema() -> None:
    """Spark compares each batch's schema with its own derivation, nullability of elements and values
    included.
    """
    everything = Projection(
        (*(Output(name, name) for name in COLUMNS), Output("region", "region", is_property=True))
    )
    derived = to_arrow_schema(everything.to_spark_schema(), timezone="UTC")
    assert derived.equals(everything.to_arrow_schema())
    assert str(derived) == str(everything.to_arrow_schema())  # the names of nested fields too
    assert all(field.nullable for field in derived)


def test_default_columns() -> None:
    projection = projection_from_options(options())
    assert projection.names == projection.sources == DEFAULT_COLUMNS
    assert projection == Projection()
    assert (projection.properties, projection.corrupt_record) == ((), None)
    assert (
        projection.to_spark_schema().simpleString()
        == "struct<" + DEFAULT.replace(", ", ",").replace(" ", ":") + ">"
    )


def test_columns_and_property_columns() -> None:
    projection = projection_from_options(
        options(columns="QUEUEOFFSET, body", propertyColumns="region,traceId")
    )
    assert projection.names == ("queueOffset", "body", "region", "traceId")
    assert projection.properties == ("region", "traceId")
    assert projection.to_arrow_schema() == pa.schema(
        [
            ("queueOffset", pa.int64()),
            ("body", pa.binary()),
            ("region", pa.string()),
            ("traceId", pa.string()),
        ]
    )
    assert pickle.loads(pickle.dumps(projection)) == projection


def test_permissive_adds_the_reason_at_the_end_unless_columns_are_named() -> None:
    assert projection_from_options(options(mode="PERMISSIVE", propertyColumns="a")).names == (
        *DEFAULT_COLUMNS,
        "a",
        "_corrupt_record",
    )
    assert projection_from_options(options(mode="PERMISSIVE")).corrupt_record == 12
    assert projection_from_options(options(mode="PERMISSIVE", columns="body")).names == ("body",)
    assert projection_from_options(options(columns="_corrupt_record,body")).corrupt_record == 0


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"columns": "queueOfset"},
            f"columns: unknown column 'queueOfset'; did you mean queueOffset? A {PROPERTY_ADVICE}",
        ),
        (
            {"columns": "region"},
            f"columns: unknown column 'region'; a {PROPERTY_ADVICE}",
        ),
        ({"columns": "body,Body"}, "columns: expected each column once, found 'body'"),
        (
            {"propertyColumns": "TAGS"},
            "propertyColumns: expected names that are no column, found 'TAGS'; the column tags is there already",
        ),
        (
            {"propertyColumns": "Region,region"},
            "propertyColumns: expected each column once, found 'Region and region', which Spark takes for one",
        ),
        ({"propertyColumns": "a,a"}, "propertyColumns: expected each column once, found 'a'"),
    ],
)
def test_columns_that_are_refused(given: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError) as caught:
        projection_from_options(options(**given))
    assert str(caught.value) == message
    assert str(pickle.loads(pickle.dumps(caught.value))) == message


def test_a_schema_keeps_its_names_its_order_and_what_is_never_null() -> None:
    given = schema(("BODY", BINARY), ("queueoffset", LONG, False), ("region", STRING))
    projection = projection_from_schema(given, options(propertyColumns="traceId,region"))
    assert projection.names == ("BODY", "queueoffset", "region")
    assert projection.sources == ("body", "queueOffset", "region")
    assert projection.properties == ("region",)
    assert projection.to_spark_schema() == given
    assert projection.to_arrow_schema().equals(to_arrow_schema(given, timezone="UTC"))


def test_our_own_schema_is_accepted_back() -> None:
    given = options(mode="PERMISSIVE", propertyColumns="region")
    projection = projection_from_options(given)
    assert projection_from_schema(projection.to_spark_schema(), given) == projection
    named = options(columns="body,queueOffset", propertyColumns="region")
    assert projection_from_schema(
        projection_from_options(named).to_spark_schema(), named
    ) == projection_from_options(named)


def test_a_string_of_any_collation_is_a_string() -> None:
    given = schema(("topic", StringType("UTF8_LCASE")))
    assert (
        projection_from_schema(given, options())
        .to_arrow_schema()
        .equals(to_arrow_schema(given, timezone="UTC"))
    )


@pytest.mark.parametrize(
    ("given", "more", "message"),
    [
        (
            schema(("quueOffset", LONG)),
            {},
            f"schema: unknown column 'quueOffset'; did you mean queueOffset? A {PROPERTY_ADVICE}",
        ),
        (
            schema(("regoin", STRING)),
            {"propertyColumns": "region"},
            f"schema: unknown column 'regoin'; did you mean region? A {PROPERTY_ADVICE}",
        ),
        (
            schema(("queueOffset", spark_types.IntegerType())),
            {},
            "schema: expected queueOffset bigint, found queueOffset int",
        ),
        (schema(("body", STRING)), {}, "schema: expected body binary, found body string"),
        (
            schema(("storeTimestamp", spark_types.TimestampNTZType())),
            {},
            "schema: expected storeTimestamp timestamp, found storeTimestamp timestamp_ntz",
        ),
        (
            schema(("region", LONG)),
            {"propertyColumns": "region"},
            "schema: expected region string, found region bigint",
        ),
        (
            schema(("keys", ArrayType(STRING, False))),
            {},
            "schema: expected keys array<string>, found keys array<string> whose elements may not be null",
        ),
        (
            schema(("properties", MapType(STRING, STRING, False))),
            {},
            "schema: expected properties map<string,string>, found properties map<string,string> whose elements may not be null",
        ),
        (
            schema(("tags", STRING, False)),
            {},
            "schema: expected tags to allow null, found tags NOT NULL; leave NOT NULL out",
        ),
        (
            schema(("region", STRING, False)),
            {"propertyColumns": "region"},
            "schema: expected region to allow null, found region NOT NULL; leave NOT NULL out",
        ),
        (
            schema(("topic", STRING, False)),
            {"mode": "PERMISSIVE"},  # the row of a damaged message has nothing but nulls
            "schema: expected topic to allow null, found topic NOT NULL; leave NOT NULL out",
        ),
        (
            schema(("Region", STRING)),
            {"propertyColumns": "region"},
            "schema: expected the property column region as propertyColumns spells it, found Region",
        ),
        (
            schema(("body", BINARY), ("BODY", BINARY)),
            {},
            "schema: expected each column once, found 'body and BODY', which Spark takes for one",
        ),
        (
            schema(("body", BINARY)),
            {"columns": "body,flag"},
            "columns and the schema are given together and differ in flag; give only one of them",
        ),
    ],
)
def test_schemas_that_are_refused(given: StructType, more: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError) as caught:
        projection_from_schema(given, options(**more))
    assert str(caught.value) == message
