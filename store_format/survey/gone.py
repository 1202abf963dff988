"""What is gone of the commitlog: some of its files with their messages, or all of it.

Consume queues prove that the messages of missing files existed. A file in the middle of the log or before its
first one is seen to be missing by the names of the others. A lost last file leaves a log that ends with a
full file, and entries that lead behind it: a broker creates the next file before it fills one, and a recovery
that cuts the log ends it within a file.

The whole commitlog is lost if its disk is not mounted, or the broker's storePathCommitLog is another
directory. An empty directory in its place looks like a new store. A reader would find no message, or entries
that lead nowhere, and a message written at physical offset 0 would overwrite the queue entries of the lost
messages.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray

from store_format.arrays.ranges import consecutive, within_ranges
from store_format.bookkeeping.journal import Abort, Journal, StoreState
from store_format.bookkeeping.ledger import GivenUp, Ledger, LedgerEntry
from store_format.commitlog.log import CommitLog, first_byte, written_stop
from store_format.commitlog.walk import UnitRun
from store_format.consumequeue.dispatch import Filing
from store_format.consumequeue.files import QueueBounds, has_rocksdb_queues
from store_format.consumequeue.slices import QueueRange
from store_format.consumequeue.units import (
    first_unit_from,
    list_queues,
    pre_blank_mask,
    read_units,
    stored_bounds,
)
from store_format.display.text import first_names, shown
from store_format.errors import CorruptStoreError, StoreError, StoreNotFoundError
from store_format.files.paths import StoreFile, refuse
from store_format.layouts import MAGIC_BLANK, MAGIC_V1, MAGIC_V2, OFFSET_MAX
from store_format.message import sysflag
from store_format.metadata.group_offsets import is_broker_49
from store_format.metadata.read import Checkpoint, read_checkpoint
from store_format.names import SCHEDULE_TOPIC, QueueKey
from store_format.opened.store import Opened
from store_format.survey.entry_proofs import LogEntries
from store_format.survey.fates import StoredTopics, known_ledger
from store_format.survey.log_end import LogEnd, WrittenEnd, entry_at, last_unit, last_unit_in
from store_format.survey.scan import LogScan, by_queue

if TYPE_CHECKING:
    from store_format.survey.queues import ComparedQueue

_log = logging.getLogger(__name__)

_UNUSED_MAX = 64 << 20  # bytes at the end of a full file: less than its next message needs
_BLANK_HEAD_SIZE = 8  # with less room in a file, nothing can be written
_HEAD_SIZE = 8  # of a unit or a BLANK: never all zero
_NOT_QUEUED = sysflag.TRANSACTION_PREPARED  # a bit of TRANSACTION_ROLLBACK, too: no entries
_NEIGHBOURS = 64  # newest entries that show the delay of a level
_LEVELS_MAX = 1 << 10  # a queue of a higher level is that of a message with a flipped queue id
_NAMES_MAX = 50  # of ranges of lost messages in an error


# ---- messages of missing files -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Gone:
    """Messages of the queue offsets [first, stop) that nobody can read, though a consume queue points to
    them, to the first at commitlog `physical`, or the ledger ends the queue behind them (-1).
    """

    topic: str
    queue_id: int
    first: int
    stop: int
    physical: int = -1

    def __str__(self) -> str:
        offsets = f"{shown(self.topic)}-{self.queue_id} {self.offsets}"
        if self.physical < 0:
            return f"{offsets}: .rmqlog/ledger.json has a commit that ended the queue there"
        return f"{offsets}: its consume queue points to commitlog {self.physical}"

    @property
    def key(self) -> QueueKey:
        return self.topic, self.queue_id

    @property
    def offsets(self) -> str:
        return f"offsets {self.first} to {self.stop - 1}"

    @property
    def count(self) -> int:
        """How many messages these are; fewer if the queue has holes."""
        return self.stop - self.first

    def without_whole(self, queue: ComparedQueue | None) -> list[tuple[int, int]]:
        """The queue offsets [first, stop) of which the log has no message: an entry that leads nowhere may be
        wrong.
        """
        if queue is None or not queue.places.entries:
            return [(self.first, self.stop)]
        between = [(0, queue.places.first), *queue.seen.claims.gaps, (queue.places.stop, OFFSET_MAX)]
        found = ((max(low, self.first), min(high, self.stop)) for low, high in between)
        return [(first, stop) for first, stop in found if first < stop]


@dataclass(frozen=True, slots=True)
class QueueProofs:
    """What consume queues and the ledger prove of the messages of a log, also of those that it lacks."""

    TAIL_SIZE: ClassVar = 16 << 20  # bytes of the log that are read if its last message has no entry
    opened: Opened
    log: CommitLog

    def queues(
        self, refused: Callable[[StoreError], object] = refuse, *, scan: bool = False
    ) -> list[QueueBounds]:
        """The bounds of every queue whose newest entry points to the log, as its files show them. With `scan`
        of every queue with files, up to the first invalid entry, as a broker that starts finds them.

        Calls `refused`, which by default raises, for queues whose files do not fit together.
        """
        found = stored_bounds(self.opened, self.log.min_offset, refused=refused, scan=scan)
        return [bounds for bounds in found if scan or bounds.last_physical_offset >= 0]

    def filing(self, state: StoreState, start: int | None = None) -> Filing:
        """What a broker that starts files behind the queues of a store. Of one that is in use only the
        `first_of` is known, and nothing of one that has its queues in RocksDB, or of a queue whose files
        cannot be used. After a crash `start` is that of `LogEnd.after_crash`, if the caller knows it.
        """
        if has_rocksdb_queues(self.opened):
            return Filing()
        queues, refused, is_old = list[QueueBounds](), list[StoreError](), False
        with suppress(StoreError):  # a reader of the files raises the error
            queues = self.queues(refused.append, scan=True)
            is_old = is_broker_49(self.opened)
        first_of = self._first_of(queues)
        if state is StoreState.LIVE:
            return Filing(first_of=first_of)
        if state is StoreState.CLEAN:
            start = None
        elif start is None:
            start = LogEnd.after_crash(
                self.log, read_checkpoint(f"{self.opened.path}/checkpoint") or Checkpoint()
            ).start
        filing = Filing.behind(queues, start, is_old=is_old)
        last = None if start is not None else last_unit(self.log)
        # the log's last message is filed, too: no message behind it is (doRecheckReputOffsetFromCq)
        is_last = last is not None and last.offset == filing.start - 1
        unusable = (each[:2] for each in StoredTopics(self.opened).filed_queues(lambda _: bool(refused)))
        return filing._replace(
            start=filing.start - is_last,
            ends=dict.fromkeys(unusable, (-1, OFFSET_MAX)) | dict(filing.ends),
            first_of=first_of,
        )

    def _first_of(self, queues: Iterable[QueueBounds]) -> Callable[[QueueKey], int]:
        """What `Filing.first_of` is behind these queues. Reads a message of a queue once it is asked for."""
        simple = {(queue.topic, queue.queue_id): queue for queue in queues if queue.kind == "simple"}

        @cache
        def first(key: QueueKey) -> int:
            mine = [simple[key]] if key in simple else []
            return self.begun_again(self.log, mine, is_copied=True).get(key, -1)

        return first

    def gone(self, state: StoreState, queues: Sequence[QueueBounds]) -> list[Gone]:
        """The messages to which these queues point and which the commitlog lacks.

        The message that a short file ends with is gone, too, if a part of it is. So are messages behind the
        end of a log that was stopped in order, unless it is certain that none was there. Costs a few reads a
        queue if something is missing.
        """
        if state is StoreState.LIVE or not self.log.files:
            return []
        missing: list[tuple[int, int]] = []
        with suppress(StoreError):  # a reader of the files raises the error
            missing = _ranges_without_file(self.log)
            farthest = max((queue.last_physical_offset for queue in queues), default=-1)
            if (
                state is StoreState.CLEAN
                and WrittenEnd.find_certain(self.opened, self.log, state, farthest) is None
            ):
                last = last_unit(self.log)
                stop = self.log.min_offset if last is None else last.stop
                missing[-1] = (min(missing[-1][0], stop), OFFSET_MAX)
        return QueueProofs.pointing_to(queues, missing)

    @staticmethod
    def lost_ranges(log: CommitLog) -> list[tuple[int, int]]:
        """The physical offsets [start, stop) of which the log shows that their files are missing."""
        without = _ranges_without_file(log)
        return without if log.files and _ends_full(log) else without[:-1]

    @staticmethod
    def pointing_to(queues: Iterable[QueueBounds], ranges: Sequence[tuple[int, int]]) -> list[Gone]:
        """The messages of these queues in the ranges [start, stop) of physical offsets."""
        found = []
        for queue in queues:
            for start, stop in ranges if queue.unit_start < queue.unit_stop else ():
                if start <= queue.last_physical_offset and queue.first_physical_offset < stop:
                    with suppress(StoreError):  # a reader of the queue raises the error
                        found += _pointing_between(queue, start, stop)
        return found

    def last_records(self, queues: Iterable[QueueBounds], stop: int) -> dict[int, UnitRun]:
        """The damaged records behind the log's last message, which ends at `stop`, that entries show."""
        shown_there, found = self.shown_records(queues, [(stop, self.log.stop)]), dict[int, UnitRun]()
        while stop in shown_there:
            found[stop] = shown_there[stop]
            stop += int(found[stop].sizes[0])
        return found

    def shown_records(
        self,
        queues: Iterable[QueueBounds],
        ranges: Sequence[tuple[int, int]],
        own: Mapping[int, tuple[QueueKey, int]] = MappingProxyType({}),
    ) -> dict[int, UnitRun]:
        """The damaged records in the ranges [start, stop) of the log that entries show, by
        their physical offsets. `own` are the queues and queue offsets of those that entries contradict.
        """
        records = dict[int, UnitRun | None]()
        for queue in queues:
            key = (queue.topic, queue.queue_id)
            whole = QueueRange(*key, queue.min_offset, queue.max_offset, queue, kind=queue.kind)
            for each in QueueProofs.pointing_to([queue], ranges):
                offsets, units = whole.piece(each.first, each.stop).read()
                columns = (offsets, units["physical_offset"], units["size"])
                for offset, start, size in zip(*(column.tolist() for column in columns), strict=True):
                    is_inside = any(low <= start < start + size <= high for low, high in ranges)
                    if (
                        is_inside
                        and own.get(start, (key, offset)) == (key, offset)
                        and not records.get(start)
                    ):
                        records[start] = LogEntries(self.log).shown_record(
                            key, offset, (start, size), claims=start not in own
                        )
        return {start: record for start, record in records.items() if record is not None}

    def gone_by_ledger(self, queues: Iterable[QueueBounds | QueueRange]) -> list[Gone]:
        """The messages that only the ledger proves, behind the last entries of the queues: log and queues are
        older than `.rmqlog`, or a power loss took both. Without those that a recovery has given up.
        """
        known, found = self._ends_of_lost_commit(), list[Gone]()
        given_up = GivenUp.known(self.opened).ranges if known else {}
        there = {(each.topic, each.queue_id): each.max_offset for each in queues} if known else {}
        for key, stop in sorted(known.items()):
            low = there.get(key, 0) or stop
            for first, behind in (*given_up.get(key, ()), (stop, stop)):
                if low < min(first, stop):
                    found.append(Gone(*key, low, min(first, stop)))
                low = max(low, behind)
        return found

    def _ends_of_lost_commit(self) -> Mapping[QueueKey, int]:
        """The queue offsets at which our last commit ended its queues; empty if the log still has that
        commit, or if a recovery has given the commit up.
        """
        with suppress(StoreError, OSError):  # who needs the file raises the error
            ledger = known_ledger(self.opened)
            last = ledger.last
            if last is not None and not last.given_up and last.damage(self.log) is not None:
                return ledger.ends
        return {}

    def given_up(self, queues: Iterable[QueueBounds | None]) -> list[Gone]:
        """The places in simple queues without a message, because recoveries have given up their messages.

        Before the first message of a queue only where the log begins at 0: retention has deleted nothing
        there. A place that a broker has given to another message since has an entry, or the log has the
        message.
        """
        noted = GivenUp.read(self.opened)
        if not noted.messages:
            return []
        simple = (queue for queue in queues if queue is not None and queue.kind == "simple")
        files = {(queue.topic, queue.queue_id): queue for queue in simple}
        offsets = {}
        for key, queue in files.items():
            low = queue.min_offset if queue.commit_log_min else queue.first_file // queue.unit_size
            offsets[key] = (low, queue.max_offset)
        found = list[Gone]()
        for topic, queue_id, first, stop in noted.within(offsets).messages:
            units = read_units(files[topic, queue_id], first, stop)
            blank, zeros = (
                np.flatnonzero(mask) + first for mask in (pre_blank_mask(units), units["size"] <= 0)
            )
            if len(zeros):
                whole = QueueRange(topic, queue_id, *offsets[topic, queue_id], files[topic, queue_id])
                found_in_log = (
                    LogEntries(self.log).entries_of([(whole, zeros.astype(np.int64))]).get((topic, queue_id))
                )
                there = () if found_in_log is None else found_in_log.queue_offsets
                blank = np.union1d(blank, np.setdiff1d(zeros, there))
            found += [Gone(topic, queue_id, *run) for run in consecutive(blank)]
        return found

    def find_gone(self, state: StoreState) -> list[Gone]:
        """The messages of all queues that are gone with parts of the commitlog.

        In a store that is in use, queues may lead to files that were created since the log was listed. Behind
        old files of a store that was upgraded to DLedger, they lead to a commitlog that may be elsewhere
        (DLedgerCommitLog.dividedCommitlogOffset).
        """
        if state is StoreState.LIVE or not self.log.files:
            return []
        is_certain = (
            state is StoreState.CRASHED or WrittenEnd.find_certain(self.opened, self.log, state) is not None
        )
        with suppress(StoreError):  # a reader of queues raises the error
            may_lack = self.log.has_gaps or not is_certain or _ends_full(self.log)
            if may_lack or self._ends_of_lost_commit():
                queues = self.queues(lambda _: None)
                pointed = self.gone(state, queues) if may_lack else []
                if self.opened.unread_ledgers(self.log.directories):
                    pointed = [each for each in pointed if each.physical < self.log.stop]
                return [*pointed, *self.gone_by_ledger(queues)]
        return []

    def has_old_entries(self, queued: int = -1) -> bool:
        """Whether entries behind the end of a log that no crash left are old, up to the physical offset
        `queued` to which one leads: the end is certain.
        """
        return WrittenEnd.find_certain(self.opened, self.log, StoreState.CLEAN, queued) is not None

    def lacks_ends(self, *, is_ahead: bool, lacks_queues: bool) -> bool:
        """Whether messages were lost with the last commitlog files of which no queue shows how many.

        `is_ahead`: entries lead behind the messages of the log. `lacks_queues`: queues with messages have no
        files. Without such entries, a recovery may have given the messages up, and noted that.
        """
        if not self.log.files or not _ends_full(self.log):
            return False
        if is_ahead:
            return lacks_queues
        known = GivenUp.known(self.opened)
        return (lacks_queues or _ends_blank(self.log)) and not (known.messages or known.is_least)

    def lacks_entry(self, physical_offset: int, filed: int = OFFSET_MAX) -> bool:
        """Whether the message has no entry in its queue, though it should have one. If it needs none, which
        is so of the second of two messages with one offset, too: whether others lie behind the message at
        `filed`.
        """
        entries = LogEntries(self.log)
        message = entries.message_at(physical_offset) if physical_offset >= 0 else None
        if message is None:
            return False
        if not message.sys_flag & _NOT_QUEUED:
            found = entry_at(self.opened, message.key, message.offset)
            other = None if found is None or found == physical_offset else entries.message_at(found)
            if found == physical_offset or other is None or other[:2] != message[:2]:
                return found != physical_offset
        before = entries.message_at(filed)
        return before is not None and filed + before.size < physical_offset

    def shown_delays(self) -> dict[int, int]:
        """Delay level (from 1) -> delay in ms, as the newest entries of SCHEDULE_TOPIC_XXXX show them.

        The tags code of an entry is the delivery time, which is the store time of the message and the delay
        (DefaultMessageStore.computeDeliverTimestamp). No message has the delay. A flipped bit of a store time
        shows another one: the most frequent counts, of several the least.
        """
        found: dict[int, int] = {}
        for queue in stored_bounds(self.opened, self.log.min_offset, SCHEDULE_TOPIC.__eq__, lambda _: None):
            with suppress(StoreError, OSError):  # a queue that cannot be read shows nothing
                start = max(queue.min_offset, queue.max_offset - _NEIGHBOURS)
                units = read_units(queue, start, queue.max_offset).tolist()
                delays = [
                    delay
                    for offset, (physical, size, code) in enumerate(units, start)
                    if code > 0
                    and queue.queue_id < _LEVELS_MAX
                    and LogEntries(self.log).is_own((queue.topic, queue.queue_id), offset, (physical, size))
                    and 0 <= (delay := code - self.log.store_timestamp_at(physical)) <= OFFSET_MAX
                ]
                ranked = sorted(delays, key=lambda each: (delays.count(each), -each))
                found |= {queue.queue_id + 1: delay for delay in ranked[-1:]}  # noqa: B035
        return found

    @staticmethod
    def lost_of_batch(entry: LedgerEntry, log: CommitLog) -> list[Gone]:
        """The messages of the batch that the log lacks, or has with other bytes, if the ledger has the queues
        of the batch. Reads the batch. Empty if retention has deleted a part of it.
        """
        there: dict[QueueKey, list[NDArray[np.int64]]] = {}
        if entry.start < log.min_offset:
            return []
        stop = min(entry.stop, log.stop)
        for part in LogScan(index=False, check_bodies=True).parts(log, entry.start, stop):
            damaged = within_ranges(part.rows["physical"], [each.range for each in part.damage])
            for key, rows in by_queue(part.queues, part.rows[~damaged]):
                there.setdefault(key, []).append(rows["offset"].astype(np.int64))
        lost = list[Gone]()
        for topic, queue_id, first, end in entry.queues:
            found = np.concatenate([np.empty(0, np.int64), *there.get((topic, queue_id), ())])
            gone = np.setdiff1d(np.arange(first, end), found)
            lost += [Gone(topic, queue_id, *run) for run in consecutive(gone)]
        return sorted(lost, key=lambda each: each.key)

    @staticmethod
    def damage_of_batch(entry: LedgerEntry, log: CommitLog, lost: Sequence[Gone] | None = None) -> str | None:
        """`LedgerEntry.damage`, with the names of the `lost` messages; None for a whole batch. Without
        `lost`, the batch is read if its last message is damaged.
        """
        damage = entry.damage(log)
        if lost is None:
            lost = [] if damage is None else QueueProofs.lost_of_batch(entry, log)
        if not lost:
            return damage
        names = first_names((f"{each.topic}-{each.queue_id} {each.offsets}" for each in lost), _NAMES_MAX)
        return f"{damage or 'was overwritten'}. {sum(each.count for each in lost):,} are lost: {names}"

    def count_empty(self, state: StoreState, queues: Sequence[QueueBounds]) -> Counter[QueueKey]:
        """How many queue offsets of each queue have no message: the first pre-blank ones, which a broker
        counts, those of messages that are gone, and those that a recovery has given up.
        """
        lost = [
            Gone(each.topic, each.queue_id, each.min_offset, each.blank_stop)
            for each in queues
            if each.blank_stop > each.min_offset
        ]
        lost += self.gone(state, queues)
        found = Counter[QueueKey]()
        for each in lost:
            found[each.key] += each.count
        with suppress(StoreError):  # `verify` reports files that cannot be read
            for given in self.given_up(queues):
                found[given.key] += given.count - sum(
                    max(0, min(each.stop, given.stop) - max(each.first, given.first))
                    for each in lost
                    if each.key == given.key
                )
        return found

    def warn_of_gone(self, state: StoreState) -> list[Gone]:
        """`find_gone`, with a warning of messages that a search of the commitlog cannot see."""
        gone = self.find_gone(state)
        if gone:
            count = sum(each.count for each in gone)
            _log.warning(
                "%s: %d messages are lost with missing parts of the commitlog, the first %s",
                self.opened.path,
                count,
                gone[0],
            )
        return gone

    def lost_last_files(
        self, end: LogEnd, queues: Iterable[QueueBounds], *, is_crashed: bool
    ) -> CorruptStoreError | None:
        """The error for queues that point behind the last commitlog file because files are missing; else
        None.

        A broker's recovery also removes files behind the log's end, and leaves entries that point there. But
        then the log ends within a whole file, and the checkpoint knows of no later message. After a crash
        entries may be ahead of the log, and the checkpoint of both. An entry whose bits were flipped leads
        far behind the log, and no entry into the next file.
        """
        ahead = [queue for queue in queues if queue.last_physical_offset >= self.log.stop]
        farthest = max(ahead, key=lambda queue: queue.last_physical_offset, default=None)
        if not self.log.files or farthest is None:
            return None
        if not any(
            _pointing_between(queue, self.log.stop, self.log.stop + self.log.file_size) for queue in ahead
        ):
            return None
        last = self.log.files[-1]
        is_full = end.is_full or end.offset > self.log.stop - _BLANK_HEAD_SIZE
        if not is_crashed and not is_full:
            checkpoint = read_checkpoint(f"{self.opened.path}/checkpoint")
            known = checkpoint.physic_msg_timestamp if checkpoint is not None else -1
            is_full = (
                last.size < self.log.file_size
                or known > self.log.store_timestamp_at(end.last_unit_offset) >= 0
            )
        if not is_full:
            return None
        return CorruptStoreError(
            last.path,
            last.size,
            f"a commitlog file for physical offset {farthest.last_physical_offset}, to which consume queue "
            f"{farthest.topic}-{farthest.queue_id} points at offset {farthest.max_offset - 1}",
            f"no later file, and the commitlog ends at {end.offset}. Nothing was written. Copy the missing "
            "commitlog files back, or give all directories of the commitlog (storePathCommitLog: option "
            "--commitlog of the command, commit_log_paths in Python). Or give up the messages behind "
            f"{end.offset}: rmqlog recover STORE --cut-after-damage --apply",
        )

    @staticmethod
    def begun_again(
        log: CommitLog,
        queues: Iterable[QueueBounds],
        holes: Sequence[tuple[int, int]] = (),
        *,
        is_copied: bool = False,
    ) -> dict[QueueKey, int]:
        """The physical offsets at which queues begin, where the log's messages alone do not show that:
        earlier messages are of a topic that was deleted before. With `is_copied`, those of all queues that
        begin with their message: a copy is made without them.

        The message at offset 0 was behind the last message that the log has, or is in one of the `holes`,
        which are damaged bytes [start, stop) of the log. An entry whose bits were flipped is no such
        beginning: it does not lead to the log's end, and the next ones lead to earlier places. Nor are
        entries of shifted files, with sizes that no message has.
        """
        unit = last_unit(log)
        end = log.stop if unit is None else unit.stop

        def is_lost(physical: int, last: int, size: int) -> bool:
            if any(start <= physical < stop for start, stop in holes):
                return True
            return physical == end or (end < physical < last and size <= log.file_size)

        return {
            (queue.topic, queue.queue_id): queue.first_physical_offset
            for queue in queues
            if queue.kind == "simple"
            and queue.min_offset == 0
            and (
                is_lost(queue.first_physical_offset, queue.last_physical_offset, queue.last_size)
                or (is_copied and _begins_with_own(log, queue))
            )
        }


