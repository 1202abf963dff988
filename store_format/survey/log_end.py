"""Where does the commitlog end? The files do not say: they have their full length from the start.

**Where a broker ends it.** `LogEnd.after_crash`: at the first bad unit, from the file on that the checkpoint
gives. `LogEnd.after_stop`, after a clean stop: at the first bad unit, from the last file on that the consume
queues know. (DefaultMessageStore.recover, spec 7.3 and 7.4.)

**How far a reader reads after a crash.** `ReadableEnd.find`: over damage in the middle, but not into what an
earlier recovery cut off. Recovery ends the log at the first bytes that are not a message and cuts off
everything after them. At the log's true end nothing follows those bytes. If whole messages follow, either the
middle of the log is damaged, or the messages are remains: recovery sets the log's end back and clears no byte
(MappedFileQueue.truncateDirtyFiles), and a broker that continues writes over the first of the cut messages
only.

A recovery deletes the later files, and a broker that goes on after it writes its first message over
the damaged bytes. So whole messages behind damaged bytes continue the log if they are in a later file, or if
the damaged bytes are those of messages, one behind the other: the head of each is in its place, or a consume
queue points there. Without such a sign they continue the log when both of these hold:

1. The first of them was not stored more than a second before the last message in front of the damaged bytes.
   A broker stamps messages in the order of the log, so a message that was cut is older than every message
   that was written after the recovery. A broker needs more than a second to die and to start again; a clock
   that is corrected goes back by less.
2. No message in front of the damaged bytes has its queue offset or a later one, or the first entries of its
   consume queues lead to it and no other message has got its queue offset. A broker that goes on after a
   recovery gives the queue offsets of cut messages again. A queue whose topic was deleted and created again
   counts from where it last began with offset 0.

Messages that directly follow a whole message need neither: the broker's recovery takes them as well. Messages
that fail the rule are remains, and so are those behind them in the same file. They are counted and named,
never read: the log ends in front of them, or goes on in a later file. A store that a broker recovered and
left without writing a message cannot be told from one that nobody recovered: its messages are read.

**How far a reader reads any other store.** `WrittenEnd.find`: to the last whole message, less the remains of
a recovery. Each of these signs shows that the last whole message of the file is the log's last one, for
a few reads:

- A broker writes `lock` after it has recovered the store, so a message stored since then was written by
  this run, and nothing follows it.
- The broker's last recovery ended with the message (`confirmPhyOffset`), or the message was indexed last.
- It is the last message of one of our own commits (the ledger).

Without a sign the last file is walked, once for each opened store. Older files hold no remains: a recovery
deletes the files after its end.

**Where a writer appends.** `append_position.find_writer_end`: at the end after a clean stop, if a reader
reads nothing behind that end. A writer that would clear what a reader still reads is refused
(`repair.refuse_cut`); it skips the scan behind our own last commit only if `CommitLog.is_unwritten` finds
nothing.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from store_format.bookkeeping.journal import Abort, StoreState
from store_format.bookkeeping.ledger import Ledger
from store_format.commitlog.log import CommitLog, written_stop
from store_format.commitlog.walk import Damage, EndKind, UnitRun, WalkEnd
from store_format.consumequeue.dispatch import find_entries
from store_format.consumequeue.files import UnitFiles, can_be_queue, file_run
from store_format.consumequeue.slices import QueueRange
from store_format.consumequeue.units import FiledQueue, few_units, stored_bounds, units_between
from store_format.display.text import first_names
from store_format.errors import CorruptStoreError, StoreError
from store_format.files.paths import StoreFile
from store_format.files.read import FileCache, files_at
from store_format.index.file import IndexFile, list_index_files
from store_format.java.text import decode_utf8
from store_format.layouts import CQ_PRE_BLANK_SIZE, CQ_UNIT, OFFSET_MAX
from store_format.message.locate import locate
from store_format.message.single import UnitKind, check_unit
from store_format.metadata.read import Checkpoint, read_checkpoint
from store_format.names import QueueKey
from store_format.opened.store import Opened
from store_format.survey.scan import LogQueue, LogScan, by_queue

_log = logging.getLogger(__name__)

_RECOVER_FILES_MAX = 10  # MessageStoreConfig.commitLogRecoverMaxNum, since 5.4
_FAR = 2**63 - 1  # no limit
_CLOCK_STEP_MAX_MS = 1000
# bytes before the last written byte in which its message is searched
_BACK_SIZES = (1 << 16, 1 << 20, 1 << 24, 1 << 40)
_FOLLOWING_SIZE = 16 << 20  # bytes between the last indexed message and the last one
_WORD_SIZE = 8
_HEAD_SIZE = 96  # bytes at the end of the log that show whether messages were written since


# ---- where a broker ends it --------------------------------------------------------------------------------


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

    @property
    def is_full(self) -> bool:
        """Whether the log ends with a whole file."""
        return self.end.kind in (EndKind.BLANK, EndKind.MISSING)

    @staticmethod
    def after_crash(log: CommitLog, checkpoint: Checkpoint) -> LogEnd:
        """Where a broker ends the log that starts on a store with `abort` (CommitLog.recoverAbnormally).

        The broker checks unit after unit from a start file on; the first bad unit is the end. Two start files
        answer two questions. The end is found from where a 5.5 broker begins: walking back from the last
        file, the first file whose first unit is good and not newer than the checkpoint (by
        logicsPhysicalOffset, else by logicsMsgTimestamp), and at most 10 files back, matched or not
        (commitLogRecoverMaxNum). Damage in older files does not end the log for a broker, and must not for
        us.

        Queue entries may be missing from further back. A broker dispatches only what it scans, so old
        messages vanish from its queues; we have no such limit. When logicsPhysicalOffset is 0 the checkpoint
        may be of 5.4 or before, where logicsMsgTimestamp runs ahead of the flushed queues. `scan_start`
        follows the rule of these brokers: max(min(physic, logics) - 3000, 0). It is never later than the
        broker's start.
        """
        if checkpoint.logics_physical_offset > 0:
            return _end_from(log, checkpoint.logics_physical_offset, _FAR, _FAR)
        return _end_from(log, _FAR, checkpoint.logics_msg_timestamp, checkpoint.timestamp_min)

    @staticmethod
    def after_stop(log: CommitLog, queued_stop: int = _FAR) -> LogEnd:
        """Where a broker ends the log that starts on a store without `abort` (CommitLog.recoverNormally).

        The scan begins with the last file that does not begin behind `queued_stop`, the end of the messages
        that the consume queues know (-1 without any), and at most 10 files back. By default with the last
        file.
        """
        return _end_from(log, queued_stop, _FAR, _FAR)

    @staticmethod
    def scan(commit_log: CommitLog, start: int, scan_start: int) -> LogEnd:
        """The end of the log, found by checking message after message from `start`; `scan_start` is passed
        on.
        """
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
            if size := _size_at_other_place(commit_log, end):
                units, start = units + 1, end.offset + size
                continue
            following = next((file for file in commit_log.files if file.start >= end.offset), None)
            if end.kind is not EndKind.MISSING or following is None:
                return LogEnd(end.offset, scan_start, last, units, end, begin)
            start = following.start  # the broker goes to the next file it has, whatever is missing between


def _end_from(log: CommitLog, offset_max: int, timestamp_max: int, margin_max: int) -> LogEnd:
    if not log.files:
        return LogEnd.scan(log, 0, 0)
    newest = len(log.files) - 1
    broker_start = _start_file(
        log, newest, max(newest + 1 - _RECOVER_FILES_MAX, 0), offset_max, timestamp_max
    )
    scan_start = _start_file(log, broker_start, 0, offset_max, margin_max)
    return LogEnd.scan(log, log.files[broker_start].start, log.files[scan_start].start)


def _start_file(commit_log: CommitLog, newest: int, oldest: int, offset_max: int, timestamp_max: int) -> int:
    """The index of the newest file whose first message is good and within both limits; else `oldest`.

    The limits: its offset is not after `offset_max`, its store time is not 0 and not after `timestamp_max`
    (CommitLog.isMappedFileMatchedRecover).
    """
    for index in range(newest, oldest, -1):
        start = commit_log.files[index].start
        first = commit_log.message_offset(start)
        if start > offset_max or next(commit_log.walk(start, first + 1, verify_crc=True), None) is None:
            continue
        if 0 != commit_log.store_timestamp_at(first) <= timestamp_max:
            return index
    return oldest


def _size_at_other_place(commit_log: CommitLog, end: WalkEnd) -> int:
    """The size of the message at which a walk ended, if nothing but its physical offset is wrong; else 0. A
    broker does not compare the physical offset (CommitLog.checkMessageAndReturnSize).
    """
    file = commit_log.file_at(end.offset) if end.kind is EndKind.TORN else None
    if file is None:
        return 0
    remaining = file.size - end.position
    check = check_unit(commit_log.view(file), end.position, remaining, physical_offset=None)
    return check.size if check.kind is UnitKind.OK else 0


# ---- how far a reader reads after a crash ------------------------------------------------------------------


@dataclass(slots=True)
class ReadableEnd:
    """How far the log of a crashed store can be read, and what a broker that starts would lose.

    The log can be read up to `offset`. A broker that starts cuts it at `cut` and loses the `messages` whole
    messages between the two. `damage` says what is wrong at `cut`; None if nothing whole follows.
    `damage_bytes` counts all bytes between `cut` and `offset` that are not a message. `remains` counts the
    whole messages after `offset` that do not continue the log, within the physical offsets `remains_range`;
    `remains_of` also counts those in `old`, for each queue. `is_recovery_known`: an entry shows that a
    broker has given their queue offsets again. `start` as for `LogEnd`.
    """

    DAMAGED_MAX: ClassVar = 10_000  # stretches of bytes that are noted; a salvage needs all of them
    cut: int
    offset: int
    messages: int = 0
    damage: CorruptStoreError | None = None
    damage_bytes: int = 0
    remains: int = 0
    last_timestamp: int = -1  # ms, of the last message before `offset`
    # the first of these stretches of bytes, as physical offsets [start, stop)
    damaged: list[tuple[int, int]] = field(default_factory=list)
    old: list[tuple[int, int]] = field(default_factory=list)  # with remains, likewise
    remains_range: tuple[int, int] = (0, 0)
    remains_of: Counter[QueueKey] = field(default_factory=Counter)
    is_recovery_known: bool = False
    start: int = 0

    @property
    def remains_text(self) -> str:
        """How many remains each queue has."""
        return first_names(f"{topic}-{number}: {count}" for (topic, number), count in self.remains_of.items())

    @property
    def loss(self) -> str:
        """What a broker that starts on the store does to the messages after the damage."""
        return (
            f"A broker that starts on this store cuts the commitlog at {self.cut} and loses the "
            f"{self.messages} messages behind it"
        )

    @staticmethod
    def find(opened: Opened, log: CommitLog, end: LogEnd) -> ReadableEnd:
        """How far the log can be read, if a broker's recovery ends it at `end`.

        Without damage this costs one check for bytes after the end. After damage every message is checked,
        CRC included, as the recovery would have checked it without the damage.
        """
        last = log.store_timestamp_at(end.last_unit_offset)
        found = ReadableEnd(end.offset, end.offset, last_timestamp=last, start=end.start)
        if end.end.kind in (EndKind.TORN, EndKind.UNWRITTEN):
            _SearchBehindEnd(opened, log, end, found).run()
        return found

    @staticmethod
    def after_crash(opened: Opened, log: CommitLog, checkpoint: Checkpoint | None = None) -> ReadableEnd:
        """How far the log can be read after a crash, by default with the checkpoint of the store."""
        checkpoint = checkpoint or read_checkpoint(f"{opened.path}/checkpoint") or Checkpoint()
        return ReadableEnd.find(opened, log, LogEnd.after_crash(log, checkpoint))


@dataclass(slots=True)
class _SearchBehindEnd:
    """Searches for messages behind the end that recovery finds."""

    opened: Opened
    log: CommitLog
    end: LogEnd
    found: ReadableEnd
    known: dict[QueueKey, int] | None = None

    def run(self) -> None:
        found, damaged = self.found, list[tuple[int, int]]()
        damage: CorruptStoreError | None = None  # the first one
        skipped, is_behind_damage = 0, False
        remains_in: StoreFile | None = None
        for step in self.log.walk(self.end.offset, verify_crc=True, resync=True):
            if isinstance(step, Damage):
                damage = damage or CorruptStoreError(step.file.path, step.start, step.expected, step.found)
                skipped, is_behind_damage = skipped + step.stop - step.start, True
                if len(damaged) < found.DAMAGED_MAX:
                    damaged.append(step.range)
                continue
            first, stop = step.file.start + int(step.positions[0]), step.file.start + step.stop
            if is_behind_damage and (step.file == remains_in or not self._continues(step)):
                if step.file != remains_in:
                    found.old.append((first, step.file.stop))
                found.remains_range = (found.remains_range[0] if found.remains else first, stop)
                remains_in = step.file
                found.remains += len(step.positions)
                units, _ = locate(self.log.refs_of(step), verify_crc=False)
                topics = [decode_utf8(topic) for topic in units.stored_topics().to_pylist()]
                found.remains_of.update(zip(topics, units.integers("queue_id").tolist(), strict=True))
                skipped += int(step.sizes.sum())
                continue
            found.remains, found.is_recovery_known = 0, False  # those were in the middle
            is_behind_damage = False
            found.offset = stop
            found.last_timestamp = self.log.store_timestamp_at(step.file.start + int(step.positions[-1]))
            found.damage, found.damage_bytes = damage, skipped
            # Without damage before them they were appended since the end was looked for.
            found.messages += len(step.positions) if damage is not None else 0
        found.damaged = [place for place in damaged if place[0] < found.offset]

    def _continues(self, run: UnitRun) -> bool:
        """Whether the first messages after damage continue the log, by the rule of this module."""
        first = run.file.start + int(run.positions[0])
        if run.file.start > self.found.offset or _is_in_place(
            self.opened, self.log, self.found.offset, first
        ):
            return True
        is_older = self.log.store_timestamp_at(first) < self.found.last_timestamp - _CLOCK_STEP_MAX_MS
        try:
            entries = [(entry, entry_at(self.opened, *entry[:2])) for entry in entries_of_run(self.log, run)]
        except StoreError:
            if is_older:
                return False
            raise
        is_given_again = any(
            found is not None and found != physical and found < self.found.offset
            for (_, _, physical), found in entries
        )
        unknown = [(key, offset) for (key, offset, physical), found in entries if found != physical]
        if not is_older and unknown and self.known is None:
            self.known = _max_offsets(self.log, self.end)
        repeats = any(offset < (self.known or {}).get(key, 0) for key, offset in unknown)
        own = [found == physical for (_, _, physical), found in entries if physical == first]
        if is_older or (repeats and (is_given_again or not own or not all(own))):
            self.found.is_recovery_known |= is_given_again
            return False
        return True


def _is_in_place(opened: Opened, log: CommitLog, start: int, stop: int) -> bool:
    """Whether the damaged bytes are those of messages that follow each other from `start` up to `stop`."""
    sizes, offset = _sizes_by_entries(opened, log, start, stop), log.message_offset(start)
    while offset < stop:
        is_head = log.store_timestamp_at(offset) >= 0
        size = int.from_bytes(log.read(offset, 4), "big") if is_head else 0
        if not 0 < size <= stop - offset:
            size = sizes.get(offset, OFFSET_MAX)
        offset = log.message_offset(offset + size)
    return offset == stop


def _sizes_by_entries(opened: Opened, log: CommitLog, start: int, stop: int) -> dict[int, int]:
    """The sizes of the messages in [start, stop) to which entries of consume queues lead."""
    found: dict[int, int] = {}
    every = stored_bounds(opened, log.min_offset, refused=lambda _: None)
    queues = [queue for queue in every if queue.last_physical_offset >= start]
    for queue, few in few_units(queues, is_remote=opened.is_remote):
        with suppress(StoreError):
            units = units_between(queue, few, start, stop)
            physical, sizes = units["physical_offset"].tolist(), units["size"].tolist()
            found |= {at: size for at, size in zip(physical, sizes, strict=True) if size > 0}
    return found


def _max_offsets(log: CommitLog, end: LogEnd) -> dict[QueueKey, int]:
    """The offset after the last message of each queue, among the messages that recovery scans."""
    known: dict[QueueKey, LogQueue] = {}
    scan = LogScan(None, index=False, places_only=True)
    for part in scan.parts(log, end.scan_start, end.offset):
        for key, rows in by_queue(part.queues, part.rows):
            known.setdefault(key, LogQueue(*key)).add(rows)
    return {key: queue.max_offset for key, queue in known.items()}


# ---- how far a reader reads any other store ----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class WrittenEnd:
    """The log ends at `offset`.

    `last_offset` is the physical offset of the last message before the end, -1 if it is not known.
    `remains` counts the whole messages after it that an earlier recovery has cut. `last_timestamp`: ms, of
    the last message before it. `certain` may have to look at files for `is_certain`.
    """

    offset: int
    certain: bool | Callable[[], bool]
    remains: int = 0
    last_timestamp: int = -1
    last_offset: int = -1

    @property
    def is_certain(self) -> bool:
        """Whether entries that point to the end or after it are old, and do not point to damaged messages.

        False if a file that would show it cannot be read.
        """
        if isinstance(self.certain, bool):
            return self.certain
        with suppress(StoreError, OSError):
            return self.certain()
        return False

    @staticmethod
    def find(
        opened: Opened, log: CommitLog, *, is_live: bool, has_more: bool = False, queued: int = -1
    ) -> WrittenEnd | None:
        """The log's end; None for a log without messages.

        `has_more`: consume queue entries point after the end that a few reads show. `queued` as for
        `written_stop`.
        """
        last = last_unit(log, queued)
        if last is None:
            return None
        run = _BrokerRun.read(opened, is_live=is_live)
        if run.ended_with(log, last):
            is_certain = run.is_live or partial(run.surely_ended_with, log, last)
            quick = WrittenEnd(last.stop, is_certain, 0, last.timestamp, last.offset)
            if not has_more or not any(log.runs(last.stop, verify_crc=True)):
                return quick
        end = _walked(opened, log, run, last)
        return replace(end, last_offset=last.offset) if end.offset == last.stop else end

    @staticmethod
    def find_probable(
        opened: Opened, log: CommitLog, state: StoreState, queued: int = -1
    ) -> WrittenEnd | None:
        """The end of a log that no crash left; None without messages, and if a file cannot be read.

        `queued` is the greatest physical offset that a consume queue points to, read before: a broker writes
        the log first. A reader that comes to a file that cannot be read raises; here the file only makes the
        end uncertain.
        """
        is_live = state is StoreState.LIVE
        try:
            end = WrittenEnd.find(opened, log, is_live=is_live, queued=queued)
            if end is not None and not end.remains and queued >= end.offset:
                end = WrittenEnd.find(opened, log, is_live=is_live, has_more=True)
        except (StoreError, OSError):
            return None
        return end

    @staticmethod
    def find_certain(
        opened: Opened, log: CommitLog, state: StoreState, queued: int = -1
    ) -> WrittenEnd | None:
        """`find_probable` if it is certain that nothing behind it counts; else None."""
        end = WrittenEnd.find_probable(opened, log, state, queued)
        return replace(end, certain=True) if end is not None and end.is_certain else None


def goes_on_to(opened: Opened, log: CommitLog, physical_offset: int) -> bool:
    """Whether the log of a store that nobody uses continues up to the physical offset, by a walk of its last
    files: no recovery has cut what is there, and no later message was written in front of it.
    """
    last = last_unit(log)
    return (
        last is not None
        and _walked(opened, log, _BrokerRun.read(opened, is_live=False), last).offset >= physical_offset
    )


def knows_more(opened: Opened, last: LastUnit) -> bool:
    """Whether the checkpoint, the index or our ledger knows of a message behind the last whole one."""
    run = _BrokerRun.read(opened, is_live=False)
    checkpoint, ours = run.checkpoint, Ledger.read(opened).last
    known = max(run.indexed, checkpoint.confirm_phy_offset, checkpoint.logics_physical_offset)
    is_later = max(checkpoint.physic_msg_timestamp, checkpoint.logics_msg_timestamp) > last.timestamp
    return known > last.offset or is_later or (ours is not None and ours.stop > last.stop)


# ---- what a few reads tell ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LastUnit:
    """The last whole message of the log's files: where it begins and ends, and its store time in ms."""

    offset: int
    stop: int
    timestamp: int


