"""Encoded units against the vectors, against units that real brokers wrote, and against the oracle, byte for
byte.
"""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from store_format import kernels
from store_format.errors import IllegalMessageError
from store_format.message.encode import EncodedUnits, MessageColumns, assign, body_crcs, encode
from store_format.message.property_encoder import without_crc_property
from tests.support import oracle
from tests.support.fixtures import Golden

_VECTORS: dict[str, Any] = json.loads(
    (Path(__file__).parents[2] / "vectors" / "vectors.json").read_text("utf-8")
)


_NUMBERS = (
    *("queue_id", "flag", "queue_offset", "physical_offset", "sys_flag", "born_timestamp"),
    *("store_timestamp", "reconsume_times", "prepared_transaction_offset"),
)


def packed(host: Sequence[Any]) -> bytes:
    return ipaddress.ip_address(host[0]).packed


def padded(ips: list[bytes]) -> Any:
    """V16, an IPv4 address in the first four bytes."""
    return np.array([ip.ljust(16, b"\0") for ip in ips], "V16")


def columns_of(messages: list[oracle.Message]) -> MessageColumns:
    """What `encode` needs to make these units again."""

    def numbers(name: str) -> Any:
        return np.array([getattr(message, name) for message in messages], np.int64)

    return MessageColumns(
        topic=pa.array([message.topic for message in messages], pa.string()),
        body=pa.array([message.body for message in messages], pa.binary()),
        properties=pa.array([message.properties_bytes for message in messages], pa.binary()),
        born_ip=padded([packed(message.born_host) for message in messages]),
        born_port=np.array([message.born_host[1] for message in messages], np.int64),
        store_ip=padded([packed(message.store_host) for message in messages]),
        store_port=np.array([message.store_host[1] for message in messages], np.int64),
        **{name: numbers(name) for name in _NUMBERS},
    )


def commit_log_files(store: Path) -> dict[int, bytes]:
    return {int(file.name): file.read_bytes() for file in sorted((store / "commitlog").iterdir())}


def commit_log(store: Path) -> list[oracle.Message]:
    files = commit_log_files(store)
    return oracle.walk_files(files, len(files[min(files)])).messages


def stored_units(store: Path, messages: list[oracle.Message]) -> list[bytes]:
    log = b"".join(commit_log_files(store).values())
    begin = min(commit_log_files(store))
    starts = [message.physical_offset - begin for message in messages]
    return [log[at : at + message.total_size] for at, message in zip(starts, messages, strict=True)]


@pytest.mark.parametrize("row", _VECTORS["messages"], ids=lambda row: row["name"])
def test_units_equal_the_vectors(row: dict[str, Any]) -> None:
    given_ = row["inputs"]
    units = encode(
        MessageColumns(
            body=pa.array([bytes.fromhex(given_["body_hex"])]),
            properties=pa.array([oracle.encode_properties(map(tuple, given_["properties"]))]),
            sys_flag=given_["sys_flag_in"],
            born_ip=packed(given_["born_host"]),
            born_port=given_["born_host"][1],
            store_ip=packed(given_["store_host"]),
            store_port=given_["store_host"][1],
            **{name: given_[name] for name in ("topic", *_NUMBERS) if name != "sys_flag"},
        ),
        crc_property=given_["append_prop_crc"],
    )
    assert [unit.hex() for unit in units] == [row["hex"]]
    assert units.sizes.tolist() == [row["total_size"]]


@pytest.mark.parametrize(
    "name", ["basic-5.5.0", "basic-4.9.7", "edge-5.5.0", "batchcq-5.5.0", "delay-tx-5.5.0"]
)
def test_what_a_broker_wrote_encodes_to_the_same_bytes(golden: Golden, name: str) -> None:
    messages = commit_log(golden(name))
    units = list(encode(columns_of(messages)))
    assert len(units) > 100
    assert units == stored_units(golden(name), messages)


