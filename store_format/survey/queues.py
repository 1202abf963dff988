"""Consume queues compared with the messages of the commitlog, whose entries `LogScan.parts` finds.

A message of a simple queue belongs at the place of its queue offset; `Claims` says which of two messages with
one queue offset counts. A queue whose offsets begin at 0 again, because its topic was deleted and created
again, loses what it had (spec 3.3). Places without a message between others get `lost_units`, those before
the first one pre-blank units. A batch queue has one unit after the other (spec 3.5).

An entry that leads to a message of its place is right, whatever other message claims the place. Entries that
the log cannot show are right, too: those of expired messages, and those of messages in damaged bytes.
An address in consumequeue_ext counts as the right tags code (spec 3.4).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import takewhile
from types import MappingProxyType
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from store_format.commitlog.log import CommitLog
from store_format.consumequeue.dispatch import (
    LOST_MAX,
    NO_FILING,
    Filing,
    lost_max,
    pack_entries,
)
from store_format.consumequeue.files import QueueKind, can_be_queue
from store_format.consumequeue.units import (
    FiledQueue,
    is_ext_address,
    lost_mask,
    message_mask,
    pre_blank_mask,
    valid_batch_units,
    valid_units,
)
from store_format.consumequeue.updates import lost_units, pre_blank_bytes
from store_format.errors import CorruptStoreError, OffsetOutOfRangeError, StoreError
from store_format.files.read import files_at
from store_format.layouts import BATCH_CQ_UNIT, CQ_UNIT, OFFSET_MAX
from store_format.names import SCHEDULE_TOPIC, QueueKey
from store_format.opened.store import Opened
from store_format.survey.entry_proofs import Contradictions, LogEntries
from store_format.survey.scan import LogQueue, by_queue

_CHUNK = 1 << 16  # units
_BISECTED_MORE = 64  # units of a batch queue that are read behind the expected ones
_DIFFERENCES_MAX = 1 << 16  # of one queue: more are joined
_BATCH_FIELDS = ("physical_offset", "size", "store_timestamp", "base_offset", "batch_size")

Kind = Literal["missing", "wrong", "unfilled"]
_Units = NDArray[np.void]
_Ints = NDArray[np.int64]
_Mask = NDArray[np.bool_]


# ---- the files ---------------------------------------------------------------------------------------------


@dataclass(slots=True)
class StoredQueue:
    """The files of a queue, all of `file_size` bytes. Places without a file read as zeros.

    `files` are the paths by the queue's byte at which each file begins. `misfit` says why other files cannot
    be compared. A copy is made from the `original`.
    """

    topic: str
    queue_id: int
    is_batch: bool
    directory: str
    file_size: int
    files: dict[int, str] = field(default_factory=dict)
    misfit: str = ""
    original: StoredQueue | None = None

    @staticmethod
    def list_in(opened: Opened, queue: QueueKey, file_size: int, *, is_batch: bool) -> StoredQueue:
        """The files of the queue in the store at `opened`, which are expected to have `file_size` bytes."""
        found = StoredQueue(*queue, is_batch, "", file_size)
        found.directory = FiledQueue.of(opened, *queue, found.kind).directory
        try:
            listed = files_at(found.directory).store_files(found.directory)
        except StoreError as error:
            found.misfit = str(error)
            return found
        files = [file for file in listed if file.size]
        if any(file.size != file_size for file in files) or any(file.start % file_size for file in listed):
            found.misfit = f"expected files of {file_size} bytes, found other sizes or names"
        found.files = {file.start: file.path for file in files}
        return found

    @property
    def kind(self) -> QueueKind:
        return "batch" if self.is_batch else "simple"

    @property
    def filed(self) -> FiledQueue:
        return FiledQueue(self.topic, self.queue_id, self.directory, self.kind)

    @property
    def layout(self) -> np.dtype[np.void]:
        return BATCH_CQ_UNIT if self.is_batch else CQ_UNIT

    @property
    def first(self) -> int:
        """The number of the first unit for which there is a file."""
        return min(self.files) // self.layout.itemsize

    @property
    def stop(self) -> int:
        """The number behind the last unit for which there is a file."""
        return (max(self.files) + self.file_size) // self.layout.itemsize

    def read(self, start: int, stop: int) -> _Units:
        """The units [start, stop)."""
        parts = [self._read_in_file(low, high) for low, high in self.chunks(start, stop, stop - start)]
        return (
            parts[0]
            if len(parts) == 1
            else np.concatenate([np.empty(0, self.layout), *parts], dtype=self.layout)
        )

    def _read_in_file(self, start: int, stop: int) -> _Units:
        size = self.layout.itemsize
        within = start * size % self.file_size
        path = self.files.get(start * size - within)
        if path is None:
            return np.zeros(stop - start, self.layout)
        try:
            with files_at(path).view(path) as view:
                data = view.read(within, (stop - start) * size)
        except FileNotFoundError as error:
            raise OffsetOutOfRangeError(
                f"{self.topic}-{self.queue_id}: {path} with unit {start} and later ones no longer exists: it "
                "was deleted (retention?) after it was listed"
            ) from error
        return np.frombuffer(data.ljust((stop - start) * size, b"\0"), self.layout)

    def chunks(self, start: int, stop: int, count: int = _CHUNK) -> Iterator[tuple[int, int]]:
        """[start, stop) in parts of at most `count` units, each in one file."""
        per_file = self.file_size // self.layout.itemsize
        while start < stop:
            end = min(stop, start + count, (start // per_file + 1) * per_file)
            yield start, end
            start = end

    def read_batches(self, bases: _Ints) -> _Units:
        """The batch units with these base offsets, ascending; zeros where there is none. By bisection."""
        low, high = self.first, self.stop
        while low < high:
            middle = (low + high) // 2
            unit = self.read(middle, middle + 1)[0]
            if unit["size"] <= 0 or unit["base_offset"] >= bases[0]:
                high = middle
            else:
                low = middle + 1
        units = self.read(low, min(low + len(bases) + _BISECTED_MORE, self.stop))
        units = units[units["size"] > 0]
        stored = np.zeros(len(bases), self.layout)
        if len(units):
            place = np.minimum(np.searchsorted(units["base_offset"].astype(np.int64), bases), len(units) - 1)
            there = units["base_offset"][place] == bases
            stored[there] = units[place[there]]
        return stored


# ---- what the log says -------------------------------------------------------------------------------------


class PlacedUnits(NamedTuple):
    """Units that belong at `start` and behind. Without a message they are `lost_units` or pre-blank."""

    start: int
    units: _Units
    has_messages: bool


@dataclass(slots=True)
class QueuePlaces:
    """Where the entries of a queue's messages belong.

    Units `first` to `stop` exist; in a simple queue these are queue offsets. `entries` counts messages,
    `misplaced` those whose offset no queue can have, or that are too far away from the others, which are not
    fewer. Of the latter `problem` says what was expected, and what was found. `is_part`: the messages before
    the first one are not looked at, so that nothing is said of their places.
    """

    topic: str
    is_batch: bool
    per_file: int  # units
    is_part: bool = False
    low: int | None = None  # the number of the first unit of the files that are there
    first: int = 0
    stop: int = 0
    max_offset: int = 0
    entries: int = 0
    misplaced: int = 0
    problem: tuple[str, str] | None = None

    def add(self, rows: _Units, *, is_new: bool) -> Iterator[PlacedUnits | None]:
        """The places of the next messages, which count and have consecutive offsets (`Claims.add`). Yields
        None where the queue begins again: with these (`is_new`), or without the messages before, which were
        too far away.
        """
        first, stop = int(rows["offset"][0]), int(rows["offset"][-1]) + 1
        jump_max = lost_max(self.per_file)
        jump = max(first - self.stop, self.first - stop) if self.stop and not self.is_batch else 0
        if is_new:
            self.problem = None  # of messages of a deleted topic
        if jump > jump_max and not is_new:
            self.misplaced += min(self.entries, len(rows))
            self.problem = (
                f"consecutive queue offsets (at most {jump_max} missing)",
                f"offset {first} at physical offset {rows['physical'][0]}, and {self.first} to {self.stop}",
            )
            if self.entries >= len(rows):
                return
        if jump > jump_max or is_new:
            self.begin_again()
            yield None
        yield from (self._append if self.is_batch else self._place)(rows)

    def begin_again(self) -> None:
        self.first = self.stop = self.max_offset = self.entries = 0

    def _append(self, rows: _Units) -> Iterator[PlacedUnits]:
        stops = np.add(rows["offset"], rows["batch_size"])
        ends = np.maximum.accumulate(np.append(self.max_offset, stops))
        rows = rows[rows["offset"] >= ends[:-1]]  # Units are found by bisection: offsets ascend.
        if len(rows):
            yield PlacedUnits(self.stop, pack_entries(rows, batch=True), has_messages=True)
            self.stop += len(rows)
            self.entries += len(rows)
            self.max_offset = int(rows["offset"][-1] + rows["batch_size"][-1])

    def _place(self, rows: _Units) -> Iterator[PlacedUnits]:
        first, stop = int(rows["offset"][0]), int(rows["offset"][-1]) + 1
        if (stop + self.per_file) * CQ_UNIT.itemsize > OFFSET_MAX:
            self.misplaced += len(rows)
            return
        units = pack_entries(rows, batch=False)
        if not self.stop:
            yield from self._blank(self._begin(first), first)
            self.first = self.stop = first
        if first > self.stop:
            yield from self._lost(self.stop, first, units[:1])
        elif first < self.first:
            yield from self._blank(min(stop, self.first), self.first)
            yield from self._blank(self._begin(first), first)
        yield PlacedUnits(first, units, has_messages=True)
        self.first, self.stop = min(first, self.first), max(stop, self.stop)
        self.max_offset = self.stop
        self.entries += len(rows)

    def _begin(self, first: int) -> int:
        """The units before the first one of its file are pre-blank, as by ConsumeQueue.fillPreBlank."""
        begin = first if self.is_part else first - first % self.per_file
        return begin if self.low is None or first - self.low > LOST_MAX else min(begin, self.low)

    def _lost(self, start: int, stop: int, following: _Units) -> Iterator[PlacedUnits]:
        for low in range(start, stop, _CHUNK):
            yield PlacedUnits(
                low, lost_units(self.topic, min(_CHUNK, stop - low), following), has_messages=False
            )

    def _blank(self, start: int, stop: int) -> Iterator[PlacedUnits]:
        for low in range(start, stop, _CHUNK):
            units = np.frombuffer(pre_blank_bytes(min(_CHUNK, stop - low)), CQ_UNIT)
            yield PlacedUnits(low, units, has_messages=False)


def right_units(wanted: _Units, stored: _Units, log_stop: int, topic: str) -> _Mask:
    """Which stored units of a simple queue need no change. The log ends at `log_stop`."""
    if np.array_equal(stored.view(np.uint8), wanted.view(np.uint8)):
        return np.ones(len(stored), bool)
    right: _Mask = (stored["physical_offset"] == wanted["physical_offset"]) & (
        stored["size"] == wanted["size"]
    )
    if topic != SCHEDULE_TOPIC:  # there the tags code is a time, which settings decide
        right &= (stored["tags_code"] == wanted["tags_code"]) | is_ext_address(stored["tags_code"])
    if right.all():
        return right
    only_here = pre_blank_mask(wanted) & valid_units(stored) & (stored["physical_offset"] < log_stop)
    only_here &= ~(lost_mask(wanted) & pre_blank_mask(stored))  # of another message
    return right | only_here


# ---- the differences ---------------------------------------------------------------------------------------


@dataclass(slots=True)
class Difference:
    """Queue offsets `first` to `stop` whose units differ from those that the log gives.

    "missing": the messages have no entry. "wrong": the entries are those of other messages. "unfilled":
    there are no messages, and not the units that take such places. `entries` of the units belong to messages,
    and a broker that starts would write the last `by_broker` of them. `physical` is the physical offset of
    the first message, -1 if it is not known.
    """

    kind: Kind
    first: int
    stop: int
    entries: int
    by_broker: int
    physical: int


@dataclass(slots=True)
class ComparedQueue:
    """A queue as the log shows it, and where its files differ; `differences` ascend and do not overlap.

    `equal` entries are right. `by_broker` messages in all would be dispatched by a broker that starts.
    `error` is raised by the files. The `log` ends at `log_stop`. `own` is that of `Contradictions`.
    """

    stored: StoredQueue
    seen: LogQueue
    places: QueuePlaces
    log: CommitLog | None = None
    log_stop: int = OFFSET_MAX
    own: Mapping[int, tuple[QueueKey, int]] = field(default_factory=dict)
    equal: int = 0
    by_broker: int = 0
    broker_end: int = -1  # the queue offset at which the queue ends after a broker's recovery; -1: unknown
    differences: list[Difference] = field(default_factory=list)
    error: StoreError | None = None

    @property
    def key(self) -> QueueKey:
        return self.stored.topic, self.stored.queue_id

    @property
    def is_comparable(self) -> bool:
        return bool(self.stored.files) and not self.stored.misfit

    @property
    def unserved(self) -> int:
        """How many messages a broker does not serve after its start: they have no right entry, or the queue
        ends before them then, and the broker does not write them again.
        """
        if not self.is_comparable:
            return max(self.places.entries - self.by_broker, 0)
        if self.broker_end < 0 or self.stored.is_batch:
            return sum(each.entries - each.by_broker for each in self.differences)
        before = sum(each.entries for each in self.differences if each.first < self.broker_end)
        behind = self.seen.claims.count(self.broker_end, OFFSET_MAX) - self.by_broker
        return before + max(behind, 0)

    @property
    def gaps(self) -> list[tuple[int, int]]:
        """The ranges of queue offsets between others that no message claims, without what is too far away."""
        return [each for each in self.seen.claims.gaps if each[1] <= self.places.max_offset]

    @staticmethod
    def lost_between(
        compared: Iterable[ComparedQueue], deleted: Callable[[str], int]
    ) -> list[tuple[str, int, int, int]]:
        """(topic, queue id, first, stop) of lost messages that neither log nor queue show. `deleted` is
        `StoredTopics.deleted_until`: a deleted topic has lost none.
        """
        kept = (queue for queue in compared if queue.seen.last >= deleted(queue.key[0]))
        return [(*queue.key, *each) for queue in kept for each in queue._lost_between()]

    def _lost_between(self) -> list[tuple[int, int]]:
        if not self.stored.files:
            return self.gaps
        first = self.places.first  # before it, no message need have been
        unfilled = (each for each in self.differences if each.kind == "unfilled" and each.first >= first)
        return [(each.first, each.stop) for each in unfilled]

    @staticmethod
    def differences_of(queue: ComparedQueue | None, kind: Kind) -> list[Difference]:
        """The differences of one kind; none without a comparison. Raises the error of the files."""
        if queue is None:
            return []
        if queue.error is not None:
            raise queue.error
        return [each for each in queue.differences if each.kind == kind]

    @property
    def begin(self) -> int:
        """The physical offset of the first message since the queue last began at 0."""
        starts = [begin for begin, first, _ in self.seen.epochs if not first]
        return starts[-1] if starts else self.seen.epochs[0][0]

    def right_within(self, start: int, stop: int) -> int | None:
        """How many messages the queue offsets [start, stop) have; None unless all entries there are right."""
        runs = self.seen.claims.runs if self.is_comparable and self.equal and self.error is None else []
        if not runs or not runs[0][0] <= start <= stop <= runs[-1][1]:
            return None
        is_wrong = any(each.first < stop and each.stop > start for each in self.differences)
        return None if is_wrong else self.seen.claims.count(start, stop)

    def begin_again(self) -> None:
        self.equal = self.by_broker = 0
        self.differences.clear()

    def begins_before(self, physical: int, offset: int) -> bool:
        """Whether the queue began again at offset 0 with messages that the log no longer shows, before its
        message at `physical` with the queue offset `offset`: the first entry leads there, behind all messages
        that were seen.
        """
        return 0 < offset < self.places.stop and self.first_beyond(physical) >= 0

    def first_beyond(self, physical: int = OFFSET_MAX) -> int:
        """The physical offset in the first entry, if it leads behind all messages that were seen, and before
        `physical`; else -1, also where the second entry contradicts it.
        """
        if self.stored.is_batch or not self.is_comparable or self.stored.first:
            return -1
        units = self.stored.read(0, 2)
        is_valid, has_second = message_mask(units).tolist()
        first, second = units["physical_offset"].tolist()
        is_right = is_valid and self.seen.last < first < physical and not (has_second and second <= first)
        return int(first) if is_right else -1

    def count_second(self, rows: _Units) -> int:
        """How many of these messages, the first ones of the queue in the log, claim places of expired ones:
        the entries of these places lead before the log, in its order, and the next ones not to them, as in a
        shifted file. 0 if the queue's last entry leads to a message of another queue: then the files may be
        those of that queue.
        """
        log = self.log
        if log is None or not log.min_offset or not self.is_comparable or self.stored.is_batch:
            return 0

        def is_second(message: tuple[int, int]) -> bool:
            offset, place = message
            units = self.stored.read(max(offset - 1, 0), offset + 1)
            physical = units["physical_offset"].tolist()
            behind = self.stored.read(offset + 1, offset + 2)["physical_offset"].tolist()
            return place not in behind and (
                bool(message_mask(units).all())
                and physical[0] <= physical[-1] <= log.min_offset - int(units["size"][-1])
                and not LogEntries(log).is_flipped(self.key, offset, physical[-1], log.min_offset, log.stop)
            )

        messages = zip(rows["offset"].tolist(), rows["physical"].tolist(), strict=True)
        count = len([*takewhile(is_second, messages)])
        bounds = self.stored.filed.bounds(log.min_offset) if count else None
        newest = None if bounds is None else LogEntries(log).message_at(bounds.last_physical_offset)
        return count if newest is None or newest.key == self.key else 0

    def right(self, wanted: _Units, stored: _Units, start: int) -> _Mask:
        """Which stored units of a simple queue, from the queue offset `start` on, need no change."""
        right = right_units(wanted, stored, self.log_stop, self.stored.topic)
        inside = message_mask(stored) & (stored["physical_offset"] < self.log_stop)
        rows = np.flatnonzero(~right & inside & (stored["physical_offset"] != wanted["physical_offset"]))
        if len(rows) and self.log is not None:
            right[rows] = LogEntries(self.log).leads_to_own(
                self.key, start + rows, stored[rows], or_record=True
            )
        rows = np.flatnonzero(right & inside & lost_mask(wanted))  # a broker files each 0 as the next one
        if len(rows) and self.log is not None:
            right[rows] = ~LogEntries(self.log).leads_elsewhere(self.key, start + rows, stored[rows])
            right[rows] |= [
                self.shows_damage(start + row, int(stored["physical_offset"][row])) for row in rows.tolist()
            ]
        return right

    def shows_damage(self, offset: int, physical: int) -> bool:
        """Whether the entry of a queue offset leads to its own message, which says another place."""
        return self.own.get(physical) == (self.key, offset)

    def as_copied(self, placed: PlacedUnits) -> PlacedUnits:
        """The units, with those of the original that lead to other messages which claim their places, and
        those that say how many messages a batch has, or when a message is delivered. An address in
        consumequeue_ext, which is not copied, is no tags code.
        """
        original, start, units = self.stored.original, placed.start, placed.units
        if self.log is None or original is None or original.misfit or not original.files:
            return placed
        if self.stored.is_batch:
            stored = original.read_batches(units["base_offset"].astype(np.int64))
            units = np.where(self._counts(units, stored), stored, units).astype(BATCH_CQ_UNIT)
            return placed._replace(units=units)
        stored = original.read(start, start + len(units))
        is_other = stored["physical_offset"] != units["physical_offset"]
        kept = message_mask(stored) & ~is_ext_address(stored["tags_code"])
        # the entry of a delayed message has its time of delivery
        is_timed = (
            kept & ~is_other & (stored["size"] == units["size"]) & (self.stored.topic == SCHEDULE_TOPIC)
        )
        kept &= is_other & (stored["physical_offset"] < self.log_stop)
        kept[kept] = LogEntries(self.log).leads_to_own(self.key, start + np.flatnonzero(kept), stored[kept])
        return placed._replace(units=np.where(kept | is_timed, stored, units).astype(CQ_UNIT))

    def _counts(self, wanted: _Units, stored: _Units) -> _Mask:
        """Which stored units of a batch queue have the number of messages that only the body shows: no
        checksum covers the property INNER_NUM.
        """
        right: _Mask = (wanted["batch_size"] == 1) & (stored["batch_size"] > 1)
        for name in _BATCH_FIELDS[:-1]:
            right &= stored[name] == wanted[name]
        for row in np.flatnonzero(right).tolist():
            place, count = int(stored["physical_offset"][row]), int(stored["batch_size"][row])
            right[row] = self.log is not None and LogEntries(self.log).messages_at(place) == count
        return right

    def compare(self, placed: PlacedUnits, broker_start: int) -> None:
        units = placed.units
        by_broker = np.zeros(len(units), bool)
        if placed.has_messages and broker_start < OFFSET_MAX:
            by_broker = units["physical_offset"] >= broker_start
            self.by_broker += int(np.count_nonzero(by_broker))
        if not self.is_comparable:
            return
        if self.stored.is_batch:
            starts = units["base_offset"].astype(np.int64)
            stops = starts + units["batch_size"]
            stored = self.stored.read_batches(starts)
            right = np.logical_and.reduce([stored[name] == units[name] for name in _BATCH_FIELDS])
            right |= self._counts(units, stored)
            lacks = ~valid_batch_units(stored)
        else:
            stored = self.stored.read(placed.start, placed.start + len(units))
            right = self.right(units, stored, placed.start)
            if self.differences and placed.start < self.differences[-1].stop:
                self._cut(placed.start, placed.start + len(units))  # a gap, or a message that does not count
            if right.all():
                self.equal += len(units) if placed.has_messages else 0
                return
            starts = np.arange(placed.start, placed.start + len(units))
            stops = starts + 1
            lacks = ~message_mask(stored)
        if placed.has_messages:
            self.equal += int(right.sum())
        bad = np.flatnonzero(~right)
        edges = (stops[bad[:-1]] != starts[bad[1:]]) | (lacks[bad[1:]] != lacks[bad[:-1]])
        for run in np.split(bad, np.flatnonzero(edges) + 1) if len(bad) else []:
            kind: Kind = "missing" if lacks[run[0]] else "wrong"
            self._add(
                Difference(
                    kind if placed.has_messages else "unfilled",
                    int(starts[run[0]]),
                    int(stops[run[-1]]),
                    len(run) if placed.has_messages else 0,
                    int(np.count_nonzero(by_broker[run])),
                    int(units["physical_offset"][run[0]]),
                )
            )

    def _add(self, new: Difference) -> None:
        if len(self.differences) > _DIFFERENCES_MAX:
            self.differences = [
                _joined(one, other)
                for one, other in zip(self.differences[::2], self.differences[1::2], strict=False)
            ] + self.differences[len(self.differences) // 2 * 2 :]
        last = self.differences[-1] if self.differences else None
        if last is not None and last.stop == new.first and last.kind == new.kind:
            self.differences[-1] = _joined(last, new)
        else:
            at = bisect_left(self.differences, new.first, key=lambda each: each.first)
            self.differences.insert(at, new)

    def _cut(self, first: int, stop: int) -> None:
        """Removes the queue offsets [first, stop) from the differences."""
        kept: list[Difference] = []
        for each in self.differences:
            if each.first < min(first, each.stop):
                kept.append(_part(each, each.first, min(first, each.stop), each.physical))
            if each.stop > max(stop, each.first):
                start = max(stop, each.first)
                kept.append(_part(each, start, each.stop, each.physical if start == each.first else -1))
        self.differences = kept


def _joined(one: Difference, other: Difference) -> Difference:
    return Difference(
        one.kind,
        one.first,
        other.stop,
        one.entries + other.entries,
        one.by_broker + other.by_broker,
        one.physical,
    )


def _part(whole: Difference, first: int, stop: int, physical: int) -> Difference:
    """The part [first, stop). The last messages are those that a broker would dispatch."""
    if (first, stop) == (whole.first, whole.stop):
        return whole
    by_broker = min(max(whole.by_broker - (whole.stop - stop), 0), stop - first)
    return Difference(whole.kind, first, stop, min(whole.entries, stop - first), by_broker, physical)


# ---- the comparison ----------------------------------------------------------------------------------------


class QueueComparison:
    """Compares queues with the log: `add` takes its entries, in the order of the log.

    `find` returns the files of a queue, None for a queue that is not compared. `log_stop` is where the `log`
    ends, if that is known; a broker that starts dispatches the messages from `broker_start` on. Those among
    the `contradictions` are damaged: they are not compared, and `damaged` has the errors by their
    physical offsets. `on_placed` gets all placed units after they were compared, None where a queue begins
    again. With `is_part`, earlier messages of the log are not added. Messages before the physical offset at
    which their queue `begins` are of a deleted topic. Of a store without a crash `filing` decides between
    messages with one offset. Memory does not grow with the log.
    """

    OnPlaced: TypeAlias = Callable[[ComparedQueue, PlacedUnits | None], None]

    def __init__(
        self,
        find: Callable[[QueueKey], StoredQueue | None],
        *,
        log: CommitLog | None = None,
        contradictions: Contradictions | None = None,
        log_stop: int = OFFSET_MAX,
        broker_start: int = OFFSET_MAX,
        on_placed: OnPlaced = lambda queue, placed: None,
        is_part: bool = False,
        begins: Mapping[QueueKey, int] = MappingProxyType({}),
        filing: Filing = NO_FILING,
    ) -> None:
        self._find, self._is_part, self._begins, self._filing = find, is_part, begins, filing
        self._log, self._contradictions = log, contradictions
        self._log_stop, self._broker_start = log_stop, broker_start
        self._on_placed = on_placed
        self._left_out: set[QueueKey] = set()
        self.queues: dict[QueueKey, ComparedQueue] = {}
        self.damaged: dict[int, CorruptStoreError] = {}
        self.damaged_messages = 0  # those of batches one by one
        self._impossible = 0

    @property
    def misplaced(self) -> int:
        """Messages whose queue or queue offset is impossible."""
        return self._impossible + sum(queue.places.misplaced for queue in self.queues.values())

    def add(self, names: list[QueueKey], rows: _Units) -> None:
        """Takes ENTRY_ROW records, whose `queue` is a place in `names`, of the next part of the log."""
        for key, mine in by_queue(names, rows):
            if self._contradictions is not None and (damaged := self._contradictions.of_queue(key, mine)):
                self.damaged |= damaged
                is_damaged = np.isin(mine["physical"], list(damaged))
                self.damaged_messages += int(mine["batch_size"][is_damaged].sum())
                mine = mine[~is_damaged]
            if not can_be_queue(*key):
                self._impossible += len(mine)
                continue
            if key in self._begins:
                mine = mine[mine["physical"] >= self._begins[key]]
            queue = self._queue(key) if len(mine) else None
            if queue is None:
                continue
            lower = np.flatnonzero(np.diff(mine["offset"]) <= 0) + 1
            for run in np.split(mine, lower):
                self._add_run(queue, run)

    def _add_run(self, queue: ComparedQueue, rows: _Units) -> None:
        """Takes messages of one queue whose queue offsets ascend."""
        if queue.begins_before(int(rows["physical"][0]), int(rows["offset"][0])):
            self._begin_again(queue)
            queue.seen = LogQueue(*queue.key, claims=self._filing.claims(queue.key))
        elif not queue.seen.epochs and (second := queue.count_second(rows)):
            queue.seen.claims.repeated += second
            rows = rows[second:]
            if not len(rows):  # nothing is known of it yet
                del self.queues[queue.key]
        for is_new, part in queue.seen.add(rows) if len(rows) else ():
            for placed in queue.places.add(part, is_new=is_new):
                if placed is None:
                    queue.begin_again()
                elif queue.error is None:
                    placed = queue.as_copied(placed)
                    try:
                        queue.broker_end, end = self._filing.ends.get(queue.key, (-1, -1))
                        queue.compare(placed, max(self._broker_start, end))
                    except StoreError as error:
                        queue.error = error
                self._on_placed(queue, placed)

    def _begin_again(self, queue: ComparedQueue) -> None:
        queue.places.begin_again()
        queue.begin_again()
        self._on_placed(queue, None)

    def end(
        self, lost: Callable[[_Ints], _Mask], firsts: Mapping[QueueKey, int] = MappingProxyType({})
    ) -> None:
        """Says that all messages were added. `lost` tells which physical offsets are in damaged bytes.

        A queue whose first entry leads there, behind all of its messages, began again with messages that are
        all damaged. `firsts` are the physical offsets in the first entries of queues, as far as they are
        known.
        """
        for queue in self.queues.values():
            if firsts.get(queue.key, OFFSET_MAX) <= queue.seen.last:
                continue
            first = queue.first_beyond()
            if first >= 0 and lost(np.array([first]))[0]:
                self._begin_again(queue)

    def _queue(self, key: QueueKey) -> ComparedQueue | None:
        found = self.queues.get(key)
        if found is None and key not in self._left_out:
            stored = self._find(key)
            if stored is None:
                self._left_out.add(key)
                return None
            per_file = stored.file_size // stored.layout.itemsize
            places = QueuePlaces(key[0], stored.is_batch, per_file, self._is_part)
            seen = LogQueue(*key, stored.is_batch, claims=self._filing.claims(key))
            own = {} if self._contradictions is None else self._contradictions.own
            found = ComparedQueue(stored, seen, places, self._log, self._log_stop, own)
            self.queues[key] = found
            places.low = stored.first if found.is_comparable and not self._is_part else None
        return found
