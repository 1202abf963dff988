"""The files of consume queues: which queues a store has, and where a unit is in the files of a queue.

Both kinds of consume queue are units of one length in files of one length; a unit is found by its number.
Files have their full length from the start, so the end of a queue is not stored: it is the first invalid
unit. The last files are bisected for it with reads of one block, because planning may have to look at 100,000
queues.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from types import TracebackType
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from store_format.errors import (
    CorruptStoreError,
    OffsetOutOfRangeError,
    TruncatedRecordError,
)
from store_format.files.paths import StoreFile
from store_format.files.read import files_at
from store_format.files.view import FileView
from store_format.layouts import BATCH_CQ_UNIT, CQ_UNIT, OFFSET_MAX
from store_format.names import QueueKey
from store_format.opened.store import Opened

_BLOCK_SIZE = 4096
_ZEROS = bytes(2 * _BLOCK_SIZE)
_READ_SIZE = 4 << 20  # one read of a range; larger ones gain nothing
_CONFIRMING = 8  # invalid units that confirm the end of a queue
_RECOVERED_FILES = 3  # ConsumeQueue.recover reads the last three files, and takes the earlier ones as full
QUEUE_OFFSET_MAX = 2**63 - 1 - 2**15  # so that the end of a batch is a queue offset, too
FILE_SIZE_MAX = 2**31 - 1  # MappedFile: positions are Java ints

Validity = Callable[[NDArray[np.void]], NDArray[np.bool_]]
QueueKind = Literal["simple", "batch", "database"]

FOLDERS: dict[QueueKind, str] = {"simple": "consumequeue", "batch": "batchconsumequeue"}
LAYOUTS: dict[QueueKind, np.dtype[np.void]] = {  # of a unit
    "simple": CQ_UNIT,
    "batch": BATCH_CQ_UNIT,
    "database": CQ_UNIT,
}
_UNIT_SIZES = {kind: layout.itemsize for kind, layout in LAYOUTS.items()}
_ROCKSDB_FOLDERS = ("consumequeue", "consumequeue_rocksdb")
_NAME_BYTES_MAX = 255  # NAME_MAX of Linux
_QUEUE_ID, _QUEUE_ID_MAX = re.compile(r"0|[1-9][0-9]{0,9}"), 2**31 - 1


# ---- which queues a store has ------------------------------------------------------------------------------


def ext_directory(opened: Opened, topic: str, queue_id: int) -> str:
    """The directory of a queue's extension (enableConsumeQueueExt)."""
    return f"{opened.path}/consumequeue_ext/{topic}/{queue_id}"


def can_be_queue(topic: str, queue_id: int) -> bool:
    """Whether a queue of that name has a directory of its own.

    Names come from messages, too: a topic such as `..` would lead out of the store, and the name of a light
    queue (INNER_MULTI_DISPATCH) can be longer than a file system allows.

    >>> can_be_queue("%LMQ%" + "x" * 250, 0), can_be_queue("%LMQ%" + "x" * 251, 0)
    (True, False)
    """
    if queue_id < 0 or topic in ("", ".", "..") or "/" in topic or "\0" in topic:
        return False
    return len(topic.encode(errors="surrogatepass")) <= _NAME_BYTES_MAX


@lru_cache(maxsize=1024)
def is_queue_id(name: str) -> bool:
    """Whether a directory's name is a queue id as a broker writes it: no leading zeros, at most 2^31 - 1."""
    return _QUEUE_ID.fullmatch(name) is not None and int(name) <= _QUEUE_ID_MAX


def has_rocksdb_queues(opened: Opened) -> bool:
    """Whether RocksDB keeps the consume queues, so that missing queue files say nothing."""
    return queue_database(opened) is not None


def queue_database(opened: Opened) -> str | None:
    """The directory of the RocksDB database with the consume queues; None without one."""
    for folder in _ROCKSDB_FOLDERS:
        if opened.files.exists(f"{opened.path}/{folder}/CURRENT"):
            return f"{opened.path}/{folder}"
    return None


# ---- the files of a queue ----------------------------------------------------------------------------------


class FileRun(NamedTuple):
    """Files of one length without a gap."""

    file_size: int
    first_file: int
    last_file: int


DISORDER = -2


