"""What is stored for failed messages is what a real broker stored for them, byte for byte."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from rmq_spark.produce.send_back import SentBack, give_up, offset_ids, send_back
from store_format import MessageStore
from store_format.errors import IllegalMessageError, OptionError, UnsupportedFormatError
from store_format.message.encode import MessageColumns, StoredMessages, encode
from store_format.message.hosts import parse_host
from store_format.metadata.values import SubscriptionGroup
from store_format.read.stored_messages import read_stored
from tests.support import goldens

GOLDEN = "retry-dlq-5.5.0"
DLQ, RETRY, PARKED = "%DLQ%CG_fail", "%RETRY%CG_fail", "SCHEDULE_TOPIC_XXXX"
Row = dict[str, Any]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> MessageStore:
    return MessageStore.open(str(goldens.unpack(GOLDEN, tmp_path_factory.mktemp("golden") / "s")))


@functools.cache
def rows_of(topic: str) -> tuple[Row, ...]:
    return tuple(row for row in goldens.expected_rows(GOLDEN) if row["topic"] == topic)


def read(store: MessageStore, rows: Sequence[Row]) -> StoredMessages:
    offsets = np.array([row["physicalOffset"] for row in rows], np.int64)
    sizes = np.array([row["storeSize"] for row in rows], np.int64)
    messages, places, damaged = read_stored(store.log, offsets, sizes)
    assert (places.tolist(), damaged) == (list(range(len(rows))), [])
    return messages


def origins(rows: Sequence[Row], among: Sequence[Row]) -> list[Row]:
    """The rows of `among` that became `rows`."""
    name = "UNIQ_KEY"
    by_id = {row["properties"][name]: row for row in among}
    return [by_id[row["properties"][name]] for row in rows]


def same_bytes(store: MessageStore, rows: Sequence[Row], made: SentBack) -> None:
    """Encoded with the places and the store times that the broker gave, the messages are the broker's."""
    columns = replace(
        made.messages,
        physical_offset=np.array([row["physicalOffset"] for row in rows]),
        queue_offset=np.array([row["queueOffset"] for row in rows]),
        store_timestamp=np.array([row["storeTimestamp"] for row in rows]),
    )
    assert len(rows) == len(made.is_dead) > 0
    for row, unit in zip(rows, encode(columns), strict=True):
        assert unit == bytes(store.log.read(row["physicalOffset"], row["storeSize"]))


def test_retries_are_the_brokers(store: MessageStore) -> None:
    rows = rows_of(PARKED)
    made = send_back(read(store, origins(rows, rows_of("Jobs"))), SubscriptionGroup("CG_fail"))
    assert (made.retried, made.dead_letters) == (20, 0)
    assert made.new_topics == {RETRY: 1, PARKED: 18}
    same_bytes(store, rows, made)


def test_dead_letters_after_the_maximum_are_the_brokers(store: MessageStore) -> None:
    rows = rows_of(DLQ)
    retries = read(store, origins(rows, rows_of(RETRY)))
    made = send_back(retries, SubscriptionGroup("CG_fail"), max_reconsume_times=1)
    assert (made.retried, made.dead_letters) == (0, 20)
    assert made.new_topics == {RETRY: 1, DLQ: 1}
    same_bytes(store, rows, made)
    by_group = send_back(retries, SubscriptionGroup("CG_fail", retry_max_times=1))
    assert by_group.messages.properties == made.messages.properties


def test_dead_letters_by_a_negative_level_are_the_brokers(store: MessageStore) -> None:
    rows = rows_of("%DLQ%CG_direct")
    first = read(store, origins(rows, rows_of("Jobs")))
    made = send_back(first, SubscriptionGroup("CG_direct"), delay_levels=-1)
    assert made.dead_letters == 7
    same_bytes(store, rows, made)


def test_an_orderly_dead_letter_is_the_brokers(store: MessageStore) -> None:
    (row,) = rows = rows_of("%DLQ%CG_orderly")
    made = give_up(
        read(store, origins(rows, rows_of("Steps"))),
        "CG_orderly",
        reconsume_times=1,
        max_reconsume_times=1,
        now_ms=row["bornTimestamp"],
        born_host=parse_host(row["bornHost"]),
        offset_range=(0, 10),
    )
    assert made.new_topics == {"%DLQ%CG_orderly": 1}
    same_bytes(store, rows, made)


# ---- made up messages --------------------------------------------------------------------------------------


