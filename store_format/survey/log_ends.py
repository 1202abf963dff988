"""Where does the commitlog end? The files do not say: they have their full length from the start.

Five questions, each answered by one function; everybody else calls these:

- Where does a broker end the log after a crash? `recovery.end_after_crash`: at the first bad unit,
  from the file on that the checkpoint gives.
- Where does a broker end the log after a clean stop? `recovery.end_after_stop`: at the first bad unit, from
  the last file on that the consume queues know.
- How far can a reader read after a crash? `readable_end.find_readable_end`: behind damage too, if whole
  messages continue the log there.
- How far can a reader read any other store? `written_end.written_end`: to the last whole message, less the
  remains of an old recovery.
- Where does a writer append? `append_position.find_writer_end`: at the end after a clean stop, if a reader
  reads nothing behind that end.

This module puts them together for readers. All five walk the same way (`CommitLog.walk`). A writer that would
clear what a reader still reads is refused (`log_shortage.refuse_cut`); it skips the scan behind our own last
commit only if `written_end.is_unwritten` finds nothing behind that.
"""

from __future__ import annotations

from store_format.bookkeeping.journal import committed_end, read_commit_state
from store_format.bookkeeping.state import StoreState
from store_format.commitlog.log import CommitLog
from store_format.errors import StoreError
from store_format.metadata.checkpoint import Checkpoint, read_checkpoint
from store_format.survey.broker_end import LogEnd, end_after_crash
from store_format.survey.gone import queues_in_log
from store_format.survey.lost_log import refuse_lost_log
from store_format.survey.readable_end import ReadableEnd, find_readable_end, warn_once
from store_format.survey.written_end import (
    WrittenEnd,
    is_unwritten,
    knows_more,
    last_unit,
    warn_of_hidden,
    written_end,
)


def find_log_end(root: str, log: CommitLog, state: StoreState) -> int | None:
    """The physical offset at which a reader stops; None where the log ends with its last message.

    An offset after a crash, at the base of a commit that is under way or was broken off, and where remains of
    an old recovery follow: whole messages, or a part of one. `take_snapshot` finds the same end, with the
    queues. Raises StoreNotFoundError for a lost commitlog.
    """
    refuse_lost_log(root, log)
    before = read_commit_state(root)
    if state is StoreState.CRASHED and not before.is_own:
        _, readable = ends_after_crash(root, log, read_checkpoint(f"{root}/checkpoint") or Checkpoint())
        warn_once(root, log.cache, readable)
        return readable.offset
    end = before.base if before.base is not None else _end_before_remains(root, log, state)
    if read_commit_state(root) == before:
        return end
    committed = committed_end(root)
    return committed if committed is not None else _end_before_remains(root, log, state)


def _end_before_remains(root: str, log: CommitLog, state: StoreState) -> int | None:
    end = certain_end(root, log, state)
    if end is None or not end.remains:
        is_whole = end is not None and is_unwritten(log, end.offset)
        return None if is_whole or state is not StoreState.CLEAN else torn_end(root, log)
    warn_of_hidden(root, log.cache, end, 0)
    return end.offset


def torn_end(root: str, log: CommitLog) -> int | None:
    """The end of the log of a store that was shut down cleanly, if a part of a message follows.

    A crash left it, and a recovery has cut it: no queue, and no other file of the store, knows of a message
    there. None otherwise.
    """
    try:
        last = last_unit(log)
        if last is None or is_unwritten(log, last.stop) or knows_more(root, last):
            return None
        queues = queues_in_log(root, log)
    except (StoreError, OSError):  # a reader of the file raises the error
        return None
    is_known = not queues or max(queue.last_physical_offset for queue in queues) >= last.stop
    return None if is_known else last.stop


def ends_after_crash(root: str, log: CommitLog, checkpoint: Checkpoint) -> tuple[LogEnd, ReadableEnd]:
    """Where a broker's recovery ends the log, and how far the log can be read."""
    end = end_after_crash(log, checkpoint)
    return end, find_readable_end(root, log, end)


def certain_end(root: str, log: CommitLog, state: StoreState, queued: int = -1) -> WrittenEnd | None:
    """The end of a log that no crash left, if it is certain that nothing behind it counts; else None.

    `queued` is the greatest physical offset that a consume queue points to, read before: a broker writes the
    log first. A reader that comes to a file that cannot be read raises; here the file only makes the end
    uncertain.
    """
    is_live = state is StoreState.LIVE
    try:
        end = written_end(root, log, is_live=is_live)
        if end is not None and not end.remains and queued >= end.offset:
            end = written_end(root, log, is_live=is_live, has_more=True)
    except (StoreError, OSError):
        return None
    return end if end is not None and end.is_certain else None
