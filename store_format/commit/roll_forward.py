"""Completes a commit that was broken off: by SIGKILL, a full disk, or a machine that went down.

If nobody else has written since, all steps are done again. If a broker has run since, it may have kept the
first part of the batch and written behind it: the rest of the batch is appended at the log's end.
"""

from __future__ import annotations

import logging
from dataclasses import replace

import numpy as np

from store_format.bookkeeping.journal import Abort, Journal, State, Writing
from store_format.commit.append_position import (
    WriterEnd,
    complete_queues,
    gaps_before,
    queue_append_positions,
)
from store_format.commit.journal_place import (
    bytes_before,
    is_given_up,
    is_lost_with_power,
    refuse_incomplete,
)
from store_format.commit.log_comparison import LockedStore
from store_format.commit.publication import Present, Publication, Torn
from store_format.commit.repair import refuse_cut, repair
from store_format.commit.staged_units import newest_timestamp, remove_staging
from store_format.commit.steps import conclude, note_in_ledger, publish, remove_journal, write_topics
from store_format.commitlog.log import CommitLog
from store_format.commitlog.walk import Damage
from store_format.consumequeue.updates import CqBatch, QueueFiles
from store_format.files.write import FileWrites
from store_format.index.file import IndexGeometry
from store_format.index.updates import last_index_file, rewind_index
from store_format.layouts import INDEX_HEADER, MESSAGE_HEADS
from store_format.message.locate import locate
from store_format.metadata.read import Checkpoint, read_checkpoint
from store_format.opened.store import Opened
from store_format.survey.log_end import LogEnd

_log = logging.getLogger(__name__)

_LOST = (
    "%s: a commit of %d messages with ASYNC_FLUSH was interrupted by a power loss, and its staged files are "
    "not complete. The commit is dropped; those of its messages stay that a broker would find. Run the job "
    "again"
)
_MISSING = (
    "%s: a commit of %d messages was interrupted, and its staged files are missing. The commit is given up"
)
_REMOVED = f"{_MISSING}, and its messages are removed from the commitlog. Run the job again"
_GIVEN_UP = (
    f"{_MISSING}. The messages that the commitlog has of it stay, because others have written or read behind "
    "them: the job writes them again"
)


def roll_forward(held: LockedStore, journal: Journal) -> None:
    """Completes the journal's commit under the caller's lock, and removes its staged files.

    The caller has compared the commitlog's directories with the journal (`refuse_other_log`). A commit that
    `is_lost_with_power` or `is_given_up` is dropped, and the store is to be repaired as after a broker's
    crash. Raises what `refuse_incomplete` raises.
    """
    opened, files = held.opened, held.files
    held = replace(
        held,
        options=replace(held.options, message_index_enable=journal.index, clock=lambda: journal.written_at),
    )
    state = State.of(opened, journal)
    if state.writing in (Writing.CONCLUDE, Writing.CONCLUDE_AND_REPAIR):
        remove_journal(opened, files)
        remove_staging(opened, journal.staged, files)
        return
    is_lost = is_lost_with_power(opened, journal)
    if is_lost or is_given_up(opened, journal, cut_after_damage=held.options.cut_after_damage):
        text = _LOST if is_lost else _GIVEN_UP
        if not is_lost and state.is_unseen and _has_no_other(held.log, journal):
            held.log_files.clear_behind(journal.base)
            text = _REMOVED
        _log.warning(text, opened.path, journal.units)
        Abort.write_mark(opened, None, files)
        remove_journal(opened, files)
        remove_staging(opened, journal.staged, files)
        return
    _log.warning("%s: a commit of %d messages was interrupted; completing it now", opened.path, journal.units)
    refuse_incomplete(opened, journal, held.log)
    publication = Publication(opened, journal, held.log, files)
    present, is_cut = publication.count_present(held.log), _is_cut_before(held.log, journal.base)
    if state.writing is Writing.REPEAT and not is_cut and _is_ours_alone(opened, held.log, present, journal):
        repeat(held, journal)
    else:
        crashed = is_cut or state.abort in (Abort.BROKER, Abort.THIS)
        _complete_behind_broker(held, journal, publication, present, crashed=crashed)
    conclude(opened, journal, files)
    remove_staging(opened, journal.staged, files)


def repeat(held: LockedStore, journal: Journal) -> None:
    """Restores the end of the index and does all steps again: they write the same bytes as before."""
    opened, files = held.opened, held.files
    if journal.index:
        rewind_index(
            f"{opened.path}/index",
            journal.index_base,
            IndexGeometry(journal.hash_slot_num, journal.index_num),
            files,
        )
    publish(Publication(opened, journal, held.relisted().log, files), files)


def _has_no_other(log: CommitLog, journal: Journal) -> bool:
    """Whether all messages from the commit's base on are its own, as their number and store times show."""
    count = 0
    for run in log.runs(journal.base):
        units, _ = locate(log.refs_of(run), verify_crc=False)
        count += len(units)
        if (units.integers("store_timestamp") != journal.store_timestamp).any():
            return False
    return count <= journal.units and journal.store_timestamps is None


