"""The stores that one consumer has opened: which of them to pop next, and waits for any of them.

A store has a share and a `TopicPop` for each topic, and their queues as of a look. A thread, the keeper,
serves the consumer about once a second, whether it receives or not. It mirrors offsets, looks for brokers,
and stores messages again whose invisible time has passed.
"""

from __future__ import annotations

import logging
import resource
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from random import Random
from types import TracebackType

from rmq_spark.broker.pop.message import Counters, MessageView, ReceiptHandle
from rmq_spark.broker.pop.order import OrderPop
from rmq_spark.broker.pop.share import PopGroup, ShareOptions
from rmq_spark.broker.pop.topic_pop import DeadLetters, PopRequest, ShareRules, Subscription, TopicPop
from rmq_spark.broker.pop.waiting import StoreLook, Waiter, WaiterClosedError, WaiterLook, notify
from rmq_spark.consume.consumer import consuming_group
from store_format.errors import (
    CorruptStoreError,
    InvalidReceiptHandleError,
    OptionError,
    StoreError,
    UnsupportedFormatError,
)
from store_format.files.polling import Repeated
from store_format.files.read import files_at
from store_format.metadata.read import read_topics
from store_format.metadata.values import SubscriptionGroup, TopicConfig
from store_format.names import QueueKey, did_you_mean
from store_format.opened.store import Opened
from store_format.pop.log import PopName, in_flight_directory
from store_format.pop.state import TOPIC, PopQueue
from store_format.read.store import Queue
from store_format.read.store_root import store_roots

_log = logging.getLogger(__name__)

_KEEP_SECONDS = 30.0  # more than a turn of the keeper takes
_TURN_SECONDS = 1.0

_FILES_OF_TOPIC = 4  # members, keeper, and the in-flight log with its lock
_FILES_LEFT = 32  # for messages that are read, and for the rest of the process


# ---- one store ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PopSettings:
    """How a consumer pops any of its stores. `max_attempts` None: as the group is configured."""

    group: str
    subscriptions: Mapping[str, Subscription]
    share: ShareOptions
    random: Random
    counters: Counters
    max_attempts: int | None = None


class _StorePop:
    """A store, and what a consumer reads of it. Threads may share it. `update` opens the topics."""

    def __init__(self, root: str, settings: PopSettings) -> None:
        self.root, self.opened = root, Opened(root)
        self.topics: Mapping[str, TopicPop] = {}
        self._settings = settings
        self._shares: dict[str, PopGroup] = {}
        self._names = _topics_of(settings.subscriptions, settings.group)  # the topics of a look
        self._version = 0
        self._lock = threading.Lock()
        self._keeping = threading.Lock()

    def update(self, look: StoreLook) -> None:
        """Takes in the queues of a look. Opens a topic that the store has, and sets offsets of new queues.

        A look at other topics is left out: the subscriptions have changed since. Raises what
        `PopGroup.open` raises.
        """
        if look.version <= self._version:
            return
        with self._lock:
            if look.version <= self._version or look.topics != self._names:
                return
            configs: Mapping[str, TopicConfig] = read_topics(self.opened) or {}
            for topic in self._settings.subscriptions:
                self._update_topic(topic, configs.get(topic), look)
            self._version = look.version

    def _update_topic(self, topic: str, config: TopicConfig | None, look: StoreLook) -> None:
        flags = PopName(self.opened, self._settings.group, topic).flags()
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

    def change(self, settings: PopSettings) -> list[PopGroup]:
        """Takes other subscriptions. Returns the shares of the topics that are not subscribed any more.

        The next look opens new topics. The caller closes the shares as soon as no call uses their topics.
        """
        with self._keeping, self._lock:
            before, self._settings = self._settings.subscriptions, settings
            now = settings.subscriptions
            self._names, self._version = _topics_of(now, settings.group), 0
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
        share = PopGroup.open(look.store, settings.group, topic, settings.share)
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

    def _give_up(self, share: PopGroup, group: SubscriptionGroup) -> Callable[[DeadLetters], None]:
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

    def _correct(self, pop: TopicPop, share: PopGroup) -> None:
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
        opened = len(files_at("/").names("/dev/fd", missing_ok=True))
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


def _topics_of(topics: Iterable[str], group: str) -> frozenset[str]:
    """These topics and the group's pop retry topics of them: what a consumer waits for."""
    return frozenset(name for topic in topics for name in PopName(Opened(""), group, topic).flags())


