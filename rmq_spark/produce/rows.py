"""One Arrow batch of a write as arrays: topics as codes, numbers as numpy, text as bytes, hosts parsed.

An invalid value is an IllegalMessageError that names the row; so are an invalid name of a topic, and a topic
that only a broker writes to. The types of columns are checked in `columns`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rmq_spark.produce.columns import bind_columns
from store_format.arrays.ranges import flat_bytes
from store_format.errors import IllegalMessageError, OptionError
from store_format.java.text import decode_utf8
from store_format.message.encode import Integers
from store_format.message.hosts import parse_host
from store_format.names import LMQ_PREFIX, NOT_ALLOWED_SEND_TOPICS, SYSTEM_PREFIX

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
        self.topics: tuple[str, ...]
        self.codes: NDArray[np.int64]  # the place of each row's topic in `topics`
        if topic is not None:
            self.topics, self.codes = (topic_name(topic.encode()),), np.zeros(self.count, np.int64)
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
        v6 = any(len(ip) == 16 for ip, _ in used)
        size = 16 if v6 else 4
        ips = np.array([ip[:size].ljust(size, b"\0") for ip, _ in parsed], f"V{size}")
        ports = np.array([port for _, port in parsed], np.int64)
        return Hosts(ips[codes], ports[codes], np.array([len(ip) == 16 for ip, _ in parsed])[codes])
