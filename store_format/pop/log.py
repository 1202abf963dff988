"""The in-flight log: what the consumers of a group were handed out and have acknowledged.

It is `.rmqlog/pop/<group>/<topic>/in-flight.log` in a store, shared by processes (`PopName`). A commit to the
store costs milliseconds; a change here costs a lock, a read of what other processes appended, and one write.
A process that is killed leaves whole frames; a torn frame at the end is cut by the next process.
Acknowledgements survive a power loss with `sync` only: without it messages may be delivered again, and none
is lost.

No file says that a topic was deleted and created again, and its new queues begin at offset 0. So the log
keeps an entry of each queue, the witness: the queue offset of a message, and its physical offset. Entries
never change, and physical offsets grow with the queue offsets of a queue. An entry that leads elsewhere now
is thus of a new topic. What a broker has in flight has no physical offset, but a pop time: a message that was
stored later is of a new topic.

What the log has of a deleted topic does not count. The new topic is read from its first message. An offset
counts that somebody has set in consumerOffset.json since: a broker, from which the group has popped the new
topic.
"""

from __future__ import annotations

import logging
import os
import re
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

import numpy as np

from store_format.commitlog.log import CommitLog
from store_format.consumequeue.slices import QueueRange
from store_format.display.text import first_names, shown
from store_format.errors import CorruptStoreError, OptionError, StoreError, StoreWriteError
from store_format.files.paths import open_descriptor
from store_format.files.read import files_at
from store_format.files.shared_log import FileLock, SharedLog
from store_format.files.write import FileWrites
from store_format.message.encode import TOPIC_V1_LENGTH_MAX
from store_format.metadata.group_offsets import read_group_offsets
from store_format.metadata.values import OrderInfo
from store_format.names import QueueKey, pop_retry_topic
from store_format.opened.store import OWN_DIRECTORY, Opened
from store_format.pop.broker_in_flight import BrokerInFlight
from store_format.pop.records import (
    CHECKSUM_SIZE,
    MAGIC,
    WitnessEntry,
    as_json,
    frame,
    frames,
    note,
)
from store_format.pop.state import RETRY, RETRY_V2, TOPIC, PopQueue, PopState
from store_format.read.store import Store
from store_format.read.stored_messages import read_stored_slice, units_at

_log = logging.getLogger(__name__)
_T = TypeVar("_T")

LOG_NAME = "in-flight.log"
_SIZE_MAX = 1 << 30
_COMPACT_SIZE, _COMPACT_FACTOR = 1 << 20, 8  # compacted from this size, and this many times the snapshot's
_GROUP = re.compile(r"[%|a-zA-Z0-9_-]{1,255}", re.ASCII)  # TopicValidator's table
_TOPIC = re.compile(rf"[%|a-zA-Z0-9_-]{{1,{TOPIC_V1_LENGTH_MAX}}}", re.ASCII)

_FOREIGN = -2  # differs from every offset of the file, and from -1, which means "unknown"


# ---- the name of a log, and of its topics ------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PopName:
    """One in-flight log: the topic that a group pops in the store at `opened`."""

    opened: Opened
    group: str
    topic: str

    @property
    def directory(self) -> str:
        return in_flight_directory(self.opened, self.group, self.topic)

    @property
    def part(self) -> str:
        """The name of its revives in the ledger."""
        return f"pop/{self.group}/{self.topic}"

    def topic_of(self, flag: int) -> str:
        """The topic with the queues of this flag."""
        return queue_topic(self.group, self.topic, flag)

    def flags(self) -> dict[str, int]:
        """The flag of each of its topics."""
        return {self.topic_of(flag): flag for flag in (TOPIC, RETRY, RETRY_V2)}


def queue_topic(group: str, topic: str, flag: int) -> str:
    """The topic of a queue by its retry flag: the popped topic, or the group's retry topic of pop for it."""
    if flag == TOPIC:
        return topic
    assert flag in (RETRY, RETRY_V2), "a log has no other flags"
    return pop_retry_topic(group, topic, is_v2=flag == RETRY_V2)


# ---- what a process has read of the log --------------------------------------------------------------------


