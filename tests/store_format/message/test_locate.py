"""Which units pass and where their parts are, against the oracle's decoder of one unit; every refusal by
name.
"""

from __future__ import annotations

import pickle
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from store_format.errors import ChecksumError, TruncatedRecordError
from store_format.message.locate import Identity, Units, inner_batches, locate
from tests.support import oracle
from tests.support.oracle import Message, OracleError
from tests.support.rows import placed, refs_of
from tests.support.strategies import messages, torn

BASE = 2**40
PLAIN = Message(b"Orders", b"some body", b"TAGS\x01a\x02", queue_id=3, queue_offset=7, flag=1)


def parts(units: Units) -> list[tuple[bytes, bytes, bytes]]:
    columns = (units.stored_topics(), units.stored_bodies(), units.raw_properties())
    return list(zip(*(column.to_pylist() for column in columns), strict=True))


HEAD = (
    *("total_size", "magic", "body_crc", "queue_id", "flag", "queue_offset", "physical_offset", "sys_flag"),
    *("born_timestamp", "store_timestamp", "reconsume_times", "prepared_transaction_offset"),
)


@given(st.lists(messages(crc_property=False), max_size=6), st.booleans(), st.sampled_from([0, 5]))
def test_parts_and_header_fields(drawn: list[Message], crc_property: bool, ahead: int) -> None:
    data, stored = placed(drawn, BASE, crc_property=crc_property)
    units, bad = locate(refs_of(bytes(ahead) + data, stored, BASE - ahead), verify_crc=True)
    assert not bad
    assert parts(units) == [(m.topic_bytes, m.body, m.properties_bytes) for m in stored]
    for name in HEAD:
        assert units.integers(name).tolist() == [getattr(message, name) for message in stored], name
    assert units.sys_flag.tolist() == [message.sys_flag for message in stored]


def oracle_accepts(data: bytes, position: int, size: int) -> Message | None:
    """What the oracle decodes there. A negative body length is no body to the broker, and to us; the oracle
    refuses it.
    """
    try:
        message = oracle.decode_message(data, position, BASE)
    except OracleError:
        return None
    return message if message.total_size == size else None


def has_negative_body_length(data: bytes, position: int) -> bool:
    variant = int.from_bytes(data[position + 36 : position + 40], "big") >> 4 & 3
    at = position + 84 + 12 * (variant & 1) + 12 * (variant >> 1)
    return bool(data[at : at + 1] >= b"\x80")


@given(st.lists(messages(), min_size=1, max_size=4), st.data())
def test_of_damaged_bytes_the_same_units_are_accepted_as_by_the_oracle(
    drawn: list[Message], data: st.DataObject
) -> None:
    log, stored = placed(drawn, BASE)
    damaged = data.draw(torn(log)).data
    units, bad = locate(refs_of(damaged, stored, BASE), verify_crc=True)
    refused = {unit.index for unit in bad}
    accepted = iter(parts(units))
    for i, message in enumerate(stored):
        position = message.physical_offset - BASE
        decoded = oracle_accepts(damaged, position, message.total_size)
        if i in refused:
            assert decoded is None
        elif has_negative_body_length(damaged, position):
            assert next(accepted)[1] == b""
        else:
            assert decoded is not None
            assert next(accepted) == (decoded.topic_bytes, decoded.body, decoded.properties_bytes)
    for unit in bad:
        assert unit.error.file == "log/0"
        assert unit.error.position >= stored[unit.index].physical_offset - BASE
        assert str(pickle.loads(pickle.dumps(unit.error))) == str(unit.error)


@pytest.mark.parametrize(
    ("position", "size"),
    [
        *((-1, 120), (0, 90), (0, 0), (0, -1), (0, 2**31 - 1), (0, 2**62)),
        *((2**62, 2**62), (2**62, 120), (30, 91), (-(2**62), 91)),
    ],
)
def test_entries_that_point_nowhere_are_refused(position: int, size: int) -> None:
    data, stored = placed([PLAIN], 0)
    refs = refs_of(data, stored * 2, 0)
    refs.positions[1] = refs.physical_offsets[1] = position
    refs.sizes[1] = size
    units, bad = locate(refs, verify_crc=True)
    assert (len(units), [unit.index for unit in bad]) == (1, [1])


@pytest.mark.parametrize("size", [0, 1, 87, 88, 90])
def test_a_file_shorter_than_any_message(size: int) -> None:
    refs = refs_of(bytes(size), [replace(PLAIN, physical_offset=0)], 0)
    units, bad = locate(refs, verify_crc=True)
    assert len(units) == 0
    assert isinstance(bad[0].error, TruncatedRecordError)


