"""What the members of a group share, as one stream sees it: each topic in each store is a share."""

from __future__ import annotations

import logging
import math
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from rmq_spark.consume.message_queue import MessageQueue
from rmq_spark.consume.permission import consuming_group
from rmq_spark.consume.pop_offset import PoppedRange
from rmq_spark.options.group_options import PopOptions
from rmq_spark.plan.scan import Scan
from rmq_spark.plan.stores import refuse_unknown_names
from rmq_spark.pop.order_mirror import is_ordered
from rmq_spark.pop.share import ConsumerShare, InitMode, ShareOptions
from rmq_spark.pop.shared_queues import SharedQueues, ShareKey
from rmq_spark.pop.stream_again import AgainTaker, DueAgain, due_again
from rmq_spark.stream.admission import admit
from rmq_spark.stream.losses import Losses
from rmq_spark.stream.rates import Limits
from rmq_spark.stream.stores import StreamStores
from store_format.errors import OptionError, StoreError
from store_format.metadata.values import SubscriptionGroup
from store_format.pop.check_point import CheckPoint
from store_format.pop.records import PointKey
from store_format.pop.state import TOPIC, PopQueue, PopState
from store_format.pop.witness import physical_offset_at
from store_format.read.store import Store

_log = logging.getLogger(__name__)

# Fewer messages are not divided among members: a micro-batch costs Spark 0.3 s, whatever its size.
_UNDIVIDED = 1_000


@dataclass(frozen=True, slots=True)
class Ready:
    """The messages that nobody has taken: [begin, stop) of each queue, and those that come again in place.

    `members` share them.
    """

    begins: Mapping[MessageQueue, int]
    stops: Mapping[MessageQueue, int]
    members: int = 1
    again: Sequence[DueAgain] = ()

    @property
    def total(self) -> int:
        return sum(stop - self.begins[key] for key, stop in self.stops.items()) + len(self.again)


@dataclass(frozen=True, slots=True)
class _OffsetsToPop:
    """The matching `offsets` in [start, stop) of a queue; `dead` ones were delivered too often.

    `physical_offsets` has the last offset of each run that is handed out as one; -1: unknown.
    """

    queue: MessageQueue
    start: int
    stop: int
    offsets: Sequence[int]
    physical_offsets: Mapping[int, int]
    dead: frozenset[int] = frozenset()