class _LogReplay:
    """The state after the first `end` bytes of the log at `path`, from its start on.

    Use: read the file from `start` on and give the bytes to `take`. They begin with the last bytes that this
    replay knows, by which it recognizes its log (see `records`). `snapshot_size` is where the first frame
    ends: after a compaction that is the snapshot.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.state = PopState()
        self.end = self.snapshot_size = 0
        self._last = b""  # the bytes before `end`

    @property
    def start(self) -> int:
        """Where the next read begins."""
        return self.end - len(self._last)

    def take(self, data: bytes) -> bool:
        """Replays the frames in the bytes from `start` on; False if they are of another log.

        Then the file was changed below `end`, and another replay has to begin at 0. Bytes behind `end` are
        no whole frame: a kill has left them, they are damaged, or another process is writing them.

        Raises CorruptStoreError for a file that is no in-flight log, and for records of a newer release.
        """
        base = self.start
        if not data.startswith(self._last):
            return False
        if not self.end:
            if not _has_magic(data, self.path):
                return True
            self.wrote(MAGIC)
        start = self.end
        rest = data[start - base :]
        for position, records in frames(rest, self._last):
            self.state.replay(records, self.path, start + position)
            self.end, self._last = start + position, rest[position - CHECKSUM_SIZE : position]
            self.snapshot_size = self.snapshot_size or self.end
        return True

    def framed(self, records: bytes) -> bytes:
        """The frame that appends the records to the log."""
        return frame(records, self._last)

    def wrote(self, data: bytes) -> None:
        """The state has these records already, and they are at the end of the log now."""
        self.end += len(data)
        self._last = data[-CHECKSUM_SIZE:]

    def rewrote(self, data: bytes) -> None:
        """The log was replaced by this one, a snapshot of the state."""
        self.end = self.snapshot_size = len(data)
        self._last = data[-CHECKSUM_SIZE:]


def _has_magic(data: bytes, path: str) -> bool:
    """Whether the data begins as an in-flight log; False for the torn beginning that a kill leaves.

    Raises CorruptStoreError for other data.
    """
    if not MAGIC.startswith(data[: len(MAGIC)]):
        raise CorruptStoreError(
            path, 0, f"the bytes {MAGIC.hex()}",
            f"{data[: len(MAGIC)].hex()}; remove the file: messages in flight are then delivered again",
        )  # fmt: skip
    return len(data) >= len(MAGIC)


# ---- the log -----------------------------------------------------------------------------------------------


def in_flight_directory(opened: Opened, group: str, topic: str) -> str:
    """The directory of the group's in-flight log of the topic. Raises OptionError for names with other signs.

    The names are checked here, because a store's names are not to be trusted as paths.
    """
    for kind, name, allowed in (("group", group, _GROUP), ("topic", topic, _TOPIC)):
        if not allowed.fullmatch(name):
            raise OptionError(
                f"{kind}: expected letters, digits and any of % | - _ (at most "
                f"{255 if kind == 'group' else TOPIC_V1_LENGTH_MAX}), found {name[:100]!r}"
            )
    return opened.own(f"pop/{group}/{topic}")


def in_flight_logs(opened: Opened) -> list[tuple[str, str]]:
    """(group, topic) of each in-flight log in the store, sorted."""
    base = opened.own("pop")
    return sorted(
        (group, topic)
        for group in files_at(base).names(base, missing_ok=True)
        if _GROUP.fullmatch(group)
        for topic in files_at(base).names(f"{base}/{group}", missing_ok=True)
        if _TOPIC.fullmatch(topic)
        and LOG_NAME in files_at(base).names(f"{base}/{group}/{topic}", missing_ok=True)
    )


def read_in_flight(directory: str) -> PopState | None:
    """The state as of now, without a lock and without a change of any file; None without a log."""
    replay = _LogReplay(f"{directory}/{LOG_NAME}")
    replay.take(files_at(replay.path).read(replay.path, _SIZE_MAX) or b"")
    return replay.state if replay.end else None


class _Job(Generic[_T]):
    """One caller's change, and what came of it."""

    def __init__(self, change: Callable[[PopState], _T]) -> None:
        self.change = change
        self.is_done = False
        self.result: _T | None = None
        self.error: BaseException | None = None


