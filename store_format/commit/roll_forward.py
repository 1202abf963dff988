"""Completes a commit that was broken off: by SIGKILL, a full disk, or a machine that went down.

If nobody else has written since, all steps are done again. If a broker has run since, it may have kept the
first part of the batch and written behind it: the rest of the batch is appended at the log's end.
"""

from __future__ import annotations

import datetime
import logging
from dataclasses import replace

import numpy as np

from store_format.bookkeeping.journal import Journal, state_of, write_journal
from store_format.bookkeeping.settings import StoreSettings
from store_format.bookkeeping.states import Abort, Writing
from store_format.commit.append_position import WriterEnd, queue_bases
from store_format.commit.chunks import newest_timestamp
from store_format.commit.index_repair import Indexing, rebuild_index_from
from store_format.commit.journal_place import bytes_before, refuse_incomplete
from store_format.commit.log_shortage import refuse_cut
from store_format.commit.publication import Present, Publication, Torn
from store_format.commit.queue_rebuild import Rebuilding
from store_format.commit.repair import repair
from store_format.commit.staged_units import remove_staging
from store_format.commit.steps import conclude, note_in_ledger, publish, remove_journal
from store_format.commitlog.log import CommitLog
from store_format.commitlog.walk import Damage
from store_format.commitlog.write import LogFiles
from store_format.consumequeue.updates import CqBatch
from store_format.consumequeue.write import QueueFiles
from store_format.files.read import entry_names
from store_format.files.view import FileCache
from store_format.files.write import FileWrites
from store_format.index.file import IndexGeometry
from store_format.index.write import last_index_file, rewind_index
from store_format.layouts import MESSAGE_HEADS
from store_format.metadata.broker_conf import BrokerConf
from store_format.metadata.checkpoint import Checkpoint, read_checkpoint
from store_format.survey.broker_end import LogEnd, end_after_crash, scan_to_end

_log = logging.getLogger(__name__)


def roll_forward(
    root: str,
    journal: Journal,
    directories: tuple[str, ...],
    settings: StoreSettings,
    files: FileWrites,
    *,
    conf: BrokerConf | None = None,
    cut_after_damage: bool = False,
) -> None:
    """Completes the journal's commit under the caller's lock, and removes its staged files.

    `directories` are those of the commitlog, which the caller has compared with the journal
    (`refuse_other_log`).

    Raises what `refuse_incomplete` raises.
    """
    state = state_of(root, journal)
    if state.writing in (Writing.CONCLUDE, Writing.CONCLUDE_AND_REPAIR):
        remove_journal(root, files)
        remove_staging(root, journal.staged, files)
        return
    _log.warning("%s: a commit of %d messages was interrupted; completing it now", root, journal.units)
    log = open_log(directories)
    refuse_incomplete(root, journal, log)
    publication = Publication(root, journal, log, files)
    present = publication.count_present(log)
    if state.writing is Writing.REPEAT and _is_ours_alone(root, log, present, journal):
        repeat(root, journal, directories, files)
    else:
        crashed = state.abort in (Abort.BROKER, Abort.THIS)
        _complete_behind_broker(
            root,
            journal,
            log,
            publication,
            present,
            settings,
            files,
            conf=conf,
            crashed=crashed,
            cut_after_damage=cut_after_damage,
        )
    conclude(root, journal, files)
    remove_staging(root, journal.staged, files)


def open_log(directories: tuple[str, ...]) -> CommitLog:
    """The commitlog of a store that is to be changed. Raises for a file that a broker refuses as well."""
    log = CommitLog.open(directories, FileCache())
    if log.unusable:
        raise log.unusable[0]
    return log


def repeat(root: str, journal: Journal, directories: tuple[str, ...], files: FileWrites) -> None:
    """Restores the end of the index and does all steps again: they write the same bytes as before."""
    if journal.index:
        rewind_index(
            f"{root}/index",
            journal.index_base,
            IndexGeometry(journal.hash_slot_num, journal.index_num),
            files,
        )
    publish(Publication(root, journal, open_log(directories), files), files)


def _is_ours_alone(root: str, log: CommitLog, present: Present, journal: Journal) -> bool:
    """Whether nobody else wrote since. A 4.9 broker leaves our mark in `abort` as it is.

    A scan takes our unit for whole if it was torn in its properties: the bytes behind the unit decide.
    """
    if (
        journal.index
        and journal.index_base is not None
        and journal.index_base[0] not in entry_names(f"{root}/index", missing_ok=True)
    ):
        return False  # A broker that starts after a crash deletes index files.
    if not log.files:
        return True
    ours = {present.position} if _has_our_head(present) else set()
    run = next(log.walk(present.position, verify_crc=True), None)
    return run is None or isinstance(run, Damage) or set(run.physical_offsets[:2].tolist()) <= ours


