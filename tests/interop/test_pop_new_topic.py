"""A 5.5.0 broker deletes and creates a topic of which a group has messages in flight: all new ones come."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from rmq_spark.pop import SimpleConsumer
from tests.interop.harness import Broker, Client, RocketMQ
from tests.interop.pop import SETTINGS, PopClient
from tests.interop.programs import Line

_TOPIC, _GROUP = "Turns", "turns"
_KILLED_PROGRAM = """
import sys, time
from rmq_spark.pop import SimpleConsumer
consumer = SimpleConsumer(sys.argv[1], sys.argv[2], {sys.argv[3]: "*"}, 0, init_mode="MIN")
messages = consumer.receive(32, 120)
consumer.ack(messages[:20])
time.sleep(1.5)  # consumerOffset.json is written
print(len(messages), flush=True)
time.sleep(600)
"""


def _created(java: RocketMQ, broker: Broker) -> Client:
    """The administration of a broker, which has an empty topic now."""
    admin = Client(java.program("Admin", [broker.namesrv]))
    admin.ask("create-topic", broker.address, _TOPIC, 1)
    return admin


def _created_again(java: RocketMQ, broker: Broker, admin: Client) -> list[Line]:
    """The topic is deleted and created; returns its 100 new messages."""
    admin.ask("delete-topic", broker.address, _TOPIC, broker.namesrv)
    admin.ask("create-topic", broker.address, _TOPIC, 1)
    return broker.client().send(_TOPIC, 100)


def _leave_in_flight(store: Path, how: str) -> None:
    """32 messages are received and 20 acknowledged; 12 are left in flight for 120 s."""
    if how == "killed":
        command = [sys.executable, "-c", _KILLED_PROGRAM, str(store), _GROUP, _TOPIC]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "32\n"
            process.kill()
        return
    with SimpleConsumer(str(store), _GROUP, {_TOPIC: "*"}, 0, init_mode="MIN") as consumer:
        messages = consumer.receive(32, 120)
        assert len(messages) == 32
        consumer.ack(messages[:20])


@pytest.mark.parametrize("how", ["handed over", "killed", "by a client"])
def test_a_topic_that_was_created_again_is_read_from_its_first_message(
    rocketmq: Callable[[str], RocketMQ], tmp_path: Path, how: str
) -> None:
    java, store = rocketmq("5.5.0"), tmp_path / "store"
    store.mkdir()
    with java.broker(store, SETTINGS) as broker:
        admin = _created(java, broker)
        broker.client().send(_TOPIC, 60)
        if how == "by a client":
            with PopClient.start(java, broker, _GROUP) as client:
                client.batch_ack(_TOPIC, client.pop(_TOPIC, 20, 120_000))
                assert len(client.pop(_TOPIC, 12, 120_000)) == 12
                new = _created_again(java, broker, admin)
                client.die()
        admin.program.kill()
    if how != "by a client":
        _leave_in_flight(store, how)
        with java.broker(store, SETTINGS) as broker:
            admin = Client(java.program("Admin", [broker.namesrv]))
            new = _created_again(java, broker, admin)
            admin.program.kill()
    assert [line["queueOffset"] for line in new] == list(range(100))
    with SimpleConsumer(str(store), _GROUP, {_TOPIC: "*"}, 0, init_mode="MIN") as consumer:
        found = []
        while messages := consumer.receive(32, 120):
            found += [each.message_id for each in messages]
            consumer.ack(messages)
        assert consumer.metrics().lost == 0
    assert sorted(found) == sorted(line["uniqKey"] for line in new)
