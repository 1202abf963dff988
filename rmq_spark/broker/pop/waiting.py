"""Waiter for messages in one store, or in all stores of a cluster directory, without looking all the time.

One thread for all waiters of a process polls the doorbells of their stores, which every commit rings, and
looks at a store that rang: one look serves all its waiters. About every second it looks at all stores,
whether or not a doorbell rang, and asks whether a broker has taken a store. The thread ends with the last
waiter.
"""

from __future__ import annotations

import itertools
import logging
import os
import threading
import time
import weakref
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from store_format import Queue
from store_format.bookkeeping.journal import doorbell_path
from store_format.errors import StoreError, StoreInUseError, StoreNotFoundError
from store_format.files import paths
from store_format.files.lock import StoreLock
from store_format.files.polling import PolledFiles, Repeated
from store_format.files.read import files_at
from store_format.follow.follower import StoreFollower
from store_format.names import QueueKey
from store_format.opened.store import Opened
from store_format.read.store import Store
from store_format.read.store_root import cluster_members

_log = logging.getLogger(__name__)

_ROUND_SECONDS = 1.0  # between looks at everything
_TIMEOUT_MAX = 1e8  # seconds, three years; locks take no endless timeout
_COMING_MAX = 20  # directories beside the stores of a cluster that are polled because they may become one
_versions = itertools.count(1)  # of all stores, so that versions grow even if a store is followed again


@dataclass(frozen=True, slots=True)
class StoreLook:
    """One store at one look: its queues of these topics, by (topic, queue id), with their offsets.

    Of two looks at a store in one process, the one with the larger `version` is the newer one.
    """

    root: str
    store: Store
    topics: frozenset[str]
    queues: Mapping[QueueKey, Queue]
    version: int


@dataclass(frozen=True, slots=True)
class WaiterLook:
    """All stores at one look. Stores with news since the look before come first, the oldest news first.

    A pop that takes from one store at a time begins with the first one ("pop with notify", spec 11.12).
    """

    stores: tuple[StoreLook, ...]
    notified: int  # how often `notify` had been called before
    followed: tuple[_FollowedStore, ...]
    waiter: Waiter  # that has looked


class WaiterClosedError(ValueError):
    """The waiter was closed, by another thread for example."""


