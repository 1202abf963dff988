"""The rows of the view `lagByTopic` from look to look: what did not change is not read again.

A whole look at 10,000 queues takes two seconds. A store follower names the queues that changed since the
last look, by the new messages of the commitlog. The row of a group and topic stays as long as these stay
equal: the queues of the topic, the committed and pulled offsets of the group, the topic's number of queues,
and, for a group that has not read everything, the commitlog files and what retention deletes next. Only the
ages grow with the clock. What pop has in flight changes with the clock, too, so the rows of groups that pop
are always new. The memory has a row for each group and topic, and a few offsets of each queue.
"""

from __future__ import annotations

import time
from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from rmq_spark.broker import Forecast, forecast
from store_format.files.paths import is_settled
from store_format.follow.follower import StoreFollower
from store_format.metadata.group_offsets import Committed, offsets_identity, read_committed
from store_format.metadata.read import BrokerConf, KnownTopics, known_topics
from store_format.names import QueueKey
from store_format.pop.in_flight import PopProgress, popped_pair, read_pop_progress
from store_format.read.store import Queue, Store
from store_format.read.store_root import OtherFiles
from store_format.survey.fates import Fates
from store_format.views.lag import GroupQueue, group_pairs, group_queues, queues_and_edges
from store_format.views.lag_by_topic import LAG_BY_TOPIC_COLUMNS, rows_of_places
from store_format.views.measure import Stretches, measure
from store_format.views.retention import NextLoss, expiry_ms

Pair = tuple[str, str]  # group and topic

_NAMES = [column.name for column in LAG_BY_TOPIC_COLUMNS]
_US_OF_MS = 1_000


class _EveryQueue:
    """Chooses all queues of a store."""

    def chooses_topic(self, topic: str) -> bool:
        return True

    def chooses_queue(self, topic: str, broker: str, queue_id: int) -> bool:
        return True


@dataclass(frozen=True, slots=True)
class GroupLag:
    """A row of `lagByTopic` by the names of its columns, and what changes with the clock.

    That are the age of the oldest unread message in ms, the time in ms until the next loss by retention, and
    the number of messages of this loss. They count in place of the row's own values.
    """

    row: Mapping[str, Any]  # Any: values of LAG_BY_TOPIC_COLUMNS
    lag_ms: int | None
    loss_in_ms: int | None
    next_lost: int | None


@dataclass(slots=True)
class _Deletions:
    """When retention deletes the commitlog files of a store, at one look."""

    forecast: Forecast
    identity: object  # what the next loss of a group depends on besides the clock
    expiry: list[int]
    _known: dict[int, tuple[int, int]] = field(default_factory=dict)

    @classmethod
    def of_store(cls, store: Store, conf: BrokerConf, now_ms: int) -> _Deletions:
        expiry = expiry_ms(store, conf.file_reserved_hours)
        # without the time of the last file, which is never deleted, and which grows
        identity = [file.start for file in store.log.files], expiry[:-1]
        return cls(forecast(store, conf, now_ms), identity, expiry)

    def of(self, expires_ms: int) -> tuple[int, int]:
        """When a file that expires then is deleted, and how many files have gone after that."""
        if expires_ms not in self._known:
            number = bisect_left(self.expiry, expires_ms)
            deleted_ms = self.forecast.deleted_at(number, expires_ms)
            gone = max(bisect_right(self.expiry, deleted_ms), self.forecast.forced, number + 1)
            self._known[expires_ms] = deleted_ms, gone
        return self._known[expires_ms]


