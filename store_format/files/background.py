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
from itertools import islice
from threading import Thread

AHEAD = 2  # calls that run or wait: with one, each side waits for the other at every call
_HELD_MAX = 256  # descriptors; a process often may have 1024


class BackgroundCalls:
    """A context manager that runs calls in a background thread.

    `call` returns while at most AHEAD calls run or wait, and raises the error of an earlier one; the end of
    the block waits for all and raises, too.

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


def hold(paths: Iterable[str]) -> list[int]:
    """Opens files before the caller removes them. Leaves out files that cannot be opened, and too many."""
    descriptors = []
    for path in islice(paths, _HELD_MAX):
        try:
            descriptors.append(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK))
        except OSError:
            continue
    return descriptors


def close_named(descriptors: list[int]) -> list[int]:
    """Closes the files that still have a name, and returns the others.

    NFS gives an open file another name instead of removing it, and its directory cannot be removed before.
    """
    removed = []
    for descriptor in descriptors:
        if os.fstat(descriptor).st_nlink:
            os.close(descriptor)
        else:
            removed.append(descriptor)
    return removed


def free(descriptors: list[int]) -> Thread | None:
    """Closes removed files in a thread, and returns the thread; None if there is nothing for a thread to do.

    Call this last: until the thread is done, ext4 lets a removal of a directory wait.
    """
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
