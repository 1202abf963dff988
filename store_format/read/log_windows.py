"""The queues that the first and the last bytes of a commitlog show.

Every open store asks which queues have lost their files; a walk over a whole large log would take too long
for that.
"""

from __future__ import annotations

from typing import Protocol

from store_format.bookkeeping.journal import committed_end, read_commit_state
from store_format.bookkeeping.state import StoreState
from store_format.commitlog.log import CommitLog
from store_format.files.view import FileCache
from store_format.names import QueueKey
from store_format.read.log_reader import survey
from store_format.read.snapshot import Snapshot
from store_format.survey.fates import Unfiled
from store_format.survey.log_queue import LogQueue
from store_format.survey.written_end import written_stop


class OpenStore(Protocol):
    """The part of an open `Store` that is needed here; `Store` itself imports this module."""

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
    @property
    def unfiled_queues(self) -> Unfiled | None: ...


def queues_in_windows(
    store: OpenStore, taken: Snapshot, topics: frozenset[str], window: int | None
) -> tuple[dict[QueueKey, LogQueue], bool]:
    """The queues of the topics as the log shows them, and whether the whole log was read.

    `window` is the number of bytes read at each end; None reads the whole log.
    """
    before = read_commit_state(store.path)
    stop = taken.log_end if before.base is None else before.base
    found = _queues_in(store, taken, topics, window, stop)
    if read_commit_state(store.path) == before:
        return found
    # a commit made progress meanwhile: only what was complete before
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
    if window is None or _reaches_end(log, end, limit, high):
        return head.queues, True
    newest = min(written_stop(log), high)
    start = max(end, newest - window)
    limit = min(high, newest + window)
    tail = survey(log, topics.__contains__, start=start, stop=limit, is_live=is_live)
    for key, queue in tail.queues.items():
        head.queues.setdefault(key, LogQueue(*key)).join(queue)
    return head.queues, start == end and _reaches_end(log, tail.cuts[-1], limit, high)


def _reaches_end(log: CommitLog, end: int, limit: int, high: int) -> bool:
    """Whether a walk has seen all of a log.

    The walk went up to `limit`, its last message ends at `end`; the log ends at `high` or before.
    """
    file = log.file_at(end)
    return limit >= high or (file is not None and not any(log.view(file).read(end - file.start, 8)))
