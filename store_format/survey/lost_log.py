"""A lost commitlog: its disk is not mounted, or the broker's storePathCommitLog is another directory.

An empty directory in its place looks like a new store. A reader would find no message, or entries that lead
nowhere, and a message written at physical offset 0 would overwrite the queue entries of the lost messages.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from store_format.bookkeeping.journal import abort_mark, read_journal
from store_format.bookkeeping.ledger import read_ledger
from store_format.commitlog.log import CommitLog
from store_format.consumequeue.bounds import queue_bounds
from store_format.consumequeue.listing import list_queues
from store_format.display.text import shown
from store_format.errors import CorruptStoreError, StoreError, StoreNotFoundError
from store_format.files.read import entry_names
from store_format.metadata.checkpoint import read_checkpoint

ADVICE = (
    "Mount the commitlog's disk, or give the commitlog's directories (storePathCommitLog: option --commitlog "
    "of the command, commit_log_paths in Python). To begin a new store, give an empty directory"
)
_HEAD_SIZE = 8  # of a unit or a BLANK: never all zero
_BLOCK = 1 << 22  # bytes that are read at once


@dataclass(frozen=True, slots=True)
class LostLog:
    """The commitlog in `directories` has no message; `known` is a clause: which file knows of messages."""

    root: str
    directories: tuple[str, ...]
    known: str

    @property
    def error(self) -> StoreNotFoundError:
        return StoreNotFoundError(
            f"{self.root}: the commitlog ({', '.join(self.directories)}) has no message, but {self.known}. "
            f"Nothing was changed. {ADVICE}"
        )


def dledger_logs(root: str) -> list[str]:
    """Returns the directories with a DLedger commitlog, `dledger-<id>`: queues may lead there."""
    names = entry_names(root, missing_ok=True)
    return [f"{root}/{name}" for name in sorted(names) if name.startswith("dledger-")]


def refuse_lost_log(root: str, log: CommitLog) -> None:
    """Raises StoreNotFoundError for a lost commitlog. Costs one read where the commitlog is not empty."""
    found = find_lost_log(root, log)
    if found is not None:
        raise found.error


def find_lost_log(root: str, log: CommitLog) -> LostLog | None:
    """Returns a commitlog that must not be read or written: it has no message, and other files of the store
    know of messages. None if nothing is lost.
    """
    if _may_be_whole(root, log) or dledger_logs(root):
        return None
    journal = read_journal(root)
    if journal is not None and not journal.base:
        return None  # The first commit was broken off: it is completed from byte 0 of the log.
    known = _known_messages(root)
    if known is None or _may_be_whole(root, log.relisted()):  # a broker may have begun the log since
        return None
    return LostLog(root, log.directories, known)


def _may_be_whole(root: str, log: CommitLog) -> bool:
    """Whether the log begins with a message, or behind byte 0, or its first file has any byte.

    After a crash of a broker, the queues of a new log may be on the disk, and its messages not.
    """
    if not log.files:
        return False
    try:
        if log.min_offset or any(log.read(0, _HEAD_SIZE)) or abort_mark(root) == "":
            return True
        size = log.files[0].size
        return any(
            np.frombuffer(log.read(start, min(_BLOCK, size - start)), np.uint8).any()
            for start in range(0, size, _BLOCK)
        )
    except StoreError:  # who needs the file raises the error
        return True


def _known_messages(root: str) -> str | None:
    """A clause about the messages that other files of the store know of; None when they know of none."""
    last = read_ledger(root).last
    if last is not None and last.last_size:
        return f"{root}/.rmqlog/ledger.json has commits up to physical offset {last.stop}"
    for topic, queue_id, directory, kind in list_queues(root, lambda _: True):
        name = f"{shown(topic)}-{queue_id}"
        try:
            bounds = queue_bounds(kind, directory, topic, queue_id, 0)
        except CorruptStoreError as error:
            return f"consume queue {name} has files ({error})"
        if bounds is not None and bounds.unit_stop > bounds.unit_start:
            return f"consume queue {name} has entries up to offset {bounds.max_offset}"
    checkpoint = read_checkpoint(f"{root}/checkpoint")
    for name in (
        ("physic_msg_timestamp", "logics_msg_timestamp", "confirm_phy_offset", "logics_physical_offset")
        if checkpoint
        else ()
    ):
        if getattr(checkpoint, name) > 0:
            return f"{root}/checkpoint has {name} {getattr(checkpoint, name)}"
    return None
