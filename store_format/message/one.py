"""One message unit at a time, with `struct`: finds its parts, checks it, reads its fields.

    head | body | topic length | topic | properties length | properties     (CommitLog.calMsgLength, spec 2.1)

The head has 88 bytes, and 12 more for each IPv6 host. The topic length is one byte in a V1 unit and two bytes
in a V2 unit; the properties length is two bytes. `kernels/units.py` accepts the same units, many at a time,
but cannot say what is wrong. This module can, and needs no numba: single messages, small batches and every
error are read here.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol
from zlib import crc32

from store_format.errors import ChecksumError, CorruptStoreError, TruncatedRecordError
from store_format.layouts import MAGIC_V1, MAGIC_V2, MESSAGE_HEADS, MESSAGE_SIZE_MIN, as_struct
from store_format.message.parts import (
    CRC_MASK,
    HEAD_SIZE,
    HEAD_SIZE_MAX,
    LENGTH_MAX,
    TOPIC_LENGTH_MAX_V1,
    head_offset,
    head_variant,
)

_STRUCTS = tuple(as_struct(layout) for layout in MESSAGE_HEADS)
_SIZES = tuple(layout.itemsize for layout in MESSAGE_HEADS)
_PIECE_SIZE = 1 << 20  # a body may be as long as a file; its CRC is computed without holding it


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