def _ranges_without_file(log: CommitLog) -> list[tuple[int, int]]:
    edges = [(log.min_offset, log.min_offset), *((file.start, _whole_stop(log, file)) for file in log.files)]
    return [(stop, start) for (_, stop), (start, _) in pairwise([*edges, (OFFSET_MAX, 0)]) if stop < start]


def _whole_stop(log: CommitLog, file: StoreFile) -> int:
    """Where the messages of a file end if it is short, or ends within one; else where the file ends."""
    if file.size >= log.file_size and file is not log.files[-1]:
        return file.stop
    last = last_unit_in(log, file, file.stop)
    stop = file.start if last is None else last.stop
    return stop if file.size < log.file_size or _ends_within_message(log, stop) else file.stop


def _pointing_between(queue: QueueBounds, start: int, stop: int) -> list[Gone]:
    is_batch = queue.kind == "batch"
    with queue.open() as files:

        def offset_at(unit: int) -> int:
            if not is_batch:
                return unit
            if unit == queue.unit_stop:
                return queue.max_offset
            return int(files.read(unit, unit + 1)["base_offset"][0])

        low = first_unit_from(files, queue, start, queue.unit_start)
        high = first_unit_from(files, queue, stop, low)
        if low == high:
            return []
        physical = int(files.read(low, low + 1)["physical_offset"][0])
        return [Gone(queue.topic, queue.queue_id, offset_at(low), offset_at(high), physical)]


