"""The first and last offsets of every queue of a store at this moment, and the end of its commitlog.

`survey/log_end.py` says where a commitlog ends, and how far a reader reads; this module puts that together
with the queues.

Clean store: the consume queue's own end, without entries that an earlier recovery has cut. Store in use: the
same, but the newest entries count only if the commitlog agrees with them. Crashed store: the broker's
recovery is done in memory. Entries after the log's end are left out, missing entries are added
(`survey/newest_entries.py`); only damage in the middle does not end the log.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from store_format.bookkeeping.journal import CommitState, StoreState
from store_format.bookkeeping.settings import broker_conf_of
from store_format.commitlog.dledger import committed_stop
from store_format.commitlog.log import CommitLog, expect_end
from store_format.consumequeue.database import QueueDatabase
from store_format.consumequeue.files import (
    FOLDERS,
    QueueKind,
    can_be_queue,
    cut_files,
    place_in_files,
)
from store_format.consumequeue.slices import QueueRange, QueueRanges
from store_format.consumequeue.units import FiledQueue, list_queues, short_queues
from store_format.errors import CorruptStoreError, StoreError, StorePermissionError
from store_format.files import paths
from store_format.files.paths import Refused, refuse, symbolic_link
from store_format.files.read import files_at
from store_format.layouts import OFFSET_MAX
from store_format.metadata.read import Checkpoint, read_checkpoint
from store_format.names import QueueKey, is_light_queue
from store_format.opened.store import Opened
from store_format.survey.database_queues import queues_in_database
from store_format.survey.entry_proofs import LogEntries
from store_format.survey.fates import StoredTopics
from store_format.survey.gone import LostLog, QueueProofs
from store_format.survey.log_end import (
    LogEnd,
    ReadableEnd,
    WrittenEnd,
    knows_more,
    last_unit,
    warn_of_old,
    warn_once,
)
from store_format.survey.newest_entries import completed_queues, judged_queues, recovered_queues, settled

_log = logging.getLogger(__name__)

_HEAD_SIZE = 8  # of a message: never all zero
_SIZES_SAMPLED = 16  # queues whose file sizes show the usual size, if fewer are selected


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The selected queues by (topic, queue id), and what is wrong with others.

    `log` is the commitlog with the files that these queues need. `log_end` is the end of the commitlog if it
    had to be determined: after a crash, during our own commit, or because an earlier recovery has cut whole
    messages after it (`has_remains`); else None. `damaged` are queues whose files cannot be used, with the
    reason: only a scan of the commitlog can read them. `lost` are those of them without files, which
    `Store.snapshot` finds and names in a warning.
    """

    state: StoreState
    log: CommitLog
    queues: Mapping[QueueKey, QueueRange]
    damaged: dict[QueueKey, StoreError]
    log_end: int | None = None
    lost: frozenset[QueueKey] = frozenset()
    has_remains: bool = False

    @staticmethod
    def take(
        opened: Opened,
        log: CommitLog,
        state: StoreState,
        select: Callable[[str], bool],
        refused: Refused = refuse,
    ) -> Snapshot:
        """The selected queues now.

        Costs one listing and a few reads a queue; after a crash also a scan of the log's tail. While a commit
        of ours is under way or broken off, log and queues end at its base. If a commit made progress
        meanwhile, the snapshot is taken again up to what was committed before: no part of a batch is ever
        visible. What may not be read is `refused`, as by `list_queues`. Raises StoreNotFoundError for a lost
        commitlog.
        """
        if log.growing_files is not None:
            return _recovered(opened, log, select, refused, CommitState.read(opened).base)
        before = CommitState.read(opened)
        if state is StoreState.CRASHED and not before.is_own:
            LostLog.refuse(opened, log)
            return _recovered(opened, log, select, refused)
        return before.settle(opened, partial(_taken, opened, log, state, select, refused))

    @staticmethod
    def take_queue(
        opened: Opened,
        log: CommitLog,
        state: StoreState,
        topic: str,
        queue_id: int,
        log_end: int | None = None,
    ) -> QueueRange | None:
        """One queue of a store without a crash, as `Snapshot.take` sees it; None without its directory or
        files.

        With `log_end`, nothing at or after that offset counts. Raises CorruptStoreError if the files cannot
        be used. The name may come from a message: a name that cannot be a directory gives None.
        """
        if not can_be_queue(topic, queue_id):
            return None
        for kind in FOLDERS:
            filed = FiledQueue.of(opened, topic, queue_id, kind)
            _refuse_foreign_name(filed)
            for path in (filed.directory.rpartition("/")[0], filed.directory):
                if paths.is_link(path):
                    raise symbolic_link(path)
            queue = _queue_at(log, filed, log_end, clean=state is StoreState.CLEAN and log_end is None)
            if queue is None:
                continue
            last = _last_queued([queue])
            log = _listed_for(log, last) if state is StoreState.LIVE else log
            log_end = Snapshot.committed_end(opened, log, state) if log_end is None else log_end
            end = None if log_end is not None else WrittenEnd.find_certain(opened, log, state, last)
            astray = _astray(log, [queue], last, end)
            if end is not None and last >= end.offset:
                queue = _queue_at(log, filed, end.offset) or queue
            found, gaps = _settled_queues(
                opened, log, state, {(topic, queue_id): queue}, log_end, end, astray
            )
            for error in gaps.values():
                raise error
            return found[topic, queue_id]
        return None

    @staticmethod
    def take_database(
        opened: Opened, log: CommitLog, state: StoreState, select: Callable[[str], bool]
    ) -> Snapshot | None:
        """The selected queues of a store whose entries RocksDB keeps; None of another store.

        Costs one look at the database, and a walk over the log from the database's checkpoint on. Raises
        UnsupportedFormatError without rocksdict, and CorruptStoreError for a database that cannot be read.
        """
        database = QueueDatabase.read(opened)
        if database is None:
            return None
        log = _listed_for(log, max((end.physical_offset for end in database.ends.values()), default=-1))
        log_end = Snapshot.find_log_end(opened, log, state)
        queues, damaged = queues_in_database(opened, log, state, database, select, log_end)
        return Snapshot(state, log, queues, damaged, log_end)

    @staticmethod
    def find_log_end(opened: Opened, log: CommitLog, state: StoreState) -> int | None:
        """The physical offset at which a reader stops; None where the log ends with its last message.

        An offset after a crash, at the base of a commit that is under way or was broken off, and where
        remains of a recovery follow: whole messages, or a part of one. `Snapshot.take` finds the same end,
        with the queues. Raises StoreNotFoundError for a lost commitlog.
        """
        before = CommitState.read(opened)
        if log.growing_files is not None:
            readable = ReadableEnd.after_crash(opened, log)
            return readable.offset if before.base is None else min(readable.offset, before.base)
        LostLog.refuse(opened, log)
        if state is StoreState.CRASHED and not before.is_own:
            readable = ReadableEnd.after_crash(opened, log)
            warn_once(opened, log.cache, readable)
            return readable.offset
        return before.settle(
            opened, lambda base: _end_before_remains(opened, log, state) if base is None else base
        )

    @staticmethod
    def ends(opened: Opened, log: CommitLog, state: StoreState) -> tuple[LogEnd | None, ReadableEnd | None]:
        """The log's ends after a crash; the readable one before messages that an earlier recovery has cut."""
        if state is StoreState.CRASHED:
            checkpoint = None
            with suppress(CorruptStoreError):  # then the end without a checkpoint: `verify` reports the file
                checkpoint = read_checkpoint(f"{opened.path}/checkpoint")
            log_end = LogEnd.after_crash(log, checkpoint or Checkpoint())
            return log_end, ReadableEnd.find(opened, log, log_end)
        end = WrittenEnd.find_certain(opened, log, state)
        if end is not None and end.remains:
            return None, ReadableEnd(end.offset, end.offset, remains=end.remains)
        torn = Snapshot.torn_end(opened, log) if state is StoreState.CLEAN else None
        return None, None if torn is None else ReadableEnd(torn, torn)

    @staticmethod
    def committed_end(opened: Opened, log: CommitLog, state: StoreState) -> int | None:
        """Where the entries of a ledger begin that its group has not committed; None without any. Warns once.

        Another leader may replace them, and a broker has put them into no queue. Only a stop in order leaves
        a checkpoint that shows it; after a kill, all whole entries count.
        """
        for ledger in opened.dledger_logs if log.has_heads and state is StoreState.CLEAN else ():
            stop = committed_stop(ledger, log.files, log.cache)
            queues = [] if stop is None else QueueProofs(opened, log).queues(lambda _: None)
            if stop is None or any(queue.last_physical_offset >= stop for queue in queues):
                continue
            if (key := (Snapshot.committed_end, ledger, stop)) not in log.cache.said:
                log.cache.said.add(key)
                text = "%s: the entries from physical offset %d on are not committed: they are not read"
                _log.warning(text, ledger, stop)
            return stop
        return None

    @staticmethod
    def judged(opened: Opened, log: CommitLog, queue: QueueRange, stop: int) -> tuple[QueueRange, bool]:
        """The queue of a log that ends at `stop` without old entries, and whether its newest entry is wrong
        and not old.
        """
        judged, wrong = judged_queues(opened, log, {(queue.topic, queue.queue_id): queue}, lambda: stop)
        return next(iter(judged.values())), bool(wrong)

    @staticmethod
    def torn_end(opened: Opened, log: CommitLog) -> int | None:
        """The end of the log of a store that was shut down cleanly, if a part of a message follows.

        A crash left it, and a recovery has cut it: no queue, and no other file of the store, knows of a
        message there. None otherwise.
        """
        try:
            last = last_unit(log)
            if last is None or log.is_unwritten(last.stop) or knows_more(opened, last):
                return None
            queues = QueueProofs(opened, log).queues()
        except (StoreError, OSError):  # a reader of the file raises the error
            return None
        is_known = not queues or max(queue.last_physical_offset for queue in queues) >= last.stop
        return None if is_known else last.stop