class InFlightLog:
    """The log in `directory`, which is made if it is missing. Threads may share one; a forked child may too.

    `sync`: a change is on the disk before `run` returns.

    Example::

        log = InFlightLog(in_flight_directory(root, "billing", "Orders"))
        log.run(lambda state: state.ack((0, 2, 100, 1700000000000), [1]))
    """

    def __init__(self, directory: str, *, sync: bool = False, lock_timeout: float = 10.0) -> None:
        self.directory = directory
        self._sync, self._lock_timeout = sync, lock_timeout
        self._lock = FileLock(f"{directory}/lock")
        self._file = SharedLog(f"{directory}/{LOG_NAME}")
        self._replay: _LogReplay | None = None
        self._turn = threading.Lock()
        self._jobs_lock = threading.Lock()
        self._jobs: list[_Job[Any]] = []  # Any: each has its own result

    def run(self, change: Callable[[PopState], _T]) -> _T:
        """Calls `change` with the state of all processes, under the lock, and returns what it returns.

        The records of the change are one frame. Changes of several threads share the lock, the write and the
        wait for the disk. A change that raises has no effect. It must not block, nor take the store's lock.

        Raises StoreInUseError if a process that was stopped has the lock, StoreWriteError on a full disk.
        """
        job = _Job(change)
        with self._jobs_lock:
            self._jobs.append(job)
        with self._turn:
            if not job.is_done:
                with self._jobs_lock:
                    jobs, self._jobs = self._jobs, []
                self._commit(jobs)
        if job.error is not None:
            raise job.error
        return job.result  # type: ignore[return-value]

    def close(self) -> None:
        """Closes the files; the next `run` opens them again."""
        with self._turn:
            self._replay = None
            self._file.close()
            self._lock.close()

    def abandon(self) -> None:
        """In a forked child: closes the files, which stay open in the parent, and keep its lock (flock).

        The parent's threads, which may have been using this log, do not exist in the child: make another log.
        """
        self._file.close()
        self._lock.close()

    def _commit(self, jobs: list[_Job[Any]]) -> None:
        is_new = False
        try:
            with self._lock_made().exclusive(self._lock_timeout):
                replay = self._caught_up()
                for job in jobs:
                    replay = self._run_one(job, replay)
                if replay.state.journal:
                    self._append(replay)
                    is_new = True
            if self._sync and is_new:
                self._file.sync()
        except BaseException as error:
            self._replay = None  # its state may have changes that the file lacks
            for job in jobs:
                job.error = job.error or error
            raise
        finally:
            for job in jobs:
                job.is_done = True

    def _run_one(self, job: _Job[Any], replay: _LogReplay) -> _LogReplay:
        """Runs one change. If it raises, the state is made again, without what it changed."""
        state = replay.state
        mark = len(state.journal)
        try:
            job.result = job.change(state)
        except Exception as error:
            job.error = error
            if len(state.journal) == mark:
                return replay
            records = bytes(state.journal[:mark])
            self._replay = None
            replay = self._caught_up()
            if records:
                replay.state.replay(records, self._file.path, replay.end)
                replay.state.journal += records
        return replay

    def _lock_made(self) -> FileLock:
        if not files_at(self.directory).is_directory(self.directory):
            root, _, rest = self.directory.partition(f"/{OWN_DIRECTORY}/")
            FileWrites(sync=self._sync).make_directories(root, OWN_DIRECTORY, *rest.split("/"))
        return self._lock

    def _caught_up(self) -> _LogReplay:
        """The state with what other processes appended.

        A file that was changed below what this process knew is read again from the start: another process
        has cut damage there and gone on, or another program has written an older copy into it. So all
        processes have the state that the file has. What is no whole frame is cut.
        """
        replay, start, data = self._replay, 0, b""
        if replay is not None and self._file.is_named(replay.end):
            start = replay.start
            data = self._file.read(start, _SIZE_MAX)
            if not replay.take(data):
                _log.warning(
                    "%s was changed by another program, or another process has removed damaged records; it "
                    "is read again, and messages may be delivered again",
                    self._file.path,
                )
                replay = None
        else:
            self._file.close()
            replay = None
        if replay is None:
            replay, start = _LogReplay(self._file.path), 0
            data = self._file.read(start, _SIZE_MAX)
            replay.take(data)
        self._repair(replay, start + len(data))
        self._replay = replay
        return replay

    def _repair(self, replay: _LogReplay, size: int) -> None:
        """Makes the file end where the replay ends, so that a frame can be appended."""
        if size > replay.end > 0:
            _log.warning(
                "%s: the last %d bytes, from byte %d on, are no whole record and are removed; messages that "
                "they name may be delivered again",
                self._file.path, size - replay.end, replay.end,
            )  # fmt: skip
            self._file.cut(replay.end)
        if not replay.end:
            self._file.append(MAGIC, 0)
            replay.wrote(MAGIC)

    def _append(self, replay: _LogReplay) -> None:
        data = replay.framed(bytes(replay.state.journal))
        replay.state.journal.clear()
        self._file.append(data, replay.end)
        replay.wrote(data)
        if replay.end >= max(_COMPACT_SIZE, _COMPACT_FACTOR * replay.snapshot_size):
            try:
                self._rewrite(replay)
            except StoreWriteError as error:
                _log.warning("%s: cannot be made shorter for now: %s", self._file.path, error)
                replay.snapshot_size = replay.end

    def _rewrite(self, replay: _LogReplay) -> None:
        """Replaces the file by one with a snapshot of the state, under the lock."""
        data = MAGIC + frame(snapshot(replay.state))
        FileWrites(sync=self._sync).replace(self._file.path, data)
        replay.rewrote(data)
        self._file.close()