@dataclass(frozen=True)
class _BrokerRun:
    """The broker's last run, as far as files show it. `start` in ms; None if no start is known."""

    opened: Opened
    is_live: bool
    start: int | None

    @staticmethod
    def read(opened: Opened, *, is_live: bool) -> _BrokerRun:
        is_live = is_live and Abort.read_mark(opened) == ""  # else our own commit holds the lock
        # Written into at each start, behind the recovery (DefaultMessageStore.start); writers of this project
        # leave it as it is.
        status = opened.files.status(f"{opened.path}/lock")
        return _BrokerRun(opened, is_live, None if status is None else status[1])

    @cached_property
    def checkpoint(self) -> Checkpoint:
        with suppress(StoreError, OSError):  # a read that needs the file raises the error
            return read_checkpoint(f"{self.opened.path}/checkpoint") or Checkpoint()
        return Checkpoint()

    def ended_with(self, log: CommitLog, last: LastUnit) -> bool:
        """Whether the log certainly ends with its last whole message, or continues with damage only."""
        if self.start is not None and last.timestamp >= self.start:
            return True
        if self.is_live and self.checkpoint.confirm_phy_offset:
            return self.checkpoint.confirm_phy_offset == last.offset
        if self._is_ours(log, last) or self.indexed == last.offset:
            return True
        return _follows(log, self.indexed, last) if self.indexed >= 0 else self._is_newest_by_checkpoint(last)

    def surely_ended_with(self, log: CommitLog, last: LastUnit) -> bool:
        """Whether nothing after the last whole message was lost since the broker stopped."""
        if self.indexed > last.offset:
            return False
        if self.indexed == last.offset or self._is_ours(log, last):
            return True
        return self._is_newest_by_checkpoint(last) and not any(_head_at(log, last.stop)[:_WORD_SIZE])

    def _is_newest_by_checkpoint(self, last: LastUnit) -> bool:
        checkpoint = self.checkpoint
        if checkpoint.logics_physical_offset not in (0, last.offset):
            return False
        return last.timestamp in (checkpoint.physic_msg_timestamp, checkpoint.logics_msg_timestamp)

    @cached_property
    def indexed(self) -> int:
        """The physical offset of the last message in the newest index file; -1 without one."""
        with suppress(StoreError, OSError):
            files = list_index_files(f"{self.opened.path}/index")
            if files:
                with files_at(files[-1].path).view(files[-1].path) as view:
                    header = IndexFile(view, None).header()
                return header.end_physical_offset if header.index_count > 1 else -1
        return -1

    def _is_ours(self, log: CommitLog, last: LastUnit) -> bool:
        with suppress(StoreError):
            ours = Ledger.read(self.opened).last
            return ours is not None and ours.last_offset == last.offset and ours.damage(log) is None
        return False


