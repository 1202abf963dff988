"""The consume queue of BatchCQ topics: a unit of 46 bytes covers a run of queue offsets (BatchConsumeQueue).

Units stand densely, so a unit's place says nothing about its offsets; they are found by bisecting on the base
offset.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from store_format.consumequeue.files import FileRun, QueueBounds, UnitFiles, find_bounds, valid_below
from store_format.errors import CorruptStoreError
from store_format.files.read import offset_file_name
from store_format.layouts import BATCH_CQ_UNIT

__all__ = ["batch_queue_bounds", "read_batch_units"]

_NAMES = BATCH_CQ_UNIT.names or ()
_PHYSICAL_OFFSET = _NAMES.index("physical_offset")
_SIZE = _NAMES.index("size")
_BASE_OFFSET = _NAMES.index("base_offset")
_BATCH_SIZE = _NAMES.index("batch_size")
_CHUNK_UNITS = 1 << 16
_BASE_OFFSET_MAX = 2**63 - 1 - 2**15  # the end of a unit above it would not be a queue offset


def _is_valid(units: NDArray[np.void]) -> NDArray[np.bool_]:
    """BatchConsumeQueue.recover's test, and a base that leaves room for the batch."""
    valid: NDArray[np.bool_] = (units["physical_offset"] >= 0) & (units["size"] > 0)
    valid &= (
        (units["base_offset"] >= 0) & (units["base_offset"] <= _BASE_OFFSET_MAX) & (units["batch_size"] > 0)
    )
    return valid


def _end_offset(unit: tuple[Any, ...]) -> int:  # Any: as UnitFiles.unit
    """The queue offset behind those that the unit covers."""
    return int(unit[_BASE_OFFSET] + unit[_BATCH_SIZE])


def batch_queue_bounds(
    directory: str,
    topic: str,
    queue_id: int,
    commit_log_min: int,
    *,
    commit_log_stop: int | None = None,
    scan: bool = False,
    clean: bool = False,
) -> QueueBounds | None:
    """Where the queue of a directory below `batchconsumequeue` begins and ends; None when it has no files.

    The maximum is the end of the last unit. The minimum is the base of the first unit, or the end of the last
    expired one (BatchConsumeQueue.correctMinOffset), also over leading files whose units are all expired,
    which the broker's cleaner deletes. Arguments and errors are those of `simple_queue_bounds`.
    """

    def find(files: UnitFiles, run: FileRun) -> QueueBounds:
        first = run.first_file // BATCH_CQ_UNIT.itemsize
        stop = files.find_stop(valid_below(_is_valid, commit_log_stop), scan=scan, clean=clean)
        start, min_offset, max_offset, first_physical_offset, last_physical_offset, last_size = (
            stop,
            0,
            0,
            -1,
            -1,
            0,
        )
        if stop > first:
            start = _first_unit(files, first, stop, _PHYSICAL_OFFSET, commit_log_min)
            min_offset = (
                _end_offset(files.unit(start - 1)) if start > first else files.unit(first)[_BASE_OFFSET]
            )
            last = files.unit(stop - 1)
            max_offset = _end_offset(last)
            # The units that say where the queue begins and ends, and their neighbours: one out of order would
            # hide others.
            for number in {max(start - 1, first), min(start, stop - 1), max(stop - 2, first)}:
                if number + 1 < stop and (base := files.unit(number + 1)[_BASE_OFFSET]) < (
                    end := _end_offset(files.unit(number))
                ):
                    expected = (
                        f"a batch that begins at or behind queue offset {end}, where the one before it ends"
                    )
                    raise _misplaced(directory, run.file_size, number + 1, expected, base)
            if start < stop:
                first_physical_offset = files.unit(start)[_PHYSICAL_OFFSET]
                last_physical_offset, last_size = last[_PHYSICAL_OFFSET], last[_SIZE]
        last_file = max(run.first_file, (stop * BATCH_CQ_UNIT.itemsize - 1) // run.file_size * run.file_size)
        return QueueBounds(
            topic, queue_id, directory, "batch", run.file_size, run.first_file, last_file, commit_log_min,
            start, stop, min_offset, max_offset, first_physical_offset, last_physical_offset, last_size,
        )  # fmt: skip

    return find_bounds(directory, BATCH_CQ_UNIT, (topic, queue_id), find, clean=clean)


def _first_unit(files: UnitFiles, low: int, high: int, field: int, at_least: int) -> int:
    """The first unit of [low, high) whose field is `at_least` that much, or `high`; the field rises along a
    queue.
    """
    while low < high:
        middle = (low + high) // 2
        if files.unit(middle)[field] >= at_least:
            high = middle
        else:
            low = middle + 1
    return low


def read_batch_units(bounds: QueueBounds, start: int, stop: int) -> NDArray[np.void]:
    """The units that cover any of the queue offsets `start` to `stop`, as stored and read-only.

    The first and the last may reach beyond the range: a unit is read as a whole, and its messages are picked
    when it is split.

    Raises OffsetOutOfRangeError for offsets outside the bounds, and when a file is gone since planning;
    CorruptStoreError when units are not in the order of their offsets: what bisecting found may then not be
    all.
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
    bases = units["base_offset"].astype(np.int64)
    ends = bases + units["batch_size"].astype(np.int64)
    return len(units) > 0 and bool(bases[0] <= start and ends[-1] >= stop and (bases[1:] == ends[:-1]).all())


def _refuse_disorder(bounds: QueueBounds, files: UnitFiles) -> None:
    """Raises unless each unit begins at or behind the end of the one before it: only then bisecting finds all
    there is.

    Gaps are strange, but no reason to refuse.
    """
    end = 0
    for first in range(bounds.unit_start, bounds.unit_stop, _CHUNK_UNITS):
        units = files.read(first, min(first + _CHUNK_UNITS, bounds.unit_stop))
        bases = units["base_offset"].astype(np.int64)
        ends = np.append(end, bases + units["batch_size"].astype(np.int64))
        wrong = np.flatnonzero((bases < ends[:-1]) | (units["batch_size"] <= 0))
        if len(wrong):
            at = int(wrong[0])
            expected = (
                f"a batch that begins at or behind queue offset {int(ends[at])}, where the one before it ends"
            )
            raise _misplaced(bounds.directory, bounds.file_size, first + at, expected, int(bases[at]))
        end = int(ends[-1])


def _misplaced(
    directory: str, file_size: int, number: int, expected: str, found: object
) -> CorruptStoreError:
    position = number * BATCH_CQ_UNIT.itemsize
    within = position % file_size
    return CorruptStoreError(
        f"{directory}/{offset_file_name(position - within)}", within, expected, str(found)
    )
