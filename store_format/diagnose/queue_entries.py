"""One consume queue read from its first unit to its last: which entries point to no message, or to another
message than they say.

A queue whose entries are all known to be right costs one pass. Entries are known to be right when as many of
them were equal to those that the log's messages give (`queues.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from store_format.bookkeeping.state import StoreState
from store_format.consumequeue.files import FileRun, UnitFiles, place_in_files
from store_format.consumequeue.simple import message_mask
from store_format.diagnose.commitlog import Targets
from store_format.diagnose.files import QUEUE_ADVICE
from store_format.diagnose.problems import Findings, Severity
from store_format.java.hashes import tags_code_many
from store_format.layouts import BATCH_CQ_UNIT, CQ_EXT_ADDRESS_MAX
from store_format.message.locate import locate
from store_format.message.property_table import PropertyTable
from store_format.message.unit_refs import Identity
from store_format.names import SCHEDULE_TOPIC, TAGS, is_light_queue

_CHUNK_UNITS_MIN, _CHUNK_UNITS_MAX = 1 << 9, 1 << 16
_SIZE_AT, _TAGS_CODE_AT = 8, 12  # in a unit
_BEHIND_ADVICE = (
    "A broker that starts on this store cuts these entries off (ConsumeQueue.truncateDirtyLogicFiles)"
)

_IntArray = NDArray[np.int64]
_Units = NDArray[np.void]


@dataclass(slots=True)
class CheckedQueue:
    """One queue: its files, and what the comparison with the log has found so far."""

    topic: str
    queue_id: int
    directory: str
    layout: np.dtype[np.void]
    run: FileRun | None
    usable: bool  # its files fit together
    equal: int = 0  # entries that are what the log's messages give
    lacking: list[tuple[_IntArray, _IntArray]] = field(default_factory=list)  # queue and physical offsets

    @property
    def is_batch(self) -> bool:
        return self.layout == BATCH_CQ_UNIT

    @property
    def unit_range(self) -> tuple[int, int]:
        """The numbers of the units that its files have room for, as [start, stop)."""
        assert self.run is not None
        size = self.layout.itemsize
        return self.run.first_file // size, (self.run.last_file + self.run.file_size) // size

    def open(self) -> UnitFiles:
        assert self.run is not None
        return UnitFiles(self.directory, self.layout, self.run, (self.topic, self.queue_id))

    def place(self, number: int) -> tuple[str, int]:
        """(file, byte) of a unit."""
        assert self.run is not None
        return place_in_files(self.directory, self.run.file_size, number * self.layout.itemsize)

    def offsets(self, number: int, units: _Units) -> _IntArray:
        """The queue offsets of units; the first of them is unit `number`."""
        if self.is_batch:
            return units["base_offset"].astype(np.int64)
        return np.arange(number, number + len(units), dtype=np.int64)


@dataclass(slots=True)
class Seen:
    """How many entries of a queue point into the log, into lost ranges, and behind the log's end."""

    stop: int  # the queue offset behind the last entry
    first_physical: int = -1  # the physical offset in the first entry that points into the log
    inside: int = 0
    lost: int = 0
    behind: int = 0
    first_behind: tuple[int, int] = (0, 0)  # unit number and physical offset
    last_behind: int = -1  # the greatest physical offset of an entry behind the log's end


def check_entries(findings: Findings, queue: CheckedQueue, state: StoreState, targets: Targets) -> Seen:
    """Counts the entries, and reports the wrong ones if not all are known to be right.

    `state` is how entries behind the log's end are judged.
    """
    seen = Seen(0 if queue.is_batch else queue.unit_range[0])
    with queue.open() as files:
        for number, units in _chunks(files, queue):
            _count_chunk(findings, queue, targets, seen, number, units)
        if seen.behind and state is not StoreState.LIVE:
            severity: Severity = "damage" if state is StoreState.CLEAN else "warning"
            number, physical = seen.first_behind
            file, position = queue.place(number)
            expected = f"entries that point to messages before the log's end, {targets.end}"
            found = (
                f"physicalOffset {physical}, the first of {seen.behind} entries of "
                f"{queue.topic}-{queue.queue_id} behind it"
            )
            findings.add(severity, file, position, expected, found, _BEHIND_ADVICE, kind="behind")
        if seen.inside != queue.equal:
            _report_wrong(findings, files, queue, targets)
    return seen


def _count_chunk(
    findings: Findings, queue: CheckedQueue, targets: Targets, seen: Seen, number: int, units: _Units
) -> None:
    """Adds a chunk of units to `seen`, and reports invalid units that have valid ones behind them."""
    physical = units["physical_offset"].astype(np.int64)
    valid = (units["size"] > 0) & (physical >= 0)
    filled = np.flatnonzero(valid)
    if len(filled):
        covers = int(units["batch_size"][filled[-1]]) if queue.is_batch else 1
        seen.stop = int(queue.offsets(number, units)[filled[-1]]) + covers
    _report_holes(findings, queue, number, units, np.flatnonzero(~valid))
    entries = message_mask(units)
    gone = entries & targets.lost.contains(physical)
    current = entries & (physical >= targets.log.min_offset) & ~gone
    behind = current & (physical >= targets.end)
    inside = current & ~behind
    if behind.any() and not seen.behind:
        seen.first_behind = (number + int(behind.argmax()), int(physical[behind.argmax()]))
    if inside.any() and seen.first_physical < 0:
        seen.first_physical = int(physical[inside.argmax()])
    seen.last_behind = max(seen.last_behind, int(physical[behind].max(initial=-1)))
    seen.inside += int(inside.sum())
    seen.lost += int(gone.sum())
    seen.behind += int(behind.sum())


