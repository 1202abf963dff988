"""Whether the bytes at a place of the commitlog are a message unit: the broker's own check
(CommitLog.checkMessageAndReturnSize, spec 7.2).

`check_unit` looks at one place and says what stands there, the three tails (blank, unwritten, torn) as three
cases; `count_valid` applies the same rules to many places at once and says how many leading ones are units.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from struct import Struct
from typing import Any, Protocol
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from store_format.arrays.ranges import gather_units
from store_format.layouts import (
    BLANK_HEAD,
    CRC_PROPERTY_NAME,
    CRC_PROPERTY_SIZE,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    MESSAGE_HEADS,
    MESSAGE_SIZE_MIN,
)

__all__ = ["Sliceable", "UnitCheck", "UnitKind", "check_unit", "count_valid"]

_CRC_MASK = 0x7FFFFFFF  # UtilAll.crc32 drops the top bit
_CRC_PIECE_SIZE = 1 << 20  # a body may be as long as a file; it is summed without holding it
_TOPIC_LENGTH_MAX_V1 = 0x7F  # MessageDecoder reads one signed byte
_LENGTH_MAX = 0x7FFF  # lengths of V2 topics and of properties are signed shorts
_HEAD_SIZES = np.array([layout.itemsize for layout in MESSAGE_HEADS], np.int64)
_HEAD_SIZE = MESSAGE_HEADS[0].itemsize
_HEAD_SIZE_MAX = MESSAGE_HEADS[3].itemsize
_CRC_PROPERTY = re.compile(re.escape(CRC_PROPERTY_NAME) + rb"\x01([0-9]{10})\x02", re.ASCII)

_CODES = {"i4": "i", "u4": "I", "i8": "q"}


def _struct(layout: np.dtype[np.void]) -> Struct:
    """The scalar twin of a layout; numpy needs a microsecond for each field of a single record."""
    fields = (layout[name] for name in layout.names or ())
    return Struct(
        ">"
        + "".join(f"{field.itemsize}s" if field.kind == "V" else _CODES[field.str[1:]] for field in fields)
    )


_START = _struct(BLANK_HEAD)  # size and magic, of every kind of unit
_HEADS = tuple(_struct(layout) for layout in MESSAGE_HEADS)
_BODY_CRC, _PHYSICAL_OFFSET, _SYS_FLAG, _BODY_LENGTH = (
    (MESSAGE_HEADS[0].names or ()).index(name)
    for name in ("body_crc", "physical_offset", "sys_flag", "body_length")
)


class Sliceable(Protocol):
    """Bytes by slice: `bytes`, a `memoryview`, a uint8 array, or a file that reads what is asked."""

    # anything with the buffer protocol, which 3.11 cannot name
    def __getitem__(self, part: slice, /) -> Any: ...


class UnitKind(StrEnum):
    """What stands at a place of the commitlog."""

    OK = "ok"  # a message unit
    BLANK = "blank"  # the rest of the file holds nothing; the log goes on in the next file
    UNWRITTEN = "unwritten"  # zeros: nothing was written here yet
    TORN = "torn"  # anything else


@dataclass(frozen=True, slots=True)
class UnitCheck:
    """What `check_unit` found. `size` is the unit's, or what is left of the file for a blank, else 0.

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
    """What stands at `position` of `buffer`, of which `remaining` bytes are left in the file.

    Stricter than the broker in one thing: the stored physicalOffset must be `physical_offset` (None: any will
    do), or remnants and copies of other places would count. Less strict in one: properties are not parsed, so
    a unit whose DELAY or INNER_NUM is no number, which no broker writes, does not end a recovery here. As in
    the broker a negative body length is no body, and an empty body has no CRC. No sum covers head and
    properties, so a unit of which only bytes of the properties are lost passes, as it does in the broker.
    `verify_property_crc` is forceVerifyPropCRC: the sum at the unit's end must be there and right, and the
    body's is not looked at.
    """
    head = bytes(buffer[position : position + min(remaining, _HEAD_SIZE_MAX)])
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
    head: bytes,
    physical_offset: int | None,
    verify_crc: bool,
    verify_property_crc: bool,
) -> UnitCheck:
    if len(head) < _HEAD_SIZE:
        return _torn(0, f"a head of {_HEAD_SIZE} bytes", f"{len(head)} bytes")
    fields = _HEADS[0].unpack_from(head)
    size = fields[0]
    if physical_offset is not None and fields[_PHYSICAL_OFFSET] != physical_offset:
        return _torn(28, f"physicalOffset {physical_offset}", str(fields[_PHYSICAL_OFFSET]))
    layout = _HEADS[(fields[_SYS_FLAG] >> 4) & 3]
    if len(head) < layout.size or size < layout.size:
        return _torn(0, f"a head of {layout.size} bytes", f"total size {size}")
    fields = layout.unpack_from(head)
    body_length = max(fields[_BODY_LENGTH], 0)
    wrong = _check_lengths(
        buffer, position, size, layout.size, body_length, 2 if fields[1] == MAGIC_V2 else 1
    )
    if wrong is not None:
        return wrong
    if verify_property_crc:
        return _check_property_crc(buffer, position, size)
    if verify_crc and body_length:
        # Last, though the broker sums before it adds up: a length that nothing confirms must not cost a pass
        # over the file.
        computed = _crc(buffer, position + layout.size, position + layout.size + body_length)
        if computed != fields[_BODY_CRC]:
            return _torn(
                8,
                f"body CRC 0x{computed:08X} of the {body_length} stored bytes",
                f"0x{fields[_BODY_CRC] & 0xFFFFFFFF:08X}",
            )
    return UnitCheck(UnitKind.OK, size)


