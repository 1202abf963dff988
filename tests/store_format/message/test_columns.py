"""Every column of every kind of message, against the oracle; what cannot be opened is left out and said,
whatever stands beside it.
"""

from __future__ import annotations

import json
import time
import zlib
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from store_format.display.columns import TIME_MS_MIN, TIME_MS_STOP
from store_format.message import decode as decoding
from store_format.message.columns import COLUMNS, DEFAULT_COLUMNS, DecodeOptions, arrow_schema
from store_format.message.decode import decode, decode_parts
from store_format.message.locate import Identity
from store_format.message.single import unit_fields
from tests.support import oracle
from tests.support.oracle import Message, OracleError, SubMessage
from tests.support.rows import ALL, BROKER, expected_row, inner_rows, placed, refs_of, rows_of
from tests.support.small_store import FIELDS, KINDS, write_small_store
from tests.support.strategies import inner_batches, messages
from tests.test_oracle import vector_message

VECTORS: dict[str, Any] = json.loads((Path(__file__).parents[2] / "vectors" / "vectors.json").read_bytes())
EVERYTHING = DecodeOptions(ALL)


def rows(
    data: bytes, stored: list[Message], base: int = 0, decode_options: DecodeOptions = EVERYTHING, **refs: Any
) -> list[dict[str, Any]]:
    batch, bad = decode(refs_of(data, stored, base, **refs), decode_options, BROKER)
    assert not bad
    batch.validate(full=True)
    assert batch.schema == arrow_schema(decode_options.names)
    return rows_of(batch)


def all_rows(stored: list[Message], codes: list[int]) -> list[dict[str, Any]]:
    """As the oracle sees them, an inner batch as its messages."""
    return [
        row
        for message, code in zip(stored, codes, strict=True)
        for row in (
            inner_rows(message, tags_code=code)
            if message.sys_flag & 0xC0 == 0xC0
            else [expected_row(message, tags_code=code)]
        )
    ]


@given(st.lists(messages(crc_property=False), max_size=6), st.booleans())
def test_every_column_of_any_messages(drawn: list[Message], crc_property: bool) -> None:
    data, stored = placed(drawn, 2**40, crc_property=crc_property)
    codes = [i - 2**40 for i in range(len(stored))]
    assert rows(data, stored, 2**40, tags_codes=codes) == all_rows(stored, codes)


@given(st.lists(st.one_of(inner_batches(), messages()), max_size=5), st.booleans())
def test_inner_batches_among_other_messages(drawn: list[Message], compressed: bool) -> None:
    if compressed:
        drawn = [
            replace(m, body=zlib.compress(m.body), body_crc=-1, sys_flag=m.sys_flag | 1)
            if m.sys_flag & 0xC0 == 0xC0
            else m
            for m in drawn
        ]
    data, stored = placed(drawn, 2**40)
    codes = list(range(len(stored)))
    assert rows(data, stored, 2**40, tags_codes=codes) == all_rows(stored, codes)


@given(
    st.lists(st.one_of(inner_batches(), messages()), max_size=4),
    st.lists(st.sampled_from([*ALL, "KEYS", "a", "nobody"]), unique=True),
)
def test_columns_asked_for_alone_are_the_same(drawn: list[Message], names: list[str]) -> None:
    data, stored = placed(drawn, 0)
    codes = [0] * len(stored)
    whole = rows(data, stored, tags_codes=codes)
    for row in whole:
        row |= {name: dict(row["properties"]).get(name) for name in ("KEYS", "a", "nobody")}
    batch, _ = decode(refs_of(data, stored, 0, tags_codes=codes), DecodeOptions(tuple(names)), BROKER)
    assert batch.num_rows == len(whole)
    assert (
        rows_of(batch) == [{name: row[name] for name in names} for row in whole][: len(whole) if names else 0]
    )


@pytest.mark.parametrize("vector", VECTORS["messages"], ids=lambda vector: vector["name"])
def test_vectors(vector: dict[str, Any]) -> None:
    inputs = vector["inputs"]
    message = vector_message(inputs, inputs["physical_offset"], inputs["queue_offset"])
    found = rows(bytes.fromhex(vector["hex"]), [message], inputs["physical_offset"])
    assert found == all_rows([message], [vector["tags_code"]])
    stored = (vector["sys_flag_stored"], vector["total_size"], vector["offset_msg_id"])
    assert {(row["sysFlag"], row["storeSize"], row["offsetMsgId"]) for row in found} == {stored}


