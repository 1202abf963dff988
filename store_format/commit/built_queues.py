"""Consume queues built from the messages of the commitlog, in a directory beside the store's queues.

A message of a simple queue goes to the place of its queue offset, so that of two messages with one queue
offset the later counts. A queue whose offsets begin at 0 again, because its topic was deleted and created
again, loses what it had (spec 3.3). Offsets without a message get `lost_units`. A batch queue has one unit
after the other (spec 3.5).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from store_format.consumequeue.dispatch import pack_entries
from store_format.consumequeue.files import FileRun, UnitFiles
from store_format.consumequeue.listing import FOLDERS, can_be_queue, queue_directory
from store_format.consumequeue.updates import lost_units, pre_blank_bytes
from store_format.files.read import list_store_files, offset_file_name
from store_format.files.write import FileWrites, WritableFile
from store_format.layouts import BATCH_CQ_UNIT, CQ_UNIT, OFFSET_MAX
from store_format.names import QueueKey
from store_format.survey.entries import LogPart
from store_format.survey.log_queue import LogQueue

LOST_MAX = 1 << 22  # queue offsets in a row without a message: more are damage
_LOST_FILES_MAX = 256  # the same in files of the queue
_OPEN_MAX = 256
_FILL_MAX = 1 << 16  # units

_Ints = NDArray[np.int64]


@dataclass(slots=True)
class BuiltQueue:
    """A queue as the log shows it. Units `first` to `stop` exist; in a simple queue these are queue offsets.

    `problem` says why the queue could not be built. `lost` counts the offsets without a message.
    """

    topic: str
    queue_id: int
    directory: str
    is_batch: bool
    file_size: int
    seen: LogQueue
    first: int = 0
    stop: int = 0
    max_offset: int = 0
    entries: int = 0
    lost: int = 0
    problem: str = ""

    @property
    def layout(self) -> np.dtype[np.void]:
        return BATCH_CQ_UNIT if self.is_batch else CQ_UNIT

    def units(self, start: int, stop: int) -> NDArray[np.void]:
        """The units [start, stop), which must exist."""
        size = self.layout.itemsize
        first, last = (
            number * size // self.file_size * self.file_size for number in (self.first, self.stop - 1)
        )
        run = FileRun(self.file_size, first, last)
        with UnitFiles(self.directory, self.layout, run, (self.topic, self.queue_id)) as files:
            return files.read(start, stop)


@dataclass(slots=True)
class QueueBuilder:
    """Builds the queues of the chosen topics below `root`/consumequeue and `root`/batchconsumequeue.

    `file_size` gives the bytes of a queue's files, by queue and whether it is a batch queue.
    """

    root: str
    batch_topics: frozenset[str]
    choose: Callable[[str], bool]
    file_size: Callable[[QueueKey, bool], int]
    files: FileWrites
    queues: dict[QueueKey, BuiltQueue] = field(default_factory=dict)
    misplaced: int = 0  # messages whose queue or queue offset is impossible
    _open: OrderedDict[str, WritableFile] = field(default_factory=OrderedDict)

    def add(self, part: LogPart) -> None:
        """Adds the entries of the next part of the log."""
        order = np.argsort(part.rows["queue"], kind="stable")
        rows = part.rows[order]
        edges = np.flatnonzero(np.diff(rows["queue"])) + 1
        for mine in np.split(rows, edges) if len(rows) else []:
            key = part.queues[int(mine["queue"][0])]
            if not can_be_queue(*key):
                self.misplaced += len(mine)
            elif self.choose(key[0]):
                self._add(self._queue(key), mine)

    def _queue(self, key: QueueKey) -> BuiltQueue:
        found = self.queues.get(key)
        if found is None:
            is_batch = key[0] in self.batch_topics
            directory = queue_directory(self.root, *key, "batch" if is_batch else "simple")
            found = BuiltQueue(
                *key, directory, is_batch, self.file_size(key, is_batch), LogQueue(*key, is_batch)
            )
            self.queues[key] = found
        return found

    def _add(self, queue: BuiltQueue, rows: NDArray[np.void]) -> None:
        rows = rows[np.argsort(rows["physical"], kind="stable")]
        offsets, stops = rows["offset"], rows["offset"] + rows["batch_size"]
        queue.seen.add(rows["physical"], offsets, stops)
        again = np.flatnonzero((offsets[1:] == 0) & (stops[:-1] > 0)) + 1
        for low, high in zip([0, *again.tolist()], [*again.tolist(), len(rows)], strict=True):
            if int(offsets[low]) == 0 and queue.max_offset:
                self._begin_again(queue)
            if not queue.problem:
                (self._append if queue.is_batch else self._place)(queue, rows[low:high])

    def _begin_again(self, queue: BuiltQueue) -> None:
        for file in list_store_files(queue.directory):
            opened = self._open.pop(file.path, None)
            if opened is not None:
                opened.close()
            self.files.remove(file.path)
        queue.first = queue.stop = queue.max_offset = queue.entries = queue.lost = 0
        queue.problem = ""

    def _append(self, queue: BuiltQueue, rows: NDArray[np.void]) -> None:
        ends = np.maximum.accumulate(np.append(queue.max_offset, rows["offset"] + rows["batch_size"]))
        rows = rows[rows["offset"] >= ends[:-1]]  # Units are found by bisection: offsets ascend.
        if not len(rows):
            return
        units = pack_entries(rows, batch=True)
        self._write(queue, queue.stop, units)
        queue.stop += len(units)
        queue.entries += len(units)
        queue.max_offset = int(rows["offset"][-1] + rows["batch_size"][-1])

    def _place(self, queue: BuiltQueue, rows: NDArray[np.void]) -> None:
        """Writes runs of consecutive offsets, each at its place."""
        cuts = np.flatnonzero(np.diff(rows["offset"]) != 1) + 1
        for part in np.split(rows, cuts):
            first, stop = int(part["offset"][0]), int(part["offset"][-1]) + 1
            if stop * CQ_UNIT.itemsize + queue.file_size > OFFSET_MAX:
                self.misplaced += len(part)
                continue
            if not queue.stop:
                self._begin(queue, first)
            jump = max(first - queue.stop, queue.first - stop)
            jump_max = min(LOST_MAX, _LOST_FILES_MAX * (queue.file_size // CQ_UNIT.itemsize))
            if jump > jump_max:
                queue.problem = (
                    f"expected consecutive queue offsets (at most {jump_max} missing), found offset {first} "
                    f"at physical offset {int(part['physical'][0])} while the queue has {queue.first} to "
                    f"{queue.stop}"
                )
                return
            if first > queue.stop:
                self._fill_lost(queue, queue.stop, first, pack_entries(part[:1], batch=False))
                queue.lost += first - queue.stop
            elif stop < queue.first:
                self._blank(queue, stop, queue.first)
                queue.lost += queue.first - stop
                self._begin(queue, first)
            self._write(queue, first, pack_entries(part, batch=False))
            queue.first, queue.stop = min(first, queue.first), max(stop, queue.stop)
            queue.max_offset = queue.stop
            queue.entries += len(part)

    def _begin(self, queue: BuiltQueue, first: int) -> None:
        """The units before the first one of its file are pre-blank, as by ConsumeQueue.fillPreBlank."""
        queue.first = first
        self._blank(queue, first - first % (queue.file_size // CQ_UNIT.itemsize), first)
        queue.stop = max(queue.stop, first)

    def _fill_lost(self, queue: BuiltQueue, start: int, stop: int, following: NDArray[np.void]) -> None:
        for low in range(start, stop, _FILL_MAX):
            self._write(queue, low, lost_units(queue.topic, min(_FILL_MAX, stop - low), following))

    def _blank(self, queue: BuiltQueue, start: int, stop: int) -> None:
        for low in range(start, stop, _FILL_MAX):
            units = pre_blank_bytes(min(_FILL_MAX, stop - low))
            self._write(queue, low, np.frombuffer(units, CQ_UNIT))

    def _write(self, queue: BuiltQueue, number: int, units: NDArray[np.void]) -> None:
        position, data = number * queue.layout.itemsize, memoryview(units.tobytes())
        while len(data):
            within = position % queue.file_size
            length = min(len(data), queue.file_size - within)
            self._file(queue, position - within).write(within, data[:length])
            position, data = position + length, data[length:]

    def _file(self, queue: BuiltQueue, start: int) -> WritableFile:
        path = f"{queue.directory}/{offset_file_name(start)}"
        file = self._open.get(path)
        if file is None:
            folder = FOLDERS["batch" if queue.is_batch else "simple"]
            self.files.make_directories(self.root, folder, queue.topic, str(queue.queue_id))
            file, _ = self.files.open_full(path, queue.file_size)
            self._open[path] = file
            if len(self._open) > _OPEN_MAX:
                self._open.popitem(last=False)[1].close()
        else:
            self._open.move_to_end(path)
        return file

    def close(self) -> None:
        """Closes the files. They are not synced: the caller syncs what it keeps."""
        for file in self._open.values():
            file.close()
        self._open.clear()
