"""The thread that watches the stores of all waiters of a process, and whom a change concerns."""

from __future__ import annotations

import logging
import os
import threading
import time
import weakref
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from rmq_spark.broker.pop.followed import FollowedStore, StoreLook
from store_format.bookkeeping.journal import doorbell_path
from store_format.errors import StoreError
from store_format.files import paths
from store_format.files.polling import PolledFiles
from store_format.files.read import entry_names, is_directory
from store_format.read.store_root import cluster_members

_log = logging.getLogger(__name__)

_ROUND_SECONDS = 1.0  # between looks at everything
_COMING_MAX = 100  # directories beside the stores of a cluster that are watched because they may become one


class Waits(Protocol):
    """What the watcher knows of a waiter."""

    path: str
    topics: frozenset[str]
    group: str
    also: tuple[str, ...]
    commit_log_paths: tuple[str, ...]
    blocked: int
    waits_since: float
    is_passed_over: bool

    def wake(self, *, notified: bool = False) -> None: ...
    def note_news(self, root: str) -> None: ...
    def claim(self, root: str) -> int: ...
    def forget(self) -> None: ...


@dataclass(slots=True, eq=False)
class WatchedPath:
    """A path of waiters as given, and its stores now. `version` changes with them."""

    path: str
    commit_log_paths: tuple[str, ...]
    stores: tuple[FollowedStore, ...] = ()
    version: int = 0
    coming: tuple[str, ...] = ()  # files and directories whose change may mean a new store
    waiters: set[Waits] = field(default_factory=set)
    trouble: str = ""

    def look_for_stores(self) -> list[str]:
        """The roots of its stores now. Notes which files show that another store has come."""
        path = self.path
        try:
            is_known = [store.root for store in self.stores] == [path]
            if is_known and is_directory(path if self.commit_log_paths else f"{path}/commitlog"):
                return [path]  # not listed again: that may wait for a writer that waits for the disk
            names = entry_names(path, missing_ok=True)
        except StoreError as error:
            self._note(error)
            return [store.root for store in self.stores]
        if "commitlog" in names or (self.commit_log_paths and names):
            self.coming = ()
            return [path]
        roots = cluster_members(path, names, self._note)
        others = sorted(names - {paths.base_name(root) for root in roots} - {".rmqlog"})[:_COMING_MAX]
        self.coming = (path, f"{path}/commitlog", *(f"{path}/{name}/commitlog" for name in others))
        return roots

    def _note(self, error: StoreError) -> None:
        if str(error) != self.trouble:
            self.trouble = str(error)
            _log.warning("%s; not waited for", error)


