"""Where a commit appends: the end of a log without a crash, and the next offset of each queue.

The ledger has the end of our last commit, so that the next commit need not scan the log. A store that a
broker shut down cleanly is scanned as the broker would scan it (CommitLog.recoverNormally).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from store_format.bookkeeping.ledger import Ledger, LedgerEntry
from store_format.commit.log_shortage import cut_queues, refuse_loss
from store_format.commit.queue_rebuild import LastUnit, Rebuilding, rebuild_lost_queues
from store_format.commitlog.log import CommitLog
from store_format.commitlog.write import LogFiles
from store_format.consumequeue.bounds import queue_bounds
from store_format.consumequeue.files import QueueBounds
from store_format.consumequeue.listing import queue_directory
from store_format.consumequeue.slices import QueueRange
from store_format.errors import CorruptStoreError
from store_format.files.read import offset_file_name
from store_format.files.write import FileWrites
from store_format.index.file import IndexGeometry
from store_format.layouts import CQ_UNIT
from store_format.names import QueueKey
from store_format.read.stale_entries import without_stale
from store_format.survey.broker_end import LogEnd, end_after_stop, scan_to_end
from store_format.survey.gone import queues_in_log
from store_format.survey.written_end import is_unwritten


class WriterEnd(NamedTuple):
    """The physical offset of the next unit, and of the last unit the offset and the store time (ms).

    Both are -1 in a log without a unit. `is_ours`: a commit wrote the last unit, with its queue entry.
    """

    offset: int
    last_timestamp: int
    last_offset: int = -1
    is_ours: bool = False

    @property
    def last_unit(self) -> LastUnit:
        return LastUnit(self.offset, self.last_offset, self.is_ours)


def find_writer_end(
    root: str,
    log: CommitLog,
    ledger: Ledger,
    log_files: LogFiles,
    geometry: IndexGeometry | None,
    files: FileWrites,
    *,
    cut_after_damage: bool = False,
) -> WriterEnd:
    """The end of a log without a crash. Zeroes remains of an older recovery behind the end.

    Removes queue and index entries that point behind the end; index entries stay if `geometry` is None.
    Raises what `refuse_loss` raises, unless `cut_after_damage` gives up the
    messages behind damage.
    """
    for file in log.files:
        if file.start % log.file_size:
            raise CorruptStoreError(
                file.path, 0, f"a name that is a multiple of the file size {log.file_size}", str(file.start)
            )
    ours = _last_commit(log, ledger)
    if ours is not None and is_unwritten(log, ours.stop):
        timestamp = log.store_timestamp_at(ours.last_offset)
        return WriterEnd(ours.stop, timestamp, ours.last_offset, is_ours=True)
    queues = queues_in_log(root, log)
    end = end_of_clean_log(log, ledger, queues)
    if not cut_after_damage:
        refuse_loss(root, log, end, queues, is_crashed=False)
    cut_queues(root, log, end, queues, geometry, files)
    log_files.clear_behind(end.offset)
    return WriterEnd(end.offset, log.store_timestamp_at(end.last_unit_offset), end.last_unit_offset)


def _last_commit(log: CommitLog, ledger: Ledger) -> LedgerEntry | None:
    """The last commit in the ledger; None if the log does not have it as it was written."""
    ours = ledger.last
    if ours is None or not ours.last_size or ours.damage(log) is not None:
        return None
    return ours if log.file_at(ours.last_offset) else None


def end_of_clean_log(log: CommitLog, ledger: Ledger, queues: Sequence[QueueBounds]) -> LogEnd:
    """The end of a log without a crash, found by a scan from the last commit, else from the queues' end."""
    ours = _last_commit(log, ledger)
    if ours is None:
        # ConsumeQueueStore.getMaxPhyOffsetInConsumeQueue; -1 without queues
        known = max(
            (queue.last_physical_offset + queue.last_size for queue in queues if queue.kind == "simple"),
            default=-1,
        )
        return end_after_stop(log, known)
    end = scan_to_end(log, ours.stop, ours.stop)
    return replace(end, last_unit_offset=ours.last_offset) if end.last_unit_offset < 0 else end


def queue_bases(
    root: str,
    log: CommitLog,
    end: WriterEnd,
    queues: Sequence[QueueKey],
    rebuilding: Rebuilding,
    files: FileWrites,
) -> list[int]:
    """The next offset of each queue. Completes queues that lack messages of the log first.

    Zeroes stale units behind a queue's end: they would count again when the log has grown past them.
    """
    found = _all_bounds(root, log, end.offset, queues)
    if rebuild_lost_queues(root, log, end.last_unit, found, rebuilding, files):
        found = _all_bounds(root, log, end.offset, queues)
    return [0 if bounds is None else _cleared(bounds, files) for bounds in found.values()]


def _all_bounds(
    root: str, log: CommitLog, end: int, queues: Sequence[QueueKey]
) -> dict[QueueKey, QueueBounds | None]:
    found: dict[QueueKey, QueueBounds | None] = {}
    for topic, queue_id in queues:
        bounds = queue_bounds(
            "simple",
            queue_directory(root, topic, queue_id),
            topic,
            queue_id,
            log.min_offset,
            commit_log_stop=end,
        )
        found[topic, queue_id] = bounds
    there = {
        key: QueueRange(*key, bounds.min_offset, bounds.max_offset, bounds)
        for key, bounds in found.items()
        if bounds is not None
    }
    return found | {key: queue.bounds for key, queue in without_stale(root, log, there, end).items()}


def _cleared(bounds: QueueBounds, files: FileWrites) -> int:
    """The queue's end, after it zeroed the units behind the end."""
    byte = bounds.max_offset * CQ_UNIT.itemsize
    if byte < bounds.last_file + bounds.file_size:
        start = byte - byte % bounds.file_size
        with files.open(f"{bounds.directory}/{offset_file_name(start)}") as file:
            if any(file.read(byte - start, CQ_UNIT.itemsize)):
                file.zero(byte - start, file.size)
                files.sync(file)
    return bounds.max_offset
