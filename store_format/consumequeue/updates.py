"""The units that a broker's consume queues get for a batch of messages, their places, and how to write them.

The batch is in the order of the commitlog. `cq_updates` touches no file: its result is one run of units for
each queue and file (ConsumeQueue.putMessagePositionInfo, spec 3.3). `QueueFiles` writes them. Files have
their full size from the start; directories and files are created when they are first needed, and synced at
the end.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from store_format import kernels
from store_format.consumequeue.files import FOLDERS
from store_format.consumequeue.units import FiledQueue
from store_format.errors import CorruptStoreError, OptionError
from store_format.files.paths import StoreFile
from store_format.files.write import FileWrites, WritableFile
from store_format.layouts import CQ_LOST_TAGS_CODE, CQ_PRE_BLANK_SIZE, CQ_UNIT, OFFSET_MAX
from store_format.names import QueueKey, is_system_topic
from store_format.opened.store import Opened

_UNIT_SIZE = CQ_UNIT.itemsize

_OPEN_MAX = 256


@dataclass(frozen=True, slots=True)
class QueueEnd:
    """Where a queue's next unit goes. Without files `file_size` is mappedFileSizeConsumeQueue."""

    topic: str
    queue_id: int
    file_size: int
    max_offset: int = 0
    file_stop: int | None = None  # the byte of the queue behind its last file; None without files

    def after(self, update: CqUpdate) -> QueueEnd:
        """The queue's end when this update is written."""
        return replace(
            self,
            max_offset=update.max_offset,
            file_stop=max(self.file_stop or 0, update.file_start + self.file_size),
        )


@dataclass(frozen=True, eq=False, slots=True)
class CqBatch:
    """Messages in the order of the commitlog, without those of type prepared and rollback."""

    queue_index: NDArray[np.int64]  # of each message: the number of its queue in the list of ends
    queue_offsets: NDArray[np.int64]
    physical_offsets: NDArray[np.int64]
    sizes: NDArray[np.int32]
    tags_codes: NDArray[np.int64]


@dataclass(frozen=True, eq=False, slots=True)
class CqUpdate:
    """CQ_UNIT records for one file of one queue, from byte `position` on of the file named `file_start`.

    A new file must be created in full size, with `pre_blank` units before `position` (see `pre_blank_bytes`).
    """

    topic: str
    queue_id: int
    file_start: int
    position: int
    units: NDArray[np.void]
    is_new_file: bool
    pre_blank: int = 0

    @property
    def max_offset(self) -> int:
        """The queue's end with these units."""
        return (self.file_start + self.position) // _UNIT_SIZE + len(self.units)


def lost_units(topic: str, count: int, following: NDArray[np.void]) -> NDArray[np.void]:
    """`count` units for lost messages, in front of the unit `following` (an array of one).

    A zero unit would end the queue. In topics that clients read the units point to the next message: a broker
    that meets a pre-blank unit skips messages, and a message that it returns twice does no harm. The broker's
    own topics get pre-blank units: its services take messages by their place.
    """
    if is_system_topic(topic) and not topic.startswith("%"):
        return np.frombuffer(bytearray(pre_blank_bytes(count)), CQ_UNIT)
    units = np.repeat(following.astype(CQ_UNIT), count)
    units["tags_code"] = CQ_LOST_TAGS_CODE
    return units


def pre_blank_bytes(count: int) -> bytes:
    """`count` units that fill the places before a queue's first message (ConsumeQueue.fillPreBlank)."""
    blank = np.zeros(1, CQ_UNIT)
    blank["size"] = CQ_PRE_BLANK_SIZE
    return blank.tobytes() * count


