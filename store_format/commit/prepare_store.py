"""Prepares a locked store for a commit: completes what a crash left, flushes what ASYNC commits left."""

from __future__ import annotations

import logging
from dataclasses import replace

from store_format.bookkeeping.journal import Abort, Journal, State, Writing
from store_format.bookkeeping.ledger import Ledger
from store_format.bookkeeping.settings import StoreSettings, broker_conf_of
from store_format.commit.cluster import WRITE_IGNORING, note_begun
from store_format.commit.committed_batch import complete_from
from store_format.commit.journal_place import is_to_complete
from store_format.commit.log_comparison import LockedStore
from store_format.commit.options import CommitOptions
from store_format.commit.publication import index_end, save_checkpoint
from store_format.commit.repair import repair
from store_format.commit.roll_forward import roll_forward
from store_format.commit.staged_units import remove_staging
from store_format.commit.steps import sync_store
from store_format.commitlog.log import CommitLog, open_log
from store_format.errors import CorruptStoreError
from store_format.files.write import FileWrites
from store_format.metadata.read import Checkpoint, known_topics, read_checkpoint
from store_format.opened.store import OWN_DIRECTORY, Opened
from store_format.survey.fates import StoredTopics
from store_format.survey.gone import LostLog

_log = logging.getLogger(__name__)


def _refuse_cut_file(opened: Opened, log: CommitLog) -> None:
    """Raises CorruptStoreError if the only commitlog file was cut off: the next would begin at its end."""
    size = StoreSettings.size_of_cut_file(opened, log)
    if size:
        file = log.files[0]
        raise CorruptStoreError(
            file.path,
            file.size,
            f"a file of {size} bytes, as in .rmqlog/store.json",
            f"{file.size} bytes: its end was cut off. Nothing was written. Restore the file, or give up what "
            "was cut off: rmqlog recover STORE --apply",
        )


def open_store(
    root: str, options: CommitOptions, files: FileWrites, *, way_out: str = WRITE_IGNORING
) -> LockedStore:
    """Completes what a crash left, of a broker or of a commit. `way_out` is that of `is_begun`.

    Raises StoreNotFoundError for a lost commitlog, and what `is_to_complete`, `roll_forward` and `repair`
    raise.
    """
    opened = Opened(root)
    log = open_log(options.log_directories or (f"{root}/commitlog",))
    LostLog.refuse(opened, log)
    journal = Journal.read(opened)
    begun = journal is not None and is_to_complete(
        opened, journal, log, ignore_missing=options.ignore_missing_stores, way_out=way_out
    )
    if not options.log_directories:
        files.make_directories(root, "commitlog")
    files.make_directories(root, OWN_DIRECTORY)
    _refuse_cut_file(opened, log)
    settings = StoreSettings.of(opened, log, root.rstrip("/").rpartition("/")[2], options.settings)
    held = LockedStore(
        opened, log, settings, replace(options, conf=broker_conf_of(opened, options.conf)), files
    )
    # In a copy, topics.json may lack topics of earlier commits. Completing this commit adds them to the file.
    lacked = StoredTopics(opened).missing(known_topics(opened) or ()) if begun else {}
    if journal is not None and not begun:
        # A cluster commit ended before every store had its journal: no store has published anything.
        files.remove(Journal.path(opened))
        files.sync_directory(Journal.path(opened).rpartition("/")[0])
        remove_staging(opened, journal.staged, files)
    elif journal is not None:
        note_begun(opened, journal, files)
        roll_forward(replace(held, files=FileWrites(sync=journal.sync or options.sync)), journal)
        held = held.relisted()
    if State.of(opened, None).writing is Writing.REPAIR:
        repair(held)
        # The store is complete now, but perhaps not flushed: as after an ASYNC commit.
        Abort.write_mark(opened, "recovered", files)
        held = held.relisted()
    held = replace(held, ledger=Ledger.read(opened))
    if lacked:
        complete_from(held, held.log.min_offset)
    if Ledger.is_lost(opened):
        _log.warning(
            "%s: the ledger was lost with the power, and that of the last flush counts: a batch that was "
            "committed since is written again if its job runs again",
            root,
        )
    if options.sync and Abort.read_mark(opened):
        _flush(held)
        files.remove(f"{root}/abort")
        files.sync_directory(root)
    return held


def _flush(held: LockedStore) -> None:
    """Syncs what earlier ASYNC commits wrote, and notes it in the checkpoint."""
    opened, log = held.opened, held.log
    sync_store(opened, log, log.directories, held.files)
    checkpoint = read_checkpoint(f"{opened.path}/checkpoint") or Checkpoint()
    last = held.ledger.last
    if last is not None and last.last_size and last.damage(log) is None:
        timestamp = log.store_timestamp_at(last.last_offset)
        checkpoint = replace(
            checkpoint,
            physic_msg_timestamp=timestamp,
            logics_msg_timestamp=timestamp,
            confirm_phy_offset=last.last_offset,
            logics_physical_offset=last.last_offset,
        )
    flushed = index_end(opened, held.settings.geometry)
    if flushed is not None:
        checkpoint = replace(checkpoint, index_msg_timestamp=flushed)
    save_checkpoint(opened, checkpoint, held.files)
