"""Runs calls in order in one background thread, so that waiting for the disk overlaps with computing."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType


class Behind:
    """A context manager. `call`, and the end of the block, wait for the previous call and raise its error.

    At most one call runs at a time, no call starts after a failure, and none outlives the block. With
    `is_little` calls run in the caller's thread: to start a thread takes half a millisecond.
    """

    def __init__(self, *, is_little: bool = False) -> None:
        self._thread = None if is_little else ThreadPoolExecutor(1, thread_name_prefix="rmqlog-behind")
        self._last: Future[None] | None = None

    def call(self, function: Callable[[], None]) -> None:
        if self._thread is None:
            function()
            return
        self._wait()
        self._last = self._thread.submit(function)

    def _wait(self) -> None:
        last, self._last = self._last, None
        if last is not None:
            last.result()

    def __enter__(self) -> Behind:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None:
                self._wait()
        finally:
            if self._thread is not None:
                self._thread.shutdown()
