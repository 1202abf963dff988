"""The broker's check of a message unit in the commitlog (CommitLog.checkMessageAndReturnSize, spec 7.2).

`check_unit` checks one position and tells the three tails of a file apart: blank, unwritten and torn.
`kernels/walk.py` applies the same rules to many positions.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

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
from store_format.message.one import Sliceable, find_parts, range_crc, read_head, wrong_crc
from store_format.message.parts import HEAD_SIZE_MAX, head_layout, head_offset
from store_format.message.properties import parse_crc_property

_START = as_struct(BLANK_HEAD)  # size and magic, of every kind of unit


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
    if wrong is not None:
        return _torn(wrong.at, wrong.expected, wrong.found)
    return UnitCheck(UnitKind.OK, size)


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
