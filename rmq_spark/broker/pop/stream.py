"""The offsets of a stream that pops: what each micro-batch takes, replays and acknowledges.

The query takes ranges of queues when Spark asks where the next micro-batch ends. The ranges are that offset,
so Spark stores them before the batch runs, and a batch that Spark repeats reads the same messages. Spark's
next question begins at the offset of the batch that it has committed: then the ranges are acknowledged.
Until then a thread renews their invisible time. The thread ends with the process. Whatever it renewed last
becomes visible to the other members an invisible time later, at most.

A restarted query knows its check points by the owner in its offsets. Of those, the ranges in Spark's last
offset are replayed or acknowledged; any others were taken for an offset that Spark never stored, and the
next micro-batch reads them. A message that cannot be stored again (`rmq_spark.broker.pop.topic_pop`) is a
range of its own. This module does not know Spark.
"""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby

from rmq_spark.broker.pop.share import InitMode, PopGroup, ShareOptions, epoch_ms, is_ordered
from rmq_spark.consume.consumer import MessageQueue, consuming_group
from rmq_spark.consume.stream_offset import PopOffset, PoppedRange, StreamOffset
from rmq_spark.options.group_options import PopOptions
from rmq_spark.plan.scan import Scan
from rmq_spark.plan.splits import Plan
from rmq_spark.plan.starts import refuse_unknown_names
from rmq_spark.stream.plan import Limits, Pace, admit, plan_ranges
from rmq_spark.stream.stores import Losses, StreamStores
from store_format.errors import OptionError, StoreError
from store_format.files.polling import Repeated
from store_format.metadata.read import known_topics
from store_format.metadata.values import SubscriptionGroup
from store_format.pop.log import physical_offset_at
from store_format.pop.records import CheckPoint, PointKey
from store_format.pop.state import TOPIC, PopQueue, PopState
from store_format.read.store import Queue, Store

_log = logging.getLogger(__name__)

_Json = dict[str, object]

_LOOKS_MAX = 20  # ranges without a matching message, until an unbounded query looks for others again

_TURNS = 4  # renewals in an invisible time: three may come late
_PAUSE_MAX = 1.0  # seconds: how late messages of dead members become visible, and a broker is noticed

# Fewer messages are not divided among members: a micro-batch costs Spark 0.3 s, whatever its size.
_UNDIVIDED = 1_000

_ShareKey = tuple[str, str]  # topic and broker name


# ---- the shares of a stream --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Ready:
    """The messages that nobody has taken: [begin, stop) of each queue, and those that come again in place.

    `members` share them.
    """

    begins: Mapping[MessageQueue, int]
    stops: Mapping[MessageQueue, int]
    members: int = 1
    again: Sequence[_DueAgain] = ()

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


