"""Walks and searches in kernels, beside the plain code and beside Python's `in`."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from store_format import kernels
from store_format.commitlog.dledger import follow_entries
from store_format.commitlog.walk import follow_units
from tests.support import oracle, strategies
from tests.support.oracle import Message

BASE = 1 << 30


def units_of(messages: list[Message]) -> tuple[bytes, list[int], list[Message]]:
    """The units one behind the other, where each begins, and the messages with their physical offsets."""
    data, starts, placed = b"", [], []
    for message in messages:
        starts.append(len(data))
        placed.append(replace(message, physical_offset=BASE + len(data)))
        data += oracle.encode_message(placed[-1])
    return data, starts, placed


def _numbers(count: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    return np.full(count, -1, np.int64), np.full(count, -1, np.int64)


@settings(max_examples=25)
@given(st.lists(strategies.messages(), min_size=1, max_size=4), st.data(), st.booleans())
def test_a_kernel_follows_what_the_plain_code_follows(
    messages: list[Message], draws: st.DataObject, verify_crc: bool
) -> None:
    data, _, _ = units_of(messages)
    data = draws.draw(st.one_of(st.just(data), strategies.torn(data).map(lambda torn: torn.data)))
    window, stop = np.frombuffer(data, np.uint8), draws.draw(st.integers(0, len(data) + 9))
    found = []
    for follow in (kernels.walk.follow, follow_units):
        positions, sizes = _numbers(len(data) // 91 + 1)
        count, wrong = follow(window, stop, 77, BASE, verify_crc, positions, sizes)
        found.append((count, bool(wrong), positions.tolist(), sizes.tolist()))
    assert found[0] == found[1]


def entries_of(messages: list[Message], first_index: int, has_head: bool) -> bytes:
    """DLedger entries one behind the other, the first without a head if `has_head` is False."""
    data = b""
    for number, message in enumerate(messages):
        size_of_head = 48 if number or has_head else 0
        place = BASE + len(data)
        unit = oracle.encode_message(replace(message, physical_offset=place + size_of_head))
        head = oracle.dledger_head(48 + len(unit), first_index + number, number // 2, place, len(unit))
        data += head * bool(size_of_head) + unit
    return data


@settings(max_examples=25)
@given(st.lists(strategies.messages(), min_size=1, max_size=4), st.data(), st.booleans(), st.integers(-1, 2))
def test_a_kernel_follows_entries_as_the_plain_code_does(
    messages: list[Message], draws: st.DataObject, verify_crc: bool, before: int
) -> None:
    data = entries_of(messages, 2, draws.draw(st.booleans()))
    data = draws.draw(st.one_of(st.just(data), strategies.torn(data).map(lambda torn: torn.data)))
    window, stop = np.frombuffer(data, np.uint8), draws.draw(st.integers(0, len(data) + 9))
    found = []
    for follow in (kernels.walk.follow_entries, follow_entries):
        positions, sizes = _numbers(len(data) // 91 + 1)
        previous = np.array([before, -1])
        count, wrong = follow(window, stop, 77, BASE, verify_crc, previous, positions, sizes)
        found.append((count, bool(wrong), positions.tolist(), sizes.tolist(), previous.tolist()))
    assert found[0] == found[1]


def test_a_kernel_follows_each_entry_of_a_ledger() -> None:
    data = entries_of([Message(b"T", b"body %d" % number) for number in range(5)], 7, True)
    positions, sizes = _numbers(9)
    previous = np.array([6, 0])
    args = (np.frombuffer(data, np.uint8), len(data), 0, BASE, True, previous, positions, sizes)
    assert kernels.walk.follow_entries(*args) == (5, 0)
    assert positions[:2].tolist() == [48, 48 + sizes[0] + 48]
    assert previous.tolist() == [11, 2]


@settings(max_examples=25)
@given(st.lists(strategies.messages(), min_size=1, max_size=4), st.data())
def test_the_rows_with_a_key_have_its_bytes_in_their_properties(
    messages: list[Message], draws: st.DataObject
) -> None:
    data, starts, placed = units_of(messages)
    properties = b"".join(message.properties_bytes for message in messages) or b"\x01"
    at = draws.draw(st.integers(0, len(properties) - 1))
    key = properties[at : at + draws.draw(st.integers(1, 20))]
    key = draws.draw(st.one_of(st.just(key), st.binary(min_size=1, max_size=9)))
    rows = np.full(len(starts), -1, np.int64)
    count = kernels.search.rows_with(
        np.frombuffer(data, np.uint8),
        np.array(starts),
        np.diff(np.array([*starts, len(data)])),
        BASE,
        np.frombuffer(key, np.uint8),
        rows,
    )
    assert rows[:count].tolist() == [
        row
        for row, message in enumerate(placed)
        if key in message.properties_bytes or message.sys_flag & 0xC0 == 0xC0
    ]


def test_a_row_that_is_no_unit_is_left_out() -> None:
    data, _, _ = units_of([Message(b"T", b"", b"KEYS\x01abc\x02")])
    starts = np.array([0, 1, -1, len(data), 2**62, -(2**63)])
    rows, key = np.full(len(starts), -1, np.int64), np.frombuffer(b"abc", np.uint8)
    sizes = np.full(len(starts), len(data))
    window = np.frombuffer(data, np.uint8)
    assert kernels.search.rows_with(window, starts, sizes, BASE, key, rows) == 1
    assert rows[0] == 0
