"""One call at a time in a thread behind the caller, in order: what waits for the system overlaps with what
the caller computes.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType

__all__ = ["Behind"]


class Behind:
    """A context manager. `call` waits for the call before it, and raises what that one raised; so does the
    end of the block.

    So at most one call is under way, none after a failure, and none behind the block, however it is left.
    Little work is done at once instead (`is_little`): a thread costs half a millisecond.
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
