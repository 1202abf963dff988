"""Waits for messages in one store, or in all stores of a cluster directory, without looking all the time.

One thread for all waiters of a process polls the doorbells of their stores, which every commit rings, and
looks at a store that rang. About every second it looks at all stores, whether or not a doorbell rang, and
asks whether a broker has taken a store. The thread ends with the last waiter.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from rmq_spark.broker.pop.followed import StoreLook
from rmq_spark.broker.pop.watcher import WatchedPath, Watcher, join, leave
from rmq_spark.broker.pop.watcher import notify as notify
from store_format.errors import StoreNotFoundError
from store_format.files import paths

_TIMEOUT_MAX = 1e8  # seconds, three years; locks take no endless timeout


@dataclass(frozen=True, slots=True)
class WaiterLook:
    """All stores at one look. Stores with news since the look before come first, the oldest news first.

    A pop that takes from one store at a time begins with the first one ("pop with notify", spec 11.12).
    """

    stores: tuple[StoreLook, ...]
    notified: int  # how often `notify` had been called before
    watched: tuple[WatchedPath, int]  # and the version of its list of stores
    waiter: Waiter  # that has looked


class WaiterClosedError(ValueError):
    """The waiter was closed, by another thread for example."""


class Waiter:
    """Waits until some topics of a store have new messages. Any number of threads may share a waiter.

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
        commit_log_paths: Sequence[str] = (),
    ) -> None:
        self.topics = frozenset(topics)
        self.group = group
        self.also = tuple(also)
        self.path = paths.absolute(path)
        self.commit_log_paths = tuple(commit_log_paths)
        self.blocked = 0  # threads that wait
        self.waits_since = 0.0
        self.is_passed_over = False  # others of the group were woken for the last news
        self._claimed = 0  # threads that were woken and have not left their wait
        self._notified = 0
        self._news: dict[str, float] = {}  # root -> when a look found news
        self._condition = threading.Condition()
        self._joining = threading.RLock()  # of the next two: a thread may join while another one closes
        self._joined: tuple[Watcher, WatchedPath] | None = None
        self.is_closed = False

    # ---- what a consumer calls -----------------------------------------------------------------------------

    def look(self) -> WaiterLook:
        """Looks at all stores now: about 0.04 ms each. A path that is no store, yet or any more, has
        no stores.

        Raises StoreInUseError if a broker has taken a store (noticed within about a second), and the errors
        of reading a store.
        """
        watcher, watched = self._join()
        notified, version = self._notified, watched.version
        found = []
        for store in watched.stores:
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
        return WaiterLook(tuple(found), notified, (watched, version), self)

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
                    left = max(0.0, deadline - time.monotonic())
                    self._condition.wait_for(lambda: self._has_news(look), left)
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
            leave(self, joined[0])
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

    def _join(self) -> tuple[Watcher, WatchedPath]:
        joined = self._joined
        if joined is not None:
            return joined
        with self._joining:
            if self.is_closed:
                raise WaiterClosedError(f"{self.path}: this waiter is closed")
            if self._joined is None:
                self._joined = join(self)
            return self._joined

    def _has_news(self, look: WaiterLook) -> bool:
        joined = self._joined
        if self.is_closed or joined is None or self._notified != look.notified:
            return True
        watched = joined[1]
        if look.waiter is not self or look.watched != (watched, watched.version):
            return True
        seen = {each.root: each.version for each in look.stores}
        return any(
            store.changed_at.get(topic, 0) > seen.get(store.root, 0)
            for store in watched.stores
            for topic in self.topics
        )