# ---- all stores --------------------------------------------------------------------------------------------


class Calls:
    """The calls of all threads that are under way: who takes something away waits until nobody uses it.

    Use it in `with` around a call. A thread may have several calls under way.
    """

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._number = 0
        self._under_way: list[tuple[int, int]] = []  # the thread of each call, and its number

    def __enter__(self) -> None:
        with self._condition:
            self._number += 1
            self._under_way.append((threading.get_ident(), self._number))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        thread = threading.get_ident()
        with self._condition:
            last = max(number for ident, number in self._under_way if ident == thread)
            self._under_way.remove((thread, last))
            self._condition.notify_all()

    def is_mine(self) -> bool:
        """Whether this thread has a call under way. Takes no lock: a signal handler may ask."""
        thread = threading.get_ident()
        return any(ident == thread for ident, _ in list(self._under_way))

    def wait(self) -> None:
        """Waits for the end of the calls that are under way now, not for those that begin meanwhile."""
        with self._condition:
            last = self._number
            self._condition.wait_for(lambda: all(number > last for _, number in self._under_way))


class OpenedStores:
    """Threads may share it. Nothing is opened before `open`."""

    def __init__(self, path: str, settings: PopSettings) -> None:
        self._path = path
        self.settings = settings
        self._stores: dict[str, _StorePop] = {}
        self._pops: Sequence[TopicPop] = ()
        self._waiter: Waiter | None = None
        self.calls = Calls()  # that use the topics
        self._lock = threading.Lock()
        self._arranging = threading.Lock()
        self.keeper = Repeated("rmqlog-pop-keeper", lambda: _TURN_SECONDS, self._keep)
        self._failing = ""  # the last error of the keeper
        self._turn = 0

    def open(self) -> WaiterLook:
        """The stores as they are now; opens those that were not there before."""
        if self._waiter is None:
            with self._lock:
                if self._waiter is None:
                    self._waiter = self._opened()
        return self._look()

    def open_once(self) -> None:
        """Opens the stores unless that was done before."""
        if self._waiter is None:
            self.open()

    def _opened(self) -> Waiter:
        waiter = self._made_waiter()
        try:
            look = waiter.look()
            _refuse_unknown_topics(self._path, look, self.settings.subscriptions)
            self._take(look)
            if self._is_ordered():
                waiter.close()
                waiter = self._made_waiter()
        except BaseException:
            waiter.close()
            self._close_stores()
            raise
        self.keeper.start()
        return waiter

    def _made_waiter(self) -> Waiter:
        group, topics = self.settings.group, self.settings.subscriptions
        logs = list[str]()
        if self._is_ordered():
            # A queue in order is free when its batch is acknowledged, which is no commit.
            logs = [f"{in_flight_directory(Opened(''), group, topic)[1:]}/in-flight.log" for topic in topics]
        return Waiter(self._path, _topics_of(topics, group), group=group, also=logs)

    def _is_ordered(self) -> bool:
        return any(isinstance(pop, OrderPop) for pop in self._pops)

    def _look(self) -> WaiterLook:
        """A look of the waiter, or of the next one if the subscriptions change meanwhile."""
        while True:
            waiter = self._waiter
            assert waiter is not None
            try:
                return self._taken(waiter.look())
            except WaiterClosedError:
                if waiter is self._waiter:
                    raise

    def _taken(self, look: WaiterLook) -> WaiterLook:
        if any(store.root not in self._stores for store in look.stores):
            with self._lock:
                self._take(look)
        else:
            self._take(look)
        return look

    def _take(self, look: WaiterLook) -> None:
        for each in look.stores:
            store = self._stores.get(each.root)
            if store is None:
                store = self._stores[each.root] = _StorePop(each.root, self.settings)
            before = store.topics
            store.update(each)
            if store.topics is not before:
                self._arrange()

    def _arrange(self) -> None:
        """Lists the topics of all stores. Threads may do so at the same time."""
        with self._arranging:
            self._pops = tuple(
                store.topics[topic]
                for topic in self.settings.subscriptions
                for store in list(self._stores.values())
                if topic in store.topics
            )

    # ---- subscriptions -------------------------------------------------------------------------------------

    def subscribe(self, topic: str, subscription: Subscription) -> None:
        """Reads the topic, too, or with another filter. Raises as `open`; then nothing has changed."""
        with self._lock:
            before = self.settings
            after = replace(before, subscriptions={**before.subscriptions, topic: subscription})
            try:
                self._change(after)
            except BaseException:
                self._change(before)
                raise

    def unsubscribe(self, topic: str) -> None:
        """Leaves the topic. Raises OptionError if it is not subscribed."""
        with self._lock:
            known = self.settings.subscriptions
            if topic not in known:
                raise OptionError(
                    f"{self._path}, group {self.settings.group}: topic {topic} is not subscribed; "
                    f"{did_you_mean(topic, sorted(known), 'subscribed topics')}"
                )
            rest = {name: each for name, each in known.items() if name != topic}
            self._change(replace(self.settings, subscriptions=rest))

    def _change(self, settings: PopSettings) -> None:
        before, self.settings = self.settings.subscriptions, settings
        topics = settings.subscriptions.keys()
        if self._waiter is None:
            return  # `open` does the rest
        gone = [share for store in list(self._stores.values()) for share in store.change(settings)]
        self._arrange()
        if topics == before.keys():
            return
        self._replace_waiter()
        self._close_shares(gone)
        look = self._waiter.look()
        _refuse_unknown_topics(self._path, look, topics - before.keys())
        self._take(look)
        if self._is_ordered() and not self._waiter.also:
            self._replace_waiter()

    def _replace_waiter(self) -> None:
        """Waiting threads wake, and wait for the topics that are subscribed now."""
        before, self._waiter = self._waiter, self._made_waiter()
        if before is not None:
            before.close()

    def _close_shares(self, shares: Sequence[PopGroup]) -> None:
        """Closes shares that no new call can reach, as soon as the present calls have ended."""
        if not shares:
            return
        try:
            self.calls.wait()
        except BaseException:  # Ctrl-C: the topics are left as by a consumer that was killed
            for share in shares:
                share.leave()
            raise
        with ExitStack() as closing:
            for share in shares:
                closing.callback(share.close)

    # ---- pop -----------------------------------------------------------------------------------------------

    def pop(self, request: PopRequest) -> list[MessageView]:
        """The messages of the first topic that has some, as of the last look."""
        with self.calls:
            return _first_found(self._next_pops(), request)

    def pop_from(self, look: WaiterLook, request: PopRequest) -> list[MessageView]:
        """The messages of the first topic that has some, beginning with the store whose news are oldest."""
        places = {each.root: place for place, each in enumerate(look.stores)}
        with self.calls:
            pops = sorted(self._next_pops(), key=lambda pop: places.get(pop.root, len(places)))
            return _first_found(pops, request)

    def _next_pops(self) -> Iterable[TopicPop]:
        """The topics and stores in turn, so that none is served before the others again and again."""
        pops = self._pops
        if not pops:
            return ()
        self._turn += 1
        first = self._turn % len(pops)
        return (*pops[first:], *pops[:first])

    def wait(self, look: WaiterLook, timeout: float) -> WaiterLook:
        """The next look with news, or a look at the end of the time."""
        waiter = self._waiter
        assert waiter is not None
        found = waiter.wait(look, timeout)
        if found is None:
            return look if waiter is self._waiter else self._look()
        return self._taken(found)

    def next_visible(self, request: PopRequest) -> int | None:
        """When messages can be received without a commit before: the time in ms; None if never."""
        with self.calls:
            times = [pop.next_visible(request) for pop in self._pops]
        return min((each for each in times if each is not None), default=None)

    # ---- handles -------------------------------------------------------------------------------------------

    def ack(self, given: Iterable[MessageView | str], now_ms: int) -> list[InvalidReceiptHandleError]:
        """Acknowledges messages, or the messages of handles. Returns an error for each that is not valid."""
        by_pop: dict[TopicPop, list[ReceiptHandle]] = {}
        errors: list[InvalidReceiptHandleError] = []
        with self.calls:
            for each in given:
                try:
                    handle = _handle(each)
                    by_pop.setdefault(self._pop_of(each, handle), []).append(handle)
                except InvalidReceiptHandleError as error:
                    errors.append(error)
            for pop, handles in by_pop.items():
                errors += pop.ack(handles, now_ms)
                self._notify(pop)
        return errors

    def change_invisible(
        self, message: MessageView | str, invisible_ms: int, now_ms: int
    ) -> ReceiptHandle | InvalidReceiptHandleError:
        """The message's new handle: it is invisible for `invisible_ms` from now on."""
        handle = _handle(message)
        with self.calls:
            pop = self._pop_of(message, handle)
            found = pop.change_invisible(handle, invisible_ms, now_ms)
            self._notify(pop)
        return found

    def _pop_of(self, message: MessageView | str, handle: ReceiptHandle) -> TopicPop:
        topics = list(self.settings.subscriptions) if isinstance(message, str) else [message.topic]
        if len(topics) != 1:
            raise OptionError(
                f"receipt handle {handle.text!r}: expected the message, because this consumer reads "
                f"{len(topics)} topics and a handle does not name its topic"
            )
        root = None if isinstance(message, str) else message.root
        pops = [
            pop
            for pop in self._pops
            if pop.topic == topics[0]
            and (pop.broker_name == handle.broker_name if root is None else pop.root == root)
        ]
        if not pops:
            raise InvalidReceiptHandleError(
                handle.text,
                f"is not a handle of this consumer: no store of {self._path} with broker "
                f"{handle.broker_name} is open for topic {topics[0]}; acknowledge with the consumer that "
                "received the message, before it unsubscribes from the topic",
            )
        if len(pops) > 1:
            raise OptionError(
                f"receipt handle {handle.text!r}: expected the message, because {len(pops)} stores of "
                f"{self._path} have the broker name {handle.broker_name}"
            )
        return pops[0]

    def _notify(self, pop: TopicPop) -> None:
        """Wakes consumers of this process after a change that is no commit."""
        if isinstance(pop, OrderPop):
            notify(pop.root, pop.topic, self.settings.group)

    # ---- once a second, and the end ------------------------------------------------------------------------

    def keep(self) -> None:
        """Serves the stores once a second, with their queues as they are now.

        A consumer that waits is not woken for the messages of others. With the queues of its last wake it
        would take the group's offsets for offsets behind the end.
        """
        errors: list[Exception] = []
        waiter = self._waiter
        try:
            if waiter is not None and not waiter.is_closed:
                self._look()
        except WaiterClosedError:
            return  # the consumer is being closed
        except (StoreError, OSError) as error:
            errors.append(error)
        for store in list(self._stores.values()):
            try:
                store.keep()
            except (StoreError, OSError) as error:
                errors.append(error)
        if errors:
            raise errors[0]

    def _keep(self) -> None:
        try:
            self.keep()
            self._failing = ""
        except Exception as error:
            # The thread must go on: the consumer raises the error in its next receive, or the next round
            # succeeds.
            if self._failing != str(error):
                self._failing = str(error)
                _log.warning("pop: %s", error)

    def interrupt(self) -> None:
        """Ends the waits of other threads."""
        waiter = self._waiter
        if waiter is not None:
            waiter.close()

    def close(self) -> None:
        """Closes everything. No call is under way any more."""
        self.keeper.stop(_KEEP_SECONDS)  # it would open the files of a share again, and keep its locks
        self.interrupt()  # a `subscribe` may have replaced the waiter since
        for topic, subscription in self.settings.subscriptions.items():
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
        self.keeper.stop(_KEEP_SECONDS)
        self.interrupt()
        for store in self._stores.values():
            store.leave()

    def abandon(self) -> None:
        """Closes the locks, and nothing more: in a forked child, which shares them with its parent."""
        for store in self._stores.values():
            store.abandon()