# ---- files lost at the end of the log ----------------------------------------------------------------------


def _ends_full(log: CommitLog) -> bool:
    """Whether the last file is full or cut off, so that another one must follow."""
    if log.stop - written_stop(log) > _UNUSED_MAX and log.files[-1].size == log.file_size:
        return False
    file, last = log.files[-1], last_unit(log)
    if file.size < log.file_size or last is None or last.stop > log.stop - _BLANK_HEAD_SIZE:
        return file.size < log.file_size or last is not None
    if log.file_at(last.stop) is None:  # that file was cut off there, and a later one has no message
        return False
    return _ends_blank(log) or _ends_within_message(log, last.stop)


def _ends_blank(log: CommitLog) -> bool:
    """Whether a BLANK is behind the last message: the next one did not fit into the last file."""
    last = last_unit(log)
    file = None if last is None else log.file_at(last.stop)
    if last is None or file is None or last.stop > file.stop - _BLANK_HEAD_SIZE:
        return False
    return int.from_bytes(log.read(last.stop, _BLANK_HEAD_SIZE)[4:], "big") == MAGIC_BLANK


def _ends_within_message(log: CommitLog, start: int) -> bool:
    """Whether the last file ends within the last message that begins at `start` or behind: it was cut off."""
    walk = log.walk(start)
    for _ in walk:  # messages with a wrong body
        pass
    at = log.stop if walk.end is None else walk.end.offset
    if at > log.stop - _BLANK_HEAD_SIZE:
        return False
    head = log.read(at, _BLANK_HEAD_SIZE)
    is_message = int.from_bytes(head[4:], "big") in (MAGIC_V1, MAGIC_V2)
    return is_message and at + int.from_bytes(head[:4], "big") > log.stop


