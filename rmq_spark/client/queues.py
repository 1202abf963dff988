"""One queue of a consumer: the messages that were read ahead, handed out and are done.

As org.apache.rocketmq.client.impl.consumer.ProcessQueue: a position is committed up to the first message that
is not done, whatever is done behind it. A queue that went to another member is dropped: what is left of it is
not handed out, and what its messages report is not counted.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from rmq_spark.client.messages import MessageExt
from rmq_spark.consume.consumer import MessageQueue


@dataclass(frozen=True, slots=True)
class Thresholds:
    """How much of a queue a consumer holds: messages, bytes, and offsets between the first and the last."""

    messages: int
    bytes: int
    span: int | None


@dataclass(slots=True, eq=False)
class ProcessQueue:
    """`next_offset` is the next one to read, `place` that of the message before it (`follow.log_tail`).

    `epoch` is that of the owner, which ends with the queue's loss.
    """

    name: MessageQueue
    epoch: int
    next_offset: int
    place: int | None = None
    is_dropped: bool = False
    is_paused: bool = False
    is_suspended: bool = False  # an orderly listener failed: the queue waits
    is_leaving: bool = False  # it goes to another member after the call that has it
    is_unsure: bool = False  # its owner could not be read, and messages of it were not handed out
    bytes: float = 0.0
    _pending: dict[int, MessageExt] = field(default_factory=dict)  # read and not done, by ascending offset
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def committed(self) -> int:
        """The position to record: every message before it is done."""
        with self._lock:
            return next(iter(self._pending), self.next_offset)

    @property
    def held(self) -> int:
        """The number of messages that were read and are not done."""
        return len(self._pending)

    def room(self, thresholds: Thresholds) -> int:
        """How many messages may be read now: none until the queue is half empty again.

        A consumer that reads a few messages each time one is done would read all day.
        """
        room = thresholds.messages - len(self._pending)
        if room < max(thresholds.messages // 2, 1) or self.bytes >= thresholds.bytes:
            return 0
        if thresholds.span is not None and self.next_offset - self.committed > thresholds.span:
            return 0
        return room

    def put(self, messages: Sequence[MessageExt], next_offset: int, place: int | None = None) -> None:
        """Adds messages that were read; `next_offset` is behind them and behind those that do not match."""
        with self._lock:
            self._pending.update((each.offset, each) for each in messages)
            self.next_offset, self.place = next_offset, place
            self.bytes += sum(each.mean_size for each in messages)

    def first(self, count: int) -> list[MessageExt]:
        """The first messages that are not done, which an orderly listener gets."""
        with self._lock:
            return [each for each, _ in zip(self._pending.values(), range(count), strict=False)]

    def done(self, messages: Iterable[MessageExt]) -> None:
        """These messages are handled, or stored again."""
        with self._lock:
            before = len(self._pending)
            for each in messages:
                self._pending.pop(each.offset, None)
            self.bytes *= len(self._pending) / max(before, 1)
