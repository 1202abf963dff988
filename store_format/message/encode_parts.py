"""The parts of message units, and how they become units: by a kernel, or one by one where that loads faster.

A message that breaks a limit raises an IllegalMessageError that names its topic.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from operator import itemgetter
from typing import Any, TypeAlias
from zlib import crc32

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from store_format import kernels
from store_format.arrays.ranges import new_array
from store_format.errors import IllegalMessageError
from store_format.java.text import utf16_length
from store_format.layouts import MAGIC_V1, MAGIC_V2, MESSAGE_HEADS, as_struct
from store_format.message.parts import CRC_MASK, head_variant
from store_format.message.sysflag import BORN_HOST_V6, STORE_HOST_V6

# CommitLog.asyncPutMessage: a topic of more UTF-16 units makes a V2 unit. The V1 length is a signed byte.
TOPIC_V1_LENGTH_MAX = 127
TOPIC_SIZE_MAX = 255  # HookUtils.checkBeforePutMessage

Integers: TypeAlias = NDArray[np.integer[Any]] | int
Addresses: TypeAlias = NDArray[np.void] | bytes

_HOSTS = (("born_ip", BORN_HOST_V6), ("store_ip", STORE_HOST_V6))


def fitting(name: str, values: Integers, size: int) -> Integers:
    """Returns `values`. Raises IllegalMessageError if one does not fit a signed field of `size` bytes."""
    if isinstance(values, np.ndarray):
        if not len(values) or (values.dtype.kind == "i" and values.dtype.itemsize <= size):
            return values
        extremes = [int(values.min()), int(values.max())]
    else:
        extremes = [values]
    for value in extremes:
        if not -1 << 8 * size - 1 <= value < 1 << 8 * size - 1:
            raise IllegalMessageError(f"{name} {value} does not fit its field of {size} bytes")
    return values


# ---- topics ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _TopicPiece:
    """A topic as the unit stores it: its length, then its name."""

    name: str
    stored: bytes
    magic: int


def _topic_piece(name: str) -> _TopicPiece:
    raw = name.encode()
    v1 = utf16_length(name) <= TOPIC_V1_LENGTH_MAX
    size_max = TOPIC_V1_LENGTH_MAX if v1 else TOPIC_SIZE_MAX
    if len(raw) > size_max:
        raise IllegalMessageError(f"topic {name}: {len(raw)} bytes long, at most {size_max} are allowed")
    return _TopicPiece(name, len(raw).to_bytes(1 if v1 else 2, "big") + raw, MAGIC_V1 if v1 else MAGIC_V2)


class EncodedTopics:
    """The topics of a batch as stored, each once: `codes` has the place of each message's, or of all."""

    def __init__(self, topic: pa.Array | str) -> None:
        self.codes = np.zeros(1, np.int64)
        if isinstance(topic, str):
            names = [topic]
        else:
            if topic.null_count:
                raise IllegalMessageError("topic null: every message needs a topic")
            encoded = topic if pa.types.is_dictionary(topic.type) else topic.dictionary_encode()
            names = encoded.dictionary.to_pylist()
            if len(names) != 1:
                self.codes = encoded.indices.to_numpy().astype(np.int64)
        self.pieces = [_topic_piece(name) for name in names]

    def check(self, sizes: NDArray[np.int64], size_max: int, what: str, limit: str) -> None:
        """Raises IllegalMessageError when one of `sizes` exceeds `size_max`, whose name is `limit`."""
        if int(sizes.max(initial=0)) > size_max:
            index = int(sizes.argmax())
            topic = self.pieces[self.codes[index if len(self.codes) > 1 else 0]].name
            raise IllegalMessageError(
                f"topic {topic}: {what} of {int(sizes[index])} bytes, "
                f"at most {size_max} are allowed ({limit})"
            )


# ---- units -------------------------------------------------------------------------------------------------

# (name, size in bytes) of the numbers of a head, in the order of the head and of `kernels.encode.write_units`
_NUMBERS = (
    ("queue_id", 4), ("flag", 4), ("queue_offset", 8), ("physical_offset", 8), ("sys_flag", 4),
    ("born_timestamp", 8), ("born_port", 4), ("store_timestamp", 8), ("store_port", 4),
    ("reconsume_times", 4), ("prepared_transaction_offset", 8),
)  # fmt: skip
_HEADS = tuple(map(as_struct, MESSAGE_HEADS))
_HEAD_SIZES = np.array([head.size for head in _HEADS], np.int64)
_PADDING = 8  # bytes behind its output that a kernel may overwrite


