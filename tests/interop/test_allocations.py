"""Random allocations of queues to clients, by the strategies of RocketMQ's client and by ours."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from random import Random

import pytest

from rmq_spark.consume.allocate import AllocateMessageQueueStrategy, strategy
from rmq_spark.consume.consumer import MessageQueue, sort_clients, sort_queues
from tests.interop.harness import RocketMQ
from tests.interop.programs import Program

_ROOMS = ("hz", "sh", "bj")
_AT_ONCE = 500  # commands, before their answers are read


def crc(text: str) -> int:
    """A user's hash function."""
    return zlib.crc32(text.encode())


def _chosen(random: Random) -> tuple[str, str, AllocateMessageQueueStrategy]:
    """The name and the argument for Java, and our strategy."""
    nodes, room = random.randrange(1, 30), ",".join(random.sample(_ROOMS, random.randrange(1, 4)))
    inner = random.choice(("AVG", "AVG_BY_CIRCLE", "CONSISTENT_HASH"))
    return random.choice(
        (
            ("AVG", "", strategy("AVG")),
            ("AVG_BY_CIRCLE", "", strategy("AVG_BY_CIRCLE")),
            ("CONSISTENT_HASH", str(nodes), strategy("CONSISTENT_HASH", virtual_node_count=nodes)),
            (
                "CONSISTENT_HASH_CRC",
                str(nodes),
                strategy("CONSISTENT_HASH", virtual_node_count=nodes, hash_function=f"{__name__}:crc"),
            ),
            ("MACHINE_ROOM", room, strategy("MACHINE_ROOM", consumer_idcs=room.split(","))),
            ("MACHINE_ROOM_NEARBY", inner, strategy("MACHINE_ROOM_NEARBY", inner=inner)),
        )
    )


def _lists(random: Random) -> tuple[list[MessageQueue], list[str]]:
    """Queues and clients as every client of a group sorts them."""
    brokers = [f"{random.choice(_ROOMS)}@broker-{letter}" for letter in "abc"[: random.randrange(1, 4)]]
    queues = [MessageQueue("订单", broker, n) for broker in brokers for n in range(random.randrange(1, 10))]
    clients = {
        f"{random.choice(_ROOMS)}-10.0.0.{random.randrange(40)}@{i}" for i in range(random.randrange(1, 9))
    }
    return sort_queues({*queues}), sort_clients(clients)


def _compare(program: Program, count: int, seed: int) -> None:
    random = Random(seed)
    for start in range(0, count, _AT_ONCE):
        asked = []
        for _ in range(min(_AT_ONCE, count - start)):
            (name, argument, ours), (queues, clients) = _chosen(random), _lists(random)
            client = random.choice(clients)
            words = [word for queue in queues for word in queue]
            program.say(name, argument or "-", client, len(queues), *words, *clients)
            asked.append((name, ours, client, queues, clients))
        for name, ours, client, queues, clients in asked:
            expected = [queues[place] for place in program.line(60)["queues"]]
            found = ours.allocate("g", client, queues, clients)
            assert found == expected, (name, client, queues, clients)


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("version", "count"),
    [("4.9.7", 2_000), *(pytest.param("5.5.0", count, marks=pytest.mark.whole) for count in (2_000, 60_000))],
)
def test_random_allocations(rocketmq: Callable[[str], RocketMQ], version: str, count: int) -> None:
    program = rocketmq(version).program("Allocations", [])
    try:
        _compare(program, count, seed=count)
    finally:
        program.close()