def _taken(
    opened: Opened,
    log: CommitLog,
    state: StoreState,
    select: Callable[[str], bool],
    refused: Refused,
    log_end: int | None,
) -> Snapshot:
    before, damaged = _queues_on_disk(
        opened, log, select, refused, log_end, clean=state is StoreState.CLEAN and log_end is None
    )
    last = int(before.columns["last_physical_offset"].max(initial=-1))
    _refuse_lost_log(opened, log, last)
    log = _listed_for(log, last)
    committed = None if log_end is not None else Snapshot.committed_end(opened, log, state)
    if committed is not None:
        return _taken(opened, log, state, select, refused, committed)
    end = None if log_end is not None else WrittenEnd.find_probable(opened, log, state, last)
    found = before
    if end is not None and (end.remains or last >= end.offset) and not end.is_certain:
        end = None
    if end is not None and last >= end.offset:
        found, also_damaged = _queues_on_disk(opened, log, select, refused, end.offset)
        damaged |= also_damaged
        found = found.without(damaged)
    astray = _astray(log, before.values(), last, end)
    queues, gaps = _settled_queues(opened, log, state, found, log_end, end, astray)
    damaged |= gaps
    if end is None:
        return Snapshot(state, log, queues, damaged, log_end)
    old = 0
    if queues is not before:
        old = sum(
            max(before[key].max_offset - queue.max_offset, 0)
            for key, queue in queues.items()
            if key in before and not queue.extra
        )
    if end.remains or (old and state is StoreState.CLEAN and end.is_certain):
        warn_of_old(opened, log.cache, end, old)
    return Snapshot(
        state, log, queues, damaged, end.offset if end.remains else None, has_remains=bool(end.remains)
    )


