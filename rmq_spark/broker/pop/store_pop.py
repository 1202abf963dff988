"""One store that a group pops: a share and a `TopicPop` for each topic, and their queues as of a look."""

from __future__ import annotations

import logging
import resource
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from random import Random

from rmq_spark.broker.pop.metrics import Counters
from rmq_spark.broker.pop.order import OrderPop
from rmq_spark.broker.pop.share import ConsumerShare, ShareOptions
from rmq_spark.broker.pop.topic_pop import DeadLetters, ShareRules, Subscription, TopicPop
from rmq_spark.broker.pop.waiting import StoreLook
from rmq_spark.consume.permission import consuming_group
from store_format.errors import OptionError, StoreError
from store_format.files.read import entry_names
from store_format.metadata.read import read_topics
from store_format.metadata.values import SubscriptionGroup, TopicConfig
from store_format.names import QueueKey
from store_format.pop.log import PopName
from store_format.pop.state import TOPIC, PopQueue
from store_format.read.store import Queue

_log = logging.getLogger(__name__)

_FILES_OF_TOPIC = 4  # members, keeper, and the in-flight log with its lock
_FILES_LEFT = 32  # for messages that are read, and for the rest of the process


@dataclass(frozen=True, slots=True)
class PopSettings:
    """How a consumer pops any of its stores. `max_attempts` None: as the group is configured."""

    group: str
    subscriptions: Mapping[str, Subscription]
    share: ShareOptions
    random: Random
    counters: Counters
    max_attempts: int | None = None


