"""One message unit at a time, with `struct`: finds its parts, checks it, reads its fields.

    head | body | topic length | topic | properties length | properties     (CommitLog.calMsgLength, spec 2.1)

The head has 88 bytes, and 12 more for each IPv6 host. The topic length is one byte in a V1 unit and two bytes
in a V2 unit; the properties length is two bytes. `kernels/units.py` accepts the same units, many at a time,
but cannot say what is wrong. This module can, and needs no numba: single messages, small batches and every
error are read here.

`check_unit` checks one position of the commitlog as a broker does, and tells the three tails of a file apart:
blank, unwritten and torn. `kernels/walk.py` applies the same rules to many positions.

For hex dumps, every field has its position and value, down to single properties. These fields cover all
bytes, whatever they are, and nothing is raised.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from functools import lru_cache
from typing import Any, NamedTuple, Protocol
from zlib import crc32

import numpy as np

from store_format.errors import ChecksumError, CorruptStoreError, TruncatedRecordError
from store_format.java.text import decode_utf8
from store_format.layouts import (
    BLANK_HEAD,
    CRC_PROPERTY_NAME,
    CRC_PROPERTY_SIZE,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    MESSAGE_HEADS,
    MESSAGE_SIZE_MIN,
    NAME_VALUE_SEPARATOR,
    PROPERTY_SEPARATOR,
    as_struct,
)
from store_format.message import sysflag
from store_format.message.hosts import format_host
from store_format.message.properties import parse_crc_property

HEAD_SIZE = MESSAGE_HEADS[0].itemsize  # 88: with two IPv4 hosts
HEAD_SIZE_MAX = MESSAGE_HEADS[3].itemsize  # 112: with two IPv6 hosts
TOPIC_LENGTH_MAX_V1 = 0x7F  # MessageDecoder reads one signed byte
LENGTH_MAX = 0x7FFF  # V2 topic lengths and properties lengths are signed shorts
CRC_MASK = 0x7FFFFFFF  # RocketMQ stores a CRC without its top bit (UtilAll.crc32)

_STRUCTS = tuple(as_struct(layout) for layout in MESSAGE_HEADS)
_SIZES = tuple(layout.itemsize for layout in MESSAGE_HEADS)
_PIECE_SIZE = 1 << 20  # a body may be as long as a file; its CRC is computed without holding it

_START = as_struct(BLANK_HEAD)  # size and magic, of every kind of unit


class Sliceable(Protocol):
    """Bytes by slice: `bytes`, a `memoryview`, a uint8 array, or a file that reads the slice."""

    # anything with the buffer protocol, which Python 3.11 cannot name
    def __getitem__(self, part: slice, /) -> Any: ...


class Buffer(Sliceable, Protocol):
    """Bytes by slice, of a known length."""

    def __len__(self) -> int: ...


def range_crc(buffer: Sliceable, start: int, stop: int) -> int:
    """Returns the CRC of buffer[start:stop] as RocketMQ stores it: without the top bit (UtilAll.crc32)."""
    if stop - start <= _PIECE_SIZE:
        return crc32(buffer[start:stop]) & CRC_MASK
    value = 0
    for at in range(start, stop, _PIECE_SIZE):
        value = crc32(buffer[at : min(at + _PIECE_SIZE, stop)], value)
    return value & CRC_MASK


# ---- where the parts are -----------------------------------------------------------------------------------


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


class MessageHead(NamedTuple):
    """The fields of a head, as in `layouts.message_head`; addresses are raw bytes, times are in ms."""

    total_size: int
    magic: int
    body_crc: int
    queue_id: int
    flag: int
    queue_offset: int
    physical_offset: int
    sys_flag: int
    born_timestamp: int
    born_ip: bytes
    born_port: int
    store_timestamp: int
    store_ip: bytes
    store_port: int
    reconsume_times: int
    prepared_transaction_offset: int
    body_length: int

    @property
    def head_size(self) -> int:
        """The size of the head in bytes."""
        return _SIZES[self.sys_flag >> 4 & 3]


def read_head(data: bytes) -> MessageHead | None:
    """Returns the head at the start of `data`; None when `data` is shorter than the head."""
    if len(data) < HEAD_SIZE:
        return None
    head = MessageHead._make(_STRUCTS[0].unpack_from(data))
    layout = _STRUCTS[head_variant(head.sys_flag)]
    if layout is _STRUCTS[0]:
        return head
    return MessageHead._make(layout.unpack_from(data)) if len(data) >= layout.size else None


class MessageParts(NamedTuple):
    """Where the parts of one unit lie, in bytes from its first byte, and their stored lengths.

    A length is None where the unit ends before its field. Only lengths without a `Wrong` are trustworthy.
    """

    body_start: int
    body_length: int
    topic_start: int
    topic_length: int | None = None
    properties_start: int = 0
    properties_length: int | None = None


class Wrong(NamedTuple):
    """The first check that a unit fails: its byte in the unit, what was expected, what was found."""

    at: int
    expected: str
    found: str
    kind: type[CorruptStoreError] = CorruptStoreError

    def error(self, path: str, position: int) -> CorruptStoreError:
        """Returns the error for a unit at `position` of the file `path`."""
        return self.kind(path, position + self.at, self.expected, self.found)


def find_parts(
    unit: Sliceable, position: int, size: int, head: MessageHead
) -> tuple[MessageParts, Wrong | None]:
    """Returns the parts of the unit at `position`, and the first length that does not fit its `size` bytes.

    As in MessageDecoder, a negative body length means no body. The properties must end where the unit ends.
    """
    width = 2 if head.magic == MAGIC_V2 else 1
    start, body_length = head.head_size, head.body_length if head.body_length > 0 else 0
    topic_at = start + body_length
    topic_start = topic_at + width
    room = size - start - width - 2  # of body, topic and properties
    wrong = None
    if room < 0:
        wrong = Wrong(0, f"at least {size - room} bytes", f"total size {size}")
    elif body_length > room:
        wrong = Wrong(start - 4, f"a body of at most {room} bytes", f"body length {body_length}")
    if topic_start > size:
        return MessageParts(start, body_length, topic_start), wrong
    topic_length = int.from_bytes(unit[position + topic_at : position + topic_start], "big")
    longest = TOPIC_LENGTH_MAX_V1 if width == 1 else LENGTH_MAX
    if wrong is None and (topic_length > longest or topic_length > room - body_length):
        longest = min(room - body_length, longest)
        wrong = Wrong(topic_at, f"a topic of at most {longest} bytes", f"topic length {topic_length}")
    at = topic_start + topic_length
    if at + 2 > size:
        return MessageParts(start, body_length, topic_start, topic_length), wrong
    length = int.from_bytes(unit[position + at : position + at + 2], "big", signed=True)
    rest = size - at - 2
    if wrong is None and length != rest:
        wrong = Wrong(at, f"properties of {rest} bytes", f"properties length {length}")
    return MessageParts(start, body_length, topic_start, topic_length, at + 2, length), wrong


# ---- checks ------------------------------------------------------------------------------------------------


class QueuePlace(NamedTuple):
    """The queue and the queue offset that a unit should have, from its consume queue entry."""

    topic: str
    queue_id: int
    queue_offset: int


class UnitPlace(NamedTuple):
    """Where a unit is, and in which queue: what its consume queue entry says of it.

    `path` and `file_start` are the commitlog file and the physical offset of its first byte.
    """

    path: str
    file_start: int
    physical_offset: int
    size: int
    topic: str
    queue_id: int
    queue_offset: int


class Located(NamedTuple):
    """A unit that passed every check."""

    head: MessageHead
    parts: MessageParts


def locate_one(
    buffer: Buffer,
    position: int,
    size: int,
    physical_offset: int,
    place: QueuePlace | UnitPlace | None = None,
    *,
    room: int | None = None,
    verify_crc: bool = True,
) -> Located | Wrong:
    """Returns head and parts of the unit at `position` of `buffer`, or the first check that it fails.

    `room` is the number of bytes from the unit to the end of its file (default: to the end of the buffer).
    Checked, in this order: the unit lies in the file; magic, total size and physicalOffset; with `place`
    its queue id and queue offset; the lengths of body, topic and properties add up; with `place` its topic;
    with `verify_crc` the CRC of the stored body. An empty body has no CRC, as in recovery by a broker.
    """
    if size < MESSAGE_SIZE_MIN:
        return Wrong(0, f"a message of at least {MESSAGE_SIZE_MIN} bytes", f"an entry of size {size}")
    room = len(buffer) - position if room is None else room
    if position < 0 or size > room:
        found = f"{max(room, 0)} bytes up to the file's end"
        return Wrong(0, f"a message of {size} bytes", found, TruncatedRecordError)
    data = bytes(buffer[position : position + (size if size < HEAD_SIZE_MAX else HEAD_SIZE_MAX)])
    # The fields that are checked first lie at the same place in every head.
    first = MessageHead._make(_STRUCTS[0].unpack_from(data))
    wrong = _wrong_number(first, size, physical_offset, place)
    if wrong is not None:
        return wrong
    layout = _STRUCTS[head_variant(first.sys_flag)]
    if len(data) < layout.size:
        expected = f"a head of {layout.size} bytes"
        return Wrong(0, expected, f"a message of {size} bytes", TruncatedRecordError)
    head = first if layout is _STRUCTS[0] else MessageHead._make(layout.unpack_from(data))
    parts, wrong = find_parts(buffer, position, size, head)
    if wrong is not None:
        return wrong
    assert parts.topic_length is not None
    if place is not None:
        start = position + parts.topic_start
        topic = bytes(buffer[start : start + parts.topic_length])
        if topic != place.topic.encode():
            found = repr(topic.decode(errors="backslashreplace"))
            return Wrong(parts.topic_start, f"topic {place.topic!r}", found)
    wrong = wrong_crc(buffer, position, head, parts) if verify_crc else None
    return Located(head, parts) if wrong is None else wrong


def wrong_crc(unit: Sliceable, position: int, head: MessageHead, parts: MessageParts) -> Wrong | None:
    """Returns what is wrong with the CRC of the body. An empty body has none, as in recovery by a broker."""
    if not parts.body_length:
        return None
    start = position + parts.body_start
    computed = range_crc(unit, start, start + parts.body_length)
    if computed == head.body_crc:
        return None
    expected = f"body CRC 0x{computed:08X} of the {parts.body_length} stored bytes"
    return Wrong(head_offset("body_crc"), expected, f"0x{head.body_crc & 0xFFFFFFFF:08X}", ChecksumError)


def _wrong_number(
    head: MessageHead, size: int, physical_offset: int, place: QueuePlace | UnitPlace | None
) -> Wrong | None:
    """Returns the first wrong number among the fields that lie at the same place in every head."""
    if head.magic not in (MAGIC_V1, MAGIC_V2):
        expected = "magic code 0xDAA320A7 (V1) or 0xDAA320AB (V2)"
        return Wrong(head_offset("magic"), expected, f"0x{head.magic:08X}")
    if head.total_size != size:
        return Wrong(head_offset("total_size"), f"total size {size}", str(head.total_size))
    if head.physical_offset != physical_offset:
        at = head_offset("physical_offset")
        return Wrong(at, f"physicalOffset {physical_offset}", str(head.physical_offset))
    if place is None:
        return None
    if head.queue_id != place.queue_id:
        expected = f"queueId {place.queue_id} of {place.topic}"
        return Wrong(head_offset("queue_id"), expected, str(head.queue_id))
    if head.queue_offset != place.queue_offset:
        at = head_offset("queue_offset")
        return Wrong(at, f"queueOffset {place.queue_offset}", str(head.queue_offset))
    return None


# ---- fields ------------------------------------------------------------------------------------------------


class SingleUnit(NamedTuple):
    """One message: its head, the body as stored, and the stored properties string."""

    head: MessageHead
    body: bytes
    properties: bytes


def decode_unit(unit: bytes, place: UnitPlace) -> SingleUnit:
    """Decodes the bytes that were read at `place`, in a few microseconds.

    Checks what `locate` checks, the CRC of the body included. Raises CorruptStoreError, or a class of it, for
    the first check that fails.
    """
    found = locate_one(unit, 0, place.size, place.physical_offset, place)
    if isinstance(found, Wrong):
        raise found.error(place.path, place.physical_offset - place.file_start)
    head, parts = found
    body = unit[parts.body_start : parts.body_start + parts.body_length]
    return SingleUnit(head, body, unit[parts.properties_start : place.size])


# ---- the broker's check of a position ----------------------------------------------------------------------


class UnitKind(StrEnum):
    """What is at a position of the commitlog."""

    OK = "ok"  # a message unit
    BLANK = "blank"  # the rest of the file has no message; the log continues in the next file
    UNWRITTEN = "unwritten"  # zeros: nothing is written here yet
    TORN = "torn"  # anything else


@dataclass(frozen=True, slots=True)
class UnitCheck:
    """The result of `check_unit`. `size` is the unit's, for a blank the rest of the file's, else 0.

    `at` is the byte, counted from the unit's first, where a torn unit differs from `expected`.
    """

    kind: UnitKind
    size: int = 0
    at: int = 0
    expected: str = ""
    found: str = ""


_UNWRITTEN = UnitCheck(UnitKind.UNWRITTEN, 0, 0, "a message unit", "zeros: nothing written here yet")


def _torn(at: int, expected: str, found: str) -> UnitCheck:
    return UnitCheck(UnitKind.TORN, 0, at, expected, found)


def check_unit(
    buffer: Sliceable,
    position: int,
    remaining: int,
    *,
    physical_offset: int | None,
    verify_crc: bool = True,
    verify_property_crc: bool = False,
) -> UnitCheck:
    """Checks the bytes at `position` of `buffer`; the file has `remaining` more bytes from there.

    Stricter than the broker in one rule: the stored physicalOffset must equal `physical_offset` (None: any
    value), so that remnants and copies of other positions fail. Less strict in one rule: properties are not
    parsed, so that a DELAY or INNER_NUM that is no number, which no broker writes, does not end a recovery.
    As in the broker a negative body length means no body, and an empty body has no CRC. No CRC covers head
    and properties: a unit that has lost bytes of its properties only passes, as in the broker.
    `verify_property_crc` is forceVerifyPropCRC: the CRC property at the end of the unit must be right, and
    the body CRC is not checked.
    """
    head = bytes(buffer[position : position + min(remaining, HEAD_SIZE_MAX)])
    if len(head) < _START.size:
        if len(head) == remaining and not any(head):
            return _UNWRITTEN
        return _torn(0, f"at least {_START.size} bytes", f"{len(head)} bytes")
    size, magic = _START.unpack_from(head)
    if size > remaining:
        return _torn(0, f"a unit of at most {remaining} bytes", f"total size {size}")
    if magic == MAGIC_BLANK:
        return UnitCheck(UnitKind.BLANK, remaining)
    if magic not in (MAGIC_V1, MAGIC_V2):
        if size == 0 and magic == 0:
            return _UNWRITTEN
        expected = f"magic code 0x{MAGIC_V1:08X} (V1), 0x{MAGIC_V2:08X} (V2) or 0x{MAGIC_BLANK:08X} (blank)"
        return _torn(4, expected, f"0x{magic:08X}")
    if size < MESSAGE_SIZE_MIN:
        return _torn(0, f"a message of at least {MESSAGE_SIZE_MIN} bytes", f"total size {size}")
    return _check_message(buffer, position, head, physical_offset, verify_crc, verify_property_crc)


def _check_message(
    buffer: Sliceable,
    position: int,
    data: bytes,
    physical_offset: int | None,
    verify_crc: bool,
    verify_property_crc: bool,
) -> UnitCheck:
    head = read_head(data)
    if head is None:
        return _torn(0, f"a head of {head_layout(data).itemsize} bytes", f"{len(data)} bytes")
    if physical_offset is not None and head.physical_offset != physical_offset:
        at = head_offset("physical_offset")
        return _torn(at, f"physicalOffset {physical_offset}", str(head.physical_offset))
    size = head.total_size
    parts, wrong = find_parts(buffer, position, size, head)
    if wrong is None and verify_property_crc:
        return _check_property_crc(buffer, position, size)
    if wrong is None and verify_crc:
        # Last, although the broker checks the CRC first: a false length must not cost a pass over the file.
        wrong = wrong_crc(buffer, position, head, parts)
    return _torn(wrong.at, wrong.expected, wrong.found) if wrong is not None else UnitCheck(UnitKind.OK, size)


def _check_property_crc(buffer: Sliceable, position: int, size: int) -> UnitCheck:
    """Checks the CRC of the whole unit, which `enabledAppendPropCRC` appends to the properties (spec 2.7)."""
    at = size - CRC_PROPERTY_SIZE
    tail = bytes(buffer[position + at : position + size])
    stored = parse_crc_property(tail)
    if stored is None:
        return _torn(at, f"the property {CRC_PROPERTY_NAME.decode()} at the end of the unit", repr(tail))
    computed = range_crc(buffer, position, position + at)
    if computed != stored:
        return _torn(at, f"property CRC {computed}", str(stored))
    return UnitCheck(UnitKind.OK, size)


# ---- every field with its position -------------------------------------------------------------------------


_MAGICS = {
    MAGIC_V1: "a message, its topic length in one byte",
    MAGIC_V2: "a message, its topic length in two bytes",
    MAGIC_BLANK: "blank",
}
_LENGTHS = {"topic": "bytes of the topic", "properties": "bytes of the properties"}


@dataclass(frozen=True, slots=True)
class UnitField:
    """Bytes [start, start + size) of a unit, their value in words, and the meaning of the field (`about`)."""

    start: int
    size: int
    name: str
    value: str
    about: str = ""


def unit_fields(unit: bytes) -> list[UnitField]:
    """Returns the fields in their order. Bytes that belong to no field are a field `rest`."""
    layout = head_layout(unit)
    fields = list(_head_fields(unit, layout))
    at = sum(field.size for field in fields)
    if at == layout.itemsize:
        fields += _tail_fields(unit)
        at = sum(field.size for field in fields)
    if at < len(unit):
        fields.append(UnitField(at, len(unit) - at, "rest", "bytes that belong to no field"))
    return fields


@lru_cache(maxsize=1)
def _meanings() -> dict[str, str]:
    return dict(MESSAGE_HEADS[0].metadata or {})


def _head_fields(unit: bytes, layout: np.dtype[np.void]) -> Iterator[UnitField]:
    ip = b""
    for name, (kind, at, *_) in (layout.fields or {}).items():
        part = unit[at : at + kind.itemsize]
        if len(part) < kind.itemsize:
            return
        number = int.from_bytes(part, "big", signed=kind.kind == "i")
        value = str(number)
        if name.endswith("_ip"):
            ip = part
            value = format_host(part, 0).rpartition(":")[0]
        elif name.endswith("_port"):
            value = f"{number}: {format_host(ip, number)}"
        elif name == "magic":
            value = f"0x{number:08X}: {_MAGICS.get(number, 'no kind of record')}"
        elif name == "body_crc":
            value = f"0x{number & 0xFFFFFFFF:08X}"
        elif name == "sys_flag":
            value = f"0x{number & 0xFFFFFFFF:X}: {sysflag.describe(number)}"
        elif name.endswith("_timestamp"):
            value = f"{number}{_time_text(number)}"
        yield UnitField(at, kind.itemsize, name, value, _meanings().get(name, "").partition(";")[0])


def _time_text(ms: int) -> str:
    try:
        return f": {(datetime(1970, 1, 1) + timedelta(milliseconds=ms)).isoformat(timespec='milliseconds')}Z"
    except OverflowError:
        return ""


def _tail_fields(unit: bytes) -> Iterator[UnitField]:
    """Yields body, topic and properties with their lengths, as far as the lengths fit."""
    head = read_head(unit)
    assert head is not None
    parts, _ = find_parts(unit, 0, len(unit), head)
    if parts.body_start + parts.body_length > len(unit):
        return
    if parts.body_length:
        size = parts.body_length
        yield UnitField(parts.body_start, size, "body", f"{size} bytes", "as stored, perhaps compressed")
    for name, start, length in (
        ("topic", parts.topic_start, parts.topic_length),
        ("properties", parts.properties_start, parts.properties_length),
    ):
        if length is None:
            return
        at = parts.body_start + parts.body_length if name == "topic" else start - 2
        yield UnitField(at, start - at, f"{name}_length", str(length), _LENGTHS[name])
        if not 0 <= length <= len(unit) - start:
            return
        if name == "topic" and length:
            yield UnitField(start, length, "topic", decode_utf8(unit[start : start + length]))
        elif length:
            yield from _property_fields(unit[start : start + length], start)


def _property_fields(raw: bytes, at: int) -> Iterator[UnitField]:
    """Yields a field for each segment with its closing 0x02; `about` marks segments that Java ignores."""
    start = 0
    while start < len(raw):
        stop = raw.find(PROPERTY_SEPARATOR, start)
        stop = len(raw) if stop < 0 else stop
        name, _, value = raw[start:stop].partition(bytes([NAME_VALUE_SEPARATOR]))
        about = "" if name and value else "no name or no value: not read as a property"
        size = min(stop + 1, len(raw)) - start
        yield UnitField(at + start, size, "property", f"{decode_utf8(name)} = {decode_utf8(value)}", about)
        start += size