class StreamShares:
    """The group's shares of the subscribed topics in all stores. Its methods may be called by two threads."""

    def __init__(
        self,
        stores: StreamStores,
        scan: Scan,
        options: PopOptions,
        owner: str,
        *,
        clock_ms: Callable[[], int],
    ) -> None:
        self.now_ms = clock_ms
        self._stores = stores
        self._scan = scan
        self._options = options
        self._owner = owner
        self._losses = Losses(stores.options.fail_on_data_loss, keeps_offsets=False)
        self._shares: dict[ShareKey, ConsumerShare] = {}
        self._groups: dict[ShareKey, SubscriptionGroup] = {}
        self._begun: dict[ShareKey, set[PopQueue]] = {}  # the queues that have a next offset
        self._queues = SharedQueues(stores, options)
        self._again = AgainTaker(scan, owner, options.invisible_ms, clock_ms)
        self.has_again = False  # whether messages waited at the last `keep` to be delivered again in place

    def open(self) -> None:
        """Joins the group.

        Raises OptionError for a topic that no store has, and what `ConsumerShare.open` raises.
        """
        refuse_unknown_names(self._stores.stores, self._stores.options, list(self._stores.queues))
        for share_key, keys in self._queues.by_share().items():
            self._begin_new(share_key, keys)

    def close(self) -> None:
        """Leaves the group. The last member hands what is in flight over to a broker."""
        for share in self._shares.values():
            share.close()

    def _opened(self, key: ShareKey) -> ConsumerShare:
        """The share of a topic on a broker. A topic may be created on a broker while the query runs."""
        share = self._shares.get(key)
        if share is None:
            topic, broker = key
            (store,) = (store for store in self._stores.stores if store.broker_name == broker)
            mode: InitMode = "MIN" if self._options.from_first else "MAX"
            options = ShareOptions(init_mode=mode, clock_ms=self.now_ms)
            self._groups[key] = _group_of(store, self._options.group)
            share = self._shares[key] = ConsumerShare.open(store, self._options.group, topic, options)
        return share

    # ---- between micro-batches -----------------------------------------------------------------------------

    def acknowledge(self, ranges: Sequence[PoppedRange]) -> None:
        """Acknowledges the ranges of a micro-batch that Spark has committed."""
        for share, parts in self._by_share(ranges):

            def change(state: PopState, parts: Sequence[PoppedRange] = parts) -> None:
                for key in self._keys(state, parts):
                    state.ack(key)

            share.run(change)

    def orphans(self, ranges: Sequence[PoppedRange]) -> list[PoppedRange]:
        """What this query took for an offset that Spark never stored: its check points beside `ranges`.

        Their invisible time begins again.
        """
        known = frozenset(ranges)
        found: list[PoppedRange] = []
        for (_, broker), share in self._shares.items():

            def change(
                state: PopState, share: ConsumerShare = share, broker: str = broker
            ) -> list[PoppedRange]:
                now, renewed = self.now_ms(), []
                for point in [each for each in state.check_points() if each.owner == self._owner]:
                    queue = MessageQueue(share.topic_of(point.flag), broker, point.queue_id)
                    each = PoppedRange(queue, point.start, point.offsets[-1] + 1, point.pop_time)
                    until = now - point.pop_time + self._options.invisible_ms
                    if each not in known and state.renew(point.key, until):
                        renewed.append(each)
                return renewed

            found += share.run(change)
        return found

    def ready(self) -> Ready:
        """The messages that nobody has taken, as of the last look at the stores.

        Raises OffsetOutOfRangeError for messages that retention deleted before, unless failOnDataLoss is
        false.
        """
        begins: dict[MessageQueue, int] = {}
        members = {self._owner}
        again: list[DueAgain] = []
        for share_key, keys in self._queues.by_share().items():
            share = self._begin_new(share_key, keys)

            def change(
                state: PopState, keys: Sequence[MessageQueue] = keys
            ) -> tuple[dict[MessageQueue, int], set[str]]:
                known = {key: state.queues.get(self._queues.pop_queue(key)) for key in keys}
                owners = {point.owner for point in state.check_points() if point.owner}
                return {key: each.next_offset for key, each in known.items() if each is not None}, owners

            found, owners = share.run(change)
            if any(self._is_behind(key, offset) for key, offset in found.items()):
                # Another member has taken messages that are newer than the look. A look that is newer than
                # the offsets tells them from offsets that went back.
                self._stores.look()
                found = {key: offset for key, offset in found.items() if key in self._stores.queues}
            wrong = [key for key, offset in found.items() if not self._is_there(key, offset)]
            self._losses.report()
            if wrong:
                share.begin([self._queues.pop_queue(key) for key in wrong])
                found, _ = share.run(change)
            begins |= found
            members |= owners
            again += self._due_again(share_key, share)
        stops = {key: max(self._stores.queues[key].max_offset, begin) for key, begin in begins.items()}
        return Ready(begins, stops, len(members), again)

    def _due_again(self, share_key: ShareKey, share: ConsumerShare) -> list[DueAgain]:
        return due_again(share, share_key[1], self._stores.queues, self.now_ms())

    def _is_behind(self, key: MessageQueue, offset: int) -> bool:
        """Whether the next offset is behind the end of the queue."""
        return offset > self._stores.queues[key].max_offset

    def _is_there(self, key: MessageQueue, offset: int) -> bool:
        """Whether the next offset is in the queue; if not, that is noted as a loss."""
        return self._losses.begin(key, offset, self._stores.queues[key]) == offset

    def take(self, ready: Ready, limits: Limits) -> list[PoppedRange]:
        """Takes messages within the limits. May return nothing: if none matches, or others were faster."""
        part = max(_UNDIVIDED, math.ceil(ready.total / ready.members))
        limit = part if limits.max_offsets is None else min(limits.max_offsets, part)
        found = self._again.take(ready.again[:limit])
        limit -= len(found)
        counts: Mapping[MessageQueue, int] = {}
        if limit:
            counts = admit(self._stores, ready.begins, ready.stops, replace(limits, max_offsets=limit))
        wanted: dict[ShareKey, list[_OffsetsToPop]] = {}
        for key, count in counts.items():
            if count:
                wanted.setdefault(self._queues.share_key(key), []).append(
                    self._wanted(key, ready.begins[key], count)
                )
        for share_key, parts in wanted.items():
            share = self._opened(share_key)

            def change(
                state: PopState, parts: Sequence[_OffsetsToPop] = parts
            ) -> list[tuple[_OffsetsToPop, CheckPoint, bool]]:
                return [(part, *each) for part in parts for each in self._hand_out(state, part)]

            taken = share.run(change)
            found += [
                PoppedRange(part.queue, point.start, point.offsets[-1] + 1, point.pop_time)
                for part, point, is_dead in taken
                if not is_dead
            ]
            self._bury(share, self._groups[share_key], [point for _, point, is_dead in taken if is_dead])
        return found

    def _bury(self, share: ConsumerShare, group: SubscriptionGroup, points: Sequence[CheckPoint]) -> None:
        """Stores messages as dead letters; if that fails they are tried again after their invisible time."""
        messages = [(point, position) for point in points for position in range(len(point.offsets))]
        if not messages:
            return
        try:
            count = share.bury(group, messages)
        except StoreError as error:
            _log.warning("%d messages cannot be stored as dead letters: %s", len(messages), error)
        else:
            _log.warning("group %s: %d messages became dead letters", share.group, count)

    # ---- while a micro-batch runs --------------------------------------------------------------------------

    def renew(self, ranges: Sequence[PoppedRange], invisible_ms: int) -> list[PoppedRange]:
        """Makes the ranges invisible for that time from now on. Returns those that are taken no longer."""
        lost: list[PoppedRange] = []
        for share, parts in self._by_share(ranges):

            def change(state: PopState, parts: Sequence[PoppedRange] = parts) -> list[PoppedRange]:
                now = self.now_ms()
                return [
                    part
                    for part in parts
                    if not all(
                        [state.renew(key, now - key[3] + invisible_ms) for key in self._keys(state, [part])]
                        or [False]
                    )
                ]

            lost += share.run(change)
        return lost

    def keep(self) -> None:
        """Call it about once a second: writes offsets, and makes what dead members had visible again.

        Raises StoreInUseError if a broker has opened a store.
        """
        has_again = False
        for key, share in list(self._shares.items()):
            share.keep()
            share.revive()
            has_again |= bool(self._due_again(key, share))
        self.has_again = has_again

    def revive(self) -> None:
        """Makes everything visible whose invisible time has passed; waits for other writers of the stores."""
        for share in list(self._shares.values()):
            while share.revive(lock_timeout=share.options.lock_timeout).messages:
                pass

    # ---- one share -----------------------------------------------------------------------------------------

    def _begin_new(self, share_key: ShareKey, keys: Sequence[MessageQueue]) -> ConsumerShare:
        """Sets the next offset of queues that the group has not popped, also of those without a message.

        A group that is new to the topic begins as `consumeFromWhere` says. Queues that are created later are
        read from their first message.
        """
        share, begun = self._opened(share_key), self._begun.setdefault(share_key, set())
        firsts = {(TOPIC, queue_id): 0 for queue_id in self._queues.readable_ids(share_key)}
        firsts |= {self._queues.pop_queue(key): self._stores.queues[key].min_offset for key in keys}
        if firsts.keys() <= begun:
            return share

        def change(state: PopState) -> list[PopQueue]:
            unknown = sorted(firsts.keys() - state.queues.keys())
            if all(flag != TOPIC for flag, _ in state.queues):
                return unknown
            for queue in unknown:
                state.set_offset(*queue, firsts[queue])
            return []

        share.begin(share.run(change))
        begun |= firsts.keys()
        return share

    def _by_share(self, ranges: Sequence[PoppedRange]) -> list[tuple[ConsumerShare, list[PoppedRange]]]:
        """The ranges of each share. Ranges of topics that are subscribed no longer are left out."""
        found: dict[ShareKey, list[PoppedRange]] = {}
        for each in ranges:
            if each.queue in self._queues and self._queues.share_key(each.queue) in self._shares:
                found.setdefault(self._queues.share_key(each.queue), []).append(each)
        return [(self._shares[key], parts) for key, parts in found.items()]

    def _keys(self, state: PopState, ranges: Sequence[PoppedRange]) -> list[PointKey]:
        """The check points of the ranges: one each, or several small ones if a broker had them meanwhile."""
        found: list[PointKey] = []
        for name, start, stop, pop_time in ranges:
            queue = self._queues.pop_queue(name)
            key = *queue, start, pop_time
            point = state.check_point(key)
            if point is not None and point.offsets[-1] + 1 >= stop:
                found.append(key)
                continue
            known = state.queues.get(queue)
            found += [
                (*queue, *place)
                for place in (known.check_points if known is not None else ())
                if place[1] == pop_time and start <= place[0] < stop
            ]
        return found

    def _wanted(self, key: MessageQueue, start: int, count: int) -> _OffsetsToPop:
        queue = self._stores.queues[key]
        piece, dead = queue.piece(start, start + count), frozenset[int]()
        if self._queues.pop_queue(key)[0] == TOPIC:
            offsets = self._scan.matching_offsets(queue.store, piece)
        else:
            times = self._scan.reconsume_times(queue.store, piece)
            offsets, times_max = sorted(times), self._groups[self._queues.share_key(key)].retry_max_times
            dead = frozenset(offset for offset, count in times.items() if count > times_max)
        lasts = [run[-1] for _, run in _runs(offsets, dead)]
        physical_offsets = {last: physical_offset_at(queue.range, last) for last in lasts}
        return _OffsetsToPop(key, start, start + count, offsets, physical_offsets, dead)

    def _hand_out(self, state: PopState, wanted: _OffsetsToPop) -> Iterator[tuple[CheckPoint, bool]]:
        """Takes what other members have left of the messages since `ready`.

        Yields check points, and whether the messages have been delivered too often. Those get check points of
        their own, without an owner: this query never reads them.
        """
        queue = self._queues.pop_queue(wanted.queue)
        next_offset = state.queues[queue].next_offset
        left = wanted.offsets[bisect_left(wanted.offsets, next_offset) :]
        for is_dead, offsets in _runs(left, wanted.dead):
            yield (
                state.hand_out(
                    *queue,
                    offsets,
                    offsets[-1] + 1,
                    self.now_ms(),
                    self._options.invisible_ms,
                    "" if is_dead else self._owner,
                    physical_offset=wanted.physical_offsets[offsets[-1]],
                ),
                is_dead,
            )
        if state.queues[queue].next_offset < wanted.stop:
            state.skip(*queue, wanted.stop)


def _runs(offsets: Sequence[int], dead: frozenset[int]) -> Iterator[tuple[bool, Sequence[int]]]:
    """The offsets in runs of dead letters and of others: whether they are dead letters, and the offsets."""
    if dead:
        yield from ((is_dead, list(run)) for is_dead, run in groupby(offsets, dead.__contains__))
    elif offsets:
        yield False, offsets


def _group_of(store: Store, name: str) -> SubscriptionGroup:
    """The group as its broker has it configured. Raises OptionError for one that must not pop this way."""
    group = consuming_group(store.path, name)
    if is_ordered(group, None):
        raise OptionError(
            f"{store.path}: group {name}: expected a group without order, found "
            "consumeMessageOrderly=true in subscriptionGroup.json; a micro-batch has no order. Leave "
            "consumeMode out, or use rmq_spark.pop.SimpleConsumer"
        )
    return group
