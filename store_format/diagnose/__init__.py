"""Everything that is wrong with a store, as a list: no problem hides another, and none is an exception.

The commitlog is walked once; queues are checked on the way, index files, checkpoint and configuration behind
it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from store_format.bookkeeping.journal import read_commit_state
from store_format.bookkeeping.state import StoreState, store_state
from store_format.commitlog.log import CommitLog
from store_format.commitlog.walk import UnitRun
from store_format.diagnose.commitlog import Lost, check_log, report_cut
from store_format.diagnose.commits import check_commits
from store_format.diagnose.files import entries_of, usable_log
from store_format.diagnose.index import check_index_files
from store_format.diagnose.problems import Diagnosis, Findings
from store_format.diagnose.queues import QueueCheck
from store_format.diagnose.state import (
    check_checkpoint,
    check_config,
    check_formats,
    check_queue_ids,
    check_state,
    check_topics,
)
from store_format.errors import CorruptStoreError
from store_format.files.read import entry_names
from store_format.metadata.checkpoint import Checkpoint, read_checkpoint
from store_format.read.log_end import certain_end, ends_after_crash
from store_format.read.readable_end import ReadableEnd, find_readable_end
from store_format.read.recovery import end_after_stop

__all__ = ["diagnose"]


def diagnose(
    root: str, commit_log_paths: Sequence[str] = (), *, on_offset: Callable[[int], object] | None = None
) -> Diagnosis:
    """Every problem of the store at `root`, and where its commitlog's bytes went. Also for stores that
    `MessageStore.open` refuses.

    A million messages take two seconds of one core. Memory does not grow with the log: a byte for each entry
    of one index file, and what a quarter of a million queue entries take. `on_offset` is called with the
    physical offset up to which the log has been walked, now and then. Raises StoreNotFoundError when `root`
    cannot be listed, and nothing for what is in it; but in a store that is in use retention may delete a file
    between listing and reading, which is a StoreError that says so.
    """
    findings = Findings()
    entry_names(root)  # raises where the root cannot be listed
    state = store_state(root)
    check_state(findings, root, state)
    check_formats(findings, root)
    check_config(findings, root)
    directories = tuple(commit_log_paths) or (f"{root}/commitlog",)
    log, file_size, unplaced_bytes = usable_log(findings, directories)
    check_commits(findings, root, log)
    base = _hidden_commit(root) if state is not StoreState.CRASHED else None
    readable = _readable_end(root, log, state) if base is None else ReadableEnd(base, base)
    log_end = None if readable is None else readable.offset
    lost = Lost()
    # A clean store with remains has entries that lead to them, as one that crashed.
    seen_as = (
        state if readable is None or base is not None or state is StoreState.LIVE else StoreState.CRASHED
    )
    # Entries of a commit that is not complete are no more wrong than those that are being written.
    behind_as = seen_as if base is None else StoreState.LIVE
    queues = QueueCheck(
        findings, root, log, (seen_as, behind_as), log_end, has_queues=not _in_rocksdb(findings, root)
    )

    def visit(run: UnitRun) -> None:
        queues.add(run)
        if on_offset is not None:
            on_offset(run.file.start + run.stop)

    summary = replace(
        check_log(findings, log, file_size, state, lost, visit, readable), unplaced_bytes=unplaced_bytes
    )
    if state is StoreState.CLEAN and readable is None and summary.damage_bytes:
        report_cut(findings, log, _end_of_last_file(root, log))
    queues.finish(lost, summary.log_end)
    check_topics(findings, root, queues.topics, queues.absent)
    check_queue_ids(findings, root, queues.filled)
    check_index_files(
        findings,
        f"{root}/index",
        log,
        state if base is None else behind_as,
        summary.log_end if log_end is None else log_end,
        lost,
    )
    check_checkpoint(findings, root, summary, max(summary.log_end, lost.stop))
    return Diagnosis(findings.problems(), summary)


def _in_rocksdb(findings: Findings, root: str) -> bool:
    """Whether missing consume queue files say nothing."""
    return any(
        entry.name == "CURRENT"
        for name in ("consumequeue", "consumequeue_rocksdb")
        for entry in entries_of(findings, f"{root}/{name}")
    )


def _hidden_commit(root: str) -> int | None:
    """The base of a commit that was broken off or goes on: readers see nothing behind it. None without one."""
    try:
        return read_commit_state(root).base
    except CorruptStoreError:  # check_commits has reported the file
        return None


def _readable_end(root: str, log: CommitLog, state: StoreState) -> ReadableEnd | None:
    """The log's end where its bytes alone do not show it, else None."""
    if state is StoreState.CRASHED:
        return _end_after_crash(root, log)
    return _end_before_remains(root, log, state)


def _end_after_crash(root: str, log: CommitLog) -> ReadableEnd:
    try:
        checkpoint = read_checkpoint(f"{root}/checkpoint") or Checkpoint()
    except CorruptStoreError:
        checkpoint = Checkpoint()
    return ends_after_crash(root, log, checkpoint)[1]


def _end_before_remains(root: str, log: CommitLog, state: StoreState) -> ReadableEnd | None:
    """The log's end where whole messages lie behind it that an earlier recovery has cut; else None."""
    end = certain_end(root, log, state)
    return (
        ReadableEnd(end.offset, end.offset, remains=end.remains) if end is not None and end.remains else None
    )


def _end_of_last_file(root: str, log: CommitLog) -> ReadableEnd:
    """What the recovery of a store that was shut down cleanly finds: it begins with the last file, or with an
    earlier one.
    """
    return find_readable_end(root, log, end_after_stop(log))