class Edges(NamedTuple):
    """Where the units of a queue begin and end; the fields are those of QueueBounds."""

    unit_start: int
    unit_stop: int
    min_offset: int
    max_offset: int
    first_physical_offset: int = -1
    last_physical_offset: int = -1
    last_size: int = 0
    blank_stop: int = 0
    front: int = -1


class QueueBounds(NamedTuple):
    """Where one queue begins and ends on disk, in plain values that can travel to a task. There are tens of
    thousands of them, and tuples are made and pickled fastest.

    `min_offset` and `max_offset` are queue offsets, max exclusive. Units `unit_start` (inclusive) to
    `unit_stop` (exclusive) hold them. Unit n is at byte n * unit size of the queue; in a simple queue n is
    the queue offset.
    """

    topic: str
    queue_id: int
    directory: str
    kind: QueueKind
    file_size: int  # bytes of each file
    first_file: int  # queue byte at which the first file begins, expired files included
    last_file: int  # the same for the last file that holds a unit
    commit_log_min: int  # the start of the commitlog for which min_offset was computed
    unit_start: int
    unit_stop: int
    min_offset: int
    max_offset: int
    first_physical_offset: int  # of the first message at or behind min_offset; -1 when there is none
    last_physical_offset: int  # of the last message; -1 when there is none
    last_size: int  # bytes of the last message, as its unit says
    blank_stop: int = 0  # the number behind the pre-blank units with which the files begin; 0 without them
    # the physical offset in the expired unit in front of the first one; -1 without one, DISORDER if the units
    # beside the first one are not in the order of the log
    front: int = -1

    @property
    def file_starts(self) -> range:
        """The byte offsets that name the files; they have no gaps."""
        return range(self.first_file, self.last_file + 1, self.file_size)

    @property
    def unit_size(self) -> int:
        """The bytes of a unit."""
        return _UNIT_SIZES[self.kind]

    @property
    def has_entries(self) -> bool:
        """Whether the files have an entry, also if the messages of all entries are expired."""
        return self.unit_stop * self.unit_size > self.first_file

    @property
    def first_entry(self) -> int:
        """The queue byte of the first entry that is not pre-blank, expired ones included."""
        return max(self.first_file, self.blank_stop * self.unit_size)

    @property
    def first_offset(self) -> int:
        """`min_offset` without pre-blank entries, which a broker counts."""
        return max(self.min_offset, self.blank_stop)

    @property
    def may_lack_first_entries(self) -> bool:
        """Whether the files do not begin with offset 0, and their first message is not the first of the log.

        Retention leaves a file that begins with a message before the log, unless it ended at a file's end. A
        broker that finds no files begins the queue again with the first message that it dispatches, behind
        pre-blank entries.
        """
        if not self.first_file and not self.blank_stop:
            return False  # most queues
        is_first = self.unit_start * self.unit_size <= self.first_entry > 0
        return is_first and self.first_physical_offset > self.commit_log_min

    def open(self) -> UnitFiles:
        """The queue's units, read from the files that planning saw."""
        return UnitFiles(
            self.directory,
            LAYOUTS[self.kind],
            FileRun(self.file_size, self.first_file, self.last_file),
            (self.topic, self.queue_id),
        )

    def check_range(self, start: int, stop: int, first: int) -> None:
        """Raises OffsetOutOfRangeError unless `start` and `stop` lie between `first` and `max_offset`."""
        if start < first or stop > self.max_offset:
            raise OffsetOutOfRangeError(
                f"{self.topic}-{self.queue_id}: offsets {start} to {stop} (exclusive) are not all in "
                f"{self.directory}, which held {first} to {self.max_offset} at planning"
            )


def place_in_files(directory: str, file_size: int, position: int) -> tuple[str, int]:
    """(file, byte in it) of a byte of a queue."""
    within = position % file_size
    return f"{directory}/{StoreFile.name_at(position - within)}", within


