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
from random import Random
from types import TracebackType
from typing import NoReturn

from rmq_spark.consume.client_ids import check_group
from rmq_spark.options.parse import Given
from rmq_spark.options.paths import single_path
from rmq_spark.pop.choose import MESSAGES_MAX, check_message_num
from rmq_spark.pop.filters import (
    FilterExpression,
    check_max_attempts,
    check_seconds,
    compile_subscriptions,
)
from rmq_spark.pop.message import MessageView, ReceiptHandle
from rmq_spark.pop.metrics import ConsumerMetrics, Counters
from rmq_spark.pop.opened_stores import OpenedStores
from rmq_spark.pop.share import InitMode, ShareOptions
from rmq_spark.pop.store_pop import PopSettings
from rmq_spark.pop.topic_pop import PopRequest, TopicPop
from rmq_spark.pop.waiting import WaiterClosedError
from store_format.errors import (
    CorruptStoreError,
    InvalidReceiptHandleError,
    OptionError,
    StoreError,
    UnsupportedFormatError,
)

# The proxy's minInvisibleTimeMillsForRecv and maxInvisibleTimeMills.
_INVISIBLE_MIN, _INVISIBLE_MAX = 10.0, 12 * 3600.0


def _epoch_ms() -> int:
    return time.time_ns() // 1_000_000


