"""`SimpleConsumer`: RocketMQ 5's consumer that receives, acknowledges and delays messages one by one."""

from __future__ import annotations

import os
import socket
import threading
import time
import weakref
from _thread import start_new_thread
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from random import Random
from types import TracebackType
from typing import NoReturn

from rmq_spark.broker.pop.message import ConsumerMetrics, Counters, MessageView, checked_messages
from rmq_spark.broker.pop.opened_stores import Calls, OpenedStores, PopSettings
from rmq_spark.broker.pop.share import InitMode, ShareOptions, epoch_ms
from rmq_spark.broker.pop.topic_pop import MESSAGES_MAX, PopRequest, Subscription, check_message_num
from rmq_spark.broker.pop.waiting import WaiterClosedError
from rmq_spark.consume.consumer import check_group, parse_tags
from rmq_spark.consume.sql92 import CountingFilter, parse_sql92
from rmq_spark.options.option import Given, written_path
from store_format.errors import InvalidReceiptHandleError, OptionError
from store_format.opened.store import Opened
from store_format.pop.log import in_flight_directory

# The proxy's minInvisibleTimeMillsForRecv and maxInvisibleTimeMills.
_INVISIBLE_MIN, _INVISIBLE_MAX = 10.0, 12 * 3600.0


# ---- what a consumer subscribes to -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FilterExpression:
    """Which messages of a topic a consumer receives: a TAG expression, or an SQL92 expression.

    >>> FilterExpression("price > 3", "SQL92").filter_type
    'SQL92'
    """

    expression: str = "*"
    filter_type: str = "TAG"

    def compile(self) -> Subscription:
        """Returns the compiled filter. Raises OptionError for an expression that RocketMQ refuses."""
        if self.filter_type == "TAG":
            return Subscription(parse_tags(self.expression))
        if self.filter_type == "SQL92":
            return Subscription(where=CountingFilter(parse_sql92(self.expression)))
        raise OptionError(
            f"FilterExpression: expected filter_type TAG or SQL92, found {self.filter_type!r:.40}"
        )


def _compile_subscriptions(group: str, subscriptions: object) -> dict[str, Subscription]:
    """The compiled expressions by topic.

    Raises OptionError without a topic, for a name that RocketMQ does not allow, and for an expression that it
    refuses.
    """
    if not isinstance(subscriptions, Mapping) or not subscriptions:
        raise OptionError(
            'subscriptions: expected at least one topic such as {"Orders": "*"}, '
            f"found {repr(subscriptions)[:100] if subscriptions else 'none'}"
        )
    for topic, each in subscriptions.items():
        in_flight_directory(Opened(""), group, topic)
        if not isinstance(each, str | FilterExpression):
            raise OptionError(
                f"subscriptions: topic {topic}: expected tags such as 'TagA || TagB', '*', or a "
                f"FilterExpression, found {repr(each)[:100]}"
            )
    return {
        topic: (FilterExpression(each) if isinstance(each, str) else each).compile()
        for topic, each in subscriptions.items()
    }


def _check_seconds(name: str, value: object, low: float, high: float | None = None) -> float:
    """Returns the seconds, also of a timedelta. Raises OptionError for a value outside of the limits."""
    if isinstance(value, timedelta):
        value = value.total_seconds()
    if not isinstance(value, int | float) or not value >= low or (high is not None and value > high):
        limits = f"at least {low:g}" if high is None else f"{low:g} to {high:g}"
        raise OptionError(f"{name}: expected {limits} seconds, found {value!r}")
    return value


def _check_max_attempts(max_attempts: object) -> int | None:
    """Returns the largest number of deliveries. Raises OptionError for a number below 1."""
    if max_attempts is None:
        return None
    if not isinstance(max_attempts, int) or max_attempts < 1:
        raise OptionError(
            "max_attempts: expected at least 1 delivery, or None for what the group allows, "
            f"found {max_attempts!r}"
        )
    return max_attempts


# ---- the consumer ------------------------------------------------------------------------------------------


