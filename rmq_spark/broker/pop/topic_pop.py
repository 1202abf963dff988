"""Pop of one topic of one store: chooses messages, hands them out in the in-flight log, and reads them.

The order of the steps is what makes a pop exclusive and cheap. The entries of the consume queue that lie
ahead are read before the log is locked, which all processes of the group wait for, and are kept
(`QueueWindow`). The choice is made under the lock, and the messages are read when they belong to this
consumer.

A broker draws one number below 100 for each request (PopMessageProcessor.processRequest, spec 11.2). It
decides whether the retry topic is read before the topic, and at which queue the reading begins; both spread
consumers over the queues (`visits`).

A revive stores a copy of a message that nobody acknowledged. Of a damaged message, of an inner batch and of a
message of light queues no copy is made. Such a message has a check point of its own (`PopState.again`). When
that becomes visible, the message is handed out again: at once in a fifth of the receives, as a message of the
retry topic, otherwise behind the new messages. It never becomes a dead letter, which is a copy, too.

Messages that retention deleted before they were delivered are counted, with one warning for a run of them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import partial
from random import Random
from typing import Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from rmq_spark.broker.pop.message import (
    Counters,
    MessageView,
    ReceiptHandle,
    acknowledge,
    position_of,
    unknown_handle,
)
from rmq_spark.broker.pop.share import PopGroup
from rmq_spark.broker.pop.waiting import notify
from rmq_spark.consume.consumer import Tags
from rmq_spark.consume.sql92 import CountingFilter
from store_format.consumequeue.files import ext_directory
from store_format.consumequeue.units import is_ext_address, resolve_tags_codes
from store_format.display.text import shown
from store_format.errors import (
    CorruptStoreError,
    InvalidReceiptHandleError,
    OffsetOutOfRangeError,
    OptionError,
    StoreError,
    StoreNotFoundError,
    UnsupportedFormatError,
)
from store_format.java.text import java_hash
from store_format.message.locate import Identity
from store_format.message.single import UnitPlace, decode_unit
from store_format.metadata.values import SubscriptionGroup, TopicConfig
from store_format.names import TAGS
from store_format.pop.records import CheckPoint
from store_format.pop.state import TOPIC, PopQueue, PopState
from store_format.read.store import Queue
from store_format.read.stored_messages import read_stored, read_units

_log = logging.getLogger(__name__)

# Rounds of a pop without progress: retention has deleted queue files that the last look has seen.
_REPEATS_MAX = 3

_REVIVE_SECONDS = 0.2  # that a change of an invisible time to 0 waits for the store's lock

_Failed = dict[PopQueue, StoreError]  # queues that cannot be read

# a message that has reached the group's maximum of deliveries: its check point and its position
DeadLetters = list[tuple[CheckPoint, int]]

MESSAGES_MAX = 32  # of one receive
_DRAWN_BELOW = 100

_T = TypeVar("_T")

_RETRY_PROBABILITY = 20  # popFromRetryProbability, in percent
_RETRY_PROBABILITY_FOR_PRIORITY = 0  # popFromRetryProbabilityForPriority
_PRIORITY_FACTOR = 100  # the default of the group's attribute priority.factor

_ENTRIES_MIN, _ENTRIES_MAX = 256, 8192  # each next stretch of a queue is twice as long
_EVALUATED_MAX = 512  # SQL92 needs the messages themselves

_Ints = NDArray[np.int64]


# ---- the order of the queues -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ShareRules:
    """What the choice depends on besides the number drawn; `priority_factor` is None for other topics."""

    retry_probability: int = _RETRY_PROBABILITY
    priority_factor: int | None = None

    @classmethod
    def of(cls, topic: TopicConfig | None, group: SubscriptionGroup | None) -> ShareRules:
        """The rules for a topic and a group as their broker has them configured."""
        if topic is None or topic.message_type != "PRIORITY":
            return cls()
        text = "" if group is None else group.attributes.get("priority.factor", "")
        return cls(priority_factor=int(text) if text.isdecimal() else _PRIORITY_FACTOR)


def visits(
    queue_ids: Sequence[int], retries: Sequence[PopQueue], rules: ShareRules, random: Random
) -> Iterator[PopQueue]:
    """The queues in the order in which one pop reads them, the retry queues before or after the topic's.

    `queue_ids` are the readable queues of the topic, ascending; `retries` those of its pop retry topics. The
    topic's queues come in descending order from a random one (RocketMQ 5.4 and later), in priority mode from
    the highest.

    >>> from random import Random
    >>> list(visits(range(4), [(1, 0)], ShareRules(0), Random(1)))
    [(0, 0), (0, 3), (0, 2), (0, 1), (1, 0)]
    """
    drawn = random.randrange(_DRAWN_BELOW)
    retry_probability = rules.retry_probability
    if rules.priority_factor is not None and drawn < rules.priority_factor:
        drawn, retry_probability = 0, _RETRY_PROBABILITY_FOR_PRIORITY
    retry_first = drawn < retry_probability
    ordered = _from(retries, drawn)
    if retry_first:
        yield from ordered
    yield from ((TOPIC, queue_id) for queue_id in _from(queue_ids, drawn))
    if not retry_first:
        yield from ordered


def _from(values: Sequence[_T], drawn: int) -> Iterable[_T]:
    """All values, descending and around, from the one before place `drawn`."""
    count = len(values)
    return (values[(drawn + count - 1 - i) % count] for i in range(count))


def check_message_num(max_message_num: object) -> int:
    """Returns the number of messages of a receive. Raises OptionError unless it is 1 to 32."""
    if not isinstance(max_message_num, int) or not 1 <= max_message_num <= MESSAGES_MAX:
        raise OptionError(
            f"max_message_num: expected 1 to {MESSAGES_MAX}, as a broker allows, found {max_message_num!r}; "
            "receive in a loop for more"
        )
    return max_message_num


# ---- the entries ahead -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class QueueWindow:
    """The matching entries of queue offsets [start, stop): queue offsets, physical offsets and sizes."""

    start: int
    stop: int
    offsets: _Ints
    physical_offsets: _Ints
    sizes: _Ints

    def covers(self, offset: int) -> bool:
        """Whether the window says which message at or after `offset` is the next."""
        return self.start <= offset < self.stop

    def take(self, start: int, count: int) -> tuple[list[int], int]:
        """(up to `count` matching queue offsets from `start` on, the next offset of the queue after them).

        The next offset passes over the entries behind the last message that do not match.
        """
        first = int(self.offsets.searchsorted(start))
        taken: list[int] = self.offsets[first : first + count].tolist()
        if first + len(taken) < len(self.offsets):
            return taken, int(self.offsets[first + len(taken)])
        return taken, self.stop

    def physical_offset(self, offset: int) -> int:
        """The physical offset of the message at this queue offset, which the window has."""
        return int(self.physical_offsets[self.offsets.searchsorted(offset)])

    def places(self, offsets: Sequence[int]) -> list[tuple[int, int]]:
        """(physical offset, size) of the messages at these queue offsets, which the window has."""
        index = self.offsets.searchsorted(offsets)
        return list(zip(self.physical_offsets[index].tolist(), self.sizes[index].tolist(), strict=True))


@dataclass(slots=True)
class Subscription:
    """What a consumer reads of one topic: a TAG or an SQL92 expression, compiled."""

    tags: Tags = None
    where: CountingFilter | None = None


def _read_window(queue: Queue, start: int, count: int, subscription: Subscription) -> QueueWindow:
    """About `count` entries of a queue from `start` on, within limits.

    Queues of retry topics are filtered too, as by a broker. The window is empty (`stop` == `start`) at the
    end of the queue. Raises UnsupportedFormatError for a queue that can only be scanned, and for a BatchCQ.
    """
    _refuse(queue)
    where = subscription.where
    count = min(max(count, _ENTRIES_MIN), _ENTRIES_MAX if where is None else _EVALUATED_MAX)
    start = max(start, queue.min_offset)
    stop = max(min(start + count, queue.max_offset), start)
    try:
        offsets, units = queue.piece(start, stop).read()
    except (OffsetOutOfRangeError, StoreNotFoundError):
        # retention has deleted the files since the queue was listed; the next look lists it again
        return QueueWindow(start, start, *(np.empty(0, np.int64) for _ in range(3)))
    physical, sizes = units["physical_offset"].astype(np.int64), units["size"].astype(np.int64)
    if subscription.tags is not None:
        kept = _matching_codes(queue, units["tags_code"].astype(np.int64), subscription.tags)
        offsets, physical, sizes = offsets[kept], physical[kept], sizes[kept]
    if where is not None and len(offsets):
        kept = _matching_messages(queue, offsets, physical, sizes, where)
        offsets, physical, sizes = offsets[kept], physical[kept], sizes[kept]
    return QueueWindow(start, stop, offsets, physical, sizes)


def _refuse(queue: Queue) -> None:
    where = f"{queue.store.path}: queue {queue.topic}-{queue.queue_id}"
    if queue.scanned is not None:
        raise UnsupportedFormatError(
            f"{where}: expected consume queue files, found none; pop reads consume queues only. Rebuild them "
            "with `rmqlog recover`"
        )
    if queue.range.is_batch:
        raise UnsupportedFormatError(
            f"{where}: expected a simple consume queue, found a BatchCQ (queue.type), which pop does not read"
        )


def _matching_codes(queue: Queue, codes: _Ints, tags: frozenset[str]) -> NDArray[np.bool_]:
    """ExpressionMessageFilter.isMatchedByConsumeQueue: the hash decides here, the text after the hand-out."""
    codes = resolve_tags_codes(ext_directory(queue.store.opened, queue.topic, queue.queue_id), codes)
    wanted = np.array(sorted(map(java_hash, tags)), np.int32)
    kept: NDArray[np.bool_] = np.isin(codes.astype(np.int32), wanted) | is_ext_address(codes)
    return kept


def _matching_messages(
    queue: Queue, offsets: _Ints, physical: _Ints, sizes: _Ints, where: CountingFilter
) -> NDArray[np.bool_]:
    """Which messages match the SQL92 expression; a damaged message counts, and its receiver is told."""
    identity = Identity((queue.topic,), None, np.full(len(offsets), queue.queue_id, np.int32), offsets)
    messages, index, _ = read_stored(queue.store.log, physical, sizes, identity)
    kept = np.ones(len(offsets), bool)
    if len(messages):
        names = where.expression.names
        columns = dict(zip(names, messages.properties(*names), strict=True))
        kept[index] = where.mask(len(messages), columns.__getitem__).to_numpy(zero_copy_only=False)
    return kept


# ---- a request, and what it was handed out -----------------------------------------------------------------


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
    """Messages of one queue that this consumer got; `window` has their places, None before they were read.

    `attempts` are the earlier deliveries by queue offset, of messages whose own number does not say so.
    """

    point: CheckPoint
    queue: Queue
    window: QueueWindow | None
    attempts: Mapping[int, int] = field(default_factory=dict)


# ---- pop ---------------------------------------------------------------------------------------------------


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
        share: PopGroup,
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
        self._windows: dict[PopQueue, QueueWindow] = {}
        self._last_read: dict[PopQueue, tuple[int, int]] = {}  # entries of the last window, and its stop
        self._next: dict[PopQueue, int] = {}  # the next offsets when this process last had the log
        self._renewals: int | None = None  # those that the windows are from

    def with_subscription(self, subscription: Subscription) -> Self:
        """A copy that hands out messages of another filter.

        The copy starts without the messages read ahead, which were matched against the former filter.
        """
        other = copy(self)
        other._subscription = subscription
        other._windows, other._last_read, other._next = {}, {}, {}
        return other

    @property
    def root(self) -> str:
        """The store."""
        return self.share.name.opened.path

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
        return list(visits(topics, [key for key in queues if key[0] != TOPIC], self._rules, self._random))

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

    def _read(self, queue: Queue, key: PopQueue, start: int, failed: _Failed) -> QueueWindow | None:
        """The next window of the queue; None, with a note in `failed`, for a queue that cannot be read."""
        length, stop = self._last_read.get(key, (0, 0))
        try:
            window = _read_window(queue, start, 2 * length if start == stop else 0, self._subscription)
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
        if state.renewals != self._renewals:  # the windows may be of a topic that was deleted
            self._windows.clear()
            self._renewals = state.renewals
        unread: list[tuple[PopQueue, int]] = []
        out = self._hand_out_again(state, queues, request)
        left = request.count - len(out)
        for key in order if left else ():
            known = state.queues.get(key)
            if known is None or self._is_blocked(state, key, request):
                continue
            start = known.next_offset
            self._next[key] = start
            queue = queues[key]
            if start < queue.min_offset:
                _note_deleted(self._counters, queue, start, queue.min_offset - start)
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
        if left and not unread and not self.is_ordered:
            out += _hand_out_due(state, queues, request, left)
        return out, unread

    def _hand_out_again(
        self, state: PopState, queues: Mapping[PopQueue, Queue], request: PopRequest
    ) -> list[HandedOut]:
        """Messages that cannot be stored again come before the new ones as often as those of retry topics."""
        first = state.again.first
        is_due = not self.is_ordered and first is not None and first <= request.pop_time
        if not is_due or self._random.randrange(_DRAWN_BELOW) >= self._rules.retry_probability:
            return []
        return _hand_out_due(state, queues, request, request.count)

    def _is_blocked(self, state: PopState, key: PopQueue, request: PopRequest) -> bool:
        """Whether the queue must be left alone now, whatever it has."""
        return False

    def _take(
        self,
        state: PopState,
        queue: Queue,
        window: QueueWindow,
        taken: tuple[PopQueue, list[int], int],
        request: PopRequest,
    ) -> HandedOut:
        """Hands out the taken messages: the queue's key, the offsets, the next offset behind them."""
        key, offsets, next_offset = taken
        point = state.hand_out(
            *key, offsets, next_offset, request.pop_time, request.invisible_ms, request.owner,
            physical_offset=window.physical_offset(offsets[-1]),
        )  # fmt: skip
        return HandedOut(point, queue, window)

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

    def _messages(self, out: Sequence[HandedOut]) -> list[MessageView]:
        """The messages of these check points; the others are acknowledged or become dead letters."""
        found: list[MessageView] = []
        dead: DeadLetters = []
        deleted: list[tuple[HandedOut, list[int]]] = []
        out, passed = _located(out, self._subscription, self._counters)
        for each in out:
            point, queue, window = each.point, each.queue, each.window
            assert window is not None, "located has read it"
            tags = self._subscription.tags
            places = window.places(point.offsets)
            gone: list[int] = []
            for bit, (offset, unit, (physical, size)) in enumerate(
                zip(point.offsets, read_units(queue.store.log, places), places, strict=True)
            ):
                if unit is None:
                    passed.append((point, bit))
                    gone.append(offset)
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
                elif message.delivery_attempt > self._max_attempts and not point.again:
                    dead.append((point, bit))
                    continue
                found.append(message)
            if gone:
                deleted.append((each, gone))
        if passed:
            self.acknowledge(passed)
        for each, gone in deleted:
            skipped = _skip_deleted(self.share, each.point.key[:2], each.queue)
            _note_deleted(self._counters, each.queue, gone[0], len(gone) + skipped)
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
            return MessageView(self.root, self.topic, handle, place, None, error, attempt=attempt or 1)

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

        found = self.share.run(change)
        if isinstance(found, ReceiptHandle) and not invisible_ms:
            self._deliver_now(found.visible_at)
        return found

    # ---- delivering again ----------------------------------------------------------------------------------

    def _deliver_now(self, visible_at: int) -> None:
        """Makes what is visible deliverable, without a wait for the keeper's next round."""
        try:
            self.revive(_REVIVE_SECONDS, visible_at)
        except (StoreError, OSError) as error:
            _log.debug("%s: due messages are stored again later: %s", self.root, error)
        self.wake()

    def revive(self, lock_timeout: float | None = None, until_ms: int = 0) -> None:
        """Stores due messages again, as `PopGroup.revive`. Those that no longer exist count as lost."""
        self._counters.add(lost=self.share.revive(lock_timeout=lock_timeout, until_ms=until_ms).gone)

    def wake(self) -> None:
        """Wakes the waiting consumers of this process if a message waits to be delivered from its own place.

        Messages that are stored again need no call: their commit ends the wait.
        """
        first = self.share.run(lambda state: state.again.first)
        if first is not None and first <= self.share.options.clock_ms():
            notify(self.root, self.topic, self.share.group)


