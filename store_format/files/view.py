"""One open store file. Every reader of messages, queues, indexes and timer files looks at a file through it.

A view reads with `pread`, and maps nothing: an access behind the end of a mapped file that another program
has shortened (`rsync --inplace`, `cp` of a backup over a store) ends the process with SIGBUS.
"""

from __future__ import annotations

import errno
import os
import stat
import sys
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from mmap import ACCESS_COPY, mmap
from types import TracebackType
from typing import NamedTuple
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from store_format.errors import CorruptStoreError, FileReplacedError, StoreError, StoreNotFoundError
from store_format.files import blocks, paths, tree
from store_format.files.client import StoredObject
from store_format.files.read import (
    OFFSET_NAME,
    OPEN_FLAGS,
    StoreFile,
    denied,
    open_descriptor,
    version_number,
)

# Bytes between two ranges that are read with them: to copy so many costs about as much as another read.
_GAP_MAX = 16 << 10
_SPARSE = 2  # ranges are read in one go if that reads at most so many times their bytes
_PAGE_SIZE = 4096
_STATUS_BLOCK = 512  # bytes of what st_blocks counts

# Of objects: gaps that are fetched with their ranges, pieces that are fetched ahead, and how far before the
# end of the last read the next one may begin.
_FETCHED_GAP_MAX = 512 << 10
_AHEAD = 2
_OVERLAP_MAX = 4 << 20

