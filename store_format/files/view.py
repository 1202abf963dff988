"""One open store file. Every reader of messages, queues, indexes and timer files looks at a file through it.

A view reads with `pread`, and maps nothing: an access behind the end of a mapped file that another program
has shortened (`rsync --inplace`, `cp` of a backup over a store) ends the process with SIGBUS.
"""

from __future__ import annotations

import errno
import os
import stat
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from mmap import ACCESS_COPY, mmap
from types import TracebackType
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from store_format import kernels
from store_format.errors import CorruptStoreError, FileReplacedError
from store_format.files.client import StoredObject
from store_format.files.paths import OFFSET_NAME, OPEN_FLAGS, open_descriptor
from store_format.layouts import OFFSET_MAX

# Bytes between two ranges that are read with them: to copy 4 KiB takes 0.9 us, another call 0.9 to 1.1 us.
_GAP_MAX = 4 << 10
_BLOCK_SIZE = 256 << 10  # read with one call, and small enough to stay in a core's own cache
_SPARSE = 2  # ranges are read in one go if that reads at most so many times their bytes
_PAGE_SIZE = 4096
_STATUS_BLOCK = 512  # bytes of what st_blocks counts

_Bytes = NDArray[np.uint8]
_Ints = NDArray[np.int64]

Buffers = list[_Bytes]  # memory of windows, to be used again


class FileWindow(NamedTuple):
    """A window over ranges of a file, with their bytes: range i begins at `positions[i]` of `data`.

    `data` ends where the range that reaches furthest ends; behind another range there may be any bytes.
    """

    data: _Bytes
    positions: _Ints


