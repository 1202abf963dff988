"""A lost commitlog: its disk is not mounted, or the broker's storePathCommitLog is another directory.

An empty directory in its place looks like a new store. A message at physical offset 0 would then overwrite
the consume queue entries of the messages in the lost log.
"""

from __future__ import annotations

from store_format.bookkeeping.journal import abort_mark, read_journal
from store_format.bookkeeping.ledger import read_ledger
from store_format.commitlog.log import CommitLog
from store_format.consumequeue.bounds import queue_bounds
from store_format.consumequeue.listing import list_queues
from store_format.errors import CorruptStoreError, StoreNotFoundError
from store_format.metadata.checkpoint import read_checkpoint

_HEAD_SIZE = 8  # of a unit or a BLANK: never all zero


def refuse_lost_log(root: str, log: CommitLog, directories: tuple[str, ...]) -> None:
    """Raises StoreNotFoundError when the commitlog is empty and other files of the store know of messages.

    Costs one read where the commitlog is not empty.
    """
    if log.files and (log.min_offset or any(log.read(0, _HEAD_SIZE)) or abort_mark(root) == ""):
        return  # After a crash the queues of a new log may be on the disk, and its log not.
    journal = read_journal(root)
    if journal is not None and not journal.base:
        return  # The first commit was broken off: it is completed from byte 0 of the log.
    known = _known_messages(root)
    if known is not None:
        raise StoreNotFoundError(
            f"{root}: the commitlog ({', '.join(directories)}) has no message, but {known}. Nothing was "
            "changed. Mount the commitlog's disk, or give the commitlog's directory (storePathCommitLog) as "
            "commit_log_paths. To begin a new store, give an empty directory"
        )


def _known_messages(root: str) -> str | None:
    """A clause about the messages that other files of the store know of; None when they know of none."""
    last = read_ledger(root).last
    if last is not None and last.last_size:
        return f"{root}/.rmqlog/ledger.json has commits up to physical offset {last.stop}"
    for topic, queue_id, directory, kind in list_queues(root, lambda _: True):
        try:
            bounds = queue_bounds(kind, directory, topic, queue_id, 0)
        except CorruptStoreError as error:
            return f"consume queue {topic}-{queue_id} has files ({error})"
        if bounds is not None and bounds.unit_stop > bounds.unit_start:
            return f"consume queue {topic}-{queue_id} has entries up to offset {bounds.max_offset}"
    checkpoint = read_checkpoint(f"{root}/checkpoint")
    for name in (
        ("physic_msg_timestamp", "logics_msg_timestamp", "confirm_phy_offset", "logics_physical_offset")
        if checkpoint
        else ()
    ):
        if getattr(checkpoint, name) > 0:
            return f"{root}/checkpoint has {name} {getattr(checkpoint, name)}"
    return None