def _check_lengths(
    buffer: Sliceable, position: int, size: int, head_size: int, body_length: int, topic_width: int
) -> UnitCheck | None:
    """None when body, topic and properties add up to the unit's size (CommitLog.calMsgLength)."""
    room = size - head_size - topic_width - 2
    if not body_length <= room:
        return _torn(head_size - 4, f"a body of at most {room} bytes", f"body length {body_length}")
    at = head_size + body_length
    topic_length = int.from_bytes(bytes(buffer[position + at : position + at + topic_width]), "big")
    topic_max = min(room - body_length, _TOPIC_LENGTH_MAX_V1 if topic_width == 1 else _LENGTH_MAX)
    if topic_length > topic_max:
        return _torn(at, f"a topic of at most {topic_max} bytes", f"topic length {topic_length}")
    at += topic_width + topic_length
    rest = room - body_length - topic_length
    properties_length = int.from_bytes(bytes(buffer[position + at : position + at + 2]), "big", signed=True)
    if properties_length != rest:
        return _torn(at, f"properties of {rest} bytes", f"properties length {properties_length}")
    return None


def _crc(buffer: Sliceable, start: int, stop: int) -> int:
    value = 0
    for at in range(start, stop, _CRC_PIECE_SIZE):
        value = crc32(buffer[at : min(at + _CRC_PIECE_SIZE, stop)], value)
    return value & _CRC_MASK


def _check_property_crc(buffer: Sliceable, position: int, size: int) -> UnitCheck:
    """The sum over the whole unit that `enabledAppendPropCRC` puts last into the properties (spec 2.7)."""
    at = size - CRC_PROPERTY_SIZE
    tail = bytes(buffer[position + at : position + size])
    match = _CRC_PROPERTY.fullmatch(tail)
    if match is None:
        return _torn(at, f"the property {CRC_PROPERTY_NAME.decode()} at the unit's end", repr(tail))
    stored = int(match[1][::-1])  # least significant digit first
    computed = _crc(buffer, position, position + at)
    if computed != stored:
        return _torn(at, f"property CRC {computed}", str(stored))
    return UnitCheck(UnitKind.OK, size)


# ---- many at once ------------------------------------------------------------------------------------------


