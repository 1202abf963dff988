"""Carries out a recovery under the store's lock, so that it can be repeated after a crash.

Of a store that a broker's crash left, `abort` stays until everything is complete. In another store, entries
are corrected in ascending order, whole queues and index files are built beside and moved to their places, and
the next survey finds what is still missing.
"""

from __future__ import annotations

import datetime
import json
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, replace

from store_format.bookkeeping.given_up import GivenUp, note_given_up
from store_format.bookkeeping.journal import abort_mark, read_journal, rebuild_path, write_abort_mark
from store_format.bookkeeping.ledger import read_ledger, write_ledger
from store_format.bookkeeping.settings import StoreSettings, size_of_cut_file
from store_format.bookkeeping.staged_file import OWN_DIRECTORY
from store_format.commit.checkpoint import index_end, save_checkpoint
from store_format.commit.cluster import RECOVER_IGNORING
from store_format.commit.journal_place import is_given_up_in_copy
from store_format.commit.log_shortage import (
    cleared_from,
    cut_queues,
    lower_checkpoint,
)
from store_format.commit.options import CommitOptions
from store_format.commit.prepare_store import open_store
from store_format.commit.queue_changes import QueueChange, QueuesAside
from store_format.commit.queue_moves import clear_directory, end_rebuild, move_in
from store_format.commit.queue_repair import queue_state, truncate
from store_format.commit.rebuilt_index import IndexBuilder, IndexCheck, move_index
from store_format.commit.recover_options import RecoverOptions, batch_file_size
from store_format.commit.recovery_survey import (
    Survey,
    find_end,
    index_parts,
    look,
)
from store_format.commit.roll_forward import open_log
from store_format.commit.salvage import check_holes, end_of_salvaged, fill_holes, find_holes, short_tails
from store_format.commit.steps import write_topics
from store_format.commit.store_copy import copy_parts, copy_store, end_copy
from store_format.commitlog.log import CommitLog
from store_format.commitlog.write import LogFiles
from store_format.consumequeue.listing import FOLDERS, list_queues, queue_directory
from store_format.consumequeue.updates import pre_blank_bytes
from store_format.errors import CorruptStoreError, StoreError, StoreInUseError, StoreWriteError
from store_format.files.read import entry_names, list_store_files, offset_file_name, read_bytes
from store_format.files.status import stat_identity
from store_format.files.view import FileCache
from store_format.files.write import FileWrites
from store_format.layouts import CQ_UNIT, OFFSET_MAX
from store_format.metadata.checkpoint import Checkpoint, read_checkpoint
from store_format.metadata.delay_offsets import write_delay_offsets
from store_format.names import QueueKey
from store_format.survey.contradicted import Contradictions
from store_format.survey.entries import LogPart
from store_format.survey.fates import has_queue_files
from store_format.survey.gone import first_unit_from, pointing_to
from store_format.survey.lost_log import refuse_lost_log
from store_format.survey.readable_end import find_readable_end


def open_store_log(root: str, options: RecoverOptions) -> CommitLog:
    directories = options.log_directories or (f"{root}/commitlog",)
    log = CommitLog.open(directories, FileCache()) if options.salvage else open_log(directories)
    refuse_lost_log(root, log)
    return replace(log, whole_size=size_of_cut_file(root, log))


def carry_out_recovery(root: str, options: RecoverOptions) -> Survey:
    """Recovers the store at `root`, whose lock the caller holds. Raises what `find_end` has as `refused`."""
    files = FileWrites(sync=True)
    files.make_directories(root, OWN_DIRECTORY)
    options = with_noted_sizes(root, options)
    is_part = not (options.queues and options.index and options.topics is None)
    if read_journal(root) is not None or (is_part and abort_mark(root) == ""):
        open_store(root, _commit_options(options), files, way_out=RECOVER_IGNORING)
    survey = find_end(root, open_store_log(root, options), options)
    if survey.refused is not None:
        raise survey.refused
    _carry_out(survey, options, files)
    return survey