class FileView:
    """A store file, open for reading: positional reads, slices, and windows over many ranges.

    A context manager; a `FileCache` closes its own views.
    """

    listed: StoredObject | None = None  # the version of an object that was opened

    def __init__(self, path: str) -> None:
        self.path = path
        self._descriptor = open_descriptor(path)
        status = os.fstat(self._descriptor)
        if not stat.S_ISREG(status.st_mode):
            os.close(self._descriptor)
            self._descriptor = -1
            raise CorruptStoreError(path, 0, "a regular file", "something else")
        self.size = status.st_size
        self.allocated = status.st_blocks * _STATUS_BLOCK  # bytes, about; fewer than `size` in a sparse file
        self.identity = (status.st_dev, status.st_ino)

    @staticmethod
    def begins(paths: Sequence[str], into: _Bytes) -> NDArray[np.bool_]:
        """Reads the first bytes of local files into the rows of an array. Behind the bytes of a short file a
        row has zeros. Returns which files were read: for every other one a view raises what is wrong.
        """
        is_read = np.zeros(len(paths), bool)
        for row, path in enumerate(paths):
            try:
                descriptor = os.open(path, OPEN_FLAGS)
                try:
                    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                        continue
                    size = os.preadv(descriptor, [into[row].data], 0)
                finally:
                    os.close(descriptor)
            except OSError:
                continue
            into[row, size:] = 0
            is_read[row] = True
        return is_read

    def read(self, position: int, length: int) -> bytes:
        """Returns `length` bytes from `position`; fewer only at the end of the file."""
        parts = []
        while length > 0:
            part = os.pread(self._descriptor, length, position)
            if not part:
                break
            parts.append(part)
            position += len(part)
            length -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def expect(self, start: int, stop: int) -> None:
        """Says that the bytes [start, stop) will be looked at: those of an object are fetched at once."""

    def __getitem__(self, part: slice) -> bytes:
        """Returns the bytes of a slice, which has a start and a stop: checks take a file like a buffer."""
        return self.read(part.start, part.stop - part.start)

    def read_into(self, position: int, buffer: _Bytes) -> int:
        """Fills `buffer` from `position`. Returns the bytes read, fewer only at the end of the file."""
        view, done = memoryview(buffer.data), 0
        while done < len(view):
            count = os.preadv(self._descriptor, [view[done:]], position + done)
            if not count:
                break
            done += count
        return done

    def window(self, start: int, stop: int, buffers: Buffers | None = None) -> _Bytes:
        """Returns exactly the bytes [start, stop). Raises FileReplacedError if the file has fewer.

        `buffers` as for `windows`.
        """
        data = room([] if buffers is None else buffers, max(stop - start, 0), start)
        self._fill(start, data)
        return data

    def windows(
        self, parts: Iterable[tuple[_Ints, _Ints]], buffers: Buffers | None = None
    ) -> Iterator[FileWindow]:
        """Yields a window for each (starts, stops) of `parts`: one or more ranges inside the file.

        Ranges may have any order; those that are close to each other are read together, and the bytes
        between them are left out unless they are fewer than those of the ranges. A window keeps its
        bytes as long as the caller has a reference to them; later windows use the memory of windows that are
        gone. A caller that keeps `buffers`, empty at first, uses the memory in later calls too: the system
        fills new memory with zeros, which costs about as much as reading. Raises FileReplacedError if the
        file has become shorter.
        """
        buffers = [] if buffers is None else buffers
        for starts, stops in parts:
            yield self._window_of(starts, stops, buffers)

    def _window_of(self, starts: _Ints, stops: _Ints, buffers: Buffers) -> FileWindow:
        low, high = int(starts.min()), int(stops.max())
        if high - low <= _SPARSE * int((stops - starts).sum()):
            data = room(buffers, high - low, low)
            self._fill(low, data)
            return FileWindow(data, starts - low)
        runs = runs_of(starts, stops, 0)
        data = room(buffers, runs.size, low)
        done = 0
        if kernels.ready():
            lows, highs = (np.ascontiguousarray(each, np.int64) for each in (runs.lows, runs.highs))
            block = room([], _BLOCK_SIZE, 0)
            done = kernels.reads.read_ranges(self._descriptor, lows, highs, _GAP_MAX, block, data)
        for run_low, run_high, by in islice(runs.each(), done, None):
            self._fill(run_low, data[run_low + by : run_high + by])
        return FileWindow(data, runs.positions)

    def _fill(self, position: int, buffer: _Bytes) -> None:
        found = self.read_into(position, buffer)
        if found < len(buffer):
            self._refuse_end(position + len(buffer), position + found)

    def _refuse_end(self, expected: int, found: int) -> None:
        raise FileReplacedError(
            f"{self.path}: expected at least {expected} bytes, found {found}: the file became shorter while "
            "it was read. If a program copies the store, wait until the copy is complete"
        )

    def data_from(self, position: int) -> int:
        """Returns the first position from `position` on that is in no hole; the file's size without any.

        A hole of a sparse file reads as zeros.
        """
        try:
            return max(os.lseek(self._descriptor, position, os.SEEK_DATA), position)
        except OSError as error:
            # every other error: the file system does not report holes
            return self.size if error.errno == errno.ENXIO else position

    def is_current(self) -> bool:
        """Returns whether the path still names this file, with this size. Raises FileNotFoundError."""
        status = os.stat(self.path, follow_symlinks=False)
        return (status.st_dev, status.st_ino) == self.identity and status.st_size == self.size

    def copy_on_write(self, length: int) -> _Bytes:
        """Returns the first `length` bytes, 1 to `size`, as an array to change: the file stays as it is.

        For a writer that holds the store's lock: this is a map.
        """
        return np.frombuffer(mmap(self._descriptor, length, access=ACCESS_COPY), np.uint8)

    @property
    def mark(self) -> int:
        """See `StoredObject.mark`; 0 for a file on a disk."""
        return 0

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> FileView:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self, close: Callable[[int], None] = os.close) -> None:  # `os` is None as a process ends
        if getattr(self, "_descriptor", -1) >= 0:
            close(self._descriptor)
            self._descriptor = -1


class KeptView(FileView):
    """A view that several readers have: `close` leaves it open, and it closes with its last reader."""

    def close(self) -> None: ...


class Runs(NamedTuple):
    """Ranges of a file that are read together: where each run begins and ends in the file, and the way from
    there to its place in the window. `positions` are those of the ranges in the window.
    """

    lows: _Ints
    highs: _Ints
    shift: _Ints
    positions: _Ints

    @property
    def size(self) -> int:
        return int(self.highs[-1] + self.shift[-1])

    def each(self) -> Iterator[tuple[int, int, int]]:
        """Yields (low, high, shift) of each run."""
        return zip(self.lows.tolist(), self.highs.tolist(), self.shift.tolist(), strict=True)


