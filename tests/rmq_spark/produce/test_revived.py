"""Copies in pop retry topics are what a real broker stored there, byte for byte."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from rmq_spark.produce.send_back import refused_copies, revived
from store_format import MessageStore
from store_format.message.encode import encode
from store_format.message.hosts import parse_host
from tests.rmq_spark.produce.test_send_back import read, stored
from tests.support import goldens

GOLDEN = "pop-5.5.0"
RETRY = "%RETRY%CG_pop_PopWork"
Row = dict[str, Any]


@pytest.mark.parametrize("given_host", [True, False])
def test_copies_are_the_brokers(tmp_path_factory: pytest.TempPathFactory, given_host: bool) -> None:
    store = MessageStore.open(str(goldens.unpack(GOLDEN, tmp_path_factory.mktemp("golden") / "s")))
    rows = goldens.expected_rows(GOLDEN)
    first = {row["properties"]["UNIQ_KEY"]: row for row in rows if row["topic"] == "PopWork"}
    copies = [row for row in rows if row["topic"] == RETRY]
    made = revived(
        read(store, [first[row["properties"]["UNIQ_KEY"]] for row in copies]),
        "CG_pop",
        np.array([int(row["properties"]["1ST_POP_TIME"]) for row in copies]),
        broker_host=parse_host(copies[0]["storeHost"]) if given_host else None,
    )
    assert made.new_topics == {RETRY: 1}
    columns = replace(
        made.messages,
        physical_offset=np.array([row["physicalOffset"] for row in copies]),
        queue_offset=np.array([row["queueOffset"] for row in copies]),
        store_timestamp=np.array([row["storeTimestamp"] for row in copies]),
    )
    units = list(encode(columns))
    assert len(units) == len(copies) == 24
    for row, unit in zip(copies, units, strict=True):
        assert unit == bytes(store.log.read(row["physicalOffset"], row["storeSize"]))


# ---- made up messages --------------------------------------------------------------------------------------


def property_maps(messages: Any) -> list[dict[str, str]]:
    return [
        dict(each.split("\x01") for each in raw.decode().split("\x02") if each)
        for raw in messages.properties.to_pylist()
    ]


def test_a_copy_of_a_copy_stays_in_its_retry_topic_with_the_time_of_the_first_pop() -> None:
    given = ["1ST_POP_TIME=5,ORIGIN_GROUP=other,a=1", "1ST_POP_TIME=5", "a=1"]
    topics = ["%RETRY%g_Orders", "Orders", "%RETRY%g+Orders"]
    times = np.array([2, 0, 1])
    made = revived(stored(given, topic=pa.array(topics), reconsume_times=times), "g", 77)
    assert pa.array(made.messages.topic).to_pylist() == [
        "%RETRY%g_Orders",
        "%RETRY%g_Orders",
        "%RETRY%g+Orders",
    ]
    assert made.new_topics == {"%RETRY%g_Orders": 1, "%RETRY%g+Orders": 1}
    assert np.asarray(made.messages.reconsume_times).tolist() == [3, 1, 2]
    assert property_maps(made.messages) == [
        {"1ST_POP_TIME": "5", "ORIGIN_GROUP": "g", "a": "1"},
        {"1ST_POP_TIME": "77", "ORIGIN_GROUP": "g"},
        {"1ST_POP_TIME": "77", "ORIGIN_GROUP": "g", "a": "1"},
    ]


def test_a_suspended_message_keeps_its_times_and_separate_queues_keep_the_queue() -> None:
    messages = stored(["", "", ""], reconsume_times=np.array([1, 1, 1]), queue_id=np.array([3, 3, 9]))
    made = revived(messages, "g", 7, keeps_times=np.array([True, False, False]), queue_nums=4)
    assert np.asarray(made.messages.reconsume_times).tolist() == [1, 2, 2]
    assert np.asarray(made.messages.queue_id).tolist() == [3, 3, 0]
    assert made.new_topics == {"%RETRY%g_Orders": 4}
    assert np.asarray(revived(messages, "g", 7).messages.queue_id).tolist() == [0, 0, 0]


def test_an_ipv6_broker_is_the_born_host_too() -> None:
    made = revived(stored([""]), "g", 7, broker_host=(bytes(range(16)), 10911))
    assert np.asarray(made.messages.sys_flag).tolist() == [0x30]
    assert (made.messages.born_ip, made.messages.born_port) == (bytes(range(16)), 10911)


# What java 17 prints for `new HashMap()`, putAll of a HashMap(128) with b0, b1 …, then the two properties.
ORDERS = {
    0: "ORIGIN_GROUP,1ST_POP_TIME", 1: "1ST_POP_TIME,ORIGIN_GROUP,b0", 2: "ORIGIN_GROUP,1ST_POP_TIME,b0,b1",
    4: "b2,ORIGIN_GROUP,b3,1ST_POP_TIME,b0,b1",
    11: "b10,ORIGIN_GROUP,b0,b1,b2,b3,b4,b5,b6,b7,b8,b9,1ST_POP_TIME",
    14: "b10,ORIGIN_GROUP,b12,b11,b13,b0,b1,b2,b3,b4,b5,b6,b7,b8,b9,1ST_POP_TIME",
}  # fmt: skip


def test_without_tags_the_map_is_as_small_as_java_makes_it() -> None:
    texts = [",".join(f"b{number}=1" for number in range(size)) for size in ORDERS]
    made = revived(stored(texts), "g", 7)
    assert [",".join(each) for each in property_maps(made.messages)] == list(ORDERS.values())
    (tagged,) = property_maps(revived(stored(["TAGS=1"]), "g", 7).messages)
    assert list(tagged) == ["ORIGIN_GROUP", "1ST_POP_TIME", "TAGS"]


def test_batches_and_messages_of_light_queues_are_refused() -> None:
    messages = stored(
        ["", "INNER_NUM=2", "INNER_MULTI_DISPATCH=%LMQ%a", ""], sys_flag=np.array([0, 0, 0, 0x80])
    )
    assert refused_copies(messages).tolist() == [False, True, True, True]


def test_no_messages_make_no_copies() -> None:
    assert len(revived(stored([]), "g", 7).messages.body) == 0