def test_crc_properties_of_a_real_broker(golden: Golden) -> None:
    messages = commit_log(golden("propcrc-5.5.0"))
    stored = stored_units(golden("propcrc-5.5.0"), messages)
    assert all(oracle.verify_crc_property(unit) for unit in stored)
    bare = [replace(message, properties_bytes=message.properties_bytes[:-20]) for message in messages]
    assert list(encode(columns_of(bare), crc_property=True)) == stored
    # the one that is there is replaced, not doubled
    assert list(encode(columns_of(messages), crc_property=True)) == stored

    units = encode(
        replace(columns_of(bare), physical_offset=None, queue_offset=0, store_timestamp=0), crc_property=True
    )
    assign_all(units, messages)
    assert list(units) == stored


def assign_all(units: EncodedUnits, messages: list[oracle.Message]) -> None:
    positions = {
        name: np.array([getattr(message, name) for message in messages], np.int64)
        for name in ("physical_offset", "queue_offset", "store_timestamp")
    }
    assign(units, **positions)


@pytest.mark.parametrize("kernel", [True, False])
def test_assigned_later_is_the_same_as_given_at_once(
    golden: Golden, kernel: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels, "ready", lambda rows=0: kernel)
    messages = commit_log(golden("edge-5.5.0"))
    assert {message.sys_flag & 0x30 for message in messages} == {0, 0x10, 0x20, 0x30}
    units = encode(replace(columns_of(messages), physical_offset=None, queue_offset=0, store_timestamp=0))
    assert list(units) != list(encode(columns_of(messages)))
    assign_all(units, messages)
    assert list(units) == list(encode(columns_of(messages)))


_I4 = st.integers(-(2**31), 2**31 - 1)
_I8 = st.integers(-(2**63), 2**63 - 1)
_HOST = st.tuples(st.sampled_from(["10.1.2.3", "2001:db8::1"]), _I4)
_TOPIC = st.sampled_from(["T", "主题", "%RETRY%" + "g" * 121, "x" * 127, "y" * 255])
_PROPERTIES = st.sampled_from(
    [b"", b"a\x01b\x02", b"KEYS\x01k", b"__CRC32#\x01x\x02a\x01b\x02", b"x__CRC32#\x01y\x02", b"a\x01b"]
)


@st.composite
def stored_messages(draw: st.DrawFn) -> oracle.Message:
    topic, born, store = draw(_TOPIC), draw(_HOST), draw(_HOST)
    flags = 0x10 * (":" in born[0]) | 0x20 * (":" in store[0])
    return oracle.Message(
        topic.encode(),
        draw(st.binary(max_size=20)),
        draw(_PROPERTIES),
        queue_id=draw(_I4), queue_offset=draw(_I8), physical_offset=draw(_I8), flag=draw(_I4),
        sys_flag=draw(_I4) & ~0x30 | flags, born_timestamp=draw(_I8), born_host=born,
        store_timestamp=draw(_I8), store_host=store, reconsume_times=draw(_I4),
        prepared_transaction_offset=draw(_I8), magic=0xDAA320AB if len(topic) > 127 else 0xDAA320A7,
    )  # fmt: skip


@given(st.lists(stored_messages(), max_size=6), st.booleans())
def test_any_batch_equals_the_oracle(messages: list[oracle.Message], by_kernel: bool) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernels, "ready", lambda rows=0: by_kernel)
        assert list(encode(columns_of(messages))) == [oracle.encode_message(message) for message in messages]
        sealed = [oracle.encode_message(oracle.with_crc_property(message)) for message in messages]
        assert list(encode(columns_of(messages), crc_property=True)) == sealed


@pytest.mark.parametrize(
    ("given_", "kept"),
    [
        (b"__CRC32#\x01x\x02__CRC32#\x01y\x02a\x01b", b"a\x01b\x02"),
        (b"a\x01b\x02__CRC32#\x01", b"a\x01b\x02"),
        (b"a\x01b\x02__CRC32#", b"a\x01b\x02__CRC32#\x02"),  # no property
        (b"a__CRC32#\x01b\x02", b"a__CRC32#\x01b\x02"),
    ],
)
def test_a_crc_property_is_deleted_as_a_text(given_: bytes, kept: bytes) -> None:
    """MessageUtils.deleteProperty looks for the name in the string, whatever the decoder would make of it."""
    assert without_crc_property(pa.array([b"", given_], pa.large_binary())).to_pylist() == [b"", kept]


