"""The columns a write takes, once: a row says its name, which types it may have and what becomes of it.

Names match in any case, as Spark's do. Columns that only a read can fill are taken too, so that what was read
can be written. The driver checks a DataFrame's columns before any task runs; tasks bind the same columns of
each Arrow batch.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import pyarrow as pa

from store_format.arrays.sql_types import type_name
from store_format.errors import OptionError
from store_format.names import did_you_mean


@dataclass(frozen=True, slots=True)
class WriteColumn:
    """One row of the table. Without `types` a column may have any, because it is not looked at."""

    name: str
    types: tuple[str, ...]
    about: str
    required: bool = False

    @property
    def ignored(self) -> bool:
        return not self.types


_INTEGER = ("int", "bigint")
_TIME = ("timestamp", "bigint")

WRITE_COLUMNS: tuple[WriteColumn, ...] = (
    WriteColumn(
        "body",
        ("binary", "string"),
        "From 1 byte to `maxMessageSize`. A string is stored as UTF-8.",
        required=True,
    ),
    WriteColumn("topic", ("string",), "The topic. The option `topic` wins; without it, every row needs one."),
    WriteColumn(
        "tags",
        ("string",),
        "The property TAGS. Here as in every column, null (or an empty string) says nothing.",
    ),
    WriteColumn(
        "keys",
        ("string", "array<string>"),
        "The property KEYS: a string as it is, an array joined by spaces.",
    ),
    WriteColumn("flag", _INTEGER, "The user's flag, 32 bits; null is 0."),
    WriteColumn(
        "properties",
        ("map<string,string>",),
        "The other properties, and those above where their column says nothing. RocketMQ's own are left out (see `strictProperties`).",
    ),
    WriteColumn(
        "queueId",
        _INTEGER,
        "The queue. Null leaves it to `messageQueueSelector`. In a cluster `brokerName` says whose.",
    ),
    WriteColumn(
        "brokerName", ("string",), "In a cluster, with `queueId`: whose queue. Not looked at otherwise."
    ),
    WriteColumn(
        "shardingKey",
        ("string",),
        "The property __SHARDINGKEY, by which the selector `hash` chooses the queue.",
    ),
    WriteColumn(
        "bornTimestamp", _TIME, "When the message was made, to the millisecond; a number is ms. Null is now."
    ),
    WriteColumn(
        "bornTimestampMs", ("bigint", "int"), "The same in ms, for rows whose `bornTimestamp` is null."
    ),
    WriteColumn(
        "bornHost", ("string",), "`ip:port` of who made it, IPv6 in brackets. Null is the option `bornHost`."
    ),
    WriteColumn(
        "delayTimeLevel",
        _INTEGER,
        "Delivered later, by RocketMQ's levels 1 to 18; a higher one is 18, 0 is at once. The default `messageDelayLevel` is assumed.",
    ),
    WriteColumn(
        "deliverTimestamp",
        _TIME,
        "Delivered then, at most 3 days from now; a time in the past is at once. Not with a level.",
    ),
    WriteColumn("queueOffset", (), "Not looked at: each message gets the next one of its queue."),
    WriteColumn("storeTimestamp", (), "Not looked at: it is the time of the write."),
    WriteColumn("storeTimestampMs", (), "Not looked at, like `storeTimestamp`."),
    WriteColumn(
        "msgId", (), "Not looked at: the id is UNIQ_KEY in `properties`, and is made where that is missing."
    ),
    WriteColumn("offsetMsgId", (), "Not looked at: it follows from the place in the log."),
    WriteColumn("storeHost", (), "Not looked at: it is the store's, or the option `storeHost`."),
    WriteColumn(
        "sysFlag",
        (),
        "Not looked at: its bits follow from compression and hosts, and no transaction is taken up again.",
    ),
    WriteColumn("bodyCRC", (), "Not looked at: it is computed."),
    WriteColumn("reconsumeTimes", (), "Not looked at: nobody has sent the new message back, so it is 0."),
    WriteColumn(
        "preparedTransactionOffset", (), "Not looked at: it is 0, the message is none of a transaction."
    ),
    WriteColumn("physicalOffset", (), "Not looked at: it is where the message comes to stand."),
    WriteColumn("storeSize", (), "Not looked at: it follows from the message."),
    WriteColumn("tagsCode", (), "Not looked at: it follows from the tags."),
    WriteColumn("storedTopic", (), "Not looked at: `topic` counts."),
    WriteColumn("rawBody", (), "Not looked at: `body` counts, and is compressed as `compressType` says."),
    WriteColumn(
        "_corrupt_record",
        (),
        "Not looked at; a row that has nothing else is refused, because its body is null.",
    ),
)

_BY_LOWER = {column.name.lower(): column for column in WRITE_COLUMNS}

# Columns of Spark's Kafka source and of its sink.
_KAFKA = {
    "value": "body",
    "key": "keys",
    "partition": "queueId",
    "headers": "properties",
    "timestamp": "bornTimestamp",
}

# Types that hold the same values, by the name in the table. A value that does not fit its field is refused
# with its row.
_INTEGERS = ("tinyint", "smallint", "int", "bigint")
_SAME = {"int": _INTEGERS, "bigint": _INTEGERS}
# lit(None), array(), map(): null in every row
_EMPTY = ("void", "array<void>", "map<void,void>", "map<string,void>")
_STRINGS = re.compile(r"\b(?:varchar|char)\(\d+\)|\bstring collate [\w.]+")


def check_columns(
    columns: Sequence[tuple[str, str]], topic: str | None, property_columns: Collection[str] = ()
) -> None:
    """Name and type, as Spark writes it, of each column of a DataFrame that is to be written; `topic` and
    `property_columns` are options.

    Raises OptionError for a column that no row of the table names, one that comes twice, a wrong type, no
    body, and no topic.
    """
    found = _bind(columns, property_columns)
    if topic is None and "topic" not in found:
        raise OptionError("topic: expected the option topic or a column topic, found neither")


def bind_columns(schema: pa.Schema, property_columns: Collection[str] = ()) -> dict[str, int]:
    """Documented name, or that of a property column -> place in the schema, of the columns a write looks at.

    Raises OptionError as `check_columns`.
    """
    found = _bind([(field.name, type_name(field.type)) for field in schema], property_columns)
    return {name: place for name, place in found.items() if not _is_ignored(name, schema[place].type)}


def check_property_columns(names: Sequence[str]) -> None:
    """Raises OptionError for the name of a column that a write has anyway."""
    for name in names:
        if name.lower() in _BY_LOWER:
            raise OptionError(
                f"propertyColumns: expected names that are no column, found {name!r}; {_BY_LOWER[name.lower()].name} is one"
            )


def _is_ignored(name: str, kind: pa.DataType) -> bool:
    column = _BY_LOWER.get(name.lower())
    return (column is not None and column.ignored) or (
        type_name(kind) in _EMPTY and not pa.types.is_null(kind)
    )


def _bind(columns: Sequence[tuple[str, str]], property_columns: Collection[str]) -> dict[str, int]:
    """Documented name -> place, of all columns."""
    found: dict[str, int] = {}
    for place, (name, kind) in enumerate(columns):
        column = WriteColumn(name, ("string",), "") if name in property_columns else _write_column(name)
        if column.name in found:
            raise OptionError(
                f"columns: expected each column once, found {columns[found[column.name]][0]} and {name}"
            )
        if not (column.ignored or _is_taken(column, _STRINGS.sub("string", kind))):
            raise OptionError(
                f"column {column.name}: expected {' or '.join(column.types)}, found {_found(kind)}"
            )
        found[column.name] = place
    for column in WRITE_COLUMNS:
        if column.required and column.name not in found:
            names = ", ".join(name for name, _ in columns) or "no column"
            raise OptionError(
                f"columns: a write needs the column {column.name} ({' or '.join(column.types)}), found {names}"
            )
    return found


def _is_taken(column: WriteColumn, kind: str) -> bool:
    return kind in _EMPTY or any(kind in _SAME.get(name, (name,)) for name in column.types)


def _write_column(name: str) -> WriteColumn:
    column = _BY_LOWER.get(name.lower())
    if column is not None:
        return column
    meant = did_you_mean(_KAFKA.get(name.lower(), name), (column.name for column in WRITE_COLUMNS))
    accepted = ", ".join(column.name for column in WRITE_COLUMNS if not column.ignored)
    hint = f"{meant} The" if meant else "the"
    raise OptionError(
        f"columns: unknown column {name!r}; {hint} columns of a write are {accepted}; put anything else into properties, "
        "or name it in the option propertyColumns"
    )


def _found(kind: str) -> str:
    return f"{kind}; cast it to timestamp, which has a time zone" if kind == "timestamp_ntz" else kind