# ---- a lost commitlog --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LostLog:
    """The commitlog in `directories` has no message; `known` is a clause: which file knows of messages."""

    ADVICE: ClassVar = (
        "Mount the commitlog's disk, or give the commitlog's directories (storePathCommitLog: option "
        "--commitlog of the command, commit_log_paths in Python). To begin a new store, give an empty "
        "directory"
    )
    opened: Opened
    directories: tuple[str, ...]
    known: str

    @property
    def error(self) -> StoreNotFoundError:
        return StoreNotFoundError(
            f"{self.opened}: the commitlog ({', '.join(self.directories)}) has no message, but {self.known}. "
            f"Nothing was changed. {self.ADVICE}"
        )

    @staticmethod
    def refuse(opened: Opened, log: CommitLog) -> None:
        """Raises StoreNotFoundError for a lost commitlog. Costs one read where the commitlog is not empty."""
        found = LostLog.find(opened, log)
        if found is not None:
            raise found.error

    @staticmethod
    def find(opened: Opened, log: CommitLog) -> LostLog | None:
        """Returns a commitlog that must not be read or written: it has no message, and other files of the
        store know of messages. None if nothing is lost.
        """
        if _may_be_whole(opened, log) or opened.unread_ledgers(log.directories):
            return None
        journal = Journal.read(opened)
        if journal is not None and not journal.base:
            return None  # The first commit was broken off: it is completed from byte 0 of the log.
        known = _known_messages(opened)
        if known is None or _may_be_whole(opened, log.relisted()):  # a broker may have begun the log since
            return None
        return LostLog(opened, log.directories, known)