class Waiter:
    """Waiter until some topics of a store have new messages. Any number of threads may share a waiter.

    `path` is a store, the directory of a cluster, or a directory that becomes one of them later. `topics` are
    names of topics, which need not exist yet: a consumer gives its topics and their retry topics. `group` is
    what `notify` names. `also` are files below each store whose change ends a wait too, for changes that are
    not commits: order pops give the in-flight log of the group. The class reads only, and takes no lock.

    Look first, then wait from that look: whatever comes after the look ends the wait, also if it came before
    the call of `wait`. So "no message" is never answered while a message can be taken::

        with Waiter("/data/store", ["Orders", "%RETRY%billing_Orders"]) as waiter:
            look = waiter.look()
            while look is not None and not (messages := pop(look)):
                look = waiter.wait(look, deadline - time.monotonic())

    Close the waiter, or use it in `with`: the thread that watches the stores ends with the last waiter. In a
    forked child the waiter goes on with a thread of the child's own.
    """

    def __init__(
        self,
        path: str,
        topics: Iterable[str],
        *,
        group: str = "",
        also: Sequence[str] = (),
    ) -> None:
        self.topics = frozenset(topics)
        self.group = group
        self.also = tuple(also)
        self.path = paths.absolute(path)
        self.blocked = 0  # threads that wait
        self.waits_since = 0.0
        self.is_passed_over = False  # others of the group were woken for the last news
        self._claimed = 0  # threads that were woken and have not left their wait
        self._notified = 0
        self._news: dict[str, float] = {}  # root -> when a look found news
        self._condition = threading.Condition()
        self._joining = threading.RLock()  # of the next two: a thread may join while another one closes
        self._joined: tuple[_Watcher, _WatchedPath] | None = None
        self.is_closed = False

    # ---- what a consumer calls -----------------------------------------------------------------------------

    def look(self) -> WaiterLook:
        """Looks at all stores now: about 0.04 ms each. A path that is no store, yet or any more, has
        no stores.

        Raises StoreInUseError if a broker has taken a store (noticed within about a second), and the errors
        of reading a store.
        """
        watcher, watched = self._join()
        notified, followed = self._notified, watched.stores
        found = []
        for store in followed:
            store.refuse_holder()
            try:
                found.append(watcher.look_at(store, self.topics))
            except StoreNotFoundError:
                watcher.find_stores(watched)
                if store in watched.stores:
                    raise
        found.sort(key=lambda each: self._news.get(each.root, float("inf")))
        for each in found:
            self._news.pop(each.root, None)
        return WaiterLook(tuple(found), notified, followed, self)

    def wait(self, look: WaiterLook, timeout: float) -> WaiterLook | None:
        """The next look with news since `look`, after at most `timeout` seconds; None on a timeout.

        News are new messages (or other changes) in queues of the topics, a new store, a call of `notify`, and
        a change of a file in `also`. After a look of another waiter, everything is news. None comes after a
        last look that found nothing new. A caller that waits for a time, as the end of an invisible time,
        gives the timeout up to then. Raises as `look`.
        """
        deadline = time.monotonic() + min(timeout, _TIMEOUT_MAX)
        with self._condition:
            self.blocked += 1
            self.waits_since = time.monotonic()
        try:
            found = self.look()  # the thread looks only at stores that somebody waits for
            if not self._has_news(look):
                with self._condition:
                    self._condition.wait_for(
                        lambda: self._has_news(look), max(0.0, deadline - time.monotonic())
                    )
                found = self.look()
            return found if self._has_news(look) else None
        except WaiterClosedError:
            return None  # another thread has closed it meanwhile
        finally:
            with self._condition:
                self.blocked -= 1
                self._claimed = max(self._claimed - 1, 0)

    def check(self) -> None:
        """Raises StoreInUseError if a broker has taken a store. Looks at no file."""
        for store in self._join()[1].stores:
            store.refuse_holder()

    def close(self) -> None:
        """Ends all waits, which return None. The thread ends with the last waiter of the process."""
        with self._joining:
            self.is_closed = True
            joined, self._joined = self._joined, None
        if joined is not None:
            _remove_from_thread(self, joined[0])
        self.wake()

    def __enter__(self) -> Self:
        self._join()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # ---- what the watcher calls ----------------------------------------------------------------------------

    def wake(self, *, notified: bool = False) -> None:
        """Lets the waiting threads compare their looks with what is known now."""
        with self._condition:
            self._notified += notified
            self.is_passed_over = False
            self._condition.notify_all()

    def note_news(self, root: str) -> None:
        """Notes that a store has news, and wakes."""
        self._news.setdefault(root, time.monotonic())
        self.wake()

    def claim(self, root: str) -> int:
        """Wakes the threads that wait, for as many new messages; returns how many were not woken before.

        Those that were woken before are woken again: with a look that is as new as the news they went on to
        wait.
        """
        with self._condition:
            claimed = self.blocked - self._claimed
            self._claimed = self.blocked
        if self.blocked:
            self.note_news(root)
        return claimed

    def forget(self) -> None:
        """In a forked child: the threads that waited, and the watcher, exist only in the parent."""
        self._condition = threading.Condition()
        self._joining = threading.RLock()
        self.blocked = self._claimed = 0
        self._joined = None

    # ---- inner ---------------------------------------------------------------------------------------------

    def _join(self) -> tuple[_Watcher, _WatchedPath]:
        joined = self._joined
        if joined is not None:
            return joined
        with self._joining:
            if self.is_closed:
                raise WaiterClosedError(f"{self.path}: this waiter is closed")
            if self._joined is None:
                self._joined = _add_to_thread(self)
            return self._joined

    def _has_news(self, look: WaiterLook) -> bool:
        joined = self._joined
        is_other = look.waiter is not self or self._notified != look.notified
        if self.is_closed or joined is None or is_other or look.followed != joined[1].stores:
            return True
        seen = {each.root: each.version for each in look.stores}
        return any(
            store.changed_at.get(topic, 0) > seen.get(store.root, 0)
            for store in look.followed
            for topic in self.topics
        )


# ---- the thread --------------------------------------------------------------------------------------------


