"""Pop of one topic of one store: chooses messages, hands them out in the in-flight log, and reads them.

The order of the steps is what makes a pop exclusive and cheap: consume queue entries are read before the log
is locked, the choice is made under the lock, and the messages are read when they belong to this consumer.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from random import Random

from rmq_spark.pop.choose import ShareRules, visits
from rmq_spark.pop.handles import acknowledge, position_of, unknown_handle
from rmq_spark.pop.message import MessageView, ReceiptHandle
from rmq_spark.pop.metrics import Counters
from rmq_spark.pop.share import Share
from rmq_spark.pop.window import Subscription, Window, read_window
from store_format.errors import (
    CorruptStoreError,
    InvalidReceiptHandleError,
    OptionError,
    StoreError,
    UnsupportedFormatError,
)
from store_format.message.one import UnitPlace, decode_unit
from store_format.names import TAGS
from store_format.pop.check_point import CheckPoint
from store_format.pop.state import TOPIC, PopQueue, PopState
from store_format.read.store import Queue
from store_format.read.unit_bytes import read_units

_log = logging.getLogger(__name__)

# Rounds of a pop without progress: retention has deleted queue files that the last look has seen.
_REPEATS_MAX = 3

_Failed = dict[PopQueue, StoreError]  # queues that cannot be read

# a message that has reached the group's maximum of deliveries: its check point and its position
DeadLetters = list[tuple[CheckPoint, int]]


@dataclass(frozen=True, slots=True)
class PopRequest:
    """What one receive asks for. `pop_time` is now in ms; `owner` is the consumer's name, for views.

    `attempt_id` names the receive: in order, a repeat with the same name gets the same messages.
    """

    count: int
    invisible_ms: int
    pop_time: int
    owner: str = ""
    attempt_id: str | None = None


@dataclass(frozen=True, slots=True)
class HandedOut:
    """Messages of one queue that this consumer got; `window` has their places.

    `attempts` are the earlier deliveries by queue offset, of messages whose own number does not say so.
    """

    point: CheckPoint
    queue: Queue
    window: Window
    attempts: Mapping[int, int] = field(default_factory=dict)


class TopicPop:
    """The messages of one topic of one store for one group, with its pop retry topics.

    Threads may share it. `queues` has the queues that are read, by (flag, queue id), as of a look.
    """

    is_ordered = False
    _revive_queue_id = 0  # in handles; nobody writes these messages to a revive topic

    def __init__(
        self,
        topic: str,
        broker_name: str,
        share: Share,
        subscription: Subscription,
        *,
        rules: ShareRules,
        max_attempts: int,
        random: Random,
        counters: Counters,
        give_up: Callable[[DeadLetters], None],
    ) -> None:
        self.topic = topic
        self.broker_name = broker_name
        self.share = share
        self.queues: Mapping[PopQueue, Queue] = {}
        self._subscription = subscription
        self._rules = rules
        self._max_attempts = max_attempts
        self._random = random
        self._counters = counters
        self._give_up = give_up
        self._windows: dict[PopQueue, Window] = {}
        self._last_read: dict[PopQueue, tuple[int, int]] = {}  # entries of the last window, and its stop
        self._next: dict[PopQueue, int] = {}  # the next offsets when this process last had the log

    @property
    def root(self) -> str:
        """The store."""
        return self.share.name.root

    def next_visible(self, request: PopRequest) -> int | None:
        """When this request can find messages without a commit before: the time in ms; None if never.

        Messages whose invisible time has passed are stored again, which is a commit.
        """
        return None

    # ---- pop -----------------------------------------------------------------------------------------------

    def pop(self, request: PopRequest) -> list[MessageView]:
        """Up to `request.count` messages of the topic, which are then invisible to others; [] if none waits.

        The messages are handed out when this returns; if it raises, those handed out come again after their
        invisible time. Raises the error of a queue that cannot be read if no other queue has a message.
        """
        failed: _Failed = {}
        before: list[tuple[PopQueue, int]] = []
        repeats = 0
        while repeats < _REPEATS_MAX:
            queues = self.queues
            order = [key for key in self._order(queues) if key not in failed]
            self._read_ahead(queues, order, request.count, failed)
            out, unread = self.share.run(partial(self._hand_out, queues, order, request))
            if out:
                found = self._received(out)
                if found:
                    return found
            elif not unread:
                break
            for key, start in unread:
                self._read(queues[key], key, start, failed)
            unread.sort()
            repeats = repeats + 1 if unread == before and not out else 0
            before = unread
        for error in failed.values():
            raise error
        return []

    def _order(self, queues: Mapping[PopQueue, Queue]) -> list[PopQueue]:
        topics = [queue_id for flag, queue_id in queues if flag == TOPIC]
        retries = [key for key in queues if key[0] != TOPIC]
        return list(visits(topics, retries, self._rules, self._random))

    def _read_ahead(
        self, queues: Mapping[PopQueue, Queue], order: Iterable[PopQueue], count: int, failed: _Failed
    ) -> None:
        """Reads the windows that this pop needs, if other processes have handed out nothing meanwhile."""
        for key in order:
            start = self._next.get(key)
            if start is None or start >= queues[key].max_offset:
                continue
            window = self._windows.get(key)
            if window is None or not window.covers(start):
                window = self._read(queues[key], key, start, failed)
            count -= len(window.take(start, count)[0]) if window is not None and window.covers(start) else 0
            if count <= 0:
                return

    def _read(self, queue: Queue, key: PopQueue, start: int, failed: _Failed) -> Window | None:
        """The next window of the queue; None, with a note in `failed`, for a queue that cannot be read."""
        length, stop = self._last_read.get(key, (0, 0))
        try:
            window = read_window(queue, start, 2 * length if start == stop else 0, self._subscription)
        except (CorruptStoreError, UnsupportedFormatError) as error:
            failed[key] = error
            return None
        self._windows[key] = window
        self._last_read[key] = window.stop - window.start, window.stop
        return window

    def take_queues(self, queues: Mapping[PopQueue, Queue]) -> None:
        """The queues as of a new look. A queue that was cut has other entries at the offsets read ahead."""
        for key, window in list(self._windows.items()):
            if key not in queues or window.stop > queues[key].max_offset:
                self._windows.pop(key, None)
        self.queues = queues

    def _hand_out(
        self,
        queues: Mapping[PopQueue, Queue],
        order: Sequence[PopQueue],
        request: PopRequest,
        state: PopState,
    ) -> tuple[list[HandedOut], list[tuple[PopQueue, int]]]:
        """(what was handed out, queues whose entries must be read first and from where), under the lock."""
        if state.order.is_on != self.is_ordered:
            way = "in order" if state.order.is_on else "without order"
            raise OptionError(
                f"fifo: a consumer was opened that pops {way} ({self.share.name.directory}); give all "
                "consumers of the group the same fifo, and open this one again"
            )
        out: list[HandedOut] = []
        unread: list[tuple[PopQueue, int]] = []
        left = request.count
        for key in order:
            known = state.queues.get(key)
            if known is None or self._is_blocked(state, key, request):
                continue
            start = known.next_offset
            self._next[key] = start
            queue = queues[key]
            if start < queue.min_offset:
                self._note_lost(queue, start)
                start = queue.min_offset
                state.skip(*key, start)  # so that nobody counts the same messages again
            if start >= queue.max_offset:
                continue
            window = self._windows.get(key)
            if window is None or not window.covers(start):
                unread.append((key, start))
                continue
            offsets, next_offset = window.take(start, left)
            self._next[key] = next_offset
            if next_offset >= window.stop:
                self._windows.pop(key, None)  # a group may read any number of queues
            if not offsets:
                state.skip(*key, next_offset)
                if next_offset < queue.max_offset:
                    unread.append((key, next_offset))
                continue
            out.append(self._take(state, queue, window, (key, offsets, next_offset), request))
            left -= len(offsets)
            if not left:
                break
        return out, unread

    def _is_blocked(self, state: PopState, key: PopQueue, request: PopRequest) -> bool:
        """Whether the queue must be left alone now, whatever it has."""
        return False

    def _take(
        self,
        state: PopState,
        queue: Queue,
        window: Window,
        taken: tuple[PopQueue, list[int], int],
        request: PopRequest,
    ) -> HandedOut:
        """Hands out the taken messages: the queue's key, the offsets, the next offset behind them."""
        key, offsets, next_offset = taken
        point = state.hand_out(
            *key, offsets, next_offset, request.pop_time, request.invisible_ms, request.owner
        )
        return HandedOut(point, queue, window)

    def _note_lost(self, queue: Queue, start: int) -> None:
        count = queue.min_offset - start
        self._counters.add(lost=count)
        _log.warning(
            "%s: queue %s-%d: retention deleted %d messages, from offset %d on, before they were delivered",
            queue.store.path, queue.topic, queue.queue_id, count, start,
        )  # fmt: skip

    # ---- what was handed out -------------------------------------------------------------------------------

    def _received(self, out: Sequence[HandedOut]) -> list[MessageView]:
        """The messages. If reading them is interrupted, they are visible again at once."""
        try:
            return self._messages(out)
        except BaseException:
            self._give_back(out)
            raise

    def _give_back(self, out: Iterable[HandedOut]) -> None:
        keys = [each.point.key for each in out]
        self.share.run(lambda state: [state.renew(key, 0) for key in keys])

    def _messages(self, out: Iterable[HandedOut]) -> list[MessageView]:
        """The messages of these check points; the others are acknowledged or become dead letters."""
        found: list[MessageView] = []
        passed: list[tuple[CheckPoint, int]] = []
        dead: DeadLetters = []
        for each in out:
            point, queue = each.point, each.queue
            tags = self._subscription.tags.tags
            places = each.window.places(point.offsets)
            units = read_units(queue.store.log, places)
            for bit, (offset, unit, (physical, size)) in enumerate(
                zip(point.offsets, units, places, strict=True)
            ):
                if unit is None:
                    passed.append((point, bit))
                    self._note_gone(queue, offset, physical)
                    continue
                file, data = unit
                place = UnitPlace(file.path, file.start, physical, size, queue.topic, queue.queue_id, offset)
                message = self._message(each, place, data)
                if message.error is not None:
                    self._counters.add(damaged=1)
                elif tags and message.stored_properties.get(TAGS) not in tags:
                    passed.append((point, bit))
                    self._counters.add(filtered=1)
                    continue
                elif message.delivery_attempt > self._max_attempts:
                    dead.append((point, bit))
                    continue
                found.append(message)
        if passed:
            self.acknowledge(passed)
        if dead:
            self._give_up(dead)
        return found

    def _message(self, each: HandedOut, place: UnitPlace, data: bytes) -> MessageView:
        point = each.point
        handle = ReceiptHandle(
            point.start, point.pop_time, point.invisible_ms, self._revive_queue_id, point.flag,
            self.broker_name, point.queue_id, place.queue_offset,
        )  # fmt: skip
        before = each.attempts.get(place.queue_offset)
        attempt = None if before is None else before + 1
        try:
            return MessageView(
                self.root, self.topic, handle, place, decode_unit(data, place), attempt=attempt
            )
        except CorruptStoreError as error:
            _log.warning("a damaged message was delivered with its error: %s", error)
            return MessageView(self.root, self.topic, handle, place, None, error)

    def _note_gone(self, queue: Queue, offset: int, physical: int) -> None:
        self._counters.add(lost=1)
        _log.warning(
            "%s: queue %s-%d offset %d: the message at commitlog %d was deleted (retention) before it was "
            "delivered",
            queue.store.path, queue.topic, queue.queue_id, offset, physical,
        )  # fmt: skip

    # ---- handles -------------------------------------------------------------------------------------------

    def acknowledge(self, messages: Iterable[tuple[CheckPoint, int]]) -> None:
        """Acknowledges messages by check point and position: those that no consumer gets."""
        given = [(point.key, position) for point, position in messages]
        self.share.run(lambda state: [state.ack(key, [position]) for key, position in given])

    def ack(self, handles: Sequence[ReceiptHandle], now_ms: int) -> list[InvalidReceiptHandleError]:
        """Acknowledges the messages of these handles. Returns an error for each handle that is not valid."""
        return self.share.run(lambda state: acknowledge(state, handles, now_ms))

    def change_invisible(
        self, handle: ReceiptHandle, invisible_ms: int, now_ms: int
    ) -> ReceiptHandle | InvalidReceiptHandleError:
        """The message's new handle: it is invisible for `invisible_ms` from now on."""

        def change(state: PopState) -> ReceiptHandle | InvalidReceiptHandleError:
            found = position_of(state, handle, now_ms)
            if isinstance(found, InvalidReceiptHandleError):
                return found
            point = state.change_invisible(found[0].key, found[1], now_ms, invisible_ms)
            if point is None:
                return unknown_handle(handle)
            return handle._replace(start=point.start, pop_time=point.pop_time, invisible_ms=invisible_ms)

        return self.share.run(change)
