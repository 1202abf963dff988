"""What makes one commit of the parts of several stores: their journals.

Every store gets the journal, which names all members. Then the journal of every store is marked complete.
Then the stores publish, large parts at the same time. A crash before the first mark leaves nothing; after
that every member completes its part. Members look at each other's journals and ledgers without a lock: an
incomplete journal is rolled forward only if another store of the cluster has a complete one, or has published
its part. A store that went on since remembers which members may not know (`note_begun`). A member that cannot
be asked, because another store or none is at its place, may have published: the others wait for it.

A key is committed once in all stores, also if some are in use or missing at times. Each ledger names the
stores of its batches. A store that is left out gets a note (`left_out`). And no batch with a key is written
while a store that a ledger or a note names is missing, because that store could not be told.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from dataclasses import replace

from store_format.bookkeeping.identity import ClusterMember
from store_format.bookkeeping.journal import Journal, State, Writing
from store_format.bookkeeping.ledger import CommittedBatch, Ledger, LeftOut
from store_format.display.text import shown
from store_format.errors import StoreNotFoundError, StoreWriteError
from store_format.files import paths
from store_format.files.write import FileWrites
from store_format.opened.store import Opened

_log = logging.getLogger(__name__)

# How the caller says that a store does not come back.
WRITE_IGNORING = "write once with ignoreMissingStores=true (CommitOptions.ignore_missing_stores)"
RECOVER_IGNORING = "recover once with --ignore-missing-stores (ignore_missing_stores=True)"


def write_journals(journals: Mapping[str, Journal], files: FileWrites) -> None:
    """Writes the journals of a commit, by store root.

    A failure takes all of them back. In a cluster every journal is incomplete again before the first one is
    removed: at no moment does a store see a complete set while another store has no journal.
    """
    parts = [(root, journal) for root, journal in journals.items() if journal.members]
    try:
        for root, journal in parts:
            replace(journal, complete=False).write(Opened(root), files)
        for root, journal in journals.items():
            journal.write(Opened(root), files)
    except BaseException as error:
        try:
            for root, journal in parts:
                if Journal.read(Opened(root)) is not None:
                    replace(journal, complete=False).write(Opened(root), files)
            for root in journals:
                files.remove(Journal.path(Opened(root)))
                files.sync_directory(Journal.path(Opened(root)).rpartition("/")[0])
        except Exception as second:
            decision = (
                "each store's next writer completes or drops it" if parts else "the next writer completes it"
            )
            raise StoreWriteError(
                f"{second}; before that: {error}. The commit is neither complete nor undone: "
                f"{', '.join(Journal.path(Opened(root)) for root in journals)} may exist, and {decision}. "
                "Run the job again only if it writes with a key"
            ) from error
        raise


def is_begun(
    opened: Opened, journal: Journal, *, ignore_missing: bool = False, way_out: str = WRITE_IGNORING
) -> bool:
    """Whether the commit must be completed: a member has a complete journal, or has published its part.

    Raises StoreNotFoundError if no member says so and some cannot be asked. With `ignore_missing` these are
    taken to be lost, and the commit has not begun. `way_out` is how the error says to set it.
    """
    if State.of(opened, journal).writing is not Writing.ASK:
        return True
    silent = []
    for member in journal.members:
        answer = _answer(opened, member, journal)
        if answer:
            return True
        if answer is None:
            silent.append(member)
    names = ", the store ".join(f"{each.path_beside(opened)} with the id {each.id}" for each in silent)
    if silent and not ignore_missing:
        copied = next(
            (each for each in silent if _is_own_id(opened, each) and _can_be_asked(opened, each)), None
        )
        if copied is not None:
            raise StoreNotFoundError(
                f"{opened}: a commit over several stores was interrupted. This store is a copy of the store "
                f"{names}, or the store at that place is a copy of this one, and it is unknown whether the "
                f"part of {journal.units} messages belongs here. Nothing was changed. Complete the commit in "
                f"{copied.path_beside(opened)}, and remove the copy, or move it out of the directory of the "
                f"cluster. To use the copy too, {way_out}: it then drops its part"
            )
        raise StoreNotFoundError(
            f"{opened}: a commit over several stores was interrupted, and this store completes its part of "
            f"{journal.units} messages only if the commit has begun elsewhere: expected the store "
            f"{names}, found no such store. Nothing was changed. Mount or move it to "
            f"this place, and try again. If it does not come back, {way_out}: this store then drops its "
            "part, and the job writes the whole batch when it runs again"
        )
    if silent:
        _log.warning(
            "%s: its part of an interrupted commit, %d messages, is dropped, because %s does not come back",
            opened.path,
            journal.units,
            shown(names),
        )
    return False


def committed_batch(
    opened: Opened, key: tuple[str, int], *, ignore_missing: bool = False
) -> CommittedBatch | None:
    """The committed batch with the key's number or a later one; None without it.

    A batch that the store's next writer will complete counts as committed. Raises what `is_begun` raises.
    """
    ledger = Ledger.read(opened)
    if ledger.has(key):
        entry = ledger.keys[key[0]]
        return CommittedBatch(entry.number, entry.messages, entry.bodies)
    journal = Journal.read(opened)
    if (
        journal is None
        or journal.key is None
        or journal.key[0] != key[0]
        or journal.key[1] < key[1]
        or not is_begun(opened, journal, ignore_missing=ignore_missing)
    ):
        return None
    return CommittedBatch(journal.key[1], journal.messages, journal.bodies)


def note_begun(opened: Opened, journal: Journal, files: FileWrites) -> None:
    """Notes which members may not know that the commit has begun, before this store completes its part."""
    ledger = Ledger.read(opened)
    others = tuple(member for member in journal.members if not _is_self(opened, member))
    begun = {**ledger.begun, journal.id: others}
    waiting = {
        journal_id: members
        for journal_id, members in begun.items()
        if any(_may_wait(opened, member, journal_id) for member in members)
    }
    if waiting != ledger.begun:
        replace(ledger, begun=waiting).write(opened, files)


def refuse_missing_stores(
    members: Collection[str],
    left_out: Collection[str],
    key: tuple[str, int],
    files: FileWrites,
    *,
    ignore_missing: bool,
) -> None:
    """Raises StoreNotFoundError if a ledger or a note of these stores names a store that is not among them.

    `members` are the stores that are written to, `left_out` those that are only read. With `ignore_missing`
    the members forget the missing stores instead.
    """
    present = {ClusterMember.id_of(Opened(root)) for root in (*members, *left_out)}
    missing: dict[str, str] = {}  # by id
    for root in (*members, *left_out):
        for member in sorted(Ledger.read(Opened(root)).members | LeftOut.all_members(Opened(root))):
            if member.id not in present:
                missing.setdefault(member.id, f"{member.path_beside(Opened(root))} with the id {member.id}")
    if not missing:
        return
    names = ", the store ".join(missing.values())
    if not ignore_missing:
        raise StoreNotFoundError(
            f"batch {key[1]} of {key[0]}: expected the store {names}, found no such store. The batch may be "
            "committed there, and would then be written twice. Nothing was written. Mount or move the store "
            "to this place, and write again. If it does not come back, write with "
            "ignoreMissingStores=true (CommitOptions.ignore_missing_stores); once is enough if no other "
            "store of the cluster is in use"
        )
    _log.warning(
        "batch %d of %s: written without the store %s, which does not come back", *key[::-1], shown(names)
    )
    for root in members:
        ledger = Ledger.read(Opened(root))
        if not missing.keys().isdisjoint(member.id for member in ledger.members):
            ledger.without_members(missing).write(Opened(root), files)
        LeftOut.forget_members(Opened(root), missing, files)


def _is_self(opened: Opened, member: ClusterMember) -> bool:
    """Whether the member is the store at `opened`, which may have another name by now."""
    if paths.real(opened.path) == paths.real(member.path_beside(opened)):
        return True
    return _is_own_id(opened, member) and not _can_be_asked(opened, member)


def _is_own_id(opened: Opened, member: ClusterMember) -> bool:
    return ClusterMember.id_of(opened) == member.id


def _can_be_asked(opened: Opened, member: ClusterMember) -> bool:
    """Whether the member is at its place."""
    return ClusterMember.id_of(Opened(member.path_beside(opened))) == member.id


def _answer(opened: Opened, member: ClusterMember, journal: Journal) -> bool | None:
    """Whether the member says that the commit has begun; None if it cannot be asked."""
    if _is_self(opened, member):
        return False
    if not _can_be_asked(opened, member):
        return None
    if _has_begun(member.path_beside(opened), journal.id):
        return True
    # A copy of this store: what it has forgotten, or never knew, says nothing.
    return None if _is_own_id(opened, member) else False


def _has_begun(member: str, journal_id: str) -> bool:
    journal = Journal.read(Opened(member))
    ledger = Ledger.read(Opened(member))
    if journal is not None and journal.id == journal_id and journal.complete:
        return True
    return journal_id in ledger.begun or (ledger.last is not None and ledger.last.journal == journal_id)


def _may_wait(opened: Opened, member: ClusterMember, journal_id: str) -> bool:
    """Whether the member has an incomplete journal. True if it cannot be asked: it may come back."""
    if not _can_be_asked(opened, member):
        return True
    journal = Journal.read(Opened(member.path_beside(opened)))
    return journal is not None and journal.id == journal_id and not journal.complete
