"""The layout of a message unit: every module that parses a unit agrees with the others about any bytes."""

from __future__ import annotations

import struct
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from store_format.message.locate import locate
from store_format.message.single import UnitKind, check_unit, unit_fields
from tests.support import oracle
from tests.support.oracle import Message
from tests.support.rows import unit_refs
from tests.support.strategies import messages, torn

PLAIN = Message(b"Orders", b"some body", b"TAGS\x01a\x02", physical_offset=0)
V6 = ("1:2:3:4:5:6:7:8", 9)


def answers(unit: bytes, *, verify_crc: bool = True) -> set[bool]:
    """What each module says: whether these bytes are one whole message unit at physical offset 0."""
    zero, size = np.zeros(1, np.int64), np.array([len(unit)])
    _, bad = locate(unit_refs(unit, 0, zero, size), verify_crc=verify_crc)
    check = check_unit(unit, 0, len(unit), physical_offset=0, verify_crc=verify_crc)
    return {check.kind is UnitKind.OK, not bad}


def patched(unit: bytes, at: int, code: str, value: int) -> bytes:
    return unit[:at] + struct.pack(code, value) + unit[at + struct.calcsize(code) :]


def with_topic_of(size: int, topic_length: int) -> bytes:
    """A V2 unit without a body: its topic has `size` bytes, its topic length field is `topic_length`."""
    unit = oracle.encode_message(replace(PLAIN, topic_bytes=b"t" * 200, body=b"", magic=0xDAA320AB))
    unit = unit[:88] + struct.pack(">H", topic_length) + b"t" * size + unit[88 + 2 + 200 :]
    return patched(unit, 0, ">i", len(unit))


@pytest.mark.parametrize("size", [0x7FFF, 0x8000, 0xFFFF])
def test_a_v2_topic_has_at_most_32767_bytes(size: int) -> None:
    assert answers(with_topic_of(size, size)) == {size <= 0x7FFF}


@pytest.mark.parametrize("sys_flag", [0x00, 0x10, 0x20, 0x30])
@pytest.mark.parametrize("magic", [0xDAA320A7, 0xDAA320AB])
def test_every_pair_of_hosts_and_both_versions(sys_flag: int, magic: int) -> None:
    v4, hosts = ("127.0.0.1", 0), sys_flag >> 4
    born, store = V6 if hosts & 1 else v4, V6 if hosts & 2 else v4
    unit = oracle.encode_message(
        replace(PLAIN, magic=magic, sys_flag=sys_flag, born_host=born, store_host=store)
    )
    assert answers(unit) == {True}
    body_length_at = 84 + 12 * hosts.bit_count()
    for body_length in (-1, -(2**31), 2**31 - 1, 0, 8, 10):
        assert answers(patched(unit, body_length_at, ">i", body_length)) == {False}


@given(messages(crc_property=False), st.data(), st.booleans())
def test_any_damaged_unit(message: Message, data: st.DataObject, verify_crc: bool) -> None:
    unit = oracle.encode_message(replace(message, physical_offset=0))
    damaged = data.draw(torn(unit)).data.ljust(len(unit), b"\0")
    assert len(answers(unit[:4] + damaged[4:], verify_crc=verify_crc)) == 1  # the length was followed


@given(messages(crc_property=False))
def test_a_valid_unit_has_no_bytes_left_over(message: Message) -> None:
    unit = oracle.encode_message(replace(message, physical_offset=0))
    assert answers(unit) == {True}
    assert "rest" not in {field.name for field in unit_fields(unit)}