_MARKED_SIZE = 96  # of a message: with its offsets, its times and the CRC of its body
_VERSIONS_MAX = 4  # of an object that is uploaded again and again during one read

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
        data = _room([] if buffers is None else buffers, max(stop - start, 0), start)
        self._fill(start, data)
        return data

    def windows(
        self, parts: Iterable[tuple[_Ints, _Ints]], buffers: Buffers | None = None
    ) -> Iterator[FileWindow]:
        """Yields a window for each (starts, stops) of `parts`: one or more ranges inside the file.

        Ranges may have any order; those that are close to each other are read together. A window keeps its
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
            data = _room(buffers, high - low, low)
            self._fill(low, data)
            return FileWindow(data, starts - low)
        runs = _runs(starts, stops, _GAP_MAX)
        data = _room(buffers, runs.size, low)
        for run_low, run_high, by in runs.each():
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


class _Runs(NamedTuple):
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


def _runs(starts: _Ints, stops: _Ints, gap_max: int) -> _Runs:
    """Joins ranges in any order with gaps of at most so many bytes."""
    order = np.argsort(starts, kind="stable")
    reach = np.maximum.accumulate(stops[order])
    cuts = np.flatnonzero(starts[order][1:] > reach[:-1] + gap_max) + 1
    first = np.concatenate(([0], cuts))
    lows, highs = starts[order][first], reach[np.append(cuts, len(reach)) - 1]
    shift = np.cumsum(highs - lows) - highs
    positions = np.empty(len(starts), np.int64)
    positions[order] = starts[order] + np.repeat(shift, np.diff(np.append(first, len(starts))))
    return _Runs(lows, highs, shift, positions)


class ObjectView(FileView):
    """An object of object storage: what `FileView` is to a file.

    Long ranges are fetched ahead, in the order in which the caller takes them. A program that copies a store
    uploads files again that have grown, and a view goes on with the new version: of a commitlog file, which
    is `listed`, if it still begins with the same message. (The entries of other files are compared with
    their messages.)
    """

    def __init__(self, path: str, listed: StoredObject | None = None) -> None:
        self.path, self._descriptor = path, -1
        self.listed = listed
        self._object = listed or tree.existing_object(path)
        self._mark = self._object.mark
        self.size = self.allocated = self._object.size
        self.identity = (0, version_number(self._object))
        self._ahead: OrderedDict[int, Future[memoryview]] = OrderedDict()  # by where they begin
        self._reached = -1  # where the last long read ended

    def read(self, position: int, length: int) -> bytes:
        return bytes(self._bytes(position, min(position + length, self.size)))

    def read_into(self, position: int, buffer: _Bytes) -> int:
        data = self._bytes(position, min(position + len(buffer), self.size))
        buffer[: len(data)] = np.frombuffer(data, np.uint8)
        return len(data)

    def expect(self, start: int, stop: int) -> None:
        blocks.expect(self._object, max(start, 0), stop)

    @property
    def mark(self) -> int:
        if not self._mark:
            self._bytes(0, min(_MARKED_SIZE, self.size))
        return self._mark

    def _bytes(self, start: int, stop: int, versions_left: int = _VERSIONS_MAX) -> memoryview:
        try:
            data = self._bytes_of_version(start, stop)
        except FileReplacedError as error:
            if not versions_left:
                raise
            self._go_on(error)
            return self._bytes(start, stop, versions_left - 1)
        if not start and len(data) >= _MARKED_SIZE:
            self._mark = crc32(data[:_MARKED_SIZE])
        return data

    def _go_on(self, error: FileReplacedError) -> None:
        """Takes the newest version. Raises `error` if it does not continue the version until now."""
        now = tree.newest(self.path)
        if now is None or now.version == self._object.version:
            raise error
        if self.listed is None:
            continues = now.size == self.size
        else:
            head = blocks.read(now, 0, _MARKED_SIZE)
            continues = now.size >= self.size and bool(self._mark) and crc32(head) == self._mark
        if not continues:
            raise error
        self._object = now
        self._ahead.clear()

    def _bytes_of_version(self, start: int, stop: int) -> memoryview:
        is_small = stop - start < blocks.BLOCK_SIZE or self.size <= blocks.WHOLE_MAX
        if is_small or blocks.holds(self._object, start, stop):
            data = blocks.read(self._object, start, stop)
        else:
            if self._reached - _OVERLAP_MAX <= start <= self._reached:
                data = self._next(start, stop)
            else:
                data = blocks.fetch(self._object, start, stop).result()
                self._ahead.clear()
            self._reached = stop
        return data

    def _next(self, start: int, stop: int) -> memoryview:
        """Bytes behind those of the last read: whole pieces, with the next ones on their way."""
        first = start - start % blocks.RANGE_MAX
        wanted = range(first, stop, blocks.RANGE_MAX)
        held = min(len(self._ahead), _AHEAD)  # a short walk fetches little ahead
        for at in range(first, min(wanted[-1] + (held + 1) * blocks.RANGE_MAX, self.size), blocks.RANGE_MAX):
            if at not in self._ahead:
                self._ahead[at] = blocks.fetch(self._object, at, min(at + blocks.RANGE_MAX, self.size))
        for at in [at for at in self._ahead if at < first]:
            del self._ahead[at]
        parts = [self._ahead[at].result() for at in wanted]
        if stop >= self.size:
            self._ahead.clear()  # the end: nothing comes behind
        whole = parts[0] if len(parts) == 1 else memoryview(b"".join(parts))
        return whole[start - first : stop - first]

    def windows(
        self, parts: Iterable[tuple[_Ints, _Ints]], buffers: Buffers | None = None
    ) -> Iterator[FileWindow]:
        buffers = [] if buffers is None else buffers
        windows, waiting = deque[_ObjectWindow](), deque[_Piece]()
        for piece in self._pieces(parts, windows):
            waiting.append(piece)
            if len(waiting) > _AHEAD:
                yield from self._filled(waiting.popleft(), windows, buffers)
        for piece in waiting:
            yield from self._filled(piece, windows, buffers)

    def _pieces(
        self, parts: Iterable[tuple[_Ints, _Ints]], windows: deque[_ObjectWindow]
    ) -> Iterator[_Piece]:
        """The fetches of all windows, each begun when it is asked for; adds the windows.

        Ranges that lie behind those of the part before, with a small gap, are fetched with them.
        """
        low, high = 0, -2 * _FETCHED_GAP_MAX  # the bytes to fetch next
        ending: list[_ObjectWindow] = []  # that lack nothing but bytes up to `high`
        for starts, stops in parts:
            window = _ObjectWindow(_runs(starts, stops, _GAP_MAX), int(starts.min()))
            windows.append(window)
            runs = _runs(starts, stops, _FETCHED_GAP_MAX)
            for number, (run_low, run_high, _) in enumerate(runs.each(), 1):
                if run_high > self.size:
                    self._refuse_end(run_high, self.size)
                if not low <= run_low <= high + _FETCHED_GAP_MAX:
                    if low < high:
                        yield self._piece(low, high, ending)
                    low, high, ending = run_low, run_high, []
                high = max(high, run_high)
                if number == len(runs.lows):
                    ending.append(window)
                while high - low >= blocks.RANGE_MAX:
                    stop = low + blocks.RANGE_MAX
                    yield self._piece(low, stop, [each for each in ending if each.stop <= stop])
                    ending = [each for each in ending if each.stop > stop]
                    low = stop
        if ending:
            yield self._piece(low, high, ending)

    def _piece(self, start: int, stop: int, ending: list[_ObjectWindow]) -> _Piece:
        return _Piece(start, stop, blocks.fetch(self._object, start, stop), ending)

    def _filled(self, piece: _Piece, windows: deque[_ObjectWindow], buffers: Buffers) -> Iterator[FileWindow]:
        """Copies the bytes of a piece to their places; yields the windows that are whole then, in order."""
        try:
            data = piece.fetched.result()
        except FileReplacedError:
            data = self._bytes(piece.start, piece.stop)
        for window in windows:
            window.take(piece.start, np.frombuffer(data, np.uint8), buffers)
        for window in piece.ending:
            window.is_whole = True
        while windows and windows[0].is_whole:
            window = windows.popleft()
            assert window.data is not None
            yield FileWindow(window.data, window.runs.positions)

    def data_from(self, position: int) -> int:
        return position

    def is_current(self) -> bool:
        found = tree.listed_object(self.path)
        return found is not None and found.version == self._object.version

    def copy_on_write(self, length: int) -> _Bytes:
        return np.frombuffer(bytearray(self.read(0, length)), np.uint8)


@dataclass(slots=True, eq=False)
class _ObjectWindow:
    """A window that fills while pieces come. `low` is where its first range begins."""

    runs: _Runs
    low: int
    data: _Bytes | None = None
    is_whole: bool = False

    @property
    def stop(self) -> int:
        return int(self.runs.highs[-1])

    def take(self, start: int, data: _Bytes, buffers: Buffers) -> None:
        """Copies what a piece of the object, from byte `start` on, has of the ranges."""
        stop, runs = start + len(data), self.runs
        first = int(np.searchsorted(runs.highs, start, side="right"))
        last = int(np.searchsorted(runs.lows, stop, side="left"))
        if self.data is None and (first < last or not runs.size):
            self.data = _room(buffers, runs.size, self.low)
        for low, high, by in zip(*(each[first:last].tolist() for each in runs[:3]), strict=True):
            low, high = max(low, start), min(high, stop)
            assert self.data is not None
            self.data[low + by : high + by] = data[low - start : high - start]


class _Piece(NamedTuple):
    """A fetch of the bytes [start, stop) of the object; the windows `ending` are whole with it."""

    start: int
    stop: int
    fetched: Future[memoryview]
    ending: list[_ObjectWindow]


def open_view(path: str) -> FileView:
    """Opens a store file. Raises FileNotFoundError, and CorruptStoreError for a link or a directory."""
    return ObjectView(path) if paths.is_remote(path) else FileView(path)


class FileBegin(NamedTuple):
    """Of the only file of a directory: the number in its name, its sizes in bytes, and how many of its first
    bytes were read.
    """

    start: int
    size: int
    allocated: int
    read: int


def begin_of_only_file(directory: str, into: _Bytes) -> FileBegin | None:
    """Reads the first bytes of the only file of a local directory `into` an array, at half the price of a
    view.

    None for everything else, errors included: the caller then lists the directory, which names what is wrong.
    """
    try:
        names = os.listdir(directory)
        if len(names) != 1 or OFFSET_NAME.match(names[0]) is None:
            return None
        descriptor = os.open(f"{directory}/{names[0]}", OPEN_FLAGS)
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                return None
            read = os.preadv(descriptor, [into.data], 0)
        finally:
            os.close(descriptor)
    except OSError:
        return None
    return FileBegin(int(names[0]), status.st_size, status.st_blocks * _STATUS_BLOCK, read)


def read_sizes(starts: _Ints, stops: _Ints) -> _Ints:
    """Returns about how many bytes `FileView.windows` reads for each range, with the gap before it."""
    sizes: _Ints = np.maximum(stops - starts, 0)
    if not len(starts) or int(stops.max()) - int(starts.min()) <= _SPARSE * int(sizes.sum()):
        return sizes
    gaps = starts[1:] - stops[:-1]
    near = np.where(starts[1:] < starts[:-1], _GAP_MAX, np.maximum(gaps, 0))
    sizes[1:] += np.where(gaps > _GAP_MAX, 0, near)
    return sizes


def _room(buffers: Buffers, size: int, position: int) -> _Bytes:
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
    start = (position - buffer.ctypes.data) % _PAGE_SIZE
    return buffer[start : start + size]


class FileCache:
    """The open views used last, by path: at most `capacity` views.

    A view is opened again when its path names another file or the size has changed: a store may be cleaned or
    restored at any time.
    """

    def __init__(self, capacity: int = 256) -> None:
        self._capacity = capacity
        self._views: OrderedDict[str, FileView] = OrderedDict()

    def open(self, path: str) -> FileView:
        """Returns the open view of a path. Raises StoreNotFoundError when the file was deleted."""
        view = self._views.pop(path, None)
        try:
            if view is None or not view.is_current():
                view = open_view(path)
        except FileNotFoundError as error:
            raise StoreNotFoundError(
                f"{path}: the file is gone; it was deleted (retention?) after planning"
            ) from error
        except PermissionError as error:
            raise error if isinstance(error, StoreError) else denied(path) from error
        self._keep(view)
        return view

    def view(self, file: StoreFile) -> FileView:
        """Returns the open view of a listed file. Raises FileReplacedError if another file has its path."""
        if file.stored is not None:
            return self._version(file.stored)
        view = self.open(file.path)
        if file.identity not in (None, view.identity) or view.size < file.size:
            is_other = file.identity not in (None, view.identity)
            raise FileReplacedError(
                f"{file.path}: expected {file.size} bytes, found {view.size}: since the files were listed, "
                f"{'another file took this name' if is_other else 'the file became shorter'}. If a program "
                "copies the store, wait until the copy is complete"
            )
        return view

    def _version(self, stored: StoredObject) -> FileView:
        view = self._views.pop(stored.path, None)
        if not isinstance(view, ObjectView) or view.listed != stored:
            view = ObjectView(stored.path, stored)
        self._keep(view)
        return view

    def _keep(self, view: FileView) -> None:
        self._views[view.path] = view
        while len(self._views) > self._capacity:
            self._views.popitem(last=False)  # its destructor closes the file once no reader uses the view

    def forget_deleted(self) -> None:
        """Closes the views of deleted and replaced files, whose space on disk stays in use until then."""
        for path, view in list(self._views.items()):
            try:
                is_current = view.is_current()
            except OSError:
                is_current = False
            if not is_current:
                del self._views[path]

    def __len__(self) -> int:
        return len(self._views)

    def __iter__(self) -> Iterator[str]:
        return iter(self._views)
