"""What a crash left: where the commitlog ends, and which messages have no consume queue entry yet.

No byte is changed. A broker that was killed has neither cut its files nor finished its queues. It repairs
both when it starts (DefaultMessageStore.recover, spec 7.3 and 7.4); a reader finds the same end and makes the
same entries in memory.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from store_format.commitlog.log import CommitLog
from store_format.commitlog.walk import Damage, EndKind, WalkEnd
from store_format.metadata.checkpoint import Checkpoint

_log = logging.getLogger(__name__)

_RECOVER_FILES_MAX = 10  # MessageStoreConfig.commitLogRecoverMaxNum, since 5.4
_FAR = 2**63 - 1  # no limit


@dataclass(frozen=True, slots=True)
class LogEnd:
    """Where the log ends, and where to look for messages without an entry: from `scan_start` to `offset`.

    `last_unit_offset` is the start of the last good unit (what the broker calls confirmOffset), -1 when the
    scan met none; `units` of them were checked, CRC included. `end` says why the log ends there. `start` is
    where the scan began: a broker that starts adds the queue entries of the messages behind it.
    """

    offset: int
    scan_start: int
    last_unit_offset: int
    units: int
    end: WalkEnd
    start: int = 0


def end_after_crash(log: CommitLog, checkpoint: Checkpoint) -> LogEnd:
    """Where a broker ends the log that starts on a store with `abort` (CommitLog.recoverAbnormally).

    The broker checks unit after unit from a start file on; the first bad unit is the end. Two start files
    answer two questions. The end is found from where a 5.5 broker begins: walking back from the last file,
    the first file whose first unit is good and not newer than the checkpoint (by logicsPhysicalOffset, else
    by logicsMsgTimestamp), and at most 10 files back, matched or not (commitLogRecoverMaxNum). Damage in
    older files does not end the log for a broker, and must not for us.

    Queue entries may be missing from further back. A broker dispatches only what it scans, so old messages
    vanish from its queues; we have no such limit. When logicsPhysicalOffset is 0 the checkpoint may be of 5.4
    or before, where logicsMsgTimestamp runs ahead of the flushed queues. `scan_start` follows the rule of
    these brokers: max(min(physic, logics) - 3000, 0). It is never later than the broker's start.
    """
    if checkpoint.logics_physical_offset > 0:
        return _end_from(log, checkpoint.logics_physical_offset, _FAR, _FAR)
    return _end_from(log, _FAR, checkpoint.logics_msg_timestamp, checkpoint.timestamp_min)


def end_after_stop(log: CommitLog, queued_stop: int = _FAR) -> LogEnd:
    """Where a broker ends the log that starts on a store without `abort` (CommitLog.recoverNormally).

    The scan begins with the last file that does not begin behind `queued_stop`, the end of the messages that
    the consume queues know (-1 without any), and at most 10 files back. By default with the last file.
    """
    return _end_from(log, queued_stop, _FAR, _FAR)


def _end_from(log: CommitLog, offset_max: int, timestamp_max: int, margin_max: int) -> LogEnd:
    if not log.files:
        return scan_to_end(log, 0, 0)
    newest = len(log.files) - 1
    broker_start = _start_file(
        log, newest, max(newest + 1 - _RECOVER_FILES_MAX, 0), offset_max, timestamp_max
    )
    scan_start = _start_file(log, broker_start, 0, offset_max, margin_max)
    return scan_to_end(log, log.files[broker_start].start, log.files[scan_start].start)


def _start_file(commit_log: CommitLog, newest: int, oldest: int, offset_max: int, timestamp_max: int) -> int:
    """The index of the newest file whose first message is good and within both limits; else `oldest`.

    The limits: its offset is not after `offset_max`, its store time is not 0 and not after `timestamp_max`
    (CommitLog.isMappedFileMatchedRecover).
    """
    for index in range(newest, oldest, -1):
        start = commit_log.files[index].start
        if start > offset_max or next(commit_log.walk(start, start + 1, verify_crc=True), None) is None:
            continue
        if 0 != commit_log.store_timestamp_at(start) <= timestamp_max:
            return index
    return oldest


def scan_to_end(commit_log: CommitLog, start: int, scan_start: int) -> LogEnd:
    """The end of the log, found by checking message after message from `start`; `scan_start` is passed on."""
    if not commit_log.files:
        return LogEnd(
            start, scan_start, -1, 0, WalkEnd(EndKind.MISSING, start, "", 0, "a commitlog file", "none")
        )
    units, last, begin = 0, -1, start
    while True:
        walk = commit_log.walk(start, verify_crc=True)
        for run in walk:
            assert not isinstance(run, Damage)  # only a walk with resync has these
            last = run.file.start + int(run.positions[-1])
        units += walk.sums.units
        end = walk.end
        assert end is not None
        following = next((file for file in commit_log.files if file.start >= end.offset), None)
        if end.kind is not EndKind.MISSING or following is None:
            return LogEnd(end.offset, scan_start, last, units, end, begin)
        start = following.start  # the broker goes to the next file it has, whatever is missing between