def _report_holes(
    findings: Findings, queue: CheckedQueue, number: int, units: _Units, holes: _IntArray
) -> None:
    """Reports the invalid units at `holes`; equal ones in a row, such as a block of zeros, as one problem."""
    physical, size = units["physical_offset"][holes], units["size"][holes]
    same = (np.diff(holes) == 1) & (np.diff(physical) == 0) & (np.diff(size) == 0)
    starts = np.flatnonzero(np.concatenate(([True], ~same))) if len(holes) else holes
    for start, stop in pairwise([*starts.tolist(), len(holes)]):
        file, position = queue.place(number + int(holes[start]))
        expected = f"an entry of {queue.topic}-{queue.queue_id}"
        found = f"physicalOffset {int(physical[start])} and size {int(size[start])}"
        more = f" in {stop - start} entries in a row" if stop - start > 1 else ""
        found = f"{found}{more}, with entries behind {'them' if more else 'it'}"
        findings.add("damage", file, position, expected, found, QUEUE_ADVICE, kind="entry")


def _chunks(files: UnitFiles, queue: CheckedQueue) -> Iterator[tuple[int, _Units]]:
    """(number of the first unit, units), up to the files' end or a whole chunk of zeros.

    Chunks begin small, because small queues are many.
    """
    low, high = queue.unit_range
    start, count = low, _CHUNK_UNITS_MIN
    while start < high:
        units = files.read(start, min(start + count, high))
        used = np.flatnonzero((units["size"] != 0) | (units["physical_offset"] != 0))
        if not len(used):
            return
        yield start, units[: int(used[-1]) + 1]
        start, count = start + len(units), min(2 * count, _CHUNK_UNITS_MAX)


def _report_wrong(findings: Findings, files: UnitFiles, queue: CheckedQueue, targets: Targets) -> None:
    """Compares every entry with the message that it points to."""
    for number, units in _chunks(files, queue):
        physical = units["physical_offset"].astype(np.int64)
        rows = np.flatnonzero(message_mask(units) & targets.readable(physical))
        in_files = targets.log.file_index(physical[rows])
        for index in np.unique(in_files).tolist():
            if index >= 0:
                _check_in_file(findings, targets, index, queue, number, units, rows[in_files == index])


def _check_in_file(
    findings: Findings,
    targets: Targets,
    index: int,
    queue: CheckedQueue,
    number: int,
    units: _Units,
    rows: _IntArray,
) -> None:
    """Compares the entries at `rows` of `units`, which point into one commitlog file, with their messages."""

    def report(row: int, at: int, expected: str, found: str) -> None:
        file, position = queue.place(number + int(rows[row]))
        who = f"the message {queue.topic}-{queue.queue_id} offset {int(offsets[row])}"
        findings.add("damage", file, position + at, f"{expected}{who}", found, QUEUE_ADVICE, kind="entry")

    file = targets.log.files[index]
    physical = units["physical_offset"][rows].astype(np.int64)
    offsets = queue.offsets(number, units)[rows]
    light = (is_light_queue(queue.topic),)
    identity = Identity((queue.topic,), None, np.full(len(rows), queue.queue_id, np.int32), offsets, light)
    for mine, refs in targets.log.refs_at(file, physical, identity):
        good, bad = locate(refs, verify_crc=False)
        for unit in bad:
            at, error = int(refs.physical_offsets[unit.index]), unit.error
            found = f"physicalOffset {at}, where {error.expected} is expected and {error.found} found"
            report(mine.start + unit.index, 0, "", found)
        kept = np.setdiff1d(np.arange(len(refs)), [unit.index for unit in bad])
        stored, sizes = units[rows[mine][kept]], refs.sizes[kept]
        kept += mine.start
        for i in np.flatnonzero(stored["size"] != sizes).tolist():
            report(int(kept[i]), _SIZE_AT, f"size {int(sizes[i])} of ", str(int(stored["size"][i])))
        if queue.topic == SCHEDULE_TOPIC or not len(good):
            continue
        codes = tags_code_many(PropertyTable(good.raw_properties()).values(TAGS))
        tags = stored["tags_code"].astype(np.int64)
        for i in np.flatnonzero((tags != codes) & (tags > CQ_EXT_ADDRESS_MAX)).tolist():
            report(int(kept[i]), _TAGS_CODE_AT, f"tagsCode {int(codes[i])} of ", str(int(tags[i])))
