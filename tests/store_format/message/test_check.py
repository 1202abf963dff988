"""One place of the commitlog, looked at alone: what the broker would say of it."""

from __future__ import annotations

import struct
from dataclasses import replace

import numpy as np
import pytest

from store_format.message.locate import locate
from store_format.message.single import UnitKind, check_unit
from tests.support import oracle
from tests.support.oracle import Message
from tests.support.rows import unit_refs

MESSAGE = Message(
    b"TopicTest", b"hello", b"TAGS\x01TagA\x02", physical_offset=0, store_timestamp=1700000000456
)


def _kind(
    data: bytes,
    physical_offset: int | None = 0,
    *,
    verify_crc: bool = True,
    verify_property_crc: bool = False,
) -> UnitKind:
    return check_unit(
        data,
        0,
        len(data),
        physical_offset=physical_offset,
        verify_crc=verify_crc,
        verify_property_crc=verify_property_crc,
    ).kind


def _patched(data: bytes, at: int, code: str, value: int) -> bytes:
    return data[:at] + struct.pack(code, value) + data[at + struct.calcsize(code) :]


# ---- the three tails ---------------------------------------------------------------------------------------


def test_a_blank_covers_the_rest_of_the_file() -> None:
    data = oracle.blank(926).ljust(926, b"s")
    check = check_unit(data, 0, 926, physical_offset=64610)
    assert (check.kind, check.size) == (UnitKind.BLANK, 926)


@pytest.mark.parametrize("length", [1, 3, 7, 8, 9, 100])
def test_zeros_are_unwritten(length: int) -> None:
    assert _kind(bytes(length)) is UnitKind.UNWRITTEN


@pytest.mark.parametrize("kept", [1, 4, 7, 8, 40, 87, 88, 92, 93, 100, 104])
def test_a_unit_of_which_the_end_is_missing_is_torn(kept: int) -> None:
    data = oracle.encode_message(MESSAGE)
    expected = UnitKind.UNWRITTEN if kept == 1 else UnitKind.TORN  # a size begins with zeros
    assert _kind(data[:kept]) is expected  # the file ends
    assert _kind(data[:kept] + bytes(1000)) is expected  # the file goes on with zeros


def test_lost_bytes_of_properties_are_seen_only_by_the_property_crc() -> None:
    """The one tear that a unit of the usual kind cannot show, to the broker either."""
    data = oracle.encode_message(MESSAGE)
    assert _kind(data[:-1] + bytes(1000)) is UnitKind.OK
    data = oracle.encode_message(oracle.with_crc_property(MESSAGE))
    assert _kind(data[:-1] + bytes(1000), verify_property_crc=True) is UnitKind.TORN


# ---- in the order of the broker's check --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("at", "code", "value", "where", "expected", "found"),
    [
        (0, ">i", 2**31 - 1, 0, "a unit of at most 115 bytes", "total size 2147483647"),
        (4, ">I", 7, 4, "magic code 0xDAA320A7 (V1), 0xDAA320AB (V2) or 0xCBD43194 (blank)", "0x00000007"),
        (0, ">i", 90, 0, "a message of at least 91 bytes", "total size 90"),
        (0, ">i", -5, 0, "a message of at least 91 bytes", "total size -5"),
        (28, ">q", 115, 28, "physicalOffset 0", "115"),
        (84, ">i", 25, 84, "a body of at most 24 bytes", "body length 25"),
        (84, ">i", 2**31 - 1, 84, "a body of at most 24 bytes", "body length 2147483647"),
        (93, ">B", 200, 93, "a topic of at most 19 bytes", "topic length 200"),
        (103, ">h", 11, 103, "properties of 10 bytes", "properties length 11"),
        (103, ">h", -1, 103, "properties of 10 bytes", "properties length -1"),
        (88, ">B", 0, 8, "body CRC 0x", "0x3610A686"),
    ],
)
def test_a_torn_unit_says_where_and_what(
    at: int, code: str, value: int, where: int, expected: str, found: str
) -> None:
    data = _patched(oracle.encode_message(MESSAGE), at, code, value)
    assert len(data) == 115
    check = check_unit(data, 0, len(data), physical_offset=0)
    assert (check.kind, check.size, check.at, check.found) == (UnitKind.TORN, 0, where, found)
    assert check.expected.startswith(expected)
    assert _count(data, 115) == 0


def _count(data: bytes, size: int) -> int:
    """How many units `locate` accepts, to which only units come whose length was followed."""
    if struct.unpack_from(">i", data)[0] != size:
        return 0
    return len(locate(unit_refs(data, 0, np.zeros(1, np.int64), np.array([size])), verify_crc=True)[0])


def test_a_position_that_is_not_the_units_own_can_be_allowed() -> None:
    data = oracle.encode_message(replace(MESSAGE, physical_offset=999))
    assert _kind(data) is UnitKind.TORN
    assert _kind(data, None) is UnitKind.OK


def test_an_empty_body_has_no_crc_and_a_negative_length_is_no_body() -> None:
    data = oracle.encode_message(replace(MESSAGE, body=b"", body_crc=77))
    assert _kind(data) is UnitKind.OK
    assert _kind(_patched(data, 84, ">i", -1)) is UnitKind.OK
    assert _count(_patched(data, 84, ">i", -1), len(data)) == 1


def test_the_property_crc_replaces_that_of_the_body() -> None:
    data = oracle.encode_message(oracle.with_crc_property(replace(MESSAGE, body_crc=1)))
    assert _kind(data) is UnitKind.TORN
    assert _kind(data, verify_property_crc=True) is UnitKind.OK
    # a flip that no body CRC sees
    assert _kind(_patched(data, 60, ">B", 9), verify_property_crc=True) is UnitKind.TORN
    missing = check_unit(oracle.encode_message(MESSAGE), 0, 115, physical_offset=0, verify_property_crc=True)
    assert (missing.kind, missing.expected) == (UnitKind.TORN, "the property __CRC32# at the end of the unit")
