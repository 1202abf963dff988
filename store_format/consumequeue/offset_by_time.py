"""The queue offset for a time. The search takes the broker's steps, because with equal or unordered times the
steps decide the result.

Times are milliseconds, as on disk. Results are clamped as in ConsumeQueueStore.getOffsetInQueueByTime. The
time of a message that cannot be read is unknown, and then the broker's search returns 0; a bisection over
`QueueTimes` skips such messages instead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from store_format.consumequeue.database import store_timestamp_in_database
from store_format.consumequeue.files import QueueBounds, UnitFiles
from store_format.consumequeue.own_files import Boundary
from store_format.consumequeue.slices import QueueSlice
from store_format.layouts import BATCH_CQ_UNIT, CQ_PRE_BLANK_SIZE, CQ_UNIT

TimeOf = Callable[[int, int], int]  # of a physical offset and a queue offset

_NO_TIME = -1
_LAST_TIME = 2**63 - 1
_STEP_MAX = 1 << 10  # entries in one read for the next readable message
_NAMES = BATCH_CQ_UNIT.names or ()
_STORE_TIMESTAMP = _NAMES.index("store_timestamp")
_BASE_OFFSET = _NAMES.index("base_offset")


def offset_at(bounds: QueueBounds, timestamp: int, boundary: Boundary, store_timestamp_at: TimeOf) -> int:
    """The queue offset for a time, between `min_offset` and `max_offset`.

    In a simple queue whose times never fall, LOWER is the first message at or after `timestamp` (the maximum
    without one), and UPPER the last message at or before it (the minimum without one). In a batch queue the
    result is the base offset of a unit: LOWER of a time after the last unit is the last unit, and UPPER of a
    time that no unit has may be the minimum. The broker gives the same answers.

    `store_timestamp_at` gives the store time of the message at a physical offset to which the unit of a queue
    offset leads, -1 without one; batch units hold their own.

    Raises OffsetOutOfRangeError when a file was deleted after planning.
    """
    if bounds.min_offset >= bounds.max_offset or bounds.unit_start >= bounds.unit_stop:
        return bounds.max_offset
    if bounds.kind == "database":
        return search_database(
            store_timestamp_in_database(bounds), bounds.min_offset, bounds.max_offset, timestamp, boundary
        )
    with bounds.open() as files:
        if bounds.kind == "batch":
            found = _search_batch(files, bounds, timestamp, boundary)
        else:
            found = _SimpleSearch(files, bounds, store_timestamp_at).search(timestamp, boundary)
    return min(max(found, bounds.min_offset), bounds.max_offset)


class _SimpleSearch:
    """ConsumeQueue.binarySearchInQueueByTime in the file of getConsumeQueueMappedFileByTime."""

    def __init__(self, files: UnitFiles, bounds: QueueBounds, store_timestamp_at: TimeOf) -> None:
        self._files = files
        self._bounds = bounds
        self._store_timestamp_at = store_timestamp_at

    def _time(self, number: int) -> int:
        physical_offset, size, _ = self._files.unit(number)
        # A message cannot have the pre-blank size, so CommitLog.pickupStoreTimestamp finds none either.
        return _NO_TIME if size == CQ_PRE_BLANK_SIZE else self._store_timestamp_at(physical_offset, number)

    def search(self, timestamp: int, boundary: Boundary) -> int:
        file_start = self._choose_file(timestamp, boundary)
        if file_start is None:
            return 0
        start = file_start // CQ_UNIT.itemsize
        floor = max(self._bounds.unit_start, start)
        ceiling = min(start + self._bounds.file_size // CQ_UNIT.itemsize, self._bounds.unit_stop) - 1
        if self._time(ceiling) < timestamp:
            return ceiling + 1 if boundary == "LOWER" else ceiling
        if floor > ceiling:  # all units of the file are expired
            return 0
        if self._time(floor) > timestamp:
            return start if boundary == "LOWER" else 0
        return self._bisect(floor, ceiling, timestamp, boundary, start)

    def _choose_file(self, timestamp: int, boundary: Boundary) -> int | None:
        """The byte offset of the file to search, or None. A time of 0 or less counts as -1, unknown."""
        starts = self._bounds.file_starts
        per_file = self._bounds.file_size // CQ_UNIT.itemsize
        if boundary == "LOWER":
            for start in starts[:-1]:
                time = self._time(start // CQ_UNIT.itemsize + per_file - 1)
                if (time if time > 0 else _NO_TIME) >= timestamp:
                    return start
            return starts[-1]
        for start in reversed(starts):
            time = self._time(start // CQ_UNIT.itemsize)
            if (time if time > 0 else _NO_TIME) <= timestamp:
                return start
        return None

    def _bisect(self, floor: int, ceiling: int, timestamp: int, boundary: Boundary, start: int) -> int:
        low, high, smaller, greater = floor, ceiling, start - 1, start - 1
        while low <= high:
            middle = (low + high) // 2
            time = self._time(middle)
            if time < 0:
                return 0
            if time == timestamp:
                return self._end_of_ties(middle, floor, ceiling, timestamp, boundary)
            if time > timestamp:
                high, greater = middle - 1, middle
            else:
                low, smaller = middle + 1, middle
        return greater if boundary == "LOWER" else smaller

    def _end_of_ties(self, number: int, floor: int, ceiling: int, timestamp: int, boundary: Boundary) -> int:
        step, end = (-1, floor) if boundary == "LOWER" else (1, ceiling)
        while number != end and self._time(number + step) == timestamp:
            number += step
        return number


def search_database(
    time_of: Callable[[int], int], start: int, stop: int, timestamp: int, boundary: Boundary
) -> int:
    """RocksDBConsumeQueueTable.binarySearchInCQByTime over the offsets [start, stop), which are not empty.

    `time_of` gives the store time of an offset. UPPER of a time before all messages is 0, also if `start` is
    not, and of a later time than all the last offset.
    """
    low, high = start, stop - 1
    if time_of(high) < timestamp:
        return stop if boundary == "LOWER" else high
    if time_of(low) > timestamp:
        return low if boundary == "LOWER" else 0
    smaller, greater = -1, -1
    while low <= high:
        middle = (low + high) // 2
        time = time_of(middle)
        if time == timestamp:
            step, end = (-1, start) if boundary == "LOWER" else (1, stop - 1)
            while middle != end and time_of(middle + step) == timestamp:
                middle += step
            return middle
        if time > timestamp:
            high, greater = middle - 1, middle
        else:
            low, smaller = middle + 1, middle
    return greater if boundary == "LOWER" else smaller


def _search_batch(files: UnitFiles, bounds: QueueBounds, timestamp: int, boundary: Boundary) -> int:
    """BatchConsumeQueue.getOffsetInQueueByTime with its cache on (searchBcqByCacheEnable, the default)."""
    per_file = bounds.file_size // BATCH_CQ_UNIT.itemsize
    firsts = [start // BATCH_CQ_UNIT.itemsize for start in bounds.file_starts]
    first = firsts[-1]
    if files.unit(first)[_STORE_TIMESTAMP] > timestamp:
        # of files that begin with the same time, the newest
        times = {files.unit(number)[_STORE_TIMESTAMP]: number for number in firsts}
        before = [time for time in times if time <= timestamp]
        first = times[max(before)] if before else firsts[0]
    last = min(first + per_file, bounds.unit_stop) - 1
    if timestamp >= files.unit(last)[_STORE_TIMESTAMP]:
        return int(files.unit(last)[_BASE_OFFSET])
    number = _bisect_batch(files, first, last, timestamp, boundary)
    return -1 if number is None else int(files.unit(number)[_BASE_OFFSET])


def _bisect_batch(files: UnitFiles, low: int, high: int, timestamp: int, boundary: Boundary) -> int | None:
    """BatchConsumeQueue.binarySearchRight; None is its -1, which UPPER may get despite earlier units."""
    while low <= high:
        middle = (low + high) // 2
        time = files.unit(middle)[_STORE_TIMESTAMP]
        if middle in (low, high):
            if time >= timestamp:
                return middle
            if middle == high:
                return None
            low = middle + 1
        elif boundary == "LOWER":
            low, high = (middle + 1, high) if time < timestamp else (low, middle)
        else:
            low, high = (middle, high) if time <= timestamp else (low, middle - 1)
    return None


class QueueTimes(Sequence[int]):
    """The store times of a slice for bisection, one for each queue offset, each read when it is needed.

    An offset whose message cannot be read has the time of the next readable message, or, behind the last
    readable message, the latest possible time.
    """

    def __init__(self, piece: QueueSlice, store_timestamp_at: TimeOf) -> None:
        self._piece = piece
        self._store_timestamp_at = store_timestamp_at
        self._start, self._stop, self._time = (
            0,
            0,
            _NO_TIME,
        )  # the last range of offsets found to have one time

    def __len__(self) -> int:
        return self._piece.stop - self._piece.start

    def __getitem__(self, index: int) -> int:  # type: ignore[override] # bisect needs no slices
        if not self._start <= index < self._stop:
            self._start, self._stop, self._time = index, *self._find(index)
        return self._time

    def _find(self, index: int) -> tuple[int, int]:
        """(end, time) of the range from `index` on that has one time."""
        at, step = index, 1
        while at < len(self):
            if self._start <= at < self._stop:
                return self._stop, self._time
            low = self._piece.start + at
            offsets, units = self._piece._replace(start=low, stop=min(low + step, self._piece.stop)).read()
            for offset, physical in zip(offsets.tolist(), units["physical_offset"].tolist(), strict=True):
                time = self._store_timestamp_at(physical, offset)
                if time >= 0:
                    return max(offset - self._piece.start, index) + 1, time
            at, step = at + step, min(2 * step, _STEP_MAX)
        return len(self), _LAST_TIME