class Watcher:
    """The stores, watched paths and waiters of this process, and the thread that serves them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # of the next four, which only it may change
        self._paths: dict[tuple[str, tuple[str, ...]], WatchedPath] = {}
        self._stores: dict[tuple[str, tuple[str, ...]], FollowedStore] = {}
        self._of_store: dict[FollowedStore, frozenset[Waits]] = {}
        self._files: dict[str, frozenset[FollowedStore | Waits | WatchedPath]] = {}
        self._polled = PolledFiles()
        self._ending = threading.Event()
        self._failing: dict[str, str] = {}  # root -> the last error
        self._thread = threading.Thread(target=self._run, name="rmqlog-waiting", daemon=True)
        self._thread.start()

    # ---- waiters -------------------------------------------------------------------------------------------

    def add(self, waiter: Waits) -> WatchedPath:
        with self._lock:
            key = waiter.path, waiter.commit_log_paths
            watched = self._paths.setdefault(key, WatchedPath(*key))
            watched.waiters.add(waiter)
            for store in watched.stores:
                store.choose(waiter.topics)
            self._find_stores(watched, force=True)
        return watched

    def remove(self, waiter: Waits) -> bool:
        """True if it was the last one: the watcher ends then."""
        with self._lock:
            watched = self._paths.get((waiter.path, waiter.commit_log_paths))
            if watched is not None and waiter in watched.waiters:
                watched.waiters.discard(waiter)
                for store in watched.stores:
                    store.leave_out(waiter.topics)
                if not watched.waiters:
                    del self._paths[watched.path, watched.commit_log_paths]
                self._arrange()
            return not self._paths

    def end(self) -> None:
        self._ending.set()
        if threading.current_thread() is not self._thread:
            self._thread.join()

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

    def look_at(self, store: FollowedStore, topics: frozenset[str]) -> StoreLook:
        """Looks, and wakes those who wait for the topics that have changed."""
        look, changed = store.look(topics)
        if changed:
            groups: dict[str, list[Waits]] = {}
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

    def _run(self) -> None:
        next_round = time.monotonic() + _ROUND_SECONDS
        while not self._ending.wait(self._polled.pause()):
            try:
                self._serve(self._polled.changed())
                if time.monotonic() >= next_round:
                    next_round = time.monotonic() + _ROUND_SECONDS
                    self._round()
            except Exception:
                # The thread must not end silently, whatever the files of a store make of it.
                _log.exception("waiting for messages goes on in %g s", _ROUND_SECONDS)
                self._ending.wait(_ROUND_SECONDS)

    def _serve(self, changed: Iterable[str]) -> None:
        concerned = {each for path in changed for each in self._files.get(path, ())}
        for each in concerned:
            if isinstance(each, FollowedStore):
                self._rang(each)
            elif isinstance(each, WatchedPath):
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

    def _rang(self, store: FollowedStore) -> None:
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

    def find_stores(self, watched: WatchedPath) -> None:
        """Gives a watched path its stores as they are now."""
        with self._lock:
            self._find_stores(watched)

    # ---- which stores --------------------------------------------------------------------------------------

    def _find_stores(self, watched: WatchedPath, *, force: bool = False) -> None:
        """`find_stores` for a caller that has the lock. `force`: another waiter has come to the path."""
        coming, before = watched.coming, watched.stores
        roots = watched.look_for_stores()
        if not force and coming == watched.coming and roots == [store.root for store in before]:
            return
        known = {store.root: store for store in before}
        stores = []
        for root in roots:
            key = root, watched.commit_log_paths
            store = known.get(root)
            if store is None:
                store = self._stores.setdefault(key, FollowedStore(*key))
                for waiter in watched.waiters:
                    store.choose(waiter.topics)
            stores.append(store)
        for store in before:
            if store not in stores:
                for waiter in watched.waiters:
                    store.leave_out(waiter.topics)
        watched.stores = tuple(stores)
        self._arrange()
        if watched.stores != before:
            watched.version += 1
            for waiter in watched.waiters:
                waiter.wake()

    def _arrange(self) -> None:
        """Under the lock: derives from the watched paths who waits for which store and which file."""
        of_store: dict[FollowedStore, set[Waits]] = {}
        files: dict[str, set[FollowedStore | Waits | WatchedPath]] = {}
        for watched in self._paths.values():
            for path in watched.coming:
                files.setdefault(path, set()).add(watched)
            for store in watched.stores:
                of_store.setdefault(store, set()).update(watched.waiters)
                files.setdefault(doorbell_path(store.root), set()).add(store)
                for waiter in watched.waiters:
                    for name in waiter.also:
                        files.setdefault(f"{store.root}/{name}", set()).add(waiter)
        self._stores = {key: store for key, store in self._stores.items() if store in of_store}
        self._of_store = {store: frozenset(waiters) for store, waiters in of_store.items()}
        self._files = {path: frozenset(concerned) for path, concerned in files.items()}
        self._polled.watch(files)


def _wake_some(root: str, waiters: list[Waits], changed: Mapping[str, int]) -> None:
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


def _wake_passed_over(waiters: Iterable[Waits]) -> None:
    """Wakes one waiter of each group, in case those that were woken have ended and taken nothing."""
    longest: dict[str, Waits] = {}
    for waiter in waiters:
        if waiter.is_passed_over and (
            waiter.group not in longest or waiter.waits_since < longest[waiter.group].waits_since
        ):
            longest[waiter.group] = waiter
    for waiter in longest.values():
        waiter.wake()


# The watcher of this process: there is one, because a look costs the same for one waiter as for many.
_mutex = threading.RLock()
_watcher: Watcher | None = None
_joined: weakref.WeakSet[Waits] = weakref.WeakSet()


def join(waiter: Waits) -> tuple[Watcher, WatchedPath]:
    global _watcher
    with _mutex:
        if _watcher is None:
            _watcher = Watcher()
        _joined.add(waiter)
        try:
            return _watcher, _watcher.add(waiter)
        except BaseException:
            leave(waiter, _watcher)  # else every later waiter would fail with it
            raise


def leave(waiter: Waits, watcher: Watcher) -> None:
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
