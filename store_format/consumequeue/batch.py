"""The consume queue of BatchCQ topics: a unit of 46 bytes covers a run of queue offsets (BatchConsumeQueue).

Units have no gaps between them, so the place of a unit says nothing about its queue offsets. Units are found
by bisecting on the base offset.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from store_format.consumequeue.files import (
    QUEUE_OFFSET_MAX,
    Edges,
    FileRun,
    QueueBounds,
    UnitFiles,
    place_in_files,
)
from store_format.errors import CorruptStoreError
from store_format.layouts import BATCH_CQ_UNIT

_NAMES = BATCH_CQ_UNIT.names or ()
_PHYSICAL_OFFSET = _NAMES.index("physical_offset")
_SIZE = _NAMES.index("size")
_BASE_OFFSET = _NAMES.index("base_offset")
_BATCH_SIZE = _NAMES.index("batch_size")
_CHUNK_UNITS = 1 << 16


def valid_batch_units(units: NDArray[np.void]) -> NDArray[np.bool_]:
    """BatchConsumeQueue.recover's test, and a base offset that leaves room for the batch."""
    valid: NDArray[np.bool_] = (units["physical_offset"] >= 0) & (units["size"] > 0)
    valid &= (
        (units["base_offset"] >= 0) & (units["base_offset"] <= QUEUE_OFFSET_MAX) & (units["batch_size"] > 0)
    )
    return valid


def _end_offset(unit: tuple[Any, ...]) -> int:  # Any: as UnitFiles.unit
    """The queue offset behind the last one that the unit covers."""
    return int(unit[_BASE_OFFSET] + unit[_BATCH_SIZE])


def batch_edges(files: UnitFiles, run: FileRun, stop: int, commit_log_min: int) -> Edges:
    """The edges of a batch queue whose last valid unit is `stop` - 1.

    The maximum is the end of the last unit. The minimum is the base of the first unit, or the end of the last
    expired unit (BatchConsumeQueue.correctMinOffset), also behind leading files whose units are all expired
    and which the broker's cleaner deletes.
    """
    first = run.first_file // BATCH_CQ_UNIT.itemsize
    if stop == first:
        return Edges(stop, stop, 0, 0)
    start = _first_unit(files, first, stop, _PHYSICAL_OFFSET, commit_log_min)
    _check_edges(files, run, first, start, stop)
    if start > first:
        min_offset = _end_offset(files.unit(start - 1))
    else:
        min_offset = files.unit(first)[_BASE_OFFSET]
    last = files.unit(stop - 1)
    max_offset = _end_offset(last)
    if start == stop:
        return Edges(start, stop, min_offset, max_offset)
    first_physical_offset = files.unit(start)[_PHYSICAL_OFFSET]
    return Edges(
        start, stop, min_offset, max_offset, first_physical_offset, last[_PHYSICAL_OFFSET], last[_SIZE]
    )


def _check_edges(files: UnitFiles, run: FileRun, first: int, start: int, stop: int) -> None:
    """Raises CorruptStoreError if the units at the queue's begin or end overlap their neighbours.

    These units give the first and the last queue offset; one that is out of order would hide others.
    """
    for number in sorted({max(start - 1, first), min(start, stop - 1), max(stop - 2, first)}):
        if number + 1 < stop:
            base, end = files.unit(number + 1)[_BASE_OFFSET], _end_offset(files.unit(number))
            if base < end:
                raise _misplaced(files.directory, run.file_size, number + 1, end, base)


def _first_unit(files: UnitFiles, low: int, high: int, field: int, at_least: int) -> int:
    """The first unit of [low, high) whose field is at least `at_least`; `high` without one."""
    while low < high:
        middle = (low + high) // 2
        if files.unit(middle)[field] >= at_least:
            high = middle
        else:
            low = middle + 1
    return low


def read_batch_units(bounds: QueueBounds, start: int, stop: int) -> NDArray[np.void]:
    """The units that cover any of the queue offsets [start, stop), as stored and read-only.

    The first and the last unit may reach beyond the range: the messages in the range are picked when the
    batch is split.

    Raises OffsetOutOfRangeError for offsets outside the bounds, and when a file was deleted after planning;
    CorruptStoreError when units are not in the order of their offsets, because bisection may then miss some.
    """
    bounds.check_range(start, stop, bounds.min_offset)
    if start >= stop:
        return np.empty(0, BATCH_CQ_UNIT)
    with bounds.open(BATCH_CQ_UNIT) as files:
        first = _first_unit(files, bounds.unit_start, bounds.unit_stop, _BASE_OFFSET, start + 1)
        if first > bounds.unit_start and _end_offset(files.unit(first - 1)) > start:
            first -= 1
        last = max(first, _first_unit(files, first, bounds.unit_stop, _BASE_OFFSET, stop))
        units = files.read(first, last)
        if not _without_gaps(units, start, stop):
            _refuse_disorder(bounds, files)
    return units


def _without_gaps(units: NDArray[np.void], start: int, stop: int) -> bool:
    """Whether the units cover all queue offsets of [start, stop), each once."""
    bases = units["base_offset"].astype(np.int64)
    ends = bases + units["batch_size"].astype(np.int64)
    return len(units) > 0 and bool(bases[0] <= start and ends[-1] >= stop and (bases[1:] == ends[:-1]).all())


def _refuse_disorder(bounds: QueueBounds, files: UnitFiles) -> None:
    """Raises CorruptStoreError unless each unit begins at or behind the end of the unit before it.

    Only then does bisection find all units. Gaps are unusual, but no reason to refuse.
    """
    end = 0
    for first in range(bounds.unit_start, bounds.unit_stop, _CHUNK_UNITS):
        units = files.read(first, min(first + _CHUNK_UNITS, bounds.unit_stop))
        bases = units["base_offset"].astype(np.int64)
        ends = np.append(end, bases + units["batch_size"].astype(np.int64))
        wrong = np.flatnonzero((bases < ends[:-1]) | (units["batch_size"] <= 0))
        if len(wrong):
            at = int(wrong[0])
            raise _misplaced(bounds.directory, bounds.file_size, first + at, int(ends[at]), int(bases[at]))
        end = int(ends[-1])


def _misplaced(directory: str, file_size: int, number: int, end: int, base: int) -> CorruptStoreError:
    """Unit `number` begins at queue offset `base`, before the end of the unit before it."""
    path, within = place_in_files(directory, file_size, number * BATCH_CQ_UNIT.itemsize)
    expected = f"a batch that begins at or behind queue offset {end}, where the one before it ends"
    return CorruptStoreError(path, within, expected, str(base))
