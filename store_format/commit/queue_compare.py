"""Compares built consume queues with the store's, and brings the store's to what the log says.

Only what differs is written. Entries that the log cannot show are kept: those of expired messages, and those
of messages in damaged bytes. An address in consumequeue_ext counts as the right tags code; entries that are
written have the tags code itself, which a broker accepts in any queue (spec 3.4).
"""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from store_format.commit.built_queues import LOST_MAX, BuiltQueue
from store_format.consumequeue.batch import valid_batch_units
from store_format.consumequeue.ext import is_ext_address
from store_format.consumequeue.files import QueueKind
from store_format.consumequeue.listing import FOLDERS, list_queues, queue_directory
from store_format.consumequeue.simple import lost_mask, pre_blank_mask, valid_units
from store_format.consumequeue.updates import pre_blank_bytes
from store_format.errors import StoreError
from store_format.files.read import StoreFile, list_store_files, offset_file_name
from store_format.files.view import FileView
from store_format.files.write import FileWrites
from store_format.layouts import BATCH_CQ_UNIT, CQ_UNIT
from store_format.names import SCHEDULE_TOPIC, QueueKey

_CHUNK = 1 << 16  # units
_FILES_LOOKED_AT = 10_000
_BATCH_FIELDS = ("physical_offset", "size", "store_timestamp", "base_offset", "batch_size")


@dataclass(frozen=True, slots=True)
class QueueChange:
    """What a queue lacks. `first` is the first queue offset (batch queue: unit) that changes.

    `action` is "create" for a queue without files, "complete" for entries at its end, "correct" for entries
    before its end, and "replace" for files that do not fit together. `by_broker` of the `entries` would be
    added by a broker that starts.
    """

    queue: QueueKey
    is_batch: bool
    action: str
    first: int
    entries: int
    by_broker: int
    reason: str


@dataclass(frozen=True, slots=True)
class LogRange:
    """The log for a comparison: its first byte, its end, and where a broker that starts dispatches from.

    A broker adds the entries of messages at or behind `broker_start`.
    """

    start: int
    stop: int
    broker_start: int


def compare(
    root: str,
    queue: BuiltQueue,
    log: LogRange,
    files: FileWrites | None = None,
    *,
    in_place: bool = False,
) -> QueueChange | None:
    """How the store's queue differs from the built one; None without a difference.

    With `files` the store's entries are corrected in place, unless the action is "create" or "replace". A
    second call then finds no difference. With `in_place` a queue without files is written, too.
    """
    directory = queue_directory(root, queue.topic, queue.queue_id, "batch" if queue.is_batch else "simple")
    found = [file for file in list_store_files(directory) if file.size]
    if not found and not in_place:
        return _whole_change(queue, "create", "no file", log)
    size = queue.file_size
    if any(file.size != size or file.start % size for file in found):
        return _whole_change(
            queue, "replace", f"expected files of {size} bytes, found other sizes or names", log
        )
    disk = _Disk(root, queue, directory, {file.start: file for file in found}, files)
    return _compare_batch(queue, disk, log) if queue.is_batch else _compare_simple(queue, disk, log)


def _whole_change(queue: BuiltQueue, action: str, reason: str, log: LogRange) -> QueueChange:
    by_broker = 0
    for low in range(queue.first, queue.stop, _CHUNK):
        units = queue.units(low, min(low + _CHUNK, queue.stop))
        by_broker += int(np.count_nonzero(units["physical_offset"] >= log.broker_start))
    return QueueChange(
        (queue.topic, queue.queue_id), queue.is_batch, action, queue.first, queue.entries, by_broker, reason
    )


