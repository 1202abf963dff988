"""The columns that a message can have (`COLUMN_TABLE`), and the fields that one read returns
(`OutputFields`).

Arrow types are the base (`store_format.message.columns`); `rmq_spark.spark.types` derives Spark's types from
them. Every field is nullable, as in Spark's Kafka source, unless a caller's schema declares NOT NULL for a
column that is never null.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import pyarrow as pa

from rmq_spark.options.read_options import ReadOptions
from store_format.arrays.sql_types import type_name
from store_format.errors import OptionError
from store_format.message.columns import COLUMNS, DEFAULT_COLUMNS
from store_format.names import did_you_mean

CORRUPT_RECORD = "_corrupt_record"
_PROPERTY_TYPE = pa.string()


@dataclass(frozen=True, slots=True)
class Column:
    """One row of the column table. A caller's schema may declare a `never_null` column NOT NULL."""

    name: str
    about: str
    never_null: bool = False

    @property
    def arrow_type(self) -> pa.DataType:
        return COLUMNS[self.name]

    @property
    def ddl(self) -> str:
        """The column's type as SQL writes it."""
        return type_name(self.arrow_type)

    @property
    def default(self) -> bool:
        return self.name in DEFAULT_COLUMNS


COLUMN_TABLE: tuple[Column, ...] = (
    Column(
        "topic",
        "The topic of the queue. With `group`, a retried or scheduled message has the topic it was sent to.",
        True,
    ),
    Column("flag", "The flag that the producer set.", True),
    Column("body", "The decompressed body: exactly the bytes that the producer sent.", True),
    Column(
        "properties",
        "As in the Java client: of equal names the last one counts, and malformed segments are dropped.",
        True,
    ),
    Column("brokerName", "The broker of the message queue.", True),
    Column("queueId", "The number of the message queue.", True),
    Column("queueOffset", "The offset in the message queue.", True),
    Column(
        "bornTimestamp",
        "When the producer created the message. Null outside of 0001-01-03 to 9999-12-29, Python's limits.",
    ),
    Column(
        "storeTimestamp",
        "When the broker stored the message. Null outside of 0001-01-03 to 9999-12-29, Python's limits.",
    ),
    Column("tags", "The property TAGS; null when absent."),
    Column("keys", "The property KEYS, split at spaces; null when absent."),
    Column("msgId", "UNIQ_KEY, else the offset message id, as the client's `getMsgId()` returns.", True),
    Column("bornTimestampMs", "`bornTimestamp` as stored, in milliseconds.", True),
    Column("storeTimestampMs", "`storeTimestamp` as stored, in milliseconds.", True),
    Column("offsetMsgId", "The broker's message id: store host and physical offset.", True),
    Column("bornHost", "The producer's `ip:port`; IPv6 in brackets.", True),
    Column("storeHost", "The broker's `ip:port`; IPv6 in brackets.", True),
    Column("sysFlag", "The broker's flag bits: compression, transaction state, host versions.", True),
    Column("bodyCRC", "The stored checksum of the stored body.", True),
    Column("reconsumeTimes", "How often consumers have sent the message back.", True),
    Column("preparedTransactionOffset", "In a transaction, the physical offset of the half message.", True),
    Column("physicalOffset", "The offset in the commitlog.", True),
    Column("storeSize", "The bytes that the message takes in the commitlog.", True),
    Column(
        "tagsCode",
        "The consume queue's tags code: the Java hash of the tags, or the delivery time of a delayed "
        "message. Null if it is unknown.",
    ),
    Column(
        "storedTopic",
        "The topic in the stored bytes; `topic` may be another one. A default column with `group`.",
        True,
    ),
    Column("rawBody", "The body as stored, perhaps compressed.", True),
    Column("logicalQueueId", "The queue of a static topic as clients see it; null in other topics."),
    Column(
        "logicalQueueOffset",
        "The offset that clients see in this queue; null in other topics, and while no broker has set it.",
    ),
    Column(CORRUPT_RECORD, "With `mode` PERMISSIVE: why the message could not be read; null if it could."),
)

