"""One consume queue read from its first unit to its last: which entries lead to no message, or to another one
than they say.

Entries that are all known to be right, because as many came out equal when made again, cost one pass and
nothing more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from store_format.bookkeeping.state import StoreState
from store_format.commitlog.log import CommitLog
from store_format.consumequeue.files import UnitFiles
from store_format.consumequeue.simple import message_mask
from store_format.diagnose.commitlog import Lost
from store_format.diagnose.files import QUEUE_ADVICE
from store_format.diagnose.problems import Findings, Severity
from store_format.java.hashes import tags_code_many
from store_format.layouts import BATCH_CQ_UNIT, CQ_EXT_ADDRESS_MAX
from store_format.message.locate import locate
from store_format.message.property_table import PropertyTable
from store_format.message.unit_refs import Identity
from store_format.names import SCHEDULE_TOPIC, TAGS, is_light_queue

__all__ = ["Entries", "Seen", "check_entries"]

_CHUNK_UNITS_MIN, _CHUNK_UNITS_MAX = 1 << 9, 1 << 16
_BEHIND_ADVICE = "A broker that starts on this store cuts them off (ConsumeQueue.truncateDirtyLogicFiles)"

_IntArray = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Entries:
    """A queue as it is checked. `place` gives file and byte of a unit by its number."""

    topic: str
    queue_id: int
    layout: np.dtype[np.void]
    unit_range: tuple[int, int]
    place: Callable[[int], tuple[str, int]]

    @property
    def is_batch(self) -> bool:
        return self.layout == BATCH_CQ_UNIT


@dataclass(slots=True)
class Seen:
    """What a queue holds: `inside` entries that lead into the log, `lost` into lost parts of it, `behind`
    behind its end.
    """

    stop: int  # the queue offset behind the last entry
    first_physical: int = -1
    inside: int = 0
    lost: int = 0
    behind: int = 0


def check_entries(
    findings: Findings,
    log: CommitLog,
    files: UnitFiles,
    queue: Entries,
    state: StoreState,
    log_end: int,
    lost: Lost,
    *,
    equal: int,
) -> Seen:
    """Counts the entries, and when `equal` of them do not explain them all, names those that are wrong."""
    seen = Seen(0 if queue.is_batch else queue.unit_range[0])
    behind_first = (0, 0)
    for number, units in _chunks(files, queue):
        messages = message_mask(units)
        offsets = _offsets(queue, number, units)
        physical = units["physical_offset"].astype(np.int64)
        valid = (units["size"] > 0) & (physical >= 0)
        filled = np.flatnonzero(valid)
        if len(filled):
            seen.stop = int(offsets[filled[-1]]) + (
                int(units["batch_size"][filled[-1]]) if queue.is_batch else 1
            )
        for hole in np.flatnonzero(~valid).tolist():
            file, position = queue.place(number + hole)
            found = f"physicalOffset {int(physical[hole])} and size {int(units['size'][hole])}, with entries behind it"
            findings.add(
                "damage",
                file,
                position,
                f"an entry of {queue.topic}-{queue.queue_id}",
                found,
                QUEUE_ADVICE,
                kind="entry",
            )
        current = messages & (physical >= log.min_offset)
        gone = current & lost.contains(physical)
        behind = current & (physical >= log_end) & ~gone
        if behind.any() and not seen.behind:
            behind_first = (number + int(behind.argmax()), int(physical[behind.argmax()]))
        inside = current & ~behind & ~gone
        if seen.first_physical < 0 and inside.any():
            seen.first_physical = int(physical[inside.argmax()])
        seen.inside += int(inside.sum())
        seen.lost += int(gone.sum())
        seen.behind += int(behind.sum())
    if seen.behind and state is not StoreState.LIVE:
        severity: Severity = "damage" if state is StoreState.CLEAN else "warning"
        file, position = queue.place(behind_first[0])
        expected = f"entries that lead to messages before the log's end, {log_end}"
        found = f"physicalOffset {behind_first[1]}, the first of {seen.behind} entries of {queue.topic}-{queue.queue_id} behind it"
        findings.add(severity, file, position, expected, found, _BEHIND_ADVICE, kind="behind")
    if seen.inside != equal:
        _name_wrong(findings, log, files, queue, log_end, lost)
    return seen


def _offsets(queue: Entries, number: int, units: NDArray[np.void]) -> _IntArray:
    if queue.is_batch:
        return units["base_offset"].astype(np.int64)
    return np.arange(number, number + len(units), dtype=np.int64)


def _chunks(files: UnitFiles, queue: Entries) -> Iterator[tuple[int, NDArray[np.void]]]:
    """(number of the first, units) up to the files' end or a whole chunk of zeros. Small queues are many, so
    chunks begin small.
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


def _name_wrong(
    findings: Findings, log: CommitLog, files: UnitFiles, queue: Entries, log_end: int, lost: Lost
) -> None:
    for number, units in _chunks(files, queue):
        physical = units["physical_offset"].astype(np.int64)
        check = np.flatnonzero(
            message_mask(units)
            & (physical >= log.min_offset)
            & (physical < log_end)
            & ~lost.contains(physical)
        )
        in_files = log.file_index(physical[check])
        for index in np.unique(in_files).tolist():
            mine = check[in_files == index]
            if index >= 0:
                _check_in_file(findings, log, index, queue, number, units, mine)


def _check_in_file(
    findings: Findings,
    log: CommitLog,
    index: int,
    queue: Entries,
    number: int,
    units: NDArray[np.void],
    rows: NDArray[np.int64],
) -> None:
    file = log.files[index]
    physical = units["physical_offset"][rows].astype(np.int64)
    offsets = _offsets(queue, number, units)[rows]
    light = (is_light_queue(queue.topic),)
    identity = Identity((queue.topic,), None, np.full(len(rows), queue.queue_id, np.int32), offsets, light)
    refs = log.refs_at(file, physical, identity)
    positions, sizes = refs.positions, refs.sizes
    good, bad = locate(refs, verify_crc=False)
    who = f"{queue.topic}-{queue.queue_id} offset"
    for unit in bad:
        where, position = queue.place(number + int(rows[unit.index]))
        error, at = unit.error, int(positions[unit.index]) + file.start
        found = f"physicalOffset {at}, where {error.expected} is expected and {error.found} found"
        findings.add(
            "damage",
            where,
            position,
            f"the message {who} {int(offsets[unit.index])}",
            found,
            QUEUE_ADVICE,
            kind="entry",
        )
    kept = np.setdiff1d(np.arange(len(rows)), [unit.index for unit in bad])
    stored = units[rows[kept]]
    wrong_size = stored["size"] != sizes[kept]
    for i in np.flatnonzero(wrong_size).tolist():
        where, position = queue.place(number + int(rows[kept[i]]))
        expected, found = (
            f"size {int(sizes[kept[i]])} of the message {who} {int(offsets[kept[i]])}",
            str(int(stored["size"][i])),
        )
        findings.add("damage", where, position + 8, expected, found, QUEUE_ADVICE, kind="entry")
    if queue.topic == SCHEDULE_TOPIC or not len(good):
        return
    codes = tags_code_many(PropertyTable(good.raw_properties()).values(TAGS))
    tags = stored["tags_code"].astype(np.int64)
    for i in np.flatnonzero((tags != codes) & (tags > CQ_EXT_ADDRESS_MAX)).tolist():
        where, position = queue.place(number + int(rows[kept[i]]))
        expected = f"tagsCode {int(codes[i])} of the message {who} {int(offsets[kept[i]])}"
        findings.add("damage", where, position + 12, expected, str(int(tags[i])), QUEUE_ADVICE, kind="entry")
