"""A commitlog that is not where it was: its disk is not mounted, or the broker's storePathCommitLog is
another directory.

An empty directory in its place looks like a new store. A message at physical offset 0 would overwrite the
consume queues' entries of what is in the log.
"""

from __future__ import annotations

from store_format.bookkeeping.journal import abort_mark, read_journal
from store_format.bookkeeping.ledger import read_ledger
from store_format.commitlog.log import CommitLog
from store_format.consumequeue.batch import batch_queue_bounds
from store_format.consumequeue.listing import list_queues
from store_format.consumequeue.simple import simple_queue_bounds
from store_format.errors import StoreNotFoundError
from store_format.metadata.checkpoint import read_checkpoint

__all__ = ["refuse_lost_log"]

_HEAD_SIZE = 8  # of a unit or a BLANK: never all zero


def refuse_lost_log(root: str, log: CommitLog, directories: tuple[str, ...]) -> None:
    """Raises StoreNotFoundError when the log is empty and the store knows of messages in it. Costs one read
    where it is not.
    """
    if log.files and (log.min_offset or any(log.read(0, _HEAD_SIZE)) or abort_mark(root) == ""):
        return  # a crash may have kept all of a new log from the disk, but not its queues
    journal = read_journal(root)
    if journal is not None and not journal.base:
        return  # the store's first commit was broken off; it is completed from the log's first byte on
    known = _known_messages(root)
    if known is not None:
        raise StoreNotFoundError(
            f"{root}: its commitlog ({', '.join(directories)}) has no message, but {known}. Nothing was changed. Mount the commitlog's "
            "disk, or give its directory (storePathCommitLog) as commit_log_paths. To begin a new store, give an empty directory"
        )


def _known_messages(root: str) -> str | None:
    """What the store knows of its log, None when nothing."""
    last = read_ledger(root).last
    if last is not None and last.last_size:
        return f"{root}/.rmqlog/ledger.json tells of commits up to physical offset {last.stop}"
    for topic, queue_id, directory, kind in list_queues(root, lambda _: True):
        find = batch_queue_bounds if kind == "batch" else simple_queue_bounds
        bounds = find(directory, topic, queue_id, 0)
        if bounds is not None and bounds.unit_stop > bounds.unit_start:
            return f"consume queue {topic}-{queue_id} has entries up to offset {bounds.max_offset}"
    checkpoint = read_checkpoint(f"{root}/checkpoint")
    for name in (
        ("physic_msg_timestamp", "logics_msg_timestamp", "confirm_phy_offset", "logics_physical_offset")
        if checkpoint
        else ()
    ):
        if getattr(checkpoint, name) > 0:
            return f"{root}/checkpoint tells of messages ({name} {getattr(checkpoint, name)})"
    return None