_BY_LOWER = {column.name.lower(): column for column in COLUMN_TABLE}


@dataclass(frozen=True, slots=True)
class OutputField:
    """One field of the result, called `name`: the column `source`, or with `is_property` that property."""

    name: str
    source: str
    is_property: bool = False
    nullable: bool = True

    @property
    def arrow_type(self) -> pa.DataType:
        return _PROPERTY_TYPE if self.is_property else COLUMNS[self.source]

    @property
    def is_never_null(self) -> bool:
        return not self.is_property and _BY_LOWER[self.source.lower()].never_null


@dataclass(frozen=True)
class OutputFields:
    """The fields that a read returns, in their order. Plain values: Spark pickles them to tasks."""

    fields: tuple[OutputField, ...] = tuple(OutputField(name, name) for name in DEFAULT_COLUMNS)

    @property
    def sources(self) -> tuple[str, ...]:
        """The column or property of each field."""
        return tuple(field.source for field in self.fields)

    def to_arrow_schema(self) -> pa.Schema:
        """The schema of the batches. Spark refuses batches whose schema differs from the one it derives."""
        return pa.schema([pa.field(field.name, field.arrow_type, field.nullable) for field in self.fields])


def fields_from_options(options: ReadOptions) -> OutputFields:
    """The fields for a read without a schema of the caller.

    They are the columns of `columns` or the default columns, then those of `propertyColumns` that `columns`
    does not name, then `_corrupt_record` in mode PERMISSIVE without `columns`. A group reads retry topics,
    whose rows show the original topic, so `storedTopic` is one of its default columns.
    """
    is_shared = options.group is not None or options.pop is not None
    defaults = (*DEFAULT_COLUMNS, "storedTopic") if is_shared else DEFAULT_COLUMNS
    fields = fields_of(options.columns or defaults, options)
    named = {field.name for field in fields}
    fields += (
        OutputField(name, name, is_property=True) for name in property_columns(options) if name not in named
    )
    if options.columns is None and options.permissive:
        fields.append(OutputField(CORRUPT_RECORD, CORRUPT_RECORD))
    return OutputFields(tuple(fields))


def fields_of(names: Iterable[str], options: ReadOptions) -> list[OutputField]:
    """The fields that the option `columns` names: columns in any case, and names of `propertyColumns`."""
    properties = property_columns(options)
    fields = [
        OutputField(name, name, is_property=True)
        if name in properties
        else OutputField(column := column_named(name, properties=properties).name, column)
        for name in names
    ]
    refuse_duplicates("columns", (field.name for field in fields))
    return fields


def column_named(name: str, where: str = "columns", properties: Iterable[str] = ()) -> Column:
    """The column of that name in any case. Raises OptionError for an unknown name given in `where`."""
    column = _BY_LOWER.get(name.lower())
    if column is not None:
        return column
    meant = did_you_mean(name, [*(column.name for column in COLUMN_TABLE), *properties])
    hint = f"{meant} To" if meant else "to"
    raise OptionError(
        f"{where}: unknown column {name!r}; {hint} get a message property as a column, "
        "name it in the option propertyColumns"
    )


def property_columns(options: ReadOptions) -> tuple[str, ...]:
    """`propertyColumns`, checked: no name of a column, and no name twice."""
    for name in options.property_columns:
        built_in = _BY_LOWER.get(name.lower())
        if built_in is not None:
            raise OptionError(
                f"propertyColumns: expected names of message properties, found {name!r}; "
                f"{built_in.name} is already a column"
            )
    refuse_duplicates("propertyColumns", options.property_columns)
    return options.property_columns


def refuse_duplicates(where: str, names: Iterable[str]) -> None:
    """Raises OptionError for two names that are equal in lower case, which Spark takes for one column."""
    seen: dict[str, str] = {}
    for name in names:
        other = seen.get(name.lower())
        if other == name:
            raise OptionError(f"{where}: expected each column once, found {name!r} twice")
        if other is not None:
            raise OptionError(
                f"{where}: expected each column once, found {other!r} and {name!r}, "
                "which are one column to Spark"
            )
        seen[name.lower()] = name
