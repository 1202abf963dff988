"""The stores that one consumer has opened: which of them to pop next, and waits for any of them."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Sequence
from contextlib import ExitStack

from rmq_spark.pop.keeper import begin_keeping, end_keeping
from rmq_spark.pop.order import OrderPop
from rmq_spark.pop.store_pop import PopSettings, StorePop, topics_of
from rmq_spark.pop.topic_pop import PopRequest, TopicPop
from rmq_spark.pop.waiting import Look, Waiter, WaiterClosedError
from rmq_spark.pop.watcher import notify
from store_format.errors import OptionError, StoreError
from store_format.metadata.read import read_topics
from store_format.names import did_you_mean
from store_format.pop.log import in_flight_directory
from store_format.read.cluster import store_roots

_log = logging.getLogger(__name__)

_KEEP_SECONDS = 30.0  # more than a turn of the keeper takes


class OpenedStores:
    """Threads may share it. Nothing is opened before `open`."""

    def __init__(self, path: str, settings: PopSettings) -> None:
        self._path = path
        self._settings = settings
        self._stores: dict[str, StorePop] = {}
        self._pops: Sequence[TopicPop] = ()
        self._waiter: Waiter | None = None
        self._lock = threading.Lock()
        self._keeping = threading.RLock()
        self._has_ended = False
        self._turn = 0

    def open(self) -> Look:
        """The stores as they are now; opens those that were not there before."""
        waiter = self._waiter
        if waiter is None:
            with self._lock:
                if self._waiter is None:
                    self._waiter = self._opened()
                waiter = self._waiter
        return self._taken(waiter.look())

    def open_once(self) -> None:
        """Opens the stores unless that was done before."""
        if self._waiter is None:
            self.open()

    def _opened(self) -> Waiter:
        settings = self._settings
        topics = topics_of(settings.subscriptions, settings.group)
        waiter = Waiter(self._path, topics, group=settings.group)
        try:
            look = waiter.look()
            self._refuse_unknown_topics(look)
            self._take(look)
            if any(isinstance(pop, OrderPop) for pop in self._pops):
                # A queue in order is free when its batch is acknowledged, which is no commit.
                waiter.close()
                directories = [
                    in_flight_directory("", settings.group, each) for each in settings.subscriptions
                ]
                logs = [f"{each[1:]}/in-flight.log" for each in directories]
                waiter = Waiter(self._path, topics, group=settings.group, also=logs)
        except BaseException:
            waiter.close()
            self._close_stores()
            raise
        begin_keeping(self)
        return waiter

    def _refuse_unknown_topics(self, look: Look) -> None:
        known: set[str] = set()
        for root in store_roots(self._path):
            known |= (read_topics(root) or {}).keys()
        there = {topic for store in look.stores for topic, _ in store.queues}
        for topic in self._settings.subscriptions:
            if not known | there:
                raise OptionError(
                    f"{self._path}: expected a store with topic {topic}, found no topic at all; give the "
                    "broker's store directory (storePathRootDir), or the directory of a cluster"
                )
            if topic not in known | there:
                raise OptionError(
                    f"topic {topic} is not in topics.json of {self._path}, and has no queue; "
                    f"{did_you_mean(topic, sorted(known), 'topics')}"
                )

    def _taken(self, look: Look) -> Look:
        if any(store.root not in self._stores for store in look.stores):
            with self._lock:
                self._take(look)
        else:
            self._take(look)
        return look

    def _take(self, look: Look) -> None:
        for each in look.stores:
            store = self._stores.get(each.root)
            if store is None:
                store = self._stores[each.root] = StorePop(each.root, self._settings)
            before = store.topics
            store.update(each)
            if store.topics is not before:
                self._pops = tuple(
                    store.topics[topic]
                    for topic in self._settings.subscriptions
                    for store in self._stores.values()
                    if topic in store.topics
                )

    # ---- pop -----------------------------------------------------------------------------------------------

    def next_pops(self) -> Iterable[TopicPop]:
        """The topics and stores in turn, so that none is served before the others again and again."""
        pops = self._pops
        if not pops:
            return ()
        self._turn += 1
        first = self._turn % len(pops)
        return (*pops[first:], *pops[:first])

    def pops_of(self, look: Look) -> Iterable[TopicPop]:
        """The same, those of the store whose news are the oldest first."""
        places = {each.root: place for place, each in enumerate(look.stores)}
        return sorted(self.next_pops(), key=lambda pop: places.get(pop.root, len(places)))

    def wait(self, look: Look, timeout: float) -> Look:
        """The next look with news, or a look at the end of the time."""
        waiter = self._waiter
        assert waiter is not None
        found = waiter.wait(look, timeout)
        return look if found is None else self._taken(found)

    def next_visible(self, request: PopRequest) -> int | None:
        """When messages can be received without a commit before: the time in ms; None if never."""
        times = [pop.next_visible(request) for pop in self._pops]
        return min((each for each in times if each is not None), default=None)

    def pops_with(self, topic: str, broker_name: str, root: str | None) -> list[TopicPop]:
        """The topic of the stores with this broker's name, or of the one store at `root`."""
        return [
            pop
            for pop in self._pops
            if pop.topic == topic and (pop.broker_name == broker_name if root is None else pop.root == root)
        ]

    def notify(self, pop: TopicPop) -> None:
        """Wakes consumers of this process after a change that is no commit."""
        if isinstance(pop, OrderPop):
            notify(pop.root, pop.topic, self._settings.group)

    # ---- once a second, and the end ------------------------------------------------------------------------

    def keep(self) -> None:
        """Serves the stores once a second, with their queues as they are now.

        A consumer that waits is not woken for the messages of others. With the queues of its last wake it
        would take the group's offsets for offsets behind the end.
        """
        with self._keeping:
            errors = [] if self._has_ended else self._keep()
        if errors:
            raise errors[0]

    def _keep(self) -> list[Exception]:
        errors: list[Exception] = []
        waiter = self._waiter
        try:
            if waiter is not None and not waiter.is_closed:
                self._taken(waiter.look())
        except WaiterClosedError:
            return errors  # the consumer is being closed
        except (StoreError, OSError) as error:
            errors.append(error)
        for store in list(self._stores.values()):
            try:
                store.keep()
            except (StoreError, OSError) as error:
                errors.append(error)
        return errors

    def _end_keeping(self) -> None:
        """Waits for the keeper, which would open the files of a share again and keep its locks."""
        end_keeping(self)
        if self._keeping.acquire(timeout=_KEEP_SECONDS):
            self._has_ended = True
            self._keeping.release()

    def interrupt(self) -> None:
        """Ends the waits of other threads."""
        waiter = self._waiter
        if waiter is not None:
            waiter.close()

    def close(self) -> None:
        self._end_keeping()
        for topic, subscription in self._settings.subscriptions.items():
            if subscription.where is not None and subscription.where.errors:
                _log.warning(
                    "topic %s: %d evaluations of the SQL92 expression failed; these messages were passed "
                    "over, as by a broker",
                    topic, subscription.where.errors,
                )  # fmt: skip
        self._close_stores()

    def _close_stores(self) -> None:
        stores, self._stores, self._pops = self._stores, {}, ()
        with ExitStack() as closing:
            for store in stores.values():
                closing.callback(store.close)  # all of them, also after an error or a Ctrl-C

    def leave(self) -> None:
        """Lets go of threads and locks, and hands over nothing."""
        self._end_keeping()
        self.interrupt()
        self.abandon()

    def abandon(self) -> None:
        """Closes the locks, and nothing more: in a forked child, which shares them with its parent."""
        for store in self._stores.values():
            store.abandon()
