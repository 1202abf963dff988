"""The rules and the file of order pop against RocketMQ's own class, QueueLevelConsumerManager."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from rmq_spark.broker.pop.share import PopGroup, ShareOptions
from store_format import MessageStore
from store_format.java.fastjson import loads
from store_format.metadata.read import decode_order_infos, read_order_infos
from store_format.opened.store import Opened
from store_format.pop import order as order_info
from tests.interop.harness import RocketMQ
from tests.interop.pop import Handle
from tests.interop.pop_runs import IN_ORDER, STEPS, PopRuns
from tests.interop.programs import Program
from tests.support.order_commands import KEY, Command, OurOrder, counts_in_order, random_commands

VECTORS = Path(__file__).parents[1] / "vectors" / "order_info_vectors.json"


@pytest.fixture(scope="module")
def manager(rocketmq: Callable[[str], RocketMQ]) -> Iterator[Program]:
    """RocketMQ's class, one command a line."""
    program = rocketmq("5.5.0").program("PopOrder", [])
    yield program
    program.close()


def theirs(manager: Program, command: Command, file: bytes) -> tuple[Any, bytes]:
    """RocketMQ's result and its file after the command; `file` is the text for `load`."""
    manager.say(*(["load", file.decode()] if command[0] == "load" else command))
    line = manager.line(60.0)
    return line["result"], line["file"].encode()


def test_random_histories(manager: Program, whole: bool) -> None:
    """After every command the same result and, byte for byte, the same file."""
    commands = 0
    for seed in range(3000 if whole else 25):
        ours = OurOrder()
        for command in random_commands(Random(seed), 60):
            if command[0] == "load" and not ours.file:
                continue
            expected, expected_file = theirs(manager, command, ours.file)
            result, file = ours.answer(command)
            assert counts_in_order(result) == counts_in_order(expected), (seed, command)
            if decode_order_infos(loads(expected_file, "theirs")).get(KEY):
                assert file == expected_file, (seed, command)
            else:  # a broker keeps the name of a group without batches until it cleans
                assert not file or not decode_order_infos(loads(file, "ours")), (seed, command)
            commands += 1
    assert commands > 1000


def recorded(manager: Program, histories: int = 8) -> list[list[list[Any]]]:
    """RocketMQ's answers to some histories: command, result, and the file after every sixth command."""
    found = []
    for seed in range(histories):
        history: list[list[Any]] = []
        file = b""
        for number, command in enumerate(random_commands(Random(1_000_000 + seed), 60)):
            if command[0] != "load":
                result, file = theirs(manager, command, file)
                history.append([command, counts_in_order(result), None if number % 6 else file.decode()])
        found.append(history)
    return found


def test_vectors(manager: Program) -> None:
    """The recorded answers are RocketMQ's answers. To record them again, write `recorded` to the file."""
    assert json.loads(VECTORS.read_text()) == recorded(manager)


def test_the_file_that_a_broker_left(pop_runs: PopRuns) -> None:
    """The bytes of a real broker's file are ours, and a group that is opened here has its batches."""
    store = pop_runs.copy("in-order")
    path = store / "config" / "consumerOrderInfo.json"
    data = path.read_bytes()
    infos = (read_order_infos(Opened(str(store))) or {})[f"{STEPS}@{IN_ORDER}"]
    assert order_info.merge_order_infos(None, f"{STEPS}@{IN_ORDER}", infos) == data
    handles = [Handle.of(line["handle"]) for line in pop_runs.left.order]
    popped = {(queue, offset) for queue, info in infos.items() for offset in info.offsets}
    assert popped == {(each.queue_id, each.offset) for each in handles}
    (now,) = {info.pop_time for info in infos.values()}
    options = ShareOptions(fifo=True, clock_ms=lambda: now)
    share = PopGroup.open(MessageStore.open(str(store)), IN_ORDER, STEPS, options)
    assert share.run(lambda state: state.order.batches) == infos
    assert path.read_bytes() == data
    acknowledged = {queue for queue, info in infos.items() if info.commit_offset_bit}
    assert len(acknowledged) == 2
    assert share.run(lambda state: all(state.order.is_blocked(queue, now + 100, 1) for queue in infos))
    for each in handles:  # those of the Java client are good here
        place = each.queue_id, each.offset, each.pop_time
        done = share.run(lambda state, place=place: state.order.acknowledge(*place))  # type: ignore[misc]
        assert done or each.queue_id in acknowledged
    assert share.run(lambda state: state.order.in_flight) == 0
    share.close()
