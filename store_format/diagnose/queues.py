"""Consume queues against the commitlog, both ways: every message has its entry, and every entry its message.

Entries are made again from the log's messages, many at once, and compared with those on disk. Only a queue in
which fewer came out equal than it holds is read a second time, entry by entry, to say which are wrong.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from store_format.bookkeeping.state import StoreState
from store_format.commitlog.log import CommitLog
from store_format.commitlog.walk import UnitRun
from store_format.consumequeue.dispatch import Dispatch, MissingEntries
from store_format.consumequeue.files import FileRun, UnitFiles
from store_format.consumequeue.simple import message_mask
from store_format.diagnose.commitlog import Lost
from store_format.diagnose.files import QUEUE_ADVICE, checked_queue_files, queue_directories
from store_format.diagnose.problems import Findings, Severity
from store_format.diagnose.queue_entries import Entries, check_entries
from store_format.files.read import offset_file_name
from store_format.layouts import BATCH_CQ_UNIT, CQ_EXT_ADDRESS_MAX, CQ_UNIT
from store_format.message.tags_code import DELAY_LEVELS_MS
from store_format.names import SCHEDULE_TOPIC, QueueKey

__all__ = ["QueueCheck"]

_PENDING_MAX = 1 << 18  # units between two comparisons: with thousands of queues few entries each are dear
_CHUNK_UNITS = 1 << 16
_LACKING_MAX = 1 << 16  # of one queue; more are counted only

# A queue that lags behind the log is normal while a broker writes, and after it crashed.
_LAG: dict[StoreState, Severity | None] = {
    StoreState.CLEAN: "damage",
    StoreState.CRASHED: "warning",
    StoreState.LIVE: None,
}

_IntArray = NDArray[np.int64]
_Units = NDArray[np.void]


@dataclass(slots=True)
class _Queue:
    """One queue: its files, and what the comparison has found so far."""

    topic: str
    queue_id: int
    directory: str
    layout: np.dtype[np.void]
    run: FileRun | None
    usable: bool  # its files fit together
    equal: int = 0
    lacking: list[tuple[_IntArray, _IntArray]] = field(default_factory=list)  # queue and physical offsets
    lacking_count: int = 0

    @property
    def is_batch(self) -> bool:
        return self.layout == BATCH_CQ_UNIT

    @property
    def unit_range(self) -> tuple[int, int]:
        """The numbers of the units that its files have room for."""
        assert self.run is not None
        return self.run.first_file // self.layout.itemsize, (
            self.run.last_file + self.run.file_size
        ) // self.layout.itemsize

    def open(self) -> UnitFiles:
        assert self.run is not None
        return UnitFiles(self.directory, self.layout, self.run, (self.topic, self.queue_id))

    def place(self, number: int) -> tuple[str, int]:
        """File and byte of a unit."""
        assert self.run is not None
        position = number * self.layout.itemsize
        return (
            f"{self.directory}/{offset_file_name(position - position % self.run.file_size)}",
            position % self.run.file_size,
        )


class QueueCheck:
    """Shown every run of the log by `add`; `finish` then names what does not agree."""

    def __init__(
        self,
        findings: Findings,
        root: str,
        log: CommitLog,
        states: tuple[StoreState, StoreState],
        log_end: int | None,
        *,
        has_queues: bool,
    ) -> None:
        """`states`: as which store missing entries are judged, and as which entries behind the log's end.

        `log_end`: where the log ends by the broker's rule after a crash, else None; messages behind it
        need no entry.
        """
        self._findings = findings
        self._log = log
        self._lag, self._behind = _LAG[states[0]], states[1]
        self._log_end = log_end
        self._root = root
        self._queues: dict[QueueKey, _Queue] = {}
        # messages without a queue: how many, the first
        self._absent: dict[QueueKey, tuple[int, int]] = {}
        self._has_queues = has_queues
        for topic, queue_id, directory, kind in queue_directories(findings, root):
            layout = BATCH_CQ_UNIT if kind == "batch" else CQ_UNIT
            run, usable = checked_queue_files(findings, directory, layout.itemsize)
            self._queues[topic, queue_id] = _Queue(topic, queue_id, directory, layout, run, usable)
        self._batch_topics = frozenset(topic for (topic, _), queue in self._queues.items() if queue.is_batch)
        self._begin()

    @property
    def topics(self) -> dict[str, str]:
        """Topic -> a directory of it."""
        return {topic: queue.directory for (topic, _), queue in self._queues.items()}

    @property
    def filled(self) -> dict[QueueKey, tuple[str, int]]:
        """(topic, queue id) -> (directory, messages of the log that it has) of queues with messages."""
        return {key: (queue.directory, queue.equal) for key, queue in self._queues.items() if queue.equal}

    @property
    def absent(self) -> dict[QueueKey, tuple[int, int]]:
        """(topic, queue id) -> (messages, physical offset of the first) of queues that have no files."""
        return self._absent if self._has_queues else {}

    def _begin(self) -> None:
        self._dispatch = Dispatch({}, {}, self._batch_topics, DELAY_LEVELS_MS)
        self._pending = 0

    # ---- from the log to the queues ------------------------------------------------------------------------

    def add(self, run: UnitRun) -> None:
        self._dispatch.add(run, self._log)
        self._pending += len(run.positions)
        if self._pending >= _PENDING_MAX:
            self._compare_pending()

    def _compare_pending(self) -> None:
        for key, entries in self._dispatch.entries().items():
            if self._log_end is not None:
                entries = _before(entries, self._log_end)
            if len(entries.units):
                self._compare(key, entries)
        self._begin()

    def _compare(self, key: QueueKey, entries: MissingEntries) -> None:
        queue = self._queues.get(key)
        if queue is None or (queue.run is None and queue.usable):
            count, first = self._absent.get(key, (0, int(entries.units["physical_offset"][0])))
            self._absent[key] = (count + len(entries.units), first)
            return
        if queue.run is None:
            return
        with queue.open() as files:
            for start, stop in _stretches(entries.queue_offsets):
                made, offsets = entries.units[start:stop], entries.queue_offsets[start:stop]
                stored = (
                    _read_batches(files, queue, offsets) if queue.is_batch else _read(files, queue, offsets)
                )
                equal = (stored["physical_offset"] == made["physical_offset"]) & (
                    stored["size"] == made["size"]
                )
                equal &= _same_tags(stored["tags_code"], made["tags_code"], queue.topic)
                if queue.is_batch:
                    equal &= stored["batch_size"] == made["batch_size"]
                queue.equal += int(equal.sum())
                lacks = ~message_mask(stored)
                if lacks.any():
                    queue.lacking_count += int(lacks.sum())
                    if sum(len(offsets) for offsets, _ in queue.lacking) < _LACKING_MAX:
                        queue.lacking.append(
                            (offsets[lacks], made["physical_offset"][lacks].astype(np.int64))
                        )

    # ---- from the queues to the log ------------------------------------------------------------------------

    def finish(self, lost: Lost, log_end: int) -> None:
        """`log_end` is where the walk ended; `lost` are ranges that entries may lead to without being wrong."""
        self._compare_pending()
        end = log_end if self._log_end is None else self._log_end
        stranded = 0
        for queue in self._queues.values():
            if queue.run is None:
                continue
            entries = Entries(queue.topic, queue.queue_id, queue.layout, queue.unit_range, queue.place)
            with queue.open() as files:
                seen = check_entries(
                    self._findings, self._log, files, entries, self._behind, end, lost, equal=queue.equal
                )
            stranded += seen.lost
            self._name_lacking(queue, seen.first_physical, seen.stop)
        if stranded:
            advice = "Follows from the damage of the commitlog; no more is wrong with the queues"
            self._findings.add(
                "info",
                f"{self._root}/consumequeue",
                0,
                "entries that lead to messages",
                f"{stranded} that lead to lost ones",
                advice,
            )

    def _name_lacking(self, queue: _Queue, first_physical: int, stop: int) -> None:
        if not queue.lacking:
            return
        offsets, physical = (np.concatenate(column) for column in zip(*queue.lacking, strict=True))
        low, _ = (0, 0) if queue.is_batch else queue.unit_range
        # Older than all that the queue holds, at offsets it has: left over from a topic that was deleted and
        # made again.
        left_over = (
            (physical < first_physical) & (offsets >= low)
            if first_physical >= 0
            else np.zeros(len(offsets), bool)
        )
        tail = offsets >= stop
        severities: tuple[tuple[Severity | None, NDArray[np.bool_]], ...] = (
            (self._lag, tail),
            ("damage", ~tail),
        )
        for severity, mask in severities:
            mine = mask & ~left_over
            for first, last in _runs(offsets[mine]) if severity is not None else ():
                at = int(physical[mine & (offsets == first)][0])
                found = f"none for {last - first + 1} messages, the first at commitlog {at}"
                file, position = (queue.directory, 0) if queue.is_batch else queue.place(first)
                expected = f"entries of {queue.topic}-{queue.queue_id} from offset {first} to {last}"
                self._findings.add(
                    severity or "info", file, position, expected, found, QUEUE_ADVICE, kind="entry"
                )


def _before(entries: MissingEntries, log_end: int) -> MissingEntries:
    keep = entries.units["physical_offset"] < log_end
    return entries if keep.all() else MissingEntries(entries.queue_offsets[keep], entries.units[keep])


def _same_tags(stored: NDArray[np.int64], made: NDArray[np.int64], topic: str) -> NDArray[np.bool_]:
    """Times of delivery and addresses of the ext file are taken as they are."""
    if topic == SCHEDULE_TOPIC:  # its codes depend on the broker's delay levels
        return np.ones(len(stored), bool)
    same: NDArray[np.bool_] = (stored == made) | (stored <= CQ_EXT_ADDRESS_MAX)
    return same


def _stretches(offsets: _IntArray) -> list[tuple[int, int]]:
    """Where to cut ascending offsets so that each part spans no more than can be read at once: hostile ones
    lie far apart.
    """
    cuts = np.flatnonzero((np.diff(offsets) > 64) | (np.arange(1, len(offsets)) % _CHUNK_UNITS == 0)) + 1
    return list(zip([0, *cuts.tolist()], [*cuts.tolist(), len(offsets)], strict=True))


def _read(files: UnitFiles, queue: _Queue, offsets: _IntArray) -> _Units:
    """The units on disk at these queue offsets; zeros outside of the files."""
    low, high = queue.unit_range
    stored = np.zeros(len(offsets), queue.layout)
    inside = (offsets >= low) & (offsets < high)
    if inside.any():
        start, stop = int(offsets[inside][0]), int(offsets[inside][-1]) + 1
        stored[inside] = files.read(start, stop)[offsets[inside] - start]
    return stored


def _read_batches(files: UnitFiles, queue: _Queue, offsets: _IntArray) -> _Units:
    """The same for units that stand densely: found by their base offset, which rises along the queue."""
    low, high = queue.unit_range
    base = (queue.layout.names or ()).index("base_offset")
    size = (queue.layout.names or ()).index("size")
    first, end = low, high
    while first < end:
        middle = (first + end) // 2
        unit = files.unit(middle)
        if unit[size] <= 0 or unit[base] >= offsets[0]:
            end = middle
        else:
            first = middle + 1
    stored = np.zeros(len(offsets), queue.layout)
    units = files.read(first, min(first + len(offsets) + 64, high))
    units = units[units["size"] > 0]
    if len(units):
        place = np.minimum(np.searchsorted(units["base_offset"].astype(np.int64), offsets), len(units) - 1)
        there = units["base_offset"][place] == offsets
        stored[there] = units[place[there]]
    return stored


def _runs(offsets: _IntArray) -> list[tuple[int, int]]:
    """First and last of each run of consecutive offsets."""
    if not len(offsets):
        return []
    offsets = np.unique(offsets)
    cuts = np.flatnonzero(np.diff(offsets) > 1)
    return list(
        zip(
            offsets[np.append(0, cuts + 1)].tolist(),
            offsets[np.append(cuts, len(offsets) - 1)].tolist(),
            strict=True,
        )
    )
