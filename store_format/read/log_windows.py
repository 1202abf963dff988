"""The queues that the first and the last bytes of a commitlog show: a walk over all of a large log takes too
long for a question that every open store asks.
"""

from __future__ import annotations

from typing import Protocol

from store_format.bookkeeping.journal import committed_end, read_commit_state
from store_format.bookkeeping.state import StoreState
from store_format.commitlog.log import CommitLog
from store_format.files.read import FileCache
from store_format.names import QueueKey
from store_format.read.log_reader import LogQueue, survey
from store_format.read.snapshot import Snapshot
from store_format.read.written_end import written_stop


class OpenStore(Protocol):
    """What is needed of an open `Store`, which imports this module."""

    @property
    def path(self) -> str: ...
    @property
    def log(self) -> CommitLog: ...
    @property
    def commit_log_paths(self) -> tuple[str, ...]: ...
    @property
    def files(self) -> FileCache: ...
    @property
    def state(self) -> StoreState: ...


def queues_in_windows(
    store: OpenStore, taken: Snapshot, topics: frozenset[str], window: int | None
) -> tuple[dict[QueueKey, LogQueue], bool]:
    """The queues of the topics as the log shows them, and whether all of it was looked at. `window` None: all
    of it.
    """
    before = read_commit_state(store.path)
    stop = taken.log_end if before.base is None else before.base
    found = _queues_in(store, taken, topics, window, stop)
    if read_commit_state(store.path) == before:
        return found
    # a commit went on: what was complete before
    return _queues_in(store, taken, topics, window, committed_end(store.path))


def _queues_in(
    store: OpenStore, taken: Snapshot, topics: frozenset[str], window: int | None, stop: int | None
) -> tuple[dict[QueueKey, LogQueue], bool]:
    log = CommitLog.open(store.commit_log_paths, store.files)
    is_live = taken.state is StoreState.LIVE
    high = stop if stop is not None else log.stop
    limit = high if window is None else min(high, log.min_offset + window)
    head = survey(log, topics.__contains__, stop=limit, is_live=is_live)
    end = head.cuts[-1]
    if window is None or _ends(log, end, limit, high):
        return head.queues, True
    newest = min(written_stop(log), high)
    start = max(end, newest - window)
    limit = min(high, newest + window)
    tail = survey(log, topics.__contains__, start=start, stop=limit, is_live=is_live)
    for key, queue in tail.queues.items():
        head.queues.setdefault(key, LogQueue(*key)).join(queue)
    return head.queues, start == end and _ends(log, tail.cuts[-1], limit, high)


def _ends(log: CommitLog, end: int, limit: int, high: int) -> bool:
    """Whether a walk up to `limit`, which met its last message before `end`, has seen all of a log that ends
    before `high`.
    """
    file = log.file_at(end)
    return limit >= high or (file is not None and not any(log.view(file).read(end - file.start, 8)))