def _is_cut_before(log: CommitLog, base: int) -> bool:
    """Whether the log lacks the message in front of the batch, as in a copy that was made meanwhile. A broker
    that starts ends the log there, and would cut off what is written at the base.
    """
    file = log.file_at(base - 1)
    if file is None:
        return False
    walk = log.walk(file.start, base, verify_crc=True, resync=True)
    is_damaged = any(isinstance(step, Damage) and step.range[1] >= base for step in walk)
    return is_damaged or walk.end is None or walk.end.offset < base


def _is_ours_alone(opened: Opened, log: CommitLog, present: Present, journal: Journal) -> bool:
    """Whether nobody else wrote since. A 4.9 broker leaves our mark in `abort` as it is.

    A scan takes our unit for whole if it was torn in its properties: the bytes behind the unit decide.
    """
    if _lost_index_file(opened, journal) is not None:
        return False
    if not log.files:
        return True
    ours = {present.position} if _has_our_head(present) else set()
    run = next(log.walk(present.position, verify_crc=True), None)
    return run is None or isinstance(run, Damage) or set(run.physical_offsets[:2].tolist()) <= ours


def _lost_index_file(opened: Opened, journal: Journal) -> int | None:
    """The physical offset of the first message in the last index file before the commit, if that is gone.

    A broker that starts after a crash deletes index files.
    """
    base = journal.index_base if journal.index else None
    if base is None or base[0] in opened.files.names(f"{opened.path}/index", missing_ok=True):
        return None
    return int(np.frombuffer(bytes.fromhex(base[1]), INDEX_HEADER)["begin_physical_offset"][0])


def _has_our_head(present: Present) -> bool:
    return present.torn is not None and present.torn.equal >= MESSAGE_HEADS[0].itemsize


def _mend_log(held: LockedStore, end: int, journal: Journal, present: Present) -> Torn | None:
    """Completes the torn unit and returns it if the broker took it for a message; else None.

    A recovery does not notice a unit whose properties are cut: their length is right, and only the body has a
    checksum.
    """
    torn = present.torn
    if torn is None or not _has_our_head(present) or end < present.position + len(torn.data):
        return None
    log_files = held.log_files
    log_files.write(present.position, torn.data)
    log_files.close()
    return torn


def _mend_queue(opened: Opened, torn: Torn, journal: Journal, position: int, files: FileWrites) -> None:
    if torn.queue >= 0:
        queue_files = QueueFiles(
            opened,
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
    held: LockedStore, journal: Journal, publication: Publication, present: Present, *, crashed: bool
) -> None:
    """Completes the batch behind what a broker kept of it.

    The broker has indexed and queued the messages it kept, or that is done here in its place: a missing
    `abort` does not prove that a broker has run. Only the rest of the batch is written, at the log's end.
    """
    opened, files = held.opened, held.files
    write_topics(opened, journal.new_topics, journal.written_at, files)
    staged = (journal.base, newest_timestamp(opened, journal))
    lost = _lost_index_file(opened, journal)
    if crashed:
        found = LogEnd.after_crash(held.log, read_checkpoint(f"{opened.path}/checkpoint") or Checkpoint())
        # Before the repair, so that the keys and the tag of the whole message are indexed.
        torn = _mend_log(held, found.offset, journal, present)
        mended = present.position if lost is None and torn is not None else lost
        end = repair(held, staged=staged, mended=mended)
        held = held.relisted()
    else:
        end = LogEnd.scan(held.log, journal.base, journal.base)
        if not held.options.cut_after_damage:
            refuse_cut(opened, held.log, end, staged=staged)
        held.log_files.clear_behind(end.offset)
        held = held.relisted()
        torn = _mend_log(held, end.offset, journal, present)
        mended = present.position if lost is None and torn is not None else lost
        start = journal.base if mended is None else min(mended, journal.base)
        reading = replace(held, options=replace(held.options, unfiled_queues="read"))
        complete_queues(reading, _writer_end(held, end), start, journal.new_topics, index=True, mended=mended)
    if torn is not None:
        _mend_queue(opened, torn, journal, present.position, files)
    count = present.units + (torn is not None)
    if count == journal.units - journal.skip:
        note_in_ledger(publication, files)
    else:
        _write_rest(held, journal, count, end)


def _writer_end(held: LockedStore, end: LogEnd) -> WriterEnd:
    timestamp = held.log.store_timestamp_at(end.last_unit_offset)
    return WriterEnd(end.offset, timestamp, end.last_unit_offset)


def _write_rest(held: LockedStore, journal: Journal, count: int, end: LogEnd) -> None:
    """Publishes the messages behind the first `count` at the log's end, with a journal of their own."""
    opened, log, files = held.opened, held.log, held.files
    last = _writer_end(held, end)
    held = replace(held, options=replace(held.options, unfiled_queues="skip"))
    places = queue_append_positions(held, last, journal.queues)
    rest = replace(
        journal,
        skip=journal.skip + count,
        base=end.offset,
        queue_bases=tuple(place.base for place in places),
        gaps=gaps_before(places),
        store_timestamp=max(journal.store_timestamp, last.last_timestamp),
        index_base=last_index_file(f"{opened.path}/index"),
        before=None if journal.before is None else bytes_before(log, end.offset, end.last_unit_offset),
    )
    rest.write(opened, files)
    publish(Publication(opened, rest, log, files), files)