@pytest.mark.parametrize(
    ("at", "value", "message"),
    [
        (7, b"\xa8", "at byte 4: expected magic code 0xDAA320A7 (V1) or 0xDAA320AB (V2), found 0xDAA320A8"),
        (3, b"\x7f", "at byte 0: expected total size 113, found 127"),
        (35, b"\x05", "at byte 28: expected physicalOffset 0, found 5"),
        (87, b"\xff", "at byte 84: expected a body of at most 22 bytes, found body length 255"),
        (97, b"\xff", "at byte 97: expected a topic of at most 13 bytes, found topic length 255"),
        (97, b"\x0e", "at byte 97: expected a topic of at most 13 bytes, found topic length 14"),
        (105, b"\x06", "at byte 104: expected properties of 7 bytes, found properties length 6"),
        (90, b"?", "at byte 8: expected body CRC 0x1BD3E951 of the 9 stored bytes, found 0x2F9911CF"),
    ],
)
def test_each_refusal_says_where_what_and_found(at: int, value: bytes, message: str) -> None:
    data, stored = placed([PLAIN], 0)
    damaged = data[:at] + value + data[at + len(value) :]
    _, bad = locate(refs_of(damaged, stored, 0), verify_crc=True)
    assert str(bad[0].error) == f"log/0 {message}"
    assert isinstance(bad[0].error, ChecksumError) is ("CRC" in message)


def test_a_v6_head_in_a_message_too_short_for_it() -> None:
    short = Message(b"T", physical_offset=0)
    data = bytearray(oracle.encode_message(short))
    data[39] = 0x30
    _, bad = locate(refs_of(bytes(data), [short], 0), verify_crc=True)
    assert str(bad[0].error) == "log/0 at byte 0: expected a head of 112 bytes, found a message of 92 bytes"


def identity(**wrong: Any) -> Identity:
    topics = wrong.get("topics", ("Orders",))
    ids, offsets = np.array([wrong.get("queue_id", 3)], np.int32), np.array([wrong.get("queue_offset", 7)])
    return Identity(topics, wrong.get("topic_index"), ids, offsets, wrong.get("light", ()))


def second(*topics: str) -> Identity:
    return identity(topics=topics, topic_index=np.array([1], np.int32))


@pytest.mark.parametrize(
    ("who", "wrong"),
    [
        (identity(), None),
        (second("Other", "Orders"), None),
        (identity(queue_id=4), "at byte 12: expected queueId 4 of Orders, found 3"),
        (identity(queue_offset=8), "at byte 20: expected queueOffset 8, found 7"),
        (identity(topics=("Ordera",)), "at byte 98: expected topic 'Ordera', found 'Orders'"),
        (identity(topics=("Order",)), "at byte 98: expected topic 'Order', found 'Orders'"),
        (identity(topics=("Orders!",)), "at byte 98: expected topic 'Orders!', found 'Orders'"),
        (second("Orders", "Ordera"), "at byte 98: expected topic 'Ordera', found 'Orders'"),
        (second("Orders", "Or"), "at byte 98: expected topic 'Or', found 'Orders'"),
        (identity(topics=("x" * 200,)), f"at byte 98: expected topic '{'x' * 200}', found 'Orders'"),
        # told by a property: see test_columns
        (identity(topics=("%LMQ%q",), queue_id=0, queue_offset=99, light=(True,)), None),
    ],
)
def test_a_unit_has_to_be_the_one_its_queue_means(who: Identity, wrong: str | None) -> None:
    data, stored = placed([PLAIN], 0)
    units, bad = locate(refs_of(data, stored, 0, identity=who), verify_crc=True)
    assert [str(unit.error) for unit in bad] == ([] if wrong is None else [f"log/0 {wrong}"])
    assert len(units) == (wrong is None)


def test_many_topics_are_compared_each_with_its_own() -> None:
    names = ["a", "bb", "bc", "a" * 127, "名字", "%LMQ%x"]
    data, stored = placed(
        [Message(name.encode(), queue_id=0, queue_offset=i) for i, name in enumerate(names)], 0
    )
    right = np.arange(len(names), dtype=np.int32)
    light = tuple(name.startswith("%LMQ%") for name in names)
    for shift in range(len(names)):
        index = np.roll(right, shift).astype(np.int32)
        who = Identity(tuple(names), index, np.zeros(len(names), np.int32), right.astype(np.int64), light)
        units, bad = locate(refs_of(data, stored, 0, identity=who), verify_crc=True)
        by_light = int(np.flatnonzero(index == names.index("%LMQ%x"))[0])
        assert [unit.index for unit in bad] == (
            [] if not shift else [i for i in range(len(names)) if i != by_light]
        )
        assert len(units) == len(names) - len(bad)


@pytest.mark.parametrize("size", [0, 1, 2000, 5000])
def test_crcs_of_small_and_large_bodies(size: int) -> None:
    """Two ways to sum, by the mean body size; an empty body has no sum to be right."""
    drawn = [Message(b"T", bytes([i]) * size, body_crc=-1 if i != 1 else 12345) for i in range(3)]
    data, stored = placed(drawn, 0)
    assert len(locate(refs_of(data, stored, 0), verify_crc=False)[1]) == 0
    _, bad = locate(refs_of(data, stored, 0), verify_crc=True)
    assert [unit.index for unit in bad] == ([1] if size else [])


def test_inner_batches_need_both_bits() -> None:
    data, stored = placed([replace(PLAIN, sys_flag=flag) for flag in (0, 0x40, 0x80, 0xC0, 0xC8)], 0)
    units, _ = locate(refs_of(data, stored, 0), verify_crc=True)
    assert inner_batches(units).tolist() == [False, False, False, True, True]
