"""The oracle against the byte vectors: every section it covers, byte for byte, both ways where there are two.

A vector is a fact; where the oracle and the project's own code disagree, this file says which of them is
wrong.
"""

from __future__ import annotations

import ipaddress
import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support import oracle
from tests.support.oracle import Message, OracleError

VECTORS: dict[str, Any] = json.loads((Path(__file__).parent / "vectors" / "vectors.json").read_bytes())


def vector_message(inputs: dict[str, Any], physical_offset: int, queue_offset: int) -> Message:
    """A vector's inputs as a message; sysFlag's host bits are the broker's to set."""
    hosts = [(str(ip), int(port)) for ip, port in (inputs["born_host"], inputs["store_host"])]
    v6 = [ipaddress.ip_address(ip).version == 6 for ip, _ in hosts]
    message = Message(
        topic_bytes=inputs["topic"].encode(),
        body=bytes.fromhex(inputs["body_hex"]),
        properties_bytes=oracle.encode_properties(map(tuple, inputs["properties"])),
        queue_id=inputs["queue_id"],
        queue_offset=queue_offset,
        physical_offset=physical_offset,
        flag=inputs.get("flag", 0),
        sys_flag=inputs.get("sys_flag_in", 0) | 0x10 * v6[0] | 0x20 * v6[1],
        born_timestamp=inputs["born_timestamp"],
        born_host=hosts[0],
        store_timestamp=inputs["store_timestamp"],
        store_host=hosts[1],
        reconsume_times=inputs.get("reconsume_times", 0),
        prepared_transaction_offset=inputs.get("prepared_transaction_offset", 0),
        magic={1: 0xDAA320A7, 2: 0xDAA320AB}[inputs.get("magic_version", 1)],
    )
    return oracle.with_crc_property(message) if inputs.get("append_prop_crc") else message


@pytest.mark.parametrize("vector", VECTORS["messages"], ids=lambda vector: vector["name"])
def test_messages(vector: dict[str, Any]) -> None:
    inputs = vector["inputs"]
    unit = bytes.fromhex(vector["hex"])
    message = vector_message(inputs, inputs["physical_offset"], inputs["queue_offset"])
    assert oracle.encode_message(message).hex() == vector["hex"]

    base = inputs["physical_offset"] - 3  # any place in a buffer will do
    decoded = oracle.decode_message(b"abc" + unit, 3, base)
    assert oracle.encode_message(decoded) == unit
    assert decoded.properties == dict(inputs["properties"]) | (
        {"__CRC32#": unit[-11:-1].decode()} if inputs["append_prop_crc"] else {}
    )
    assert (decoded.topic, decoded.body.hex()) == (inputs["topic"], inputs["body_hex"])
    assert (decoded.sys_flag, decoded.total_size) == (vector["sys_flag_stored"], vector["total_size"])
    assert decoded.body_crc == vector["body_crc"]
    assert decoded.offset_msg_id == vector["offset_msg_id"]
    assert struct.unpack_from(">q", unit, vector["store_timestamp_pos"]) == (inputs["store_timestamp"],)
    assert oracle.verify_crc_property(unit) is inputs["append_prop_crc"]
    assert oracle.tags_code(decoded) == vector["tags_code"]
    assert (
        oracle.cq_unit(decoded.physical_offset, decoded.total_size, oracle.tags_code(decoded)).hex()
        == vector["cq_entry_hex"]
    )


def test_a_unit_is_refused_wherever_it_is_cut_or_stands() -> None:
    unit = bytes.fromhex(VECTORS["messages"][0]["hex"])
    for length in range(len(unit)):
        with pytest.raises(OracleError):
            oracle.decode_message(unit[:length], 0, 1024)
    with pytest.raises(OracleError, match="physical offset 1024 at 1025"):
        oracle.decode_message(unit, 0, 1025)
    flipped = unit[:90] + bytes([unit[90] ^ 1]) + unit[91:]  # a byte of the body
    with pytest.raises(OracleError, match="body CRC"):
        oracle.decode_message(flipped, 0, 1024)
    assert oracle.decode_message(flipped, 0, 1024, verify_crc=False).body == b"hemlo"


