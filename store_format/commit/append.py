"""The one way messages get into a store: staged files become one commit, all or nothing, once for each key.

The steps and their order are those of a broker that wrote the same messages, behind a journal that makes them
one: check, assign, journal, commitlog, consume queues, index, checkpoint, ledger, and at last the removal of
`abort`.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from store_format.bookkeeping.journal import Journal, abort_mark, journal_path, write_journal
from store_format.bookkeeping.ledger import Ledger, LedgerEntry, read_ledger, write_ledger
from store_format.bookkeeping.settings import settings_of
from store_format.bookkeeping.staged_file import StagedFile, staging_path
from store_format.commit.append_position import WriterEnd, find_writer_end, queue_bases
from store_format.commit.appended_crc import has_crc_property_before
from store_format.commit.checkpoint import note_flushed
from store_format.commit.prepare_store import CommitOptions, Opened, open_store
from store_format.commit.publication import Publication
from store_format.commit.queue_rebuild import has_queue_files, rebuild_queues
from store_format.commit.repeats import CommittedBatch, note_repeat, totals
from store_format.commit.roll_forward import open_log, repeat, roll_forward
from store_format.commit.staged_units import check_staged, remove_staging
from store_format.commit.staging import TIMES_SUFFIX
from store_format.commit.steps import begin, conclude, publish, undo
from store_format.commit.unsupported import refuse_missing_queues, refuse_store, refuse_timer, refuse_topics
from store_format.commitlog.place import LogLayout
from store_format.errors import OptionError, StoreInUseError, StoreWriteError
from store_format.files.lock import StoreLock
from store_format.files.write import FileWrites
from store_format.index.write import last_index_file
from store_format.metadata.read import read_topics
from store_format.metadata.values import TopicConfig

__all__ = [
    "CommitOptions",
    "CommitResult",
    "carry_out",
    "check",
    "commit",
    "flush",
    "late_reports",
    "note_empty",
    "prepare",
    "recover",
    "result_of",
]

_log = logging.getLogger(__name__)

# a last message further ahead of the clock than that does not drag later ones along
_CLOCK_STEP_MAX_MS = 24 * 3_600_000


@dataclass(frozen=True, slots=True)
class CommitResult:
    """`committed` is False when the key's number was in the ledger already: nothing was written, as one of
    the `reports` says.

    Physical range [start, stop); by queue the offsets [start, stop) that the messages got. `reports` tell of
    earlier batches that were cut or overwritten since. `sync_seconds` is the part of the time that was
    waiting for the disk.
    """

    committed: bool
    start: int = 0
    stop: int = 0
    queues: Mapping[tuple[str, int], tuple[int, int]] = field(default_factory=dict)
    reports: tuple[str, ...] = ()
    sync_seconds: float = 0.0


def commit(
    root: str,
    staged: Sequence[StagedFile],
    *,
    key: tuple[str, int] | None = None,
    store_timestamps: int | NDArray[np.int64] | None = None,
    options: CommitOptions | None = None,
) -> CommitResult:
    """Publishes the staged files, in this order, and removes them.

    `key` is (id, number): a number that is not above the highest committed one of its id is a replay, and
    nothing is written. `store_timestamps` (ms) is one for all, made not to go below the last message's, or
    one for each, taken as given; None is the clock.

    Raises StoreInUseError when another process has the store, UnsupportedFormatError for what is not written
    to, and StoreWriteError naming the file that could not be written: the store is then as before, or the
    error says that the next writer will complete the batch.
    """
    options = options or CommitOptions()
    files = FileWrites(sync=options.sync)
    refuse_store(root)
    with StoreLock(root, timeout=options.lock_timeout) as lock:
        lock.refuse_other_openers()
        opened = open_store(root, options, files)
        if key is not None and opened.ledger.has(key):
            entry = opened.ledger.keys[key[0]]
            committed = CommittedBatch(entry.number, entry.messages, entry.bodies)
            report = note_repeat(root, key, committed, staged, is_stream=options.keeps_key)
            remove_staging(root, staged, files)
            return CommitResult(False, reports=(report,))
        reports = check(root, opened, staged)
        if not any(each.units for each in staged):
            note_empty(root, opened.ledger, key, files, keeps_key=options.keeps_key)
            remove_staging(root, staged, files)
            return CommitResult(True, reports=reports)
        journal, publication = prepare(root, opened, tuple(staged), key, store_timestamps, options, files)
        carry_out(root, journal, publication, files)
        remove_staging(root, staged, files)
        reports += late_reports(lock, root, journal.id, files)
    return result_of(publication, reports, files)


def recover(root: str, *, options: CommitOptions | None = None) -> None:
    """Finishes what a crash left, a broker's or ours, without writing anything new."""
    options = options or CommitOptions()
    refuse_store(root)
    with StoreLock(root, timeout=options.lock_timeout) as lock:
        lock.refuse_other_openers()
        files = FileWrites(sync=options.sync)
        opened = open_store(root, options, files)
        if options.cut_after_damage or not has_queue_files(root):
            end = _writer_end(root, opened, options, files)
            rebuild_queues(root, opened.log, end.last_unit, opened.rebuilding, files)


