"""The standard consume queue: one unit of 20 bytes for each message; the unit's number is the queue offset
(ConsumeQueue).

Planning needs the first and the last offset of a queue, a task needs a range of units; each reads a few
blocks.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from store_format.consumequeue.files import Edges, FileRun, QueueBounds, UnitFiles
from store_format.layouts import CQ_LOST_TAGS_CODE, CQ_PRE_BLANK_SIZE, CQ_UNIT


def valid_units(units: NDArray[np.void]) -> NDArray[np.bool_]:
    """ConsumeQueue.recover's test. Pre-blank units pass it: they take a place, but are no messages."""
    valid: NDArray[np.bool_] = (units["physical_offset"] >= 0) & (units["size"] > 0)
    return valid


def message_mask(units: NDArray[np.void]) -> NDArray[np.bool_]:
    """True for units that point to a message: valid, and not pre-blank (ConsumeQueue.fillPreBlank).

    A unit of the pre-blank size with another physical offset counts, too: whoever reads its message finds
    that the size is damaged.
    """
    return valid_units(units) & ~pre_blank_mask(units)


def pre_blank_mask(units: NDArray[np.void]) -> NDArray[np.bool_]:
    """True for the units of no message: before a queue's first message (ConsumeQueue.fillPreBlank), and ours.

    Ours are in the places of lost messages (`lost_units`).
    """
    mask: NDArray[np.bool_] = (units["size"] == CQ_PRE_BLANK_SIZE) & (units["physical_offset"] == 0)
    return mask | lost_mask(units)


def lost_mask(units: NDArray[np.void]) -> NDArray[np.bool_]:
    """True for the units in the places of lost messages."""
    mask: NDArray[np.bool_] = units["tags_code"] == CQ_LOST_TAGS_CODE
    return mask


def simple_edges(files: UnitFiles, run: FileRun, stop: int, commit_log_min: int) -> Edges:
    """The edges of a simple queue whose last valid unit is `stop` - 1."""
    start, first_physical_offset = _find_start(files, run, stop, commit_log_min)
    if first_physical_offset < 0:
        return Edges(start, stop, start, stop)
    last_physical_offset, last_size, _ = files.unit(stop - 1)
    return Edges(start, stop, start, stop, first_physical_offset, last_physical_offset, last_size)


def _find_start(files: UnitFiles, run: FileRun, stop: int, commit_log_min: int) -> tuple[int, int]:
    """The minimum offset (ConsumeQueue.correctMinOffset), and the physical offset there or -1.

    The broker's rule looks at the first file only. This function first skips leading files whose last unit is
    expired, because a running broker deletes them before it applies the rule
    (MappedFileQueue.deleteExpiredFileByOffset). A broker that has just started still reports 0 for such
    files.
    """
    per_file = run.file_size // CQ_UNIT.itemsize
    start = run.first_file // CQ_UNIT.itemsize
    if stop == start or files.unit(stop - 1)[0] < commit_log_min:
        return stop, -1  # the queue keeps its offset even without a readable message
    while start + per_file < stop and _is_expired(files, start + per_file - 1, start, commit_log_min):
        start += per_file
    file_stop = min(start + per_file, stop)
    first = start
    physical_offset, size, _ = files.unit(start)
    if physical_offset < 0 or size <= 0:
        first = _first_valid(files, start, stop)
        physical_offset, size, _ = files.unit(first)
    if physical_offset < commit_log_min:
        start = first = _bisect_expired(files, first, file_stop - 1, commit_log_min)
        physical_offset, size, _ = files.unit(first)
    if size == CQ_PRE_BLANK_SIZE and physical_offset == 0:
        return start, _first_message(files, first, file_stop, stop)
    return start, physical_offset


def _is_valid(files: UnitFiles, number: int) -> bool:
    physical_offset, size, _ = files.unit(number)
    return bool(physical_offset >= 0 and size > 0)


def _first_valid(files: UnitFiles, number: int, stop: int) -> int:
    """The first valid unit from `number` on: zeros before it are damage, and have not expired. The last unit
    before `stop` is valid.
    """
    while number < stop - 1 and not _is_valid(files, number):
        number += 1
    return number


def _is_expired(files: UnitFiles, last: int, first: int, commit_log_min: int) -> bool:
    """Whether the last valid unit of [first, last] points before `commit_log_min`."""
    while last > first and not _is_valid(files, last):
        last -= 1
    return _is_valid(files, last) and bool(files.unit(last)[0] < commit_log_min)


def _bisect_expired(files: UnitFiles, low: int, high: int, commit_log_min: int) -> int:
    """The first unit of [low, high] that points to `commit_log_min` or behind, by the broker's probes."""
    while high - low > 1:
        middle = (low + high) // 2
        valid = _first_valid(files, middle, high + 1)
        physical_offset = files.unit(valid)[0]
        if physical_offset == commit_log_min and valid == middle:
            return middle
        if physical_offset >= commit_log_min or not _is_valid(files, valid):
            high = middle
        else:
            low = middle
    return low if files.unit(low)[0] >= commit_log_min else high


def _first_message(files: UnitFiles, low: int, file_stop: int, stop: int) -> int:
    """The physical offset in the first unit behind a file's leading pre-blank units; -1 without one."""
    high = file_stop
    while low < high:
        middle = (low + high) // 2
        physical_offset, size, _ = files.unit(middle)
        if size == CQ_PRE_BLANK_SIZE and physical_offset == 0:
            low = middle + 1
        else:
            high = middle
    return int(files.unit(low)[0]) if low < stop else -1


def read_units(bounds: QueueBounds, start: int, stop: int) -> NDArray[np.void]:
    """The units of queue offsets [start, stop), as stored and read-only.

    Units below `min_offset` are expired, but can be read. Raises OffsetOutOfRangeError for offsets outside
    the files, and when a file was deleted after planning.
    """
    bounds.check_range(start, stop, bounds.first_file // CQ_UNIT.itemsize)
    with bounds.open(CQ_UNIT) as files:
        return files.read(start, stop)