def test_crc_property_replaces_an_older_one_and_closes_an_open_list() -> None:
    message = Message(b"T", b"x", b"__CRC32#\x010000000000\x02a\x011")
    stored = oracle.with_crc_property(message)
    assert stored.properties_bytes.startswith(b"a\x011\x02__CRC32#\x01")
    assert len(stored.properties_bytes) == 4 + 20
    assert oracle.verify_crc_property(oracle.encode_message(stored))


def test_zlib_body() -> None:
    vector = next(vector for vector in VECTORS["messages"] if vector["name"] == "zlib_compressed")
    inputs = vector["inputs"]
    message = oracle.decode_message(bytes.fromhex(vector["hex"]), 0, inputs["physical_offset"])
    assert message.decompressed == b"A" * 5000
    assert oracle.decompress(message.body, 0x001) == message.decompressed  # no type named: zlib too


@pytest.mark.parametrize("kind", [0, 1, 2, 3])
def test_compression_goes_both_ways(kind: int) -> None:
    body = b"a body, a body, a body" * 50
    stored = oracle.compress(body, kind)
    assert oracle.decompress(stored, 1 | kind << 8) == body
    assert oracle.decompress(stored, kind << 8) == stored  # without COMPRESSED the type says nothing
    with pytest.raises(OracleError):
        oracle.decompress(b"\xff" * 20, 1 | kind << 8)


def test_unknown_compression_is_refused() -> None:
    with pytest.raises(OracleError, match="compression type 5"):
        oracle.decompress(b"x", 0x501)


@pytest.mark.parametrize("vector", VECTORS["properties"], ids=lambda vector: vector["name"])
def test_properties(vector: dict[str, Any]) -> None:
    encoded = oracle.encode_properties([(name, value) for name, value in vector["pairs"]])
    assert encoded.hex() == vector["encoded_hex"]
    assert list(oracle.decode_properties(encoded).items()) == [tuple(pair) for pair in vector["pairs"]]


@pytest.mark.parametrize(
    "vector", VECTORS["properties_parse"], ids=lambda vector: vector["raw_hex"] or "empty"
)
def test_properties_parse(vector: dict[str, Any]) -> None:
    assert oracle.decode_properties(bytes.fromhex(vector["raw_hex"])) == vector["expect"]


@pytest.mark.parametrize(
    ("data", "text"),
    [
        ("41c3", "A\ufffd"),
        ("e4b8", "\ufffd"),
        ("e080", "\ufffd\ufffd"),
        ("f09f98", "\ufffd"),
        ("f5808080", "\ufffd" * 4),
        ("eda08041", "\ufffdA"),
        ("eda041", "\ufffdA"),
        ("ed9fbf", "\ud7ff"),
        ("c080", "\ufffd\ufffd"),
    ],
)
def test_java_utf8(data: str, text: str) -> None:
    """What OpenJDK 17 prints for `new String(data, UTF_8)`."""
    assert oracle.java_utf8(bytes.fromhex(data)) == text


@pytest.mark.parametrize(
    "vector", VECTORS["java_string_hash"], ids=lambda vector: vector["utf16_be_hex"][:40] or "empty"
)
def test_java_string_hash(vector: dict[str, Any]) -> None:
    text = bytes.fromhex(vector["utf16_be_hex"]).decode("utf-16-be", "surrogatepass")
    # JSON holds no lone surrogate
    assert text == vector["s"] or (vector["s"] is None and not text.isprintable())
    assert oracle.java_hash(text) == vector["hash"] == vector["tags_code"]
    assert oracle.java_hash(text) % 2**32 == int(vector["hash_u32_hex"], 16)
    assert oracle.cq_unit(0, 0, vector["tags_code"])[12:].hex() == vector["cq_tags_code_hex"]
    assert oracle.index_key_hash(text) == vector["index_hash"]
    assert oracle.index_key_hash(text) % 5_000_000 == vector["slot_mod_5000000"]


