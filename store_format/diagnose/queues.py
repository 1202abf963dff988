"""Consume queues against the commitlog, both ways: every message has its entry, and every entry its message.

The entries of the log's messages are computed, many at once, and compared with those on disk. Only a queue
that holds more entries than were equal is read a second time, entry by entry, to report the wrong ones.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from store_format.bookkeeping.state import StoreState
from store_format.commitlog.log import CommitLog
from store_format.commitlog.walk import UnitRun
from store_format.consumequeue.dispatch import Dispatch, MissingEntries
from store_format.consumequeue.files import UnitFiles
from store_format.consumequeue.simple import message_mask
from store_format.diagnose.commitlog import Lost, Targets
from store_format.diagnose.files import QUEUE_ADVICE, checked_queue_files, queue_directories
from store_format.diagnose.problems import Findings, Severity
from store_format.diagnose.queue_entries import CheckedQueue, check_entries
from store_format.layouts import BATCH_CQ_UNIT, CQ_EXT_ADDRESS_MAX, CQ_UNIT
from store_format.names import SCHEDULE_TOPIC, QueueKey

_PENDING_MAX = 1 << 17  # entries between two comparisons: a comparison of few entries of each queue is slow
_CHUNK_UNITS = 1 << 16
_LACKING_MAX = 1 << 16  # missing entries of one queue that are reported

# A queue that lags behind the log is normal while a broker writes, and after it crashed.
_LAG: dict[StoreState, Severity | None] = {
    StoreState.CLEAN: "damage",
    StoreState.CRASHED: "warning",
    StoreState.LIVE: None,
}

_IntArray = NDArray[np.int64]
_Units = NDArray[np.void]


class QueueCheck:
    """Compares the queues with the log: `add` takes its runs, `finish` reports the differences."""

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
        """`states`: by which missing entries, and entries behind the log's end, are judged.

        `log_end` is where the log ends by the broker's rule after a crash, else None; messages behind it need
        no entry. `has_queues` is false where RocksDB keeps the queues.
        """
        self._findings = findings
        self._log = log
        self._lag, self._behind = _LAG[states[0]], states[1]
        self._log_end = log_end
        self._root = root
        self.lead_behind_files = False  # known after `finish`
        self._queues: dict[QueueKey, CheckedQueue] = {}
        # messages whose queue has no files: how many, and the physical offset of the first
        self._absent: dict[QueueKey, tuple[int, int]] = {}
        self._has_queues = has_queues
        for topic, queue_id, directory, kind in queue_directories(findings, root):
            layout = BATCH_CQ_UNIT if kind == "batch" else CQ_UNIT
            run, usable = checked_queue_files(findings, directory, layout.itemsize)
            self._queues[topic, queue_id] = CheckedQueue(topic, queue_id, directory, layout, run, usable)
        self._batch_topics = frozenset(topic for (topic, _), queue in self._queues.items() if queue.is_batch)
        self._dispatch = Dispatch({}, {}, self._batch_topics, ())  # delivery times are not compared

    @property
    def topics(self) -> dict[str, str]:
        """Topic -> the directory of one of its queues."""
        return {topic: queue.directory for (topic, _), queue in self._queues.items()}

    @property
    def filled(self) -> dict[QueueKey, tuple[str, int]]:
        """Queue -> (directory, number of its entries that are right), for queues with such entries."""
        return {key: (queue.directory, queue.equal) for key, queue in self._queues.items() if queue.equal}

    @property
    def absent(self) -> dict[QueueKey, tuple[int, int]]:
        """Queue -> (messages, physical offset of the first), for queues that have no files."""
        return self._absent if self._has_queues else {}

    # ---- from the log to the queues ------------------------------------------------------------------------

    def add(self, run: UnitRun) -> None:
        """Takes a run of good messages, in the order of the log."""
        self._dispatch.add(run, self._log)
        if self._dispatch.count >= _PENDING_MAX:
            self._compare_pending()

    def _compare_pending(self) -> None:
        for key, entries in self._dispatch.entries().items():
            if self._log_end is not None:
                entries = _entries_before(entries, self._log_end)
            if len(entries.units):
                self._compare(key, entries)
        self._dispatch.clear()

    def _compare(self, key: QueueKey, entries: MissingEntries) -> None:
        """Compares the entries that messages have with those on disk, and counts the equal ones."""
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
                    _stored_batches(files, queue, offsets)
                    if queue.is_batch
                    else _stored_units(files, queue, offsets)
                )
                equal = (stored["physical_offset"] == made["physical_offset"]) & (
                    stored["size"] == made["size"]
                )
                equal &= _same_tags(stored["tags_code"], made["tags_code"], queue.topic)
                if queue.is_batch:
                    equal &= stored["batch_size"] == made["batch_size"]
                queue.equal += int(equal.sum())
                lacks = ~message_mask(stored)
                if lacks.any() and sum(len(offsets) for offsets, _ in queue.lacking) < _LACKING_MAX:
                    queue.lacking.append((offsets[lacks], made["physical_offset"][lacks].astype(np.int64)))

    # ---- from the queues to the log ------------------------------------------------------------------------

    def finish(self, lost: Lost, log_end: int) -> int:
        """Reports all differences, and returns how many entries point to lost messages.

        The walk ended at `log_end`; entries may point into `lost`.
        """
        self._compare_pending()
        targets = Targets(self._log, log_end if self._log_end is None else self._log_end, lost)
        stranded = behind = 0
        is_clean = self._behind is StoreState.CLEAN
        for queue in self._queues.values():
            if queue.run is None:
                continue
            seen = check_entries(self._findings, queue, self._behind, targets)
            stranded += seen.lost
            behind += seen.behind
            self.lead_behind_files |= is_clean and seen.last_behind >= self._log.stop
            self._report_lacking(queue, seen.first_physical, seen.stop)
        if stranded:
            place, expected = f"{self._root}/consumequeue", "entries that point to messages"
            found = f"{stranded} that point to lost messages"
            advice = "Follows from the damage of the commitlog; nothing else is wrong with the queues"
            self._findings.add("info", place, 0, expected, found, advice)
        return stranded + (behind if is_clean else 0)

    def _report_lacking(self, queue: CheckedQueue, first_physical: int, stop: int) -> None:
        """Reports runs of messages without an entry. `stop` is the queue offset behind the last entry."""
        if not queue.lacking:
            return
        offsets, physical = (np.concatenate(column) for column in zip(*queue.lacking, strict=True))
        # A topic that was deleted and created again leaves messages in the log that are older than all that
        # the queue's entries point to, at offsets that the queue has.
        low = 0 if queue.is_batch else queue.unit_range[0]
        left_over = (physical < first_physical) & (offsets >= low)
        tail = offsets >= stop
        severities: tuple[tuple[Severity | None, NDArray[np.bool_]], ...] = (
            (self._lag, tail),
            ("damage", ~tail),
        )
        for severity, mask in severities:
            mine = mask & ~left_over
            for first, last in _offset_runs(offsets[mine]) if severity is not None else ():
                at = int(physical[mine & (offsets == first)][0])
                found = f"none for {last - first + 1} messages, the first at commitlog {at}"
                file, position = (queue.directory, 0) if queue.is_batch else queue.place(first)
                expected = f"entries of {queue.topic}-{queue.queue_id} from offset {first} to {last}"
                self._findings.add(
                    severity or "info", file, position, expected, found, QUEUE_ADVICE, kind="entry"
                )


def _entries_before(entries: MissingEntries, log_end: int) -> MissingEntries:
    """The entries that point before the physical offset `log_end`."""
    keep = entries.units["physical_offset"] < log_end
    return entries if keep.all() else MissingEntries(entries.queue_offsets[keep], entries.units[keep])


def _same_tags(stored: NDArray[np.int64], made: NDArray[np.int64], topic: str) -> NDArray[np.bool_]:
    """Where tags codes agree. Delivery times and addresses of the ext file are not compared."""
    if topic == SCHEDULE_TOPIC:  # the delivery times depend on the broker's delay levels
        return np.ones(len(stored), bool)
    same: NDArray[np.bool_] = (stored == made) | (stored <= CQ_EXT_ADDRESS_MAX)
    return same


def _stretches(offsets: _IntArray) -> list[tuple[int, int]]:
    """Cuts ascending offsets, which may lie far apart, into index ranges that can be read at once."""
    cuts = np.flatnonzero((np.diff(offsets) > 64) | (np.arange(1, len(offsets)) % _CHUNK_UNITS == 0)) + 1
    return list(zip([0, *cuts.tolist()], [*cuts.tolist(), len(offsets)], strict=True))


def _stored_units(files: UnitFiles, queue: CheckedQueue, offsets: _IntArray) -> _Units:
    """The units on disk at these queue offsets; zeros outside the files."""
    low, high = queue.unit_range
    stored = np.zeros(len(offsets), queue.layout)
    inside = (offsets >= low) & (offsets < high)
    if inside.any():
        start, stop = int(offsets[inside][0]), int(offsets[inside][-1]) + 1
        stored[inside] = files.read(start, stop)[offsets[inside] - start]
    return stored


def _stored_batches(files: UnitFiles, queue: CheckedQueue, offsets: _IntArray) -> _Units:
    """The batch units on disk with these base offsets; zeros where there is none. Found by bisection."""
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


def _offset_runs(offsets: _IntArray) -> list[tuple[int, int]]:
    """(first, last) of each run of consecutive offsets."""
    if not len(offsets):
        return []
    offsets = np.unique(offsets)
    cuts = np.flatnonzero(np.diff(offsets) > 1)
    firsts, lasts = offsets[np.append(0, cuts + 1)], offsets[np.append(cuts, len(offsets) - 1)]
    return list(zip(firsts.tolist(), lasts.tolist(), strict=True))