def file_run(directory: str, unit_size: int, *, clean: bool = False) -> FileRun | None:
    """Lists and checks the files of a queue; None without files.

    An empty last file does not count: the broker was about to extend or delete it (MappedFileQueue.doLoad).
    In a store that was shut down cleanly (`clean`) it was cut, which raises TruncatedRecordError. Raises
    CorruptStoreError for files of different lengths, a length that is no multiple of `unit_size`, a name that
    is no multiple of the length, and a gap between files.
    """
    files = files_at(directory).store_files(directory)
    if files and not files[-1].size:
        if clean:
            raise TruncatedRecordError(files[-1].path, 0, "a file of units", "an empty file")
        files.pop()
    return run_of(files, unit_size) if files else None


def run_of(files: Sequence[StoreFile], unit_size: int) -> FileRun:
    """The listed files of a queue, none of them empty. Raises as `file_run` does."""
    size = files[0].size
    for file in files:
        if file.size != size or not 0 < size <= FILE_SIZE_MAX or size % unit_size:
            _refuse_size(file, files[0], unit_size)
        if file.start % size or file.stop > OFFSET_MAX:
            raise CorruptStoreError(
                file.path, 0, f"a name that is a multiple of the length {size}, below 2^63", str(file.start)
            )
    if files[-1].start != files[0].start + size * (len(files) - 1):
        _refuse_gap(files)
    return FileRun(size, files[0].start, files[-1].start)


def cut_files(
    files: Mapping[QueueKey, tuple[str, int]], others: Iterable[int] = ()
) -> dict[QueueKey, CorruptStoreError]:
    """The queues whose files are shorter than those of other queues: all have mappedFileSizeConsumeQueue.

    A file that was cut at a multiple of a unit looks whole if it is alone. `files` are the first file of each
    queue and its length, `others` the lengths of the files of more queues.
    """
    sizes = Counter([*(size for _, size in files.values()), *others])
    usual = max(sizes, key=lambda size: (sizes[size], size), default=0)
    expected = f"a file of {usual} bytes, as in other queues"
    return {
        key: TruncatedRecordError(path, size, expected, f"{size} bytes")
        for key, (path, size) in files.items()
        if size < usual
    }


def _refuse_size(file: StoreFile, first: StoreFile, unit_size: int) -> None:
    multiple = f"a length that is a multiple of {unit_size} and at most {FILE_SIZE_MAX}"
    expected = multiple if file is first or not first.size else f"{first.size} bytes as in {first.path}"
    raise CorruptStoreError(file.path, file.size, expected, f"{file.size} bytes")


def _refuse_gap(files: Sequence[StoreFile]) -> None:
    for before, after in pairwise(files):
        if before.stop != after.start:
            expected = f"a file that begins at {before.stop}, where {before.path} ends"
            raise CorruptStoreError(after.path, 0, expected, f"a gap: this file begins at {after.start}")