def count_valid(
    buffer: NDArray[np.uint8],
    positions: NDArray[np.int64],
    sizes: NDArray[np.int64],
    base: int,
    *,
    verify_crc: bool,
) -> int:
    """How many leading units of `positions` pass `check_unit`, with `base` the physical offset of buffer[0].

    The caller has followed the lengths: every unit is at least MESSAGE_SIZE_MIN bytes long and lies inside
    the buffer, and `sizes` are the stored ones. Each step looks only at the units that passed those before
    it, so no gather leaves a unit.
    """
    heads = gather_units(buffer, positions, MESSAGE_HEADS[0])
    magic = heads["magic"]
    v2 = magic == MAGIC_V2
    count = _prefix((v2 | (magic == MAGIC_V1)) & (heads["physical_offset"] == positions + base))
    variants = (heads["sys_flag"][:count].astype(np.int32) >> 4) & 3
    body_length = heads["body_length"][:count].astype(np.int64)
    head_size: NDArray[np.int64] | int = _HEAD_SIZE
    if variants.any():
        head_sizes = _HEAD_SIZES[variants]
        count = _prefix(sizes[:count] >= head_sizes + 3)  # the two lengths behind the body
        head_size = head_sizes[:count]
        body_length = _body_lengths(buffer, positions[:count], variants[:count])
    np.maximum(body_length, 0, out=body_length)
    topic_width: NDArray[np.int64] | int = v2[:count].astype(np.int64) + 1 if v2[:count].any() else 1
    fits, body_start = _lengths_fit(
        buffer, positions[:count], sizes[:count], head_size, body_length, topic_width
    )
    count = _prefix(fits)
    if verify_crc:
        view = buffer.data
        starts = body_start[:count].tolist()
        stops = (body_start[:count] + body_length[:count]).tolist()
        sums = (
            np.array([crc32(view[start:stop]) for start, stop in zip(starts, stops, strict=True)], np.int64)
            & _CRC_MASK
        )
        count = _prefix((sums == heads["body_crc"][:count]) | (body_length[:count] == 0))
    return count


def _prefix(passed: NDArray[np.bool_]) -> int:
    """The number of leading True."""
    return len(passed) if passed.all() else int(passed.argmin())


def _body_lengths(
    buffer: NDArray[np.uint8], positions: NDArray[np.int64], variants: NDArray[np.int32]
) -> NDArray[np.int64]:
    lengths = np.empty(len(positions), np.int64)
    for variant, layout in enumerate(MESSAGE_HEADS):
        rows = np.flatnonzero(variants == variant)
        lengths[rows] = gather_units(buffer, positions[rows], layout)["body_length"]
    return lengths


def _lengths_fit(
    buffer: NDArray[np.uint8],
    positions: NDArray[np.int64],
    sizes: NDArray[np.int64],
    head_size: NDArray[np.int64] | int,
    body_length: NDArray[np.int64],
    topic_width: NDArray[np.int64] | int,
) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
    """(whether each unit's parts add up to its size, where its body begins); False behind the first that does
    not.
    """
    body_start = positions + head_size
    room = sizes - head_size - topic_width - 2 - body_length  # of topic and properties
    fits = np.zeros(len(positions), bool)
    count = _prefix(room >= 0)
    room = room[:count]
    at = (body_start + body_length)[:count]
    topic_length = buffer[at].astype(np.int64)
    topic_max: NDArray[np.int64] | int = _TOPIC_LENGTH_MAX_V1
    width: NDArray[np.int64] | int = 1
    if not isinstance(topic_width, int):
        width = topic_width[:count]
        wide = np.flatnonzero(width == 2)
        topic_length[wide] = topic_length[wide] << 8 | buffer[at[wide] + 1]
        topic_max = np.where(width == 2, _LENGTH_MAX, _TOPIC_LENGTH_MAX_V1)
    count = _prefix((topic_length <= room) & (topic_length <= topic_max))
    rest = (room - topic_length)[:count]
    at = (at + width + topic_length)[:count]
    stored = buffer[at].astype(np.int64) << 8 | buffer[at + 1]
    fits[:count] = (stored == rest) & (rest <= _LENGTH_MAX)
    return fits, body_start