def _refuse_lost_log(opened: Opened, log: CommitLog, queued: int) -> None:
    """`LostLog.refuse`, at the cost of a read that the search for the log's end repeats: a log with a byte
    is not lost. On object storage that read is a request.
    """
    with suppress(StoreError, OSError):  # who needs the file raises the error
        expect_end(log, queued)
        if log.file_at(queued) is not None and any(log.read(queued, _HEAD_SIZE)):
            return
    LostLog.refuse(opened, log)


def _last_queued(queues: Iterable[QueueRange]) -> int:
    """The greatest physical offset that the queues point to; -1 without any."""
    return max(
        (queue.bounds.last_physical_offset for queue in queues if queue.bounds is not None), default=-1
    )


def _astray(log: CommitLog, queues: Iterable[QueueRange], last: int, end: WrittenEnd | None) -> set[QueueKey]:
    """The queues whose newest entry leads behind the file that follows the log's last one: it is wrong, while
    one that leads into that file may be of a message that a recovery has cut. It is wrong, too, if a change
    of one bit leads to its message before the `end`. `last` is `_last_queued` of the queues.
    """
    stop = log.stop + log.file_size if log.files else OFFSET_MAX
    written = stop if end is None else end.offset
    if last < written:
        return set()
    return {
        key
        for queue in queues
        for key in [(queue.topic, queue.queue_id)]
        if queue.bounds is not None
        and (place := queue.bounds.last_physical_offset) >= written
        and (
            place >= stop
            or LogEntries(log).is_flipped(key, queue.max_offset - 1, place, log.min_offset, written)
        )
    }