def _has_our_head(present: Present) -> bool:
    return present.torn is not None and present.torn.equal >= MESSAGE_HEADS[0].itemsize


def _mend_log(log: CommitLog, end: int, journal: Journal, present: Present, files: FileWrites) -> Torn | None:
    """Completes the torn unit and returns it if the broker took it for a message; else None.

    A recovery does not notice a unit whose properties are cut: their length is right, and only the body has a
    checksum.
    """
    torn = present.torn
    if torn is None or not _has_our_head(present) or end < present.position + len(torn.data):
        return None
    log_files = LogFiles(log, log.directories, journal.file_size, files)
    log_files.write(present.position, torn.data)
    log_files.close()
    return torn


def _mend_queue(root: str, torn: Torn, journal: Journal, position: int, files: FileWrites) -> None:
    if torn.queue >= 0:
        queue_files = QueueFiles(
            root,
            journal.queues[torn.queue : torn.queue + 1],
            [torn.queue_offset],
            journal.queue_file_size,
            files,
        )
        entry = [
            np.array([value], np.int64)
            for value in (0, torn.queue_offset, position, len(torn.data), torn.tags_code)
        ]
        queue_files.write(CqBatch(entry[0], entry[1], entry[2], entry[3].astype(np.int32), entry[4]))
        queue_files.close()


def _complete_behind_broker(
    root: str,
    journal: Journal,
    log: CommitLog,
    publication: Publication,
    present: Present,
    settings: StoreSettings,
    files: FileWrites,
    *,
    conf: BrokerConf | None,
    crashed: bool,
    cut_after_damage: bool,
) -> None:
    """Completes the batch behind what a broker kept of it.

    The broker has indexed and queued the messages it kept, or `repair` does so in its place. Only the rest of
    the batch is written, at the log's end.
    """
    log_files = LogFiles(log, log.directories, journal.file_size, files)
    zone = datetime.timezone(datetime.timedelta(seconds=journal.zone_seconds))
    indexing = Indexing(settings.geometry, files, journal.written_at, zone) if journal.index else None
    staged = (journal.base, newest_timestamp(root, journal))
    if crashed:
        end = end_after_crash(log, read_checkpoint(f"{root}/checkpoint") or Checkpoint())
        # Before the repair, so that the keys and the tag of the whole message are indexed.
        torn = _mend_log(log, end.offset, journal, present, files)
        end = repair(
            root,
            log,
            log_files,
            settings.queue_file_size,
            indexing,
            files,
            conf=conf,
            cut_after_damage=cut_after_damage,
            staged=staged,
            mended=None if torn is None else present.position,
        )
        log = open_log(log.directories)
    else:
        end = scan_to_end(log, journal.base, journal.base)
        if not cut_after_damage:
            refuse_cut(root, log, end, staged=staged)
        log_files.clear_behind(end.offset)
        log = open_log(log.directories)
        torn = _mend_log(log, end.offset, journal, present, files)
        if torn is not None and indexing is not None:
            rebuild_index_from(root, log, present.position, end.offset, indexing)
    if torn is not None:
        _mend_queue(root, torn, journal, present.position, files)
    found = present.units + (torn is not None)
    if found == journal.units - journal.skip:
        note_in_ledger(publication, files)
    else:
        _write_rest(root, log, journal, found, end, files)


def _write_rest(
    root: str, log: CommitLog, journal: Journal, found: int, end: LogEnd, files: FileWrites
) -> None:
    """Publishes the messages behind the first `found` at the log's end, with a journal of their own."""
    last = WriterEnd(end.offset, log.store_timestamp_at(end.last_unit_offset), end.last_unit_offset)
    rebuilding = Rebuilding(lambda: journal.queue_file_size, unfiled="skip")
    rest = replace(
        journal,
        skip=journal.skip + found,
        base=end.offset,
        queue_bases=tuple(queue_bases(root, log, last, journal.queues, rebuilding, files)),
        store_timestamp=max(journal.store_timestamp, last.last_timestamp),
        index_base=last_index_file(f"{root}/index"),
        before=None if journal.before is None else bytes_before(log, end.offset, end.last_unit_offset),
    )
    write_journal(root, rest, files)
    publish(Publication(root, rest, log, files), files)
