"""The rules and the file of order pop against RocketMQ's own class, QueueLevelConsumerManager."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from store_format.java.fastjson import loads
from store_format.metadata.read_state import decode_order_infos
from tests.interop.harness import RocketMQ
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
    for seed in range(3000 if whole else 40):
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
