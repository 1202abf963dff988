"""One commit over the stores of a cluster: each store takes its part whole, and the whole batch counts once.

Locks are taken in the order of names. A journal that names all members goes into every store, then each is
told that all have theirs, then they publish one after the other. Before the second step a crash leaves
nothing, from there on everything.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace

from store_format.bookkeeping.journal import Journal, journal_path, read_journal, write_journal
from store_format.bookkeeping.staged_file import StagedFile
from store_format.commit.append import (
    CommitOptions,
    CommitResult,
    carry_out,
    check,
    late_reports,
    note_empty,
    prepare,
    result_of,
)
from store_format.commit.cluster_state import committed_batch
from store_format.commit.prepare_store import open_store
from store_format.commit.publication import Publication
from store_format.commit.repeats import note_repeat, totals
from store_format.commit.staged_units import remove_staging
from store_format.commit.steps import write_topics
from store_format.commit.unsupported import refuse_store
from store_format.errors import StoreWriteError
from store_format.files.lock import StoreLock
from store_format.files.write import FileWrites

__all__ = ["commit_cluster"]


def commit_cluster(
    members: Mapping[str, Sequence[StagedFile]],
    *,
    key: tuple[str, int] | None = None,
    store_timestamp: int | None = None,
    watched: Collection[str] = (),
    options: CommitOptions | None = None,
) -> dict[str, CommitResult]:
    """`append.commit` for several store roots (absolute paths), each with the files staged in it; the result
    of each.

    A key that any member has is committed: a broken-off commit is finished in all members first. `watched`
    are stores of the cluster that take no part now: what they have of the key counts too, only nothing is
    changed in them. New topics are made in every member. `options.log_directories` is left out of account,
    each store has its own `commitlog`.
    """
    options = replace(options or CommitOptions(), log_directories=())
    files = FileWrites(sync=options.sync)
    roots = sorted(members)
    for root in roots:
        refuse_store(root)
    with ExitStack() as stack:
        locks = {root: stack.enter_context(StoreLock(root, timeout=options.lock_timeout)) for root in roots}
        for lock in locks.values():
            lock.refuse_other_openers()
        opened = {root: open_store(root, options, files) for root in roots}
        all_staged = [each for root in roots for each in members[root]]
        for root in (*roots, *watched) if key is not None else ():
            committed = committed_batch(root, key) if key is not None else None
            if key is not None and committed is not None:
                report = note_repeat(root, key, committed, all_staged, is_stream=options.keeps_key)
                for each in roots:
                    remove_staging(each, members[each], files)
                return {each: CommitResult(False, reports=(report,)) for each in roots}
        reports = {root: check(root, opened[root], members[root], records_sum=True) for root in roots}
        filled = [root for root in roots if any(each.units for each in members[root])]
        journals = [
            prepare(root, opened[root], tuple(members[root]), key, store_timestamp, options, files)[0]
            for root in filled
        ]
        messages, bodies = totals(all_staged)
        shared = {
            root: replace(each, id=journals[0].id, members=tuple(filled), messages=messages, bodies=bodies)
            for root, each in zip(filled, journals, strict=True)
        }
        parts = {
            root: (journal, Publication(root, journal, opened[root].log, files))
            for root, journal in shared.items()
        }
        for root in roots if filled else ():
            if root not in filled:
                write_topics(root, options.new_topics, options.clock(), files)
        _announce(shared, files)
        for root, (journal, publication) in parts.items():
            carry_out(root, journal, publication, files, may_undo=False)
        for root in roots:
            if root not in filled:
                note_empty(
                    root, opened[root].ledger, key, files, (messages, bodies), keeps_key=options.keeps_key
                )
            remove_staging(root, members[root], files)
            reports[root] += late_reports(
                locks[root], root, parts[root][0].id if root in parts else "", files
            )
    return {
        root: result_of(parts[root][1], reports[root], files)
        if root in parts
        else CommitResult(True, reports=reports[root])
        for root in roots
    }


def _announce(journals: Mapping[str, Journal], files: FileWrites) -> None:
    """Every member gets the journal, then every member is told that all have it.

    A failure takes the second step back in all of them before the first journal is removed: at no moment does
    one member believe the set complete while another has nothing.
    """
    try:
        for root, journal in journals.items():
            write_journal(root, replace(journal, complete=False), files)
        for root, journal in journals.items():
            write_journal(root, journal, files)
    except BaseException as error:
        try:
            for root, journal in journals.items():
                if read_journal(root) is not None:
                    write_journal(root, replace(journal, complete=False), files)
            for root in journals:
                files.remove(journal_path(root))
        except Exception as second:
            raise StoreWriteError(
                f"{second}; before that: {error}. The commit is neither complete nor undone in {', '.join(journals)}; "
                "the next writer of each decides. Do not run the job again unless it writes with a key"
            ) from error
        raise