def _handle(message: MessageView | str) -> ReceiptHandle:
    return ReceiptHandle.parse(message) if isinstance(message, str) else message.handle


def _first_found(pops: Iterable[TopicPop], request: PopRequest) -> list[MessageView]:
    """The messages of the first topic that has some. Raises the error of a damaged one if none has."""
    errors: list[StoreError] = []
    for pop in pops:
        try:
            found = pop.pop(request)
        except (CorruptStoreError, UnsupportedFormatError) as error:
            errors.append(error)
            continue
        if found:
            return found
    for each in errors:
        raise each
    return []


def _refuse_unknown_topics(path: str, look: WaiterLook, topics: Iterable[str]) -> None:
    """Raises OptionError for a topic that no store at the path has."""
    known = {topic for root in store_roots(path) for topic in read_topics(Opened(root)) or ()}
    there = {topic for store in look.stores for topic, _ in store.queues}
    for topic in topics:
        if not known | there:
            raise OptionError(
                f"{path}: expected a store with topic {topic}, found no topic at all; give the "
                "broker's store directory (storePathRootDir), or the directory of a cluster"
            )
        if topic not in known | there:
            raise OptionError(
                f"topic {topic} is not in topics.json of {path}, and has no queue; "
                f"{did_you_mean(topic, sorted(known), 'topics')}"
            )