def last_unit(log: CommitLog, queued: int = -1) -> LastUnit | None:
    """The last whole message: a bisection of the zeros after it, then a search in the bytes before them.

    `queued` as for `written_stop`.
    """
    stop = written_stop(log, queued)
    for file in reversed(log.files):
        found = last_unit_in(log, file, stop) if file.start < stop else None
        if found is not None:
            return found
    return None


def last_unit_in(log: CommitLog, file: StoreFile, stop: int) -> LastUnit | None:
    """The last whole message of a file that begins before the physical offset `stop`."""
    stop = min(stop, file.stop)
    for back in _BACK_SIZES:
        start = max(file.start, stop - back)
        runs = list(log.runs(start, stop, verify_crc=True))
        if runs:
            offset = runs[-1].file.start + int(runs[-1].positions[-1])
            return LastUnit(offset, runs[-1].file.start + runs[-1].stop, log.store_timestamp_at(offset))
        if start == file.start:
            break
    return None


def _head_at(log: CommitLog, offset: int) -> bytes:
    file = log.file_at(offset)
    return b"" if file is None else log.view(file).read(offset - file.start, _HEAD_SIZE)


def _follows(log: CommitLog, indexed: int, last: LastUnit) -> bool:
    """Whether only messages of the same run lie between the last indexed message and the last one.

    Messages that a recovery has cut would be older.
    """
    if not last.offset - _FOLLOWING_SIZE < indexed < last.offset or log.file_at(indexed) is None:
        return False
    newest, end = -1, indexed
    for run in log.walk(indexed, last.stop):
        assert isinstance(run, UnitRun)
        times = np.concatenate([[newest], _times(log, run)])
        if bool((np.diff(times) < 0).any()):
            return False
        newest, end = int(times[-1]), run.file.start + run.stop
    return end == last.stop


