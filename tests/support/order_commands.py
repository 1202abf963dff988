"""Random sequences of commands of order pop, and our rules, as the program PopOrder runs RocketMQ's.

A command is a list of words, as PopOrder.java reads them. Times are multiples of an hour, so that no answer
depends on how long the program takes.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

from store_format.errors import CorruptStoreError
from store_format.java.fastjson import loads
from store_format.metadata.read import decode_order_infos
from store_format.metadata.values import OrderInfo
from store_format.pop import order as order_info

CLOCK_START = 1_700_000_000_000
HOUR = 3_600_000
KEY = "Orders@billing"
QUEUES = 3

Command = list[str | int]


def random_commands(random: Random, count: int) -> list[Command]:
    """One history of a group: pops, repeated attempts, acks of any batch, changes, cleaning."""
    clock = CLOCK_START
    commands: list[Command] = [["new"]]
    popped: dict[int, tuple[int, list[int]]] = {}
    attempts = ["", "", "a", "b", 'q"\n\x7fé']
    for _ in range(count):
        queue = random.randrange(QUEUES)
        pop_time, offsets = popped.get(queue, (clock, [5]))
        match random.choices(
            ["pop", "block", "ack", "visible", "advance", "clear", "clean", "load"],
            [5, 4, 10, 3, 3, 0.5, 0.5, 0.5],
        )[0]:
            case "pop":
                first = (
                    offsets[0] + random.choice([0, 0, 1, 3])
                    if random.random() < 0.9
                    else random.getrandbits(40)
                )
                size = random.choice([1, 2, 3, 5, 16, 32])
                offsets = sorted(random.sample(range(first, first + 2 * size), size))
                popped[queue] = (clock, offsets)
                attempt = random.choice(attempts)
                commands.append(
                    ["pop", KEY, queue, attempt, clock, random.choice([0, 1, 2]) * HOUR, *offsets]
                )
            case "block":
                commands.append(["block", KEY, queue, random.choice(attempts), random.choice([1, 2]) * HOUR])
            case "ack":
                at = random.choice([*offsets, offsets[0] - 1])
                commands.append(["ack", KEY, queue, at, pop_time - random.choice([0, 0, 0, 0, HOUR])])
            case "visible":
                at = random.choice([*offsets, *offsets, offsets[-1] + 1])
                then = clock + random.choice([-1, 1, 2, 3]) * HOUR + HOUR // 2
                commands.append(["visible", KEY, queue, at, pop_time - random.choice([0, 0, 0, HOUR]), then])
            case "advance":
                hours = random.choice([1, 1, 1, 2, 30])
                clock += hours * HOUR + HOUR // 8
                commands.append(["advance", hours * HOUR + HOUR // 8])
            case "clean":
                commands.append(["clean", KEY, random.choice([QUEUES, QUEUES - 1])])
            case name:
                commands.append([name, KEY, queue])
    return commands


class OurOrder:
    """Our rules, command by command. `answer` returns what PopOrder answers as `result` and `file`."""

    def __init__(self) -> None:
        self.file = b""
        self._infos: dict[int, OrderInfo] = {}
        self._now = CLOCK_START

    def answer(self, command: Command) -> tuple[Any, bytes]:
        result = getattr(self, f"_{command[0]}")(*command[1:])
        self.file = order_info.merge_order_infos(self.file, KEY, self._infos) or self.file
        return result, self.file

    def _new(self) -> None:
        self.__init__()  # type: ignore[misc]  # the program begins again, too

    def _advance(self, passed: int) -> None:
        self._now += passed

    def _pop(self, _: str, queue: int, attempt: str, pop_time: int, invisible: int, *offsets: int) -> str:
        info = self._infos[queue] = order_info.next_batch(
            self._infos.get(queue),
            offsets,
            pop_time=pop_time,
            invisible_ms=invisible,
            now_ms=self._now,
            attempt_id=attempt or None,
        )
        counts = info.consumed_count or {}
        least = min(counts.values()) if len(counts) == len(offsets) and counts else 0
        each = sorted(f"0 qo{queue}%{offset} {count}" for offset, count in counts.items())
        return ";".join([*each, f"0 {queue} {least}"])

    def _block(self, _: str, queue: int, attempt: str, invisible: int) -> bool:
        if queue not in self._infos:
            return False
        info = self._infos[queue]
        blocked = order_info.is_blocked(info, self._now, invisible, attempt or None)
        has_time = info.invisible_time is not None and info.invisible_time > 0
        if (not attempt or attempt != info.attempt_id) and info.offsets and not has_time:
            self._infos[queue] = replace(info, invisible_time=invisible)  # that of the first pop that asks
        return blocked

    def _ack(self, _: str, queue: int, offset: int, pop_time: int) -> int:
        if queue not in self._infos:
            return offset + 1
        self._infos[queue], result = order_info.acknowledge(self._infos[queue], offset, pop_time)
        return result

    def _visible(self, _: str, queue: int, offset: int, pop_time: int, then: int) -> None:
        if queue in self._infos:
            self._infos[queue] = order_info.with_next_visible(self._infos[queue], offset, pop_time, then)

    def _clear(self, _: str, queue: int) -> None:
        self._infos.pop(queue, None)

    def _clean(self, _: str, queues: int) -> None:
        self._infos = {
            queue: info
            for queue, info in self._infos.items()
            if queue < queues and not order_info.is_forgotten(info, self._now)
        }

    def _load(self, *_: object) -> None:
        """The file read again: nothing of a batch may be lost."""
        if self.file:
            read = decode_order_infos(loads(self.file, "file")).get(KEY, {})
            if read != self._infos:
                raise CorruptStoreError("consumerOrderInfo.json", 0, repr(self._infos), repr(read))


def counts_in_order(result: object) -> object:
    """A text of counts with its parts sorted: the broker names them in the order of a HashMap."""
    if isinstance(result, str):
        *each, last = result.split(";")
        return ";".join([*sorted(each), last])
    return result
