"""A store with a topic, consumers that end with their test, and what their listeners saw."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from rmq_spark.consumer import ConsumeContext, MessageExt, PullConsumer, PushConsumer
from tests.support.staged import append, numbered

_WAIT_S = 60

Place = tuple[str, int, int]
Listener = Callable[[Sequence[MessageExt], ConsumeContext], "str | None"]


class Heard:
    """The places that a listener got, in its order, and what it answers: success, or what `answer` says."""

    def __init__(
        self, answer: Callable[[Sequence[MessageExt], ConsumeContext], str | None] | None = None
    ) -> None:
        self.calls: list[list[Place]] = []
        self.times: list[int] = []
        self._count = 0
        self._answer = answer
        self._changed = threading.Condition()

    def __call__(self, messages: Sequence[MessageExt], context: ConsumeContext) -> str | None:
        with self._changed:
            self.calls.append([(each.stored_topic, each.queue_id, each.offset) for each in messages])
            self._count += len(messages)
            self.times += [0 if each.error else each.reconsume_times for each in messages]
            self._changed.notify_all()
        return "CONSUME_SUCCESS" if self._answer is None else self._answer(messages, context)

    @property
    def places(self) -> list[Place]:
        return [place for call in self.calls for place in call]

    def wait(self, count: int) -> list[Place]:
        """All places, once there are so many."""
        with self._changed:
            assert self._changed.wait_for(lambda: self._count >= count, _WAIT_S), self.calls
        return self.places


class Consumers:
    """Makes consumers of the group `g` of topic T, which begin at the first message."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.made: list[PushConsumer | PullConsumer] = []

    def push(
        self, listener: Any, *, orderly: bool = False, topics: Sequence[str] = ("T",), **arguments: Any
    ) -> PushConsumer:
        """Started."""
        consumer = PushConsumer(self.root, "g", **self._with(arguments))
        for topic in topics:
            consumer.subscribe(topic)
        consumer.register_message_listener(listener, orderly)
        self.made.append(consumer)
        consumer.start()
        return consumer

    def pull(self, **arguments: Any) -> PullConsumer:
        """Without a subscription."""
        consumer = PullConsumer(self.root, "g", **self._with(arguments))
        self.made.append(consumer)
        return consumer

    @staticmethod
    def _with(arguments: dict[str, Any]) -> dict[str, Any]:
        return {"consume_from_where": "CONSUME_FROM_FIRST_OFFSET", "lease_time": 5.0} | arguments


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _WAIT_S
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)


@pytest.fixture
def root(root: Path) -> Path:
    """Topic T, four queues of 5 messages."""
    append(root, numbered("T", 0, 20))
    return root


@pytest.fixture
def consumers(root: Path) -> Iterator[Consumers]:
    made = Consumers(root)
    yield made
    for consumer in made.made:
        consumer.shutdown()
