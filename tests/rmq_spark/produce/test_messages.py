"""Rows become messages: every column, what is made where it is silent, and every limit, read back by the
oracle.
"""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_spark.produce.messages import Compression, ProducerSettings
from store_format.errors import IllegalMessageError, OptionError
from store_format.index.file import key_hash
from store_format.index.updates import messages_of
from store_format.java.text import java_hash
from store_format.message.encode import encode
from store_format.metadata.values import TopicConfig
from tests.support import oracle
from tests.support.produced_batches import (
    BORN_HOST,
    MAP,
    NOW_MS,
    STORE_HOST,
    batch_of,
    decoded,
    message_of,
    produce,
    producer,
    routes_of,
    unplaced,
)
from tests.support.transcripts import Transcript

BIG = b"0123456789" * 1000
ROWS = Transcript(Path(__file__).with_name("rows.txt"))


def refused(
    error: type[Exception] = IllegalMessageError, settings: dict[str, Any] | None = None, **columns: Any
) -> str:
    row = {"topic": "TopicTest", "body": b"hello"} | columns
    arrays = {name: value if isinstance(value, pa.Array) else [value] for name, value in row.items()}
    with pytest.raises(error) as caught:
        produce(batch_of(**arrays), **(settings or {}))
    return unplaced(caught.value)


# ---- what a row says ---------------------------------------------------------------------------------------


def test_body_and_topic_are_enough() -> None:
    message = message_of()
    assert (message.topic, message.body) == ("TopicTest", b"hello")
    assert (message.flag, message.sys_flag, message.reconsume_times) == (0, 0, 0)
    hosts = (message.born_host, message.store_host)
    assert (message.born_timestamp, *hosts) == (NOW_MS, ("127.0.0.1", 4711), ("127.0.0.1", 10911))
    assert list(message.properties) == ["UNIQ_KEY", "WAIT"]
    assert message.properties["WAIT"] == "true"
    assert message.msg_id.startswith("7F0000010001014AE5A5")
    assert len(message.msg_id) == 32


def test_every_column() -> None:
    message = message_of(
        tags="TagA",
        keys="k1 k2",
        flag=-7,
        properties={"region": "eu", "MSG_REGION": "r"},
        shardingKey="user-1",
        bornTimestampMs=1_600_000_000_000,
        bornHost="10.1.2.3:5678",
        queueId=3,
    )
    assert message.properties | {"UNIQ_KEY": ""} == {
        "TAGS": "TagA",
        "KEYS": "k1 k2",
        "region": "eu",
        "MSG_REGION": "r",
        "__SHARDINGKEY": "user-1",
        "WAIT": "true",
        "UNIQ_KEY": "",
    }
    assert (message.flag, message.queue_id, message.born_timestamp) == (-7, 3, 1_600_000_000_000)
    assert message.born_host == ("10.1.2.3", 5678)


def test_columns_win_over_the_map_where_they_say_something() -> None:
    entries = {"TAGS": "m", "KEYS": "m", "__SHARDINGKEY": "m", "UNIQ_KEY": "MINE", "WAIT": "false"}
    batch = batch_of(
        topic=["t"] * 3,
        body=[b"x"] * 3,
        properties=[entries, entries, {}],
        tags=["c", None, ""],
        keys=["c", "", None],
        shardingKey=["c", None, None],
    )
    messages = produce(batch)
    first, second, third = (message.properties for message in decoded(messages))
    assert first == {"TAGS": "c", "KEYS": "c", "__SHARDINGKEY": "c", "UNIQ_KEY": "MINE", "WAIT": "false"}
    assert second == entries
    assert set(third) == {"UNIQ_KEY", "WAIT"}
    assert messages.tags.to_pylist() == [b"c", b"m", None]
    assert messages.keys.to_pylist() == [b"c", b"m", None]
    assert messages.uniq_key.to_pylist()[:2] == [b"MINE", b"MINE"]
    assert third["UNIQ_KEY"].encode() == messages.uniq_key[2].as_py()
    assert messages.tags_code.tolist() == [java_hash("c"), java_hash("m"), 0]


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.large_binary()])
def test_bodies_of_any_type(kind: pa.DataType) -> None:
    assert (
        message_of(body=pa.array(["消息" if kind != pa.large_binary() else "消息".encode()], kind)).body
        == "消息".encode()
    )


