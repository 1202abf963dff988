"""Prepares a locked store for a commit: completes what a crash left, flushes what ASYNC commits left."""

from __future__ import annotations

import logging
from dataclasses import replace

from store_format.bookkeeping.identity import OWN_DIRECTORY
from store_format.bookkeeping.journal import (
    Writing,
    abort_mark,
    journal_path,
    read_journal,
    state_of,
    write_abort_mark,
)
from store_format.bookkeeping.ledger import is_lost, ledger_path, read_ledger
from store_format.bookkeeping.settings import (
    broker_conf_of,
    settings_of,
    size_of_cut_file,
)
from store_format.commit.cluster import WRITE_IGNORING, note_begun
from store_format.commit.held_store import HeldStore, open_log
from store_format.commit.journal_place import is_to_complete
from store_format.commit.options import CommitOptions
from store_format.commit.publication import index_end, save_checkpoint
from store_format.commit.repair import repair
from store_format.commit.roll_forward import roll_forward
from store_format.commit.staged_units import remove_staging
from store_format.commit.steps import sync_store
from store_format.commitlog.log import CommitLog
from store_format.errors import CorruptStoreError
from store_format.files.read import read_bytes
from store_format.files.write import FileWrites
from store_format.metadata.read import BrokerConf, Checkpoint, read_checkpoint
from store_format.survey.gone import refuse_lost_log

_log = logging.getLogger(__name__)


def is_sync(root: str, conf: BrokerConf) -> bool:
    """Whether a commit of a service waits for the disk: as the settings say, else as the last commit did.

    After a commit with ASYNC_FLUSH only the service `flush` writes to the disk, at its intervals. Of a commit
    that was broken off, the journal says it; its `abort` does not.
    """
    if "flushDiskType" in conf.given:
        return conf.flush_disk_type == "SYNC_FLUSH"
    journal = read_journal(root)
    return journal.sync if journal is not None else not abort_mark(root)


def _refuse_cut_file(root: str, log: CommitLog) -> None:
    """Raises CorruptStoreError if the only commitlog file was cut off: the next would begin at its end."""
    size = size_of_cut_file(root, log)
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
) -> HeldStore:
    """Completes what a crash left, of a broker or of a commit. `way_out` is that of `is_begun`.

    Raises StoreNotFoundError for a lost commitlog, and what `is_to_complete`, `roll_forward` and `repair`
    raise.
    """
    log = open_log(options.log_directories or (f"{root}/commitlog",))
    refuse_lost_log(root, log)
    journal = read_journal(root)
    begun = journal is not None and is_to_complete(
        root, journal, log, ignore_missing=options.ignore_missing_stores, way_out=way_out
    )
    if not options.log_directories:
        files.make_directories(root, "commitlog")
    files.make_directories(root, OWN_DIRECTORY)
    _refuse_cut_file(root, log)
    settings = settings_of(root, log, root.rstrip("/").rpartition("/")[2], options.settings)
    held = HeldStore(root, log, settings, replace(options, conf=broker_conf_of(root, options.conf)), files)
    if journal is not None and not begun:
        # A cluster commit ended before every store had its journal: no store has published anything.
        files.remove(journal_path(root))
        files.sync_directory(journal_path(root).rpartition("/")[0])
        remove_staging(root, journal.staged, files)
    elif journal is not None:
        note_begun(root, journal, files)
        roll_forward(replace(held, files=FileWrites(sync=journal.sync or options.sync)), journal)
        held = held.relisted()
    if state_of(root, None).writing is Writing.REPAIR:
        repair(held)
        # The store is complete now, but perhaps not flushed: as after an ASYNC commit.
        write_abort_mark(root, "recovered", files)
        held = held.relisted()
    held = replace(held, ledger=read_ledger(root))
    if is_lost(read_bytes(ledger_path(root))):
        _log.warning(
            "%s: the ledger was lost with the power, and that of the last flush counts: a batch that was "
            "committed since is written again if its job runs again",
            root,
        )
    if options.sync and abort_mark(root):
        _flush(held)
        files.remove(f"{root}/abort")
        files.sync_directory(root)
    return held


def _flush(held: HeldStore) -> None:
    """Syncs what earlier ASYNC commits wrote, and notes it in the checkpoint."""
    root, log = held.root, held.log
    sync_store(root, log, log.directories, held.files)
    checkpoint = read_checkpoint(f"{root}/checkpoint") or Checkpoint()
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
    flushed = index_end(root, held.settings.geometry)
    if flushed is not None:
        checkpoint = replace(checkpoint, index_msg_timestamp=flushed)
    save_checkpoint(root, checkpoint, held.files)
