"""The columns a write takes, once: a row says its name, which types it may have and what becomes of it.

Names match in any case, as Spark's do. Columns that only a read can fill are taken too, so that what was read can be written.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa

from rmq_spark.values import nearest
from store_format.errors import OptionError

__all__ = ["WRITE_COLUMNS", "WriteColumn", "bind_columns"]


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
    WriteColumn("body", ("binary", "string"), "From 1 byte to `maxMessageSize`. A string is stored as UTF-8.", required=True),
    WriteColumn("topic", ("string",), "The topic. The option `topic` wins; without it, every row needs one."),
    WriteColumn("tags", ("string",), "The property TAGS. Here as in every column, null (or an empty string) says nothing."),
    WriteColumn("keys", ("string", "array<string>"), "The property KEYS: a string as it is, an array joined by spaces."),
    WriteColumn("flag", _INTEGER, "The user's flag, 32 bits; null is 0."),
    WriteColumn(
        "properties",
        ("map<string,string>",),
        "The other properties, and those above where their column says nothing. RocketMQ's own are left out (see `strictProperties`).",
    ),
    WriteColumn("queueId", _INTEGER, "The queue. Null leaves it to `messageQueueSelector`. In a cluster `brokerName` says whose."),
    WriteColumn("brokerName", ("string",), "In a cluster, with `queueId`: whose queue. Not looked at otherwise."),
    WriteColumn("shardingKey", ("string",), "The property __SHARDINGKEY, by which the selector `hash` chooses the queue."),
    WriteColumn("bornTimestamp", _TIME, "When the message was made, to the millisecond; a number is ms. Null is now."),
    WriteColumn("bornTimestampMs", ("bigint", "int"), "The same in ms, for rows whose `bornTimestamp` is null."),
    WriteColumn("bornHost", ("string",), "`ip:port` of who made it, IPv6 in brackets. Null is the option `bornHost`."),
    WriteColumn("delayTimeLevel", _INTEGER, "Delivered later, by RocketMQ's levels 1 to 18; a higher one is 18, 0 is at once."),
    WriteColumn("deliverTimestamp", _TIME, "Delivered then, at most 3 days from now; a time in the past is at once. Not with a level."),
    WriteColumn("queueOffset", (), "Not looked at: each message gets the next one of its queue."),
    WriteColumn("storeTimestamp", (), "Not looked at: it is the time of the write."),
    WriteColumn("storeTimestampMs", (), "Not looked at, like `storeTimestamp`."),
    WriteColumn("msgId", (), "Not looked at: the id is UNIQ_KEY in `properties`, and is made where that is missing."),
    WriteColumn("offsetMsgId", (), "Not looked at: it follows from the place in the log."),
    WriteColumn("storeHost", (), "Not looked at: it is the store's, or the option `storeHost`."),
    WriteColumn("sysFlag", (), "Not looked at: its bits follow from compression and hosts, and no transaction is taken up again."),
    WriteColumn("bodyCRC", (), "Not looked at: it is computed."),
    WriteColumn("reconsumeTimes", (), "Not looked at: nobody has sent the new message back, so it is 0."),
    WriteColumn("preparedTransactionOffset", (), "Not looked at: it is 0, the message is none of a transaction."),
    WriteColumn("physicalOffset", (), "Not looked at: it is where the message comes to stand."),
    WriteColumn("storeSize", (), "Not looked at: it follows from the message."),
    WriteColumn("tagsCode", (), "Not looked at: it follows from the tags."),
    WriteColumn("storedTopic", (), "Not looked at: `topic` counts."),
    WriteColumn("rawBody", (), "Not looked at: `body` counts, and is compressed as `compressType` says."),
    WriteColumn("_corrupt_record", (), "Not looked at; a row that has nothing else is refused, because its body is null."),
)

_BY_LOWER = {column.name.lower(): column for column in WRITE_COLUMNS}


def bind_columns(schema: pa.Schema) -> dict[str, int]:
    """Documented name -> place in the schema, of the columns a write looks at.

    Raises OptionError for a column that no row of the table names, one that comes twice, a wrong type, and no body.
    """
    found: dict[str, int] = {}
    for place, field in enumerate(schema):
        column = _known(field.name)
        if column.name in found:
            raise OptionError(f"columns: expected each column once, found {schema[found[column.name]].name} and {field.name}")
        if not (column.ignored or any(_TYPES[name](field.type) for name in column.types) or pa.types.is_null(field.type)):
            raise OptionError(f"column {column.name}: expected {' or '.join(column.types)}, found {_found(field.type)}")
        found[column.name] = place
    for column in WRITE_COLUMNS:
        if column.required and column.name not in found:
            raise OptionError(f"columns: a write needs the column {column.name} ({' or '.join(column.types)}), found {schema.names}")
    return {name: place for name, place in found.items() if not _BY_LOWER[name.lower()].ignored}


def _known(name: str) -> WriteColumn:
    column = _BY_LOWER.get(name.lower())
    if column is not None:
        return column
    meant = nearest(name, (column.name for column in WRITE_COLUMNS))
    accepted = ", ".join(column.name for column in WRITE_COLUMNS if not column.ignored)
    hint = f"did you mean {meant}? " if meant else ""
    raise OptionError(f"columns: unknown column {name!r}; {hint}A write takes {accepted}; anything else belongs into properties")


# ---- types ------------------------------------------------------------------------------------------------------------


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def _is_texts(kind: pa.DataType) -> bool:
    return bool((pa.types.is_list(kind) or pa.types.is_large_list(kind)) and _is_text(kind.value_type))


def _is_text_map(kind: pa.DataType) -> bool:
    return bool(pa.types.is_map(kind) and _is_text(kind.key_type) and _is_text(kind.item_type))


def _is_moment(kind: pa.DataType) -> bool:
    """A timestamp with a zone: one without is a reading of some clock, and which one nobody says."""
    return bool(pa.types.is_timestamp(kind) and kind.tz is not None)


_TYPES: dict[str, Callable[[pa.DataType], bool]] = {
    "array<string>": _is_texts,
    "bigint": pa.types.is_signed_integer,  # a value that does not fit its field is refused with the row
    "binary": _is_bytes,
    "int": pa.types.is_signed_integer,
    "map<string,string>": _is_text_map,
    "string": _is_text,
    "timestamp": _is_moment,
}


def _found(kind: pa.DataType) -> str:
    if pa.types.is_timestamp(kind) and kind.tz is None:
        return "timestamp_ntz; cast it to timestamp, which says in which zone"
    return str(kind)
