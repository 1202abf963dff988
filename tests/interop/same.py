"""Two stores that began as copies of one, side by side: what each has written since."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TypeAlias

from store_format import MessageStore
from store_format.metadata.group_offsets import read_group_offsets
from store_format.metadata.read import read_delay_offsets
from store_format.opened.store import Opened
from tests.support.oracle import Message
from tests.support.staged import messages_of

Queue: TypeAlias = tuple[str, int]

SCHEDULED, TIMER = "SCHEDULE_TOPIC_XXXX", "rmq_sys_wheel_timer"
HALF, OP = "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC"
# When a timer message was put into the wheel and taken out.
_TIMES = re.compile(rb"(TIMER_ENQUEUE_MS|TIMER_DEQUEUE_MS)\x01[0-9]+")


@dataclass(frozen=True, slots=True, order=True)
class Written:
    """A message without its place and its times of storing."""

    topic: str
    queue_id: int
    uniq_key: str
    reconsume_times: int
    properties: bytes  # byte for byte, `_TIMES` without their values; of 4.9 in the order of their names
    body: bytes
    flag: int
    sys_flag: int
    born: tuple[int, tuple[str, int]]
    half: tuple[str, str]  # UNIQ_KEY and checks of the half at preparedTransactionOffset


class Copy:
    """A stopped store, and what it has above the end that both copies began with."""

    def __init__(self, root: Path, began: int, *, is_old: bool = False) -> None:
        self.root, self.began, self.is_old = root, began, is_old

    @cached_property
    def messages(self) -> list[Message]:
        return messages_of(self.root)

    @cached_property
    def _at(self) -> dict[int, Message]:
        return {each.physical_offset: each for each in self.messages}

    @cached_property
    def written(self) -> list[Written]:
        """All but the op records, in the order of the log."""
        return [
            self._written(each)
            for each in self.messages
            if each.physical_offset >= self.began and each.topic != OP
        ]

    def _written(self, message: Message) -> Written:
        half = self._at.get(message.prepared_transaction_offset) if message.sys_flag & 12 else None
        return Written(
            message.topic,
            message.queue_id,
            message.properties.get("UNIQ_KEY", ""),
            message.reconsume_times,
            self._properties(message.properties_bytes),
            message.body,
            message.flag,
            message.sys_flag,
            (message.born_timestamp, message.born_host),
            (half.properties["UNIQ_KEY"], half.properties.get("TRANSACTION_CHECK_TIMES", ""))
            if half
            else ("", ""),
        )

    def _properties(self, raw: bytes) -> bytes:
        named = _TIMES.sub(b"\\1\x01*", raw)
        return b"\x02".join(sorted(filter(None, named.split(b"\x02")))) if self.is_old else named

    @cached_property
    def decided(self) -> set[tuple[str, str]]:
        """UNIQ_KEY and checks of the halves that op records name."""
        halves = {each.queue_offset: each for each in self.messages if each.topic == HALF}
        named = [
            halves[int(offset)].properties
            for each in self.messages
            if each.topic == OP
            for offset in each.body.decode().split(",")
            if offset
        ]
        return {(each["UNIQ_KEY"], each.get("TRANSACTION_CHECK_TIMES", "")) for each in named}

    @cached_property
    def in_order(self) -> dict[Queue, list[str]]:
        """The UNIQ_KEYs of each queue of the log, in the order of queueOffset, which has no gap."""
        queues: dict[Queue, list[tuple[int, str]]] = defaultdict(list)
        for each in self.messages:
            queues[each.topic, each.queue_id].append((each.queue_offset, each.properties.get("UNIQ_KEY", "")))
        for queue, found in queues.items():
            assert [offset for offset, _ in found] == list(range(len(found))), queue
        return {queue: [key for _, key in found] for queue, found in queues.items()}

    @cached_property
    def queue_sizes(self) -> dict[Queue, tuple[int, int]]:
        """What readers are told: min and max offset of every queue that has messages."""
        queues = MessageStore.open(str(self.root)).queues()
        return {
            (each.topic, each.queue_id): (each.min_offset, each.max_offset)
            for each in queues
            if each.max_offset
        }

    @cached_property
    def delays(self) -> Counter[tuple[int, str, int]]:
        """(queue, UNIQ_KEY, tags code less the storeTimestamp) of each entry of SCHEDULE_TOPIC_XXXX since."""
        found: Counter[tuple[int, str, int]] = Counter()
        for queue in MessageStore.open(str(self.root)).queues():
            for batch in (
                queue.read(columns=["physicalOffset", "tagsCode"]) if queue.topic == SCHEDULED else ()
            ):
                for row in batch.to_pylist():
                    message = self._at[row["physicalOffset"]]
                    if message.physical_offset >= self.began:
                        delay = row["tagsCode"] - message.store_timestamp
                        found[queue.queue_id, message.properties["UNIQ_KEY"], delay] += 1
        return found

    @property
    def delay_offsets(self) -> dict[int, int] | None:
        return read_delay_offsets(Opened(str(self.root)))

    def group_offsets(self, group: str) -> dict[Queue, int]:
        return read_group_offsets(Opened(str(self.root)), group)

    @property
    def timer_check(self) -> dict[str, int]:
        """The longs of timercheck that are no times."""
        path = self.root / "config" / "timercheck"
        data = path.read_bytes() if path.exists() else bytes(40)
        longs = [int.from_bytes(data[start : start + 8], "big") for start in range(0, 40, 8)]
        names = ("lastReadTimeMs", "lastTimerLogFlushPos", "lastTimerQueueOffset", "masterTimerQueueOffset")
        return dict(zip(names[1:], longs[1:4], strict=True))


def differences(left: Iterable[Written], right: Iterable[Written]) -> list[str]:
    """What only one side has, as lines to read; the order does not count."""
    ours, theirs = Counter(left), Counter(right)
    return [
        f"{name} {count} x {each}"
        for name, found in (("left ", ours - theirs), ("right", theirs - ours))
        for each, count in sorted(found.items())
    ]