def cq_updates(ends: Sequence[QueueEnd], batch: CqBatch) -> list[CqUpdate]:
    """The updates of all queues that have messages, in the order of `ends`, and by file in a queue.

    A queue without files begins at the queue offset of its first message: the file is filled with pre-blank
    units before it. The offsets of a queue must continue where it ends, without gaps, because a broker would
    append other messages at wrong places. Raises CorruptStoreError with the queue and the byte for an offset
    that does not, and OptionError for a file size that is no multiple of a unit.
    """
    units, runs = _group(batch, len(ends)) if kernels.ready(len(batch.sizes)) else _sort(batch)
    for run in runs:
        _check_run(ends[run.queue], run)
    if units is None:
        raise _first_misplaced(ends, batch)
    return [
        update
        for run in runs
        for update in _cut_at_files(ends[run.queue], run.offset, units[run.start : run.stop])
    ]


class _QueueRun(NamedTuple):
    """The units [start, stop) of a queue, from the queue offset `offset` on."""

    queue: int
    offset: int
    start: int
    stop: int


def _group(batch: CqBatch, queue_count: int) -> tuple[NDArray[np.void] | None, list[_QueueRun]]:
    """(all units by queue and place, their runs); None if the offsets of a queue have a gap."""
    begins, stops, firsts = np.zeros((3, queue_count), np.int64)
    units = np.empty(len(batch.sizes), CQ_UNIT)
    ascends = kernels.queue_entries.group(
        np.ascontiguousarray(batch.queue_index),
        np.ascontiguousarray(batch.queue_offsets),
        np.ascontiguousarray(batch.physical_offsets),
        np.ascontiguousarray(batch.sizes),
        np.ascontiguousarray(batch.tags_codes),
        begins,
        stops,
        firsts,
        units.view(np.uint8),
    )
    queues = np.flatnonzero(stops > begins)
    columns = (queues, firsts[queues], begins[queues], stops[queues])
    return units if ascends else None, list(map(_QueueRun, *(column.tolist() for column in columns)))


def _sort(batch: CqBatch) -> tuple[NDArray[np.void] | None, list[_QueueRun]]:
    """`_group` without the kernel."""
    order = np.argsort(batch.queue_index, kind="stable")
    units = np.empty(len(order), CQ_UNIT)
    units["physical_offset"] = batch.physical_offsets[order]
    units["size"] = batch.sizes[order]
    units["tags_code"] = batch.tags_codes[order]
    queues, offsets = batch.queue_index[order], batch.queue_offsets[order]
    firsts = np.flatnonzero(np.diff(queues, prepend=-1)).tolist()
    runs = [
        _QueueRun(int(queues[start]), int(offsets[start]), start, stop)
        for start, stop in pairwise([*firsts, len(order)])
    ]
    ascends = all(np.array_equal(offsets[a:b], np.arange(first, first + b - a)) for _, first, a, b in runs)
    return units if ascends else None, runs


def _check_run(end: QueueEnd, run: _QueueRun) -> None:
    """Raises if the units do not continue their queue, or do not fit into its files."""
    if end.file_stop is not None and run.offset != end.max_offset:
        raise _misplaced(end, end.max_offset, run.offset)
    if run.offset < 0 or (run.offset + run.stop - run.start) * _UNIT_SIZE > OFFSET_MAX - end.file_size:
        raise CorruptStoreError(_queue_path(end), 0, "queue offsets in [0, 2^63 / 20)", str(run.offset))
    if end.file_size <= 0 or end.file_size % _UNIT_SIZE:
        raise OptionError(
            f"{_queue_path(end)}: files of {end.file_size} bytes; mappedFileSizeConsumeQueue must be a "
            f"multiple of {_UNIT_SIZE}"
        )


def _first_misplaced(ends: Sequence[QueueEnd], batch: CqBatch) -> CorruptStoreError:
    """The error for the first message, by queue, whose offset is not the next one."""
    order = np.argsort(batch.queue_index, kind="stable")
    queues, offsets = batch.queue_index[order], batch.queue_offsets[order]
    place = int(np.flatnonzero((queues[1:] == queues[:-1]) & (offsets[1:] != offsets[:-1] + 1))[0]) + 1
    return _misplaced(ends[int(queues[place])], int(offsets[place - 1]) + 1, int(offsets[place]))