# ---- a shorter log -----------------------------------------------------------------------------------------


def snapshot(state: PopState) -> bytes:
    """Returns the records. The state's journal is not part of them."""
    found = bytearray()
    if not state.is_closed:
        found += note("open")
    for (flag, queue_id), queue in state.queues.items():
        found += note("offset", queue=[flag, queue_id], offset=queue.next_offset)
    witnesses = [[*key, *each.witness] for key, each in state.queues.items() if each.witness is not None]
    found += note("entries", queues=witnesses)
    points = [*state.check_points(), *state.settled.values()]
    found += note("take", points=[as_json(each) for each in points])
    found += state.order.snapshot(note)
    if state.reviving is not None:
        bits = [[*key, hex(each)] for key, each in state.reviving.bits.items()]
        found += note("revive", number=state.reviving.number, points=bits)
    found += note(
        "state",
        mirrored=[[*queue, *values] for queue, values in state.mirrored.items()],
        number=state.revive_number,
        totals=dict(state.totals),
        renewals=state.renewals,
        owners=[[*queue, time, name] for (queue, time), name in state.owners.items()],
    )
    return bytes(found)


# ---- reading without the lock ------------------------------------------------------------------------------


class InFlightReader:
    """The state of the log in `directory` at each look. A look reads what was appended since the last one."""

    def __init__(self, directory: str) -> None:
        self.path = f"{directory}/{LOG_NAME}"
        self._replay = _LogReplay(self.path)
        # The file stays open, so that no other file gets its inode.
        self._descriptor = -1

    def look(self) -> PopState | None:
        """The state as of now; None without a log. The caller does not change it, and keeps no part of it.

        Raises CorruptStoreError for a file that is not an in-flight log.
        """
        if self._descriptor < 0 or not files_at(self.path).is_named(self.path, self._descriptor):
            self.close()
            try:
                self._descriptor = open_descriptor(self.path)
            except FileNotFoundError:
                return None
        if not self._take():  # what a killed process left torn was cut, or damage
            self._replay = _LogReplay(self.path)
            self._take()
        return self._replay.state if self._replay.end else None

    def _take(self) -> bool:
        size = os.fstat(self._descriptor).st_size
        return size >= self._replay.end and self._replay.take(
            _read(self._descriptor, self._replay.start, size)
        )

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._replay, self._descriptor = _LogReplay(self.path), -1


def _read(descriptor: int, start: int, stop: int) -> bytes:
    parts = []
    while start < stop and (part := os.pread(descriptor, stop - start, start)):
        parts.append(part)
        start += len(part)
    return b"".join(parts)