class StorePop:
    """A store, and what a consumer reads of it. Threads may share it. `update` opens the topics."""

    def __init__(self, root: str, settings: PopSettings) -> None:
        self.root = root
        self.topics: Mapping[str, TopicPop] = {}
        self._settings = settings
        self._shares: dict[str, ConsumerShare] = {}
        self._names = topics_of(settings.subscriptions, settings.group)  # the topics of a look
        self._version = 0
        self._lock = threading.Lock()
        self._keeping = threading.Lock()

    def update(self, look: StoreLook) -> None:
        """Takes in the queues of a look. Opens a topic that the store has, and sets offsets of new queues.

        A look at other topics is left out: the subscriptions have changed since. Raises what
        `ConsumerShare.open` raises.
        """
        if look.version <= self._version:
            return
        with self._lock:
            if look.version <= self._version or look.topics != self._names:
                return
            configs: Mapping[str, TopicConfig] = read_topics(self.root) or {}
            for topic in self._settings.subscriptions:
                self._update_topic(topic, configs.get(topic), look)
            self._version = look.version

    def _update_topic(self, topic: str, config: TopicConfig | None, look: StoreLook) -> None:
        flags = PopName(self.root, self._settings.group, topic).flags()
        found = _readable(look.queues, topic, flags, config)
        wanted = set(found)
        if config is not None and config.readable:
            wanted |= {(TOPIC, queue_id) for queue_id in config.read_queue_ids}
        if not wanted:
            return
        pop = self.topics.get(topic)
        if pop is None:
            pop = self._open(topic, config, look)
        share = self._shares[topic]
        known = share.run(lambda state: set(state.queues))
        if wanted - known:
            share.begin(sorted(wanted - known))
        self._settings.counters.add(lost=share.take_lost())
        pop.take_queues(found)

    def change(self, settings: PopSettings) -> list[ConsumerShare]:
        """Takes other subscriptions. Returns the shares of the topics that are not subscribed any more.

        The next look opens new topics. The caller closes the shares as soon as no call uses their topics.
        """
        with self._keeping, self._lock:
            before, self._settings = self._settings.subscriptions, settings
            now = settings.subscriptions
            self._names, self._version = topics_of(now, settings.group), 0
            self.topics = {
                topic: pop if now[topic] is before[topic] else pop.with_subscription(now[topic])
                for topic, pop in self.topics.items()
                if topic in now
            }
            return [self._shares.pop(topic) for topic in list(self._shares) if topic not in now]

    def _open(self, topic: str, config: TopicConfig | None, look: StoreLook) -> TopicPop:
        settings = self._settings
        group = consuming_group(self.root, settings.group)
        _refuse_too_many_files(self.root, len(self._shares))
        share = ConsumerShare.open(look.store, settings.group, topic, settings.share)
        max_attempts = group.retry_max_times + 1 if settings.max_attempts is None else settings.max_attempts
        pop = (OrderPop if share.is_ordered else TopicPop)(
            topic,
            look.store.broker_name,
            share,
            settings.subscriptions[topic],
            rules=ShareRules.of(config, group),
            max_attempts=max_attempts,
            random=settings.random,
            counters=settings.counters,
            give_up=self._give_up(share, group),
        )
        self._shares[topic] = share
        self.topics = {**self.topics, topic: pop}
        return pop

    def _give_up(self, share: ConsumerShare, group: SubscriptionGroup) -> Callable[[DeadLetters], None]:
        def give_up(dead: DeadLetters) -> None:
            try:
                self._settings.counters.add(dead_letters=share.bury(group, dead))
            except StoreError as error:
                _log.warning(
                    "%s: %d messages that group %s has received too often cannot be stored as dead letters: "
                    "%s; they come again after their invisible time",
                    self.root, len(dead), self._settings.group, error,
                )  # fmt: skip

        return give_up

    def keep(self) -> None:
        """About once a second: mirrors offsets, looks for a broker, and stores due messages again.

        Raises the first error after all topics had their turn.
        """
        errors: list[Exception] = []
        with self._keeping:  # `close` waits for it
            for topic, pop in list(self.topics.items()):
                share = self._shares[topic]
                for step in (share.keep, pop.revive, pop.wake, partial(self._correct, pop, share)):
                    try:
                        step()
                    except (StoreError, OSError) as error:
                        errors.append(error)
        if errors:
            raise errors[0]

    def _correct(self, pop: TopicPop, share: ConsumerShare) -> None:
        """Lowers offsets behind the end of their queues, and sets those that the in-flight log has lost."""
        queues = pop.queues
        wrong = share.run(
            lambda state: [
                key
                for key, queue in queues.items()
                if key not in state.queues or state.queues[key].next_offset > queue.max_offset
            ]
        )
        if wrong:
            share.begin(wrong)

    def abandon(self) -> None:
        """In a forked child: closes the files that it shares with its parent."""
        for share in self._shares.values():
            share.abandon()

    def leave(self) -> None:
        """Closes the locks and files and hands over nothing, which is what a killed consumer leaves."""
        for share in self._shares.values():
            share.leave()

    def close(self) -> None:
        """Leaves the group; the last consumer hands over what is in flight."""
        with self._keeping, self._lock, ExitStack() as closing:
            shares, self._shares, self.topics, self._version = self._shares, {}, {}, 0
            for share in shares.values():
                closing.callback(share.close)  # all of them, also after an error or a Ctrl-C


def _refuse_too_many_files(root: str, topics: int) -> None:
    """Raises OptionError if this process may not open the files of one more topic.

    Each of the `topics` that are open may open its file `keeper` later.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        opened = len(entry_names("/dev/fd", missing_ok=True))
    except (StoreError, OSError):
        return
    needed = opened + topics + _FILES_OF_TOPIC + _FILES_LEFT
    if limit != resource.RLIM_INFINITY and needed > limit:
        raise OptionError(
            f"{root}: expected that topic {topics + 1} may have {_FILES_OF_TOPIC} files open, found {opened} "
            f"open files of at most {limit} (ulimit -n); raise the limit, or give each consumer fewer topics"
        )


def _readable(
    queues: Mapping[QueueKey, Queue], topic: str, flags: Mapping[str, int], config: TopicConfig | None
) -> dict[PopQueue, Queue]:
    """The queues that consumers read: below readQueueNums of the topic, and all of its pop retry topics."""
    return {
        (flags[name], queue_id): queue
        for (name, queue_id), queue in sorted(queues.items())
        if name in flags
        and (name != topic or config is None or (config.readable and queue_id in config.read_queue_ids))
    }


def topics_of(topics: Iterable[str], group: str) -> frozenset[str]:
    """These topics and the group's pop retry topics of them: what a consumer waits for."""
    return frozenset(name for topic in topics for name in PopName("", group, topic).flags())
