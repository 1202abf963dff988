"""A store made ready for a commit, under its lock: what a crash left is finished, what was not flushed is
flushed if that is asked for.
"""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from store_format.bookkeeping.journal import abort_mark, journal_path, read_journal, write_abort_mark
from store_format.bookkeeping.ledger import Ledger, read_ledger
from store_format.bookkeeping.settings import StoreSettings, is_queue_file_size_known, settings_of
from store_format.bookkeeping.staged_file import OWN_DIRECTORY
from store_format.commit.checkpoint import index_end, save_checkpoint
from store_format.commit.cluster import is_begun, note_begun
from store_format.commit.lost_log import refuse_lost_log
from store_format.commit.queue_rebuild import Rebuilding
from store_format.commit.repair import index_log, repair
from store_format.commit.roll_forward import open_log, roll_forward
from store_format.commit.staged_units import remove_staging
from store_format.commit.steps import sync_store
from store_format.commitlog.log import CommitLog
from store_format.commitlog.write import LogFiles
from store_format.files.write import FileWrites
from store_format.metadata.checkpoint import Checkpoint, read_checkpoint

__all__ = ["CommitOptions", "Opened", "open_store"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitOptions:
    """How to commit. `sync` is flushDiskType=SYNC_FLUSH: power loss counts too; without it only the death of
    the process does.

    `new_topics` gives the number of queues of topics that are made when topics.json lacks them; others that
    the batch has get as many as it uses. `rebuild_lost_queues` decides about topics without any queue file of
    which the commitlog has messages: True rebuilds their queues, False takes them as deleted and created
    again; None goes by what the store tells, and refuses where it tells nothing. `cut_after_damage` gives up
    the whole messages behind damaged bytes, as a broker that starts does; without it such a store is refused.
    `keeps_key`: the key is of something that goes on, a stream or a service, and is never forgotten (see
    `ledger`). `settings` is for a store of a broker whose sizes its files do not show; `is_queue_size_given`
    is False where nobody gave their mappedFileSizeConsumeQueue, which then is the default. `clock` (ms) dates
    messages and names index files.
    """

    sync: bool = True
    message_index_enable: bool = True
    tag_keys: bool = True  # for entries made again after a crash: 5.4 and later index tags
    new_topics: Mapping[str, int] = field(default_factory=dict)
    keeps_key: bool = False
    lock_timeout: float = 0.0
    log_directories: tuple[str, ...] = ()
    settings: StoreSettings | None = None
    cut_after_damage: bool = False
    rebuild_lost_queues: bool | None = None
    is_queue_size_given: bool = True
    clock: Callable[[], int] = lambda: time.time_ns() // 1_000_000


@dataclass(frozen=True, slots=True)
class Opened:
    """A store under lock with nothing left over, ready for a commit."""

    log: CommitLog
    log_files: LogFiles
    settings: StoreSettings
    ledger: Ledger
    log_directories: tuple[str, ...]
    rebuilding: Rebuilding


def open_store(root: str, options: CommitOptions, files: FileWrites) -> Opened:
    """Step 1: what a crash left is finished."""
    directories = options.log_directories or (f"{root}/commitlog",)
    log = open_log(directories)
    refuse_lost_log(root, log, directories)
    if not options.log_directories:
        files.make_directories(root, "commitlog")
    files.make_directories(root, OWN_DIRECTORY)
    settings = settings_of(root, log, root.rstrip("/").rpartition("/")[2], options.settings)
    journal = read_journal(root)
    if journal is not None and not is_begun(journal):
        # a cluster commit that ended before all members knew of it: nowhere was anything published
        files.remove(journal_path(root))
        files.sync_directory(journal_path(root).rpartition("/")[0])
        remove_staging(root, journal.staged, files)
    elif journal is not None:
        note_begun(root, journal, files)
        roll_forward(
            root,
            journal,
            settings,
            FileWrites(sync=journal.sync or options.sync),
            cut_after_damage=options.cut_after_damage,
        )
        log = open_log(directories)
    elif abort_mark(root) == "":
        _repair(root, log, directories, settings, options, files)
        log = open_log(directories)
    log_files = LogFiles(log, directories, settings.mapped_file_size_commit_log, files)
    rebuilding = _rebuilding(root, log, settings, options)
    opened = Opened(log, log_files, settings, read_ledger(root), directories, rebuilding)
    if options.sync and abort_mark(root):
        _flush(root, opened, files)
        files.remove(f"{root}/abort")
        files.sync_directory(root)
    return opened


def _repair(
    root: str,
    log: CommitLog,
    directories: tuple[str, ...],
    settings: StoreSettings,
    options: CommitOptions,
    files: FileWrites,
) -> None:
    now = options.clock()
    repair(
        root,
        log,
        LogFiles(log, directories, settings.mapped_file_size_commit_log, files),
        settings,
        files,
        index=options.message_index_enable,
        tag_keys=options.tag_keys,
        timestamp=now,
        zone=_zone(now),
        is_size_known=_is_size_known(root, log, options),
        cut_after_damage=options.cut_after_damage,
    )
    # From here on the store is in order, but not known to be flushed: as after an ASYNC commit.
    write_abort_mark(root, "recovered", files)


def _rebuilding(root: str, log: CommitLog, settings: StoreSettings, options: CommitOptions) -> Rebuilding:
    def index(log: CommitLog, stop: int, directory: str) -> None:
        now = options.clock()
        index_log(
            directory,
            log,
            stop,
            settings,
            FileWrites(sync=True),
            tag_keys=options.tag_keys,
            timestamp=now,
            zone=_zone(now),
        )

    def file_size() -> int | None:
        return settings.queue_file_size if _is_size_known(root, log, options) else None

    return Rebuilding(file_size, index if options.message_index_enable else None, options.rebuild_lost_queues)


def _is_size_known(root: str, log: CommitLog, options: CommitOptions) -> bool:
    return is_queue_file_size_known(root, log, options.settings is not None and options.is_queue_size_given)


def _flush(root: str, opened: Opened, files: FileWrites) -> None:
    """Syncs what earlier ASYNC commits wrote, and says so in the checkpoint."""
    sync_store(root, opened.log, opened.log_directories, files)
    checkpoint = read_checkpoint(f"{root}/checkpoint") or Checkpoint()
    last = opened.ledger.last
    if last is not None and last.last_size and last.damage(opened.log) is None:
        timestamp = opened.log.store_timestamp_at(last.last_offset)
        checkpoint = replace(
            checkpoint,
            physic_msg_timestamp=timestamp,
            logics_msg_timestamp=timestamp,
            confirm_phy_offset=last.last_offset,
            logics_physical_offset=last.last_offset,
        )
    flushed = index_end(root, opened.settings.geometry)
    if flushed is not None:
        checkpoint = replace(checkpoint, index_msg_timestamp=flushed)
    save_checkpoint(root, checkpoint, files)


def _zone(timestamp: int) -> datetime.tzinfo:
    """The local time at that moment, in which index files are named."""
    return datetime.timezone(datetime.timedelta(seconds=time.localtime(timestamp // 1000).tm_gmtoff))
