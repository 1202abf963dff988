"""Which columns a write takes, and what it says about the others."""

from __future__ import annotations

import pyarrow as pa
import pytest

from rmq_spark.produce.columns import WRITE_COLUMNS, bind_columns
from store_format.columns import COLUMNS
from store_format.errors import OptionError

TEXT_MAP = pa.map_(pa.string(), pa.string())
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
    assert bind_columns(pa.schema([("BODY", pa.string()), ("queueid", pa.int32()), ("KeYs", pa.string())])) == {
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
        (pa.field("tags", pa.int32()), "column tags: expected string, found int32"),
        (pa.field("keys", pa.list_(pa.int32())), "column keys: expected string or array<string>, found list<"),
        (pa.field("flag", pa.string()), "column flag: expected int or bigint, found string"),
        (
            pa.field("Properties", pa.map_(pa.string(), pa.int32())),
            "column properties: expected map<string,string>, found map<string, int32",
        ),
        (pa.field("bornTimestamp", pa.timestamp("us")), "found timestamp_ntz; cast it to timestamp, which says in which zone"),
        (pa.field("BODY", pa.binary()), "columns: expected each column once, found body and BODY"),
        (pa.field("tag", pa.string()), "columns: unknown column 'tag'; did you mean tags? A write takes body, topic, tags, keys, flag,"),
        (pa.field("xyzzy", pa.string()), "columns: unknown column 'xyzzy'; A write takes body,"),
    ],
)
def test_a_wrong_column_is_named(field: pa.Field, message: str) -> None:
    assert message in refused(BODY, field)


def test_a_body_is_needed() -> None:
    assert refused(pa.field("value", pa.binary())).startswith("columns: unknown column 'value'; A write takes body, topic")
    assert refused(pa.field("topic", pa.string())) == "columns: a write needs the column body (binary or string), found ['topic']"
