"""Encodes message columns as message units, byte for byte as a broker (MessageExtEncoder.encode, spec 2.1).

`assign` writes offsets and store times into encoded units, because a commit knows them only later.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from struct import Struct
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from store_format import kernels
from store_format.arrays.ranges import flat_bytes, without_nulls
from store_format.layouts import CRC_PROPERTY_SIZE
from store_format.message.crc import range_crcs
from store_format.message.encode_parts import Addresses, EncodedTopics, Integers, UnitParts
from store_format.message.parts import head_offset
from store_format.message.properties import crc_properties
from store_format.message.property_encoder import without_crc_property
from store_format.message.sysflag import BORN_HOST_V6

MESSAGE_SIZE_MAX = 4 << 20  # MessageStoreConfig.maxMessageSize
UNIT_OVERHEAD_MAX = 1 << 16  # MessageExtEncoder: bytes by which a unit may exceed maxMessageSize
PROPERTIES_SIZE_MAX = 2**15 - 1  # MessageExtEncoder: the length is an i16; an appended CRC property counts

_INT, _LONG = Struct(">i"), Struct(">q")
_LOCALHOST = bytes([127, 0, 0, 1])


@dataclass(frozen=True, kw_only=True)
class MessageColumns:
    """Messages to write, as columns. Each column is an array with one value for each message, or a single
    number or address that applies to all messages.

    - `topic`: an array, or one str for all messages.
    - `body`: bytes, which are stored unchanged. `MessageStore.append` refuses a null body.
    - `properties`: encoded property strings, from `encode_property_columns`.
    - `born_timestamp`, `store_timestamp`: ms since 1970.
    - `born_ip`, `store_ip`: raw addresses of 4 or 16 bytes. In an array of 16-byte addresses (V16), the host
      bit of `sys_flag` marks the IPv6 addresses, and only the first 4 bytes of the others are used. In all
      other cases the encoder sets the host bit.
    - `queue_offset`, `physical_offset`, `store_timestamp`: `MessageStore.append` assigns them.

    Example::

        MessageColumns(
            topic="Orders",
            body=pa.array([b"one", b"two"]),
            properties=encode_property_columns(2, {"KEYS": pa.array(["order-1", "order-2"])}),
            queue_id=1,
        )
    """

    topic: pa.StringArray | pa.DictionaryArray | str
    body: pa.BinaryArray | pa.LargeBinaryArray
    properties: pa.BinaryArray | pa.LargeBinaryArray
    queue_id: Integers = 0
    flag: Integers = 0
    queue_offset: Integers = 0
    physical_offset: Integers | None = None  # None: `assign` sets it, and the CRC property
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
    """Units end to end: unit i is data[offsets[i]:offsets[i + 1]]. `crc_property`: each ends in its CRC."""

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
    """Returns the messages as units; a topic of more than 127 UTF-16 units makes a V2 unit.

    With `crc_property` each unit ends in its CRC property (spec 2.7). Raises IllegalMessageError for a topic,
    properties, a body or a unit above its limit, and for a number that does not fit its field.
    """
    properties = without_nulls(messages.properties)
    if crc_property:
        properties = without_crc_property(properties.cast(pa.large_binary()))
    topics = EncodedTopics(messages.topic)
    parts = UnitParts(
        topics,
        *flat_bytes(without_nulls(messages.body)),
        *flat_bytes(properties),
        CRC_PROPERTY_SIZE * crc_property,
    )
    topics.check(parts.body_sizes, message_size_max, "a body", "maxMessageSize")
    topics.check(parts.properties_sizes, PROPERTIES_SIZE_MAX, "properties", "the broker's limit")
    parts.take_numbers(vars(messages))
    # After the checks above this one can fail only with a message_size_max near 2 GiB; the size is an i32.
    topics.check(
        parts.sizes,
        min(message_size_max + UNIT_OVERHEAD_MAX, 2**31 - 1),
        "a unit",
        "maxMessageSize + 65536",
    )
    units = EncodedUnits(*parts.units(), crc_property)
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
    """Writes offsets and store times into `units`, whose data is writable, then computes CRC properties."""
    columns = [np.ascontiguousarray(each) for each in (physical_offset, queue_offset, store_timestamp)]
    if kernels.worth(len(units)):
        done = kernels.patch.assign(units.data, units.offsets, *columns)
        assert done == len(units), f"unit {done} has no room for its head"
    else:
        _assign_one_by_one(units, *(column.tolist() for column in columns))
    if units.crc_property:
        _seal(units)


def _assign_one_by_one(
    units: EncodedUnits, physical: list[int], queue_offsets: list[int], store_timestamps: list[int]
) -> None:
    """`kernels.patch.assign` without the kernel."""
    flag, first, second = (head_offset(name) for name in ("sys_flag", "queue_offset", "physical_offset"))
    for start, *values in zip(
        units.offsets[:-1].tolist(), queue_offsets, physical, store_timestamps, strict=True
    ):
        (sys_flag,) = _INT.unpack_from(units.data.data, start + flag)
        third = head_offset("store_timestamp", variant=int(sys_flag & BORN_HOST_V6 != 0))
        for place, value in zip((first, second, third), values, strict=True):
            _LONG.pack_into(units.data.data, start + place, value)


def _seal(units: EncodedUnits) -> None:
    """Writes each unit's CRC property, the CRC of all bytes before it (CommitLog, enabledAppendPropCRC)."""
    starts = units.offsets[1:] - CRC_PROPERTY_SIZE
    _scatter(units.data, starts, crc_properties(range_crcs(units.data, units.offsets[:-1], starts)))


def _scatter(data: NDArray[np.uint8], positions: NDArray[np.int64], values: NDArray[Any]) -> None:
    """Writes each row of `values` at its position, through a void view: one index a row, not one a byte."""
    if not len(positions):
        return
    size = values.nbytes // len(positions)
    windows = np.ndarray((len(data) - size + 1,), f"V{size}", data, strides=(1,))
    windows[positions] = np.ascontiguousarray(values).view(f"V{size}").reshape(-1)
