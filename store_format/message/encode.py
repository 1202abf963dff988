"""Message columns to message units, byte for byte what a broker appends (MessageExtEncoder.encode, spec 2.1).

Heads are numpy records; one Arrow join puts them before bodies, topics and properties. Positions and store
times may come later: `assign` patches them into units that are already encoded.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from store_format.arrays.ranges import fixed_width, flat_bytes, gather_units
from store_format.errors import IllegalMessageError
from store_format.layouts import CRC_PROPERTY_SIZE, WIRE_MESSAGE_HEAD
from store_format.message.crc import body_crcs, range_crcs
from store_format.message.encode_parts import (
    Addresses,
    Integers,
    Topics,
    fitting,
    heads,
    lengths,
)
from store_format.message.parts import head_offset
from store_format.message.properties import crc_properties
from store_format.message.property_encoder import without_crc_property
from store_format.message.sysflag import BORN_HOST_V6

MESSAGE_SIZE_MAX = 4 << 20  # MessageStoreConfig.maxMessageSize
UNIT_OVERHEAD_MAX = 1 << 16  # MessageExtEncoder: a unit may be so much larger than maxMessageSize
PROPERTIES_SIZE_MAX = 2**15 - 1  # MessageExtEncoder: their length is an i16; an appended CRC property counts

_KIND = pa.large_binary()
_NOTHING = pa.scalar(b"", _KIND)
_LOCALHOST = bytes([127, 0, 0, 1])
_NARROW_FIELDS = ("queue_id", "flag", "sys_flag", "born_port", "store_port", "reconsume_times")
_WIDE_FIELDS = ("queue_offset", "born_timestamp", "store_timestamp", "prepared_transaction_offset")


@dataclass(frozen=True, kw_only=True)
class MessageColumns:
    """Messages to encode, column by column; a number or an address that is no array is that of all messages.

    Addresses are raw, 4 or 16 bytes. In an array of 16 (V16) the sys flag's host bit says which are IPv6, of
    the others the first 4 bytes count; in all other cases the encoder sets that bit. `properties` are encoded
    strings, `body` is as it shall be stored; null is empty.
    """

    topic: pa.StringArray | pa.DictionaryArray | str
    body: pa.BinaryArray | pa.LargeBinaryArray
    properties: pa.BinaryArray | pa.LargeBinaryArray
    queue_id: Integers = 0
    flag: Integers = 0
    queue_offset: Integers = 0
    physical_offset: Integers | None = None  # None: left to `assign`, like the CRC property
    sys_flag: Integers = 0
    born_timestamp: Integers = 0
    born_ip: Addresses = _LOCALHOST
    born_port: Integers = 0
    store_timestamp: Integers = 0
    store_ip: Addresses = _LOCALHOST
    store_port: Integers = 0
    reconsume_times: Integers = 0
    prepared_transaction_offset: Integers = 0


@dataclass(frozen=True, slots=True)
class EncodedUnits:
    """Units end to end: unit i is data[offsets[i]:offsets[i + 1]]. With `crc_property` each ends in one."""

    data: NDArray[np.uint8]
    offsets: NDArray[np.int64]
    crc_property: bool = False

    @property
    def sizes(self) -> NDArray[np.int64]:
        return np.diff(self.offsets)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __iter__(self) -> Iterator[bytes]:
        for start, stop in pairwise(self.offsets.tolist()):
            yield self.data[start:stop].tobytes()


def encode(
    messages: MessageColumns, *, crc_property: bool = False, message_size_max: int = MESSAGE_SIZE_MAX
) -> EncodedUnits:
    """The messages as units, V2 where the topic has more than 127 UTF-16 units. `crc_property` appends one to
    each (spec 2.7).

    Raises IllegalMessageError for a topic, properties, a body or a unit beyond its limit, and for a number
    its field cannot hold.
    """
    body, properties = _binary(messages.body), _binary(messages.properties)
    if crc_property:
        properties = without_crc_property(properties)
    topics = Topics(messages.topic)
    body_sizes, properties_sizes = lengths(body), lengths(properties) + CRC_PROPERTY_SIZE * crc_property
    topics.check(body_sizes, message_size_max, "a body", "maxMessageSize")
    topics.check(properties_sizes, PROPERTIES_SIZE_MAX, "properties", "the broker's limit")
    rest_sizes = body_sizes + topics.sizes + 2 + properties_sizes
    numbers: dict[str, Any] = {name: fitting(name, getattr(messages, name), 4) for name in _NARROW_FIELDS}
    numbers |= {name: fitting(name, getattr(messages, name), 8) for name in _WIDE_FIELDS}
    numbers["physical_offset"] = (
        0 if messages.physical_offset is None else fitting("physical_offset", messages.physical_offset, 8)
    )
    numbers |= {"magic": topics.magic, "body_crc": body_crcs(body), "body_length": body_sizes}
    head = heads(numbers, {"born_ip": messages.born_ip, "store_ip": messages.store_ip}, rest_sizes)
    # With the limits above only a message_size_max near 2 GiB gets here; the unit's size is an i32.
    topics.check(
        lengths(head) + rest_sizes,
        min(message_size_max + UNIT_OVERHEAD_MAX, 2**31 - 1),
        "a unit",
        "maxMessageSize + 65536",
    )
    parts = [head, body, topics.pieces, fixed_width(properties_sizes.astype(">i2")), properties]
    if crc_property:
        parts.append(pa.scalar(bytes(CRC_PROPERTY_SIZE), _KIND))
    units = _join(parts, crc_property)
    if crc_property and messages.physical_offset is not None:
        _seal(units)
    return units


def assign(
    units: EncodedUnits,
    *,
    physical_offset: NDArray[np.int64],
    queue_offset: NDArray[np.int64],
    store_timestamp: NDArray[np.int64],
) -> None:
    """Writes positions and store times into `units`, whose data must be writable, then computes their CRC
    properties, if any.
    """
    starts, data = units.offsets[:-1], units.data
    if not len(starts):
        return
    place = {
        name: head_offset(name) for name in ("sys_flag", "queue_offset", "physical_offset", "store_timestamp")
    }
    born_v6 = gather_units(data, starts + place["sys_flag"], np.dtype(">i4")) & BORN_HOST_V6 != 0
    _scatter(data, starts + place["queue_offset"], queue_offset.astype(">i8"))
    _scatter(data, starts + place["physical_offset"], physical_offset.astype(">i8"))
    _scatter(data, starts + place["store_timestamp"] + 12 * born_v6, store_timestamp.astype(">i8"))
    if units.crc_property:
        _seal(units)


def encode_wire_batch(body: pa.Array, properties: pa.Array, flag: Integers = 0) -> EncodedUnits:
    """Messages as they stand in the body of a client batch or an inner batch (MessageDecoder.encodeMessages,
    spec 2.11).

    Takes (large) binary arrays. The bytes of consecutive units are the body of their batch.
    Raises IllegalMessageError for properties beyond their limit.
    """
    body, properties = _binary(body), _binary(properties)
    body_sizes, properties_sizes = lengths(body), lengths(properties)
    longest = int(properties_sizes.max(initial=0))
    if longest > PROPERTIES_SIZE_MAX:
        raise IllegalMessageError(
            f"a message of a batch: properties of {longest} bytes, at most {PROPERTIES_SIZE_MAX} are allowed"
        )
    records = np.zeros(len(body), WIRE_MESSAGE_HEAD)
    records["total_size"] = WIRE_MESSAGE_HEAD.itemsize + body_sizes + 2 + properties_sizes
    records["flag"] = fitting("flag", flag, 4)
    records["body_length"] = body_sizes
    return _join([fixed_width(records), body, fixed_width(properties_sizes.astype(">i2")), properties], False)


def _binary(values: pa.Array) -> pa.LargeBinaryArray:
    return pc.fill_null(values.cast(_KIND), _NOTHING)


def _join(parts: list[Any], crc_property: bool) -> EncodedUnits:
    data, offsets = flat_bytes(pc.binary_join_element_wise(*parts, _NOTHING))
    if not data.flags.writeable:  # Arrow's own fresh memory is writable, but nothing promises it
        data = data.copy()
    return EncodedUnits(data, offsets, crc_property)


def _seal(units: EncodedUnits) -> None:
    """Computes each unit's CRC property over all that stands before it (CommitLog, enabledAppendPropCRC)."""
    starts = units.offsets[1:] - CRC_PROPERTY_SIZE
    _scatter(units.data, starts, crc_properties(range_crcs(units.data, units.offsets[:-1], starts)))


def _scatter(data: NDArray[np.uint8], positions: NDArray[np.int64], values: NDArray[Any]) -> None:
    """Writes each row of `values` at its position; a void view spares an index for every byte."""
    if not len(positions):
        return
    size = values.nbytes // len(positions)
    windows = np.ndarray((len(data) - size + 1,), f"V{size}", data, strides=(1,))
    windows[positions] = np.ascontiguousarray(values).view(f"V{size}").reshape(-1)
