"""What makes one commit of the parts of several stores: their journals.

Every store gets the journal, which names all members. Then the journal of every store is marked complete.
Then the stores publish one after the other. A crash before the first mark leaves nothing; after that every
member completes its part. Members look at each other's journals and ledgers without a lock: an incomplete
journal is rolled forward only if another store of the cluster has a complete one, or has published its part.
A store that went on since remembers which members may not know (`note_begun`).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace

from store_format.bookkeeping.journal import Journal, journal_path, read_journal, write_journal
from store_format.bookkeeping.ledger import read_ledger, write_ledger
from store_format.commit.repeats import CommittedBatch
from store_format.errors import StoreNotFoundError, StoreWriteError
from store_format.files.write import FileWrites


def write_journals(journals: Mapping[str, Journal], files: FileWrites) -> None:
    """Writes the journals of a commit, by store root.

    A failure takes all of them back. In a cluster every journal is incomplete again before the first one is
    removed: at no moment does a store see a complete set while another store has no journal.
    """
    parts = [(root, journal) for root, journal in journals.items() if journal.members]
    try:
        for root, journal in parts:
            write_journal(root, replace(journal, complete=False), files)
        for root, journal in journals.items():
            write_journal(root, journal, files)
    except BaseException as error:
        try:
            for root, journal in parts:
                if read_journal(root) is not None:
                    write_journal(root, replace(journal, complete=False), files)
            for root in journals:
                files.remove(journal_path(root))
                files.sync_directory(journal_path(root).rpartition("/")[0])
        except Exception as second:
            decision = (
                "each store's next writer completes or drops it" if parts else "the next writer completes it"
            )
            raise StoreWriteError(
                f"{second}; before that: {error}. The commit is neither complete nor undone: "
                f"{', '.join(map(journal_path, journals))} may exist, and {decision}. Run the job again only "
                "if it writes with a key"
            ) from error
        raise


def is_begun(journal: Journal) -> bool:
    """Whether the commit must be completed: a member has a complete journal, or has published its part."""
    return journal.complete or any(_has_begun(member, journal.id) for member in journal.members)


def committed_batch(root: str, key: tuple[str, int]) -> CommittedBatch | None:
    """The committed batch with the key's number or a later one; None without it.

    A batch that the store's next writer will complete counts as committed.
    """
    ledger = read_ledger(root)
    if ledger.has(key):
        entry = ledger.keys[key[0]]
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
    """Notes which members may not know that the commit has begun, before this store completes its part."""
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
    """Whether the member has an incomplete journal. True for a missing store: it may come back."""
    if not os.path.isdir(member):
        return True
    journal = read_journal(member)
    return journal is not None and journal.id == journal_id and not journal.complete