@pytest.mark.parametrize("vector", VECTORS["index_key_hash"], ids=lambda vector: vector["composed"])
def test_index_key_hash(vector: dict[str, Any]) -> None:
    composed = f"{vector['topic']}#{vector['key']}"
    key_hash = oracle.index_key_hash(composed)
    assert (composed, oracle.java_hash(composed), key_hash) == (
        vector["composed"],
        vector["java_hash"],
        vector["index_hash"],
    )
    assert (key_hash % 5_000_000, key_hash % 100) == (vector["slot_default_5000000"], vector["slot_100"])
    assert oracle.index_slot_position(key_hash % 5_000_000) == vector["slot_byte_pos_default"]


def test_crc() -> None:
    for vector in VECTORS["crc"]:
        crc = oracle.stored_crc(bytes.fromhex(vector["data_hex"]))
        assert crc == vector["stored_body_crc"] == int(vector["stored_body_crc_hex"], 16)
    for vector in VECTORS["crc_property"]:
        assert oracle.crc_property(vector["crc"]).hex() == vector["hex"]


def test_identifiers_and_names() -> None:
    for vector in VECTORS["offset_msg_id"]:
        assert (
            oracle.offset_msg_id((vector["ip"], vector["port"]), vector["commitlog_offset"])
            == vector["msg_id"]
        )
    for vector in VECTORS["uniq_key_id"]:
        parts = (
            vector["pid"],
            vector["class_loader_hash"],
            vector["ms_since_month_start"],
            vector["counter"],
        )
        assert oracle.uniq_key_id(vector["ip"], *parts) == vector["id"]
    for vector in VECTORS["file_names"]:
        assert oracle.file_name(vector["offset"]) == vector["name"]
    for vector in VECTORS["index_file_name"]:
        assert oracle.index_file_name(vector["epoch_ms"], vector["utc_offset_minutes"]) == vector["name"]
    assert {str(level): ms for level, ms in oracle.delay_levels().items()} == VECTORS[
        "delay_levels_default_ms"
    ]


def test_java_hashmap_order() -> None:
    for vector in VECTORS["java_hashmap_order"]:
        assert (
            oracle.java_hashmap_order(vector["insertion_order"], vector["table_size"])
            == vector["iteration_order"]
        )


def test_batch_wire_body() -> None:
    vector = VECTORS["batch_wire_body"]
    messages = [
        oracle.SubMessage(message["flag"], message["body"].encode(), bytes.fromhex(message["properties_hex"]))
        for message in vector["messages"]
    ]
    body = bytes.fromhex(vector["hex"])
    assert oracle.encode_inner_batch(messages) == body
    assert oracle.split_inner_batch(body) == messages
    assert messages[1].properties["KEYS"] == "bk1"
    whole = {0, 55, 110}  # where a message ends
    for length in set(range(len(body))) - whole:
        with pytest.raises(OracleError):
            oracle.split_inner_batch(body[:length])


def test_consume_queue_units() -> None:
    for vector in VECTORS["cq_entry"]:
        assert (
            oracle.cq_unit(vector["physical_offset"], vector["size"], vector["tags_code"]).hex()
            == vector["hex"]
        )
    assert oracle.pre_blank_cq_unit().hex() == VECTORS["cq_pre_blank_entry"]["hex"]
    names = ("physical_offset", "size", "tags_code", "store_time", "msg_base_offset", "batch_size")
    for vector in VECTORS["batch_cq_entry"]:
        assert oracle.batch_cq_unit(*(vector[name] for name in names)).hex() == vector["hex"]
    for vector in VECTORS["cq_ext"]["units"]:
        unit = oracle.cq_ext_unit(
            vector["tags_code"], vector["store_time"], bytes.fromhex(vector["bitmap_hex"])
        )
        assert unit.hex() == vector["hex"]
    for vector in VECTORS["cq_ext"]["address"]:
        address = oracle.cq_ext_address(vector["ext_offset"])
        assert address == vector["cq_tags_code"]
        assert address <= VECTORS["cq_ext"]["max_addr"]


