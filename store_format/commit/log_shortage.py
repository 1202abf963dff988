"""Messages that a commit would lose or mix up, because the commitlog ends before them: refused, or cut.

Whole messages may follow damage. Or the consume queues reach behind the log's end: its last messages are
damaged, or its last files missing. A broker that starts cuts log and queues, and logs nothing. A writer that
kept the queue entries would put its messages where entries of other queues point to, and consumers would get
messages of other topics.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

from store_format.bookkeeping.ledger import Ledger, LedgerEntry
from store_format.commit.checkpoint import save_checkpoint
from store_format.commitlog.log import CommitLog
from store_format.commitlog.walk import EndKind
from store_format.consumequeue.files import QueueBounds
from store_format.errors import CorruptStoreError, StoreInUseError
from store_format.files.write import FileWrites
from store_format.metadata.checkpoint import read_checkpoint
from store_format.survey.broker_end import LogEnd, end_after_stop, scan_to_end
from store_format.survey.gone import FULL, lost_last_files
from store_format.survey.readable_end import find_readable_end

_log = logging.getLogger(__name__)


def cleared_from(log: CommitLog, end: LogEnd) -> int:
    """The physical offset from which a recovery clears the log: a BLANK at the log's end stays.

    If the messages behind the BLANK are found again, the BLANK leads to them.
    """
    return log.stop if end.end.kind is EndKind.BLANK else end.offset


def refuse_loss(
    root: str,
    log: CommitLog,
    end: LogEnd,
    queues: Sequence[QueueBounds],
    *,
    is_crashed: bool,
    staged: tuple[int, int] | None = None,
) -> None:
    """Raises `lost_last_files`, or what `refuse_cut` raises."""
    error = lost_last_files(root, log, end, queues, is_crashed=is_crashed)
    if error is not None and (staged is None or end.offset < staged[0]):
        raise error
    refuse_cut(root, log, end, staged=staged)


def refuse_cut(root: str, log: CommitLog, end: LogEnd, *, staged: tuple[int, int] | None = None) -> None:
    """Raises if a writer that clears everything behind `end` would destroy messages that can be read.

    `staged` is (physical offset, ms): an interrupted commit has staged everything that was written from that
    offset on and up to that time, and writes it again.

    Raises CorruptStoreError for whole messages behind damage, unless they are remains of an old recovery,
    which a warning counts. Raises StoreInUseError for messages that were appended since `end` was found:
    another process writes to the store although its lock cannot be seen (NFS, the mount of a virtual
    machine).
    """
    found = find_readable_end(root, log.relisted(), end)
    if staged is not None and end.offset >= staged[0] and found.last_timestamp <= staged[1]:
        return
    if found.damage is not None:
        behind = f"{found.damage.found}, and {found.messages} whole messages behind it up to {found.offset}"
        raise _cut_error(found.damage, behind, found.cut)
    if found.offset > end.offset:
        raise StoreInUseError(
            f"{root}: expected the commitlog to end at {end.offset}, found messages up to {found.offset}: "
            "another process writes to the store, and its lock cannot be seen from this machine. Nothing was "
            "written. Stop that process, then write again"
        )
    if found.disputed is not None:
        start, stop = found.remains_range
        behind = (
            f"{found.disputed.found}, and {found.remains} whole messages from {start} to {stop} behind it, "
            "which may belong to the log: they are not older than the messages before the damage, and a "
            "consume queue points to the first"
        )
        raise _cut_error(found.disputed, behind, found.cut)
    if found.remains:
        _log.warning(
            "%s: the commitlog ends at %d. %d whole messages from %d to %d behind this end are older than "
            "the last message before it, or repeat queue offsets: they are remains of an earlier recovery, "
            "and are cleared",
            root, found.offset, found.remains, *found.remains_range,
        )  # fmt: skip


def _cut_error(damage: CorruptStoreError, behind: str, cut: int) -> CorruptStoreError:
    advice = (
        f"Nothing was written. A writer would cut the commitlog at {cut} and lose these messages, as a "
        "broker that starts does. Keep them in a recovered copy (rmqlog recover STORE --into NEW --salvage "
        "--apply), or export them into a new store (rmqlog export --skip-damage, or mode=DROPMALFORMED), or "
        "give them up: rmqlog recover STORE --cut-after-damage --apply"
    )
    return CorruptStoreError(damage.file, damage.position, damage.expected, f"{behind}. {advice}")


def end_of_clean_log(log: CommitLog, ledger: Ledger, queues: Sequence[QueueBounds]) -> LogEnd:
    """The end of a log without a crash, found by a scan from the last commit, else from the queues' end."""
    ours = last_commit(log, ledger)
    if ours is None:
        # ConsumeQueueStore.getMaxPhyOffsetInConsumeQueue; -1 without queues
        known = max(
            (queue.last_physical_offset + queue.last_size for queue in queues if queue.kind == "simple"),
            default=-1,
        )
        return end_after_stop(log, known)
    end = scan_to_end(log, ours.stop, ours.stop)
    return replace(end, last_unit_offset=ours.last_offset) if end.last_unit_offset < 0 else end


def last_commit(log: CommitLog, ledger: Ledger) -> LedgerEntry | None:
    """The last commit in the ledger; None if the log does not have it as it was written."""
    ours = ledger.last
    if ours is None or not ours.last_size or ours.damage(log) is not None:
        return None
    return ours if log.file_at(ours.last_offset) else None


def end_reason(end: LogEnd) -> str:
    if end.end.kind is EndKind.TORN:
        return (
            f"{end.end.path} at byte {end.end.position}: expected {end.end.expected}, found {end.end.found}"
        )
    return "no file follows" if end.end.kind in FULL else "nothing is written there"


def lower_checkpoint(root: str, log: CommitLog, end: LogEnd) -> None:
    """Lowers the checkpoint to the log's end: it must not say that later messages are on the disk."""
    checkpoint = read_checkpoint(f"{root}/checkpoint")
    if checkpoint is None:
        return
    last, timestamp = max(end.last_unit_offset, 0), max(log.store_timestamp_at(end.last_unit_offset), 0)
    lowered = replace(
        checkpoint,
        physic_msg_timestamp=min(checkpoint.physic_msg_timestamp, timestamp),
        logics_msg_timestamp=min(checkpoint.logics_msg_timestamp, timestamp),
        index_msg_timestamp=min(checkpoint.index_msg_timestamp, timestamp),
        confirm_phy_offset=min(checkpoint.confirm_phy_offset, last),
        logics_physical_offset=min(checkpoint.logics_physical_offset, last),
    )
    if lowered != checkpoint:
        save_checkpoint(root, lowered, FileWrites(sync=True))
