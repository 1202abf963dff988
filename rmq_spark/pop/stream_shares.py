"""What the members of a group share, as one stream sees it: each topic in each store is a share."""

from __future__ import annotations

import logging
import math
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from rmq_spark.consume.message_queue import MessageQueue
from rmq_spark.consume.pop_offset import PoppedRange
from rmq_spark.options.pop_options import PopOptions
from rmq_spark.plan.scan import Scan
from rmq_spark.plan.unknown_names import refuse_unknown_names
from rmq_spark.pop.order_mirror import is_ordered
from rmq_spark.pop.share import InitMode, Share, ShareOptions
from rmq_spark.stream.admission import admit
from rmq_spark.stream.losses import Losses
from rmq_spark.stream.rates import Limits
from rmq_spark.stream.stores import StreamStores
from store_format.errors import OptionError, StoreError
from store_format.files.status import stat_identity
from store_format.metadata.read import read_subscription_groups, read_topics
from store_format.metadata.values import SubscriptionGroup, TopicConfig
from store_format.pop.check_point import CheckPoint
from store_format.pop.records import PointKey
from store_format.pop.state import TOPIC, PopQueue, PopState
from store_format.read.store import Store

_log = logging.getLogger(__name__)

# Fewer messages are not divided among members: a micro-batch costs Spark 0.3 s, whatever its size.
_UNDIVIDED = 1_000

_ShareKey = tuple[str, str]  # topic and broker name


@dataclass(frozen=True, slots=True)
class Ready:
    """The messages that nobody has taken: [begin, stop) of each queue. `members` share them."""

    begins: Mapping[MessageQueue, int]
    stops: Mapping[MessageQueue, int]
    members: int = 1

    @property
    def total(self) -> int:
        return sum(stop - self.begins[key] for key, stop in self.stops.items())


