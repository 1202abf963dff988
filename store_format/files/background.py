"""Runs calls in order in one background thread, so that waiting for the disk overlaps with computing."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType

AHEAD = 2  # calls that run or wait: with one, each side waits for the other at every call


class Behind:
    """A context manager. `call` returns while at most AHEAD calls run or wait, and raises the error of an
    earlier one; the end of the block waits for all and raises, too.

    At most one call runs at a time, no call starts after a failure of a call or of the block, and none
    outlives the block. With `is_little` calls run in the caller's thread: to start a thread takes half a
    millisecond.
    """

    def __init__(self, *, is_little: bool = False) -> None:
        self._thread = None if is_little else ThreadPoolExecutor(1, thread_name_prefix="rmqlog-behind")
        self._calls: deque[Future[None]] = deque()
        self._has_failed = False

    def call(self, function: Callable[[], None]) -> None:
        if self._thread is None:
            function()
            return
        self._wait(AHEAD - 1)
        self._calls.append(self._thread.submit(self._run, function))

    def _run(self, function: Callable[[], None]) -> None:
        if self._has_failed:
            return
        try:
            function()
        except BaseException:
            self._has_failed = True
            raise

    def _wait(self, left: int) -> None:
        """Waits until at most `left` calls are not done. Raises the error of a call that is done."""
        while self._calls and (len(self._calls) > left or self._calls[0].done()):
            self._calls.popleft().result()

    def __enter__(self) -> Behind:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None:
                self._wait(0)
            else:
                self._has_failed = True
        finally:
            if self._thread is not None:
                self._thread.shutdown()