@dataclass(slots=True)
class _RowMemory:
    """What a look has found out about a pair. `row` is None if the pair has no queue."""

    signature: object
    row: Mapping[str, Any] | None = None  # Any: values of LAG_BY_TOPIC_COLUMNS
    loss: NextLoss | None = None
    deletions: object = None  # that the loss was found for

    def deletions_at(self, deletions: _Deletions) -> object:
        """What the loss depends on; None if no commitlog file has a message that the group has not read."""
        if self.row is None or (self.row["lagMessages"] == 0 and self.row["lostMessages"] == 0):
            return None
        return deletions.identity, None if self.loss is None else deletions.of(self.loss.expires_ms)[1]

    def at(self, now_ms: int, deletions: _Deletions) -> GroupLag:
        assert self.row is not None
        following = self.row["nextTimestamp"]
        lag_ms = self.row["lagMs"] if following is None else max(now_ms - following // _US_OF_MS, 0)
        if self.loss is None:
            return GroupLag(self.row, lag_ms, None, None)
        return GroupLag(self.row, lag_ms, deletions.of(self.loss.expires_ms)[0] - now_ms, self.loss.messages)


class LagMemory:
    """The queues of a store and the lag of its groups, as of the last look.

    After an error of `look` the memory must not be used again.
    """

    def __init__(self, store: Store) -> None:
        self.store = store
        self.queues: dict[str, dict[int, Queue]] = {}  # topic -> queue id -> queue
        self.measured: set[Pair] = set()  # by the last look
        self._follower = StoreFollower(store, _EveryQueue())
        self._known: dict[Pair, _RowMemory] = {}
        self._stretches: dict[QueueKey, Stretches] = {}  # of queues that have not changed since
        self._committed: tuple[object, Committed] | None = None
        self._world: object = None  # what all rows depend on

    def look(self, conf: BrokerConf, now_ms: int) -> tuple[Forecast, list[GroupLag]]:
        """What retention does next, and the rows now, in the order of the view."""
        committed = self._read_committed()  # before the queues: an offset must not lie behind their end
        changed = self._look_at_queues()
        store = self.store = replace(self._follower.store, log=self._follower.store.log.relisted())
        progress, topics = read_pop_progress(store, conf), known_topics(store.opened)
        pairs = group_pairs(store, committed, topics, progress)
        deletions = _Deletions.of_store(store, conf, now_ms)
        world = store.has_consume_queues, OtherFiles(store.opened).tiered is not None, conf
        is_same_world, self._world = world == self._world, world
        fates = Fates(store.opened, store.log)
        ends = fates.past_queues(store.log.min_offset, self._follower.queues)
        past = {key: end.offset for key, end in ends.items()}
        known: dict[Pair, _RowMemory] = {}
        self.measured = set()
        for pair in pairs:
            signature = _signature(pair, committed, topics, past)
            before = self._known.get(pair)
            if (
                before is not None
                and is_same_world
                and pair[1] not in changed
                and popped_pair(*pair) not in progress.pairs
                and before.signature == signature
                and before.deletions == before.deletions_at(deletions)
            ):
                known[pair] = before
            else:
                known[pair] = _RowMemory(signature)
                self.measured.add(pair)
        self._measure(known, committed, progress, deletions)
        self._known = known
        rows = (known[pair] for pair in sorted(pairs))
        return deletions.forecast, [each.at(now_ms, deletions) for each in rows if each.row is not None]

    def _read_committed(self) -> Committed:
        opened = self.store.opened
        identity, now_ns = offsets_identity(opened), time.time_ns()
        if self._committed is not None and self._committed[0] == identity:
            return self._committed[1]
        committed = read_committed(opened)
        is_kept = any(identity) and all(is_settled(each, now_ns) for each in identity)
        self._committed = (identity, committed) if is_kept else None
        return committed

    def _look_at_queues(self) -> set[str]:
        """Looks at the queues, and returns the topics whose queues have changed."""
        follower = self._follower
        if not follower.look():
            return set()
        changed = {*follower.changed, *follower.replaced}
        for topic, queue_id in changed:
            self._stretches.pop((topic, queue_id), None)
            queue = follower.queues.get((topic, queue_id))
            there = self.queues.setdefault(topic, {})
            if queue is None:
                there.pop(queue_id, None)
            else:
                there[queue_id] = queue
            if not there:
                del self.queues[topic]
        return {topic for topic, _ in changed}

    def _measure(
        self,
        known: Mapping[Pair, _RowMemory],
        committed: Committed,
        progress: PopProgress,
        deletions: _Deletions,
    ) -> None:
        """Reads the rows of the pairs in `measured`."""
        if not self.measured:
            return
        there, store, now = {topic for _, topic in self.measured}, self.store, deletions.forecast
        queues = [
            Queue(store, queue.range, queue.scanned)  # with the commitlog files of this look
            for topic in there
            for queue in self.queues.get(topic, {}).values()
        ]
        places = group_queues(
            store, committed=committed, progress=progress, pairs=self.measured, queues_on_disk=queues
        )
        measured = self._measured(places)
        rows = rows_of_places(store, places, measured, now.now_ms, now.conf, now.deleted_at, now.forced)
        for values, loss in rows:
            row = dict(zip(_NAMES, values, strict=True))
            each = known[str(row["group"]), str(row["topic"])]
            each.row, each.loss = row, loss
        for pair in self.measured:
            known[pair].deletions = known[pair].deletions_at(deletions)

    def _measured(self, places: list[GroupQueue]) -> dict[QueueKey, Stretches]:
        """Sizes and times between the offsets of the groups, read again only where an offset is new."""
        queues, edges = queues_and_edges(places)
        new = []
        for queue in queues:
            known = self._stretches.get(queue.key)
            wanted = {edge for edge in edges[queue.key] if queue.min_offset <= edge <= queue.max_offset}
            if known is None or not wanted.issubset(known.edges):
                new.append(queue)
        self._stretches |= measure(self.store, new, edges)
        return self._stretches


def _signature(
    pair: Pair, committed: Committed, topics: KnownTopics | None, past: Mapping[QueueKey, int]
) -> object:
    """What the row of a pair depends on, besides its queues on disk, the deletions and what all rows do."""
    topic, ends = pair[1], []
    if past:
        ends = sorted((queue_id, end) for (name, queue_id), end in past.items() if name == topic)
    config = None if topics is None else topics.get(topic)
    return committed.offsets.get(pair), committed.pulled.get(pair), config, ends