def test_blank() -> None:
    first = VECTORS["blank"][0]
    assert oracle.blank(first["file_size"] - first["wrote_position"]).hex() == first["hex_first_8"]
    for vector in VECTORS["blank"]:
        assert (vector["msg_len_to_append"] + 8 > vector["file_size"] - vector["wrote_position"]) is vector[
            "rolls"
        ]


def test_checkpoint() -> None:
    vector = VECTORS["checkpoint"]
    names = (
        "physic_msg_timestamp",
        "logics_msg_timestamp",
        "index_msg_timestamp",
        "master_flushed_offset",
        "confirm_phy_offset",
    )
    data = oracle.checkpoint(*(vector[name] for name in names))
    assert (data[:40].hex(), len(data)) == (vector["hex_first_40"], vector["file_length"])
    assert not any(data[40:])


def test_index_worked_default() -> None:
    """The default file is 420 MB: only its header, slot and units are made, which is what the vector
    holds.
    """
    vector = VECTORS["index_worked_default"]
    builder = oracle.IndexFileBuilder(5_000_000, 20_000_000)
    for number, put in enumerate((vector["first_put"], vector["second_put"]), 1):
        assert builder.put(f"{put['topic']}#{put['key']}", put["phy_offset"], put["store_timestamp"])
        told = vector if number == 1 else put
        assert builder.header().hex() == told["header_hex"]
        assert builder.units[-1].hex() == told["unit_hex"]
        assert struct.pack(">i", builder.slots[vector["slot"]]).hex() == told["slot_value_hex"]
        assert oracle.index_unit_position(number, 5_000_000) == told["unit_pos"]
    assert oracle.index_slot_position(vector["slot"]) == vector["slot_pos"]
    assert oracle.index_unit_position(20_000_000, 5_000_000) == vector["file_size"]


def test_timer() -> None:
    unit = VECTORS["timer"]["timerlog_unit"][0]
    fields = (
        unit["prev_pos"],
        unit["magic"],
        unit["write_time"],
        unit["delay_ms"],
        unit["offset_py"],
        unit["size_py"],
    )
    made = oracle.timer_log_unit(*fields, real_topic="")
    assert made[:40].hex() + unit["hex"][80:88] + made[44:].hex() == unit["hex"]
    assert int(unit["hex"][80:88], 16) - 2**32 == unit["topic_hash"]  # of a topic the vector does not name
    end = VECTORS["timer"]["timerlog_blank"]
    assert oracle.timer_log_blank(end["file_size"] - end["wrote"]).hex() == end["hex"]
    slot = VECTORS["timer"]["wheel_slot"]
    place = (slot["slot_time_ms"], slot["precision_ms"])
    assert (
        oracle.timer_wheel_slot(*place, slot["first_pos"], slot["last_pos"], slot["num"]).hex() == slot["hex"]
    )
    assert oracle.timer_wheel_slot_index(*place) == slot["slot_index"]


def test_rocksdb_cq() -> None:
    vector = VECTORS["rocksdb_cq"]
    key, value, offset = vector["cq_key"], vector["cq_value"], vector["offset_value"]
    assert oracle.rocksdb_cq_key(key["topic"], key["queue_id"], key["cq_offset"]).hex() == key["hex"]
    fields = ("physical_offset", "size", "tags_code", "store_time")
    assert oracle.rocksdb_cq_value(*(value[name] for name in fields)).hex() == value["hex"]
    for which in ("max", "min"):
        assert (
            oracle.rocksdb_offset_key(key["topic"], key["queue_id"], which).hex()
            == vector[f"offset_key_{which}"]
        )
    assert oracle.rocksdb_offset_value(offset["physical_offset"], offset["cq_offset"]).hex() == offset["hex"]
    assert oracle.rocksdb_offset_key("CHECKPOINT_TOPIC", 0, "max").hex() == vector["max_phy_checkpoint_key"]
    assert (
        struct.pack(">q", vector["max_phy_checkpoint_value"]["value"]).hex()
        == vector["max_phy_checkpoint_value"]["hex"]
    )


