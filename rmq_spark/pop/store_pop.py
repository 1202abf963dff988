"""One store that a group pops: its queues as of the last look, and a `TopicPop` for each topic."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from random import Random

from rmq_spark.pop.choose import ShareRules
from rmq_spark.pop.metrics import Counters
from rmq_spark.pop.order import OrderPop
from rmq_spark.pop.order_mirror import is_ordered, switch_order
from rmq_spark.pop.topic_pop import DeadLetters, TopicPop
from rmq_spark.pop.window import Subscription
from store_format.follow.follower import StoreFollower
from store_format.metadata.group_offsets import read_group_offsets
from store_format.metadata.read import read_subscription_groups, read_topics
from store_format.metadata.values import SubscriptionGroup, TopicConfig
from store_format.names import pop_retry_topic
from store_format.pop.log import InFlightLog, in_flight_directory
from store_format.pop.state import RETRY, RETRY_V2, TOPIC, PopQueue, PopState
from store_format.read.store import Queue, Store


@dataclass(frozen=True, slots=True)
class _Topics:
    """Chooses all queues of some topics."""

    names: frozenset[str]

    def chooses_topic(self, topic: str) -> bool:
        return topic in self.names

    def chooses_queue(self, topic: str, broker: str, queue_id: int) -> bool:
        return topic in self.names


@dataclass(slots=True)
class _Opened:
    pop: TopicPop
    flags: Mapping[str, int]
    log: InFlightLog


class StorePop:
    """A store, and what a consumer of `group` reads of it. Threads may share it."""

    def __init__(
        self,
        root: str,
        group: str,
        subscriptions: Mapping[str, Subscription],
        *,
        max_attempts: int | None,
        fifo: bool | None,
        random: Random,
        counters: Counters,
        sync: bool,
    ) -> None:
        self.root = root
        self._group = group
        self._lock = threading.Lock()
        self.topics: dict[str, TopicPop] = {}
        self._opened: dict[str, _Opened] = {}
        store = Store.open(root)
        topics: Mapping[str, TopicConfig] = read_topics(root) or {}
        groups: Mapping[str, SubscriptionGroup] = read_subscription_groups(root) or {}
        config = groups.get(group, SubscriptionGroup(group))
        self._is_ordered = is_ordered(config, fifo)
        names: set[str] = set()
        for topic, subscription in subscriptions.items():
            flags = {
                topic: TOPIC,
                pop_retry_topic(group, topic): RETRY,
                pop_retry_topic(group, topic, is_v2=True): RETRY_V2,
            }
            log = InFlightLog(in_flight_directory(root, group, topic), sync=sync)
            pop = (OrderPop if self._is_ordered else TopicPop)(
                topic,
                store.broker_name,
                log,
                subscription,
                rules=ShareRules.of(topics.get(topic), config),
                max_attempts=config.retry_max_times + 1 if max_attempts is None else max_attempts,
                random=random,
                counters=counters,
                give_up=_keep,
            )
            self._opened[topic] = _Opened(pop, flags, log)
            self.topics[topic] = pop
            names.update(flags)
        self._follower = StoreFollower(store, _Topics(frozenset(names)))
        self.look()

    def look(self) -> bool:
        """Whether the queues have changed since the last look."""
        with self._lock:
            if not self._follower.look():
                return False
            queues = dict(self._follower.queues)
        for opened in self._opened.values():
            mine: dict[PopQueue, Queue] = {
                (opened.flags[topic], queue_id): queue
                for (topic, queue_id), queue in queues.items()
                if topic in opened.flags
            }
            opened.log.run(partial(self._start, mine))
            opened.pop.queues = mine
        return True

    def _start(self, queues: Mapping[PopQueue, Queue], state: PopState) -> None:
        """Sets the offsets of queues that the log does not know (spec consumption.md 11.3)."""
        if state.is_closed:
            state.open()
        switch_order(state, self._is_ordered)
        committed = None
        for key, queue in queues.items():
            if key in state.queues:
                continue
            committed = read_group_offsets(self.root, self._group) if committed is None else committed
            offset = committed.get(queue.key)
            if offset is None:
                offset = queue.min_offset if key[0] != TOPIC else max(0, queue.max_offset - 1)
            state.set_offset(*key, offset)

    def close(self) -> None:
        for opened in self._opened.values():
            opened.log.close()


def _keep(dead: DeadLetters) -> None:
    raise NotImplementedError