# ---- what a walk through the last file tells ---------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Known:
    """A walk's result, and what it depends on."""

    signs: tuple[object, ...]
    head: bytes
    end: WrittenEnd


def _walked(opened: Opened, log: CommitLog, run: _BrokerRun, last: LastUnit) -> WrittenEnd:
    key = (_Known, opened.path, run.is_live)
    signs = (last, run.start, run.checkpoint.confirm_phy_offset)
    before = log.cache.found.get(key)
    assert before is None or isinstance(before, _Known)
    if before is not None and before.signs == signs and before.head == _head_at(log, before.end.offset):
        return before.end
    if (
        before is not None
        and run.is_live
        and before.signs[1:] == signs[1:]
        and _is_new(run, before.end.last_timestamp)
    ):
        end = _grown(log, run, before.end)
    else:
        end = _whole_look(opened, log, run, last)
    log.cache.found[key] = _Known(signs, _head_at(log, end.offset), end)
    return end


def _is_new(run: _BrokerRun, timestamp: int) -> bool:
    """Whether a message was written in the broker's current run."""
    return run.is_live and run.start is not None and timestamp >= run.start


def _whole_look(opened: Opened, log: CommitLog, run: _BrokerRun, last: LastUnit) -> WrittenEnd:
    end = LogEnd.after_stop(log)
    found = ReadableEnd.find(opened, log, end)
    result = WrittenEnd(
        found.offset,
        run.is_live or found.remains > 0 or run.surely_ended_with(log, last),
        found.remains,
        found.last_timestamp,
    )
    if not run.is_live or run.start is None or _is_new(run, found.last_timestamp):
        return result
    turn = _turn(log, run.start, end.scan_start, found.offset)
    if turn is not None:
        return WrittenEnd(turn[0], True, sum(len(run.positions) for run in log.runs(turn[0])), turn[1])
    # Nothing was written in this run, whose recovery ended before the damage: what is behind was cut then. A
    # confirmPhyOffset of 0 says nothing: it may be the first message, or of a broker that does not write it.
    if found.offset > end.offset and run.checkpoint.confirm_phy_offset == end.last_unit_offset > 0:
        return WrittenEnd(
            end.offset, True, found.messages + found.remains, log.store_timestamp_at(end.last_unit_offset)
        )
    return result


