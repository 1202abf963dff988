"""One Arrow batch of a write as arrays: topics coded, numbers as numpy, text as bytes, hosts parsed. Nothing
is decided here.

What a caller's row cannot be is an IllegalMessageError that names the row; types are right already
(`columns.py`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rmq_spark.produce.columns import bind_columns
from rmq_spark.produce.reserved import topic_name
from store_format.errors import IllegalMessageError, OptionError
from store_format.java.text import decode_utf8
from store_format.message.encode_parts import Integers
from store_format.message.hosts import parse_host

_KIND = pa.large_binary()
_PER_SECOND = {"s": 1, "ms": 1000, "us": 1_000_000, "ns": 1_000_000_000}
_SHOWN_MAX = 40  # characters of keys or bytes of a body
_SECONDS_MAX = 1 << 53  # beyond it ms do not fit 64 bits; no calendar gets near

Host = tuple[bytes, int]  # raw address of 4 or 16 bytes, port


@dataclass(frozen=True, slots=True)
class Hosts:
    """Addresses as the encoder takes them: one for all, or V4, or V16 with 4 bytes that count where `v6` is
    false.
    """

    ip: NDArray[np.void] | bytes
    port: Integers
    v6: NDArray[np.bool_]


class Rows:
    """The rows of one batch, a column at a time; a column that is not there is None, or 0, or whatever the
    caller says.
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
        """`property_columns` are the names of columns that are properties.

        `topic` is that of all rows, whatever their column says; `first` is the number of the first row in its
        partition.

        Raises OptionError for the columns, IllegalMessageError for a topic.
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
                f"{self._place_of(row)}: topic null, every row needs a topic, in its column or by the option topic"
            )
        coded = column.dictionary_encode()
        self.topics = tuple(map(topic_name, coded.dictionary.to_pylist()))
        self.codes = coded.indices.to_numpy().astype(np.int64)

    def topic_of(self, row: int) -> str:
        return self.topics[int(self.codes[row])]

    def refuse(self, row: Any, what: str) -> NoReturn:
        """Any: whichever integer numpy finds the row with."""
        raise IllegalMessageError(f"{self.name_of(int(row))}: {what}")

    def name_of(self, row: int) -> str:
        """The row as errors name it, so that it can be found: topic, number in its partition, and its keys or
        the start of its body.
        """
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
        """As it came; None when it is missing or says nothing in any row."""
        place = self._places.get(name)
        if place is None or self._batch.column(place).null_count == self.count:
            return None
        return self._batch.column(place)

    def bytes(self, name: str) -> pa.LargeBinaryArray | None:
        """A string or binary column."""
        column = self.column(name)
        return None if column is None else column.cast(_KIND)

    def text(self, name: str) -> pa.LargeBinaryArray | None:
        """The same, empty strings made null: a property cannot have an empty value."""
        column = self.bytes(name)
        if column is None:
            return None
        empty = pc.equal(pc.binary_length(column), 0)
        return pc.if_else(empty, pa.scalar(None, _KIND), column) if pc.any(empty).as_py() else column

    def keys(self) -> pa.LargeBinaryArray | None:
        """KEYS: an array's elements joined by one space, without null and empty ones (Message.setKeys)."""
        column = self.column("keys")
        if column is None or not (pa.types.is_list(column.type) or pa.types.is_large_list(column.type)):
            return self.text("keys")
        elements = column.flatten().cast(_KIND)
        spaced = pc.match_substring(elements, b" ")
        if pc.any(spaced).as_py():
            place = spaced.index(pa.scalar(True)).as_py()
            key = decode_utf8(elements[place].as_py())
            self.refuse(
                pc.list_parent_indices(column)[place].as_py(),
                f"key {key!r} has a space, which separates keys; pass several keys as several elements",
            )
        if elements.null_count or pc.any(pc.equal(pc.binary_length(elements), 0)).as_py():
            texts = [
                None if row is None else " ".join(key for key in row if key) or None
                for row in column.to_pylist()
            ]
            return pa.array(texts, pa.large_string()).cast(_KIND)
        joined = pc.binary_join(column.cast(pa.list_(_KIND)), pa.scalar(b" ", _KIND))
        return pc.if_else(pc.equal(pc.binary_length(joined), 0), pa.scalar(None, _KIND), joined)

    def integers(self, name: str, default: int, low: int, high: int) -> NDArray[np.int64] | None:
        """Numbers from `low` to `high`, `default` where null; None for a column that is missing."""
        column = self.column(name)
        if column is None:
            return None
        numbers: NDArray[np.int64] = pc.fill_null(column.cast(pa.int64()), default).to_numpy()
        outside = (numbers < low) | (numbers > high)
        if outside.any():
            row = int(outside.argmax())
            if column[row].is_valid:
                self.refuse(row, f"{name} {numbers[row]}, from {low} to {high} is allowed")
        return numbers

    def times_ms(self, name: str) -> tuple[NDArray[np.int64], NDArray[np.bool_]] | None:
        """Moments in ms since the epoch and where there is one; parts of a millisecond are cut off towards
        the past.
        """
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
                    self.refuse(far.argmax(), f"{name} {numbers[far.argmax()]} s, which is no time in ms")
                numbers = numbers * 1000
            elif rate > 1000:
                numbers = numbers // (rate // 1000)
        return numbers, valid

    def hosts(self, name: str, default: Host) -> Hosts:
        """`ip:port` texts, each distinct one parsed once; `default` where null."""
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