class _StreamShares:
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
        self._shares: dict[_ShareKey, PopGroup] = {}
        self._groups: dict[_ShareKey, SubscriptionGroup] = {}
        self._begun: dict[_ShareKey, set[PopQueue]] = {}  # the queues that have a next offset
        self._queues = _SharedQueues(stores, options)
        self._again = _AgainTaker(scan, owner, options.invisible_ms, clock_ms)
        self.has_again = False  # whether messages waited at the last `keep` to be delivered again in place

    def open(self) -> None:
        """Joins the group.

        Raises OptionError for a topic that no store has, and what `PopGroup.open` raises.
        """
        refuse_unknown_names(self._stores.stores, self._stores.options, list(self._stores.queues))
        for share_key, keys in self._queues.by_share().items():
            self._begin_new(share_key, keys)

    def close(self) -> None:
        """Leaves the group. The last member hands what is in flight over to a broker."""
        for share in self._shares.values():
            share.close()

    def _opened(self, key: _ShareKey) -> PopGroup:
        """The share of a topic on a broker. A topic may be created on a broker while the query runs."""
        share = self._shares.get(key)
        if share is None:
            topic, broker = key
            (store,) = (store for store in self._stores.stores if store.broker_name == broker)
            mode: InitMode = "MIN" if self._options.from_first else "MAX"
            options = ShareOptions(init_mode=mode, clock_ms=self.now_ms)
            self._groups[key] = _group_of(store, self._options.group)
            share = self._shares[key] = PopGroup.open(store, self._options.group, topic, options)
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

            def change(state: PopState, share: PopGroup = share, broker: str = broker) -> list[PoppedRange]:
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

    def ready(self) -> _Ready:
        """The messages that nobody has taken, as of the last look at the stores.

        Raises OffsetOutOfRangeError for messages that retention deleted before, unless failOnDataLoss is
        false.
        """
        begins: dict[MessageQueue, int] = {}
        members = {self._owner}
        again: list[_DueAgain] = []
        for share_key, keys in self._queues.by_share().items():
            share = self._begin_new(share_key, keys)

            def change(
                state: PopState, keys: Sequence[MessageQueue] = keys
            ) -> tuple[dict[MessageQueue, int], set[str]]:
                known = {key: state.queues.get(self._queues.pop_queue(key)) for key in keys}
                owners = {point.owner for point in state.check_points() if point.owner}
                return {key: each.next_offset for key, each in known.items() if each is not None}, owners

            found, owners = share.run(change)
            if any(offset > self._stores.queues[key].max_offset for key, offset in found.items()):
                # Another member has taken messages that are newer than the look. A look that is newer than
                # the offsets tells them from offsets that went back.
                self._stores.look()
                found = {key: offset for key, offset in found.items() if key in self._stores.queues}
            wrong = [
                key
                for key, offset in found.items()
                if self._losses.begin(key, offset, self._stores.queues[key]) != offset
            ]
            self._losses.report()
            if wrong:
                share.begin([self._queues.pop_queue(key) for key in wrong])
                found, _ = share.run(change)
            begins |= found
            members |= owners
            again += self._due_again(share_key, share)
        stops = {key: max(self._stores.queues[key].max_offset, begin) for key, begin in begins.items()}
        return _Ready(begins, stops, len(members), again)

    def _due_again(self, share_key: _ShareKey, share: PopGroup) -> list[_DueAgain]:
        """The messages of a share that wait to be delivered again; the oldest first."""
        now, queues = self.now_ms(), self._stores.queues
        keys = share.run(lambda state: [point.key for point in state.again.due(now)])
        names = [MessageQueue(share.topic_of(flag), share_key[1], queue_id) for flag, queue_id, *_ in keys]
        return [
            _DueAgain(share, name, queues[name], key)
            for name, key in zip(names, keys, strict=True)
            if name in queues
        ]

    def take(self, ready: _Ready, limits: Limits) -> list[PoppedRange]:
        """Takes messages within the limits. May return nothing: if none matches, or others were faster."""
        part = max(_UNDIVIDED, math.ceil(ready.total / ready.members))
        limit = part if limits.max_offsets is None else min(limits.max_offsets, part)
        found = self._again.take(ready.again[:limit])
        limit -= len(found)
        counts: Mapping[MessageQueue, int] = {}
        if limit:
            counts = admit(self._stores, ready.begins, ready.stops, replace(limits, max_offsets=limit))
        wanted: dict[_ShareKey, list[_OffsetsToPop]] = {}
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

    def _bury(self, share: PopGroup, group: SubscriptionGroup, points: Sequence[CheckPoint]) -> None:
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

    def _begin_new(self, share_key: _ShareKey, keys: Sequence[MessageQueue]) -> PopGroup:
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

    def _by_share(self, ranges: Sequence[PoppedRange]) -> list[tuple[PopGroup, list[PoppedRange]]]:
        """The ranges of each share. Ranges of topics that are subscribed no longer are left out."""
        found: dict[_ShareKey, list[PoppedRange]] = {}
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
        left = wanted.offsets[bisect_left(wanted.offsets, state.queues[queue].next_offset) :]
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