@pytest.mark.parametrize(
    "zone", ["UTC", "Etc/GMT+12", "Etc/GMT-14", "Asia/Shanghai", "America/Los_Angeles", "Asia/Manila"]
)
def test_times_are_null_where_python_cannot_show_them_in_some_time_zone(
    zone: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark's collect() makes local times of them with `datetime.fromtimestamp`, and raised at both ends of
    the years 1 to 9999.
    """
    ends = [TIME_MS_MIN - 1, TIME_MS_MIN, 0, TIME_MS_STOP - 1, TIME_MS_STOP]
    times = [-62135596800000, *ends, 253402300799999]
    data, stored = placed([replace(GOOD, born_timestamp=ms, store_timestamp=ms) for ms in times], 0)
    found = rows(data, stored, tags_codes=[0] * len(stored))
    assert [row["bornTimestampMs"] for row in found] == times
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        moments = {row["bornTimestampMs"]: row["bornTimestamp"] for row in found}
        shown = {ms: datetime.fromtimestamp(us // 1_000_000) for ms, us in moments.items() if us is not None}
    finally:
        monkeypatch.undo()
        time.tzset()
    assert list(shown) == times[2:5]


# ---- what cannot be given ----------------------------------------------------------------------------------

GOOD = Message(b"T", zlib.compress(b"good"), b"TAGS\x01g\x02", sys_flag=0x301)
ROTTEN = Message(b"T", b"not zlib at all", sys_flag=0x301, queue_offset=1)
UNKNOWN = replace(GOOD, sys_flag=0x501)
BATCH = Message(
    b"T",
    oracle.encode_inner_batch([SubMessage(i, b"x%d" % i, b"a\x01b\x02") for i in range(3)]),
    sys_flag=0xC0,
)
BROKEN_BATCH = Message(b"T", BATCH.body[:-1], sys_flag=0xC0)


@given(
    st.lists(
        st.sampled_from([GOOD, ROTTEN, UNKNOWN, BATCH, BROKEN_BATCH, replace(GOOD, body_crc=1)]), max_size=8
    )
)
def test_bad_units_are_left_out_and_the_others_stay_what_they_are(drawn: list[Message]) -> None:
    data, stored = placed(drawn, 0)
    codes = [0] * len(stored)
    batch, bad = decode(refs_of(data, stored, 0, tags_codes=codes), EVERYTHING, BROKER)
    expected, wrong = [], []
    for i, message in enumerate(stored):
        try:
            oracle.decode_message(data, message.physical_offset, 0)
            expected += inner_rows(message) if message.sys_flag & 0xC0 else [expected_row(message)]
        except OracleError:
            wrong.append(i)
    assert [unit.index for unit in bad] == wrong
    assert rows_of(batch) == expected
    for unit in bad:
        assert unit.error.position >= stored[unit.index].physical_offset
        assert unit.error.position < stored[unit.index].physical_offset + stored[unit.index].total_size


def light(names: str, offsets: str, body: bytes = GOOD.body) -> Message:
    properties = f"INNER_MULTI_DISPATCH\x01{names}\x02INNER_MULTI_QUEUE_OFFSET\x01{offsets}\x02"
    return replace(GOOD, properties_bytes=properties.encode(), body=body, body_crc=-1)


def light_identity(offsets: list[int]) -> Identity:
    return Identity(("%LMQ%a",), None, np.zeros(len(offsets), np.int32), np.array(offsets), (True,))


def test_light_queues_name_the_message_in_its_properties() -> None:
    data, stored = placed(
        [light("%LMQ%a,%LMQ%b", "5,7"), light("%LMQ%b", "6"), light("%LMQ%b,%LMQ%a", "1,7")], 0
    )
    refs = refs_of(data, stored, 0, tags_codes=[0] * 3, identity=light_identity([5, 6, 7]))
    batch, bad = decode(refs, EVERYTHING, BROKER)
    place: dict[str, Any] = {"topic": "%LMQ%a", "queueId": 0}
    assert rows_of(batch) == [
        expected_row(stored[i], **place, queueOffset=offset) for i, offset in ((0, 5), (2, 7))
    ]
    at = stored[1].physical_offset + 104
    wrong = f"log/0 at byte {at}: expected light queue %LMQ%a at offset 6, found %LMQ%b at 6"
    assert [(unit.index, str(unit.error)) for unit in bad] == [(1, wrong)]


def test_light_queues_with_batches_and_bodies_that_do_not_open() -> None:
    batch_in_light = replace(light("%LMQ%a", "3", BATCH.body), sys_flag=0xC0)
    drawn = [light("%LMQ%a", "1"), light("%LMQ%x", "2"), light("%LMQ%a", "2", b"rotten"), batch_in_light]
    data, stored = placed(drawn, 0)
    refs = refs_of(data, stored, 0, tags_codes=[0] * 4, identity=light_identity([1, 2, 2, 3]))
    batch, bad = decode(refs, EVERYTHING, BROKER)
    place: dict[str, Any] = {"topic": "%LMQ%a", "queueId": 0}
    assert rows_of(batch) == [
        expected_row(stored[0], **place, queueOffset=1),
        *inner_rows(stored[3], **place, queueOffset=3),
    ]
    assert [unit.index for unit in bad] == [1, 2]


@pytest.mark.parametrize(("count", "refused"), [(3, False), (2, True), (4, True)])
def test_a_batch_holds_as_many_messages_as_its_queue_entry_says(count: int, refused: bool) -> None:
    data, stored = placed([BATCH, GOOD], 0)
    ids, offsets = np.zeros(2, np.int32), np.array([0, 0])
    who = Identity(
        ("T",), None, ids, offsets, wanted=(np.array([0, 0]), np.array([9, 9])), counts=np.array([count, 1])
    )
    batch, bad = decode(refs_of(data, stored, 0, tags_codes=[0, 0], identity=who), EVERYTHING, BROKER)
    assert batch.num_rows == (1 if refused else 4)
    assert [str(unit.error) for unit in bad] == [
        f"log/0 at byte 88: expected {count} messages, as in the consume queue entry, found 3"
    ] * refused


def test_the_asked_for_part_of_a_batch() -> None:
    data, stored = placed([BATCH, replace(BATCH, queue_offset=3)], 0)
    ids, offsets, wanted = np.zeros(2, np.int32), np.array([0, 3]), (np.array([1, 1]), np.array([5, 5]))
    who = Identity(("T",), None, ids, offsets, wanted=wanted, counts=np.array([3, 3]))
    found = rows(data, stored, identity=who, tags_codes=[0, 0])
    assert [row["queueOffset"] for row in found] == [1, 2, 3, 4]
    assert [row["body"] for row in found] == [b"x1", b"x2", b"x0", b"x1"]
    assert rows(data, stored, decode_options=DecodeOptions(()), identity=who) == []
    batch, _ = decode(refs_of(data, stored, 0, identity=who), DecodeOptions(()), BROKER)
    assert batch.num_rows == 4


# ---- filters -----------------------------------------------------------------------------------------------

TAGGED = [
    Message(b"T", b"0", b"TAGS\x01a\x02KEYS\x01k1 k2\x02UNIQ_KEY\x01U0\x02"),
    Message(b"T", b"1", b"TAGS\x01b\x02KEYS\x01k12\x02"),
    Message(b"T", b"2", b""),
    Message(b"T", b"3", b"UNIQ_KEY\x01k2\x02"),
]


@pytest.mark.parametrize(
    ("wanted", "bodies"),
    [
        ({"tags": frozenset("a")}, [b"0"]),
        ({"tags": frozenset("abc")}, [b"0", b"1"]),
        ({"tags": frozenset()}, []),
        ({"key": "k2"}, [b"0", b"3"]),
        ({"key": "k1"}, [b"0"]),
        ({"key": "k"}, []),
        ({"message_id": "U0"}, [b"0"]),
        ({"message_id": oracle.offset_msg_id(("127.0.0.1", 10911), 232).lower()}, [b"2"]),
        ({"tags": frozenset("b"), "key": "k12"}, [b"1"]),
    ],
)
def test_filters(wanted: dict[str, Any], bodies: list[bytes]) -> None:
    data, stored = placed(TAGGED, 0)
    assert stored[2].physical_offset == 232
    assert [
        row["body"] for row in rows(data, stored, decode_options=DecodeOptions(("body",), **wanted))
    ] == bodies


# ---- memory ------------------------------------------------------------------------------------------------


def test_bodies_that_inflate_to_much_come_in_several_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding, "_OPENED_BYTES_MAX", 3000)
    drawn = [replace(GOOD, body=zlib.compress(bytes([i]) * 1000), body_crc=-1) for i in range(10)]
    drawn[4] = ROTTEN
    data, stored = placed(drawn, 0)
    refs = refs_of(data, stored, 0, tags_codes=[0] * 10)
    parts = list(decode_parts(refs, EVERYTHING, BROKER))
    assert len(parts) > 2
    assert all(sum(len(body) for body in batch["body"].to_pylist()) <= 3000 for _, batch, _ in parts)
    assert [row for _, batch, _ in parts for row in rows_of(batch)] == [
        expected_row(m) for i, m in enumerate(stored) if i != 4
    ]
    where = f"log/0 at byte {stored[4].physical_offset + 88}: expected a body compressed with ZLIB"
    wrong = f"{where}, found other bytes: Error -3 while decompressing data: incorrect header check"
    assert [str(unit.error) for _, _, bad in parts for unit in bad] == [wrong]


def test_a_body_larger_than_allowed_is_refused() -> None:
    data, stored = placed([replace(GOOD, body=zlib.compress(bytes(2000)), body_crc=-1)], 0)
    _, bad = decode(refs_of(data, stored, 0), replace(EVERYTHING, body_size_max=1999), BROKER)
    wrong = "log/0 at byte 88: expected a ZLIB body of at most 1999 bytes, found more bytes"
    assert str(bad[0].error) == wrong


def test_a_batch_of_more_messages_than_a_broker_counts_is_refused() -> None:
    body = oracle.encode_inner_batch([SubMessage(0, b"", b"")] * 32768)
    data, stored = placed([replace(BATCH, body=body, body_crc=-1)], 0)
    _, bad = decode(refs_of(data, stored, 0), EVERYTHING, BROKER)
    wrong = f"log/0 at byte {88 + 32767 * 22}: expected at most 32767 messages in a batch, found more"
    assert str(bad[0].error) == wrong


def test_default_columns_come_first() -> None:
    assert tuple(COLUMNS)[: len(DEFAULT_COLUMNS)] == DEFAULT_COLUMNS
    assert arrow_schema(["mine"]).field("mine").type == pa.string()


# ---- the fields of a unit ----------------------------------------------------------------------------------


def _whole(unit: bytes) -> None:
    fields = unit_fields(unit)
    at = 0
    for field in fields:
        assert (field.start, field.size > 0) == (at, True)
        at += field.size
    assert at == len(unit)


@pytest.mark.parametrize("name", KINDS)
def test_fields_of_every_kind_of_message(name: str, tmp_path: Path) -> None:
    message = write_small_store(tmp_path).messages[name]
    unit = oracle.encode_message(message)
    fields = unit_fields(unit)
    _whole(unit)
    values = {field.name: field.value for field in fields}
    assert "rest" not in values
    assert values["topic"] == message.topic
    for field in ("queue_id", "queue_offset", "physical_offset", "reconsume_times"):
        assert int(values[field]) == getattr(message, field)
    assert [field.value for field in fields if field.name == "property"] == [
        f"{key} = {value}" for key, value in message.properties.items()
    ]
    known = {name.replace("host", "ip") for name, _ in FIELDS}
    assert known <= {field.name for field in fields}


@given(st.binary(max_size=400))
def test_any_bytes_are_fields(data: bytes) -> None:
    _whole(data)


@given(st.integers(0, 700), st.integers(0, 255), st.integers(0, 700))
def test_damaged_units_are_fields(at: int, byte: int, length: int) -> None:
    unit = bytearray(oracle.encode_message(KINDS["v6"]))
    unit[at % len(unit)] = byte
    _whole(bytes(unit[:length]))