def runs_of(starts: _Ints, stops: _Ints, gap_max: int) -> Runs:
    """Joins ranges in any order with gaps of fewer bytes."""
    if (starts[1:] >= stops[:-1] + gap_max).all():  # each is a run: a tenth of the time of what follows
        shift = np.cumsum(stops - starts) - stops
        return Runs(starts, stops, shift, starts + shift)
    order = np.argsort(starts, kind="stable")
    reach = np.maximum.accumulate(stops[order])
    cuts = np.flatnonzero(starts[order][1:] >= reach[:-1] + gap_max) + 1
    first = np.concatenate(([0], cuts))
    lows, highs = starts[order][first], reach[np.append(cuts, len(reach)) - 1]
    shift = np.cumsum(highs - lows) - highs
    positions = np.empty(len(starts), np.int64)
    positions[order] = starts[order] + np.repeat(shift, np.diff(np.append(first, len(starts))))
    return Runs(lows, highs, shift, positions)


def begins_of_only_files(directories: Iterable[str], into: _Bytes) -> Iterator[_Ints]:
    """Reads the first bytes of the only file of each of the local directories, one after the other into the
    rows of an array, at a third of the price of a view. Behind the bytes of a short file a row has zeros.

    Yields, as often as all rows are filled, and at the end, for each row the place of the directory among
    `directories`, the number in the file's name, the length of the file, and its bytes on disk. Leaves out
    everything else, errors included: the caller then lists the directory, which names what is wrong.
    """
    found, row, numbers, buffers = list[int](), 0, dict[str, int](), [[each.data] for each in into]
    rows, width = into.shape
    for place, directory in enumerate(directories):
        try:
            names = os.listdir(directory)
            if len(names) != 1:
                continue
            number = numbers.get(name := names[0])
            if number is None:  # of 10,000 queues, few
                number = int(name) if OFFSET_NAME.match(name) is not None else OFFSET_MAX
                numbers[name] = number
            if number >= OFFSET_MAX:
                continue
            descriptor = os.open(f"{directory}/{name}", OPEN_FLAGS)
            try:
                status = os.fstat(descriptor)
                if not stat.S_ISREG(status.st_mode):
                    continue
                read = os.preadv(descriptor, buffers[row], 0)
            finally:
                os.close(descriptor)
        except OSError:
            continue
        if read < width:
            into[row, read:] = 0
        found += (place, number, status.st_size, status.st_blocks * _STATUS_BLOCK)
        row += 1
        if row == rows:
            yield np.array(found, np.int64).reshape(-1, 4)
            found, row = [], 0
    if found:
        yield np.array(found, np.int64).reshape(-1, 4)


def read_sizes(starts: _Ints, sizes: _Ints) -> _Ints:
    """Returns about how many bytes `FileView.windows` reads for each range, with the gap before it: `sizes`
    where ranges lie close to each other.
    """
    if not len(starts):
        return sizes
    if sizes.min() < 0:
        sizes = np.maximum(sizes, 0)
    if int(starts.max()) - int(starts.min()) <= _SPARSE * int(sizes.sum()):
        return sizes
    gaps = starts[1:] - starts[:-1] - sizes[:-1]
    near = np.where(starts[1:] < starts[:-1], _GAP_MAX, np.maximum(gaps, 0))
    return sizes + np.concatenate(([0], np.where(gaps > _GAP_MAX, 0, near)))


def room(buffers: Buffers, size: int, position: int) -> _Bytes:
    """Returns an array of `size` bytes for the bytes of a file from `position` on.

    The array is a part of one of `buffers` to which nothing else refers, or of a new buffer. Its address and
    `position` have the same remainder by the size of a memory page: where the address is 1 to 31 bytes
    further in its page, Linux copies three times slower, and numpy's large arrays begin at byte 16 of a page.
    """
    held = 2  # by the list, and by the call of getrefcount
    needed = size + _PAGE_SIZE
    buffer = None
    for i in range(len(buffers) - 1, -1, -1):
        if sys.getrefcount(buffers[i]) == held:
            if len(buffers[i]) >= needed:
                buffer = buffers[i]
                break
            del buffers[i]
    if buffer is None:
        buffer = np.empty(needed + size // 8, np.uint8)  # windows differ a little in their sizes
        buffers.append(buffer)
    start = (position - buffer.__array_interface__["data"][0]) % _PAGE_SIZE
    return buffer[start : start + size]