# ---- a reset of a group that pops --------------------------------------------------------------------------


def note_moved(opened: Opened, group: str, queues: Iterable[QueueKey]) -> None:
    """Notes that the group was moved in these queues. Call it under the store's lock, behind the file.

    Consumers that are open, and those that are opened later, continue at the offsets of the file; what was
    in flight in these queues is forgotten. Does nothing for a group without an in-flight log.
    """
    moved = list(queues)
    for owner, topic in in_flight_logs(opened):
        if owner != group:
            continue
        name = PopName(opened, group, topic)
        flags = name.flags()
        wanted = {(flags[each], queue_id) for each, queue_id in moved if each in flags}
        log = InFlightLog(name.directory, sync=True)
        try:
            log.run(partial(_forget_mirrored, wanted))
        finally:
            log.close()


def _forget_mirrored(queues: set[PopQueue], state: PopState) -> None:
    known = dict.fromkeys(sorted(queues & state.queues.keys()), _FOREIGN)
    if known and not state.is_closed:
        state.note_mirrored(known)  # the log keeps the last two offsets of the file
        state.note_mirrored(known)


# ---- whether a queue is still the one that was popped ------------------------------------------------------


# A broker notes the pop time, and then reads what the queue has.
_POP_TAKES_MS = 1_000

_Ranges = Mapping[QueueKey, QueueRange]
_Noted = Mapping[PopQueue, tuple[WitnessEntry | None, tuple[int, int] | None]]


def physical_offset_at(queue: QueueRange, offset: int) -> int:
    """The physical offset of the message at the queue offset; -1 if the entry cannot be read."""
    entry = _entry(queue, offset)
    return -1 if entry is None else entry.physical_offset


def witness_before(queue: QueueRange, next_offset: int) -> WitnessEntry | None:
    """The last entry before the offset, else the first of the queue; None if no entry can be read."""
    return _entry(queue, max(min(next_offset, queue.max_offset) - 1, queue.min_offset))


def is_of_new_topic(queue: QueueRange, witness: WitnessEntry) -> bool:
    """Whether the topic was created again since its queue had this entry.

    False if the files do not tell: the queue has no entry, or retention has deleted that of the witness.
    """
    found = _entry(queue, min(witness.offset, queue.max_offset - 1))
    if found is None:
        return False
    if found.offset == witness.offset:
        return found.physical_offset != witness.physical_offset
    return found.offset < witness.offset and found.physical_offset > witness.physical_offset


def popped_entry(
    log: CommitLog, queue: QueueRange, offset: int, pop_time: int
) -> tuple[WitnessEntry | None, int]:
    """(the entry at the offset, how many ms after the pop time its message was stored; 0: before).

    The first message that is left counts if retention has deleted that one. None if it cannot be read.
    """
    entry = _entry(queue, max(offset, queue.min_offset))
    if entry is None:
        return None, 0
    try:
        messages, _, _ = read_stored_slice(log, queue.piece(entry.offset, entry.offset + 1))
    except StoreError:
        return None, 0
    return entry, max(int(messages.store_timestamps[0]) - pop_time, 0) if len(messages) else 0


def is_point_deleted(log: CommitLog, queue: QueueRange | None, found: BrokerInFlight) -> bool:
    """Whether a broker's check point is of a deleted topic, or of a newer state of the store.

    The queue has not got as far as the check point, or its message was stored after the pop time. A clock may
    be wrong, so the message must also be behind the check point in the commitlog. If not, messages may be
    delivered twice, and none is lost. `queue` is None without a queue.
    """
    record = found.record
    if queue is None or record.offsets[-1] >= queue.max_offset:
        return True
    entry = _entry(queue, max(record.start, queue.min_offset))
    if entry is None or entry.physical_offset <= found.physical_offset:
        return False
    return is_after_pop(popped_entry(log, queue, record.start, record.pop_time)[1])


