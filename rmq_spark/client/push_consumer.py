"""`PushConsumer`: hands the messages of a group's queues to a listener, shaped as DefaultMQPushConsumer."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from queue import SimpleQueue
from types import TracebackType
from typing import Literal, TypeAlias

from rmq_spark.client.failures import FOREVER, Failures
from rmq_spark.client.member import Member, PullLimits, group_options
from rmq_spark.client.messages import Expression, MessageExt
from rmq_spark.client.queues import ProcessQueue
from rmq_spark.consume.consumer import BROADCASTING, MessageQueue
from store_format.errors import OptionError
from store_format.files.polling import Clocks

_log = logging.getLogger(__name__)

_ERROR_SECONDS = 1.0
_ORDERLY_SECONDS = 1.0  # that an orderly queue keeps a thread; other queues may wait for one
_READ_SECONDS = 1.0  # between two looks while there is more to read
_MIB = 1 << 20
_SUSPEND_MIN, _SUSPEND_MAX = 0.01, 30.0  # ConsumeMessageOrderlyService.submitConsumeRequestLater


class ConsumeStatus(StrEnum):
    """What a listener answers: ConsumeConcurrentlyStatus and, the last two, ConsumeOrderlyStatus."""

    CONSUME_SUCCESS = "CONSUME_SUCCESS"
    RECONSUME_LATER = "RECONSUME_LATER"
    SUCCESS = "SUCCESS"
    SUSPEND_CURRENT_QUEUE_A_MOMENT = "SUSPEND_CURRENT_QUEUE_A_MOMENT"


_ANSWERS = {  # by whether the listener is orderly
    False: (ConsumeStatus.CONSUME_SUCCESS, ConsumeStatus.RECONSUME_LATER),
    True: (ConsumeStatus.SUCCESS, ConsumeStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT),
}


@dataclass(slots=True)
class ConsumeContext:
    """What a listener may set for its call: ConsumeConcurrentlyContext and ConsumeOrderlyContext.

    `delay_level_when_next_consume`: the delay level of failed messages; 0 follows from reconsumeTimes, -1 is
    a dead letter at once. `ack_index`: the last message that was handled, if the answer is success; None is
    all of them.
    `suspend_current_queue_time`: seconds until an orderly queue goes on after a failure.
    """

    message_queue: MessageQueue
    delay_level_when_next_consume: int = 0
    ack_index: int | None = None
    suspend_current_queue_time: float = 1.0


Listener: TypeAlias = "Callable[[Sequence[MessageExt], ConsumeContext], ConsumeStatus | str | None]"


def _limit(threshold: int | None, unit: int) -> int | None:
    """The threshold of a topic; None, and -1 as RocketMQ has it, is none."""
    return None if threshold is None or threshold < 0 else threshold * unit


class PushConsumer:
    """Reads whole queues of a store, or of all stores of a cluster directory, as a member of a group.

    Members of a group, in any number of processes, share its queues: PushConsumers, PullConsumers and
    streaming queries of Spark. Each queue has one owner. A message is delivered at least once; the group's
    position is recorded only behind messages that are handled.

        def handle(messages, context):
            for message in messages:
                print(message.message_id, message.body)
            return "CONSUME_SUCCESS"

        consumer = PushConsumer("/data/store", "billing")
        consumer.subscribe("Orders", "TagA || TagB")
        consumer.register_message_listener(handle)
        consumer.start()
        ...
        consumer.shutdown()

    The arguments have the names and, where not said otherwise, the defaults of DefaultMQPushConsumer; times
    are in seconds, sizes in MiB:

    - `instance_name`: the client id is `ip@instance_name`; None is a new id for each start.
    - `allocate_message_queue_strategy`: a name as in Spark's option, `package.module:name`, or an object with
      `allocate(consumer_group, current_cid, mq_all, cid_all)` and `get_name()`.
    - `consume_from_where`, `consume_timestamp`: where a group without an offset begins.
    - `offset_store`: `store` (consumerOffset.json; no broker may have the store when the consumer starts),
      `local` or `none`. `group_path`: the directory in which the members meet.
    - `lease_time`: how long a member on another host may be silent before others get its queues.
    - `consume_thread_number`: threads that call a concurrent listener.
    - `consume_message_batch_max_size`: the most messages of one call.
    - `pull_batch_size`: the most messages of one read of a queue. 1000, because no network is between.
    - `pull_threshold_for_queue`, `pull_threshold_size_for_queue`: a queue is not read while so many messages,
      or so many MiB, are not handled. The thresholds for a topic, if given, are divided among its queues.
    - `consume_concurrently_max_span`: a queue is not read further than this behind its first message that is
      not handled.
    - `suspend_current_queue_time`: how long an orderly queue waits after a failure.
    - `max_reconsume_times`: a message that failed more often becomes a dead letter. -1 is 16, and for an
      orderly listener no limit.

    Failed messages are stored again as RocketMQ's clients send them back: in the group's retry topic after a
    delay, at last in `%DLQ%group`. A broker, or `rmqlog services`, delivers the delayed ones. While a broker
    has the store nothing can be stored there: then a failed message is delivered again by this consumer, with
    the same delays, and its position stays before it until the store is free.

    Raises OptionError for arguments that contradict each other.
    """

    def __init__(
        self,
        store: str | os.PathLike[str],
        group: str,
        *,
        instance_name: str | None = None,
        allocate_message_queue_strategy: object = "AVG",
        message_model: Literal["CLUSTERING", "BROADCASTING"] = "CLUSTERING",
        consume_from_where: str = "CONSUME_FROM_LAST_OFFSET",
        consume_timestamp: str | None = None,
        offset_store: str | None = None,
        offset_store_path: str | None = None,
        group_path: str | None = None,
        lease_time: float = 30.0,
        persist_consumer_offset_interval: float = 5.0,
        consume_thread_number: int = 20,
        consume_message_batch_max_size: int = 1,
        pull_batch_size: int = 1000,
        pull_threshold_for_queue: int = 1000,
        pull_threshold_for_topic: int | None = None,
        pull_threshold_size_for_queue: int = 100,
        pull_threshold_size_for_topic: int | None = None,
        consume_concurrently_max_span: int = 2000,
        suspend_current_queue_time: float = 1.0,
        max_reconsume_times: int = FOREVER,
        clock: Clocks | None = None,
    ) -> None:
        numbers = {
            "consume_thread_number": consume_thread_number,
            "consume_message_batch_max_size": consume_message_batch_max_size,
            "pull_batch_size": pull_batch_size,
            "pull_threshold_for_queue": pull_threshold_for_queue,
            "pull_threshold_size_for_queue": pull_threshold_size_for_queue,
            "consume_concurrently_max_span": consume_concurrently_max_span,
        }
        for name, number in numbers.items():
            if number < 1:
                raise OptionError(f"{name}: expected a number from 1, found {number!r}")
        if max_reconsume_times < FOREVER:
            raise OptionError(
                f"max_reconsume_times: expected -1 or a number from 0, found {max_reconsume_times}"
            )
        self.group = group
        self._options = group_options(
            store,
            group,
            instance_name=instance_name,
            strategy=allocate_message_queue_strategy,
            message_model=message_model,
            consume_from_where=consume_from_where,
            consume_timestamp=consume_timestamp,
            offset_store=offset_store,
            offset_store_path=offset_store_path,
            group_path=group_path,
            lease_time=lease_time,
            persist_interval=persist_consumer_offset_interval,
        )
        is_name = isinstance(allocate_message_queue_strategy, str)
        self._strategy = None if is_name else allocate_message_queue_strategy
        self._is_broadcasting = message_model == BROADCASTING
        self._limits = PullLimits(
            pull_batch_size,
            pull_threshold_for_queue,
            _limit(pull_threshold_for_topic, 1),
            pull_threshold_size_for_queue * _MIB,
            _limit(pull_threshold_size_for_topic, _MIB),
            consume_concurrently_max_span,
        )
        self._threads, self._batch_max = consume_thread_number, consume_message_batch_max_size
        self._suspend = suspend_current_queue_time
        self._times_max = max_reconsume_times
        self._clocks = clock or Clocks()
        self._expressions: dict[str, Expression] = {}
        self._listener: Listener | None = None
        self._is_orderly = False
        self._member: Member | None = None
        # calls of the listener that wait for a thread; None ends a thread
        self._jobs: SimpleQueue[tuple[ProcessQueue, list[MessageExt]] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._stopping, self._wake = threading.Event(), threading.Event()
        self._failures: Failures | None = None
        self._calling: set[MessageQueue] = set()  # queues of an orderly listener that have a thread
        self._in_hand = 0
        self._idle = threading.Condition()
        self._last_error = ""

    # ---- before the start ----------------------------------------------------------------------------------

    def subscribe(self, topic: str, expression: str = "*", expression_type: str = "TAG") -> None:
        """Reads the topic: tags such as `TagA || TagB`, or an SQL92 condition. Call it before `start`.

        Raises OptionError for an expression that RocketMQ refuses.
        """
        self._refuse_started("subscribe")
        self._expressions[topic] = Expression(expression, expression_type)

    def register_message_listener(self, listener: Listener, orderly: bool = False) -> None:
        """Hands messages to `listener(messages, context)`, which returns a `ConsumeStatus` or its text.

        Concurrent: any number of calls at a time, CONSUME_SUCCESS or RECONSUME_LATER. Orderly: one call at a
        time for each queue, in its order, SUCCESS or SUSPEND_CURRENT_QUEUE_A_MOMENT. An exception, and None,
        is a failure.
        """
        self._refuse_started("register_message_listener")
        self._listener, self._is_orderly = listener, orderly

    def _refuse_started(self, call: str) -> None:
        if self._thread is not None:
            raise OptionError(f"{call}: expected a call before start; make another consumer")

    # ---- start and end -------------------------------------------------------------------------------------

    def start(self) -> None:
        """Joins the group and begins to hand out messages.

        Raises OptionError for a subscription or a strategy that does not fit the other members, for a topic
        that no store has and without a listener, and StoreInUseError if a broker has the store and
        `offset_store` is `store`.
        """
        self._refuse_started("start")
        if self._listener is None:
            raise OptionError("start: expected a listener, found none; call register_message_listener first")
        member = Member(
            self._options, self._expressions, self._limits, strategy=self._strategy, clocks=self._clocks
        )
        member.keep(self._calling)  # RebalancePushImpl.removeUnnecessaryMessageQueue: orderly, consuming
        member.begin()
        self._member = member
        self._failures = Failures(
            member, self._times_max, self._is_orderly, self._is_broadcasting, self._clocks, self._submit
        )
        name = f"rmqlog-push-{self.group}"
        for number in range(self._threads):
            threading.Thread(target=self._work, name=f"{name}_{number}", daemon=True).start()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def shutdown(self, await_terminate: float = 10.0) -> None:
        """Hands out nothing more, waits so many seconds for the listener, records the positions and leaves.

        Messages that the listener has not handled by then are delivered again, to this group's next member.
        """
        if self._thread is None or self._member is None:
            return
        self._stopping.set()
        self._wake.set()
        self._thread.join()
        for _ in range(self._threads):  # calls that wait for a thread end without the listener
            self._jobs.put(None)
        with self._idle:
            self._idle.wait_for(lambda: not self._in_hand, await_terminate)
        member = self._take_member()
        if member is None:
            return
        assert self._failures is not None
        try:
            self._failures.turn()
        finally:
            member.leave()

    def _take_member(self) -> Member | None:
        """The member, for the one thread that ends it."""
        with self._idle:
            member, self._member = self._member, None
            return member

    def __enter__(self) -> PushConsumer:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.shutdown()

    @property
    def message_queues(self) -> tuple[MessageQueue, ...]:
        """The queues that this consumer has now."""
        return () if self._member is None else tuple(sorted(self._member.queues))

    # ---- the thread that reads -----------------------------------------------------------------------------

    def _run(self) -> None:
        assert self._member is not None
        is_woken = True
        while not self._stopping.is_set():
            try:
                self._turn(self._member, is_woken=is_woken)
                pause = self._member.pause
                self._last_error = ""
            except Exception as error:  # the consumer must not end without a word
                pause = _ERROR_SECONDS
                if str(error) != self._last_error:
                    _log.exception("group %s: the consumer goes on in %g s", self.group, pause)
                self._last_error = str(error)
            is_woken = self._wake.wait(pause) or bool(self._last_error)
            self._wake.clear()

    def _look(self, member: Member) -> tuple[bool, float]:
        """Looks at the group and the failures: whether anything may have changed, and when to look again,
        however much there is to read.
        """
        assert self._failures is not None
        has_looked = member.look()
        is_due = self._failures.turn()
        return has_looked or is_due, self._clocks.monotonic() + _READ_SECONDS

    def _turn(self, member: Member, *, is_woken: bool) -> None:
        has_news, until = self._look(member)
        is_left = has_news or is_woken  # of thousands of queues, few turns ask all
        while is_left and not self._stopping.is_set():
            is_left = False
            for queue in list(member.queues.values()):
                if self._clocks.monotonic() >= until:
                    _, until = self._look(member)
                before = queue.next_offset
                messages = member.pull(queue)
                is_left |= queue.next_offset > before
                if self._is_orderly:
                    self._submit_orderly(queue)
                elif messages:
                    for start in range(0, len(messages), self._batch_max):
                        self._submit(queue, messages[start : start + self._batch_max])

    def _submit(self, queue: ProcessQueue, messages: list[MessageExt]) -> None:
        if self._stopping.is_set():  # a failure came due at the end: its position stays before it
            return
        with self._idle:
            self._in_hand += 1
        self._jobs.put((queue, messages))

    def _submit_orderly(self, queue: ProcessQueue) -> None:
        waits = queue.is_suspended or queue.is_leaving or queue.is_dropped
        if waits or queue.name in self._calling:
            return
        messages = queue.first(self._batch_max)
        if messages:
            self._calling.add(queue.name)  # by name: a queue that begins anew waits for the call before it
            self._submit(queue, messages)

    # ---- the listener's threads ----------------------------------------------------------------------------

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                self._consume(*job)
            except Exception:  # the thread has more to do
                _log.exception(
                    "group %s: %s: a call of the listener ended in an error", self.group, job[0].name
                )

    def _consume(self, queue: ProcessQueue, messages: list[MessageExt]) -> None:
        """Calls the listener in a thread of the pool: for an orderly queue with what follows, too."""
        until, member = self._clocks.monotonic() + _ORDERLY_SECONDS, self._member
        try:
            while messages and not self._stopping.is_set() and member is not None:
                if not member.holds(queue) or not self._call(queue, messages) or not self._is_orderly:
                    break
                goes_on = self._clocks.monotonic() < until and not queue.is_leaving
                messages = queue.first(self._batch_max) if goes_on else []
        except Exception:  # a bug must not lose messages
            _log.exception("group %s: %s: messages are handed out again", self.group, queue.name)
            self._failed(queue, messages, 0, self._suspend)
        finally:
            self._calling.discard(queue.name)
            with self._idle:
                self._in_hand -= 1
                if not self._in_hand:
                    self._idle.notify_all()
            # not always: of thousands of queues, a turn for each call would ask all of them
            if member is not None and ((self._is_orderly and queue.held) or member.has_more(queue)):
                self._wake.set()

    def _call(self, queue: ProcessQueue, messages: list[MessageExt]) -> bool:
        """One call of the listener; returns whether it has handled all messages. The others have failed."""
        assert self._listener is not None
        context = ConsumeContext(queue.name, suspend_current_queue_time=self._suspend)
        success, later = _ANSWERS[self._is_orderly]
        try:
            answer = self._listener(tuple(messages), context)
        except BaseException as error:  # SystemExit, too: it would end this thread and no process
            _log.warning(
                "group %s: %s: the listener failed at offset %d: %s: %s",
                self.group, queue.name, messages[0].offset, type(error).__name__, error,
            )  # fmt: skip
            answer = later
        if answer not in (success, later, None):
            _log.error(
                "group %s: expected %s or %s from the listener, found %r", self.group, success, later, answer
            )
        is_all = answer == success and context.ack_index is None
        handled = (
            len(messages) if is_all else 0 if answer != success else max((context.ack_index or 0) + 1, 0)
        )
        queue.done(messages[:handled])
        if handled >= len(messages):
            return True
        pause = min(max(context.suspend_current_queue_time, _SUSPEND_MIN), _SUSPEND_MAX)
        self._failed(queue, messages[handled:], context.delay_level_when_next_consume, pause)
        return False

    def _failed(self, queue: ProcessQueue, messages: list[MessageExt], level: int, pause: float) -> None:
        assert self._failures is not None
        queue.is_suspended = self._is_orderly
        self._failures.add(queue, messages, level, pause)
        self._wake.set()
