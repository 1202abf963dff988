"""The columns of a write, in one table: name, allowed types, and what each column is used for.

Names match in any case, as in Spark. Columns that only a read fills are accepted and ignored, so that a
DataFrame that was read can be written. The driver checks a DataFrame's columns before any task runs; tasks
bind the same columns of each Arrow batch. `column_places` finds the columns of writes with other tables.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import pyarrow as pa

from store_format.arrays.sql_types import type_name
from store_format.errors import OptionError
from store_format.names import did_you_mean


@dataclass(frozen=True, slots=True)
class WriteColumn:
    """One row of the table. A column without `types` may have any type, because it is ignored."""

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
        "The property TAGS. Here as in every column, null or an empty string sets nothing.",
    ),
    WriteColumn(
        "keys",
        ("string", "array<string>"),
        "The property KEYS: a string unchanged, an array joined by spaces.",
    ),
    WriteColumn("flag", _INTEGER, "The user's flag, 32 bits; null is 0."),
    WriteColumn(
        "properties",
        ("map<string,string>",),
        "The other properties; also TAGS, KEYS and __SHARDINGKEY if their column is null. Properties that "
        "RocketMQ sets are left out (see `strictProperties`).",
    ),
    WriteColumn(
        "queueId",
        _INTEGER,
        "The queue. With null, `messageQueueSelector` chooses. In a cluster `brokerName` names its broker.",
    ),
    WriteColumn(
        "brokerName", ("string",), "In a cluster, with `queueId`: the broker of the queue. Otherwise ignored."
    ),
    WriteColumn(
        "shardingKey",
        ("string",),
        "The property __SHARDINGKEY, by which the selector `hash` chooses the queue.",
    ),
    WriteColumn(
        "bornTimestamp", _TIME, "When the message was made; a number is ms since the epoch, null is now."
    ),
    WriteColumn(
        "bornTimestampMs", ("bigint", "int"), "The same in ms, for rows whose `bornTimestamp` is null."
    ),
    WriteColumn(
        "bornHost",
        ("string",),
        "The `ip:port` of the producer, IPv6 in brackets. Null is the option `bornHost`.",
    ),
    WriteColumn(
        "delayTimeLevel",
        _INTEGER,
        "Delivers the message later, by RocketMQ's levels 1 to 18 (default `messageDelayLevel`). A higher "
        "level "
        "is 18, 0 is no delay.",
    ),
    WriteColumn(
        "deliverTimestamp",
        _TIME,
        "Delivers the message at this time, at most 3 days from now (`timerMaxDelaySec` of the store's "
        "`broker.conf`); a time in the past is no delay. Not together with `delayTimeLevel`.",
    ),
    WriteColumn("queueOffset", (), "Ignored: each message gets the next offset of its queue."),
    WriteColumn("storeTimestamp", (), "Ignored: it is the time of the write."),
    WriteColumn("storeTimestampMs", (), "Ignored, like `storeTimestamp`."),
    WriteColumn(
        "msgId", (), "Ignored: the id is UNIQ_KEY in `properties`, and is created if that is missing."
    ),
    WriteColumn("offsetMsgId", (), "Ignored: it follows from the place in the commitlog."),
    WriteColumn("storeHost", (), "Ignored: it is the store's host, or the option `storeHost`."),
    WriteColumn(
        "sysFlag",
        (),
        "Ignored: its bits follow from compression and hosts; transactions are not resumed.",
    ),
    WriteColumn("bodyCRC", (), "Ignored: it is computed."),
    WriteColumn("reconsumeTimes", (), "Ignored: it is 0, because no consumer has sent the new message back."),
    WriteColumn(
        "preparedTransactionOffset", (), "Ignored: it is 0, because the message is in no transaction."
    ),
    WriteColumn("physicalOffset", (), "Ignored: it is the place of the message in the commitlog."),
    WriteColumn("storeSize", (), "Ignored: it follows from the message."),
    WriteColumn("tagsCode", (), "Ignored: it follows from the tags."),
    WriteColumn("storedTopic", (), "Ignored: `topic` counts."),
    WriteColumn("rawBody", (), "Ignored: `body` counts, and is compressed as `compressType` says."),
    WriteColumn(
        "_corrupt_record",
        (),
        "Ignored. A row with nothing else is refused, because its body is null.",
    ),
)

_BY_LOWER = {column.name.lower(): column for column in WRITE_COLUMNS}

# Columns of Spark's Kafka source and sink, and words of RocketMQ's clients and consoles.
_FOREIGN_NAMES = {
    "value": "body",
    "key": "keys",
    "partition": "queueId",
    "headers": "properties",
    "timestamp": "bornTimestamp",
    "message": "body",
    "messagebody": "body",
    "msg": "body",
    "msgbody": "body",
    "payload": "body",
    "content": "body",
    "data": "body",
    "json": "body",
    "userproperties": "properties",
    "messagegroup": "shardingKey",
    "hashkey": "shardingKey",
    "delaylevel": "delayTimeLevel",
    "borntime": "bornTimestamp",
}

# Types accepted for a type in the table. A value that does not fit its field is refused with its row.
_INTEGERS = ("tinyint", "smallint", "int", "bigint")
_SAME = {"int": _INTEGERS, "bigint": _INTEGERS}
# lit(None), array(), map(): null in every row
_EMPTY = ("void", "array<void>", "map<void,void>", "map<string,void>")
_STRINGS = re.compile(r"\b(?:varchar|char)\(\d+\)|\bstring collate [\w.]+")


def check_columns(
    columns: Sequence[tuple[str, str]], topic: str | None, property_columns: Collection[str] = ()
) -> None:
    """Checks the columns of a DataFrame, pairs of a name and a type as Spark writes it.

    `topic` and `property_columns` are options.

    Raises OptionError for an unknown column, a repeated column, a wrong type, no body, and no topic.
    """
    found = _bind(columns, property_columns)
    if topic is None and "topic" not in found:
        raise OptionError("topic: expected the option topic or a column topic, found neither")


def bind_columns(schema: pa.Schema, property_columns: Collection[str] = ()) -> dict[str, int]:
    """The places in the schema of the columns that a write uses, by documented name or property column.

    Raises OptionError as `check_columns` does.
    """
    found = _bind([(field.name, type_name(field.type)) for field in schema], property_columns)
    return {name: place for name, place in found.items() if not _is_ignored(name, schema[place].type)}


def check_property_columns(names: Sequence[str]) -> None:
    """Raises OptionError if a property column has the name of a column of a write."""
    for name in names:
        if name.lower() in _BY_LOWER:
            raise OptionError(
                f"propertyColumns: expected names that are not columns of a write, found {name!r}"
            )


def _is_ignored(name: str, kind: pa.DataType) -> bool:
    column = _BY_LOWER.get(name.lower())
    return (column is not None and column.ignored) or (
        type_name(kind) in _EMPTY and not pa.types.is_null(kind)
    )


def _bind(columns: Sequence[tuple[str, str]], property_columns: Collection[str]) -> dict[str, int]:
    """The places of all columns by documented name."""
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
                f"columns: a write needs the column {column.name} ({' or '.join(column.types)}), found "
                f"{names}"
            )
    return found


def _is_taken(column: WriteColumn, kind: str) -> bool:
    return kind in _EMPTY or any(kind in _SAME.get(name, (name,)) for name in column.types)


def _write_column(name: str) -> WriteColumn:
    column = _BY_LOWER.get(name.lower())
    if column is not None:
        return column
    meant = did_you_mean(_FOREIGN_NAMES.get(name.lower(), name), (column.name for column in WRITE_COLUMNS))
    accepted = ", ".join(column.name for column in WRITE_COLUMNS if not column.ignored)
    hint = f"{meant} The" if meant else "the"
    raise OptionError(
        f"columns: unknown column {name!r}; {hint} columns of a write are {accepted}; put anything else "
        "into the body, as with to_json(struct('*')), into properties, "
        "or name it in the option propertyColumns"
    )


def _found(kind: str) -> str:
    return f"{kind}; cast it to timestamp, which has a time zone" if kind == "timestamp_ntz" else kind


def column_places(names: Sequence[str], documented: Iterable[str], option: str) -> dict[str, int]:
    """The places of the documented columns among `names`, which match in any case, as in Spark.

    Raises OptionError, which begins with `option`, for a column that is there twice.

    >>> column_places(["MSGID", "other"], ["brokerName", "msgId"], "transaction=commit")
    {'msgId': 0}
    """
    known = {name.lower(): name for name in documented}
    found: dict[str, int] = {}
    for place, name in enumerate(names):
        column = known.get(name.lower())
        if column in found:
            raise OptionError(f"{option}: expected the column {column} once, found it twice")
        if column is not None:
            found[column] = place
    return found
