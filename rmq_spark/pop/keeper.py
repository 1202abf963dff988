"""The thread that serves all consumers of a process about once a second, whether they receive or not.

It mirrors offsets, looks for brokers, and stores messages again whose invisible time has passed. It ends with
the last consumer.
"""

from __future__ import annotations

import logging
import os
import threading
import weakref
from typing import Protocol

_log = logging.getLogger(__name__)

_SECONDS = 1.0


class KeptConsumer(Protocol):
    """A consumer whose `keep` the keeper calls."""

    def keep(self) -> None: ...


class _Keeper:
    def __init__(self) -> None:
        self._consumers: weakref.WeakSet[KeptConsumer] = weakref.WeakSet()
        self._lock = threading.Lock()
        self._end = threading.Event()
        self._thread: threading.Thread | None = None
        self._failing: weakref.WeakKeyDictionary[KeptConsumer, str] = weakref.WeakKeyDictionary()

    def add(self, consumer: KeptConsumer) -> None:
        with self._lock:
            self._consumers.add(consumer)
            if self._thread is None:
                self._end = threading.Event()
                self._thread = threading.Thread(
                    target=self._run, args=(self._end,), name="rmqlog-pop-keeper", daemon=True
                )
                self._thread.start()

    def remove(self, consumer: KeptConsumer) -> None:
        with self._lock:
            self._consumers.discard(consumer)
            if not self._consumers and self._thread is not None:
                self._end.set()
                self._thread = None

    def _run(self, end: threading.Event) -> None:
        while not end.wait(_SECONDS):
            with self._lock:
                consumers = list(self._consumers)
                if not consumers and not end.is_set():  # the last one was never closed
                    self._thread = None
                    return
            for consumer in consumers:
                self._keep(consumer)
            del consumers

    def _keep(self, consumer: KeptConsumer) -> None:
        try:
            consumer.keep()
            self._failing.pop(consumer, None)
        except Exception as error:
            # The thread must go on for the other consumers; this one raises the error in its next receive,
            # or the next round succeeds.
            if self._failing.get(consumer) != str(error):
                self._failing[consumer] = str(error)
                _log.warning("pop: %s", error)


_keeper = _Keeper()


def begin_keeping(consumer: KeptConsumer) -> None:
    """Calls `consumer.keep()` about once a second from now on, as long as the consumer lives."""
    _keeper.add(consumer)


def end_keeping(consumer: KeptConsumer) -> None:
    """Ends that."""
    _keeper.remove(consumer)


def _forget_after_fork() -> None:
    """A forked child has no such thread, and its consumers begin again."""
    global _keeper
    _keeper = _Keeper()


os.register_at_fork(after_in_child=_forget_after_fork)
