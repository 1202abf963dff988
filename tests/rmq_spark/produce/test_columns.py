"""Which columns a write takes, and what it says about the others."""

from __future__ import annotations

import pyarrow as pa
import pytest

from rmq_spark.produce.columns import WRITE_COLUMNS, bind_columns, check_columns
from store_format.errors import OptionError
from store_format.message.columns import COLUMNS

BODY = pa.field("body", pa.binary())


def refused(*fields: pa.Field) -> str:
    with pytest.raises(OptionError) as caught:
        bind_columns(pa.schema(fields))
    return str(caught.value)


def test_whatever_a_read_gives_a_write_takes() -> None:
    bound = bind_columns(pa.schema(list(COLUMNS.items())))
    ignored = {column.name for column in WRITE_COLUMNS if column.ignored}
    assert set(bound) == set(COLUMNS) - ignored
    assert ignored <= set(COLUMNS)  # a column of our own that does nothing would be a lie
    assert all(column.about.endswith(".") for column in WRITE_COLUMNS)


def test_names_match_in_any_case() -> None:
    assert bind_columns(
        pa.schema([("BODY", pa.string()), ("queueid", pa.int32()), ("KeYs", pa.string())])
    ) == {
        "body": 0,
        "queueId": 1,
        "keys": 2,
    }


@pytest.mark.parametrize(
    "kind",
    [pa.binary(), pa.large_binary(), pa.string(), pa.large_string()],
)
def test_a_body_is_bytes_or_text(kind: pa.DataType) -> None:
    assert bind_columns(pa.schema([pa.field("body", kind, nullable=False)])) == {"body": 0}


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("keys", pa.list_(pa.string())),
        ("keys", pa.large_list(pa.large_string())),
        ("properties", pa.map_(pa.large_string(), pa.large_string())),
        ("bornTimestamp", pa.timestamp("us", tz="Asia/Shanghai")),
        ("bornTimestamp", pa.timestamp("ns", tz="UTC")),
        ("deliverTimestamp", pa.int64()),
        ("flag", pa.int16()),
        ("tags", pa.null()),  # lit(None)
        ("storeTimestamp", pa.string()),  # not looked at
    ],
)
def test_types_that_say_the_same_are_taken(name: str, kind: pa.DataType) -> None:
    assert bind_columns(pa.schema([BODY, pa.field(name, kind)]))["body"] == 0


@pytest.mark.parametrize(
    ("field", "message"),
    [
        (pa.field("tags", pa.int32()), "column tags: expected string, found int"),
        (pa.field("keys", pa.list_(pa.int32())),
         "column keys: expected string or array<string>, found array<int>"),
        (pa.field("flag", pa.string()), "column flag: expected int or bigint, found string"),
        (pa.field("Properties", pa.map_(pa.string(), pa.int32())),
         "column properties: expected map<string,string>, found map<string,int>"),
        (pa.field("bornTimestamp", pa.timestamp("us")),
         "found timestamp_ntz; cast it to timestamp, which has a time zone"),
        (pa.field("BODY", pa.binary()), "columns: expected each column once, found body and BODY"),
        (pa.field("tag", pa.string()),
         ("columns: unknown column 'tag'; did you mean tags? The columns of a write are body, topic, tags, "
          "keys, flag,")),
        (pa.field("payload", pa.string()),
         "columns: unknown column 'payload'; did you mean body? The columns of"),
        (pa.field("amount", pa.float64()), "put anything else into the body, as with to_json(struct('*')), "),
        (pa.field("xyzzy", pa.string()), "columns: unknown column 'xyzzy'; the columns of a write are body,"),
        (pa.field("Value", pa.string()),
         "columns: unknown column 'Value'; did you mean body? The columns of"),
        (pa.field("partition", pa.int32()),
         "columns: unknown column 'partition'; did you mean queueId? The columns of"),
        (pa.field("tags", pa.struct([("a", pa.float32())])),
         "column tags: expected string, found struct<a:float>"),
        (pa.field("flag", pa.decimal128(10, 2)), "column flag: expected int or bigint, found decimal(10,2)"),
    ],
)  # fmt: skip
def test_a_wrong_column_is_named(field: pa.Field, message: str) -> None:
    assert message in refused(BODY, field)


def test_a_body_is_needed() -> None:
    assert refused(pa.field("value", pa.binary())).startswith(
        "columns: unknown column 'value'; did you mean body? The columns of a write are body, topic"
    )
    assert (
        refused(pa.field("topic", pa.string()))
        == "columns: a write needs the column body (binary or string), found topic"
    )
    with pytest.raises(
        OptionError, match=r"^columns: a write needs the column body \(binary or string\), found no column$"
    ):
        check_columns([], "T")


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("tags", "varchar(10)"),
        ("tags", "string collate UTF8_LCASE"),
        ("keys", "array<char(3)>"),
        ("keys", "array<void>"),
        ("properties", "map<void,void>"),
        ("flag", "smallint"),
        ("deliverTimestamp", "timestamp"),
        ("queueOffset", "interval day to second"),
    ],
)
def test_types_are_checked_by_sparks_names(name: str, kind: str) -> None:
    check_columns([("body", "binary"), (name, kind)], "T")


def test_a_topic_is_checked_with_the_columns() -> None:
    check_columns([("TOPIC", "string"), ("body", "string")], None)
    with pytest.raises(
        OptionError, match=r"^topic: expected the option topic or a column topic, found neither$"
    ):
        check_columns([("body", "string")], None)
    with pytest.raises(
        OptionError, match=r"^column keys: expected string or array<string>, found array<int>$"
    ):
        check_columns([("body", "string"), ("keys", "array<int>")], "T")


@pytest.mark.parametrize(
    ("name", "kind"), [("keys", pa.list_(pa.null())), ("properties", pa.map_(pa.string(), pa.null()))]
)
def test_an_empty_collection_says_nothing(name: str, kind: pa.DataType) -> None:
    """`array()` and `map()` in Spark have elements of type void."""
    assert bind_columns(pa.schema([BODY, pa.field(name, kind, nullable=False)])) == {"body": 0}