def _turn(log: CommitLog, start_ms: int, first: int, stop: int) -> tuple[int, int] | None:
    """(end of the log, its store time): where an older message directly follows one of this run; else None.

    A new message may end exactly where a cut one begins. Until the clock has passed the new message's time,
    the clock may have been set back instead.
    """
    newest = -1
    for run in log.runs(first, stop):
        times = _times(log, run)
        times = np.concatenate([[newest], times])
        turns = np.flatnonzero((times[:-1] >= start_ms) & (times[1:] < start_ms))
        if len(turns):
            at, timestamp = int(turns[0]), int(times[int(turns[0])])
            return (
                (run.file.start + int(run.positions[at]), timestamp)
                if timestamp <= time.time_ns() // 1_000_000
                else None
            )
        newest = int(times[-1])
    return None


def _grown(log: CommitLog, run: _BrokerRun, before: WrittenEnd) -> WrittenEnd:
    """The end after the messages that were written since it was found."""
    end = before
    assert run.start is not None
    if log.file_at(before.offset) is None:
        return before
    for step in log.walk(before.offset, verify_crc=True):
        assert isinstance(step, UnitRun)
        times = _times(log, step)
        old = np.flatnonzero(times < run.start)
        count = int(old[0]) if len(old) else len(times)
        if count:
            offset = step.file.start + int(step.positions[count - 1] + step.sizes[count - 1])
            end = replace(end, offset=offset, last_timestamp=int(times[count - 1]))
        if count < len(times):
            break
    return end


