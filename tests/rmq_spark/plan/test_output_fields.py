"""Columns: the table, and the fields of a read that options choose from it."""

from __future__ import annotations

import pickle

import pyarrow as pa

from rmq_spark.options.read_options import ReadOptions, parse_read_options
from rmq_spark.plan.output_fields import COLUMN_TABLE, OutputFields, fields_from_options
from store_format.message.columns import COLUMNS, DEFAULT_COLUMNS

DEFAULT = (
    "topic string, flag int, body binary, properties map<string,string>, brokerName string, queueId int, "
    "queueOffset bigint, "
    "bornTimestamp timestamp, storeTimestamp timestamp, tags string, keys array<string>, msgId string"
)
ON_REQUEST = (
    "bornTimestampMs bigint, storeTimestampMs bigint, offsetMsgId string, bornHost string, storeHost "
    "string, sysFlag int, bodyCRC int, "
    "reconsumeTimes int, preparedTransactionOffset bigint, physicalOffset bigint, storeSize int, tagsCode "
    "bigint, storedTopic string, "
    "rawBody binary, logicalQueueId int, logicalQueueOffset bigint, _corrupt_record string"
)


def options(**more: str) -> ReadOptions:
    return parse_read_options({"path": "/a", **more})


def names(fields: OutputFields) -> tuple[str, ...]:
    return tuple(field.name for field in fields.fields)


def test_the_columns_are_those_of_the_design() -> None:
    rows = [(column.default, f"{column.name} {column.ddl}") for column in COLUMN_TABLE]
    assert ", ".join(row for default, row in rows if default) == DEFAULT
    assert ", ".join(row for default, row in rows if not default) == ON_REQUEST
    assert [column.name for column in COLUMN_TABLE] == list(COLUMNS)


def test_default_columns() -> None:
    fields = fields_from_options(options())
    assert names(fields) == fields.sources == DEFAULT_COLUMNS
    assert fields == OutputFields()
    assert not any(field.is_property for field in fields.fields)


def test_columns_and_property_columns() -> None:
    fields = fields_from_options(options(columns="QUEUEOFFSET, body", propertyColumns="region,traceId"))
    assert names(fields) == ("queueOffset", "body", "region", "traceId")
    assert [field.is_property for field in fields.fields] == [False, False, True, True]
    assert fields.to_arrow_schema() == pa.schema(
        [
            ("queueOffset", pa.int64()),
            ("body", pa.binary()),
            ("region", pa.string()),
            ("traceId", pa.string()),
        ]
    )
    assert pickle.loads(pickle.dumps(fields)) == fields


def test_a_property_column_keeps_the_place_that_columns_gives_it() -> None:
    fields = fields_from_options(
        options(columns="region,queueOffset,traceId", propertyColumns="a,traceId,region")
    )
    assert names(fields) == ("region", "queueOffset", "traceId", "a")
    assert [field.is_property for field in fields.fields] == [True, False, True, True]


def test_permissive_adds_the_reason_at_the_end_unless_columns_are_named() -> None:
    with_reason = (*DEFAULT_COLUMNS, "_corrupt_record")
    assert names(fields_from_options(options(mode="PERMISSIVE"))) == with_reason
    with_property = names(fields_from_options(options(mode="PERMISSIVE", propertyColumns="a")))
    assert with_property == (*DEFAULT_COLUMNS, "a", "_corrupt_record")
    assert names(fields_from_options(options(mode="PERMISSIVE", columns="body"))) == ("body",)
    reason_first = fields_from_options(options(columns="_corrupt_record,body"))
    assert names(reason_first) == ("_corrupt_record", "body")