def stored(properties: Sequence[str], **columns: Any) -> StoredMessages:
    """Messages of the topic Orders; properties as name=value, separated by commas."""
    count = len(properties)
    raw = [
        "".join(f"{each.replace('=', chr(1))}{chr(2)}" for each in text.split(",") if each)
        for text in properties
    ]
    zeros = np.zeros(count, np.int64)
    host = np.frombuffer(bytes([10, 0, 0, 1]).ljust(16, b"\0") * count, "V16")
    given: dict[str, Any] = {
        "topic": pa.array(["Orders"] * count),
        "physical_offset": np.arange(count, dtype=np.int64) * 1000,
        "queue_offset": np.arange(count, dtype=np.int64),
        "store_port": np.full(count, 10911),
        "born_ip": host,
        "store_ip": host,
    }
    numbers = (
        "queue_id", "flag", "sys_flag", "born_timestamp", "born_port", "store_timestamp", "reconsume_times",
        "prepared_transaction_offset",
    )  # fmt: skip
    given |= dict.fromkeys(numbers, zeros) | columns
    return StoredMessages(
        MessageColumns(
            body=pa.array([b"x"] * count, pa.large_binary()),
            properties=pa.array([each.encode() for each in raw], pa.large_binary()),
            **given,
        )
    )


def entries(made: SentBack) -> list[dict[str, str]]:
    return [
        dict(pair.split("\1", 1) for pair in raw.decode().split("\2") if pair)
        for raw in made.messages.properties.to_pylist()
    ]


GROUP = SubscriptionGroup("g")


def test_levels_grow_with_the_retries_and_end_at_the_highest() -> None:
    times = np.array([0, 1, 15, 16, 17])
    made = send_back(stored([""] * 5, reconsume_times=times), GROUP, level_max=10)
    assert [each["DELAY"] for each in entries(made)] == ["3", "4", "10", "0", "0"]
    assert np.asarray(made.messages.queue_id).tolist() == [2, 3, 9, 0, 0]
    assert pc.cast(made.messages.topic, pa.string()).to_pylist() == [PARKED] * 3 + ["%DLQ%g"] * 2
    assert np.asarray(made.messages.reconsume_times).tolist() == [1, 2, 16, 17, 18]
    assert (made.retried, made.dead_letters) == (3, 2)
    assert [each.get("REAL_TOPIC") for each in entries(made)] == ["%RETRY%g"] * 3 + [None] * 2


def test_each_message_may_have_its_level() -> None:
    made = send_back(stored([""] * 4), GROUP, delay_levels=np.array([1, 0, -1, 99]))
    assert [each["DELAY"] for each in entries(made)] == ["1", "3", "0", "18"]


def test_a_request_may_set_a_maximum_of_none() -> None:
    assert send_back(stored([""]), GROUP, max_reconsume_times=0).dead_letters == 1


def test_a_maximum_of_minus_one_is_the_default_of_a_concurrent_consumer() -> None:
    """DefaultMQPushConsumerImpl.getMaxReconsumeTimes sends 16 for it, whatever the group's retryMaxTimes."""
    group = SubscriptionGroup("g", retry_max_times=2)
    messages = stored([""] * 3, reconsume_times=np.array([2, 15, 16]))
    made = send_back(messages, group, max_reconsume_times=-1)
    assert made.is_dead.tolist() == [False, False, True]
    assert send_back(messages, group).is_dead.tolist() == [True, True, True]
    with pytest.raises(OptionError, match=r"max_reconsume_times=-2: expected -1 .* or a number from 0"):
        send_back(messages, GROUP, max_reconsume_times=-2)


def test_the_first_topic_and_id_stay() -> None:
    first, later = entries(
        send_back(stored(["WAIT=true", "RETRY_TOPIC=First,ORIGIN_MESSAGE_ID=ID,REAL_QID=9"]), GROUP)
    )
    assert first["RETRY_TOPIC"] == "Orders"
    assert first["ORIGIN_MESSAGE_ID"] == "0A00000100002A9F0000000000000000"
    assert first["WAIT"] == "false"
    assert (later["RETRY_TOPIC"], later["ORIGIN_MESSAGE_ID"], later["REAL_QID"]) == ("First", "ID", "0")