@dataclass(slots=True)
class _Disk:
    """The files of one queue, all of one size. Missing files read as zeros."""

    root: str
    queue: BuiltQueue
    directory: str
    found: dict[int, StoreFile]
    files: FileWrites | None

    @property
    def first(self) -> int:
        start = self.queue.first * self.queue.layout.itemsize
        return min(self.found, default=start) // self.queue.layout.itemsize

    @property
    def stop(self) -> int:
        start = max(self.found, default=-self.queue.file_size)
        return (start + self.queue.file_size) // self.queue.layout.itemsize

    def read(self, start: int, stop: int) -> NDArray[np.void]:
        """The units [start, stop) of one file."""
        layout = self.queue.layout
        file = self.found.get(start * layout.itemsize // self.queue.file_size * self.queue.file_size)
        if file is None:
            return np.zeros(stop - start, layout)
        with FileView(file.path) as view:
            data = view.read(start * layout.itemsize - file.start, (stop - start) * layout.itemsize)
        return np.frombuffer(data.ljust((stop - start) * layout.itemsize, b"\0"), layout)

    def write(self, start: int, units: NDArray[np.void]) -> None:
        """Writes units of one file."""
        if self.files is None or not len(units):
            return
        position = start * self.queue.layout.itemsize
        within = position % self.queue.file_size
        folder = FOLDERS["batch" if self.queue.is_batch else "simple"]
        self.files.make_directories(self.root, folder, self.queue.topic, str(self.queue.queue_id))
        path = f"{self.directory}/{offset_file_name(position - within)}"
        file, made = self.files.open_full(path, self.queue.file_size)
        with file:
            file.write(within, np.ascontiguousarray(units))
            self.files.sync(file)
        if made:
            self.files.sync_directory(self.directory)

    def chunks(self, start: int, stop: int) -> list[tuple[int, int]]:
        """[start, stop) in parts that lie in one file each."""
        per_file = self.queue.file_size // self.queue.layout.itemsize
        found = []
        while start < stop:
            end = min(stop, start + _CHUNK, (start // per_file + 1) * per_file)
            found.append((start, end))
            start = end
        return found


# ---- simple queues -----------------------------------------------------------------------------------------


def _compare_simple(queue: BuiltQueue, disk: _Disk, log: LogRange) -> QueueChange | None:
    per_file = queue.file_size // CQ_UNIT.itemsize
    low = min(disk.first, queue.first - queue.first % per_file)
    if queue.first - low > LOST_MAX:
        low = queue.first - queue.first % per_file
    first, entries, by_broker, blanks, last_valid = -1, 0, 0, 0, -1
    for start, stop in disk.chunks(low, queue.stop):
        wanted, units = _wanted(queue, start, stop), disk.read(start, stop)
        bad = ~_is_right(wanted, units, log.stop, is_schedule=queue.topic == SCHEDULE_TOPIC)
        kept = np.flatnonzero(~bad)
        last_valid = start + int(kept[-1]) if len(kept) else last_valid
        numbers = np.flatnonzero(bad)
        if not len(numbers):
            continue
        first = start + int(numbers[0]) if first < 0 else first
        is_blank = pre_blank_mask(wanted[numbers])
        blanks += int(is_blank.sum())
        entries += len(numbers) - int(is_blank.sum())
        physical = wanted["physical_offset"][numbers[~is_blank]]
        by_broker += int(np.count_nonzero(physical >= log.broker_start))
        for cut in np.split(numbers, np.flatnonzero(np.diff(numbers) != 1) + 1):
            disk.write(start + int(cut[0]), wanted[int(cut[0]) : int(cut[-1]) + 1])
    if first < 0:
        return None
    is_tail = last_valid < first
    reason = "entries are missing at its end" if is_tail else "entries differ from the messages in the log"
    if blanks:
        reason += f"; {blanks} units before or between the messages are not written"
    action = "complete" if is_tail else "correct"
    return QueueChange((queue.topic, queue.queue_id), False, action, first, entries, by_broker, reason)


def _wanted(queue: BuiltQueue, start: int, stop: int) -> NDArray[np.void]:
    """The built units [start, stop), pre-blank before the queue's first file."""
    begin = queue.first - queue.first % (queue.file_size // CQ_UNIT.itemsize)
    blank = np.frombuffer(pre_blank_bytes(max(min(begin, stop) - start, 0)), CQ_UNIT)
    if stop <= begin:
        return blank
    return np.concatenate([blank, queue.units(max(start, begin), stop)], dtype=CQ_UNIT)


def _is_right(
    wanted: NDArray[np.void], units: NDArray[np.void], stop: int, *, is_schedule: bool
) -> NDArray[np.bool_]:
    """Which units need no change. `is_schedule`: the tags code is a time that settings decide."""
    right: NDArray[np.bool_] = (units["physical_offset"] == wanted["physical_offset"]) & (
        units["size"] == wanted["size"]
    )
    if not is_schedule:
        right &= (units["tags_code"] == wanted["tags_code"]) | is_ext_address(units["tags_code"])
    only_here = pre_blank_mask(wanted) & valid_units(units) & (units["physical_offset"] < stop)
    only_here &= ~(lost_mask(wanted) & pre_blank_mask(units))  # of an older release, or of another message
    return right | only_here


# ---- batch queues ------------------------------------------------------------------------------------------


def _compare_batch(queue: BuiltQueue, disk: _Disk, log: LogRange) -> QueueChange | None:
    """A batch queue that is a beginning of the built one is completed; another one is replaced."""
    expired, number, is_same = 0, 0, True
    for start, stop in disk.chunks(disk.first, disk.stop):
        units = disk.read(start, stop)
        valid = valid_batch_units(units) & (units["physical_offset"] < log.stop)
        end = len(units) if valid.all() else int(valid.argmin())
        old = 0 if number else int(np.count_nonzero(units["physical_offset"][:end] < log.start))
        expired += old
        mine = units[old:end]
        wanted = queue.units(number, min(number + len(mine), queue.stop)) if number < queue.stop else mine[:0]
        is_same = len(wanted) == len(mine) and all(
            np.array_equal(mine[name], wanted[name]) for name in _BATCH_FIELDS
        )
        number += len(mine)
        if not is_same or end < len(units):
            break
    if not is_same:
        return _whole_change(queue, "replace", "entries differ from the messages in the log", log)
    if number == queue.stop:
        return None
    by_broker, base = 0, disk.first + expired
    for start, stop in disk.chunks(base + number, base + queue.stop):
        units = queue.units(start - base, stop - base)
        by_broker += int(np.count_nonzero(units["physical_offset"] >= log.broker_start))
        disk.write(start, units)
    reason = "entries are missing at its end"
    return QueueChange(
        (queue.topic, queue.queue_id), True, "complete", number, queue.stop - number, by_broker, reason
    )


def usual_file_size(root: str, kind: QueueKind, given: int | None) -> int | None:
    """The bytes of the store's queue files: `given` if a file has them, else the most frequent length.

    Damaged files have other lengths. Without a file with a length of whole units, `given`.
    """
    unit = (BATCH_CQ_UNIT if kind == "batch" else CQ_UNIT).itemsize
    sizes: Counter[int] = Counter()
    for _, _, directory, found in list_queues(root, lambda _: True, lambda _: None):
        if found == kind:
            with suppress(StoreError):
                sizes.update(file.size for file in list_store_files(directory))
        if sizes.total() > _FILES_LOOKED_AT:
            break
    whole = {size: count for size, count in sizes.items() if size and not size % unit}
    if not whole or given in whole:
        return given
    return max(whole, key=lambda size: (whole[size], size))


def batch_file_size(root: str, given: int) -> int:
    """`usual_file_size` of batch queues; a given size in whole units."""
    size = usual_file_size(root, "batch", given // BATCH_CQ_UNIT.itemsize * BATCH_CQ_UNIT.itemsize)
    assert size is not None
    return size
