"""The calls of all threads that are under way: who takes something away waits until nobody uses it."""

from __future__ import annotations

import threading
from types import TracebackType


class Calls:
    """Use it in `with` around a call. A thread may have several calls under way."""

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
