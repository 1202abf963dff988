"""The columns of a write: in one table, with the types that each may have; and one batch of them as arrays.

Names match in any case, as in Spark. Columns that only a read fills are accepted and ignored, so that a
DataFrame that was read can be written. The driver checks a DataFrame's columns before any task runs; tasks
bind the same columns of each Arrow batch. `column_places` finds the columns of writes with other tables.

The arrays have topics as codes, numbers as numpy, text as bytes, hosts parsed. An invalid value is an
IllegalMessageError that names the row; so are an invalid name of a topic, and a topic that only a broker
writes to.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from store_format.arrays.ranges import flat_bytes, repeats_each
from store_format.arrays.sql_types import type_name
from store_format.errors import IllegalMessageError, OptionError
from store_format.java.text import decode_utf8
from store_format.message.encode import Integers
from store_format.message.hosts import parse_host
from store_format.names import LMQ_PREFIX, NOT_ALLOWED_SEND_TOPICS, SYSTEM_PREFIX, did_you_mean


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
        "messageGroup",
        ("string",),
        "The same property as the message group of a FIFO message, by which the selector `messageGroup` "
        "chooses the queue. At most 63 bytes, as RocketMQ's proxy allows; not together with `shardingKey`.",
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
    WriteColumn("logicalQueueId", (), "Ignored: static topics are not written to."),
    WriteColumn("logicalQueueOffset", (), "Ignored: each message gets the next offset of its queue."),
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
            advice = "; cast it to timestamp, which has a time zone" if kind == "timestamp_ntz" else ""
            raise OptionError(
                f"column {column.name}: expected {' or '.join(column.types)}, found {kind}{advice}"
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


# ---- one batch as arrays -----------------------------------------------------------------------------------


_KIND = pa.large_binary()
_PER_SECOND = {"s": 1, "ms": 1000, "us": 1_000_000, "ns": 1_000_000_000}
_SHOWN_MAX = 40  # characters of keys or bytes of a body
_INT_MIN, _INT_MAX = -(1 << 31), (1 << 31) - 1
_SECONDS_MAX = 1 << 53  # more seconds do not fit 64 bits as ms

Host = tuple[bytes, int]  # raw address of 4 or 16 bytes, port

_TOPIC_LENGTH_MAX = 127  # Validators.checkTopic of the client; a broker lets %RETRY% topics have 255
_TOPIC = re.compile(rb"[%|a-zA-Z0-9_-]+")  # TopicValidator.VALID_CHAR_BIT_MAP


# A broker accepts a message to these topics and then treats it as its own bookkeeping: timer wheel, pop
# checkpoints, light queues. %RETRY% and %DLQ% are allowed, as in RocketMQ: operators resend dead letters.
_REFUSED_PREFIXES = (SYSTEM_PREFIX, LMQ_PREFIX)


# ---- names of topics ---------------------------------------------------------------------------------------


def topic_name(raw: bytes) -> str:
    """The name of a topic that a client may send to; raises IllegalMessageError for any other."""
    topic = decode_utf8(raw)
    shown = topic[:_TOPIC_LENGTH_MAX]
    if not raw:
        raise IllegalMessageError("topic: expected at least one character, found none")
    if not _TOPIC.fullmatch(raw):
        raise IllegalMessageError(f"topic: expected letters, digits, %, |, - and _, found {shown!r}")
    if len(raw) > _TOPIC_LENGTH_MAX:
        raise IllegalMessageError(
            f"topic {shown}…: expected at most {_TOPIC_LENGTH_MAX} characters, found {len(raw)}"
        )
    if topic in NOT_ALLOWED_SEND_TOPICS or topic.startswith(_REFUSED_PREFIXES):
        raise IllegalMessageError(f"topic {topic}: it is RocketMQ's own, and only a broker writes to it")
    return topic


# ---- rows --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Hosts:
    """Addresses for the encoder: one for all rows, or an array of 4 or 16 bytes each.

    In an array of 16 bytes each only the first 4 count where `v6` is false.
    """

    ip: NDArray[np.void] | bytes
    port: Integers
    v6: NDArray[np.bool_]


class WriteRows:
    """The rows of one record batch of a write, column by column.

    A missing column is None or the caller's default.
    """

    def __init__(
        self,
        batch: pa.RecordBatch,
        topic: str | None = None,
        *,
        property_columns: Iterable[str] = (),
        first: int = 0,
        partition: int | None = None,
    ) -> None:
        """`property_columns` are the names of the columns that are properties.

        `topic` is the topic of all rows, whatever their column contains. `first` is the number of the first
        row in its partition. Raises OptionError for wrong columns, IllegalMessageError for a wrong topic.
        """
        self._batch = batch
        self._first = first
        self._partition = partition
        self.property_columns = tuple(property_columns)
        self._places = bind_columns(batch.schema, self.property_columns)
        self.count: int = batch.num_rows
        # the place of each row's topic in `topics`
        self.codes: NDArray[np.int64] = np.zeros(self.count, np.int64)
        if topic is not None:
            self.topics: tuple[str, ...] = (topic_name(topic.encode()),)
            return
        if "topic" not in self._places:
            raise OptionError("topic: expected the option topic or a column topic, found neither")
        column = batch.column(self._places["topic"]).cast(_KIND)
        if column.null_count:
            row = column.is_null().index(pa.scalar(True)).as_py()
            raise IllegalMessageError(
                f"{self._place_of(row)}: expected a topic, found null; fill the column topic, "
                "or set the option topic"
            )
        if repeats_each(column, 1):
            self.topics = (topic_name(column[0].as_py()),)
            return
        coded = column.dictionary_encode()
        self.topics = tuple(map(topic_name, coded.dictionary.to_pylist()))
        self.codes = coded.indices.to_numpy().astype(np.int64)

    def topic_of(self, row: int) -> str:
        return self.topics[int(self.codes[row])]

    def refuse(self, row: Any, what: str) -> NoReturn:
        """Raises IllegalMessageError for a row. Any: the row is an integer of any numpy type."""
        raise IllegalMessageError(f"{self.name_of(int(row))}: {what}")

    def name_of(self, row: int) -> str:
        """The row in errors: topic, number in the partition, and the keys or the start of the body."""
        return f"topic {self.topic_of(row)}, {self._place_of(row)}"

    def _place_of(self, row: int) -> str:
        place = f"row {self._first + row}" + (
            "" if self._partition is None else f" of partition {self._partition}"
        )
        for name in ("keys", "body"):
            value = self._batch.column(self._places[name])[row].as_py() if name in self._places else None
            if value:
                text = " ".join(key or "" for key in value) if isinstance(value, list) else value
                shown = repr(text[:_SHOWN_MAX]) + ("…" if len(text) > _SHOWN_MAX else "")
                return f"{place} ({name} {shown})"
        return place

    def column(self, name: str) -> pa.Array | None:
        """The column unchanged; None if it is missing or null in every row."""
        place = self._places.get(name)
        if place is None or self._batch.column(place).null_count == self.count:
            return None
        return self._batch.column(place)

    def bytes(self, name: str) -> pa.LargeBinaryArray | None:
        """A string or binary column as bytes; None as for `column`."""
        column = self.column(name)
        return None if column is None else column.cast(_KIND)

    def text(self, name: str) -> pa.LargeBinaryArray | None:
        """The column as bytes, null for empty strings, because a property cannot have an empty value."""
        column = self.bytes(name)
        if column is None:
            return None
        empty = pc.equal(pc.binary_length(column), 0)
        return pc.if_else(empty, pa.scalar(None, _KIND), column) if pc.any(empty).as_py() else column

    def keys(self) -> pa.LargeBinaryArray | None:
        """KEYS: the elements of an array joined by a space, without null and empty ones (Message.setKeys)."""
        column = self.column("keys")
        if column is None or not (pa.types.is_list(column.type) or pa.types.is_large_list(column.type)):
            return self.text("keys")
        elements = column.flatten().cast(_KIND)
        spaced = pc.match_substring(elements, b" ") if b" " in flat_bytes(elements)[0].tobytes() else None
        if spaced is not None and pc.any(spaced).as_py():
            place = spaced.index(pa.scalar(True)).as_py()
            key = decode_utf8(elements[place].as_py())
            self.refuse(
                pc.list_parent_indices(column)[place].as_py(),
                f"keys: expected a key without spaces, found {key!r}; pass several keys as several elements",
            )
        if elements.null_count or pc.any(pc.equal(pc.binary_length(elements), 0)).as_py():
            texts = [
                None if row is None else " ".join(key for key in row if key) or None
                for row in column.to_pylist()
            ]
            return pa.array(texts, pa.large_string()).cast(_KIND)
        if len(elements) == self.count and pc.all(pc.equal(column.value_lengths(), 1)).as_py():
            return elements  # nothing to join
        joined = pc.binary_join(column.cast(pa.list_(_KIND)), pa.scalar(b" ", _KIND))
        return pc.if_else(pc.equal(pc.binary_length(joined), 0), pa.scalar(None, _KIND), joined)

    def integers(
        self, name: str, default: int, *, low: int = _INT_MIN, high: int = _INT_MAX
    ) -> NDArray[np.int64] | None:
        """Numbers from `low` to `high`, `default` where null; None for a missing column."""
        column = self.column(name)
        if column is None:
            return None
        numbers: NDArray[np.int64] = pc.fill_null(column.cast(pa.int64()), default).to_numpy()
        outside = (numbers < low) | (numbers > high)
        if outside.any():
            row = int(outside.argmax())
            if column[row].is_valid:
                self.refuse(row, f"{name}: expected a number from {low} to {high}, found {numbers[row]}")
        return numbers

    def times_ms(self, name: str) -> tuple[NDArray[np.int64], NDArray[np.bool_]] | None:
        """Times in ms since the epoch, rounded down, and which rows have one; None for a missing column."""
        column = self.column(name)
        if column is None:
            return None
        valid = column.is_valid().to_numpy(zero_copy_only=False)
        numbers: NDArray[np.int64] = pc.fill_null(column.cast(pa.int64()), 0).to_numpy()
        if pa.types.is_timestamp(column.type):
            rate = _PER_SECOND[column.type.unit]
            if rate == 1:
                far = np.abs(numbers) > _SECONDS_MAX
                if far.any():
                    self.refuse(
                        far.argmax(),
                        f"{name}: expected a time that fits 64 bits in ms, found {numbers[far.argmax()]} s",
                    )
                numbers = numbers * 1000
            elif rate > 1000:
                numbers = numbers // (rate // 1000)
        return numbers, valid

    def hosts(self, name: str, default: Host) -> Hosts:
        """Hosts of `ip:port` texts, each distinct text parsed once; `default` where null."""
        column = self.text(name)
        if column is None:
            return Hosts(*default, np.full(self.count, len(default[0]) == 16))
        coded = column.dictionary_encode()
        parsed = [default]
        for place, raw in enumerate(coded.dictionary.to_pylist()):
            try:
                parsed.append(parse_host(decode_utf8(raw)))
            except ValueError as error:
                row = coded.indices.index(pa.scalar(place, coded.indices.type)).as_py()
                raise IllegalMessageError(f"{self.name_of(row)}: {name} {error}") from error
        codes = pc.fill_null(coded.indices, -1).to_numpy() + 1
        used = parsed if column.null_count else parsed[1:]
        size = 16 if any(len(ip) == 16 for ip, _ in used) else 4
        ips = np.array([ip[:size].ljust(size, b"\0") for ip, _ in parsed], f"V{size}")
        ports = np.array([port for _, port in parsed], np.int64)
        return Hosts(ips[codes], ports[codes], np.array([len(ip) == 16 for ip, _ in parsed])[codes])
