"""What the next writer does with a commit that was interrupted: it completes it, drops it, or refuses.

A store may be copied, renamed or mounted elsewhere after its writer died. Its commit is completed only in its
own commitlog: in another store the same bytes would overwrite messages. Writers, `verify` and `recover` ask
the same functions.
"""

from __future__ import annotations

from zlib import crc32

from store_format.bookkeeping.identity import LogPlace
from store_format.bookkeeping.journal import Journal, State, Writing
from store_format.commit.cluster import WRITE_IGNORING, is_begun
from store_format.commit.staged_units import check_staged, check_times
from store_format.commitlog.log import CommitLog
from store_format.errors import CorruptStoreError, OffsetOutOfRangeError, StoreError, StoreNotFoundError
from store_format.opened.store import Opened
from store_format.survey.gone import LostLog

_INTO = "recover a copy: rmqlog recover STORE --into NEW --apply (recover, with into=)"
_COMPARED_MAX = 1 << 10  # bytes; the first ones of a message have its place, its times and its body's CRC


def bytes_before(log: CommitLog, base: int, last_offset: int) -> tuple[int, int, int] | None:
    """(Physical offset, length, CRC32) of the first bytes of the last message before `base`.

    None without a message, `last_offset` -1.
    """
    file = log.file_at(last_offset)
    if last_offset < 0 or file is None:
        return None
    length = min(base, file.stop, last_offset + _COMPARED_MAX) - last_offset
    return last_offset, length, crc32(log.read(last_offset, length))


def is_to_complete(
    opened: Opened,
    journal: Journal,
    log: CommitLog,
    *,
    ignore_missing: bool = False,
    way_out: str = WRITE_IGNORING,
) -> bool:
    """Whether the next writer completes the commit in the opened log; False if it drops the commit.

    Changes nothing. Raises what `refuse_other_log` and `is_begun` raise.
    """
    refuse_other_log(opened, journal, log)
    return is_begun(opened, journal, ignore_missing=ignore_missing, way_out=way_out)


def will_complete(
    opened: Opened,
    journal: Journal,
    log: CommitLog,
    *,
    ignore_missing: bool = False,
    way_out: str = WRITE_IGNORING,
) -> bool:
    """`is_to_complete`, for those who only look: raises whatever would make the next writer refuse."""
    LostLog.refuse(opened, log)
    completes = is_to_complete(opened, journal, log, ignore_missing=ignore_missing, way_out=way_out)
    if completes and not is_concluded(opened, journal):
        if is_lost_with_power(opened, journal):
            return False
        refuse_incomplete(opened, journal, log)
    return completes


def is_lost_with_power(opened: Opened, journal: Journal) -> bool:
    """Whether staged files of a commit with ASYNC_FLUSH never reached the disk: nobody can complete it."""
    return not journal.sync and isinstance(_staged_error(opened, journal), CorruptStoreError)


def is_given_up(opened: Opened, journal: Journal, *, cut_after_damage: bool) -> bool:
    """Whether the next writer gives up a commit whose staged files are missing, as in a copy that was made
    during the commit: only with the option. The part of a commit over a cluster is never given up, because
    other stores may have published theirs: the job would not write the part again.
    """
    if not cut_after_damage or journal.members or is_concluded(opened, journal):
        return False
    return isinstance(_staged_error(opened, journal), StoreNotFoundError)


def _staged_error(opened: Opened, journal: Journal) -> StoreError | None:
    """Why the staged files are not as they were written: CorruptStoreError or StoreNotFoundError; or None."""
    try:
        _check_all_staged(opened, journal)
    except (CorruptStoreError, StoreNotFoundError) as error:
        return error
    return None


def _check_all_staged(opened: Opened, journal: Journal) -> None:
    for staged in journal.staged:
        check_staged(opened, staged)
    check_times(journal.times_path(opened), journal.units)


def is_concluded(opened: Opened, journal: Journal) -> bool:
    """Whether all of the commit is done but the removal of the journal."""
    return State.of(opened, journal).writing in (Writing.CONCLUDE, Writing.CONCLUDE_AND_REPAIR)