@pytest.mark.parametrize(
    ("keys", "stored"),
    [(["a", "b"], "a b"), (["a", None, "", "b"], "a b"), ([], None), ([None], None), (None, None)],
)
def test_an_array_of_keys_is_joined(keys: Any, stored: str | None) -> None:
    assert message_of(keys=pa.array([keys], pa.list_(pa.string()))).properties.get("KEYS") == stored


@pytest.mark.parametrize(
    ("unit", "value", "ms"),
    [
        ("s", 1_600_000_000, 1_600_000_000_000),
        ("ms", -1, -1),
        ("us", 1_999, 1),
        ("us", -1, -1),
        ("ns", 1_999_999, 1),
    ],
)
def test_times_are_cut_to_milliseconds(unit: str, value: int, ms: int) -> None:
    born = pa.array([value], pa.int64()).cast(pa.timestamp(unit, tz="Asia/Shanghai"))
    assert message_of(bornTimestamp=born).born_timestamp == ms
    assert message_of(bornTimestamp=born, bornTimestampMs=5).born_timestamp == ms


def test_a_time_that_no_calendar_shows_is_its_number() -> None:
    nothing = pa.array([None], pa.timestamp("us", tz="UTC"))
    assert message_of(bornTimestamp=nothing, bornTimestampMs=(1 << 63) - 1).born_timestamp == (1 << 63) - 1
    assert message_of(bornTimestamp=nothing).born_timestamp == NOW_MS
    assert message_of(bornTimestamp=datetime(2020, 1, 1, tzinfo=UTC)).born_timestamp == 1_577_836_800_000


def test_hosts_of_both_families() -> None:
    hosts = ["[2001:db8::1]:1", None, "10.0.0.1:2"]
    messages = produce(batch_of(topic=["t"] * 3, body=[b"x"] * 3, bornHost=hosts))
    assert [message.born_host for message in decoded(messages)] == [
        ("2001:db8:0:0:0:0:0:1", 1),
        ("127.0.0.1", 4711),
        ("10.0.0.1", 2),
    ]
    assert (messages.sys_flag & 0x10).tolist() == [0x10, 0, 0]
    assert [
        m.born_host for m in decoded(produce(batch_of(topic=["t"], body=[b"x"], bornHost=["10.0.0.1:2"])))
    ] == [("10.0.0.1", 2)]


def test_the_option_topic_wins() -> None:
    messages = produce(batch_of(topic=["other"], body=[b"x"]), topic="TopicTest")
    assert (messages.topics, messages.real_topics) == (("TopicTest",), ("TopicTest",))


def test_many_topics_and_slices() -> None:
    batch = batch_of(
        topic=["a", "b", "a", "c"],
        body=[b"1", b"2", b"3", b"4"],
        tags=["x", None, "y", "z"],
        properties=[{"p": "1"}, None, {}, {"q": "2"}],
    )
    whole, part = decoded(produce(batch)), decoded(produce(batch.slice(1, 2)))
    assert [
        (m.topic, m.body, m.properties.get("TAGS"), m.properties.get("p"), m.properties.get("q"))
        for m in whole
    ] == [
        ("a", b"1", "x", "1", None),
        ("b", b"2", None, None, None),
        ("a", b"3", "y", None, None),
        ("c", b"4", "z", None, "2"),
    ]
    assert [(m.topic, m.body) for m in part] == [("b", b"2"), ("a", b"3")]


def test_no_rows() -> None:
    batch = batch_of(
        topic=pa.array([], pa.string()),
        body=[],
        properties=pa.array([], MAP),
        tags=pa.array([], pa.string()),
        queueId=pa.array([], pa.int32()),
    )
    for topic in (None, "TopicTest"):
        messages = produce(batch, topic=topic)
        assert len(messages) == len(encode(messages.columns(STORE_HOST))) == 0


def test_the_filter_type_of_the_topic_is_in_the_sys_flag() -> None:
    routes = routes_of(TopicConfig("multi", topic_filter_type="MULTI_TAG"), TopicConfig("single"))
    assert produce(
        batch_of(topic=["multi", "single", "multi"], body=[b"x"] * 3), routes
    ).sys_flag.tolist() == [2, 0, 2]