def flush(root: str, *, options: CommitOptions | None = None) -> None:
    """Makes what ASYNC commits wrote outlast a power loss, as a SYNC commit does too: all files synced,
    checkpoint, no `abort`.
    """
    options = options or CommitOptions()
    recover(root, options=replace(options, sync=True))


# ---- the journal -------------------------------------------------------------------------------------------


def check(
    root: str, opened: Opened, staged: Sequence[StagedFile], *, records_sum: bool = False
) -> tuple[str, ...]:
    """Step 3: that the staged files are there as written, and that their units fit. What happened to earlier
    batches since is reported.

    The checksum of the records is else taken while they are appended, when a difference can still be undone.
    """
    for each in staged:
        check_staged(root, each, records_sum=records_sum)
        LogLayout(0, opened.settings.mapped_file_size_commit_log).place(
            np.array([each.unit_size_max] if each.units else [])
        )
    reports = tuple(opened.ledger.new_reports(opened.log))
    for report in reports:
        _log.warning("%s: %s", root, report)
    return reports


def late_reports(lock: StoreLock, root: str, journal: str, files: FileWrites) -> tuple[str, ...]:
    """Whether a broker began to start meanwhile. Too late to refuse: this journal's batch is marked; the next
    commit looks through it.
    """
    try:
        lock.refuse_other_openers()
    except StoreInUseError as error:
        report = f"while this batch was committed: {error}"
        _log.warning("%s: %s", root, report)
        write_ledger(root, read_ledger(root).with_suspect(journal), files)
        return (report,)
    return ()


def result_of(publication: Publication, reports: tuple[str, ...], files: FileWrites) -> CommitResult:
    journal, entry = publication.journal, publication.entry
    ends = zip(journal.queues, journal.queue_bases, publication.queue_stops, strict=True)
    queues = {queue: (first, stop) for queue, first, stop in ends}
    return CommitResult(True, journal.base, entry.stop, queues, reports, files.sync_seconds)