def refuse_incomplete(opened: Opened, journal: Journal, log: CommitLog) -> None:
    """Raises StoreNotFoundError or CorruptStoreError for staged files that are not as they were written.

    Raises OffsetOutOfRangeError if retention has deleted the log at the commit's base: what was written is
    unknown then.
    """
    error = _staged_error(opened, journal)
    if isinstance(error, StoreNotFoundError) and not journal.members:
        raise StoreNotFoundError(
            f"{error}. If this is a copy without that file, give up the commit and run its job again: rmqlog "
            "recover STORE --cut-after-damage --apply"
        ) from error
    if error is not None:
        raise error
    if is_base_deleted(journal, log):
        raise OffsetOutOfRangeError(
            f"{opened}: a commit was interrupted at physical offset {journal.base}, but the commitlog now "
            f"begins at {log.min_offset}, so it is unknown which of its {journal.units} messages were "
            f"written. Nothing was changed. To go on with what the commitlog has, {_INTO}; then write the "
            "messages again that are missing there"
        )


def is_base_deleted(journal: Journal, log: CommitLog) -> bool:
    return bool(log.files) and journal.base < log.min_offset


def is_given_up_in_copy(opened: Opened, journal: Journal, log: CommitLog) -> bool:
    """Whether no writer can complete the commit in this log, so that a recovered copy does without it."""
    if _is_placed(opened, journal, log) and _has_other_bytes(journal, log):
        return True
    return is_base_deleted(journal, log) and not is_concluded(opened, journal)


def refuse_other_log(opened: Opened, journal: Journal, log: CommitLog) -> None:
    """Raises StoreNotFoundError unless the opened log is the journal's; changes nothing.

    A log inside the store moves with the store. A log elsewhere must have the journal's id, and end where the
    log of the commit ended.
    """
    directories = log.directories
    for place in journal.log_places:
        if not _is_there(opened, place, directories):
            raise _other_log(opened, journal, place, directories)
    if not _is_placed(opened, journal, log):
        raise _other_log(opened, journal, journal.log_places[0], directories)
    if _has_other_bytes(journal, log):
        raise StoreNotFoundError(
            f"{Journal.path(opened)}: a commit of {journal.units} messages was interrupted, and is completed "
            f"only in its own commitlog: expected {', '.join(directories)} with the messages before physical "
            f"offset {journal.base}, found other bytes there. Nothing was changed. Restore the commitlog as "
            f"it was when the commit was interrupted. To go on without it, {_INTO}: the copy has what the "
            "commitlog has, and none of the commit"
        )


def _is_placed(opened: Opened, journal: Journal, log: CommitLog) -> bool:
    """Whether the log's directories are those of the journal."""
    return len(log.directories) == len(journal.log_places) and all(
        _is_there(opened, place, log.directories) for place in journal.log_places
    )


def _is_there(opened: Opened, place: LogPlace, directories: tuple[str, ...]) -> bool:
    return sum(place.is_at(opened, directory) for directory in directories) == 1


def _has_other_bytes(journal: Journal, log: CommitLog) -> bool:
    return any(place.id for place in journal.log_places) and not _holds_base(journal, log)


def _holds_base(journal: Journal, log: CommitLog) -> bool:
    """Whether the log has the message before the base, unless retention has deleted that message since."""
    if not log.files:
        return not journal.base
    if journal.base > log.stop:
        return False
    if journal.before is None or journal.before[0] < log.min_offset:
        return True
    offset, length, expected = journal.before
    try:
        return crc32(log.read(offset, length)) == expected
    except StoreError:
        return False


def _other_log(
    opened: Opened, journal: Journal, place: LogPlace, directories: tuple[str, ...]
) -> StoreNotFoundError:
    found = ", ".join(directories)
    if place.id:
        expected = f"the commitlog directory with the id {place.id}, which was {place.path}"
        advice = (
            "Give that directory as commit_log_paths. If it was moved or copied to DIRECTORY, move or copy "
            f"{LogPlace.id_path(place.path)}, which has the id, to DIRECTORY.rmqlog-id"
        )
    else:
        expected = f"{opened.path}/{place.path}"
        advice = "Give the commitlog's directories as when the commit began (commit_log_paths)"
    return StoreNotFoundError(
        f"{Journal.path(opened)}: a commit of {journal.units} messages was interrupted, and is completed "
        f"only in its own commitlog: expected {expected}, found {found}. Nothing was changed. {advice}"
    )
