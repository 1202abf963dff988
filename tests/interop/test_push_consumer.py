"""A group between a Java push consumer on a real broker and ours on its files: each goes on where the other
one stopped, with its retries and dead letters.
"""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from rmq_spark.consumer import ConsumeContext, MessageExt, PushConsumer
from rmq_spark.services import run_once
from store_format import MessageStore
from tests.interop.harness import RocketMQ
from tests.interop.versions import OLD
from tests.interop.workload import until
from tests.rmq_spark.client.conftest import Heard
from tests.support import goldens
from tests.support.fixtures import Golden

_TOPIC, _GROUP = "Orders", "ours_and_java"
_LATER = 4_000_000_000_000  # ms: every delay is over

_Place = tuple[int, int]


def _consume(
    path: Path, count: int, listener: Callable[..., Any] | None = None
) -> list[tuple[str, int, int]]:
    """What our consumer of the group is handed, until so many messages have come."""
    heard = Heard(listener)
    consumer = PushConsumer(path, _GROUP, consume_from_where="CONSUME_FROM_FIRST_OFFSET")
    consumer.subscribe(_TOPIC)
    consumer.register_message_listener(heard)
    with consumer:
        return heard.wait(count)


def _there(path: Path) -> set[_Place]:
    queues = MessageStore.open(str(path)).queues(lambda topic: topic == _TOPIC)
    return {(each.queue_id, at) for each in queues for at in range(each.min_offset, each.max_offset)}


@pytest.mark.parametrize("version", OLD)
def test_a_java_consumer_goes_on_where_ours_stopped(
    rocketmq: Callable[[str], RocketMQ], copy_of: Golden, version: str
) -> None:
    path = copy_of(f"basic-{version}")
    there = _there(path)
    failing = sorted(there)[7]

    def listen(messages: Sequence[MessageExt], context: ConsumeContext) -> str:
        context.delay_level_when_next_consume = 1
        fails = (messages[0].queue_id, messages[0].offset) == failing
        return "RECONSUME_LATER" if fails else "CONSUME_SUCCESS"

    places = _consume(path, len(there), listen)
    assert Counter((queue_id, offset) for _, queue_id, offset in places) == Counter(there)
    with rocketmq(version).broker(path, goldens.config(f"basic-{version}")) as broker:
        client = broker.client()
        sent = {(line["queueId"], line["queueOffset"]) for line in client.send(_TOPIC, 20, seed=1)}
        got = client.push_consume(_GROUP, _TOPIC, sent)
        later = {(line["queueId"], line["queueOffset"]) for line in client.send(_TOPIC, 12, seed=2)}
    retried = [line for line in got if line["reconsumeTimes"]]
    assert {(line["queueId"], line["queueOffset"]) for line in got if not line["reconsumeTimes"]} == sent
    (line,) = retried  # the message that failed in our consumer
    stored = MessageStore.open(str(path)).queue(_TOPIC, failing[0])
    (body,) = stored.to_table(failing[1], failing[1] + 1, columns=["body"])["body"].to_pylist()
    assert (line["topic"], base64.b64decode(line["body"]), line["reconsumeTimes"]) == (_TOPIC, body, 1)
    assert {place[1:] for place in _consume(path, 12)} == later


@pytest.mark.parametrize("version", OLD)
def test_retries_and_dead_letters_of_a_java_consumer_are_ours(
    rocketmq: Callable[[str], RocketMQ], copy_of: Golden, version: str
) -> None:
    """A message with the property fail=n fails while its reconsumeTimes are below n."""
    path = copy_of(f"basic-{version}")
    there = _there(path)
    with rocketmq(version).broker(path, goldens.config(f"basic-{version}")) as broker:
        client = broker.client()
        client.ask("consumer-start", _GROUP, _TOPIC, "false", 16)
        sent = client.send(_TOPIC, 8, seed=1, **{"put.fail": 3})
        count = len(there) + len(sent)
        until(lambda: client.ask("consumer-seen", _GROUP), lambda lines: len(lines) >= count, "all are seen")
        client.ask("consumer-stop", _GROUP)
    times: Counter[int] = Counter()

    def listen(messages: Sequence[MessageExt], context: ConsumeContext) -> str:
        assert messages[0].topic == _TOPIC
        times[messages[0].reconsume_times] += 1
        return "RECONSUME_LATER"

    run_once(str(path), ["schedule"], _LATER, apply=True)
    consumer = PushConsumer(path, _GROUP, max_reconsume_times=1)
    consumer.subscribe(_TOPIC)
    heard = Heard(listen)
    consumer.register_message_listener(heard)
    with consumer:
        assert {place[0] for place in heard.wait(len(sent))} == {f"%RETRY%{_GROUP}"}
    assert times == {1: 8}
    assert MessageStore.open(str(path)).queue(f"%DLQ%{_GROUP}", 0).max_offset == 8