def test_what_the_queues_and_the_index_need() -> None:
    batch = batch_of(
        topic=["a", "b", "a"],
        body=[b"x"] * 3,
        tags=["t", None, None],
        keys=["k l", None, "m"],
        queueId=[1, 1, 1],
    )
    messages = produce(batch)
    queues, places = messages.queues()
    assert [queues[place] for place in places] == [("a", 1), ("b", 1), ("a", 1)]
    hashes, ends = messages.key_hashes()
    expected = [
        (i, key_hash(key))
        for i, message in enumerate(decoded(messages))
        for key in oracle.index_keys(message)
    ]
    assert list(zip(messages_of(ends).tolist(), hashes.tolist(), strict=True)) == expected
    assert len(messages.key_hashes(tag_keys=False)[0]) == len(expected) - 1


# ---- compression -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "flag"), [("ZLIB", 0x301), ("LZ4", 0x101), ("ZSTD", 0x201)])
def test_large_bodies_are_compressed(kind: str, flag: int) -> None:
    sizes = [4095, 4096, 10_000]
    messages = decoded(
        produce(batch_of(topic=["t"] * 3, body=[BIG[:size] for size in sizes]), compression=Compression(kind))
    )
    assert [message.sys_flag for message in messages] == [0, flag, flag]
    assert [len(message.decompressed) for message in messages] == sizes
    assert len(messages[2].body) < 1000


def test_without_a_compression_nothing_is() -> None:
    assert message_of(body=BIG).sys_flag == 0


# ---- properties --------------------------------------------------------------------------------------------

LEFT = {
    "DELAY": "3", "TIMER_OUT_MS": "1", "REAL_TOPIC": "x", "PGROUP": "g", "__CRC32#": "1", "INNER_NUM": "2",
    "empty": "", "DUP_INFO": "1_2",
}  # fmt: skip


def test_properties_of_rocketmq_are_left_out_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    making = producer()
    batch = batch_of(
        topic=["t"] * 2,
        body=[b"x"] * 2,
        properties=[LEFT | {"ORIGIN_COUNTRY": "de"}, {"DELAY": "1", "CLUSTER": "c"}],
    )
    first, second = decoded(making.produce(batch, NOW_MS))
    assert set(first.properties) == {"ORIGIN_COUNTRY", "UNIQ_KEY", "WAIT"}
    assert set(second.properties) == {"CLUSTER", "UNIQ_KEY", "WAIT"}
    making.produce(batch.slice(1), NOW_MS)
    assert making.left_out == dict.fromkeys(LEFT, 1) | {"DELAY": 3}
    with caplog.at_level(logging.WARNING):
        making.report()
    (record,) = caplog.records
    assert record.getMessage().startswith(
        "10 properties were left out because RocketMQ sets them itself or they are empty: DELAY (3), "
    )


def test_nothing_left_out_is_not_worth_a_word(caplog: pytest.LogCaptureFixture) -> None:
    making = producer()
    making.produce(batch_of(topic=["t"], body=[b"x"], properties=[{"a": "1"}]), NOW_MS)
    making.report()
    assert not caplog.records


def test_strict_properties_takes_a_clients() -> None:
    names = (
        "TAGS", "KEYS", "UNIQ_KEY", "WAIT", "__SHARDINGKEY", "BUYER_ID", "INSTANCE_ID", "MSG_REGION",
        "TRACE_ON", "CLUSTER", "CORRELATION_ID",
    )  # fmt: skip
    batch = batch_of(topic=["t"], body=[b"x"], properties=[dict.fromkeys(names, "v")])
    assert decoded(produce(batch, strict_properties=True))[0].properties == dict.fromkeys(names, "v")


def test_what_was_read_keeps_its_order_where_names_share_a_bucket() -> None:
    assert (
        message_of(properties={"BB": "1", "Aa": "2", "UNIQ_KEY": "u", "WAIT": "true"}).properties_bytes
        == message_of(properties={"UNIQ_KEY": "u", "BB": "1", "WAIT": "true", "Aa": "2"}).properties_bytes
    )
    assert b"BB\x011\x02Aa\x012\x02" in message_of(properties={"BB": "1", "Aa": "2"}).properties_bytes
    assert b"Aa\x012\x02BB\x011\x02" in message_of(properties={"Aa": "2", "BB": "1"}).properties_bytes