def is_batch_deleted(log: CommitLog, queue: QueueRange | None, batch: OrderInfo, committed: int) -> bool:
    """Whether a batch of consumerOrderInfo.json is of a deleted topic: its first message was stored later.

    With a topic, a broker deletes the committed offsets; `committed` is -1 then. It leaves the batches for
    some time. `queue` is None without a queue.
    """
    if queue is None or not batch.offsets or committed >= 0:
        return False
    return is_after_pop(popped_entry(log, queue, batch.offsets[0], batch.pop_time)[1])


def is_after_pop(later_ms: int) -> bool:
    """Whether a message that was stored so long after the pop time cannot have been popped then."""
    return later_ms > _POP_TAKES_MS


def _entry(queue: QueueRange, offset: int) -> WitnessEntry | None:
    if queue.is_batch or not queue.min_offset <= offset < queue.max_offset:
        return None
    try:
        offsets, units = units_at(queue, np.array([offset]))
    except StoreError:  # damaged, or deleted by retention since: its readers say so
        return None
    return WitnessEntry(offset, int(units["physical_offset"][0])) if len(offsets) else None


# ---- topics that were created again ------------------------------------------------------------------------


def queue_ranges(name: PopName, store: Store) -> _Ranges:
    """The queues of the topic and of the group's retry topics that can be read; {} without consume queues."""
    return store.snapshot(name.flags().__contains__).queues if store.has_consume_queues else {}


def new_queues(name: PopName, noted: _Noted, ranges: _Ranges) -> dict[PopQueue, tuple[int, bool]]:
    """The queues whose topic was created again since: where the group begins there, and whether that offset
    was set in consumerOffset.json since.
    """
    new: dict[PopQueue, tuple[int, bool]] = {}
    offsets: Mapping[QueueKey, int] | None = None
    for queue, (witness, mirrored) in noted.items():
        key = name.topic_of(queue[0]), queue[1]
        there = ranges.get(key)
        if there is None or witness is None or not is_of_new_topic(there, witness):
            continue
        offsets = read_group_offsets(name.opened, name.group) if offsets is None else offsets
        in_file = offsets.get(key, -1)
        is_set = in_file >= 0 and mirrored is not None and in_file not in mirrored
        new[queue] = in_file if is_set else there.min_offset, is_set
    return new


def noted_queues(state: PopState) -> _Noted:
    """What the log notes of each queue: its witness, and the last two offsets in consumerOffset.json."""
    return {queue: (each.witness, state.mirrored.get(queue)) for queue, each in state.queues.items()}


def forget_deleted(name: PopName, log: InFlightLog, ranges: _Ranges) -> None:
    """Forgets what the log has of queues whose topic was created again, with a warning.

    Under the store's lock, before consumerOffset.json is compared.
    """
    new = new_queues(name, log.run(noted_queues), ranges)
    if not new:
        return

    def forget(state: PopState) -> int:
        before = state.in_flight + state.order.in_flight
        for queue, (start, is_set) in new.items():
            state.renew_queue(*queue, start)
            if is_set:
                state.note_mirrored({queue: start})
        return before - state.in_flight - state.order.in_flight

    count = log.run(forget)
    starts = first_names(
        f"{name.topic_of(flag)}-{each} at {start}" for (flag, each), (start, _) in new.items()
    )
    _log.warning(
        "%s: group %s: topic %s was deleted and created again; %d messages of the deleted topic that were in "
        "flight are forgotten, and the group continues at %s",
        name.opened.path, name.group, shown(name.topic), count, starts,
    )  # fmt: skip


def note_witnesses(name: PopName, log: InFlightLog, queues: _Ranges) -> None:
    """Notes a witness of each queue that has none: until the first hand-out it is the entry before."""
    unknown = log.run(
        lambda state: {
            queue: each.next_offset for queue, each in state.queues.items() if each.witness is None
        }
    )
    found = {}
    for queue, next_offset in unknown.items():
        there = queues.get((name.topic_of(queue[0]), queue[1]))
        witness = None if there is None else witness_before(there, next_offset)
        if witness is not None:
            found[queue] = witness

    def note(state: PopState) -> None:
        queues = state.queues
        new = {key: each for key, each in found.items() if key in queues and queues[key].witness is None}
        if new:
            state.note_witnesses(new)

    if found:
        log.run(note)
