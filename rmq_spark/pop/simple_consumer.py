"""`SimpleConsumer`: RocketMQ 5's consumer that receives, acknowledges and delays messages one by one."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from types import TracebackType

from rmq_spark.consume.client_ids import check_group
from rmq_spark.consume.sql92 import CountingFilter, parse_sql92
from rmq_spark.consume.tag_filter import TagFilter, parse_tags
from rmq_spark.pop.choose import MESSAGES_MAX, check_message_num
from rmq_spark.pop.message import MessageView, ReceiptHandle
from rmq_spark.pop.metrics import ConsumerMetrics, Counters
from rmq_spark.pop.store_pop import StorePop
from rmq_spark.pop.topic_pop import PopRequest, TopicPop
from rmq_spark.pop.window import Subscription
from store_format.errors import InvalidReceiptHandleError, OptionError
from store_format.read.cluster import store_roots

_INVISIBLE_MIN, _INVISIBLE_MAX = 10.0, 12 * 3600.0  # minInvisibleTimeMillsForRecv, maxInvisibleTimeMills
_POLL_SECONDS = 0.005


@dataclass(frozen=True, slots=True)
class FilterExpression:
    """What a consumer reads of a topic: a TAG expression, or an SQL92 expression.

    >>> FilterExpression("price > 3", "SQL92").type
    'SQL92'
    """

    expression: str = "*"
    type: str = "TAG"

    def compile(self) -> Subscription:
        """Raises OptionError for an expression that RocketMQ refuses."""
        if self.type == "TAG":
            return Subscription(parse_tags(self.expression))
        if self.type == "SQL92":
            return Subscription(TagFilter(), CountingFilter(parse_sql92(self.expression)))
        raise OptionError(f"FilterExpression: expected type TAG or SQL92, found {self.type!r:.40}")


class SimpleConsumer:
    """Receives messages of a store, or of all stores of a cluster directory, for a consumer group.

    Any number of consumers, in any number of processes, share the queues: each message goes to one of them,
    and is invisible to the others for the invisible duration of the receive. A message that is not
    acknowledged in that time is delivered again. `subscriptions` has a TAG expression, or a FilterExpression,
    for each topic.

    `fifo`: messages of a queue are delivered in order, one batch at a time; None: if the group has
    consumeMessageOrderly in subscriptionGroup.json.

    Example::

        with SimpleConsumer("/data/store", "billing", {"Orders": "TagA || TagB"}) as consumer:
            for message in consumer.receive(32, invisible_duration=30):
                print(message.message_id, message.body)
                consumer.ack(message)
    """

    def __init__(
        self,
        path: str,
        group: str,
        subscriptions: Mapping[str, str | FilterExpression],
        await_duration: float = 30.0,
        *,
        max_attempts: int | None = None,
        fifo: bool | None = None,
        min_invisible_duration: float = _INVISIBLE_MIN,
        sync: bool = False,
        random: Random | None = None,
        clock_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self.path = os.path.abspath(path)
        self.group = check_group(group)
        self._subscriptions = _compiled(subscriptions)
        self._await = _seconds("await_duration", await_duration, 0.0, None)
        self._invisible_min = min_invisible_duration
        self._max_attempts = max_attempts
        self._fifo = fifo
        self._sync = sync
        self._random = random or Random()
        self._clock_ms = clock_ms
        self._counters = Counters()
        self._opening = threading.Lock()
        self._stores: list[StorePop] | None = None
        self._turn = 0

    # ---- open and close ------------------------------------------------------------------------------------

    def open(self) -> None:
        """Opens the stores; the first receive does so, too."""
        self._opened()

    def _opened(self) -> list[StorePop]:
        stores = self._stores
        if stores is None:
            with self._opening:
                if self._stores is None:
                    self._stores = [
                        StorePop(
                            root, self.group, self._subscriptions, max_attempts=self._max_attempts,
                            fifo=self._fifo, random=self._random, counters=self._counters, sync=self._sync,
                        )
                        for root in store_roots(self.path)
                    ]  # fmt: skip
                stores = self._stores
        return stores

    def close(self) -> None:
        with self._opening:
            stores, self._stores = self._stores, None
            for store in stores or ():
                store.close()

    def __enter__(self) -> SimpleConsumer:
        self.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # ---- receive -------------------------------------------------------------------------------------------

    def receive(
        self,
        max_message_num: int = MESSAGES_MAX,
        invisible_duration: float = 30.0,
        *,
        attempt_id: str | None = None,
    ) -> list[MessageView]:
        """Up to `max_message_num` messages; waits up to `await_duration` seconds for the first.

        Returns [] if none has come. The messages are invisible to other consumers for `invisible_duration`
        seconds (10 s to 12 h). In order, a receive with the `attempt_id` of the last receive of a queue gets
        the same messages again. Raises OptionError for numbers outside of RocketMQ's limits.
        """
        count = check_message_num(max_message_num)
        invisible = _seconds("invisible_duration", invisible_duration, self._invisible_min, _INVISIBLE_MAX)
        stores = self._opened()
        deadline = time.monotonic() + self._await
        while True:
            request = PopRequest(count, round(invisible * 1000), self._clock_ms(), attempt_id=attempt_id)
            found = self._pop(stores, request)
            if found:
                return found
            left = deadline - time.monotonic()
            if left <= 0:
                return []
            time.sleep(min(left, _POLL_SECONDS))

    def _pop(self, stores: Sequence[StorePop], request: PopRequest) -> list[MessageView]:
        """The messages of the next topic and store that have some."""
        pops = [store.topics[topic] for topic in self._subscriptions for store in stores]
        self._turn += 1
        first = self._turn % len(pops)
        order = pops[first:] + pops[:first]
        found = _first_found(order, request)
        if not found and _look(stores):
            found = _first_found(order, request)
        return found

    def __iter__(self) -> Iterator[MessageView]:
        """Receives one message after the other without an end. It acknowledges none."""
        while True:
            yield from self.receive(1)

    # ---- handles -------------------------------------------------------------------------------------------

    def ack(self, messages: MessageView | str | Iterable[MessageView | str]) -> None:
        """Acknowledges a message, or several: they are not delivered again.

        Raises InvalidReceiptHandleError for a message whose invisible time is over; of several messages, the
        others are acknowledged.
        """
        given = [messages] if isinstance(messages, MessageView | str) else list(messages)
        by_pop: dict[int, tuple[TopicPop, list[ReceiptHandle]]] = {}
        for each in given:
            handle = ReceiptHandle.parse(each) if isinstance(each, str) else each.handle
            pop = self._pop_of(each, handle)
            by_pop.setdefault(id(pop), (pop, []))[1].append(handle)
        errors: list[InvalidReceiptHandleError] = []
        now = self._clock_ms()
        for pop, handles in by_pop.values():
            errors += pop.ack(handles, now)
        if errors:
            raise errors[0]

    def change_invisible_duration(self, message: MessageView, invisible_duration: float) -> str:
        """Makes the message invisible for so many seconds from now on. Returns the new receipt handle."""
        seconds = _seconds("invisible_duration", invisible_duration, 0.0, _INVISIBLE_MAX)
        pop = self._pop_of(message, message.handle)
        found = pop.change_invisible(message.handle, round(seconds * 1000), self._clock_ms())
        if isinstance(found, InvalidReceiptHandleError):
            raise found
        message.handle = found
        return found.text

    def _pop_of(self, message: MessageView | str, handle: ReceiptHandle) -> TopicPop:
        for store in self._opened():
            for pop in store.topics.values():
                if pop.broker_name == handle.broker_name and (
                    isinstance(message, str) or pop.topic == message.topic
                ):
                    return pop
        raise InvalidReceiptHandleError(handle.text, "names a broker that is not in this path")

    def metrics(self) -> ConsumerMetrics:
        """What this consumer has done so far."""
        return self._counters.snapshot()


def _look(stores: Sequence[StorePop]) -> bool:
    """Looks at all stores; whether one has changed."""
    changed = [store.look() for store in stores]
    return any(changed)


def _first_found(pops: Iterable[TopicPop], request: PopRequest) -> list[MessageView]:
    for pop in pops:
        found = pop.pop(request)
        if found:
            return found
    return []


def _compiled(subscriptions: Mapping[str, str | FilterExpression]) -> dict[str, Subscription]:
    if not subscriptions:
        raise OptionError('subscriptions: expected at least one topic such as {"Orders": "*"}, found none')
    return {
        topic: (FilterExpression(each) if isinstance(each, str) else each).compile()
        for topic, each in subscriptions.items()
    }


def _seconds(name: str, value: float, low: float, high: float | None) -> float:
    if not value >= low or (high is not None and value > high):
        limits = f"at least {low:g}" if high is None else f"{low:g} to {high:g}"
        raise OptionError(f"{name}: expected {limits} seconds, found {value!r}")
    return value