_TEXT = st.none() | st.text(st.characters(codec="utf-8", exclude_characters="\x02 "), max_size=4)
_ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "topic": st.sampled_from("ab"),
            "body": st.binary(min_size=1, max_size=9),
            "tags": _TEXT,
            "keys": st.none() | st.lists(_TEXT, max_size=3),
            "shardingKey": _TEXT,
            "flag": st.none() | st.integers(-(1 << 31), (1 << 31) - 1),
            "properties": st.none()
            | st.dictionaries(
                st.sampled_from(
                    ["TAGS", "KEYS", "WAIT", "UNIQ_KEY", "__SHARDINGKEY", "Aa", "BB", "DELAY", ""]
                ),
                _TEXT,
            ),
        }
    ),
    max_size=5,
)


def one_by_one(row: dict[str, Any]) -> dict[str, str]:
    """The properties of one message by the rules as they are told; UNIQ_KEY only where the row brings one."""
    properties = {
        name: value for name, value in (row["properties"] or {}).items() if name and value and name != "DELAY"
    }
    keys = " ".join(key for key in row["keys"] or () if key)
    for name, value in (("TAGS", row["tags"]), ("KEYS", keys), ("__SHARDINGKEY", row["shardingKey"])):
        if value:
            properties[name] = value
    return {"WAIT": "true"} | properties


@given(_ROWS)
def test_a_batch_is_its_rows_one_by_one(rows: list[dict[str, Any]]) -> None:
    kinds = {
        "topic": pa.string(),
        "body": pa.binary(),
        "tags": pa.string(),
        "keys": pa.list_(pa.string()),
        "shardingKey": pa.string(),
    }
    kinds |= {"flag": pa.int32(), "properties": MAP}
    values = {name: [row[name] for row in rows] for name in kinds}
    values["properties"] = [None if value is None else list(value.items()) for value in values["properties"]]
    messages = decoded(
        produce(batch_of(**{name: pa.array(values[name], kind) for name, kind in kinds.items()}))
    )
    made = []
    for row, message in zip(rows, messages, strict=True):
        properties = one_by_one(row)
        if "UNIQ_KEY" not in properties:
            made.append(message.properties["UNIQ_KEY"])
            properties["UNIQ_KEY"] = made[-1]
        assert message.properties == properties
        assert (message.topic, message.body, message.flag) == (row["topic"], row["body"], row["flag"] or 0)
    assert len(set(made)) == len(made)


def test_a_message_group_is_the_sharding_key() -> None:
    batch = batch_of(
        topic=["t"] * 3,
        body=[b"x"] * 3,
        properties=[{"__SHARDINGKEY": "m"}] * 3,
        messageGroup=["订单-1", None, None],
        shardingKey=[None, "k", None],
    )
    keys = [message.properties["__SHARDINGKEY"] for message in decoded(produce(batch))]
    assert keys == ["订单-1", "k", "m"]


# ---- limits ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("row", ROWS.questions)
def test_a_row_beyond_a_limit_is_named(row: str) -> None:
    columns = json.loads(row)
    settings = columns.pop("settings", {})
    if columns.get("body") is not None:
        columns["body"] = columns["body"].encode()
    ROWS.check(row, refused(settings=settings, **columns))


def test_properties_and_times_beyond_their_limits() -> None:
    expected = "topic TopicTest: expected properties of at most 32767 bytes, found 33055 bytes"
    assert refused(properties={"a": "x" * 33_000}).startswith(expected)
    expected = (
        "topic TopicTest: bornTimestamp: expected a time that fits 64 bits in ms, found 1152921504606846976 s"
    )
    assert refused(bornTimestamp=pa.array([1 << 60], pa.timestamp("s", tz="UTC"))).startswith(expected)


@pytest.mark.parametrize("topic", ["t" * 127, "%RETRY%group", "%DLQ%group", "a|b-c_1", "BenchmarkTest"])
def test_topics_a_client_may_send_to(topic: str) -> None:
    assert message_of(topic=topic).topic == topic


def test_the_row_is_found_in_the_batch() -> None:
    batch = batch_of(
        topic=["a", "b", "c"], body=[b"x"] * 3, properties=[{"p": "1"}, {}, {"p": "2", "q": "\x02"}]
    )
    with pytest.raises(
        IllegalMessageError, match=r"^topic c, row 2 \(body b'x'\): property q: expected a value without 0x02"
    ):
        produce(batch)
    with pytest.raises(IllegalMessageError, match=r"^topic b, row 1: expected a body of at least 1 byte"):
        produce(batch_of(topic=["a", "b"], body=[b"x", b""]))


