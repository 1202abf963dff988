"""Leaves waiting for the disk to a background thread: calls in their order, so that it overlaps with
computing, and the pages and blocks of large removed files.

Linux frees these when the last descriptor of a removed file is closed: 70 ms for 256 MiB (ext4, Linux 6.18).
The name is gone at once, so no process sees a difference. If this process is killed, Linux closes the
descriptors.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from itertools import islice
from threading import Thread
from typing import ClassVar

_HELD_MAX = 256  # descriptors; a process often may have 1024


class BackgroundCalls:
    """A context manager that runs calls in a background thread.

    `call` returns while at most AHEAD calls run or wait, and raises the error of an earlier one; the end of
    the block waits for all and raises, too.

    At most one call runs at a time, no call starts after a failure of a call or of the block, and none
    outlives the block. With `is_little` calls run in the caller's thread: to start a thread takes half a
    millisecond.
    """

    AHEAD: ClassVar = 2  # calls that run or wait: with one, each side waits for the other at every call

    def __init__(self, *, is_little: bool = False) -> None:
        self._thread = None if is_little else ThreadPoolExecutor(1, thread_name_prefix="rmqlog-behind")
        self._calls: deque[Future[None]] = deque()
        self._has_failed = False

    def call(self, function: Callable[[], None]) -> None:
        if self._thread is None:
            function()
            return
        self._wait(self.AHEAD - 1)
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

    def __enter__(self) -> BackgroundCalls:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            if error is None:
                self._wait(0)
            else:
                self._has_failed = True
        finally:
            if self._thread is not None:
                self._thread.shutdown()


# ---- removed files -----------------------------------------------------------------------------------------


class RemovedFiles:
    """Large files that are held open while their names are removed, so that a thread can free them later."""

    def __init__(self) -> None:
        self.descriptors: list[int] = []

    def hold(self, paths: Iterable[str]) -> None:
        """Opens files before the caller removes them, but not too many, nor those that cannot be opened."""
        for path in islice(paths, _HELD_MAX):
            with suppress(OSError):
                flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
                self.descriptors.append(os.open(path, flags))

    def close_named(self) -> None:
        """Closes the files that still have a name.

        NFS gives an open file another name instead of removing it, and its directory cannot be removed
        before.
        """
        named = [each for each in self.descriptors if os.fstat(each).st_nlink]
        _close(named)
        self.descriptors = [each for each in self.descriptors if each not in named]

    def free(self) -> Thread | None:
        """Closes removed files in a thread, and returns the thread; None if there is nothing to do for it.

        Call this last: until the thread is done, ext4 lets a removal of a directory wait.
        """
        descriptors, self.descriptors = self.descriptors, []
        if not descriptors:
            return None
        thread = Thread(target=_close, args=(descriptors,), name="rmqlog-freeing", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # the interpreter is ending
            _close(descriptors)
            return None
        return thread


def _close(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