def _begins_with_own(log: CommitLog, queue: QueueBounds) -> bool:
    found = LogEntries(log).message_at(queue.first_physical_offset)
    return found is not None and (*found.key, found.offset) == (queue.topic, queue.queue_id, 0)


def _may_be_whole(opened: Opened, log: CommitLog) -> bool:
    """Whether the log begins with a message, or behind byte 0, or one of its files has any byte.

    After a crash of a broker, the queues of a new log may be on the disk, and its messages not.
    """
    if not log.files:
        return False
    try:
        if log.min_offset or any(log.read(0, _HEAD_SIZE)) or Abort.read_mark(opened) == "":
            return True
        return any(first_byte(file, log.cache) is not None for file in log.files)
    except StoreError:  # who needs the file raises the error
        return True


def _known_messages(opened: Opened) -> str | None:
    """A clause about the messages that other files of the store know of; None when they know of none."""
    last = Ledger.read(opened).last
    if last is not None and last.last_size and not last.given_up:
        return f"{opened.path}/.rmqlog/ledger.json has commits up to physical offset {last.stop}"
    for queue in list_queues(opened, lambda _: True):
        name = f"{shown(queue.topic)}-{queue.queue_id}"
        try:
            bounds = queue.bounds(0)
        except CorruptStoreError as error:
            return f"consume queue {name} has files ({error})"
        if bounds is not None and bounds.last_physical_offset >= 0:  # else it goes on behind lost messages
            return f"consume queue {name} has entries up to offset {bounds.max_offset}"
    checkpoint = read_checkpoint(f"{opened.path}/checkpoint")
    for name in (
        ("physic_msg_timestamp", "logics_msg_timestamp", "confirm_phy_offset", "logics_physical_offset")
        if checkpoint
        else ()
    ):
        if getattr(checkpoint, name) > 0:
            return f"{opened.path}/checkpoint has {name} {getattr(checkpoint, name)}"
    return None
