"""A consumer as a member of its group: which queues it has, what it has read of them, what it records.

It is a member as a streaming query is (`stream.group_positions`): the same directory, leases, epochs, resets
and losses. Where a query ends a micro-batch, a consumer tells how far it has handled each queue.
"""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from socket import inet_ntoa
from typing import Any

from rmq_spark.client.messages import Expression, MessageExt
from rmq_spark.client.queues import ProcessQueue, Thresholds
from rmq_spark.consume.allocate import AllocateMessageQueueStrategy
from rmq_spark.consume.consumer import MessageQueue, offset_limits, sort_queues
from rmq_spark.consume.own_code import OwnStrategy
from rmq_spark.consume.stream_offset import StreamOffset
from rmq_spark.options.group_options import GroupOptions
from rmq_spark.options.option import STREAM
from rmq_spark.options.read_options import parse_read_options
from rmq_spark.plan.starts import offset_at, subscribe_set
from rmq_spark.produce.unique_ids import own_address
from rmq_spark.stream.group_positions import GroupPositions
from rmq_spark.stream.positions import Step
from rmq_spark.stream.stores import StreamStores
from store_format.bookkeeping.journal import StoreState, doorbell_path
from store_format.errors import OptionError, StoreError
from store_format.files.polling import Clocks, PolledFiles
from store_format.follow.log_tail import place_before
from store_format.names import QueueKey, retry_topic
from store_format.read.choice import MessageChoice, QueueName

_log = logging.getLogger(__name__)

_LOOK_SECONDS = 1.0  # between looks at the group, without new messages
_LIVE_SECONDS = 0.04  # between looks at a store that a broker writes
_ALL = Expression()


