"""What becomes of messages that a listener could not handle.

They are stored again, as a client sends them back to its broker (`rmq_spark.client.failed`), and are done
with that. While a broker or another writer has the store, and for a message that is damaged, nothing can be
stored: then the consumer delivers the message again itself, after the delays of the levels. A message that
has failed too often is not delivered again; the position stays before it, and an error names it each minute,
until it can be stored as a dead letter.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush

from rmq_spark.client.failed import Failed, store_failed
from rmq_spark.client.member import Member
from rmq_spark.client.messages import MessageExt
from rmq_spark.client.queues import ProcessQueue
from store_format.errors import StoreInUseError
from store_format.files.polling import Clocks
from store_format.names import DELAY_LEVELS_MS

_log = logging.getLogger(__name__)

FOREVER = -1
_RETRIES = 16  # DefaultMQPushConsumerImpl.getMaxReconsumeTimes for -1
_FIRST_LEVEL = 3  # AbstractSendMessageProcessor.consumerSendMsgBack: 3 + reconsumeTimes
_AGAIN_SECONDS = 1.0  # until the next attempt to store: a writer has the store for moments, a broker for days
_NAMED_SECONDS, _GRACE_SECONDS = 60.0, 5.0


@dataclass(slots=True)
class _Entry:
    """One failed message. It is stored as soon as that is possible, or delivered again at `deliver_at`."""

    queue: ProcessQueue
    message: MessageExt
    level: int
    deliver_at: float | None = None
    named_at: float | None = None


@dataclass(slots=True)
class Failures:
    """The failed messages of a consumer. Any thread may call `add`, one thread the rest.

    `deliver` hands messages to the listener again. `drops`: BROADCASTING, where nothing is sent back.
    """

    member: Member
    times_max: int
    is_orderly: bool
    drops: bool
    clocks: Clocks
    deliver: Callable[[ProcessQueue, list[MessageExt]], None]
    _added: deque[tuple[ProcessQueue, list[MessageExt], int, float]] = field(default_factory=deque)
    _waiting: list[tuple[float, int, _Entry | ProcessQueue]] = field(default_factory=list)
    _count: int = 0
    _warned_at: dict[tuple[str, str], float] = field(default_factory=dict)  # by broker and type of error

    def add(self, queue: ProcessQueue, messages: list[MessageExt], level: int, pause: float) -> None:
        """Notes failed messages. `level` is that of `client.failed.Failed`, `pause` an orderly queue's."""
        self._added.append((queue, messages, level, pause))

    def turn(self) -> bool:
        """Does what is due; returns whether anything was. An error concerns one store, and is logged."""
        due: list[_Entry] = []
        is_any = bool(self._added)
        while self._added:
            queue, messages, level, pause = self._added.popleft()
            if self.is_orderly:
                self._suspend(queue, messages, pause)
            elif self.drops:  # ConsumeMessageConcurrentlyService.processConsumeResult
                _log.warning(
                    "BROADCASTING: %d failed messages of %s are not delivered again, from offset %d on",
                    len(messages), queue.name, messages[0].offset,
                )  # fmt: skip
                queue.done(messages)
            else:
                due += [_Entry(queue, message, level) for message in messages]
        now = self.clocks.monotonic()
        while self._waiting and self._waiting[0][0] <= now:
            is_any, entry = True, heappop(self._waiting)[2]
            if isinstance(entry, ProcessQueue):
                entry.is_suspended = False
            else:
                due.append(entry)
        self._store(due)
        return is_any

    def _wait(self, seconds: float, entry: _Entry | ProcessQueue) -> None:
        self._count += 1  # entries are not compared
        heappush(self._waiting, (self.clocks.monotonic() + seconds, self._count, entry))

    # ---- concurrent listeners ------------------------------------------------------------------------------

    def _store(self, entries: Sequence[_Entry]) -> None:
        by_broker: dict[str, list[_Entry]] = {}
        for entry in entries:
            if not entry.queue.is_dropped:
                by_broker.setdefault(entry.queue.name.broker_name, []).append(entry)
        for of_broker in by_broker.values():
            readable = [each for each in of_broker if each.message.error is None]
            left = self._not_stored([(each.queue, each.message, self._failed(each)) for each in readable])
            for entry in of_broker:
                if entry.message.error is not None or entry.message in left:
                    self._again(entry)

    def _failed(self, entry: _Entry) -> Failed:
        # failures that this consumer has counted are not in the store
        level = -1 if entry.message.failures and self._is_spent(entry.message) else entry.level
        return Failed(entry.message.stored_topic, entry.message.queue_id, entry.message.offset, level)

    def _again(self, entry: _Entry) -> None:
        """A message could not be stored: it is tried again, or delivered if its delay is over."""
        message, now = entry.message, self.clocks.monotonic()
        if self._is_spent(message):
            if entry.named_at is None:  # a writer that has the store for moments is not worth an error
                entry.named_at = now - _NAMED_SECONDS + _GRACE_SECONDS
            if now - entry.named_at >= _NAMED_SECONDS:
                entry.named_at = now
                _log.error(
                    "%s: the message at offset %d has failed %d times, and cannot be stored as a dead "
                    "letter: a broker or a writer has the store, or the message is damaged. The position "
                    "stays before it",
                    entry.queue.name, message.offset, self._times(message) + 1,
                )  # fmt: skip
            self._wait(_AGAIN_SECONDS, entry)
            return
        if entry.deliver_at is None:
            level = entry.level if entry.level > 0 else _FIRST_LEVEL + self._times(message)
            entry.deliver_at = now + DELAY_LEVELS_MS[min(level, len(DELAY_LEVELS_MS)) - 1] / 1000
        if now < entry.deliver_at:
            self._wait(min(_AGAIN_SECONDS, entry.deliver_at - now), entry)
            return
        message.failures += 1
        self.deliver(entry.queue, [message])

    @staticmethod
    def _times(message: MessageExt) -> int:
        return message.failures if message.error is not None else message.reconsume_times

    def _is_spent(self, message: MessageExt) -> bool:
        """Whether the message may not be delivered again."""
        if self.times_max == FOREVER and self.is_orderly:
            return False
        return self._times(message) >= (_RETRIES if self.times_max == FOREVER else self.times_max)

    # ---- orderly listeners ---------------------------------------------------------------------------------

    def _suspend(self, queue: ProcessQueue, messages: list[MessageExt], pause: float) -> None:
        """Gives up messages that failed too often; for the others the queue waits (checkReconsumeTimes)."""
        spent = [each for each in messages if self._is_spent(each)]
        failed = [
            (queue, each, self._given_up(each)) for each in spent if each.error is None and not self.drops
        ]
        kept = self._not_stored(failed)
        gone = [message for _, message, _ in failed if message not in kept]
        left = [each for each in messages if each not in gone]
        for message in left:
            message.failures += 1
        self._wait(pause if left else 0.0, queue)

    @staticmethod
    def _given_up(message: MessageExt) -> Failed:
        times = message.reconsume_times
        return Failed(message.stored_topic, message.queue_id, message.offset, orderly_times=times)

    # ---- both ----------------------------------------------------------------------------------------------

    def _not_stored(self, failed: Sequence[tuple[ProcessQueue, MessageExt, Failed]]) -> set[MessageExt]:
        """Stores the copies of these messages of one store; returns the messages that could not be stored.

        The others are done.
        """
        error = self._error_of(failed) if failed else None
        if error is None:
            return set()
        left = {message for _, message, _ in failed}
        if isinstance(error, StoreInUseError):
            return left
        if len(failed) == 1:
            self._warn(failed[0][0], failed[0][1], error)
            return left
        alike = 0
        for each in failed:  # one of them may be the reason
            found = self._error_of([each])
            if found is None:
                left.discard(each[1])
                continue
            self._warn(each[0], each[1], found)
            alike += str(found) == str(error)
            if alike > 1:  # not the messages
                break
        return left

    def _error_of(self, failed: Sequence[tuple[ProcessQueue, MessageExt, Failed]]) -> Exception | None:
        """Stores the copies; the error if none of them could be stored."""
        broker = failed[0][0].name.broker_name
        try:
            store_failed(
                self.member.root_of(broker),
                self.member.group,
                [each for _, _, each in failed],
                self.member.recorded_of(broker),
                max_reconsume_times=self.times_max,
                clock_ms=self.clocks.epoch_ms,
            )
        except Exception as error:  # whatever it is, no message is forgotten
            return error
        for queue, message, _ in failed:
            queue.done([message])
        return None

    def _warn(self, queue: ProcessQueue, message: MessageExt, error: Exception) -> None:
        """Each message is tried again each second: one warning a minute says why."""
        now, kind = self.clocks.monotonic(), (queue.name.broker_name, type(error).__name__)
        if now - self._warned_at.get(kind, -_NAMED_SECONDS) >= _NAMED_SECONDS:
            self._warned_at[kind] = now
            _log.warning("%s: offset %d is not stored again: %s", queue.name, message.offset, error)
