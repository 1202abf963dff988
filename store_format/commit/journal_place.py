"""Whether the commitlog that a writer opens is the one that a journal belongs to.

A store may be copied, renamed or mounted elsewhere after its writer died. Its commit is completed only in its
own commitlog: in another store the same bytes would overwrite messages.
"""

from __future__ import annotations

from zlib import crc32

from store_format.bookkeeping.identity import LogPlace, is_log_place, log_id_path
from store_format.bookkeeping.journal import Journal, journal_path
from store_format.commitlog.log import CommitLog
from store_format.errors import StoreError, StoreNotFoundError

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


def refuse_other_log(root: str, journal: Journal, log: CommitLog) -> None:
    """Raises StoreNotFoundError unless the opened log is the journal's; changes nothing.

    A log inside the store moves with the store. A log elsewhere must have the journal's id, and end where the
    log of the commit ended.
    """
    directories = log.directories
    for place in journal.log_places:
        if sum(is_log_place(root, place, directory) for directory in directories) != 1:
            raise _other_log(root, journal, place, directories)
    if len(directories) != len(journal.log_places):
        raise _other_log(root, journal, journal.log_places[0], directories)
    if any(place.id for place in journal.log_places) and not _holds_base(journal, log):
        raise StoreNotFoundError(
            f"{journal_path(root)}: a commit of {journal.units} messages was interrupted, and is completed "
            f"only in its own commitlog: expected {', '.join(directories)} with the messages before physical "
            f"offset {journal.base}, found other bytes there. Nothing was changed. Restore the commitlog as "
            "it was when the commit was interrupted, or give the messages of the commit up: remove this file"
        )


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
    root: str, journal: Journal, place: LogPlace, directories: tuple[str, ...]
) -> StoreNotFoundError:
    found = ", ".join(directories)
    if place.id:
        expected = f"the commitlog directory with the id {place.id}, which was {place.path}"
        advice = (
            "Give that directory as commit_log_paths. If it was moved or copied to DIRECTORY, move or copy "
            f"{log_id_path(place.path)}, which has the id, to DIRECTORY.rmqlog-id"
        )
    elif place.path.startswith("/"):
        expected = f"{place.path}, where an older version of rmqlog began the commit"
        advice = "Move the store back to that path, complete the commit there, and move the store again"
    else:
        expected = f"{root}/{place.path}"
        advice = "Give the commitlog's directories as when the commit began (commit_log_paths)"
    return StoreNotFoundError(
        f"{journal_path(root)}: a commit of {journal.units} messages was interrupted, and is completed only "
        f"in its own commitlog: expected {expected}, found {found}. Nothing was changed. {advice}"
    )
