"""The entries of one queue, read from the first unit to the last: which of them lead to no message, or to
another message than they say.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from store_format.bookkeeping.journal import StoreState
from store_format.consumequeue.files import place_in_files
from store_format.consumequeue.slices import QueueRange
from store_format.consumequeue.units import lost_mask, message_mask, pre_blank_mask, resolve_known
from store_format.diagnose.commitlog import Targets
from store_format.diagnose.files import QUEUE_ADVICE
from store_format.diagnose.lost_messages import LOST_MAX, Evidence, LostMessages
from store_format.diagnose.problems import (
    CLAIM_ADVICE,
    EXTENSION_ADVICE,
    FAR_ADVICE,
    Findings,
    Severity,
)
from store_format.diagnose.queue_advice import (
    BEHIND_ADVICE,
    BLANK_ADVICE,
    HOLE_ADVICE,
    LAG_ADVICE,
)
from store_format.java.text import tags_code_many
from store_format.layouts import CQ_EXT_ADDRESS_MAX, CQ_UNIT
from store_format.message.locate import Identity, locate
from store_format.message.properties import PropertyTable
from store_format.names import SCHEDULE_TOPIC, TAGS, is_light_queue
from store_format.survey.entry_proofs import LogEntries
from store_format.survey.queues import ComparedQueue, StoredQueue

_CHUNK_UNITS_MIN, _CHUNK_UNITS_MAX = 1 << 9, 1 << 16
_SIZE_AT, _TAGS_CODE_AT = 8, 12  # in a unit

_IntArray = NDArray[np.int64]
_Units = NDArray[np.void]


@dataclass(slots=True)
class EntryCheck:
    """One queue read from its first unit to its last: which entries point to no message, or to another
    message than they say. Entries point into the log, into lost ranges, or behind the log's end.
    """

    findings: Findings
    queue: StoredQueue
    targets: Targets
    compared: ComparedQueue | None
    extension: str  # its directory
    damaged: Sequence[int]  # the physical offsets of messages that are reported already
    low: int = 0  # the number of the first unit that is not pre-blank
    stop: int = 0  # the queue offset behind the last entry
    first_physical: int = -1  # the physical offset in the first entry that points into the log
    inside: int = 0
    lost: int = 0
    gone: list[LostMessages] = field(default_factory=list)  # to damage; the first ones
    gone_behind: list[LostMessages] = field(default_factory=list)  # behind the log's end; the first ones
    unclaimed: int = 0  # entries outside of the queue's messages that lead to others
    behind: int = 0
    first_behind: tuple[int, int] = (0, 0)  # unit number and physical offset
    last_behind: int = -1  # the greatest physical offset of an entry behind the log's end
    unknown: int = 0  # entries of messages whose tags code in the extension is lost
    has_wrong: bool = False  # has an entry behind the log's end whose message is elsewhere

    def run(self, state: StoreState) -> None:
        """Counts the entries, and reports the wrong ones if not all are known to be right.

        `state` is how entries behind the log's end are judged.
        """
        self.low, self.stop = self.queue.first, 0 if self.queue.is_batch else self.queue.first
        for number, units in self._chunks():
            self._count_chunk(number, units)
        if state is not StoreState.LIVE:
            self._report_blank()
        if self.behind and state is not StoreState.LIVE:
            severity: Severity = "damage" if state is StoreState.CLEAN else "warning"
            number, physical = self.first_behind
            file, position = self._place(number)
            expected = f"entries that point to messages before the log's end, {self.targets.end}"
            found = f"physicalOffset {physical}, the first of {self.behind} entries of {self._name} behind it"
            self.findings.add(severity, file, position, expected, found, BEHIND_ADVICE, kind="behind")
        if self.unknown:
            expected = f"an extension with the tags codes of {self._name} (enableConsumeQueueExt)"
            found = f"none for {self.unknown} messages"
            self.findings.add("warning", self.extension, 0, expected, found, EXTENSION_ADVICE)
        right = self.compared.equal if self.compared is not None else 0
        # an entry is equal to each of two messages that claim its place
        has_pairs = self.compared is not None and self.compared.seen.claims.repeated
        may_be_wrong = self.has_wrong or has_pairs or ComparedQueue.differences_of(self.compared, "wrong")
        if self.inside != right or may_be_wrong:
            self._report_wrong()

    @property
    def _name(self) -> str:
        return f"{self.queue.topic}-{self.queue.queue_id}"

    def _place(self, number: int) -> tuple[str, int]:
        """(file, byte) of a unit."""
        return place_in_files(self.queue.directory, self.queue.file_size, number * self.queue.layout.itemsize)

    def _offsets(self, number: int, units: _Units) -> _IntArray:
        """The queue offsets of units; the first of them is unit `number`."""
        if self.queue.is_batch:
            return units["base_offset"].astype(np.int64)
        return np.arange(number, number + len(units), dtype=np.int64)

    def _messages(self, units: _Units) -> NDArray[Any]:
        """How many messages each unit leads to."""
        return units["batch_size"] if self.queue.is_batch else np.ones(len(units), np.int64)

    def _chunks(self) -> Iterator[tuple[int, _Units]]:
        """(number of the first unit, units), up to the last valid one, or a whole chunk without one.

        Chunks begin small, because small queues are many.
        """
        start, high, count = self.queue.first, self.queue.stop, _CHUNK_UNITS_MIN
        while start < high:
            units = self.queue.read(start, min(start + count, high))
            used = np.flatnonzero((units["size"] > 0) & (units["physical_offset"] >= 0))
            if not len(used):
                return
            yield start, units[: int(used[-1]) + 1]
            start, count = start + len(units), min(2 * count, _CHUNK_UNITS_MAX)

    def _count_chunk(self, number: int, units: _Units) -> None:
        """Counts a chunk of units, and reports invalid units that have valid ones behind them."""
        targets = self.targets
        if number == self.low:
            blank = pre_blank_mask(units) & ~lost_mask(units)
            self.low += len(units) if blank.all() else int(np.argmin(blank))
        physical = units["physical_offset"].astype(np.int64)
        valid = (units["size"] > 0) & (physical >= 0)
        filled = np.flatnonzero(valid)
        if len(filled):
            covers = int(units["batch_size"][filled[-1]]) if self.queue.is_batch else 1
            self.stop = int(self._offsets(number, units)[filled[-1]]) + covers
        self._report_holes(number, units, np.flatnonzero(~valid))
        entries, is_elsewhere = message_mask(units), self._is_elsewhere(number, units)
        gone = entries & targets.lost.contains(physical) & ~is_elsewhere
        current = entries & (physical >= targets.log.min_offset) & ~gone
        current &= (physical < targets.end) | ~is_elsewhere
        self.has_wrong |= bool((entries & is_elsewhere & (physical >= targets.end)).any())
        behind = current & (physical >= targets.end)
        inside = current & ~behind
        if behind.any() and not self.behind:
            self.first_behind = (number + int(behind.argmax()), int(physical[behind.argmax()]))
        if inside.any() and self.first_physical < 0:
            self.first_physical = int(physical[inside.argmax()])
        self.last_behind = max(self.last_behind, int(physical[behind].max(initial=-1)))
        self.inside += int(inside.sum())
        if not self.queue.is_batch:
            self.unknown += resolve_known(self.extension, units["tags_code"][inside].astype(np.int64))
        messages = self._messages(units)
        self.lost += int(messages[gone].sum())
        self.behind += int(messages[behind].sum())
        self._collect(self.gone, number, units, np.flatnonzero(gone), Evidence.ENTRY)
        self._collect(self.gone_behind, number, units, np.flatnonzero(behind), Evidence.BEHIND)

    def _collect(
        self, found: list[LostMessages], number: int, units: _Units, rows: _IntArray, evidence: Evidence
    ) -> None:
        """Keeps the messages of the units at `rows`, up to `LOST_MAX` in all."""
        key, offsets = (self.queue.topic, self.queue.queue_id), self._offsets(number, units)
        for row in rows[: LOST_MAX - len(found)].tolist():
            count, physical = int(self._messages(units)[row]), int(units["physical_offset"][row])
            size = int(units["size"][row])
            found.append(LostMessages(*key, int(offsets[row]), count, evidence, physical, size))

    def _is_elsewhere(self, number: int, units: _Units) -> NDArray[np.bool_]:
        """Which of the units do not lead to their own message. The message is whole at another place; or it
        has expired, as an entry behind the unit shows that leads to an earlier place.
        """
        offsets, found = self._offsets(number, units), np.zeros(len(units), bool)
        physical = units["physical_offset"].astype(np.int64)
        rows = np.flatnonzero(message_mask(units))
        behind = np.delete(rows, LogEntries.longest_ascent(physical[rows]))
        found[behind] = physical[behind] >= self.targets.end
        for each in ComparedQueue.differences_of(self.compared, "wrong"):
            found |= (offsets >= each.first) & (offsets < each.stop)
        return found

    def _report_holes(self, number: int, units: _Units, holes: _IntArray) -> None:
        """Reports the invalid units at `holes`; equal ones in a row, such as zeros, as one problem."""
        physical, size = units["physical_offset"][holes], units["size"][holes]
        same = (np.diff(holes) == 1) & (np.diff(physical) == 0) & (np.diff(size) == 0)
        starts = np.flatnonzero(np.concatenate(([True], ~same))) if len(holes) else holes
        for start, stop in pairwise([*starts.tolist(), len(holes)]):
            file, position = self._place(number + int(holes[start]))
            found = f"physicalOffset {int(physical[start])} and size {int(size[start])}"
            more = f" in {stop - start} entries in a row" if stop - start > 1 else ""
            found = f"{found}{more}, with entries behind {'them' if more else 'it'}"
            if self._is_hole(number + holes[start:stop]):
                self.findings.add("info", file, position, f"an entry of {self._name}", found, HOLE_ADVICE)
                continue
            self._report(file, position, f"an entry of {self._name}", found)

    def _is_hole(self, offsets: _IntArray) -> bool:
        """Whether the log shows that these queue offsets never had a message."""
        unfilled = [
            range(each.first, each.stop) for each in ComparedQueue.differences_of(self.compared, "unfilled")
        ]
        queue, log = self.queue, self.targets.log
        if queue.is_batch or not all(any(offset in each for each in unfilled) for offset in offsets.tolist()):
            return False
        key = (queue.topic, queue.queue_id)
        bounds = queue.filed.bounds(log.min_offset)
        if bounds is None:
            return False
        return bool(
            LogEntries(log)
            .are_holes(QueueRange(*key, bounds.min_offset, bounds.max_offset, bounds), offsets)
            .all()
        )

    def _report_blank(self) -> None:
        """Reports a blank last file. A broker creates a file when it writes to it."""
        per_file = self.queue.file_size // CQ_UNIT.itemsize
        last = self.queue.stop - per_file
        if not self.queue.is_batch and self.stop <= last:
            file, position = self._place(last)
            self.findings.add("warning", file, position, "an entry", "a blank file", BLANK_ADVICE)
            stop = 0 if self.compared is None else self.compared.places.max_offset
            self.unclaimed += not self.stop % per_file and stop <= self.stop

    def _report(
        self, file: str, position: int, expected: str, found: str, advice: str = QUEUE_ADVICE
    ) -> None:
        self.findings.add("damage", file, position, expected, found, advice, kind="entry")

    def report_lacking(self, *, is_live: bool) -> None:
        """Reports runs of messages without an entry. While a broker writes, the last ones wait for it."""
        # A topic that was deleted and created again leaves messages in the log that are older than all that
        # the queue's entries point to, at offsets that the queue has.
        low = 0 if self.queue.is_batch else self.low
        for each in ComparedQueue.differences_of(self.compared, "missing"):
            is_left_over = each.physical < self.first_physical and each.first >= low
            if is_left_over or (is_live and each.first >= self.stop):
                continue
            is_dispatched = (
                each.first == self.stop
                and each.by_broker == each.entries
                and not self._has_second_first(each.physical)
            )
            severity: Severity = "warning" if is_dispatched else "damage"
            file, position = (self.queue.directory, 0) if self.queue.is_batch else self._place(each.first)
            expected = f"entries of {self._name} from offset {each.first} to {each.stop - 1}"
            found = f"none for {each.entries} messages, the first at commitlog {each.physical}"
            advice = LAG_ADVICE if severity == "warning" else QUEUE_ADVICE
            self.findings.add(severity, file, position, expected, found, advice, kind="entry")
        if self.compared is not None and self.compared.places.problem is not None:
            advice = QUEUE_ADVICE if self.compared.differences else FAR_ADVICE
            place, problem = self.queue.directory, self.compared.places.problem
            self.findings.add("damage", place, 0, *problem, advice, kind="entry")

    def _has_second_first(self, physical: int) -> bool:
        """Whether a second message with offset 0 is behind the physical offset, and others are behind it. A
        broker files it behind the first one, and leaves out the message that has its place.
        """
        seen = None if self.compared is None else self.compared.seen
        return seen is not None and any(
            first == 0 and physical < low < seen.last for low, _, first, _ in seen.claims.left
        )

    @property
    def _ends(self) -> tuple[int, int]:
        """The queue offsets from the first message in the log to behind the last one."""
        if self.compared is None:
            return 0, 0
        runs, places = self.compared.seen.claims.runs, self.compared.places
        return (runs[0][0], runs[-1][1]) if self.queue.is_batch and runs else (places.first, places.stop)

    def _is_unclaimed(self, offset: int) -> bool:
        """Whether no message of the log has a queue offset between others."""
        first, stop = self._ends
        return first <= offset < stop and not any(
            each.first <= offset < each.stop for each in ComparedQueue.differences_of(self.compared, "wrong")
        )

    def _is_outside(self, offset: int) -> bool:
        """Whether a queue offset is before or behind those of all messages, and not that of a second one with
        offset 0, which a broker files. In a log that begins at 0, `_count_places` counts those before, but
        not of a batch queue, whose files do not say where it begins.
        """
        (first, stop), counts_before = self._ends, self.targets.log.min_offset or self.queue.is_batch
        if self.compared is None or (counts_before and offset < first):
            return True
        return offset >= stop and not self.compared.seen.claims.repeated

    # ---- wrong entries -------------------------------------------------------------------------------------

    def _report_wrong(self) -> None:
        """Compares every entry with the message that it points to."""
        for number, units in self._chunks():
            physical = units["physical_offset"].astype(np.int64)
            is_readable = self.targets.readable(physical)
            lost = message_mask(units) & ~is_readable & self._is_elsewhere(number, units)
            for row in np.flatnonzero(lost).tolist():
                offset = int(self._offsets(number, units)[row])
                expected = f"the place of the message {self._name} offset {offset}"
                self._report(*self._place(number + row), expected, f"physicalOffset {int(physical[row])}")
                self.unclaimed += self._is_outside(offset)
            rows = np.flatnonzero(message_mask(units) & is_readable & ~np.isin(physical, self.damaged))
            in_files = self.targets.log.file_index(physical[rows])
            for index in np.unique(in_files).tolist():
                if index >= 0:
                    self._check_in_file(index, number, units, rows[in_files == index])

    def _check_in_file(self, index: int, number: int, units: _Units, rows: _IntArray) -> None:
        """Compares the entries at `rows` of `units`, which point into one file, with their messages."""

        right = np.ones(len(rows), bool)

        def report(row: int, at: int, expected: str, found: str) -> None:
            right[row] = False
            file, position = self._place(number + int(rows[row]))
            offset, compared = int(offsets[row]), self.compared
            differs = compared is None or any(
                each.first <= offset < each.stop for each in compared.differences
            )
            who, advice = (
                f"the message {self._name} offset {offset}",
                QUEUE_ADVICE if differs else CLAIM_ADVICE,
            )
            self._report(file, position + at, f"{expected}{who}", found, advice)

        file = self.targets.log.files[index]
        topic = self.queue.topic
        physical = units["physical_offset"][rows].astype(np.int64)
        offsets = self._offsets(number, units)[rows]
        light = (is_light_queue(topic),)
        messages = self._messages(units)
        identity = Identity((topic,), None, np.full(len(rows), self.queue.queue_id, np.int32), offsets, light)
        for mine, refs in self.targets.log.refs_at(file, physical, identity):
            good, bad = locate(refs, verify_crc=False)
            for unit in bad:
                at, error = int(refs.physical_offsets[unit.index]), unit.error
                offset = int(offsets[mine.start + unit.index])
                is_whole = LogEntries(self.targets.log).message_at(at) is not None
                self.lost += self._is_unclaimed(offset) and not is_whole
                if is_whole and self._is_outside(offset):
                    self.unclaimed += int(messages[rows[mine][unit.index]])
                found = f"physicalOffset {at}, where {error.expected} is expected and {error.found} found"
                report(mine.start + unit.index, 0, "", found)
            kept = np.setdiff1d(np.arange(len(refs)), [unit.index for unit in bad])
            stored, sizes = units[rows[mine][kept]], refs.sizes[kept]
            kept += mine.start
            for i in np.flatnonzero(stored["size"] != sizes).tolist():
                report(int(kept[i]), _SIZE_AT, f"size {int(sizes[i])} of ", str(int(stored["size"][i])))
            if topic == SCHEDULE_TOPIC or not len(good):
                continue
            codes = tags_code_many(PropertyTable(good.raw_properties()).values(TAGS))
            tags = stored["tags_code"].astype(np.int64)
            for i in np.flatnonzero((tags != codes) & (tags > CQ_EXT_ADDRESS_MAX)).tolist():
                report(int(kept[i]), _TAGS_CODE_AT, f"tagsCode {int(codes[i])} of ", str(int(tags[i])))
        if light[0]:  # whose messages name it, and belong to another queue
            own = LogEntries(self.targets.log).leads_to_own(
                (topic, self.queue.queue_id), offsets, units[rows]
            )
            for row in np.flatnonzero(right & ~own).tolist():
                self.unclaimed += self._is_outside(int(offsets[row]))
                report(row, 0, "", f"physicalOffset {int(physical[row])}, of another message")