# ---- messages that cannot be stored again ------------------------------------------------------------------


def _hand_out_due(
    state: PopState, queues: Mapping[PopQueue, Queue], request: PopRequest, count: int
) -> list[HandedOut]:
    """Hands out up to `count` messages of these queues whose time has passed.

    `_located` reads where they are, without the lock of the log.
    """
    found: list[HandedOut] = []
    for before in state.again.due(request.pop_time):
        queue = queues.get(before.key[:2])
        if queue is None or len(found) >= count:
            continue
        visible_at = request.pop_time + request.invisible_ms
        point = state.deliver_again(before.key, 0, request.pop_time, visible_at, request.owner)
        if point is not None:
            found.append(HandedOut(point, queue, None, {point.start: before.again}))
    return found


def _located(
    out: Sequence[HandedOut], subscription: Subscription, counters: Counters
) -> tuple[list[HandedOut], list[tuple[CheckPoint, int]]]:
    """(what was handed out, with the places of the messages; those that nobody gets any more).

    A message whose queue cannot be read now is left out, and comes again after its invisible time.
    """
    found: list[HandedOut] = []
    passed: list[tuple[CheckPoint, int]] = []
    for each in out:
        offset, queue = each.point.start, each.queue
        if each.window is not None:
            found.append(each)
            continue
        try:
            window = _read_window(queue, offset, 1, subscription)
        except (CorruptStoreError, UnsupportedFormatError) as error:
            _log.warning("a message comes again after its invisible time, because of its queue: %s", error)
            continue
        if offset in window.offsets:
            found.append(replace(each, window=window))
        else:
            passed.append((each.point, 0))
            counters.add(**{"filtered" if window.covers(offset) else "lost": 1})
    return found, passed


# ---- deleted messages --------------------------------------------------------------------------------------


def _note_deleted(counters: Counters, queue: Queue, start: int, count: int) -> None:
    """Counts messages of the queue that were deleted, the first of them at offset `start`, and warns."""
    counters.add(lost=count)
    _log.warning(
        "%s: queue %s-%d: retention deleted %d messages, from offset %d on, before they were delivered",
        queue.store.path, shown(queue.topic), queue.queue_id, count, start,
    )  # fmt: skip


def _skip_deleted(share: PopGroup, key: PopQueue, queue: Queue) -> int:
    """Moves the next offset to the first message that the store has now. Returns how many it passes over.

    The queue was listed before retention deleted the messages: entries that were read ahead lead to them.
    """
    try:
        found = share.store.snapshot(queue.topic.__eq__).queues.get((queue.topic, queue.queue_id))
    except StoreError:
        return 0  # the next look at the store raises it
    low = 0 if found is None else found.min_offset

    def change(state: PopState) -> int:
        known = state.queues.get(key)
        count = 0 if known is None else low - known.next_offset
        if count > 0:
            state.skip(*key, low)
        return max(count, 0)

    return share.run(change)
