"""How far the commitlog of a crashed store can be read: over damage in its middle, but not into what an
earlier recovery cut off.

A broker's recovery ends the log at the first bytes that are not a message (`recovery.end_after_crash`) and
cuts off everything after them. At the log's true end nothing follows those bytes. If whole messages follow,
either the middle of the log is damaged, or the messages are remains: recovery sets the log's end back and
clears no byte (MappedFileQueue.truncateDirtyFiles), and a broker that continues writes over the first of the
cut messages only.

The rule. Whole messages behind damaged bytes continue the log when both of these hold:

1. The first of them was not stored more than a second before the last message in front of the damaged bytes.
   A broker stamps messages in the order of the log, so a message that was cut is older than every message
   that was written after the recovery. A broker needs more than a second to die and to start again; a clock
   that is corrected goes back by less.
2. The consume queue's entry of that queue offset points to the message, or no message in front of the damaged
   bytes has its queue offset or a later one. A broker that goes on after a recovery gives the queue offsets
   of cut messages again. A queue whose topic was deleted and created again counts from where it last began
   with offset 0.

Messages that directly follow a whole message need neither: the broker's recovery takes them as well. Messages
that fail the rule are remains, and so are those behind them in the same file. A recovery deletes the files
behind the log's end, so the log goes on in a later file whose first messages pass the rule; where none does,
it ends in front of the remains, which are counted, never read. A store that a broker recovered and left
without writing a message cannot be told from one that nobody recovered: its messages are read.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

import numpy as np

from store_format.commitlog.log import CommitLog
from store_format.commitlog.walk import Damage, EndKind, UnitRun
from store_format.consumequeue.files import UnitFiles, file_run
from store_format.consumequeue.listing import can_be_queue, queue_directory
from store_format.consumequeue.message_entries import FoundEntries, find_entries
from store_format.errors import CorruptStoreError, StoreError
from store_format.files.read import StoreFile
from store_format.files.view import FileCache
from store_format.layouts import CQ_UNIT
from store_format.message.locate import locate
from store_format.names import QueueKey
from store_format.survey.broker_end import LogEnd
from store_format.survey.log_queue import LogQueue

_log = logging.getLogger(__name__)


_DAMAGED_MAX = 10_000
_CLOCK_STEP_MAX_MS = 1000


@dataclass(frozen=True, slots=True)
class ReadableEnd:
    """How far the log of a crashed store can be read, and what a broker that starts would lose.

    The log can be read up to `offset`. A broker that starts cuts it at `cut` and loses the `messages` whole
    messages between the two. `damage` says what is wrong at `cut`; None if nothing whole follows.
    `damage_bytes` counts all bytes between `cut` and `offset` that are not a message. `remains` counts the
    whole messages after `offset` that do not continue the log, within the physical offsets `remains_range`.
    `is_recovery_known`: an entry shows that a broker has given their queue offsets again. `disputed` says
    what is wrong at `offset` if these messages may continue the log all the same.
    """

    cut: int
    offset: int
    messages: int = 0
    damage: CorruptStoreError | None = None
    damage_bytes: int = 0
    remains: int = 0
    last_timestamp: int = -1  # ms, of the last message before `offset`
    # the first of these stretches of bytes, as physical offsets [start, stop)
    damaged: tuple[tuple[int, int], ...] = ()
    hidden: tuple[tuple[int, int], ...] = ()  # stretches with remains in front of `offset`, likewise
    remains_range: tuple[int, int] = (0, 0)
    is_recovery_known: bool = False
    disputed: CorruptStoreError | None = None

    @property
    def loss(self) -> str:
        """What a broker that starts on the store does to the messages after the damage."""
        return (
            f"A broker that starts on this store cuts the commitlog at {self.cut} and loses the "
            f"{self.messages} messages behind it"
        )


def find_readable_end(root: str, log: CommitLog, end: LogEnd) -> ReadableEnd:
    """How far the log can be read, if a broker's recovery ends it at `end`.

    Without damage this costs one check for bytes after the end. After damage every message is checked, CRC
    included, as the recovery would have checked it without the damage.
    """
    last_timestamp = log.store_timestamp_at(end.last_unit_offset)
    found = _Behind(root, log, end, end.offset, last_timestamp)
    if end.end.kind in (EndKind.TORN, EndKind.UNWRITTEN):
        found.look()
    return ReadableEnd(
        end.offset,
        found.offset,
        found.messages,
        found.damage,
        found.damage_bytes,
        found.remains,
        found.last_timestamp,
        tuple(place for place in found.damaged if place[0] < found.offset),
        tuple(found.hidden),
        found.remains_range,
        found.is_recovery_known,
        found.disputed,
    )


@dataclass(slots=True)
class _Behind:
    """What was found so far after the end that recovery finds."""

    root: str
    log: CommitLog
    end: LogEnd
    offset: int
    last_timestamp: int
    messages: int = 0
    damage: CorruptStoreError | None = None
    damage_bytes: int = 0
    remains: int = 0
    remains_range: tuple[int, int] = (0, 0)
    is_recovery_known: bool = False
    may_continue: bool = False  # what `_continues` has found last
    disputed: CorruptStoreError | None = None
    known: dict[QueueKey, int] | None = None
    damaged: list[tuple[int, int]] = field(default_factory=list)
    hidden: list[tuple[int, int]] = field(default_factory=list)

    def look(self) -> None:
        walk = self.log.walk(self.end.offset, verify_crc=True, resync=True)
        damage: CorruptStoreError | None = None  # the first one
        skipped, is_behind_damage = 0, False
        remains_in: StoreFile | None = None
        for step in walk:
            if isinstance(step, Damage):
                damage = damage or CorruptStoreError(step.file.path, step.start, step.expected, step.found)
                skipped, is_behind_damage = skipped + step.stop - step.start, True
                if len(self.damaged) < _DAMAGED_MAX:
                    self.damaged.append((step.file.start + step.start, step.file.start + step.stop))
                continue
            if is_behind_damage and (step.file == remains_in or not self._continues(step)):
                if step.file != remains_in:
                    self.hidden.append((step.file.start + int(step.positions[0]), step.file.stop))
                    self.disputed = self.disputed or (damage if self.may_continue else None)
                first = self.remains_range[0] if self.remains else step.file.start + int(step.positions[0])
                self.remains_range = (first, step.file.start + step.stop)
                remains_in = step.file
                self.remains += len(step.positions)
                skipped += int(step.sizes.sum())
                continue
            self.remains, self.is_recovery_known, self.disputed = 0, False, None  # those were in the middle
            is_behind_damage = False
            self.offset = step.file.start + step.stop
            self.last_timestamp = self.log.store_timestamp_at(step.file.start + int(step.positions[-1]))
            self.damage, self.damage_bytes = damage, skipped
            # Without damage before them they were appended since the end was looked for.
            self.messages += len(step.positions) if damage is not None else 0

    def _continues(self, run: UnitRun) -> bool:
        """Whether the first messages after damage continue the log, by the rule of this module."""
        first = run.file.start + int(run.positions[0])
        is_older = self.log.store_timestamp_at(first) < self.last_timestamp - _CLOCK_STEP_MAX_MS
        self.may_continue = False
        try:
            entries = [(entry, entry_at(self.root, *entry[:2])) for entry in _entries_of(self.log, run)]
        except StoreError:
            if is_older:
                return False
            raise
        unknown = [(key, offset) for (key, offset, physical), found in entries if found != physical]
        is_given_again = any(
            found is not None and found != entry[2] and found < self.offset for entry, found in entries
        )
        if is_older:
            self.is_recovery_known |= is_given_again
            return False
        if unknown and self.known is None:
            self.known = _max_offsets(self.log, self.end)
        if not any(offset < (self.known or {}).get(key, 0) for key, offset in unknown):
            return True
        self.is_recovery_known |= is_given_again
        own = [found == physical for (_, _, physical), found in entries if physical == first]
        self.may_continue = bool(own) and all(own) and not is_given_again
        return False


def _entries_of(log: CommitLog, run: UnitRun) -> list[tuple[QueueKey, int, int]]:
    """(queue, queue offset, physical offset) of every entry of the messages in their queues."""
    found = _found_entries(log, run)
    rows = zip(found.key.tolist(), found.offset.tolist(), found.physical.tolist(), strict=True)
    return [(found.keys[key], offset, physical) for key, offset, physical in rows]


def has_own_entry(root: str, log: CommitLog, physical_offset: int) -> bool:
    """Whether entries point to the whole message there: one in each queue that the message names."""
    for run in log.walk(physical_offset, physical_offset + 1):
        assert isinstance(run, UnitRun)
        entries = _entries_of(log, run)
        return bool(entries) and all(
            entry_at(root, queue, offset) == physical for queue, offset, physical in entries
        )
    return False


def _found_entries(log: CommitLog, run: UnitRun) -> FoundEntries:
    units, _ = locate(log.refs_of(run), verify_crc=False)
    return find_entries(units)


def entry_at(root: str, queue: QueueKey, offset: int) -> int | None:
    """The physical offset in a queue's entry on disk; None without a valid entry."""
    topic, queue_id = queue
    if not can_be_queue(topic, queue_id):  # a name from the log, not from a listing
        return None
    directory = queue_directory(root, topic, queue_id)
    with suppress(StoreError, OSError):
        run = file_run(directory, CQ_UNIT.itemsize)
        first, stop = (0, 0) if run is None else (run.first_file, run.last_file + run.file_size)
        if run is not None and first <= offset * CQ_UNIT.itemsize < stop:
            with UnitFiles(directory, CQ_UNIT, run, queue) as files:
                physical, size, _ = files.unit(offset)
            return int(physical) if size > 0 else None
    return None


