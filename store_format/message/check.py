"""Whether the bytes at a place of the commitlog are a message unit: the broker's own check
(CommitLog.checkMessageAndReturnSize, spec 7.2).

`check_unit` looks at one place and says what stands there, the three tails (blank, unwritten, torn) as three
cases; `count_valid` applies the same rules to many places at once and says how many leading ones are units.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from store_format.layouts import (
    BLANK_HEAD,
    CRC_PROPERTY_NAME,
    CRC_PROPERTY_SIZE,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    MESSAGE_SIZE_MIN,
    as_struct,
)
from store_format.message.crc import intact_bodies, range_crc
from store_format.message.parts import (
    HEAD_SIZE_MAX,
    Sliceable,
    find_all_parts,
    find_parts,
    head_layout,
    head_offset,
    read_head,
)
from store_format.message.properties import parse_crc_property

_START = as_struct(BLANK_HEAD)  # size and magic, of every kind of unit


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
    if wrong is not None:
        return _torn(*wrong)
    if verify_property_crc:
        return _check_property_crc(buffer, position, size)
    if verify_crc and parts.body_length:
        # Last, though the broker sums before it adds up: a length that nothing confirms must not cost a pass
        # over the file.
        computed = range_crc(
            buffer, position + parts.body_start, position + parts.body_start + parts.body_length
        )
        if computed != head.body_crc:
            return _torn(
                head_offset("body_crc"),
                f"body CRC 0x{computed:08X} of the {parts.body_length} stored bytes",
                f"0x{head.body_crc & 0xFFFFFFFF:08X}",
            )
    return UnitCheck(UnitKind.OK, size)


def _check_property_crc(buffer: Sliceable, position: int, size: int) -> UnitCheck:
    """The sum over the whole unit that `enabledAppendPropCRC` puts last into the properties (spec 2.7)."""
    at = size - CRC_PROPERTY_SIZE
    tail = bytes(buffer[position + at : position + size])
    stored = parse_crc_property(tail)
    if stored is None:
        return _torn(at, f"the property {CRC_PROPERTY_NAME.decode()} at the unit's end", repr(tail))
    computed = range_crc(buffer, position, position + at)
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
    parts = find_all_parts(buffer, positions, sizes, base)
    count = _prefix(parts.fits)
    if verify_crc and count:
        stored = parts.integers("body_crc")[:count]
        count = _prefix(intact_bodies(buffer, parts.body_start[:count], parts.body_length[:count], stored))
    return count


def _prefix(passed: NDArray[np.bool_]) -> int:
    """Returns the number of leading True."""
    return len(passed) if passed.all() else int(passed.argmin())
