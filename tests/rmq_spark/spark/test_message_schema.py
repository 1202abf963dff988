"""The fields of a read with a caller's schema, and Spark's types of the columns."""

from __future__ import annotations

import pytest
from pyspark.sql import types as spark_types
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import ArrayType, DataType, MapType, StringType, StructField, StructType

from rmq_spark.options.read_options import ReadOptions, parse_read_options
from rmq_spark.plan.output_fields import OutputField, OutputFields, fields_from_options
from rmq_spark.spark.types import fields_from_schema, to_spark_schema
from store_format.errors import OptionError
from store_format.message.columns import COLUMNS

PROPERTY_ADVICE = "To get a message property as a column, name it in the option propertyColumns"
LONG, STRING, BINARY = spark_types.LongType(), StringType(), spark_types.BinaryType()


def options(**more: str) -> ReadOptions:
    return parse_read_options({"path": "/a", **more})


def schema(*fields: tuple[str, DataType] | tuple[str, DataType, bool]) -> StructType:
    return StructType([StructField(*field) for field in fields])


def spark_schema(fields: OutputFields) -> StructType:
    return to_spark_schema(fields.to_arrow_schema())


def test_pyspark_4_3_derives_the_same_arrow_schema() -> None:
    """Spark compares each batch's schema with its own derivation, nullability of elements and values
    included.
    """
    everything = OutputFields(
        (*(OutputField(name, name) for name in COLUMNS), OutputField("region", "region", is_property=True))
    )
    derived = to_arrow_schema(spark_schema(everything), timezone="UTC")
    assert derived.equals(everything.to_arrow_schema())
    assert str(derived) == str(everything.to_arrow_schema())  # the names of nested fields too
    assert all(field.nullable for field in derived)


def test_a_schema_keeps_its_names_its_order_and_what_is_never_null() -> None:
    given = schema(("BODY", BINARY), ("queueoffset", LONG, False), ("region", STRING))
    fields = fields_from_schema(given, options(propertyColumns="traceId,region"))
    assert tuple(field.name for field in fields.fields) == ("BODY", "queueoffset", "region")
    assert fields.sources == ("body", "queueOffset", "region")
    assert [field.is_property for field in fields.fields] == [False, False, True]
    assert spark_schema(fields) == given
    assert fields.to_arrow_schema().equals(to_arrow_schema(given, timezone="UTC"))


def test_our_own_schema_is_accepted_back() -> None:
    given = options(mode="PERMISSIVE", propertyColumns="region")
    fields = fields_from_options(given)
    assert fields_from_schema(spark_schema(fields), given) == fields
    for columns in ("body,queueOffset", "body,region,queueOffset"):
        named = options(columns=columns, propertyColumns="region,traceId")
        assert fields_from_schema(spark_schema(fields_from_options(named)), named) == fields_from_options(
            named
        )


def test_a_string_of_any_collation_is_a_string() -> None:
    given = schema(("topic", StringType("UTF8_LCASE")))
    assert (
        fields_from_schema(given, options()).to_arrow_schema().equals(to_arrow_schema(given, timezone="UTC"))
    )


@pytest.mark.parametrize(
    ("given", "more", "message"),
    [
        (schema(("quueOffset", LONG)), {},
         f"schema: unknown column 'quueOffset'; did you mean queueOffset? {PROPERTY_ADVICE}"),
        (schema(("regoin", STRING)), {"propertyColumns": "region"},
         f"schema: unknown column 'regoin'; did you mean region? {PROPERTY_ADVICE}"),
        (schema(("queueOffset", spark_types.IntegerType())), {},
         "schema: expected queueOffset bigint, found queueOffset int"),
        (schema(("body", STRING)), {}, "schema: expected body binary, found body string"),
        (schema(("storeTimestamp", spark_types.TimestampNTZType())), {},
         "schema: expected storeTimestamp timestamp, found storeTimestamp timestamp_ntz"),
        (schema(("region", LONG)), {"propertyColumns": "region"},
         "schema: expected region string, found region bigint"),
        (schema(("keys", ArrayType(STRING, False))), {},
         "schema: expected keys array<string>, found keys array<string> whose elements may not be null"),
        (schema(("properties", MapType(STRING, STRING, False))), {},
         ("schema: expected properties map<string,string>, found properties map<string,string> whose "
          "elements may not be null")),
        (schema(("tags", STRING, False)), {},
         "schema: expected tags to allow null, found tags NOT NULL; remove NOT NULL"),
        (schema(("region", STRING, False)), {"propertyColumns": "region"},
         "schema: expected region to allow null, found region NOT NULL; remove NOT NULL"),
        (
            schema(("topic", STRING, False)),
            {"mode": "PERMISSIVE"},  # the row of a damaged message has nothing but nulls
            "schema: expected topic to allow null, found topic NOT NULL; remove NOT NULL",
        ),
        (schema(("Region", STRING)), {"propertyColumns": "region"},
         "schema: expected the property column region as propertyColumns spells it, found Region"),
        (schema(("body", BINARY), ("BODY", BINARY)), {},
         "schema: expected each column once, found 'body' and 'BODY', which are one column to Spark"),
        (schema(("body", BINARY)), {"columns": "body,flag"},
         "the option columns and the schema differ in flag; give only one of them"),
        (schema(("body", BINARY)), {"columns": "region,body", "propertyColumns": "region"},
         "the option columns and the schema differ in region; give only one of them"),
    ],
)  # fmt: skip
def test_schemas_that_are_refused(given: StructType, more: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError) as caught:
        fields_from_schema(given, options(**more))
    assert str(caught.value) == message