class SimpleConsumer:
    """Receives messages of a store, or of all stores of a cluster directory, for a consumer group.

    Any number of consumers, in any number of processes, share the queues. Each message goes to one consumer
    and is invisible to the others for the invisible duration of the receive. If it is not acknowledged in
    that time, it is delivered again. `subscriptions` maps each topic to a TAG expression or a
    FilterExpression.

    - `await_duration`: how long a receive waits for the first message; 0 does not wait. Durations are seconds
      or a timedelta.
    - `max_attempts`: after so many deliveries, a message becomes a dead letter. None: retryMaxTimes of the
      group, and the first delivery; 17 by default.
    - `fifo`: messages of a queue are delivered in order, one batch at a time. None: if the group has
      consumeMessageOrderly in subscriptionGroup.json.
    - `init_mode`: where a group without an offset starts in a queue from which messages were deleted: MAX at
      the last message, as RocketMQ's SimpleConsumer, or MIN at the first. Other queues are read from their
      first message.
    - `min_invisible_duration`: the lower limit of a receive (minInvisibleTimeMillsForRecv of the proxy).
    - `sync`: acknowledgements survive a power loss, not only the end of processes.

    Threads may share a consumer. A forked child may use it too, and is then another consumer. A signal
    handler may only close it: the call that the signal interrupts holds locks.

    Example::

        with SimpleConsumer("/data/store", "billing", {"Orders": "TagA || TagB"}) as consumer:
            for message in consumer.receive(32, invisible_duration=30):
                print(message.message_id, message.body)
                consumer.ack(message)
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        group: str,
        subscriptions: Mapping[str, str | FilterExpression],
        await_duration: float | timedelta = 20.0,
        *,
        max_attempts: int | None = None,
        fifo: bool | None = None,
        init_mode: InitMode = "MAX",
        min_invisible_duration: float = _INVISIBLE_MIN,
        sync: bool = False,
        random: Random | None = None,
        clock_ms: Callable[[], int] = epoch_ms,
    ) -> None:
        (self.path,) = written_path(Given("path", os.fsdecode(path), 0))
        self.group = check_group(group)
        self._await = _check_seconds("await_duration", await_duration, 0.0)
        self._invisible_min = _check_seconds(
            "min_invisible_duration", min_invisible_duration, 0.0, _INVISIBLE_MAX
        )
        if init_mode not in ("MIN", "MAX"):
            raise OptionError(f"init_mode: expected MIN or MAX, found {init_mode!r}")
        self._clock_ms = clock_ms
        self._counters = Counters()
        share = ShareOptions(
            init_mode=init_mode, young_from_zero=True, fifo=fifo, sync=sync, clock_ms=clock_ms
        )
        settings = PopSettings(
            group=self.group,
            subscriptions=_compile_subscriptions(self.group, subscriptions),
            share=share,
            random=random or Random(),
            counters=self._counters,
            max_attempts=_check_max_attempts(max_attempts),
        )
        self._is_closed = False
        self._begin(settings)
        _consumers.add(self)

    def _begin(self, settings: PopSettings) -> None:
        # the name of this consumer in views: of one process
        self.client_id = f"{socket.gethostname()}@{os.getpid()}"
        self._stores = OpenedStores(self.path, settings)
        self._calls = Calls()
        self._closing: threading.Thread | None = None

    # ---- open and close ------------------------------------------------------------------------------------

    def open(self) -> None:
        """Opens the stores. The first receive does so, too.

        Raises StoreInUseError while a broker has a store open, OptionError for a topic that no store has and
        for a group with queries that read whole queues, and UnsupportedFormatError for pop's state in
        RocksDB.
        """
        with self._working():
            self._stores.open()

    def close(self) -> None:
        """Leaves the group. Waiting receives of other threads end with [].

        The last consumer of the group hands over to a broker: it writes consumerOffset.json, and the messages
        in flight as a broker's records. If a consumer is not closed, the next consumer does this work.

        A signal handler may call this method. If the signal came during a call of this consumer, a thread
        closes the consumer when that call ends.
        """
        is_in_call = self._calls.is_mine()
        if self._is_closed:
            if self._closing is not None and not is_in_call:
                self._closing.join()
            return
        self._is_closed = True
        if is_in_call:
            self._closing = threading.Thread(target=self._close, name="rmqlog-pop-close")
            self._closing.start()
        else:
            self._close()

    def _close(self) -> None:
        try:
            self._stores.interrupt()
            self._calls.wait()
        except BaseException:  # Ctrl-C: the consumer leaves as one that was killed
            self._stores.leave()
            raise
        self._stores.close()

    @contextmanager
    def _working(self) -> Iterator[None]:
        """One call of the consumer; `close` waits for its end."""
        closed = f"{self.path}, group {self.group}: this consumer is closed; make another one"
        with self._calls:
            if self._is_closed:
                raise OptionError(closed)
            try:
                yield
            except WaiterClosedError as error:  # another thread has closed the consumer
                raise OptionError(closed) from error

    def forget(self) -> None:
        """In a forked child: threads and locks exist only in the parent. The next call opens the stores."""
        stores = self._stores
        self._counters.forget()
        self._begin(stores.settings)
        stores.abandon()

    def __del__(self) -> None:
        """A consumer that nobody closes leaves the group as one that was killed.

        In a thread of its own: the garbage collector may call this in a thread that has any of the locks.
        """
        if not getattr(self, "_is_closed", True):
            _leaving.append(self._stores)
            with suppress(RuntimeError):  # the interpreter ends, and the locks with it
                start_new_thread(_leave, (self._stores,))

    def __getstate__(self) -> NoReturn:
        raise TypeError(
            f"{self.path}, group {self.group}: a consumer cannot be pickled or copied; make a "
            "SimpleConsumer in each process"
        )

    def __enter__(self) -> SimpleConsumer:
        self.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # ---- subscriptions -------------------------------------------------------------------------------------

    def subscribe(self, topic: str, filter_expression: str | FilterExpression = "*") -> None:
        """Reads the topic too, or reads it with another filter from now on.

        Receives that wait in other threads wait for its messages too. Raises OptionError for a topic that no
        store has, and as `open`; then the subscriptions are as before. A consumer that is not open yet notes
        the topic, and opens it with the others.
        """
        compiled = _compile_subscriptions(self.group, {topic: filter_expression})
        with self._working():
            self._stores.subscribe(topic, compiled[topic])

    def unsubscribe(self, topic: str) -> None:
        """Leaves the topic, as `close` leaves all of them.

        Receives that have begun may return its messages; later ones do not. Acknowledge before: a message of
        the topic that is in flight is delivered again after its invisible time. Raises OptionError for a
        topic that is not subscribed.
        """
        with self._working():
            self._stores.unsubscribe(topic)

    # ---- receive -------------------------------------------------------------------------------------------

    def receive(
        self,
        max_message_num: int = MESSAGES_MAX,
        invisible_duration: float | timedelta = 30.0,
        *,
        attempt_id: str | None = None,
    ) -> list[MessageView]:
        """Returns up to `max_message_num` messages of one topic; waits up to `await_duration` seconds for the
        first.

        Returns [] if no message has come. The messages are invisible to other consumers for
        `invisible_duration` seconds (10 s to 12 h). In order, a receive with the `attempt_id` of the last
        receive of a queue gets the same messages again. If the call is interrupted, the messages that it had
        taken are delivered again.

        Raises OptionError outside of RocketMQ's limits, and StoreInUseError once a broker has the store.
        """
        count = check_message_num(max_message_num)
        seconds = _check_seconds(
            "invisible_duration", invisible_duration, self._invisible_min, _INVISIBLE_MAX
        )
        invisible_ms = round(seconds * 1000)

        def request() -> PopRequest:
            return PopRequest(count, invisible_ms, self._clock_ms(), self.client_id, attempt_id)

        with self._working():
            if not self._stores.settings.subscriptions:
                raise OptionError(f"{self.path}, group {self.group}: no topic is subscribed; call subscribe")
            try:
                found, waits, notified = self._receive(request)
            except WaiterClosedError:
                found, waits, notified = [], 0, 0  # another thread closes the consumer
        self._counters.add(
            receives=1,
            received=len(found),
            redelivered=sum(each.delivery_attempt > 1 for each in found),
            empty=not found,
            short_polling_hit=bool(found and not waits),
            long_polling=waits > 0,
            notified=notified,
        )
        return found

    def _receive(self, request: Callable[[], PopRequest]) -> tuple[list[MessageView], int, int]:
        """(the messages, how often the call has waited, how often news have ended a wait)."""
        deadline = time.monotonic() + self._await
        stores, waits, notified = self._stores, 0, 0
        found = stores.pop(request())
        if found:
            return found, 0, 0
        look = stores.open()  # at the first call; later only looks
        while True:
            found = stores.pop_from(look, request())
            left = deadline - time.monotonic()
            if found or left <= 0 or self._is_closed:
                return found, waits, notified
            waits += 1
            until = stores.next_visible(request())
            if until is not None:
                left = min(left, max(until - self._clock_ms(), 1) / 1000)
            before, look = look, stores.wait(look, left)
            notified += look is not before

    def __iter__(self) -> Iterator[MessageView]:
        """Receives one message after the other until the consumer is closed. It acknowledges none.

        The messages are invisible for 30 s each. A loop that ends leaves no message taken and unseen.
        """
        while True:
            try:
                found = self.receive(1)
            except OptionError:
                if self._is_closed:
                    return
                raise
            yield from found

    # ---- handles -------------------------------------------------------------------------------------------

    def ack(self, messages: MessageView | str | Iterable[MessageView | str]) -> None:
        """Acknowledges one message or several, so that they are not delivered again.

        If the consumer reads one topic, you may pass receipt handles instead of messages.

        Raises InvalidReceiptHandleError for a message whose invisible time is over, or whose handle was used
        before. The other messages of the list are acknowledged; the error is the first one.
        """
        given = checked_messages(messages)
        with self._working():
            self._stores.open_once()
            errors = self._stores.ack(given, self._clock_ms())
        self._counters.add(acked=len(given) - len(errors), invalid_handles=len(errors))
        if errors:
            raise errors[0]

    def change_invisible_duration(
        self, message: MessageView | str, invisible_duration: float | timedelta
    ) -> str:
        """Makes a message invisible for so many seconds from now, up to 12 h. Returns its new receipt handle.

        The old handle is no longer valid; a MessageView gets the new handle. With 0, the message is delivered
        again at once, unless it has reached the group's maximum of deliveries.

        Raises InvalidReceiptHandleError as `ack` does.
        """
        seconds = _check_seconds("invisible_duration", invisible_duration, 0.0, _INVISIBLE_MAX)
        with self._working():
            self._stores.open_once()
            found = self._stores.change_invisible(message, round(seconds * 1000), self._clock_ms())
        if isinstance(found, InvalidReceiptHandleError):
            self._counters.add(invalid_handles=1)
            raise found
        self._counters.add(changed=1)
        if isinstance(message, MessageView):
            message.handle = found
        return found.text

    def metrics(self) -> ConsumerMetrics:
        """Returns the counters of this consumer."""
        return self._counters.snapshot()


_consumers: weakref.WeakSet[SimpleConsumer] = weakref.WeakSet()
_leaving: list[OpenedStores] = []  # of consumers that were collected, until their threads have ended


def _leave(stores: OpenedStores) -> None:
    try:
        stores.leave()
    finally:
        _leaving.remove(stores)


def _forget_after_fork() -> None:
    for consumer in list(_consumers):
        consumer.forget()
    for stores in _leaving:
        stores.abandon()  # the thread that was about to close them exists only in the parent
    _leaving.clear()


os.register_at_fork(after_in_child=_forget_after_fork)