# ---- shared queues -----------------------------------------------------------------------------------------


class _SharedQueues:
    """The subscribed topics and the group's retry topics of them, in all stores, as of the last look."""

    def __init__(self, stores: StreamStores, options: PopOptions) -> None:
        self._stores = stores
        self._readable: dict[_ShareKey, range] = {}  # the queue ids of each topic, by topics.json
        self._readable_seen: object = None
        topics = stores.options.choice.names
        # name of the topic, or of a retry topic -> the topic, and the flag of receipt handles
        self._flags = {topic: (topic, TOPIC) for topic in topics} | options.retry_topics(topics)

    def __contains__(self, key: MessageQueue) -> bool:
        """Whether the topic of the queue is subscribed, or is a retry topic of one that is."""
        return key.topic in self._flags

    def share_key(self, key: MessageQueue) -> _ShareKey:
        """The share that has the queue."""
        return self._flags[key.topic][0], key.broker_name

    def pop_queue(self, key: MessageQueue) -> PopQueue:
        """The name of the queue in its share."""
        return self._flags[key.topic][1], key.queue_id

    def readable_ids(self, share_key: _ShareKey) -> Sequence[int]:
        """The queue ids that topics.json allows to read, also of queues without a message."""
        return self._readable.get(share_key, ())

    def by_share(self) -> dict[_ShareKey, list[MessageQueue]]:
        """The queues with messages of each topic and its retry topics, as far as topics.json allows."""
        self._read_topics()
        found: dict[_ShareKey, list[MessageQueue]] = {share_key: [] for share_key in self._readable}
        for key in self._stores.queues:
            if key in self:
                share_key = self.share_key(key)
                allowed = self._readable.get(share_key)
                if allowed is None or self.pop_queue(key)[0] != TOPIC or key.queue_id in allowed:
                    found.setdefault(share_key, []).append(key)
        return found

    def _read_topics(self) -> None:
        """Reads topics.json of each store again if the file has changed."""
        seen = [known_topics(store.opened) for store in self._stores.stores]
        if seen == self._readable_seen:
            return
        self._readable_seen = seen
        self._readable = {
            (topic, store.broker_name): topics[topic].readable_queue_ids
            for store, topics in zip(self._stores.stores, seen, strict=True)
            for topic in self._stores.options.choice.names
            if topics is not None and topic in topics
        }


# ---- messages that cannot be stored again ------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _DueAgain:
    """One message that waits to be delivered again from its own place, by the key of its check point."""

    share: PopGroup
    name: MessageQueue
    queue: Queue
    key: PointKey

    @property
    def offset(self) -> int:
        return self.key[2]


@dataclass(frozen=True, slots=True)
class _AgainTaker:
    """Takes messages that wait, for one query: its `owner`, and what its options say."""

    scan: Scan
    owner: str
    invisible_ms: int
    now_ms: Callable[[], int]

    def take(self, due: Sequence[_DueAgain]) -> list[PoppedRange]:
        """The ranges of those that no other member has taken meanwhile.

        A message that does not match the query's filters, or that retention has deleted, is acknowledged.
        """
        taken = [each.share.run(partial(self._deliver, each, self._is_wanted(each))) for each in due]
        return [each for each in taken if each is not None]

    def _is_wanted(self, each: _DueAgain) -> bool:
        if not each.queue.min_offset <= each.offset < each.queue.max_offset:
            _log.warning("1 messages lost: %s offset %d was deleted (retention)", each.name, each.offset)
            return False
        piece = each.queue.piece(each.offset, each.offset + 1)
        return len(self.scan.matching_offsets(each.queue.store, piece)) > 0

    def _deliver(self, each: _DueAgain, is_wanted: bool, state: PopState) -> PoppedRange | None:
        if not is_wanted:
            state.ack(each.key)
            return None
        now = self.now_ms()
        point = state.deliver_again(each.key, 0, now, now + self.invisible_ms, self.owner)
        return None if point is None else PoppedRange(each.name, point.start, point.start + 1, point.pop_time)