def prepare(
    root: str,
    opened: Opened,
    staged: tuple[StagedFile, ...],
    key: tuple[str, int] | None,
    store_timestamps: int | NDArray[np.int64] | None,
    options: CommitOptions,
    files: FileWrites,
) -> tuple[Journal, Publication]:
    """Step 4: every position decided. An array of store times is staged too, so that the commit can be
    repeated.
    """
    now = options.clock()
    end = _writer_end(root, opened, options, files)
    queues = tuple(dict.fromkeys(queue for each in staged for queue in each.queues))
    topics: Mapping[str, TopicConfig] = read_topics(root) or {}
    refuse_topics(root, queues, topics)
    refuse_timer(root, {topic for topic, _ in queues}, topics)
    refuse_missing_queues(root, (*queues, *(queue for each in staged for queue in each.parked)), topics)
    _refuse_missing_crc(root, opened, staged, end.offset)
    # Of new_topics all: a message that waits in SCHEDULE_TOPIC_XXXX is for a topic that has no queue in this
    # batch.
    missing = {topic: number for topic, number in options.new_topics.items() if topic not in topics}
    for topic, queue_id in queues:
        if topic not in topics:
            missing[topic] = max(missing.get(topic, 0), queue_id + 1)
    times_name = None
    timestamp = now if store_timestamps is None else 0
    if isinstance(store_timestamps, np.ndarray):
        if len(store_timestamps) != sum(each.units for each in staged):
            raise OptionError(
                f"{len(store_timestamps)} store timestamps for {sum(each.units for each in staged)} messages"
            )
        times_name = _stage_times(root, staged, store_timestamps, files)
    elif store_timestamps is not None:
        timestamp = store_timestamps
    if timestamp < end.last_timestamp <= timestamp + _CLOCK_STEP_MAX_MS:
        timestamp = end.last_timestamp  # never backwards, unless the clock was far wrong
    geometry = opened.settings.geometry
    messages, bodies = totals(staged)
    bases = tuple(queue_bases(root, opened.log, end, queues, opened.rebuilding, files))
    if not options.sync and abort_mark(root) is None:
        note_flushed(root, end.last_offset, end.last_timestamp)
    journal = Journal(
        id=secrets.token_hex(8),
        key=key,
        staged=staged,
        skip=0,
        base=end.offset,
        file_size=opened.settings.mapped_file_size_commit_log,
        queue_file_size=opened.settings.queue_file_size,
        queues=queues,
        queue_bases=bases,
        new_topics=missing,
        store_timestamp=timestamp,
        store_timestamps=times_name,
        sync=options.sync,
        index=options.message_index_enable,
        hash_slot_num=geometry.hash_slot_num,
        index_num=geometry.index_num,
        index_base=last_index_file(f"{root}/index"),
        written_at=now,
        zone_seconds=time.localtime(now // 1000).tm_gmtoff,
        log_directories=opened.log_directories,
        messages=messages,
        bodies=bodies,
        keeps_key=options.keeps_key,
    )
    return journal, Publication(root, journal, opened.log, files)


def _writer_end(root: str, opened: Opened, options: CommitOptions, files: FileWrites) -> WriterEnd:
    geometry = opened.settings.geometry if options.message_index_enable else None
    return find_writer_end(
        root, opened.log, opened.ledger, opened.log_files, geometry, files, cut_after_damage=options.cut_after_damage
    )  # fmt: skip


def _refuse_missing_crc(root: str, opened: Opened, staged: Sequence[StagedFile], end: int) -> None:
    """Units without a CRC property behind one that has it: a broker with forceVerifyPropCRC=true would
    truncate them.
    """
    if all(each.crc_property for each in staged if each.units) or not has_crc_property_before(
        opened.log, end
    ):
        return
    raise StoreWriteError(
        f"{root}: the last message of the log, which ends at {end}, has the property __CRC32# (enabledAppendPropCRC=true of a broker), "
        "and the messages of this write were encoded without it: a broker with forceVerifyPropCRC=true would truncate them. "
        "A broker has written since this write began; run it again"
    )


def _stage_times(
    root: str, staged: tuple[StagedFile, ...], store_timestamps: NDArray[np.int64], files: FileWrites
) -> str | None:
    if not staged:
        return None
    name = f"{secrets.token_hex(8)}{TIMES_SUFFIX}"
    path = f"{staging_path(root, staged[0].write)}/{name}"
    files.write_whole(path, store_timestamps.astype("<i8").tobytes())
    files.sync_directory(path.rpartition("/")[0])
    return name


def note_empty(
    root: str,
    ledger: Ledger,
    key: tuple[str, int] | None,
    files: FileWrites,
    batch: tuple[int, int] = (0, 0),
    *,
    keeps_key: bool,
) -> None:
    """A batch without messages in this store only has its key noted; `batch` are its totals in the other
    stores of a cluster.
    """
    if key is not None:
        entry = LedgerEntry(key[1], "", 0, 0, -1, 0, 0, messages=batch[0], bodies=batch[1], kept=keeps_key)
        write_ledger(root, ledger.with_key(key[0], entry), files)


# ---- behind it ---------------------------------------------------------------------------------------------


def carry_out(
    root: str, journal: Journal, publication: Publication, files: FileWrites, *, may_undo: bool = True
) -> None:
    """Steps 5 to 7. A failure is undone while no queue was touched, and rolled forward after that, or at once
    unless it `may_undo`.
    """
    previous_mark = abort_mark(root)
    try:
        write_journal(root, journal, files)
        begin(root, journal, files)
        publish(root, journal, publication, files)
        conclude(root, journal, files)
    except BaseException as error:
        try:
            if may_undo and not publication.touched_queues:
                undo(root, publication, previous_mark, files)
                raise
            if not isinstance(error, Exception):
                raise  # somebody ends this process: the next writer goes on
            disturbance = publication.disturbance()
            if disturbance is not None:
                _log.warning("%s: %s; the commit is gone over again", root, disturbance)
                settings = settings_of(root, open_log(journal.log_directories), "")
                # which knows of no file that is gone
                roll_forward(root, journal, settings, FileWrites(sync=files.is_sync))
                return
            repeat(root, journal, files)
            conclude(root, journal, files)
        except Exception as second:
            if second is error:
                raise
            raise StoreWriteError(
                f"{second}; before that: {error}. The commit is neither complete nor undone: {journal_path(root)} stands, and the next "
                "writer completes it. Do not run the job again unless it writes with a key"
            ) from error