def _settled_queues(
    opened: Opened,
    log: CommitLog,
    state: StoreState,
    queues: Mapping[QueueKey, QueueRange],
    log_end: int | None,
    end: WrittenEnd | None,
    astray: set[QueueKey],
) -> tuple[Mapping[QueueKey, QueueRange], dict[QueueKey, StoreError]]:
    """The queues without newest entries that do not count yet, or no longer, and with those that their files
    lack; and the queues that cannot be used. `log_end` is the base of a commit, whose messages do not count.
    Only what depends on it asks whether the `end` is certain: on object storage that is a request.
    """
    is_live = state is StoreState.LIVE
    if is_live:
        looked = ((key, queue, settled(queue, log)) for key, queue in queues.items())
        queues = QueueRanges.of(queues).changed({key: now for key, queue, now in looked if now is not queue})

    def stop() -> int:
        if log_end is not None:
            return log_end
        return end.offset if end is not None and end.is_certain else log.stop

    try:
        queues, wrong = judged_queues(opened, log, queues, stop, is_live=is_live)
        if is_live:
            return queues, {}
        return completed_queues(
            opened,
            log,
            queues,
            wrong,
            stop,
            end,
            lambda: broker_conf_of(opened).message_delay_levels_ms,
            astray,
        )
    except StorePermissionError:
        return queues, {}  # a read of its messages raises the error; views do not need the file


# ---- what the files of queues say --------------------------------------------------------------------------


def _queue_at(
    log: CommitLog, filed: FiledQueue, log_end: int | None, *, clean: bool = False
) -> QueueRange | None:
    """The queue of a directory; None without files."""
    bounds = filed.bounds(log.min_offset, commit_log_stop=log_end, scan=log_end is not None, clean=clean)
    if bounds is None:
        return None
    queue = QueueRange(*filed.key, bounds.min_offset, bounds.max_offset, bounds, kind=filed.kind)
    first = LogEntries(log).first_live(queue)
    return queue if first == queue.min_offset else queue._replace(min_offset=first)  # of 10,000 queues


def _queues_on_disk(
    opened: Opened,
    log: CommitLog,
    select: Callable[[str], bool],
    refused: Refused,
    log_end: int | None = None,
    *,
    clean: bool = False,
) -> tuple[QueueRanges, dict[QueueKey, StoreError]]:
    """What the consume queue files say, and which of them cannot be used.

    With `log_end`, nothing at or after that offset counts.
    """
    others: dict[int, QueueRange] = {}
    damaged: dict[QueueKey, StoreError] = {}

    def look(number: int) -> QueueRange | StoreError:
        filed = every[number]
        try:
            _refuse_foreign_name(filed)
            queue = _queue_at(log, filed, log_end, clean=clean)
        except (CorruptStoreError, StorePermissionError) as error:
            return error
        return queue or QueueRange(*filed.key, 0, 0, None, kind=filed.kind)

    every = list(list_queues(opened, select, refused))
    few = every if not opened.is_remote else ()
    short = short_queues(few, log.min_offset, commit_log_stop=log_end, clean=clean)  # their first messages …
    left = np.delete(np.arange(len(every)), short[:, 0]).tolist()  # … are in the log
    for number, queue in opened.files.look_at_each(left, look):
        if isinstance(queue, QueueRange):
            others[number] = queue
        elif isinstance(queue, CorruptStoreError):
            damaged[every[number].key] = queue
        else:
            refused(queue)
    queues = QueueRanges.of_look(every, short, log.min_offset, others)
    damaged |= _cut_queues(opened, queues)
    return queues.without(damaged), damaged