# ---- the stream --------------------------------------------------------------------------------------------


class PopPositions:
    """The offsets of one stream, as the JSON that Spark stores. `clock_ms` is the time since 1970.

    Nothing is opened, and no thread runs, before Spark asks for the first end of a micro-batch.
    """

    def __init__(
        self,
        stores: StreamStores,
        scan: Scan,
        options: PopOptions,
        *,
        clock_ms: Callable[[], int] = epoch_ms,
    ) -> None:
        self.stores = stores
        self._scan = scan
        self._options = options
        self._clock_ms = clock_ms
        self._limits = Limits.of(stores.options)
        self._pace = Pace(self._limits)
        self._owner = ""
        self._is_bounded = False
        self._bound: dict[MessageQueue, int] | None = None  # of a bounded run, from its first `latest` on
        self._opened: tuple[_StreamShares, _StreamLease] | None = None
        # (version of the stores, offset): at this version there was nothing to take after the offset
        self._idle: tuple[int, _Json] | None = None
        self._acknowledged: _Json | None = None
        self._last: _Json | None = None
        self._has_left = False

    def initial(self) -> _Json:
        """The first offset of a new query: it has taken nothing."""
        return PopOffset().to_json()

    def bound_now(self) -> None:
        """The stream ends where the queues end when `latest` is called first (Trigger.AvailableNow).

        Not where they end now: Spark may repeat a batch before, and its ranges must be renewed before what
        dead members had is made visible.
        """
        self._is_bounded = True
        self._bound = self._idle = None

    def report(self) -> _Json | None:
        """Where the queues ended at the last look, for Spark's progress."""
        if not self.stores.version:
            return None
        return StreamOffset({key: queue.max_offset for key, queue in self.stores.queues.items()}).to_json()

    def latest(self, start: _Json) -> _Json:
        """Acknowledges the ranges of `start`, which Spark has committed, and takes the next ones.

        Returns `start` itself if there is nothing to take. Raises OffsetOutOfRangeError for messages that no
        longer exist, unless failOnDataLoss is false, and StoreInUseError while a broker has the store open.
        """
        if self._has_left:
            return start
        version = self.stores.look()
        if self._opened is not None:
            self._opened[1].check()
        is_again = self._opened is not None and self._opened[0].has_again
        if self._idle == (version, start) and not is_again:
            return start
        previous = PopOffset.from_json(start)
        shares, lease = self._open(previous)
        if self._acknowledged != start:
            lease.hold(())
            shares.acknowledge(previous.ranges)
            self._acknowledged = start
        if self._is_bounded and self._bound is None:
            shares.revive()
            version = self.stores.look()
            self._bound = {key: queue.max_offset for key, queue in self.stores.queues.items()}
        ranges = shares.orphans(previous.ranges) or self._take(shares)
        if ranges is None:  # waits for minOffsetsPerTrigger
            return start
        if not ranges:
            self._idle = version, start
            if self._bound is not None:
                self._leave(shares, lease)
            return start
        lease.hold(ranges)
        self._last = PopOffset(self._owner, tuple(sorted(ranges))).to_json()
        return self._last

    def plan(self, start: _Json, end: _Json) -> Plan:
        """The splits of the micro-batch that ends at `end`: its ranges, also when Spark repeats the batch.

        Raises OffsetOutOfRangeError for messages that no longer exist, unless failOnDataLoss is false.
        """
        offset = PopOffset.from_json(end)
        if end != self._last:
            _, lease = self._open(offset)
            lease.replay(offset.ranges)
        wanted = [(each.queue, each.start, each.stop) for each in offset.ranges]
        return plan_ranges(self.stores.options, self.stores, wanted)

    def _open(self, previous: PopOffset) -> tuple[_StreamShares, _StreamLease]:
        self._owner = previous.owner or self._owner or f"spark-{os.urandom(8).hex()}"
        if self._opened is None:
            shares = _StreamShares(
                self.stores, self._scan, self._options, self._owner, clock_ms=self._clock_ms
            )
            shares.open()
            self._opened = shares, _StreamLease(shares, self._options.invisible_ms)
        return self._opened

    def _take(self, shares: _StreamShares) -> list[PoppedRange] | None:
        """Ranges with messages that match, within the limits. None if the micro-batch waits for more."""
        looks = 0
        while self._bound is not None or looks < _LOOKS_MAX:
            looks += 1
            ready = self._within_bound(shares.ready())
            if not ready.total:
                return []
            if self._bound is None and self._pace.waits(ready.total, time.monotonic_ns() // 1_000_000):
                return None
            ranges = shares.take(ready, self._limits)
            if ranges:
                return ranges
        return None

    def _within_bound(self, ready: _Ready) -> _Ready:
        if self._bound is None:
            return ready
        bound = self._bound
        stops = {key: min(stop, bound.get(key, 0)) for key, stop in ready.stops.items()}
        return replace(ready, stops={key: max(stop, ready.begins[key]) for key, stop in stops.items()})

    def _leave(self, shares: _StreamShares, lease: _StreamLease) -> None:
        """A bounded run has read everything."""
        self._has_left = True
        lease.stop()
        shares.close()


# ---- the lease ---------------------------------------------------------------------------------------------


class _StreamLease:
    """Renews the held ranges. `check` raises what the thread could not do."""

    def __init__(self, shares: _StreamShares, invisible_ms: int) -> None:
        self._shares = shares
        self._invisible_ms = invisible_ms
        self._lock = threading.Lock()
        self._held: tuple[PoppedRange, ...] = ()
        self._renewed_ms = 0
        self._error: Exception | None = None
        pause = min(invisible_ms / 1000 / _TURNS, _PAUSE_MAX)
        self._thread = Repeated("rmqlog-pop-lease", lambda: pause, self._run)
        self._thread.start()

    def hold(self, ranges: Sequence[PoppedRange]) -> None:
        """From now on renews these ranges, which were taken just now, and no others."""
        with self._lock:
            self._held = tuple(ranges)
            self._renewed_ms = self._shares.now_ms()

    def replay(self, ranges: Sequence[PoppedRange]) -> None:
        """Renews the ranges of a micro-batch that Spark repeats, and holds those that are still taken.

        Ranges that became visible meanwhile are delivered again: this query repeats them, and another member
        gets them too.
        """
        with self._lock:
            lost = self._shares.renew(ranges, self._invisible_ms)
            self._held = tuple(each for each in ranges if each not in lost)
            self._renewed_ms = self._shares.now_ms()
        _warn(lost, "the query was down for longer than invisibleDuration")

    def check(self) -> None:
        """Raises the error with which the thread failed last, if it still fails."""
        if self._error is not None:
            raise self._error

    def stop(self) -> None:
        self._thread.stop()

    def _run(self) -> None:
        try:
            self._turn()
            self._error = None
        except Exception as error:  # the query raises it, unless the next turn succeeds
            if self._error is None:
                _log.warning("the invisible time could not be renewed: %s", error)
            self._error = error

    def _turn(self) -> None:
        lost: list[PoppedRange] = []
        with self._lock:
            now = self._shares.now_ms()
            if self._held and now - self._renewed_ms >= self._invisible_ms / _TURNS:
                lost = self._shares.renew(self._held, self._invisible_ms)
                self._held = tuple(each for each in self._held if each not in lost)
                self._renewed_ms = now
        _warn(lost, "the process did not run for longer than invisibleDuration")
        self._shares.keep()


def _warn(lost: Sequence[PoppedRange], reason: str) -> None:
    for queue, start, stop, _ in lost:
        _log.warning(
            "%s: the messages %d to %d of this micro-batch became visible to other members and are delivered "
            "twice: %s",
            queue,
            start,
            stop,
            reason,
        )