@dataclass(frozen=True, slots=True)
class _Wanted:
    """The matching `offsets` in [start, stop) of a queue; `dead` ones were delivered too often."""

    queue: MessageQueue
    start: int
    stop: int
    offsets: Sequence[int]
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
        self._losses = Losses(stores.options.fail_on_data_loss)
        self._shares: dict[_ShareKey, Share] = {}
        self._groups: dict[_ShareKey, SubscriptionGroup] = {}
        self._begun: dict[_ShareKey, set[PopQueue]] = {}  # the queues that have a next offset
        self._readable: dict[_ShareKey, range] = {}  # the queue ids of each topic, by topics.json
        self._readable_seen: object = None
        topics = stores.options.topics.names
        # name of the topic, or of a retry topic -> the topic, and the flag of receipt handles
        self._flags = {topic: (topic, TOPIC) for topic in topics} | options.retry_topics(topics)

    def open(self) -> None:
        """Joins the group. Raises OptionError for a topic that no store has, and what `Share.open` raises."""
        refuse_unknown_names(self._stores.stores, self._stores.options, list(self._stores.queues))
        for share_key, keys in self._queues().items():
            self._begin_new(share_key, keys)

    def close(self) -> None:
        """Leaves the group. The last member hands what is in flight over to a broker."""
        for share in self._shares.values():
            share.close()

    def _opened(self, key: _ShareKey) -> Share:
        """The share of a topic on a broker. A topic may be created on a broker while the query runs."""
        share = self._shares.get(key)
        if share is None:
            topic, broker = key
            (store,) = (store for store in self._stores.stores if store.broker_name == broker)
            mode: InitMode = "MIN" if self._options.from_first else "MAX"
            options = ShareOptions(init_mode=mode, clock_ms=self.now_ms)
            self._groups[key] = _group_of(store, self._options.group)
            share = self._shares[key] = Share.open(store, self._options.group, topic, options)
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

            def change(state: PopState, share: Share = share, broker: str = broker) -> list[PoppedRange]:
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
        for share_key, keys in self._queues().items():
            share = self._begin_new(share_key, keys)

            def change(
                state: PopState, keys: Sequence[MessageQueue] = keys
            ) -> tuple[dict[MessageQueue, int], set[str]]:
                known = {key: state.queues.get(self._pop_queue(key)) for key in keys}
                owners = {point.owner for point in state.check_points() if point.owner}
                return {key: each.next_offset for key, each in known.items() if each is not None}, owners

            found, owners = share.run(change)
            wrong = [key for key, offset in found.items() if not self._is_there(key, offset)]
            self._losses.report()
            if wrong:
                share.begin([self._pop_queue(key) for key in wrong])
                found, _ = share.run(change)
            begins |= found
            members |= owners
        stops = {key: max(self._stores.queues[key].max_offset, begin) for key, begin in begins.items()}
        return Ready(begins, stops, len(members))

    def _is_there(self, key: MessageQueue, offset: int) -> bool:
        """Whether the next offset is in the queue; if not, that is noted as a loss."""
        return self._losses.begin(key, offset, self._stores.queues[key]) == offset

    def take(self, ready: Ready, limits: Limits) -> list[PoppedRange]:
        """Takes messages within the limits. May return nothing: if none matches, or others were faster."""
        part = max(_UNDIVIDED, math.ceil(ready.total / ready.members))
        limit = part if limits.max_offsets is None else min(limits.max_offsets, part)
        counts = admit(self._stores, ready.begins, ready.stops, replace(limits, max_offsets=limit))
        wanted: dict[_ShareKey, list[_Wanted]] = {}
        for key, count in counts.items():
            if count:
                wanted.setdefault(self._share_key(key), []).append(
                    self._wanted(key, ready.begins[key], count)
                )
        found: list[PoppedRange] = []
        for share_key, parts in wanted.items():
            share = self._opened(share_key)

            def change(
                state: PopState, parts: Sequence[_Wanted] = parts
            ) -> list[tuple[_Wanted, CheckPoint, bool]]:
                return [(part, *each) for part in parts for each in self._hand_out(state, part)]

            taken = share.run(change)
            found += [
                PoppedRange(part.queue, point.start, point.offsets[-1] + 1, point.pop_time)
                for part, point, is_dead in taken
                if not is_dead
            ]
            self._bury(share, self._groups[share_key], [point for _, point, is_dead in taken if is_dead])
        return found

    def _bury(self, share: Share, group: SubscriptionGroup, points: Sequence[CheckPoint]) -> None:
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
        for share in list(self._shares.values()):
            share.keep()
            share.revive()

    def revive(self) -> None:
        """Makes everything visible whose invisible time has passed; waits for other writers of the stores."""
        for share in list(self._shares.values()):
            while share.revive(lock_timeout=share.options.lock_timeout).messages:
                pass

    # ---- one share -----------------------------------------------------------------------------------------

    def _share_key(self, key: MessageQueue) -> _ShareKey:
        return self._flags[key.topic][0], key.broker_name

    def _pop_queue(self, key: MessageQueue) -> PopQueue:
        return self._flags[key.topic][1], key.queue_id

    def _queues(self) -> dict[_ShareKey, list[MessageQueue]]:
        """The queues with messages of each topic and its retry topics, as far as topics.json allows."""
        self._read_topics()
        found: dict[_ShareKey, list[MessageQueue]] = {share_key: [] for share_key in self._readable}
        for key in self._stores.queues:
            if key.topic in self._flags:
                share_key = self._share_key(key)
                allowed = self._readable.get(share_key)
                if allowed is None or self._pop_queue(key)[0] != TOPIC or key.queue_id in allowed:
                    found.setdefault(share_key, []).append(key)
        return found

    def _read_topics(self) -> None:
        """Reads topics.json of each store again if the file was replaced."""
        stores = self._stores.stores
        seen = [stat_identity(f"{store.path}/config/topics.json") for store in stores]
        if seen == self._readable_seen:
            return
        self._readable, self._readable_seen = {}, seen
        for store in stores:
            configs: Mapping[str, TopicConfig] = read_topics(store.path) or {}
            for topic in self._stores.options.topics.names:
                config = configs.get(topic)
                if config is not None:
                    ids = config.read_queue_ids if config.readable else range(0)
                    self._readable[topic, store.broker_name] = ids

    def _begin_new(self, share_key: _ShareKey, keys: Sequence[MessageQueue]) -> Share:
        """Sets the next offset of queues that the group has not popped, also of those without a message.

        A group that is new to the topic begins as `consumeFromWhere` says. Queues that are created later are
        read from their first message.
        """
        share, begun = self._opened(share_key), self._begun.setdefault(share_key, set())
        firsts = {(TOPIC, queue_id): 0 for queue_id in self._readable.get(share_key, ())}
        firsts |= {self._pop_queue(key): self._stores.queues[key].min_offset for key in keys}
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

    def _by_share(self, ranges: Sequence[PoppedRange]) -> list[tuple[Share, list[PoppedRange]]]:
        """The ranges of each share. Ranges of topics that are subscribed no longer are left out."""
        found: dict[_ShareKey, list[PoppedRange]] = {}
        for each in ranges:
            if each.queue.topic in self._flags and self._share_key(each.queue) in self._shares:
                found.setdefault(self._share_key(each.queue), []).append(each)
        return [(self._shares[key], parts) for key, parts in found.items()]

    def _keys(self, state: PopState, ranges: Sequence[PoppedRange]) -> list[PointKey]:
        """The check points of the ranges: one each, or several small ones if a broker had them meanwhile."""
        found: list[PointKey] = []
        for name, start, stop, pop_time in ranges:
            queue = self._pop_queue(name)
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

    def _wanted(self, key: MessageQueue, start: int, count: int) -> _Wanted:
        queue = self._stores.queues[key]
        piece = queue.piece(start, start + count)
        if self._pop_queue(key)[0] == TOPIC:
            return _Wanted(key, start, start + count, self._scan.matching_offsets(queue.store, piece))
        times = self._scan.reconsume_times(queue.store, piece)
        times_max = self._groups[self._share_key(key)].retry_max_times
        dead = frozenset(offset for offset, count in times.items() if count > times_max)
        return _Wanted(key, start, start + count, sorted(times), dead)

    def _hand_out(self, state: PopState, wanted: _Wanted) -> Iterator[tuple[CheckPoint, bool]]:
        """Takes what other members have left of the messages since `ready`.

        Yields check points, and whether the messages have been delivered too often. Those get check points of
        their own, without an owner: this query never reads them.
        """
        queue = self._pop_queue(wanted.queue)
        next_offset = state.queues[queue].next_offset
        left = wanted.offsets[bisect_left(wanted.offsets, next_offset) :]
        for is_dead, run in groupby(left, wanted.dead.__contains__) if wanted.dead else ((False, left),):
            offsets = run if isinstance(run, Sequence) else list(run)
            if offsets:
                yield (
                    state.hand_out(
                        *queue,
                        offsets,
                        offsets[-1] + 1,
                        self.now_ms(),
                        self._options.invisible_ms,
                        "" if is_dead else self._owner,
                    ),
                    is_dead,
                )
        if state.queues[queue].next_offset < wanted.stop:
            state.skip(*queue, wanted.stop)


def _group_of(store: Store, name: str) -> SubscriptionGroup:
    """The group as its broker has it configured. Raises OptionError for one that must not pop this way."""
    groups: Mapping[str, SubscriptionGroup] = read_subscription_groups(store.path) or {}
    group = groups.get(name, SubscriptionGroup(name))
    where = f"{store.path}: group {name}: expected a group"
    if not group.consume_enable:
        raise OptionError(
            f"{where} that may consume, found consumeEnable=false in subscriptionGroup.json; change it with "
            "mqadmin updateSubGroup -s true"
        )
    if is_ordered(group, None):
        raise OptionError(
            f"{where} without order, found consumeMessageOrderly=true in subscriptionGroup.json; a "
            "micro-batch has no order. Leave consumeMode out, or use rmq_spark.pop.SimpleConsumer"
        )
    return group