class UnitParts:
    """The parts of units: bytes with offsets, and arrays with an element for each message or for all.

    `crc_size` bytes behind the properties count as properties.
    """

    def __init__(
        self,
        topics: EncodedTopics,
        body: NDArray[np.uint8],
        body_ends: NDArray[np.int64],
        properties: NDArray[np.uint8],
        property_ends: NDArray[np.int64],
        crc_size: int,
    ) -> None:
        self._topics, self._crc_size = topics, crc_size
        self._body, self._body_ends = body, body_ends
        self._properties, self._property_ends = properties, property_ends
        self.body_sizes = np.diff(body_ends)
        self.properties_sizes = np.diff(property_ends) + crc_size

    def __len__(self) -> int:
        return len(self.body_sizes)

    def take_numbers(self, columns: Mapping[str, Any]) -> None:
        """Takes the numbers and addresses of heads. Raises IllegalMessageError for one that does not fit."""
        values = dict(columns)
        if values["physical_offset"] is None:
            values["physical_offset"] = 0
        for name, size in sorted(_NUMBERS, key=itemgetter(1)):
            fitting(name, values[name], size)
        ips = {name: values[name] for name, _ in _HOSTS}
        values["sys_flag"] = _with_host_flags(values["sys_flag"], ips)
        self._numbers = {
            name: self._checked(name, np.asarray(values[name], np.int64)) for name, _ in _NUMBERS
        }
        self._ips = [
            self._checked(name, np.array([ip], f"V{len(ip)}") if isinstance(ip, bytes) else ip)
            for name, ip in ips.items()
        ]
        codes, stored = self._checked("topic", self._topics.codes), self._topics.pieces
        sizes = (
            _HEAD_SIZES[head_variant(self._numbers["sys_flag"])] + self.body_sizes + self.properties_sizes + 2
        )
        sizes += np.array([len(piece.stored) for piece in stored], np.int64)[codes]
        self.sizes = sizes

    def _checked(self, name: str, values: NDArray[Any]) -> NDArray[Any]:
        """Returns the values. Kernels rely on their number."""
        values = np.ascontiguousarray(np.atleast_1d(values))
        if len(values) not in (1, len(self)):
            raise ValueError(f"{name}: expected {len(self)} values, or one, found {len(values)}")
        return values

    def units(self) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        """Returns (the units end to end, the place of each and the end of the last)."""
        places = np.zeros(len(self) + 1, np.int64)
        np.cumsum(self.sizes, out=places[1:])
        if not kernels.worth(len(self)):
            return np.frombuffer(bytearray(b"".join(self._one_by_one())), np.uint8), places
        pieces = self._topics.pieces
        stored = b"".join(piece.stored for piece in pieces)
        data = new_array(int(places[-1]) + _PADDING, np.uint8)
        kernels.encode.write_units(
            data,
            places,
            tuple(self._numbers.values()),
            self._body,
            self._body_ends,
            self._properties,
            self._property_ends,
            np.frombuffer(stored, np.uint8),
            np.cumsum([0, *(len(piece.stored) for piece in pieces)]),
            np.array([piece.magic for piece in pieces], np.int64),
            self._topics.codes,
            *(part for ip in self._ips for part in (ip.view(np.uint8), ip.itemsize)),
            self._crc_size,
        )
        return data[:-_PADDING], places

    def _one_by_one(self) -> Iterator[bytes]:
        """Returns each unit, as the kernel writes it."""
        rows = zip(*(_each(values, len(self)) for values in self._numbers.values()), strict=True)
        hosts = zip(*(_each(values, len(self)) for values in self._ips), strict=True)
        pieces = (self._topics.pieces[code] for code in _each(self._topics.codes, len(self)))
        bodies = pairwise(self._body_ends.tolist())
        properties = pairwise(self._property_ends.tolist())
        for size, row, ips, piece, body_range, range_ in zip(
            self.sizes.tolist(), rows, hosts, pieces, bodies, properties, strict=True
        ):
            body = self._body[slice(*body_range)].tobytes()
            raw = self._properties[slice(*range_)].tobytes() + bytes(self._crc_size)
            queue_id, flag, queue_offset, physical_offset, sys_flag, born, port, *rest = row
            variant = int(head_variant(sys_flag))
            yield _HEADS[variant].pack(
                size, piece.magic, crc32(body) & CRC_MASK, queue_id, flag, queue_offset, physical_offset,
                sys_flag, born, ips[0], port, rest[0], ips[1], *rest[1:], len(body),
            )  # fmt: skip
            yield body + piece.stored + len(raw).to_bytes(2, "big") + raw


def _each(values: NDArray[Any], count: int) -> list[Any]:
    each: list[Any] = values.tolist()
    return each if len(values) == count else each * count


def _with_host_flags(sys_flag: Integers, addresses: dict[str, Addresses]) -> NDArray[np.int64]:
    flags = np.array(sys_flag, np.int64)
    for name, bit in _HOSTS:
        ip = addresses[name]
        size = len(ip) if isinstance(ip, bytes) else ip.dtype.itemsize
        if size not in (4, 16):
            raise IllegalMessageError(f"{name}: expected an address of 4 or 16 bytes, found {size}")
        if size == 4:
            flags &= ~bit
        elif isinstance(ip, bytes):
            flags |= bit
    return flags