def test_a_delivered_timer_message_loses_its_timer_only_for_a_retry() -> None:
    """HookUtils.checkIfTimerMessage; without it, the broker's timer would delay the copy once more."""
    retry, dead = entries(
        send_back(stored(["TIMER_DELIVER_MS=5,a=1"] * 2), GROUP, delay_levels=np.array([0, -1]))
    )
    assert "TIMER_DELIVER_MS" not in retry
    assert dead["TIMER_DELIVER_MS"] == "5"


def test_a_committed_transaction_is_sent_back_without_its_half_message() -> None:
    made = send_back(stored([""], sys_flag=np.array([8]), prepared_transaction_offset=np.array([77])), GROUP)
    assert (np.asarray(made.messages.sys_flag).tolist(), made.messages.prepared_transaction_offset) == (
        [8],
        0,
    )


def test_retry_queues_are_used_evenly_and_the_same_each_time() -> None:
    messages = stored([""] * 400)
    made = [send_back(messages, replace(GROUP, retry_queue_nums=4)) for _ in range(2)]
    queues = [[int(each["REAL_QID"]) for each in entries(one)] for one in made]
    assert queues[0] == queues[1]
    assert all(60 < queues[0].count(queue) < 140 for queue in range(4))
    assert made[0].new_topics["%RETRY%g"] == 4


def test_a_store_host_of_six_names_the_first_message() -> None:
    wide = np.frombuffer(bytes(range(16)), "V16")
    ids = offset_ids(stored([""], store_ip=wide, sys_flag=np.array([0x20])))
    assert ids.to_pylist() == [bytes(range(16)).hex().upper() + "00002A9F" + "0" * 16]


def test_a_given_store_host_is_the_copies_not_the_first_messages() -> None:
    made = send_back(stored([""]), GROUP, store_host=(bytes([1, 2, 3, 4]), 5))
    assert (made.messages.store_ip, made.messages.store_port) == (bytes([1, 2, 3, 4]), 5)
    assert entries(made)[0]["ORIGIN_MESSAGE_ID"].startswith("0A000001")


def test_no_message_is_lost_for_a_group_without_retry_queues() -> None:
    with pytest.raises(OptionError, match=r"group g: expected retryQueueNums above 0 .* found 0"):
        send_back(stored([""]), replace(GROUP, retry_queue_nums=0))


@pytest.mark.parametrize(
    ("columns", "properties", "error", "what"),
    [
        ({"sys_flag": np.array([0, 0x80])}, "", IllegalMessageError, "offset 1: the message is a batch"),
        ({"sys_flag": np.array([0, 4])}, "", IllegalMessageError, "offset 1: the message is prepared"),
        ({}, "INNER_NUM=2", IllegalMessageError, "offset 1: the message is a batch"),
        ({}, "INNER_MULTI_DISPATCH=%LMQ%a", UnsupportedFormatError, "offset 1: the message is also in light"),
    ],
)
def test_messages_that_a_broker_refuses(
    columns: dict[str, Any], properties: str, error: type[Exception], what: str
) -> None:
    with pytest.raises(error, match=what):
        send_back(stored(["", properties], **columns), GROUP)


def test_a_group_name_too_long_for_dead_letters() -> None:
    name = "g" * 123
    assert send_back(stored([""]), SubscriptionGroup(name)).retried == 1
    with pytest.raises(IllegalMessageError, match="at most 127 characters, found 128"):
        send_back(stored([""]), SubscriptionGroup(name), delay_levels=-1)


def test_an_orderly_dead_letter_of_a_message_without_an_id() -> None:
    made = give_up(
        stored(["TRAN_MSG=true,RETRY_TOPIC=Elsewhere", "UNIQ_KEY=U"], sys_flag=np.array([0x309, 0])),
        "g",
        reconsume_times=np.array([3, 4]),
        max_reconsume_times=3,
        now_ms=1_700_000_000_000,
        born_host=(bytes(4), 0),
    )
    new, known = entries(made)
    assert new["ORIGIN_MESSAGE_ID"] == "0A00000100002A9F0000000000000000"
    assert (known["UNIQ_KEY"], known["ORIGIN_MESSAGE_ID"]) == ("U", "U")
    assert (len(new["UNIQ_KEY"]), new["RETRY_TOPIC"]) == (32, "Orders")
    assert (new["RECONSUME_TIME"], known["RECONSUME_TIME"]) == ("4", "5")
    assert "TRAN_MSG" not in new
    assert "MIN_OFFSET" not in new
    assert np.asarray(made.messages.sys_flag).tolist() == [0x301, 0]