def carry_out_into(survey: Survey, options: RecoverOptions) -> Survey:
    """Makes the copy that `survey_of_copy` describes, whose lock the caller holds, and recovers it."""
    files = FileWrites(sync=True)
    source, target = survey.source, survey.root
    copy_store(source, survey.log, target, files)
    mine = replace(options, log_directories=(), into=None)
    # The end stays that of the survey: bytes behind it may look like a message in a file of full length.
    survey.log = open_store_log(target, mine)
    if survey.holes:
        fill_holes(survey.log, f"{target}/commitlog", read_ledger(source), survey.holes, files)
        mine = replace(mine, cut_after_damage=True)  # What can be read lies before the end now.
    _carry_out(survey, mine, files)
    open_store(target, _commit_options(mine), files)
    end_copy(target, files)
    return survey


def survey_of_copy(source: str, target: str, options: RecoverOptions) -> Survey:
    """What a copy would get: the parts, the holes in the log that would be filled, the log's end."""
    log = open_store_log(source, options)
    journal = read_journal(source)
    if journal is not None and not is_given_up_in_copy(source, journal, log):
        raise StoreInUseError(
            f"{source}: a commit of rmqlog was interrupted, and only this store can complete it. Copy the "
            "whole directory (cp -a --sparse=always) and recover the copy"
        )
    survey = find_end(target, log, options, source)
    survey.copied = copy_parts(source, log)
    if options.salvage:
        readable = find_readable_end(source, log, survey.end)
        survey.holes = find_holes(log, survey.end.offset, readable, Contradictions(source, log))
        survey.end = end_of_salvaged(log, survey.end, readable)
        survey.ahead = [
            (queue, first_unit_from(queue, survey.end.offset))
            for queue in survey.queues
            if queue.last_physical_offset >= survey.end.offset
        ]
        survey.refused = None
    else:
        survey.holes = short_tails(log, survey.end.offset)
    check_holes(log, read_ledger(source), survey.holes)
    return survey


def _note_given_up(survey: Survey, options: RecoverOptions, files: FileWrites) -> None:
    """Notes which messages the recovery gives up, before their queue entries are removed."""
    ranges = [(hole.start, hole.stop) for hole in survey.holes]
    end = survey.end.offset
    gone = pointing_to(survey.queues, ranges)
    for each in pointing_to(survey.queues, [(end, OFFSET_MAX)]):
        # else entries of messages that an earlier recovery has cut
        if (options.cut_after_damage and not options.salvage) or not survey.log.has_message_at(each.physical):
            gone.append(each)
    messages = tuple((each.topic, each.queue_id, each.first, each.stop) for each in gone)
    fillers = ranges if survey.root != survey.source else []
    note_given_up(survey.root, GivenUp(messages, tuple(fillers)), files)
    before = read_ledger(survey.root)
    ledger = before.with_given_up(
        lambda last: last >= end or any(start <= last < stop for start, stop in ranges)
    )
    if ledger != before:
        write_ledger(survey.root, ledger, files)


def _commit_options(options: RecoverOptions) -> CommitOptions:
    return CommitOptions(
        log_directories=options.log_directories,
        settings=options.settings,
        is_queue_size_given=options.is_queue_size_given,
        cut_after_damage=options.cut_after_damage,
        ignore_missing_stores=options.ignore_missing_stores,
        message_index_enable=options.index,
        clock=options.clock,
    )