def _max_offsets(log: CommitLog, end: LogEnd) -> dict[QueueKey, int]:
    """The offset after the last message of each queue, among the messages that recovery scans."""
    known: dict[QueueKey, LogQueue] = {}
    for run in _runs(log, end):
        found = _found_entries(log, run)
        for number in np.unique(found.key).tolist():
            rows = found.key == number
            queue = known.setdefault(found.keys[number], LogQueue(*found.keys[number]))
            queue.add(found.physical[rows], found.offset[rows], found.offset[rows] + found.count[rows])
    return {key: queue.max_offset for key, queue in known.items()}


def _runs(log: CommitLog, end: LogEnd) -> Iterator[UnitRun]:
    if end.scan_start < end.offset:
        yield from (
            step for step in log.walk(end.scan_start, end.offset, resync=True) if isinstance(step, UnitRun)
        )


# ---- warnings -----------------------------------------------------------------------------

_warned: WeakKeyDictionary[FileCache, set[QueueKey]] = WeakKeyDictionary()


def warn_once(root: str, cache: FileCache, found: ReadableEnd) -> None:
    """Warns of what follows the log's end, once for each opened store: `cache` is the store's own."""
    key = (root, found.cut)
    said = _warned.setdefault(cache, set())
    if key in said or not (found.damage or found.remains):
        return
    said.add(key)
    if found.damage is not None:
        _log.warning(
            "%s was left by a crash, and its commitlog is damaged in the middle: %s. The %d whole messages "
            "behind the damage, up to %d, are read too. "
            "%s: export them before a broker starts (rmqlog export --skip-damage)",
            root, found.damage, found.messages, found.offset, found.loss,
        )  # fmt: skip
    if found.remains:
        _log.warning(
            "%s was left by a crash, and its commitlog ends at %d: %d whole messages behind the end are "
            "older than the last one before the end, or repeat queue offsets. %s not read",
            root, found.offset, found.remains,
            "An earlier recovery has cut them; they are" if found.is_recovery_known else "They are",
        )  # fmt: skip