def test_dledger() -> None:
    head = VECTORS["dledger"]["entry_header"]
    made = oracle.dledger_head(head["size"], head["index"], head["term"], head["pos"], head["body_size"])
    assert made.hex() == head["hex"]
    assert head["pos"] + len(made) == VECTORS["dledger"]["message_physical_offset"]


@pytest.mark.parametrize("name", ["ck", "ack", "batch_ack"])
def test_pop_records(name: str) -> None:
    text = VECTORS["pop_json"][name]
    record = oracle.parse_pop_record(text)
    assert oracle.pop_record(record) == text
    assert (record["consumerGroup"], record["startOffset"], record["popTime"]) == (
        "GID_a",
        100,
        1_700_000_000_000,
    )
    assert record.get("ackOffsetList") == ([100, 101] if name == "batch_ack" else None)


def test_pop_checkpoint_of_5_5_has_sp() -> None:
    old = VECTORS["pop_json"]["ck"]
    new = old.replace('"so":100,', '"so":100,"sp":false,')
    record = oracle.parse_pop_record(new)
    assert record == oracle.parse_pop_record(old) | {"suspend": False}
    assert oracle.pop_record(record) == new


# ---- the tiny store ----------------------------------------------------------------------------------------


def lay_mini_store(append: Callable[[Message], None]) -> dict[int, bytes]:
    """The commitlog of `mini_store` from its inputs alone: positions, queue offsets and blanks are computed
    here.
    """
    config = VECTORS["mini_store"]["config"]
    file_size = config["mappedFileSizeCommitLog"]
    files = {0: b""}
    queue_offsets: dict[int, int] = {}
    for inputs in VECTORS["mini_store"]["inputs"]:
        start, queue_id = max(files), inputs["queue_id"]
        queue_offset = queue_offsets.get(queue_id, 0)
        message = vector_message(config | inputs, start + len(files[start]), queue_offset)
        remaining = file_size - len(files[start])
        if message.total_size + 8 > remaining:
            files[start] = (files[start] + oracle.blank(remaining)).ljust(file_size, b"\0")
            start += file_size
            files[start] = b""
            message = vector_message(config | inputs, start, queue_offset)
        files[start] += oracle.encode_message(message)
        queue_offsets[queue_id] = queue_offset + 1
        append(message)
    return {start: data.ljust(file_size, b"\0") for start, data in files.items()}


def test_mini_store() -> None:
    store = VECTORS["mini_store"]
    config = store["config"]
    messages: list[Message] = []
    files = lay_mini_store(messages.append)
    assert {oracle.file_name(start): data.hex() for start, data in files.items()} == store["commitlog"]

    walk = oracle.walk_files(files, config["mappedFileSizeCommitLog"])
    assert (walk.messages, walk.stop, walk.blank) == (messages, store["max_phy_offset"], False)
    told = [
        (told["physical_offset"], told["size"], told["queue_id"], told["queue_offset"])
        for told in store["messages"]
    ]
    assert [(m.physical_offset, m.total_size, m.queue_id, m.queue_offset) for m in messages] == told

    queues: dict[str, dict[str, str]] = {}
    for message in messages:
        name = oracle.file_name(20 * message.queue_offset // 60 * 60)
        queue = queues.setdefault(f"{message.topic}/{message.queue_id}", {})
        unit = oracle.cq_unit(message.physical_offset, message.total_size, oracle.tags_code(message))
        queue[name] = queue.get(name, "") + unit.hex()
    assert queues == store["consumequeue"]

    index = oracle.build_index_files(
        messages, config["maxHashSlotNum"], config["maxIndexNum"], tag_keys=False
    )
    assert [data.hex() for data in index] == [told["hex"] for told in store["index_files_in_order"]]