class _Watcher:
    """The stores, watched paths and waiters of this process, and the thread that serves them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # of the next four, which only it may change
        self._paths: dict[str, _WatchedPath] = {}
        self._stores: dict[str, _FollowedStore] = {}
        self._of_store: dict[_FollowedStore, frozenset[Waiter]] = {}
        self._files: dict[str, frozenset[_FollowedStore | Waiter | _WatchedPath]] = {}
        self._polled = PolledFiles()
        self._failing: dict[str, str] = {}  # root -> the last error
        self._next_round = time.monotonic() + _ROUND_SECONDS
        self._thread = Repeated("rmqlog-waiting", self._polled.pause, self._turn)
        self._thread.start()

    # ---- waiters -------------------------------------------------------------------------------------------

    def add(self, waiter: Waiter) -> _WatchedPath:
        with self._lock:
            watched = self._paths.setdefault(waiter.path, _WatchedPath(waiter.path))
            watched.waiters.add(waiter)
            self._find_stores(watched, force=True)
        return watched

    def remove(self, waiter: Waiter) -> bool:
        """True if it was the last one: the watcher ends then."""
        with self._lock:
            watched = self._paths.get(waiter.path)
            if watched is not None and waiter in watched.waiters:
                watched.waiters.discard(waiter)
                if not watched.waiters:
                    del self._paths[watched.path]
                self._arrange()
            return not self._paths

    def end(self) -> None:
        self._thread.stop()

    def notify(self, root: str, topic: str, group: str) -> None:
        with self._lock:
            found = [
                waiter
                for store, waiters in self._of_store.items()
                if store.root == root
                for waiter in waiters
                if topic in waiter.topics and waiter.group == group
            ]
        for waiter in found:
            waiter.wake(notified=True)

    # ---- looks ---------------------------------------------------------------------------------------------

    def look_at(self, store: _FollowedStore, topics: frozenset[str]) -> StoreLook:
        """Looks, and wakes those who wait for the topics that have changed."""
        look, changed = store.look(topics)
        if changed:
            groups: dict[str, list[Waiter]] = {}
            for waiter in self._of_store.get(store, frozenset()):
                if waiter.topics.isdisjoint(changed):
                    continue
                if waiter.group:
                    groups.setdefault(waiter.group, []).append(waiter)
                else:
                    waiter.note_news(store.root)
            for waiters in groups.values():
                _wake_some(store.root, waiters, changed)
        return look

    def _turn(self) -> None:
        try:
            self._serve(self._polled.changed())
            if time.monotonic() >= self._next_round:
                self._next_round = time.monotonic() + _ROUND_SECONDS
                self._round()
        except Exception:
            # The thread must not end silently, whatever the files of a store make of it.
            _log.exception("waiting for messages goes on in %g s", _ROUND_SECONDS)
            time.sleep(_ROUND_SECONDS)

    def _serve(self, changed: Iterable[str]) -> None:
        for each in {each for path in changed for each in self._files.get(path, ())}:
            if isinstance(each, _FollowedStore):
                self._rang(each)
            elif isinstance(each, _WatchedPath):
                self.find_stores(each)
            else:
                each.wake(notified=True)

    def _round(self) -> None:
        """Looks at everything that no file may have shown."""
        for watched in list(self._paths.values()):
            self.find_stores(watched)
        for store, waiters in list(self._of_store.items()):
            if store.check_holder():
                for waiter in waiters:
                    waiter.wake(notified=True)
            _wake_passed_over(waiters)
            self._rang(store)

    def _rang(self, store: _FollowedStore) -> None:
        waiters = self._of_store.get(store, frozenset())
        if not any(waiter.blocked for waiter in waiters):
            return
        try:
            self.look_at(store, frozenset())
            self._failing.pop(store.root, None)
        except StoreError as error:
            if self._failing.get(store.root) != str(error):
                self._failing[store.root] = str(error)
                for waiter in waiters:
                    waiter.wake(notified=True)  # their own look raises it

    def find_stores(self, watched: _WatchedPath) -> None:
        """Gives a watched path its stores as they are now."""
        with self._lock:
            self._find_stores(watched)

    # ---- which stores --------------------------------------------------------------------------------------

    def _find_stores(self, watched: _WatchedPath, *, force: bool = False) -> None:
        """`find_stores` for a caller that has the lock. `force`: another waiter has come to the path."""
        coming, before = watched.coming, watched.stores
        roots = watched.look_for_stores()
        if not force and coming == watched.coming and roots == [store.root for store in before]:
            return
        watched.stores = tuple(self._stores.setdefault(root, _FollowedStore(root)) for root in roots)
        self._arrange()
        if watched.stores != before:
            for waiter in watched.waiters:
                waiter.wake()

    def _arrange(self) -> None:
        """Under the lock: derives from the watched paths who waits for which store and which file."""
        of_store: dict[_FollowedStore, set[Waiter]] = {}
        files: dict[str, set[_FollowedStore | Waiter | _WatchedPath]] = {}
        for watched in self._paths.values():
            for path in watched.coming:
                files.setdefault(path, set()).add(watched)
            for store in watched.stores:
                of_store.setdefault(store, set()).update(watched.waiters)
                files.setdefault(doorbell_path(store.opened), set()).add(store)
                for waiter in watched.waiters:
                    for name in waiter.also:
                        files.setdefault(f"{store.root}/{name}", set()).add(waiter)
        self._stores = {store.root: store for store in of_store}
        self._of_store = {store: frozenset(waiters) for store, waiters in of_store.items()}
        for store, waiters in of_store.items():
            store.choose(frozenset().union(*(waiter.topics for waiter in waiters)))
        self._files = {path: frozenset(concerned) for path, concerned in files.items()}
        self._polled.watch(files)


def _wake_some(root: str, waiters: list[Waiter], changed: Mapping[str, int]) -> None:
    """Wakes as many waiters of a group as there are new messages, those first that wait for longest.

    Each message goes to one of them, and a consumer that wakes in vain costs 1 ms. PopLongPollingService
    wakes one request for a message, too.
    """
    waiters.sort(key=lambda waiter: waiter.waits_since)
    left = sum(
        changed[topic] for topic in {topic for waiter in waiters for topic in waiter.topics & changed.keys()}
    )
    for waiter in waiters:
        if left > 0:
            left -= waiter.claim(root)
        else:
            waiter.is_passed_over = True


def _wake_passed_over(waiters: Iterable[Waiter]) -> None:
    """Wakes one waiter of each group, in case those that were woken have ended and taken nothing."""
    passed_over = [waiter for waiter in waiters if waiter.is_passed_over]
    passed_over.sort(key=lambda waiter: waiter.waits_since, reverse=True)
    for longest in {waiter.group: waiter for waiter in passed_over}.values():
        longest.wake()


@dataclass(slots=True, eq=False)
class _WatchedPath:
    """A path of waiters as given, and its stores now."""

    path: str
    stores: tuple[_FollowedStore, ...] = ()
    coming: tuple[str, ...] = ()  # files and directories whose change may mean a new store
    waiters: set[Waiter] = field(default_factory=set)
    trouble: str = ""

    def look_for_stores(self) -> list[str]:
        """The roots of its stores now. Notes which files show that another store has come."""
        path = self.path
        try:
            is_known = [store.root for store in self.stores] == [path]
            if is_known and files_at(path).is_directory(f"{path}/commitlog"):
                return [path]  # not listed again: that may wait for a writer that waits for the disk
            names = files_at(path).names(path, missing_ok=True)
        except StoreError as error:
            self._note(error)
            return [store.root for store in self.stores]
        if "commitlog" in names:
            self.coming = ()
            return [path]
        roots = [*cluster_members(path, names, self._note)]
        others = sorted(names - {paths.base_name(root) for root in roots} - {".rmqlog"})[:_COMING_MAX]
        self.coming = (path, f"{path}/commitlog", *(f"{path}/{name}/commitlog" for name in others))
        return roots

    def _note(self, error: StoreError) -> None:
        if str(error) != self.trouble:
            self.trouble = str(error)
            _log.warning("%s; not waited for", error)


# The watcher of this process: there is one, because a look costs the same for one waiter as for many.
_mutex = threading.RLock()
_watcher: _Watcher | None = None
_joined: weakref.WeakSet[Waiter] = weakref.WeakSet()


def _add_to_thread(waiter: Waiter) -> tuple[_Watcher, _WatchedPath]:
    global _watcher
    with _mutex:
        if _watcher is None:
            _watcher = _Watcher()
        _joined.add(waiter)
        try:
            return _watcher, _watcher.add(waiter)
        except BaseException:
            _remove_from_thread(waiter, _watcher)  # else every later waiter would fail with it
            raise


def _remove_from_thread(waiter: Waiter, watcher: _Watcher) -> None:
    global _watcher
    with _mutex:
        _joined.discard(waiter)
        if watcher.remove(waiter) and _watcher is watcher:
            _watcher = None
            watcher.end()


def notify(root: str, topic: str, group: str = "") -> None:
    """Wakes all waiters of this process for the topic in this store, of the group.

    For changes that are not commits: an acknowledgement, a changed invisible time. Waiters of other processes
    notice such changes by the files in their `also`.
    """
    watcher = _watcher
    if watcher is not None:
        watcher.notify(paths.absolute(root), topic, group)


def _forget_after_fork() -> None:
    global _mutex, _watcher, _joined
    _mutex = threading.RLock()
    _watcher = None
    waiters, _joined = list(_joined), weakref.WeakSet()
    for waiter in waiters:
        waiter.forget()


os.register_at_fork(after_in_child=_forget_after_fork)


# ---- one store ---------------------------------------------------------------------------------------------


class _AwaitedTopics:
    """The topics that any waiter of the store waits for."""

    def __init__(self) -> None:
        self.topics: frozenset[str] = frozenset()

    def chooses_topic(self, topic: str) -> bool:
        return topic in self.topics

    def chooses_queue(self, topic: str, broker: str, queue_id: int) -> bool:
        return topic in self.topics


class _FollowedStore:
    """The queues of the chosen topics of one store. Any thread may look; a look takes about 0.04 ms.

    `changed_at` has the version of the last change of each topic.
    """

    def __init__(self, root: str) -> None:
        self.root, self.opened = root, Opened(root)
        self.changed_at: dict[str, int] = {}
        self.holder: int | None = None  # the broker that has the store
        self._awaited = _AwaitedTopics()
        self._looked_topics: frozenset[str] = frozenset()
        self._follower: StoreFollower | None = None
        self._version = next(_versions)
        self._ends: dict[QueueKey, int] = {}
        self._looks: dict[frozenset[str], StoreLook] = {}  # of this version, by topics
        self._lock = threading.Lock()

    def choose(self, topics: frozenset[str]) -> None:
        """These are the topics of all waiters now. The next look finds the queues of new ones."""
        with self._lock:
            self._awaited.topics = topics
            self._looked_topics &= topics
            self._looks = {}

    def look(self, topics: frozenset[str]) -> tuple[StoreLook, Mapping[str, int]]:
        """Looks now. Returns the queues of these topics, and the topics that have changed since the last look
        with their number of new messages, at least 1.

        Raises StoreNotFoundError for a store that is gone, and the errors of reading a damaged store. After
        an error the next look opens the store again.
        """
        with self._lock:
            try:
                changed = self._changed_topics()
            except BaseException:
                self._follower = None
                raise
            assert self._follower is not None
            if changed:
                self._version = next(_versions)
                self.changed_at.update(dict.fromkeys(changed, self._version))
                self._looks = {}
            look = self._looks.get(topics)
            if look is None:
                queues = {key: queue for key, queue in self._follower.queues.items() if key[0] in topics}
                look = StoreLook(self.root, self._follower.store, topics, queues, self._version)
                if topics:
                    self._looks[topics] = look
            return look, changed

    def _changed_topics(self) -> Counter[str]:
        anew = not self._awaited.topics <= self._looked_topics
        found: Counter[str] = Counter()
        if self._follower is None:
            self._follower = StoreFollower(Store.open(self.root, fail_on_unknown=False), self._awaited)
            found.update(self.changed_at.keys())  # after an error: what changed meanwhile is unknown
        changed = self._follower.look(anew=anew)
        self._looked_topics = self._awaited.topics
        for key, queue in self._follower.changed.items() if changed else ():
            end = 0 if queue is None else queue.max_offset
            found[key[0]] += max(end - self._ends.get(key, 0), 1)
            self._ends[key] = end
        return found

    def check_holder(self) -> bool:
        """Asks whether a broker holds the store's lock now; True if the answer differs from the last one."""
        before, self.holder = self.holder, StoreLock.foreign_holder(f"{self.root}/lock")
        return (before is None) != (self.holder is None)

    def refuse_holder(self) -> None:
        """Raises StoreInUseError if a broker held the store's lock at the last check. Looks at no file."""
        if self.holder is not None:
            raise StoreInUseError(
                f"{self.root}/lock: held by {StoreLock.described(self.holder)}, probably a broker that has "
                "started; a store is shared by pop only while no broker runs on it: stop the broker, or "
                "consume from it"
            )