def test_addresses_of_one_family_decide_the_host_bits() -> None:
    def sys_flags(born: Any, store: Any) -> list[int]:
        message = MessageColumns(
            topic="T",
            body=pa.array([b""] * 2),
            properties=pa.array([None] * 2, pa.binary()),
            sys_flag=0x31,
            born_ip=born,
            store_ip=store,
        )
        return [oracle.decode_message(unit, 0, 0).sys_flag for unit in encode(message)]

    four, sixteen = np.array([b"\1\2\3\4"] * 2, "V4"), np.array([bytes(16)] * 2, "V16")
    assert sys_flags(four, bytes(16)) == [0x21, 0x21]
    assert sys_flags(bytes(16), four) == [0x11, 0x11]
    assert sys_flags(bytes(4), sixteen) == [0x21, 0x21]  # the bit says so
    with pytest.raises(IllegalMessageError, match="born_ip: expected an address of 4 or 16 bytes, found 5"):
        sys_flags(bytes(5), four)


def test_nothing_gives_no_units_and_null_is_empty() -> None:
    none = MessageColumns(
        topic=pa.array([], pa.string()), body=pa.array([], pa.binary()), properties=pa.array([], pa.binary())
    )
    for crc_property in (False, True):
        units = encode(none, crc_property=crc_property)
        assert (len(units), list(units)) == (0, [])
        empty = np.empty(0, np.int64)
        assign(units, physical_offset=empty, queue_offset=empty, store_timestamp=empty)
    nulls = MessageColumns(
        topic="T", body=pa.array([None], pa.binary()), properties=pa.array([None], pa.binary())
    )
    assert encode(nulls).sizes.tolist() == [92]


def small(**changes: Any) -> MessageColumns:
    columns = MessageColumns(
        topic="T", body=pa.array([b"", b"body"]), properties=pa.array([b"", b"a\x01b\x02"])
    )
    return replace(columns, **changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"topic": "t" * 256}, f"topic {'t' * 256}: 256 bytes long, at most 255 are allowed"),
        ({"topic": "é" * 64}, f"topic {'é' * 64}: 128 bytes long, at most 127 are allowed"),
        ({"topic": pa.array(["T", None])}, "topic null: every message needs a topic"),
        ({"body": pa.array([b"", b"x" * 101]), "topic": pa.array(["T", "U"])}, ("topic U: a body of 101 "
        "bytes, at most 100 are allowed")),
        ({"properties": pa.array([b"", b"x" * 32_768])}, ("topic T: properties of 32768 bytes, at most "
        "32767 are allowed")),
        ({"queue_id": 2**31}, "queue_id 2147483648 does not fit its field of 4 bytes"),
        ({"flag": np.array([0, -(2**31) - 1])}, "flag -2147483649 does not fit its field of 4 bytes"),
        ({"store_timestamp": np.array([0, 2**63], np.uint64)}, ("store_timestamp 9223372036854775808 does "
        "not fit its field of 8 bytes")),
    ],
)  # fmt: skip
def test_limits_are_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(IllegalMessageError) as caught:
        encode(small(**changes), message_size_max=100)
    assert str(caught.value).startswith(message)


def test_limits_are_met_to_the_byte() -> None:
    most = small(topic="t" * 255, body=pa.array([b"", b"x" * 100]), properties=pa.array([b"", b"p" * 32_767]))
    assert encode(most, message_size_max=100).sizes.tolist() == [92 + 255, 92 + 255 + 100 + 32_767]
    fits = small(properties=pa.array([b"", b"p" * 32_746 + b"\x02"]))
    assert encode(fits, crc_property=True).sizes[1] == 92 + 4 + 32_767
    for properties in (b"p" * 32_747 + b"\x02", b"p" * 32_747):  # the second needs an end
        with pytest.raises(IllegalMessageError, match="properties of 32768 bytes"):
            encode(small(properties=pa.array([b"", properties])), crc_property=True)


def test_body_crcs_equal_the_vectors() -> None:
    rows = _VECTORS["crc"]
    bodies = [bytes.fromhex(row["data_hex"]) for row in rows]
    sums = [row["stored_body_crc"] for row in rows]
    assert body_crcs(pa.array(bodies)).tolist() == sums
    large = bytes(100_000)  # the other way to get at the bodies
    assert body_crcs(pa.array([*bodies, large])).tolist() == [*sums, oracle.stored_crc(large)]