class SimpleConsumer:
    """Receives messages of a store, or of all stores of a cluster directory, for a consumer group.

    Any number of consumers, in any number of processes, share the queues. Each message goes to one consumer
    and is invisible to the others for the invisible duration of the receive. If it is not acknowledged in
    that time, it is delivered again. `subscriptions` maps each topic to a TAG expression or a
    FilterExpression.

    - `await_duration`: seconds that a receive waits for the first message; 0 does not wait. The limits of
      RocketMQ's proxy (5 s to 20 s) do not apply.
    - `max_attempts`: after so many deliveries, a message becomes a dead letter. None: retryMaxTimes of the
      group, and the first delivery; 17 by default.
    - `fifo`: messages of a queue are delivered in order, one batch at a time. None: if the group has
      consumeMessageOrderly in subscriptionGroup.json.
    - `init_mode`: where a group without an offset starts in a queue from which messages were deleted: MAX at
      the last message, as RocketMQ's SimpleConsumer, or MIN at the first. Other queues are read from their
      first message.
    - `min_invisible_duration`: the lower limit of a receive, in seconds (the proxy's
      minInvisibleTimeMillsForRecv).
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
        await_duration: float = 30.0,
        *,
        max_attempts: int | None = None,
        fifo: bool | None = None,
        init_mode: InitMode = "MAX",
        min_invisible_duration: float = _INVISIBLE_MIN,
        sync: bool = False,
        random: Random | None = None,
        clock_ms: Callable[[], int] = _epoch_ms,
    ) -> None:
        (self.path,) = single_path(Given("path", os.fsdecode(path), 0))
        self.group = check_group(group)
        self._await = check_seconds("await_duration", await_duration, 0.0)
        self._invisible_min = check_seconds(
            "min_invisible_duration", min_invisible_duration, 0.0, _INVISIBLE_MAX
        )
        if init_mode not in ("MIN", "MAX"):
            raise OptionError(f"init_mode: expected MIN or MAX, found {init_mode!r}")
        self._clock_ms = clock_ms
        self._counters = Counters()
        share = ShareOptions(
            init_mode=init_mode, young_from_zero=True, fifo=fifo, sync=sync, clock_ms=clock_ms
        )
        self._settings = PopSettings(
            group=self.group,
            subscriptions=compile_subscriptions(self.group, subscriptions),
            share=share,
            random=random or Random(),
            counters=self._counters,
            max_attempts=check_max_attempts(max_attempts),
        )
        self._is_closed = False
        self._begin()
        _consumers.add(self)

    def _begin(self) -> None:
        # the name of this consumer in views: of one process
        self.client_id = f"{socket.gethostname()}@{os.getpid()}"
        self._stores = OpenedStores(self.path, self._settings)
        self._condition = threading.Condition()
        self._active: list[int] = []  # threads in a call
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
        is_in_call = threading.get_ident() in self._active
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
            with self._condition:
                self._condition.wait_for(lambda: not self._active)
        except BaseException:  # Ctrl-C: the consumer leaves as one that was killed
            self._stores.leave()
            raise
        self._stores.close()

    @contextmanager
    def _working(self) -> Iterator[None]:
        """One call of the consumer; `close` waits for its end."""
        with self._condition:
            if self._is_closed:
                raise OptionError(
                    f"{self.path}, group {self.group}: this consumer is closed; make another one"
                )
            self._active.append(threading.get_ident())
        try:
            yield
        finally:
            with self._condition:
                self._active.remove(threading.get_ident())
                self._condition.notify_all()

    def forget(self) -> None:
        """In a forked child: threads and locks exist only in the parent. The next call opens the stores."""
        stores = self._stores
        self._counters.forget()
        self._begin()
        stores.abandon()

    def __del__(self) -> None:
        """A consumer that nobody closes leaves the group as one that was killed.

        In a thread of its own: the garbage collector may call this in a thread that has any of the locks.
        """
        if not getattr(self, "_is_closed", True):
            with suppress(RuntimeError):  # the interpreter ends, and the locks with it
                start_new_thread(self._stores.leave, ())

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

    # ---- receive -------------------------------------------------------------------------------------------

    def receive(
        self,
        max_message_num: int = MESSAGES_MAX,
        invisible_duration: float = 30.0,
        *,
        attempt_id: str | None = None,
    ) -> list[MessageView]:
        """Returns up to `max_message_num` messages of one topic; waits up to `await_duration` seconds for the
        first.

        Returns [] if no message has come. The messages are invisible to other consumers for
        `invisible_duration` seconds (10 s to 12 h). In order, a receive with the `attempt_id` of the last
        receive of a queue gets the same messages again. If the call is interrupted, the messages that it had
        taken are delivered again.

        Raises OptionError for numbers outside of RocketMQ's limits, and StoreInUseError once a broker has
        opened the store.
        """
        count = check_message_num(max_message_num)
        seconds = check_seconds("invisible_duration", invisible_duration, self._invisible_min, _INVISIBLE_MAX)
        invisible_ms = round(seconds * 1000)

        def request() -> PopRequest:
            return PopRequest(count, invisible_ms, self._clock_ms(), self.client_id, attempt_id)

        with self._working():
            try:
                found, waits, notified = self._receive(request)
            except WaiterClosedError:
                found, waits, notified = [], 0, 0  # another thread closes the consumer
        self._counters.add(
            receives=1,
            received=len(found),
            redelivered=sum(each.error is None and each.delivery_attempt > 1 for each in found),
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
        found = _first_found(stores.next_pops(), request())
        if found:
            return found, 0, 0
        look = stores.open()  # at the first call; later only looks
        while True:
            found = _first_found(stores.pops_of(look), request())
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
        given = [messages] if isinstance(messages, MessageView | str) else list(messages)
        with self._working():
            self._stores.open_once()
            by_pop: dict[TopicPop, list[ReceiptHandle]] = {}
            for each in given:
                handle = ReceiptHandle.parse(each) if isinstance(each, str) else each.handle
                by_pop.setdefault(self._pop_of(each, handle), []).append(handle)
            errors: list[InvalidReceiptHandleError] = []
            now_ms = self._clock_ms()
            for pop, handles in by_pop.items():
                errors += pop.ack(handles, now_ms)
                self._stores.notify(pop)
        self._counters.add(acked=len(given) - len(errors), invalid_handles=len(errors))
        if errors:
            raise errors[0]

    def change_invisible_duration(self, message: MessageView | str, invisible_duration: float) -> str:
        """Makes a message invisible for so many seconds from now, up to 12 h. Returns its new receipt handle.

        The old handle is no longer valid; a MessageView gets the new handle. With 0, the message is delivered
        again at once, unless it has reached the group's maximum of deliveries.

        Raises InvalidReceiptHandleError as `ack` does.
        """
        seconds = check_seconds("invisible_duration", invisible_duration, 0.0, _INVISIBLE_MAX)
        with self._working():
            self._stores.open_once()
            handle = ReceiptHandle.parse(message) if isinstance(message, str) else message.handle
            pop = self._pop_of(message, handle)
            found = pop.change_invisible(handle, round(seconds * 1000), self._clock_ms())
            self._stores.notify(pop)
        if isinstance(found, InvalidReceiptHandleError):
            self._counters.add(invalid_handles=1)
            raise found
        self._counters.add(changed=1)
        if isinstance(message, MessageView):
            message.handle = found
        return found.text

    def _pop_of(self, message: MessageView | str, handle: ReceiptHandle) -> TopicPop:
        topics = list(self._settings.subscriptions) if isinstance(message, str) else [message.topic]
        if len(topics) > 1:
            raise OptionError(
                f"receipt handle {handle.text!r}: expected the message, because this consumer reads "
                f"{len(topics)} topics and a handle does not name its topic"
            )
        root = None if isinstance(message, str) else message.root
        pops = self._stores.pops_with(topics[0], handle.broker_name, root)
        if not pops:
            raise InvalidReceiptHandleError(
                handle.text,
                f"is not a handle of this consumer: no store of {self.path} with broker "
                f"{handle.broker_name} is open for topic {topics[0]}; acknowledge with the consumer that "
                "received the message",
            )
        if len(pops) > 1:
            raise OptionError(
                f"receipt handle {handle.text!r}: expected the message, because {len(pops)} stores of "
                f"{self.path} have the broker name {handle.broker_name}"
            )
        return pops[0]

    def metrics(self) -> ConsumerMetrics:
        """Returns the counters of this consumer."""
        return self._counters.snapshot()


def _first_found(pops: Iterable[TopicPop], request: PopRequest) -> list[MessageView]:
    """The messages of the first topic that has some. Raises the error of a damaged one if none has."""
    errors: list[StoreError] = []
    for pop in pops:
        try:
            found = pop.pop(request)
        except (CorruptStoreError, UnsupportedFormatError) as error:
            errors.append(error)
            continue
        if found:
            return found
    for each in errors:
        raise each
    return []


_consumers: weakref.WeakSet[SimpleConsumer] = weakref.WeakSet()


def _forget_after_fork() -> None:
    for consumer in list(_consumers):
        consumer.forget()


os.register_at_fork(after_in_child=_forget_after_fork)