def _times(log: CommitLog, run: UnitRun) -> NDArray[np.int64]:
    units, _ = locate(log.refs_of(run), verify_crc=False)
    return units.integers("store_timestamp").astype(np.int64)


# ---- entries of messages -----------------------------------------------------------------------------------


def has_own_entry(opened: Opened, log: CommitLog, physical_offset: int) -> bool:
    """Whether entries point to the whole message there: one in each queue that the message names."""
    entries = [
        entry for run in log.runs(physical_offset, physical_offset + 1) for entry in entries_of_run(log, run)
    ]
    return bool(entries) and all(entry_at(opened, *entry[:2]) == entry[2] for entry in entries)


def entry_at(opened: Opened, queue: QueueKey, offset: int) -> int | None:
    """The physical offset in a queue's entry on disk; None without a valid entry."""
    topic, queue_id = queue
    if not can_be_queue(topic, queue_id):  # a name from the log, not from a listing
        return None
    directory = FiledQueue.of(opened, topic, queue_id).directory
    with suppress(StoreError, OSError):
        run = file_run(directory, CQ_UNIT.itemsize)
        first, stop = (0, 0) if run is None else (run.first_file, run.last_file + run.file_size)
        if run is not None and first <= offset * CQ_UNIT.itemsize < stop:
            with UnitFiles(directory, CQ_UNIT, run, queue) as files:
                physical, size, _ = files.unit(offset)
            return int(physical) if size > 0 and size != CQ_PRE_BLANK_SIZE else None
        bounds = FiledQueue.of(opened, topic, queue_id, "batch").bounds(0) if run is None else None
        if bounds is not None and bounds.min_offset <= offset < bounds.max_offset:
            queue_range = QueueRange(*queue, bounds.min_offset, bounds.max_offset, bounds, kind="batch")
            _, units = queue_range.piece(offset, offset + 1).read()
            return int(units["physical_offset"][0]) if (units["base_offset"] == offset).any() else None
    return None


