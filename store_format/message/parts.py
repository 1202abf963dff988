"""Where the parts of a message unit lie, for one unit or for many (CommitLog.calMsgLength, spec 2.1).

    head | body | topic length | topic | properties length | properties

The head has 88 bytes, and 12 more for each IPv6 host. The topic length is one byte in a V1 unit and two bytes
in a V2 unit; the properties length is two bytes. `read_head` and `find_parts` take one unit, `find_all_parts`
takes many. Both accept the same units. No other module knows this layout.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from store_format.arrays.ranges import gather_units
from store_format.layouts import MAGIC_V1, MAGIC_V2, MESSAGE_HEADS, as_struct

HEAD_SIZE = MESSAGE_HEADS[0].itemsize  # 88: with two IPv4 hosts
HEAD_SIZE_MAX = MESSAGE_HEADS[3].itemsize  # 112: with two IPv6 hosts
TOPIC_LENGTH_MAX_V1 = 0x7F  # MessageDecoder reads one signed byte
LENGTH_MAX = 0x7FFF  # V2 topic lengths and properties lengths are signed shorts

_SIZES = np.array([layout.itemsize for layout in MESSAGE_HEADS], np.int64)
_STRUCTS = tuple(as_struct(layout) for layout in MESSAGE_HEADS)

_Ints = NDArray[np.int64]
_Heads = dict[int, tuple[_Ints | None, NDArray[np.void]]]


class Sliceable(Protocol):
    """Bytes by slice: `bytes`, a `memoryview`, a uint8 array, or a file that reads the slice."""

    # anything with the buffer protocol, which Python 3.11 cannot name
    def __getitem__(self, part: slice, /) -> Any: ...


def head_offset(name: str, variant: int = 0) -> int:
    """Returns the offset of a head field in bytes; up to born_ip it is the same in all variants."""
    fields: Any = MESSAGE_HEADS[variant].fields
    return int(fields[name][1])


_SYS_FLAG_AT = head_offset("sys_flag")


def head_variant(sys_flag: Any) -> Any:
    """Returns the index into MESSAGE_HEADS: bit 0 for an IPv6 born host, bit 1 for an IPv6 store host."""
    return (sys_flag >> 4) & 3


def head_layout(unit: bytes) -> np.dtype[np.void]:
    """Returns the head layout that the system flag of `unit` selects; the IPv4 layout for a shorter unit."""
    flag = unit[_SYS_FLAG_AT : _SYS_FLAG_AT + 4]
    return MESSAGE_HEADS[head_variant(int.from_bytes(flag, "big")) if len(flag) == 4 else 0]


# ---- one unit ----------------------------------------------------------------------------------------------


class MessageHead(NamedTuple):
    """The head fields that checks look at, and the size of the head in bytes."""

    total_size: int
    magic: int
    body_crc: int
    queue_id: int
    queue_offset: int
    physical_offset: int
    store_timestamp: int
    body_length: int
    head_size: int


_WANTED = tuple((MESSAGE_HEADS[0].names or ()).index(name) for name in MessageHead._fields[:-1])
_SYS_FLAG = (MESSAGE_HEADS[0].names or ()).index("sys_flag")


def read_head(data: bytes) -> MessageHead | None:
    """Returns the head at the start of `data`; None when `data` is shorter than the head."""
    if len(data) < HEAD_SIZE:
        return None
    fields = _STRUCTS[0].unpack_from(data)
    variant = head_variant(fields[_SYS_FLAG])
    if variant:
        if len(data) < _STRUCTS[variant].size:
            return None
        fields = _STRUCTS[variant].unpack_from(data)
    return MessageHead._make([*(fields[i] for i in _WANTED), _STRUCTS[variant].size])


class MessageParts(NamedTuple):
    """Where the parts of one unit lie, in bytes from its first byte, and their stored lengths.

    A length is None where the unit ends before its field. Only lengths without a `WrongPart` are trustworthy.
    """

    body_start: int
    body_length: int
    topic_start: int
    topic_length: int | None = None
    properties_start: int = 0
    properties_length: int | None = None


class WrongPart(NamedTuple):
    """A length that does not fit the unit: its byte in the unit, what was expected, and what was found."""

    at: int
    expected: str
    found: str


def find_parts(
    unit: Sliceable, position: int, size: int, head: MessageHead
) -> tuple[MessageParts, WrongPart | None]:
    """Returns the parts of the unit at `position`, and the first length that does not fit its `size` bytes.

    As in MessageDecoder, a negative body length means no body. The properties must end where the unit ends.
    """
    width = 2 if head.magic == MAGIC_V2 else 1
    start, body_length = head.head_size, max(head.body_length, 0)
    topic_at = start + body_length
    topic_start = topic_at + width
    room = size - start - width - 2  # of body, topic and properties
    wrong = None
    if room < 0:
        wrong = WrongPart(0, f"at least {size - room} bytes", f"total size {size}")
    elif body_length > room:
        wrong = WrongPart(start - 4, f"a body of at most {room} bytes", f"body length {body_length}")
    if topic_start > size:
        return MessageParts(start, body_length, topic_start), wrong
    topic_length = int.from_bytes(bytes(unit[position + topic_at : position + topic_start]), "big")
    longest = min(room - body_length, TOPIC_LENGTH_MAX_V1 if width == 1 else LENGTH_MAX)
    if wrong is None and topic_length > longest:
        wrong = WrongPart(topic_at, f"a topic of at most {longest} bytes", f"topic length {topic_length}")
    at = topic_start + topic_length
    if at + 2 > size:
        return MessageParts(start, body_length, topic_start, topic_length), wrong
    length = int.from_bytes(bytes(unit[position + at : position + at + 2]), "big", signed=True)
    rest = size - at - 2
    if wrong is None and length != rest:
        wrong = WrongPart(at, f"properties of {rest} bytes", f"properties length {length}")
    return MessageParts(start, body_length, topic_start, topic_length, at + 2, length), wrong


# ---- many units --------------------------------------------------------------------------------------------


@dataclass(slots=True)
class PartArrays:
    """The parts of many units: positions in the buffer and lengths, both in bytes.

    `fits` tells which units add up; starts and lengths of the others are 0. `heads` maps a head variant to
    its rows (None: all) and records.
    """

    fits: NDArray[np.bool_]
    heads: _Heads
    sys_flag: NDArray[np.int32]
    body_start: _Ints
    body_length: _Ints
    topic_start: _Ints
    topic_length: _Ints
    properties_start: _Ints
    properties_length: _Ints

    def integers(self, name: str) -> NDArray[np.generic]:
        """Returns a head field of every unit as a native array."""
        native = MESSAGE_HEADS[0][name].newbyteorder("=")
        if len(self.heads) == 1:
            ((_, records),) = self.heads.values()
            return records[name].astype(native)
        values = np.empty(len(self.fits), native)
        for rows, records in self.heads.values():
            values[rows] = records[name]
        return values

    def select(self, index: _Ints) -> PartArrays:
        """Returns the parts of the units at ascending `index`."""
        heads: _Heads = {}
        for variant, (rows, records) in self.heads.items():
            if rows is None:
                heads[variant] = (None, records[index])
                continue
            mine = np.isin(index, rows)
            if mine.any():
                heads[variant] = (np.flatnonzero(mine), records[np.searchsorted(rows, index[mine])])
        if len(heads) == 1:
            heads = {variant: (None, records) for variant, (_, records) in heads.items()}
        return PartArrays(
            self.fits[index],
            heads or {0: (None, np.empty(0, MESSAGE_HEADS[0]))},
            self.sys_flag[index],
            self.body_start[index],
            self.body_length[index],
            self.topic_start[index],
            self.topic_length[index],
            self.properties_start[index],
            self.properties_length[index],
        )


def find_all_parts(buffer: NDArray[np.uint8], positions: _Ints, sizes: _Ints, base: int) -> PartArrays:
    """Returns the parts of every unit, as `read_head` and `find_parts` do for one.

    A unit fits when its magic code is known, its total size is the one in `sizes`, its physicalOffset is
    `base` + position, and its lengths add up. The caller has checked that every unit lies inside `buffer` and
    has at least MESSAGE_SIZE_MIN bytes.
    """
    heads = gather_units(buffer, positions, MESSAGE_HEADS[0])
    magic = heads["magic"].astype(np.uint32)
    v2 = magic == MAGIC_V2
    fits = (
        (heads["total_size"] == sizes)
        & (heads["physical_offset"] == positions + base)
        & (v2 | (magic == MAGIC_V1))
    )
    sys_flag = heads["sys_flag"].astype(np.int32)
    variant = head_variant(sys_flag)
    by_variant: _Heads = {0: (None, heads)}
    head_size: _Ints | int = HEAD_SIZE
    if variant.any():
        by_variant, head_size = _heads_by_variant(buffer, positions, variant), _SIZES[variant]
    body_length = np.maximum(_body_lengths(by_variant, len(positions)), 0)
    any_v2 = bool(v2.any())
    width: _Ints | int = v2.astype(np.int64) + 1 if any_v2 else 1
    room = sizes - head_size - width - 2  # of body, topic and properties
    fits &= body_length <= room
    body_length *= fits
    body_start = positions + head_size
    topic_at = body_start + body_length
    topic_length = _bytes_at(buffer, topic_at)
    if any_v2:
        topic_length = np.where(v2, topic_length << 8 | _bytes_at(buffer, topic_at + 1), topic_length)
    fits &= topic_length <= (np.where(v2, LENGTH_MAX, TOPIC_LENGTH_MAX_V1) if any_v2 else TOPIC_LENGTH_MAX_V1)
    properties_length = room - body_length - topic_length
    fits &= (properties_length >= 0) & (properties_length <= LENGTH_MAX)
    topic_length *= fits
    topic_start = topic_at + width
    properties_at = topic_start + topic_length
    stored = _bytes_at(buffer, properties_at) << 8 | _bytes_at(buffer, properties_at + 1)
    fits &= stored == properties_length
    ranges = [body_start, body_length, topic_start, topic_length, properties_at + 2, properties_length]
    if not fits.all():
        ranges = [numbers * fits for numbers in ranges]
    return PartArrays(fits, by_variant, sys_flag, *ranges)


def _bytes_at(buffer: NDArray[np.uint8], positions: _Ints) -> _Ints:
    """Returns the byte at each position; any byte for positions behind the buffer (of wrong units)."""
    return buffer[np.minimum(positions, len(buffer) - 1)].astype(np.int64)


def _heads_by_variant(buffer: NDArray[np.uint8], positions: _Ints, variant: NDArray[np.int32]) -> _Heads:
    heads: _Heads = {}
    for number, layout in enumerate(MESSAGE_HEADS):
        rows = np.flatnonzero(variant == number)
        if not len(rows):
            continue
        if len(buffer) < layout.itemsize:  # the lengths of such a unit never add up
            heads[number] = (rows, np.zeros(len(rows), layout))
        else:
            inside = np.minimum(positions[rows], len(buffer) - layout.itemsize)
            heads[number] = (rows, gather_units(buffer, inside, layout))
    return heads


def _body_lengths(heads: _Heads, count: int) -> _Ints:
    lengths = np.empty(count, np.int64)
    for rows, records in heads.values():
        lengths[slice(None) if rows is None else rows] = records["body_length"]
    return lengths


def stored_sizes(buffer: NDArray[np.uint8], positions: _Ints) -> _Ints:
    """Returns the total size stored at each position; 0, which `locate` refuses, outside the buffer."""
    sizes = np.zeros(len(positions), np.int64)
    inside = (positions >= 0) & (positions <= len(buffer) - 4)
    sizes[inside] = gather_units(buffer, positions[inside], np.dtype(">i4"))
    return sizes
