"""`PullConsumer`: messages of a group's queues when the caller asks, shaped as DefaultLitePullConsumer."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Iterable
from types import TracebackType
from typing import Literal

from rmq_spark.client.member import Member, PullLimits, group_options
from rmq_spark.client.messages import Expression, MessageExt
from rmq_spark.client.queues import ProcessQueue
from rmq_spark.consume.consumer import MessageQueue
from store_format.errors import OptionError, StoreError
from store_format.files.polling import Clocks, Repeated

_log = logging.getLogger(__name__)

_LOOK_SECONDS = 1.0
_SIZE_MAX = 1 << 40  # a caller holds what it has polled: there is no threshold


class PullConsumer:
    """Reads queues of a store, or of all stores of a cluster directory, for a group.

    With `subscribe` it is a member of the group, which shares the queues with the other members
    (`PushConsumer`). With `assign` it reads the queues that it names, whatever others read.

        with PullConsumer("/data/store", "billing") as consumer:
            consumer.subscribe("Orders")
            while messages := consumer.poll(5):
                for message in messages:
                    print(message.message_id, message.body)

    A message that was polled counts as handled at the next `poll` (`auto_commit`), or at `commit`. The
    arguments are those of `PushConsumer`. `auto_commit_interval`: how often positions are recorded, in
    seconds. `pull_batch_size`: the most messages of one poll.

    Threads may share a consumer.
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
        auto_commit: bool = True,
        auto_commit_interval: float = 5.0,
        pull_batch_size: int = 10,
        clock: Clocks | None = None,
    ) -> None:
        if pull_batch_size < 1:
            raise OptionError(f"pull_batch_size: expected a number from 1, found {pull_batch_size}")
        self.group, self.auto_commit = group, auto_commit
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
            persist_interval=auto_commit_interval if auto_commit else 0.0,
        )
        is_name = isinstance(allocate_message_queue_strategy, str)
        self._strategy = None if is_name else allocate_message_queue_strategy
        self._limits = PullLimits(pull_batch_size, 1 << 31, None, _SIZE_MAX, None, None)
        self._clocks = clock or Clocks()
        self._expressions: dict[str, Expression] = {}
        self._assigned: dict[MessageQueue, None] | None = None
        self._member: Member | None = None
        self._polled: list[tuple[ProcessQueue, list[MessageExt]]] = []  # not handled yet
        self._turn = 0  # so that no queue waits for another one
        self._is_closed = False
        self._last_error = ""  # of the thread that looks
        self._lock = threading.RLock()
        self._background = Repeated(f"rmqlog-pull-{group}", lambda: _LOOK_SECONDS, self._look)

    # ---- which queues --------------------------------------------------------------------------------------

    def subscribe(self, topic: str, expression: str = "*", expression_type: str = "TAG") -> None:
        """Reads the topic as a member of the group: tags, or an SQL92 condition.

        Call it before the first poll. Raises OptionError for an expression that RocketMQ refuses, and beside
        `assign`.
        """
        self._refuse_begun("subscribe", is_other=self._assigned is not None)
        self._expressions[topic] = Expression(expression, expression_type)

    def assign(self, queues: Iterable[MessageQueue | tuple[str, str, int]]) -> None:
        """Reads exactly these queues, each a topic, a broker name and a queue id.

        Call it before the first poll. Raises OptionError beside `subscribe`.
        """
        self._refuse_begun("assign", is_other=bool(self._expressions) and self._assigned is None)
        self._assigned = dict.fromkeys(MessageQueue(*queue) for queue in queues)
        self._expressions = {queue.topic: Expression() for queue in self._assigned}

    def _refuse_begun(self, call: str, *, is_other: bool) -> None:
        if self._member is not None or self._is_closed:
            raise OptionError(f"{call}: expected a call before the first poll; make another consumer")
        if is_other:
            raise OptionError(f"{call}: a consumer subscribes to topics, or assigns queues; use one of them")

    @property
    def message_queues(self) -> tuple[MessageQueue, ...]:
        """The queues that this consumer has now."""
        return () if self._member is None else tuple(sorted(self._member.queues))

    # ---- start and end -------------------------------------------------------------------------------------

    def start(self) -> None:
        """Joins the group; the first poll does so, too.

        Raises OptionError for a subscription or a strategy that does not fit the other members and for a
        topic that no store has, and StoreInUseError if a broker has the store and `offset_store` is `store`.
        """
        self._started()

    def _started(self) -> Member:
        with self._lock:
            if self._is_closed:
                raise OptionError(f"group {self.group}: this consumer is closed; make another one")
            if self._member is None:
                member = Member(
                    self._options,
                    self._expressions,
                    self._limits,
                    strategy=self._strategy,
                    assigned=self._assigned,
                    kind="pull",
                    clocks=self._clocks,
                )
                member.begin()
                self._member = member
                self._background.start()
            return self._member

    def shutdown(self) -> None:
        """Leaves the group; with `auto_commit`, what was polled counts as handled."""
        try:
            with self._lock:
                member, self._member, is_closed, self._is_closed = self._member, None, self._is_closed, True
                if member is None or is_closed:
                    return
                if self.auto_commit:
                    self._done()
                member.leave()
        finally:
            self._background.stop()

    def __enter__(self) -> PullConsumer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.shutdown()

    def _look(self) -> None:
        """Every second, also while nobody polls: other members wait for queues that this one has to give."""
        with self._lock:
            if self._member is not None:
                try:
                    self._member.look()
                    self._last_error = ""
                except StoreError as error:
                    if str(error) != self._last_error:
                        _log.warning("group %s: %s", self.group, error)
                    self._last_error = str(error)

    # ---- messages ------------------------------------------------------------------------------------------

    def poll(self, timeout: float = 5.0) -> list[MessageExt]:
        """Messages of one queue, in its order, after at most `timeout` seconds; [] if none came.

        Raises what reading the stores raises.
        """
        deadline = self._clocks.monotonic() + timeout
        while True:
            with self._lock:
                member = self._started()
                if self.auto_commit:
                    self._done()
                member.look()
                queues = list(member.queues.values())
                for step in range(len(queues)):
                    queue = queues[(self._turn + step) % len(queues)]
                    messages = member.pull(queue)
                    if messages and member.holds(queue):
                        self._turn += step + 1
                        self._polled.append((queue, messages))
                        return messages
                pause = member.pause
            left = deadline - self._clocks.monotonic()
            if left <= 0:
                return []
            time.sleep(min(pause, left))

    def _done(self) -> None:
        for queue, messages in self._polled:
            queue.done(messages)
        self._polled = []

    def commit(self) -> None:
        """Records that everything that was polled is handled."""
        with self._lock:
            member = self._started()
            self._done()
            member.look(force=True)

    # ---- positions -----------------------------------------------------------------------------------------

    def committed(self, queue: MessageQueue) -> int | None:
        """The position that the group has recorded for a queue; None without one."""
        with self._lock:
            return self._started().recorded(queue)

    def seek(self, queue: MessageQueue, offset: int) -> None:
        """Continues at this offset of a queue that the consumer has, backwards too, for the whole group.

        Raises OptionError for another queue, and for an offset that the queue does not have.
        """
        with self._lock:
            self._polled = [each for each in self._polled if each[0].name != queue]
            self._started().seek(queue, offset)

    def seek_to_begin(self, queue: MessageQueue) -> None:
        """Continues at the first message of a queue."""
        with self._lock:
            self.seek(queue, self._started().limits(queue)[0])

    def seek_to_end(self, queue: MessageQueue) -> None:
        """Continues behind the last message of a queue."""
        with self._lock:
            self.seek(queue, self._started().limits(queue)[1])

    def pause(self, queues: Iterable[MessageQueue]) -> None:
        """Polls nothing from these queues, until `resume`."""
        self._set_paused(queues, True)

    def resume(self, queues: Iterable[MessageQueue]) -> None:
        """Polls from these queues again."""
        self._set_paused(queues, False)

    def _set_paused(self, queues: Iterable[MessageQueue], is_paused: bool) -> None:
        with self._lock:
            for queue in queues:
                self._started().own(queue).is_paused = is_paused

    def offset_for_timestamp(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """The offset of the first message of a queue stored at or after a time in ms since 1970."""
        with self._lock:
            return self._started().offset_for_timestamp(queue, timestamp_ms)

    def fetch_message_queues(self, topic: str) -> list[MessageQueue]:
        """The readable queues of a topic, of all brokers."""
        with self._lock:
            return self._started().message_queues(topic)