class UnitFiles:
    """The units of one queue by number. Keeps one file open and one block of it; a context manager."""

    __slots__ = (
        "_block",
        "_block_start",
        "_block_stop",
        "_block_units",
        "_data",
        "_layout",
        "_queue",
        "_run",
        "_view",
        "_view_start",
        "directory",
    )

    def __init__(self, directory: str, layout: np.dtype[np.void], run: FileRun, queue: QueueKey) -> None:
        self.directory = directory
        self._layout = layout
        self._run = run
        self._queue = queue
        self._view: FileView | None = None
        self._view_start = -1
        self._data = b""
        self._block: NDArray[np.void] = np.empty(0, layout)  # `_data`, up to a page's end, as units
        self._block_start = self._block_stop = 0  # unit numbers
        self._block_units = _BLOCK_SIZE // layout.itemsize

    def unit(self, number: int) -> tuple[Any, ...]:  # Any: a row of the layout, fields of several types
        """The fields of one unit in the layout's order, as Python numbers."""
        if not self._block_start <= number < self._block_stop:
            self._load(number)
        fields: tuple[Any, ...] = self._block[number - self._block_start].item()
        return fields

    def around(self, start: int, stop: int) -> NDArray[np.void]:
        """`read`, of few units: from the block that was read last, if it has them."""
        if self._block_start <= start and stop <= self._block_stop:
            return self._block[start - self._block_start : stop - self._block_start]
        return self.read(start, stop)

    def read(self, start: int, stop: int) -> NDArray[np.void]:
        """The units `start` to `stop`, read-only, in a few large reads.

        Raises OffsetOutOfRangeError when a file was deleted, and TruncatedRecordError when a file is shorter
        than the others.
        """
        size, file_size = self._layout.itemsize, self._run.file_size
        units, filled = np.empty(max(stop - start, 0), self._layout), 0
        while filled < len(units):
            position = (start + filled) * size
            length = min((len(units) - filled) * size, file_size - position % file_size, _READ_SIZE)
            part = np.frombuffer(self._read(position, length - length % size), self._layout)
            if len(part) == len(units):
                return part
            units[filled : filled + len(part)] = part
            filled += len(part)
        units.flags.writeable = False
        return units

    def find_stop(
        self, is_valid: Validity, *, scan: bool, clean: bool = False, likely: int | None = None
    ) -> int:
        """The number behind the last valid unit, as ConsumeQueue.recover finds it.

        The search begins in the third last file; earlier files count as full, unless that file begins with an
        invalid unit (ConsumeQueue.truncateDirtyLogicFiles). `scan` checks every unit of these files, as the
        broker does. Without `scan` each file is bisected, which is right if no invalid unit has valid ones
        behind it; only a crash or damage leaves such a unit. In a store that was shut down cleanly (`clean`)
        all bytes behind the last unit are zeros. If few reads show other bytes, the stop is behind the last
        valid unit there; raises CorruptStoreError when there is none, and the bytes are in the same block. In
        a store in use, a valid unit beside the stop shows that the queue goes on.
        `likely` is looked at first: it is the stop if the last file ends there.
        """
        stop = likely if self._is_stop(likely, is_valid) else None
        stop = self._find_stop(is_valid, scan) if stop is None else stop
        while not scan and (data := self._behind(stop, is_valid, clean)) is not None:
            behind = self._find_stop(is_valid, scan, data)
            if behind == data:
                self._refuse_rest(stop)
                break
            stop = behind
        return stop

    def _is_stop(self, number: int | None, is_valid: Validity) -> bool:
        size, _, last = self._run
        if number is None or not last < number * self._layout.itemsize < last + size:
            return False
        before = self._stop_in_block(number - 1, is_valid)
        return before == number == self._stop_in_block(number, is_valid)

    def _behind(self, stop: int, is_valid: Validity, clean: bool) -> int | None:
        """`_data_behind` after a clean shutdown; else the next valid unit beside the stop, which is then an
        invalid unit at which the bisection looked.
        """
        if clean:
            return self._data_behind(stop)
        if stop * self._layout.itemsize >= self._run.last_file + self._run.file_size:
            return None
        if not self._block_start <= stop < self._block_stop:
            self._load(stop)
        valid = np.flatnonzero(is_valid(self._block[stop - self._block_start :][:_CONFIRMING]))
        return stop + int(valid[0]) if len(valid) else None

    def _data_behind(self, stop: int) -> int | None:
        """The number of the first unit behind a queue's end that is not zeros, by one look at each file."""
        size, file_size = self._layout.itemsize, self._run.file_size
        position, end = stop * size, self._run.last_file + file_size
        if position < end:
            if not self._block_start <= stop < self._block_stop:
                self._load(stop)
            used = (stop - self._block_start) * size
            if self._data[used:] != _ZEROS[: len(self._data) - used]:
                return self._first_used(stop)
            within = (self._block_start * size) % file_size + len(self._data)
            view = self._view
            if view is not None and used and view.allocated <= within and position + file_size >= end:
                return None  # a hole follows, as in most files
            position += within - position % file_size
        while position < end:
            within = position % file_size
            at = self._open(position - within).data_from(within)
            if at < file_size:
                number = (position - within + at) // size
                self._load(number)
                if self._data != _ZEROS[: len(self._data)]:
                    return self._first_used(number)
            position += file_size - within
        return None

    def _first_used(self, number: int) -> int | None:
        """The first unit of the block from `number` on that is not zeros."""
        whole = len(self._data) - len(self._data) % self._layout.itemsize
        units = np.frombuffer(self._data[:whole], np.uint8).reshape(-1, self._layout.itemsize)
        used = np.flatnonzero(np.count_nonzero(units[number - self._block_start :], axis=1))
        return number + int(used[0]) if len(used) else None

    def _find_stop(self, is_valid: Validity, scan: bool, number: int | None = None) -> int:
        """The stop; with `number`, that of the units of one file from this one on, whose block is loaded."""
        size, first, last = self._run
        per_file = size // self._layout.itemsize
        if number is not None:
            if number >= self._block_stop:
                self._load(number)
            valid = is_valid(self._block)[number - self._block_start :]
            if not valid.all():
                return number + int(valid.argmin())
            low, high = self._block_stop, (number // per_file + 1) * per_file
            return self._stop_in_file(low, high, is_valid, scan) if low < high else high
        start = max(first, last - (_RECOVERED_FILES - 1) * size)
        while (
            start > first
            and self._stop_in_block(start // self._layout.itemsize, is_valid)
            == start // self._layout.itemsize
        ):
            start -= size
        for file_start in range(start, last + 1, size):
            number = file_start // self._layout.itemsize
            stop = self._stop_in_file(number, number + per_file, is_valid, scan)
            if stop < number + per_file:
                return stop
        return (last + size) // self._layout.itemsize

    def _refuse_rest(self, stop: int) -> None:
        size, file_size = self._layout.itemsize, self._run.file_size
        if stop * size >= self._run.last_file + file_size:
            return
        if not self._block_start <= stop < self._block_stop:
            self._load(stop)
        rest = self._data[(stop - self._block_start) * size :]
        if rest.strip(b"\0"):
            path, within = place_in_files(self.directory, file_size, stop * size)
            at = within + len(rest) - len(rest.lstrip(b"\0"))
            expected = f"zeros behind the queue's last entry, unit {stop - 1}"
            raise CorruptStoreError(path, at, expected, "other bytes")

    def _stop_in_file(self, start: int, stop: int, is_valid: Validity, scan: bool) -> int:
        found = self._stop_in_block(start, is_valid)
        low, high = self._block_stop, stop  # every unit of the block before low is valid
        if found < low or low == stop:
            return found
        if scan:
            while low < stop and found == low:
                found = self._stop_in_block(low, is_valid)
                low = self._block_stop
            return found
        probe = stop - 1  # all files but the last are usually full
        while low < high:
            found = self._stop_in_block(probe, is_valid)
            if found == self._block_stop:
                low = found
            elif found > self._block_start:
                return found
            else:
                high = found
            probe = (low + high) // 2
        return low

    def _stop_in_block(self, number: int, is_valid: Validity) -> int:
        """The first invalid unit of the block that holds `number`, or the block's end."""
        if not self._block_start <= number < self._block_stop:
            self._load(number)
        valid = is_valid(self._block)
        first = int(valid.argmin())
        return self._block_stop if valid[first] else self._block_start + first

    def _load(self, number: int) -> None:
        size = self._layout.itemsize
        position = number * size
        within = position % self._run.file_size
        within -= within % (self._block_units * size)
        position += within - position % self._run.file_size
        length = min(self._block_units * size, self._run.file_size - within)
        page_end = -(-(within + length) // _BLOCK_SIZE) * _BLOCK_SIZE
        self._data = self._read(position, min(page_end, self._run.file_size) - within)
        self._block = np.frombuffer(self._data, self._layout, length // size)
        self._block_start = position // size
        self._block_stop = self._block_start + len(self._block)

    def _read(self, position: int, length: int) -> bytes:
        """`length` bytes of one file, from byte `position` of the queue on."""
        within = position % self._run.file_size
        view = self._open(position - within)
        data = view.read(within, length)
        if len(data) < length:
            raise TruncatedRecordError(
                view.path, within + len(data), f"{length} bytes from byte {within} on", "the end of the file"
            )
        return data

    def _open(self, file_start: int) -> FileView:
        if self._view is None or self._view_start != file_start:
            self.close()
            path = f"{self.directory}/{StoreFile.name_at(file_start)}"
            try:
                self._view = files_at(path).kept_view(path)
            except FileNotFoundError as error:
                topic, queue_id = self._queue
                raise OffsetOutOfRangeError(
                    f"{topic}-{queue_id}: {path} with unit {file_start // self._layout.itemsize} and later "
                    "ones no longer exists: it was deleted (retention?) after planning"
                ) from error
            self._view_start = file_start
        return self._view

    def close(self) -> None:
        if self._view is not None:
            self._view.close()
            self._view = None

    def __enter__(self) -> UnitFiles:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