def _carry_out(survey: Survey, options: RecoverOptions, files: FileWrites) -> None:
    root = survey.root
    aside = rebuild_path(root)
    files.remove_tree(aside)
    files.make_directories(root, OWN_DIRECTORY, aside.rpartition("/")[2])
    built: list[IndexBuilder] = []

    def index(part: LogPart) -> None:
        check = survey.index
        if check is not None and check.is_empty and part.index is not None:
            if not built:
                built.append(_index_builder(check, 0, options, aside))
            built[0].add(part.index)

    queues = QueuesAside(aside, FileWrites(sync=False))
    look(survey, options, on_part=index, on_place=queues.put)
    _note_sizes(survey, options, files)
    _note_given_up(survey, options, files)
    write_topics(root, survey.topics, options.clock(), files)
    # Before the queues: of a recovery that is interrupted, the next one still sees them ahead.
    if survey.levels:
        levels = {each.level: each.end for each in survey.levels}
        write_delay_offsets(root, levels, timestamp=options.clock(), files=files)
    _cut_behind_end(survey, files)
    _change_queues(survey, queues, files)
    _change_index(survey, options, aside, files, built[0] if built else None)
    if survey.is_crashed:
        if survey.end.offset == survey.log.min_offset:
            lower_checkpoint(root, survey.log, survey.end)  # else the empty log looks like one that was lost
        # Complete, but the checkpoint does not say so: as after an ASYNC commit. `open_store` flushes it.
        write_abort_mark(root, "recovered", files)
        end_rebuild(root)
    if abort_mark(root):
        open_store(root, _commit_options(options), files)
    end_rebuild(root)
    files.remove(_sizes_path(root))


# ---- sizes -------------------------------------------------------------------------------------------------


def _sizes_path(root: str) -> str:
    return f"{root}/{OWN_DIRECTORY}/recover.json"


def _note_sizes(survey: Survey, options: RecoverOptions, files: FileWrites) -> None:
    """Notes the sizes of files: after a crash in between, no file of the store may show them any more."""
    if survey.index is not None and (survey.changes or survey.index.bad_from is not None):
        value = asdict(survey.settings) | {
            "batch": batch_file_size(survey.source, options.batch_queue_file_size)
        }
        files.replace(_sizes_path(survey.root), json.dumps(value).encode())


def with_noted_sizes(root: str, options: RecoverOptions) -> RecoverOptions:
    """The options, with the sizes that a recovery noted before it was interrupted."""
    data = read_bytes(_sizes_path(root))
    if data is None or options.settings is not None:
        return options
    try:
        value = json.loads(data)
        batch = int(value.pop("batch"))
        return replace(options, settings=StoreSettings(**value), batch_queue_file_size=batch)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise CorruptStoreError(
            _sizes_path(root), 0, "the sizes of a store", "something else; give them with --broker-conf"
        ) from error


def _cut_behind_end(survey: Survey, files: FileWrites) -> None:
    """Removes what points behind the log's end, then clears the log there."""
    root, log, end = survey.root, survey.log, survey.end
    settings = survey.settings
    directories = sorted({file.path.rpartition("/")[0] for file in log.files})
    log_files = LogFiles(log, directories, settings.mapped_file_size_commit_log, files)
    if survey.root != survey.source:
        lower_checkpoint(root, log, end)
    elif not survey.is_crashed:
        cut_queues(root, log, end, [queue for queue, _ in survey.ahead], settings.geometry, files)
    # A broker keeps a file that begins exactly at the end (MappedFileQueue.truncateDirtyFiles).
    log_files.clear_behind(cleared_from(log, end), keep=end.offset + 1 if survey.is_crashed else -1)
    # Only now: in a file of full length a message that was cut off could look whole.
    for short in survey.short:
        with files.open_full(short.path, log.file_size, extend=True)[0] as file:
            files.sync(file)


def _change_queues(survey: Survey, aside: QueuesAside, files: FileWrites) -> None:
    root = survey.root
    for change in survey.changes:
        if change.action in ("complete", "correct"):
            aside.correct(root, survey.compared[change.queue], survey.range, files)
        elif change.action == "replace":
            _replace_queue(root, aside, change, files)
    _create([change for change in survey.changes if change.action == "create"], survey, aside, files)
    for key, known in survey.past.items():
        _create_empty(survey, aside, key, known.offset, files)
    if survey.is_crashed:
        for topic, queue_id, directory, kind in list_queues(root, lambda _: True):
            with suppress(StoreError):  # a queue that is left as it is
                truncate(queue_state(survey.log, survey.end.offset, topic, queue_id, directory, kind), files)


def _sync(directory: str, files: FileWrites) -> None:
    for file in list_store_files(directory):
        with files.open(file.path) as opened:
            files.sync(opened)
    files.sync_directory(directory)