def _queue_path(end: QueueEnd) -> str:
    return f"consumequeue/{end.topic}/{end.queue_id}"


def _misplaced(end: QueueEnd, expected: int, found: int) -> CorruptStoreError:
    return CorruptStoreError(
        _queue_path(end),
        expected * _UNIT_SIZE,
        f"a message with queue offset {expected}, the next one",
        f"offset {found}",
    )


def _cut_at_files(end: QueueEnd, offset: int, units: NDArray[np.void]) -> Iterator[CqUpdate]:
    """The updates for units from queue offset `offset` on, cut where files end."""
    pre_blank = end.file_stop is None
    done = 0
    while done < len(units):
        start = (offset + done) * _UNIT_SIZE
        position = start % end.file_size
        count = min(len(units) - done, (end.file_size - position) // _UNIT_SIZE)
        yield CqUpdate(
            end.topic,
            end.queue_id,
            start - position,
            position,
            units[done : done + count],
            is_new_file=end.file_stop is None or start >= end.file_stop,
            pre_blank=position // _UNIT_SIZE if pre_blank else 0,
        )
        pre_blank = False
        done += count


# ---- files -------------------------------------------------------------------------------------------------


class QueueFiles:
    """Writes batches to `queues`, each from its queue offset in `bases` on."""

    def __init__(
        self,
        opened: Opened,
        queues: Sequence[QueueKey],
        bases: Sequence[int],
        file_size: int,
        files: FileWrites,
    ) -> None:
        self._opened = opened
        self._files = files
        self._ends = [
            _end(opened, topic, queue_id, base, file_size)
            for (topic, queue_id), base in zip(queues, bases, strict=True)
        ]
        self._numbers = {queue: number for number, queue in enumerate(queues)}
        self._open: OrderedDict[str, WritableFile] = OrderedDict()
        self._dirty: dict[str, None] = {}

    def write(self, batch: CqBatch) -> None:
        """Writes the units of a batch, whose `queue_index` are places in `queues`."""
        for update in cq_updates(self._ends, batch):
            number = self._numbers[update.topic, update.queue_id]
            end = self._ends[number]
            file = self._file(update, end.file_size)
            if update.pre_blank:
                file.write(0, pre_blank_bytes(update.pre_blank))
            file.write(update.position, update.units)
            self._ends[number] = end.after(update)

    def _file(self, update: CqUpdate, size: int) -> WritableFile:
        directory = FiledQueue.of(self._opened, update.topic, update.queue_id).directory
        path = f"{directory}/{StoreFile.name_at(update.file_start)}"
        file = self._open.get(path)
        if file is None:
            if update.is_new_file:
                self._files.make_directories(
                    self._opened.path, FOLDERS["simple"], update.topic, str(update.queue_id)
                )
            file, made = self._files.open_full(path, size)
            if made:
                self._files.sync_directory(directory)
            self._open[path] = file
            if len(self._open) > _OPEN_MAX:
                self._open.popitem(last=False)[1].close()
        else:
            self._open.move_to_end(path)
        self._dirty[path] = None
        return file

    def close(self) -> None:
        """Syncs every file that was written."""
        try:
            for path in self._dirty if self._files.is_sync else ():
                file = self._open.get(path)
                if file is not None:
                    self._files.sync(file)
                else:
                    with self._files.open(path) as reopened:
                        self._files.sync(reopened)
        finally:
            for file in self._open.values():
                file.close()
            self._open.clear()


def _end(opened: Opened, topic: str, queue_id: int, base: int, file_size: int) -> QueueEnd:
    files = opened.files.store_files(FiledQueue.of(opened, topic, queue_id).directory)
    if not files:
        return QueueEnd(topic, queue_id, file_size, base, None)
    return QueueEnd(topic, queue_id, files[0].size or file_size, base, files[-1].stop)
