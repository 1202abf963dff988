"""What the stores of a cluster know of each other's part in a commit, by journals and ledgers alone: no
member's lock is needed to look.

A journal that is not complete counts only once another member has begun. That one may have gone on since, so
it remembers.
"""

from __future__ import annotations

import os
from dataclasses import replace

from store_format.bookkeeping.journal import Journal, read_journal
from store_format.bookkeeping.ledger import read_ledger, write_ledger
from store_format.commit.repeats import CommittedBatch
from store_format.errors import StoreNotFoundError
from store_format.files.write import FileWrites

__all__ = ["committed_batch", "is_begun", "note_begun"]


def is_begun(journal: Journal) -> bool:
    """Whether the commit is to be completed: some member knows that all have the journal, or has published
    its part.
    """
    return journal.complete or any(_has_begun(member, journal.id) for member in journal.members)


def committed_batch(root: str, key: tuple[str, int]) -> CommittedBatch | None:
    """The key's batch, or a later one, that is committed in that store, or will be by its next writer; None
    without one.
    """
    entry = read_ledger(root).keys.get(key[0])
    if entry is not None and entry.number >= key[1]:
        return CommittedBatch(entry.number, entry.messages, entry.bodies)
    journal = read_journal(root)
    if (
        journal is None
        or journal.key is None
        or journal.key[0] != key[0]
        or journal.key[1] < key[1]
        or not is_begun(journal)
    ):
        return None
    return CommittedBatch(journal.key[1], journal.messages, journal.bodies)


def note_begun(root: str, journal: Journal, files: FileWrites) -> None:
    """Before a store completes its part after a crash: which members do not know yet that all have the
    journal.
    """
    ledger = read_ledger(root)
    begun = {**ledger.begun, journal.id: tuple(member for member in journal.members if member != root)}
    waiting = {
        journal_id: members
        for journal_id, members in begun.items()
        if any(_may_wait(member, journal_id) for member in members)
    }
    if waiting != ledger.begun:
        write_ledger(root, replace(ledger, begun=waiting), files)


def _has_begun(member: str, journal_id: str) -> bool:
    try:
        journal = read_journal(member)
        ledger = read_ledger(member)
    except StoreNotFoundError:
        return False
    if journal is not None and journal.id == journal_id and journal.complete:
        return True
    return journal_id in ledger.begun or (ledger.last is not None and ledger.last.journal == journal_id)


def _may_wait(member: str, journal_id: str) -> bool:
    """Also a store that is not there now: it may come back."""
    if not os.path.isdir(member):
        return True
    journal = read_journal(member)
    return journal is not None and journal.id == journal_id and not journal.complete
