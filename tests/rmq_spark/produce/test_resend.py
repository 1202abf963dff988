"""A dead letter stored again is the message that its producer would send."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa

from rmq_spark.produce.send_back import resend, send_back
from store_format.message.encode import StoredMessages
from store_format.metadata.values import SubscriptionGroup
from tests.rmq_spark.produce.test_send_back import stored

QUEUES = np.array([4])


def _entries(raw: bytes) -> dict[str, str]:
    return dict(pair.split("\1", 1) for pair in raw.decode().split("\2") if pair)


def test_only_what_the_producer_set_is_kept() -> None:
    first = stored(
        ["UNIQ_KEY=U,KEYS=a b,TAGS=t,mine=1,WAIT=true"], sys_flag=np.array([0x309]), flag=np.array([5])
    )
    dead = send_back(first, SubscriptionGroup("g"), delay_levels=-1).messages
    given = StoredMessages(
        replace(
            first.messages,
            properties=dead.properties,
            reconsume_times=np.array([17]),
            physical_offset=np.array([0x1234]),
        )
    )
    copy = resend(given, pa.array(["Orders"]), QUEUES)
    assert _entries(copy.properties[0].as_py()) == {
        "UNIQ_KEY": "U", "KEYS": "a b", "TAGS": "t", "mine": "1", "WAIT": "true",
        "__RESENT_FROM": "0A00000100002A9F0000000000001234",
    }  # fmt: skip
    assert (copy.reconsume_times, np.asarray(copy.sys_flag).tolist()) == (0, [0x301])  # no transaction
    assert np.asarray(copy.flag).tolist() == [5]


def test_a_sharding_key_chooses_the_queue() -> None:
    """SelectMessageQueueByHash: abs(hashCode % 4). The hash of `b` is 98, of `polygenelubricants` -2^31."""
    keys = ["b", "polygenelubricants", "c"]
    given = stored([f"__SHARDINGKEY={key}" for key in keys] + ["a=1"])
    queues = np.asarray(resend(given, pa.array(["T"] * 4), np.full(4, 4)).queue_id).tolist()
    assert queues[:3] == [2, 0, 3]
    assert 0 <= queues[3] < 4


def test_a_copy_for_the_retry_topic_names_its_topic() -> None:
    copy = resend(stored([""]), pa.array(["%RETRY%g"]), QUEUES, origin_topics=pa.array(["Orders"]))
    assert _entries(copy.properties[0].as_py())["RETRY_TOPIC"] == "Orders"
