"""A 5.5.0 broker deletes and creates topics of which a group has messages in flight: all new ones come."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from rmq_spark.pop import SimpleConsumer
from tests.interop.harness import Broker, Client, RocketMQ
from tests.interop.pop import SETTINGS, PopClient
from tests.interop.programs import Line

# Topics, named by who has left messages in flight in them.
_CLOSED, _KILLED, _CLIENT = "Closed", "Killed", "Client"
_GROUP = "turns"
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


def _admin(java: RocketMQ, broker: Broker) -> Client:
    return Client(java.program("Admin", [broker.namesrv]))


def _created_again(broker: Broker, admin: Client, sender: Client, topic: str) -> list[Line]:
    """The topic is deleted and created; returns its 100 new messages."""
    admin.ask("delete-topic", broker.address, topic, broker.namesrv)
    admin.ask("create-topic", broker.address, topic, 1)
    return sender.send(topic, 100)


def _leave_in_flight(store: Path, topic: str) -> None:
    """32 messages are received and 20 acknowledged; 12 are left in flight for 120 s."""
    if topic == _KILLED:
        command = [sys.executable, "-c", _KILLED_PROGRAM, str(store), _GROUP, topic]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "32\n"
            process.kill()
        return
    with SimpleConsumer(str(store), _GROUP, {topic: "*"}, 0, init_mode="MIN") as consumer:
        messages = consumer.receive(32, 120)
        assert len(messages) == 32
        consumer.ack(messages[:20])


def test_a_topic_that_was_created_again_is_read_from_its_first_message(
    rocketmq: Callable[[str], RocketMQ], tmp_path: Path
) -> None:
    """Behind a consumer of ours that was closed, one that was killed, and a client of the broker."""
    java, store = rocketmq("5.5.0"), tmp_path / "store"
    store.mkdir()
    new = {}
    with java.broker(store, SETTINGS) as broker:
        admin, sender = _admin(java, broker), broker.client()
        for topic in (_CLOSED, _KILLED, _CLIENT):
            admin.ask("create-topic", broker.address, topic, 1)
            sender.send(topic, 60)
        with PopClient.start(java, broker, _GROUP) as client:
            client.batch_ack(_CLIENT, client.pop(_CLIENT, 20, 120_000))
            assert len(client.pop(_CLIENT, 12, 120_000)) == 12
            new[_CLIENT] = _created_again(broker, admin, sender, _CLIENT)
            client.die()
        admin.program.kill()
    for topic in (_CLOSED, _KILLED):
        _leave_in_flight(store, topic)
    with java.broker(store, SETTINGS) as broker:
        admin, sender = _admin(java, broker), broker.client()
        for topic in (_CLOSED, _KILLED):
            new[topic] = _created_again(broker, admin, sender, topic)
        admin.program.kill()
    for topic, lines in new.items():
        assert [line["queueOffset"] for line in lines] == list(range(100))
        with SimpleConsumer(str(store), _GROUP, {topic: "*"}, 0, init_mode="MIN") as consumer:
            found = []
            while messages := consumer.receive(32, 120):
                found += [each.message_id for each in messages]
                consumer.ack(messages)
            assert consumer.metrics().lost == 0
        assert sorted(found) == sorted(line["uniqKey"] for line in lines)