def test_a_row_is_named_by_its_number_in_the_partition_and_by_its_keys() -> None:
    making = producer(partition=3)
    making.produce(batch_of(topic=["a"] * 10, body=[b"x"] * 10), NOW_MS)
    keys = [["order-1"], ["order-2", "customer-7"]]
    with pytest.raises(IllegalMessageError) as caught:
        making.produce(batch_of(topic=["a"] * 2, body=[b"x", b""], keys=keys), NOW_MS)
    sentence = (
        "topic a, row 11 of partition 3 (keys 'order-2 customer-7'): expected a body of at least 1 "
        "byte, found an empty one"
    )
    assert str(caught.value) == sentence
    making = producer(partition=0)
    with pytest.raises(
        IllegalMessageError, match=rf"^topic a, row 0 of partition 0 \(body b'{'y' * 40}'…\): flag: expected"
    ):
        making.produce(batch_of(topic=["a"], body=[b"y" * 41], flag=[1 << 40]), NOW_MS)


@pytest.mark.parametrize("host", [BORN_HOST, (bytes(16), 1)])
@pytest.mark.parametrize(("store_v6", "crc"), [(False, False), (True, True)])
def test_a_unit_that_fits_no_file_is_refused(host: tuple[bytes, int], store_v6: bool, crc: bool) -> None:
    batch = batch_of(topic=["t"], body=[b"x" * 1000])
    settings: dict[str, Any] = {"store_host_v6": store_v6, "crc_property": crc}
    columns = produce(batch, **settings).columns((bytes(16 if store_v6 else 4), 1))
    born = {"bornHost": [f"[::]:{host[1]}"]} if len(host[0]) == 16 else {}
    size = int(encode(columns, crc_property=crc).sizes[0]) + (12 if born else 0)
    batch = batch_of(topic=["t"], body=[b"x" * 1000], **born)
    assert len(produce(batch, file_sizes=(size + 8,), **settings)) == 1
    with pytest.raises(IllegalMessageError) as caught:
        produce(batch, file_sizes=(size + 7,), **settings)
    assert (
        unplaced(caught.value)
        == f"topic t: expected a message of at most {size - 1} bytes, which fits a commitlog file of "
        f"{size + 7} bytes (mappedFileSizeCommitLog), found {size} bytes"
    )


def test_properties_leave_room_for_an_appended_crc() -> None:
    room = 32_767 - len(message_of().properties_bytes) - len("a\x01\x02")
    for crc, size in ((False, room), (True, room - 20)):
        assert (
            len(produce(batch_of(topic=["t"], body=[b"x"], properties=[{"a": "x" * size}]), crc_property=crc))
            == 1
        )
        with pytest.raises(IllegalMessageError, match=rf"properties of at most {32_767 - 20 * crc} bytes"):
            produce(
                batch_of(topic=["t"], body=[b"x"], properties=[{"a": "x" * (size + 1)}]), crc_property=crc
            )


def test_a_topic_has_to_come_from_somewhere() -> None:
    with pytest.raises(
        OptionError, match=r"^topic: expected the option topic or a column topic, found neither$"
    ):
        produce(batch_of(body=[b"x"]))


def test_settings_travel_to_tasks() -> None:
    import pickle

    settings = ProducerSettings(BORN_HOST, compression=Compression("ZSTD", 1024, 3))
    assert pickle.loads(pickle.dumps(settings)) == settings


def test_messages_of_one_store_keep_their_order() -> None:
    messages = produce(
        batch_of(
            topic=["a"] * 5,
            body=[b"0", b"1", b"2", b"3", b"4"],
            tags=["x", None, "y", "z", "w"],
            bornHost=["[::1]:1", None, None, None, None],
        )
    )
    assert messages.of_store(0) is messages
    assert len(messages.of_store(1)) == 0
    spread = type(messages)(
        **{name: getattr(messages, name) for name in messages.__slots__}
        | {"store": np.array([0, 1, 0, 1, 1])}
    )
    assert [m.body for m in decoded(spread.of_store(1))] == [b"1", b"3", b"4"]
    assert [m.properties.get("TAGS") for m in decoded(spread.of_store(0))] == ["x", "y"]
    assert [m.born_host for m in decoded(spread.of_store(0))] == [("0:0:0:0:0:0:0:1", 1), ("127.0.0.1", 4711)]