def entries_of_run(
    log: CommitLog, run: UnitRun, *, verify_crc: bool = False
) -> list[tuple[QueueKey, int, int]]:
    """(queue, queue offset, physical offset) of every entry of the messages in their queues."""
    found = find_entries(locate(log.refs_of(run), verify_crc=verify_crc)[0])
    rows = zip(found.key.tolist(), found.offset.tolist(), found.physical.tolist(), strict=True)
    return [(found.keys[key], offset, physical) for key, offset, physical in rows]


# ---- warnings, once for each opened store ------------------------------------------------------------------


def warn_once(opened: Opened, cache: FileCache, found: ReadableEnd) -> None:
    """Warns of what follows the log's end, once for each opened store: `cache` is the store's own."""
    key = (warn_once, opened.path, found.cut)
    if key in cache.said or not (found.damage or found.remains_of):
        return
    cache.said.add(key)
    if found.damage is not None:
        _log.warning(
            "%s was left by a crash, and its commitlog is damaged in the middle: %s. The %d whole messages "
            "behind the damage, up to %d, are read too. "
            "%s: export them before a broker starts (rmqlog export --skip-damage). A copy that was made "
            "while a broker wrote can look like this: copy it again",
            opened.path, found.damage, found.messages, found.offset, found.loss,
        )  # fmt: skip
    if found.remains_of:
        _log.warning(
            "%s was left by a crash, and its commitlog ends at %d: %d whole messages behind damage (%s) are "
            "older than the last one before it, or repeat queue offsets. %s not read",
            opened.path, found.offset, found.remains_of.total(), found.remains_text,
            "An earlier recovery has cut them; they are" if found.is_recovery_known else "They are",
        )  # fmt: skip


def warn_of_old(opened: Opened, cache: FileCache, end: WrittenEnd, old: int) -> None:
    """Warns once for each opened store of `old` entries that point after the end or to other messages."""
    key = (warn_of_old, opened.path)
    if key in cache.said or not (end.remains or old):
        return
    cache.said.add(key)
    _log.warning(
        "%s: the commitlog ends at %d. A broker's recovery has cut what is behind it: %d whole messages, "
        "which are not read, and %d entries at the ends of consume queues, which are skipped",
        opened.path, end.offset, end.remains, old,
    )  # fmt: skip