def _replace_queue(root: str, aside: QueuesAside, change: QueueChange, files: FileWrites) -> None:
    """Puts the built directory in the place of the old one, which is removed with `aside`."""
    built = aside.queues[change.queue]
    target = queue_directory(root, *change.queue, built.kind)
    _sync(built.directory, files)
    files.make_directories(aside.root, "old")
    old = f"{aside.root}/old/{len(entry_names(f'{aside.root}/old'))}"
    if not files.move(target, old):
        raise StoreWriteError(f"{target}: cannot move the directory to {old}: another file system")
    files.move(built.directory, target)
    files.sync_directory(target.rpartition("/")[0])


def _create(changes: Sequence[QueueChange], survey: Survey, aside: QueuesAside, files: FileWrites) -> None:
    root = survey.root
    if not changes:
        return
    is_all_new = not has_queue_files(root)
    files.give_like(
        aside.root, f"{root}/consumequeue" if stat_identity(f"{root}/consumequeue") is not None else root
    )
    new = {change.queue for change in changes}
    for key, built in aside.queues.items():
        if key in new:
            _sync(built.directory, files)
        else:
            files.remove_tree(built.directory)
            files.remove_directory(built.directory.rpartition("/")[0])
    simple = sorted(change.queue for change in changes if not change.is_batch)
    for key in sorted(new.difference(simple)):
        files.make_directories(root, FOLDERS["batch"], key[0])
        target = queue_directory(root, *key, "batch")
        clear_directory(target, files)
        if not files.move(aside.queues[key].directory, target):
            raise StoreWriteError(f"{target}: cannot move the built queue there: another file system")
        files.sync_directory(target.rpartition("/")[0])
    for key in move_in(root, aside.root, simple, is_all_new, files):
        moved = f"{aside.root}/{simple.index(key)}"
        aside.write_moved(root, survey.compared[key], moved, files)


def _create_empty(survey: Survey, aside: QueuesAside, key: QueueKey, stop: int, files: FileWrites) -> None:
    """Makes the files of a queue that ends at queue offset `stop` and whose messages are all expired."""
    size, topic = survey.settings.mapped_file_size_consume_queue, key[0]
    within = stop * CQ_UNIT.itemsize % size
    built, target = f"{aside.root}/empty", queue_directory(survey.root, *key)
    files.make_directories(aside.root, "empty")
    with files.create(f"{built}/{offset_file_name(stop * CQ_UNIT.itemsize - within)}", size) as file:
        file.write(0, pre_blank_bytes(within // CQ_UNIT.itemsize))
    _sync(built, files)
    files.make_directories(survey.root, FOLDERS["simple"], topic)
    clear_directory(target, files)
    if not files.move(built, target):
        raise StoreWriteError(f"{target}: cannot move the built queue there: another file system")
    files.sync_directory(target.rpartition("/")[0])


def _change_index(
    survey: Survey, options: RecoverOptions, aside: str, files: FileWrites, built: IndexBuilder | None
) -> None:
    check = survey.index
    if check is None or check.bad_from is None:
        return
    if built is None:
        built = _index_builder(check, check.kept(), options, aside)
        stop = survey.end.offset
        for part in index_parts(survey, options, built.start) if built.start < stop else ():
            if part.index is not None:
                built.add(part.index)
    built.close()
    move_index(check, f"{aside}/index", files)
    end = index_end(survey.root, survey.settings.geometry)
    checkpoint = read_checkpoint(f"{survey.root}/checkpoint") or Checkpoint()
    if end is not None and end > checkpoint.index_msg_timestamp:
        save_checkpoint(survey.root, replace(checkpoint, index_msg_timestamp=end), files)


def _index_builder(check: IndexCheck, kept: int, options: RecoverOptions, aside: str) -> IndexBuilder:
    now = options.clock()
    zone = datetime.timezone(datetime.timedelta(seconds=time.localtime(now // 1000).tm_gmtoff))
    return IndexBuilder(check, kept, f"{aside}/index", now, zone, FileWrites(sync=False))