@dataclass(frozen=True, slots=True)
class PullLimits:
    """The thresholds of a consumer, as the fields of DefaultMQPushConsumer; None is no limit of a topic."""

    pull_batch_size: int
    for_queue: int
    for_topic: int | None
    size_for_queue: int
    size_for_topic: int | None
    span: int | None

    def of_queue(self, queues_of_topic: int) -> Thresholds:
        """A topic's threshold is divided among its queues (RebalancePushImpl.messageQueueChanged)."""
        count, size = (
            own if of_topic is None else max(of_topic // queues_of_topic, 1)
            for own, of_topic in (
                (self.for_queue, self.for_topic),
                (self.size_for_queue, self.size_for_topic),
            )
        )
        return Thresholds(count, size, self.span)


@dataclass(frozen=True, slots=True)
class _ConsumerGroup(GroupOptions):
    """The options of a group, with a strategy that is an object of the user, and for a consumer alone."""

    strategy: Any = None  # Any: the user's object
    alone: bool = False
    kind: str = ""

    @property
    def is_alone(self) -> bool:
        return self.alone

    @property
    def member_kind(self) -> str:
        return self.kind

    def make_strategy(self, clients: Sequence[str], brokers: Sequence[str]) -> AllocateMessageQueueStrategy:
        if self.strategy is None:
            return GroupOptions.make_strategy(self, clients, brokers)
        kind = type(self.strategy)
        return OwnStrategy(self.strategy, f"{kind.__module__}:{kind.__qualname__}")


def group_options(
    store: str | os.PathLike[str],
    group: str,
    *,
    instance_name: str | None,
    strategy: object,
    message_model: str,
    consume_from_where: str,
    consume_timestamp: str | None,
    offset_store: str | None,
    offset_store_path: str | None,
    group_path: str | None,
    lease_time: float,
    persist_interval: float,
) -> dict[str, str]:
    """The arguments of a consumer as the options of a stream."""
    given = {
        "path": os.path.abspath(os.fsdecode(store)),
        "group": group,
        "clientId": None if instance_name is None else f"{inet_ntoa(own_address())}@{instance_name}",
        "allocateMessageQueueStrategy": strategy if isinstance(strategy, str) else None,
        "messageModel": message_model,
        "consumeFromWhere": consume_from_where,
        "consumeTimestamp": consume_timestamp,
        "offsetStore": offset_store,
        "offsetStorePath": offset_store_path,
        "groupPath": group_path,
        "leaseTime": f"{round(lease_time * 1000)}ms",
        "persistConsumerOffsetInterval": f"{round(persist_interval * 1000)}ms",
    }
    return {name: str(value) for name, value in given.items() if value is not None}


class Member:
    """The queues of a consumer, by name. Only one thread may use it, but for `holds`."""

    def __init__(
        self,
        options: Mapping[str, str],
        expressions: Mapping[str, Expression],
        limits: PullLimits,
        *,
        strategy: object = None,
        assigned: Collection[MessageQueue] | None = None,
        kind: str = "push",
        clocks: Clocks | None = None,
    ) -> None:
        """`options` are those of a stream with `group`. `assigned`: the consumer reads these queues alone.

        Raises OptionError.
        """
        if not expressions:
            raise OptionError("subscribe: expected at least one topic, found none; call subscribe first")
        given = {**options, "subscribe": ",".join(expressions), "failOnDataLoss": "false"}
        parsed = parse_read_options(given, where=STREAM)
        assert parsed.group is not None
        known = {each.name: getattr(parsed.group, each.name) for each in fields(GroupOptions)}
        group = _ConsumerGroup(**known, strategy=strategy, alone=assigned is not None, kind=kind)
        if assigned is not None:
            names = tuple(QueueName(*queue) for queue in assigned)
            parsed = replace(parsed, choice=replace(parsed.choice, names=(), queues=names, group=""))
        texts = {topic: expression.text for topic, expression in expressions.items()}
        is_one = len(set(texts.values())) == 1  # then a query of Spark may be a member, too
        subscription = (
            f"{','.join(sorted(texts))} {next(iter(texts.values()))}"
            if is_one
            else "; ".join(f"{topic} {text}" for topic, text in sorted(texts.items()))
        )
        self.group, self.options = group.group, group
        self.queues: dict[MessageQueue, ProcessQueue] = {}
        self._expressions = expressions
        self._limits = limits
        self._thresholds: dict[str, Thresholds] = {}
        self._clocks = clocks or Clocks()
        self._stores = StreamStores(replace(parsed, subscription=subscription, group=group))
        self._positions = GroupPositions(self._stores, group, clocks=self._clocks)
        self._done = StreamOffset()
        self._step = Step()
        self._version = -1
        self._next_look = 0.0
        self._doorbells = PolledFiles(self._clocks)
        self._is_live = False
        self._failing: dict[MessageQueue, tuple[str, float]] = {}  # the last error, when to read again

    def keep(self, queues: Collection[MessageQueue]) -> None:
        """No queue goes to another member while it is in this collection, which may change."""
        self._positions.keep(queues)

    def root_of(self, broker: str) -> str:
        """The store of a broker."""
        return next(store.path for store in self._stores.stores if store.broker_name == broker)

    def holds(self, queue: ProcessQueue) -> bool:
        """Whether messages of the queue may be handed out now. Any thread may ask; see `GroupMember.owns`."""
        if queue.is_dropped or queue.is_unsure:
            return False
        try:
            return self._positions.owns(queue.name, queue.epoch)
        except StoreError as error:
            queue.is_unsure = True
            _log.warning("group %s: %s waits: its owner is not known: %s", self.group, queue.name, error)
            return False

    def recorded_of(self, broker: str) -> dict[QueueKey, int]:
        """The recorded positions of the queues of a broker."""
        return {
            (name.topic, name.queue_id): position
            for name, position in self._positions.all_recorded().items()
            if name.broker_name == broker
        }

    def begin(self) -> None:
        """The first look. A member that cannot begin leaves the group."""
        try:
            self.look()
        except BaseException:
            with suppress(StoreError):
                self.leave()
            raise

    def look(self, *, force: bool = False) -> bool:
        """Looks at the stores, and if anything may have changed at the group; returns whether it did.

        Afterwards `queues` are those that the member has. Raises what `GroupPositions.latest` raises.
        """
        now, has_news = self._clocks.monotonic(), bool(self._doorbells.changed())
        is_due = force or now >= self._next_look
        if not (is_due or has_news or self._is_live):
            return False
        self._note_done()
        version = self._stores.look()
        if version == self._version and not is_due:
            return False
        self._version, self._next_look = version, now + _LOOK_SECONDS
        self._is_live = any(store.state is StoreState.LIVE for store in self._stores.stores)
        self._doorbells.watch([doorbell_path(store.opened) for store in self._stores.stores])
        self._advance()
        return True

    @property
    def pause(self) -> float:
        """Seconds until the next look: a commit rings the doorbell of its store, a broker rings none."""
        return _LIVE_SECONDS if self._is_live else self._doorbells.pause()

    def _advance(self) -> None:
        """Makes `queues` those that the member has now."""
        self._step = step = self._positions.advance(self._done)
        there = {**step.begins, **step.waiting}
        for name in self.queues.keys() - there.keys():
            self.queues.pop(name).is_dropped = True
        for name, begin in there.items():
            queue = self.queues.get(name)
            is_known = queue is not None and not queue.is_unsure and name not in step.moved
            if queue is None or not is_known or queue.epoch != self._positions.epoch_of(name):
                self._begin(name, begin)
        leaving = self._positions.leaving
        for name, queue in self.queues.items():
            queue.is_leaving = name in leaving
        counts = Counter(name.topic for name in self.queues)
        self._thresholds = {topic: self._limits.of_queue(count) for topic, count in counts.items()}

    def _begin(self, name: MessageQueue, offset: int) -> None:
        """Reads a queue from this offset on; what was read of it before is not handed out."""
        before = self.queues.get(name)
        if before is not None:
            before.is_dropped = True
        is_paused = before is not None and before.is_paused
        self.queues[name] = ProcessQueue(name, self._positions.epoch_of(name), offset, is_paused=is_paused)

    def _note_done(self) -> None:
        """Makes `_done` the offset of what is handled now.

        Before a look at the stores: after it, the queue of this name may be that of a topic that was deleted
        and created again, with other messages before these positions.
        """
        positions = {name: queue.committed for name, queue in self.queues.items()}
        done = self._positions.offset_of(positions, self._step, self._done)
        for name, queue in self.queues.items():  # whose files were deleted since they were read
            if name not in done.at and queue.place is not None and positions[name] == queue.next_offset:
                done.at[name] = queue.place
        self._done = done

    def has_more(self, queue: ProcessQueue) -> bool:
        """Whether the queue has messages that were not read, and the consumer has room for them."""
        there = self._stores.queues.get(queue.name)
        return there is not None and queue.next_offset < there.max_offset and self._room(queue) > 0

    def _room(self, queue: ProcessQueue) -> int:
        if queue.is_paused or queue.is_dropped:
            return 0
        return min(queue.room(self._thresholds[queue.name.topic]), self._limits.pull_batch_size)

    def pull(self, queue: ProcessQueue) -> list[MessageExt]:
        """Reads the next messages of a queue ahead, as far as the thresholds allow, and returns them.

        A queue that cannot be read is left alone for a second, with a warning for each new reason.
        """
        there = self._stores.queues.get(queue.name)
        text, until = self._failing.get(queue.name, ("", 0.0))
        if there is None or not self.has_more(queue) or self._clocks.monotonic() < until:
            return []
        start = queue.next_offset
        stop = min(start + self._room(queue), there.max_offset)
        is_retry = queue.name.topic == retry_topic(self.group)
        expression = _ALL if is_retry else self._expressions.get(queue.name.topic, _ALL)
        try:
            messages = expression.read(there, queue.name, start, stop, self.group)
        except StoreError as error:
            if str(error) != text:
                _log.warning("group %s: %s is read again later: %s", self.group, queue.name, error)
            self._failing[queue.name] = str(error), self._clocks.monotonic() + _LOOK_SECONDS
            self._next_look = 0.0  # retention may have moved its beginning
            return []
        queue.put(messages, stop, place_before(there, stop))
        return messages

    # ---- what a user asks ----------------------------------------------------------------------------------

    def own(self, name: MessageQueue) -> ProcessQueue:
        """The queue of this name. Raises OptionError for one that this consumer does not have."""
        if name not in self.queues:
            have = ", ".join(map(str, sort_queues(self.queues))) or "none"
            named = MessageQueue.given(name)
            raise OptionError(f"{named}: expected a queue that this consumer has now, {have}")
        return self.queues[name]

    def limits(self, name: MessageQueue) -> tuple[int, int]:
        """(minimum offset, maximum offset) of a queue at the last look."""
        return offset_limits(self._stores.queues.get(name))

    def seek(self, name: MessageQueue, offset: int) -> None:
        """Continues at this offset of a queue. Raises OptionError for one that the queue does not have."""
        self.own(name)
        low, high = self.limits(name)
        if not low <= offset <= high:
            raise OptionError(f"seek: {name}: expected an offset from {low} to {high}, found {offset}")
        self._note_done()
        self._positions.seek({name: offset}, self._done)
        self._advance()  # from the offsets of before, to which the reset does not belong
        self._begin(name, offset)

    def recorded(self, name: MessageQueue) -> int | None:
        """The position that the group has recorded for a queue; None without one."""
        return self._positions.recorded(name)

    def offset_for_timestamp(self, name: MessageQueue, timestamp_ms: int) -> int:
        """The offset of the first message of a queue stored at or after a time in ms since 1970."""
        queue = self._stores.queues.get(name)
        return 0 if queue is None else offset_at(queue, timestamp_ms, "DROPMALFORMED")

    def message_queues(self, topic: str) -> list[MessageQueue]:
        """The readable queues of a topic, of all brokers."""
        return subscribe_set(self._stores.stores, MessageChoice(names=(topic,)), "")

    def leave(self) -> None:
        """Records how far the queues are handled, and gives them back."""
        self._note_done()
        self._positions.leave(self._done)
        for queue in self.queues.values():
            queue.is_dropped = True
        self.queues = {}
