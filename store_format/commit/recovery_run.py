"""Carries out a recovery under the store's lock, in place or into a copy, so that it can be repeated after a
crash.
"""

from __future__ import annotations

from dataclasses import replace

from store_format.bookkeeping.journal import abort_mark, read_journal, write_abort_mark
from store_format.bookkeeping.ledger import read_ledger
from store_format.bookkeeping.settings import size_of_cut_file
from store_format.bookkeeping.staged_file import OWN_DIRECTORY
from store_format.commit.cluster import RECOVER_IGNORING
from store_format.commit.held_store import open_log
from store_format.commit.journal_place import is_given_up_in_copy
from store_format.commit.options import CommitOptions
from store_format.commit.prepare_store import open_store
from store_format.commit.recover_options import RecoverOptions
from store_format.commit.repair import (
    Survey,
    carry_out,
    end_rebuild,
    find_end,
    sizes_path,
    with_noted_sizes,
)
from store_format.commit.salvage import check_holes, end_of_salvaged, fill_holes, find_holes, short_tails
from store_format.commit.store_copy import copy_parts, copy_store, end_copy
from store_format.commitlog.log import CommitLog
from store_format.errors import StoreInUseError
from store_format.files.view import FileCache
from store_format.files.write import FileWrites
from store_format.survey.contradicted import Contradictions
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
    survey = carry_out(survey, files)
    _finish(survey, files)
    return survey


def carry_out_into(survey: Survey) -> Survey:
    """Makes the copy that `survey_of_copy` describes, whose lock the caller holds, and recovers it."""
    files = FileWrites(sync=True)
    source, target = survey.source, survey.root
    copy_store(source, survey.log, target, files)
    mine = replace(survey.options, log_directories=(), into=None)
    # The end stays that of the survey: bytes behind it may look like a message in a file of full length.
    survey.log = open_store_log(target, mine)
    if survey.holes:
        fill_holes(survey.log, f"{target}/commitlog", read_ledger(source), survey.holes, files)
        mine = replace(mine, cut_after_damage=True)  # What can be read lies before the end now.
    survey.options = mine
    survey = carry_out(survey, files)
    _finish(survey, files)
    open_store(target, _commit_options(mine), files)
    end_copy(target, files)
    return survey


def _finish(survey: Survey, files: FileWrites) -> None:
    root = survey.root
    if survey.is_crashed:
        # Complete, but the checkpoint does not say so: as after an ASYNC commit. `open_store` flushes it.
        write_abort_mark(root, "recovered", files)
        end_rebuild(root)
    if abort_mark(root):
        open_store(root, _commit_options(survey.options), files)
    end_rebuild(root)
    files.remove(sizes_path(root))


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
        survey.holes = find_holes(log, survey.stop, readable, Contradictions(source, log))
        survey.end_at(end_of_salvaged(log, survey.end, readable))
        survey.refused = None
    else:
        survey.holes = short_tails(log, survey.stop)
    check_holes(log, read_ledger(source), survey.holes)
    return survey


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
