"""Where a follower begins to read the commitlog: shortly before its end, at the start of a message.

A broker writes the commitlog first and its consume queues later, so that the newest messages may have no
queue entry yet. The follower reads them from the commitlog.
"""

from __future__ import annotations

from itertools import islice

from store_format.bookkeeping.journal import StoreState, committed_end, read_commit_state
from store_format.commitlog.log import CommitLog
from store_format.consumequeue.files import FOLDERS, list_queues
from store_format.consumequeue.slices import QueueRange, read_slice, split_at
from store_format.errors import StoreError
from store_format.files.read import entry_names
from store_format.follow.fingerprint import Signs
from store_format.follow.log_tail import near_end, read_head
from store_format.read.snapshot import take_queue
from store_format.read.store import Store

WORD_SIZE = 8  # total size and magic code of a message; all zeros where none was written
_MARGIN_SIZE = 16 << 20  # bytes of the log for which a broker may not have written queue entries yet
_PLACES_TRIED = (
    3  # the place that a queue names, and the starts of two files: the newest file may be nearly empty
)
_QUEUES_TRIED = 8


def find_start(store: Store, log: CommitLog, signs: Signs, known: int | None) -> tuple[int, int]:
    """Returns (start, end): the physical offset to read from, and the log's end.

    A message begins at `start`, at least 16 MiB before the end if the log is that long. `known` is the end
    that an earlier look found, None without one.
    """
    begun = [file.start for file in log.files if any(read_head(log, file.start)[:WORD_SIZE])]
    if not begun:
        return log.min_offset, log.min_offset
    if known is not None and known >= begun[-2:][0] and log.file_at(known) is not None:
        places = [known]
    else:
        places = sorted({*begun, _place_of_queue(store, log, signs.state)} - {-1})
    found = _start_before_end(log, places, signs.commit.base)
    if read_commit_state(store.path) == signs.commit:
        return found
    return _start_before_end(log, places, committed_end(store.path))


def _start_before_end(log: CommitLog, places: list[int], stop: int | None) -> tuple[int, int]:
    """Returns (start, end) of `near_end`, walking from the last place that lies far enough before the end.

    `places` are starts of messages in ascending order. Bytes at and behind `stop` belong to a
    commit that is not complete.
    """
    before = [place for place in places if stop is None or place <= stop][-_PLACES_TRIED:] or places[:1]
    for start in reversed(before):
        near, end = near_end(log, start, stop, _MARGIN_SIZE)
        if end - start >= _MARGIN_SIZE:
            break
    return near, end


def _place_of_queue(store: Store, log: CommitLog, state: StoreState) -> int:
    """The start of a message about 16 MiB before the newest one of a few queues; -1 where they name none.

    It saves a walk through a whole file: half a second for two million messages.
    """
    newest = _newest_queue(store, log, state)
    if newest is None or newest.is_batch:
        return -1
    try:
        _, behind = split_at(
            newest.piece(newest.min_offset, newest.max_offset), [_last(newest) - _MARGIN_SIZE]
        )
        _, units = read_slice(newest.piece(max(behind.start - 1, newest.min_offset), behind.start))
        place = int(units[0]["physical_offset"]) if len(units) else -1
        return place if log.has_message_at(place) else -1
    except StoreError:  # retention took a file meanwhile
        return -1


def _newest_queue(store: Store, log: CommitLog, state: StoreState) -> QueueRange | None:
    names = sorted(entry_names(f"{store.path}/{FOLDERS['simple']}", missing_ok=True))
    some = frozenset(names[:: max(len(names) // _QUEUES_TRIED, 1)])
    newest: QueueRange | None = None
    for topic, queue_id, _, _ in islice(
        list_queues(store.path, some.__contains__, lambda error: None), _QUEUES_TRIED
    ):
        try:
            queue = take_queue(store.path, log, state, topic, queue_id)
        except StoreError:
            continue  # a read of that queue raises the error
        if queue is not None and queue.bounds is not None and _last(queue) > _last(newest):
            newest = queue
    return newest


def _last(queue: QueueRange | None) -> int:
    return -1 if queue is None or queue.bounds is None else queue.bounds.last_physical_offset