def _refuse_foreign_name(queue: FiledQueue) -> None:
    try:
        queue.topic.encode()
    except UnicodeEncodeError as error:
        shown = os.fsencode(queue.directory).decode(errors="backslashreplace")
        raise CorruptStoreError(shown, 0, "a topic's name in UTF-8", "other bytes") from error


def _cut_queues(opened: Opened, queues: QueueRanges) -> dict[QueueKey, StoreError]:
    """Queues whose files are shorter than those of the other queues."""
    cut: dict[QueueKey, StoreError] = {}
    sizes = queues.columns["file_size"]
    if len(sizes) >= _SIZES_SAMPLED and not queues.others and sizes.min() == sizes.max():
        return cut  # of 10,000 queues
    for kind in FOLDERS:
        mine = {
            key: bounds
            for key, queue in queues.items()
            if (bounds := queue.bounds) is not None and bounds.kind == kind
        }
        others = list(_sampled_sizes(opened, kind)) if 0 < len(mine) < _SIZES_SAMPLED else []
        if len({bounds.file_size for bounds in mine.values()}.union(others)) > 1:  # of few stores
            files = {
                key: (place_in_files(each.directory, each.file_size, each.first_file)[0], each.file_size)
                for key, each in mine.items()
            }
            cut |= cut_files(files, others)
    return cut


def _sampled_sizes(opened: Opened, kind: QueueKind) -> Iterator[int]:
    """The file sizes of one queue of each of a few topics. A sample does not need a topic that is refused."""
    topics = opened.files.directories(f"{opened.path}/{FOLDERS[kind]}", refused=lambda error: None)
    for _, topic_path in topics[:_SIZES_SAMPLED]:
        with suppress(CorruptStoreError, StorePermissionError):  # a read of that topic raises the error
            for _, path in files_at(topic_path).directories(topic_path)[:1]:
                yield from {file.size for file in files_at(path).store_files(path)}


# ---- after a crash -----------------------------------------------------------------------------------------


def _recovered(
    opened: Opened,
    log: CommitLog,
    select: Callable[[str], bool],
    refused: Refused,
    log_end: int | None = None,
) -> Snapshot:
    """The queues as the broker's recovery would leave them (CommitLog.recoverAbnormally), in memory.

    With `log_end`, nothing at or after that offset counts.
    """
    end = LogEnd.after_crash(log, read_checkpoint(f"{opened.path}/checkpoint") or Checkpoint())
    readable = ReadableEnd.find(opened, log, end)
    if log_end is not None and log_end < readable.offset:
        readable = replace(readable, offset=log_end)
    _log.info(
        "%s was left by a crash: scanned its commitlog from %d, the log ends at %d",
        opened.path,
        end.scan_start,
        readable.offset,
    )
    warn_once(opened, log.cache, readable)
    found, damaged = _queues_on_disk(opened, log, select, refused, readable.offset)
    levels, deleted = broker_conf_of(opened).message_delay_levels_ms, StoredTopics(opened).deleted_until()
    has_light = StoredTopics(opened).has_light_queues

    def chooses(topic: str) -> bool:
        return select(topic) and not deleted(topic) and (has_light or not is_light_queue(topic))

    queues, damaged = recovered_queues(opened, log, found, damaged, end, readable, chooses, levels)
    return Snapshot(StoreState.CRASHED, log, queues, damaged, readable.offset)


# ---- while a broker writes ---------------------------------------------------------------------------------


def _listed_for(log: CommitLog, last: int) -> CommitLog:
    """The log, listed again if the `last` physical offset in queues is after its files: those were created
    since.

    Otherwise a part of a batch would count as not yet written.
    """
    return log.relisted() if last >= log.stop else log


# ---- the end of the log alone ------------------------------------------------------------------------------


def _end_before_remains(opened: Opened, log: CommitLog, state: StoreState) -> int | None:
    committed = Snapshot.committed_end(opened, log, state)
    if committed is not None:
        return committed
    end = WrittenEnd.find_certain(opened, log, state)
    if end is None or not end.remains:
        is_whole = end is not None and log.is_unwritten(end.offset)
        return None if is_whole or state is not StoreState.CLEAN else Snapshot.torn_end(opened, log)
    warn_of_old(opened, log.cache, end, 0)
    return end.offset
