"""The objects of one bucket of object storage, or the files of one name node of HDFS, as files."""

from __future__ import annotations

import hashlib
import re
import zlib
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from store_format.errors import CorruptStoreError, FileReplacedError, StoreNotFoundError
from store_format.files.blocks import BLOCK_SIZE, RANGE_MAX, WHOLE_MAX, Blocks
from store_format.files.client import Access, StoredObject
from store_format.files.files import SMALL_FILE_SIZE_MAX, Files
from store_format.files.paths import OFFSET_NAME, DirectoryEntry, DiskSpace, Refused, StoreFile, refuse
from store_format.files.source import Bucket
from store_format.files.tree import FileSeries, Listings, is_listed
from store_format.files.view import Buffers, FileView, FileWindow, Runs, room, runs_of

# Gaps that are fetched with their ranges, pieces that are fetched ahead, and how far before the end of the
# last read the next one may begin.
_FETCHED_GAP_MAX = 512 << 10
_AHEAD = 2
_OVERLAP_MAX = 4 << 20

_GAP_MAX = 16 << 10  # bytes between two ranges of a window
_MARKED_SIZE = 96  # of a message: with its offsets, its times and the CRC of its body
_VERSIONS_MAX = 4  # of an object that is uploaded again and again during one read

_Bytes = NDArray[np.uint8]
_Ints = NDArray[np.int64]

_Found = TypeVar("_Found")
_Look = TypeVar("_Look")


class ObjectFiles(Files):
    """The files of one bucket, or of a name node: what was listed, and the bytes that are kept."""

    def __init__(
        self, client: Callable[[str, Access], Bucket], place: str, access: Access,
        listings: Listings | None = None, blocks: Blocks | None = None,
    ) -> None:  # fmt: skip
        self._client, self._place, self.access = client, place, access
        self.listings = listings or Listings(self.bucket)
        self.blocks = blocks or Blocks(self.bucket)

    def bucket(self) -> Bucket:
        """The client."""
        return self._client(self._place, self.access)

    def part_of(
        self, roots: Iterable[str], objects: Iterable[StoredObject], others: Iterable[FileSeries]
    ) -> ObjectFiles:
        """These files with `Listings.part_of`."""
        listings = self.listings.part_of(roots, objects, others)
        return ObjectFiles(self._client, self._place, self.access, listings, self.blocks)

    def is_directory(self, path: str) -> bool:
        return self.listings.is_directory(path)

    def exists(self, path: str) -> bool:
        return self.is_directory(path) or self.is_file(path)

    def is_file(self, path: str) -> bool:
        return self.listings.object_at(path) is not None

    def one_look(self, path: str) -> AbstractContextManager[None]:
        return self.listings.one_moment(path)

    def look_again(self, path: str) -> None:
        self.listings.renew(path)

    def versions(self, path: str) -> Iterable[tuple[str, str]]:
        return self.listings.versions_below(path)

    def directory_identity(self, path: str) -> tuple[int, int, int] | None:
        names = self.listings.names_in(path)
        return (
            None
            if names is None
            else (0, zlib.crc32(path.encode()), zlib.crc32("/".join(sorted(names)).encode()))
        )

    def stat_identity(self, path: str) -> tuple[int, int, int] | None:
        item = self.listings.object_at(path)
        return None if item is None else (_version_number(item), item.size, item.mtime_ms * 1_000_000)

    def readable_identity(self, path: str) -> tuple[int, int, int] | None:
        return self.stat_identity(path)

    def named_identity(self, path: str) -> tuple[int, int] | None:
        item = self.listings.object_at(path)
        return None if item is None else (0, _version_number(item))

    def status(self, path: str) -> tuple[int, int] | None:
        item = self.listings.object_at(path)
        return None if item is None else (item.size, item.mtime_ms)

    def disk_space(self, path: str) -> DiskSpace:
        return DiskSpace(path, 0, 0, 0)

    def names(self, directory: str, *, missing_ok: bool = False) -> frozenset[str]:
        names = self.listings.names_in(directory)
        if names is None and not missing_ok:
            what = "file" if self._place.startswith("hdfs:") else "object"
            raise StoreNotFoundError(
                f"{directory}: no {what} is there; give the directory of the store's copy"
            )
        return names or frozenset()

    def store_files(
        self,
        directory: str,
        name: re.Pattern[str] = OFFSET_NAME,
        irregular: Callable[[CorruptStoreError], object] | None = None,
    ) -> list[StoreFile]:
        found = []
        for item in self.listings.objects_of(directory):
            match = name.match(_base_name(item))
            if match is not None:
                start, number = int(match[match.lastindex or 0]), _version_number(item)
                known = ((0, number), item) if is_listed(item) else ()
                found.append(StoreFile(item.path, start, item.size, *known))
        return sorted(found, key=lambda file: file.start)

    def directories(
        self, directory: str, select: Callable[[str], bool] = lambda name: True, refused: Refused = refuse
    ) -> list[tuple[str, str]]:
        below = ((name, f"{directory}/{name}") for name in sorted(self.listings.names_in(directory) or ()))
        return [each for each in below if select(each[0]) and self.is_directory(each[1])]

    def entries(self, directory: str) -> list[DirectoryEntry]:
        found = [DirectoryEntry(name, path, "directory", 0) for name, path in self.directories(directory)]
        found += [
            DirectoryEntry(_base_name(item), item.path, "file", item.size)
            for item in self.listings.objects_of(directory)
        ]
        return sorted(found, key=lambda entry: entry.name)

    def read(self, path: str, size_max: int = SMALL_FILE_SIZE_MAX) -> bytes | None:
        item = self.listings.object_at(path)
        if item is not None and item.size > size_max:
            raise CorruptStoreError(path, 0, f"at most {size_max} bytes", f"{item.size} bytes")
        return None if item is None else self._newest_bytes(item)

    def read_range(self, path: str, position: int, length: int, size: int) -> bytes:
        item = self.listings.object_at(path)
        if item is None or item.size != size or position + length > size:
            return b""
        return self._newest_bytes(item, position, position + length) or b""

    def _newest_bytes(self, item: StoredObject, start: int = 0, stop: int | None = None) -> bytes | None:
        """The bytes [start, stop) of an object, all of one version: the newest if it was uploaded again.

        None if the object is gone, or if a newer version has another size than the given range is of.
        """
        try:
            return bytes(self.blocks.read(item, start, item.size if stop is None else stop))
        except FileReplacedError:
            now = self.listings.newest(item.path)
            if now is None or (stop is not None and now.size != item.size):
                return None
            return bytes(self.blocks.read(now, start, now.size if stop is None else stop))

    def view(self, path: str, listed: StoredObject | None = None) -> FileView:
        return ObjectView(self, path, listed)

    def make_readable_at(self, path: str, target: str, *, copy: bool) -> None:
        super().make_readable_at(path, target, copy=True)

    def look_at_each(
        self, found: Iterable[_Found], look: Callable[[_Found], _Look]
    ) -> Iterator[tuple[_Found, _Look]]:
        return self.blocks.look_at_each(found, look)


def _version_number(item: StoredObject) -> int:
    """Returns a number that differs for another version of an object, for what an inode is to a file."""
    version = item.version or str(item.mtime_ms)
    return int.from_bytes(hashlib.blake2b(version.encode(), digest_size=7).digest())


def _base_name(item: StoredObject) -> str:
    return item.path.rpartition("/")[2]


class ObjectView(FileView):
    """An object of object storage: what `FileView` is to a file.

    Long ranges are fetched ahead, in the order in which the caller takes them. A program that copies a store
    uploads files again that have grown, and a view goes on with the new version: of a commitlog file, which
    is `listed`, if it still begins with the same message. (The entries of other files are compared with
    their messages.)
    """

    def __init__(self, files: ObjectFiles, path: str, listed: StoredObject | None = None) -> None:
        self.path, self._descriptor, self.listed = path, -1, listed
        self._listings, self._blocks = files.listings, files.blocks
        found = listed or self._listings.object_at(path)
        if found is None:
            raise FileNotFoundError(path)
        self._object = found
        self._mark = self._object.mark
        self.size = self.allocated = self._object.size
        self.identity = (0, _version_number(self._object))
        self._ahead: OrderedDict[int, Future[memoryview]] = OrderedDict()  # by where they begin
        self._reached = -1  # where the last long read ended

    def read(self, position: int, length: int) -> bytes:
        return bytes(self._bytes(position, min(position + length, self.size)))

    def read_into(self, position: int, buffer: _Bytes) -> int:
        data = self._bytes(position, min(position + len(buffer), self.size))
        buffer[: len(data)] = np.frombuffer(data, np.uint8)
        return len(data)

    def expect(self, start: int, stop: int) -> None:
        self._blocks.expect(self._object, max(start, 0), stop)

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
            self._mark = zlib.crc32(data[:_MARKED_SIZE])
        return data

    def _go_on(self, error: FileReplacedError) -> None:
        """Takes the newest version. Raises `error` if it does not continue the version until now."""
        now = self._listings.newest(self.path)
        if now is None or now.version == self._object.version:
            raise error
        if self.listed is None:
            continues = now.size == self.size
        else:
            head = self._blocks.read(now, 0, _MARKED_SIZE)
            continues = now.size >= self.size and bool(self._mark) and zlib.crc32(head) == self._mark
        if not continues:
            raise error
        self._object = now
        self._ahead.clear()

    def _bytes_of_version(self, start: int, stop: int) -> memoryview:
        is_small = stop - start < BLOCK_SIZE or self.size <= WHOLE_MAX
        if is_small or self._blocks.holds(self._object, start, stop):
            data = self._blocks.read(self._object, start, stop)
        else:
            if self._reached - _OVERLAP_MAX <= start <= self._reached:
                data = self._next(start, stop)
            else:
                data = self._blocks.fetch(self._object, start, stop).result()
                self._ahead.clear()
            self._reached = stop
        return data

    def _next(self, start: int, stop: int) -> memoryview:
        """Bytes behind those of the last read: whole pieces, with the next ones on their way."""
        first = start - start % RANGE_MAX
        wanted = range(first, stop, RANGE_MAX)
        held = min(len(self._ahead), _AHEAD)  # a short walk fetches little ahead
        for at in range(first, min(wanted[-1] + (held + 1) * RANGE_MAX, self.size), RANGE_MAX):
            if at not in self._ahead:
                self._ahead[at] = self._blocks.fetch(self._object, at, min(at + RANGE_MAX, self.size))
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
            window = _ObjectWindow(runs_of(starts, stops, _GAP_MAX), int(starts.min()))
            windows.append(window)
            runs = runs_of(starts, stops, _FETCHED_GAP_MAX)
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
                while high - low >= RANGE_MAX:
                    stop = low + RANGE_MAX
                    yield self._piece(low, stop, [each for each in ending if each.stop <= stop])
                    ending = [each for each in ending if each.stop > stop]
                    low = stop
        if ending:
            yield self._piece(low, high, ending)

    def _piece(self, start: int, stop: int, ending: list[_ObjectWindow]) -> _Piece:
        return _Piece(start, stop, self._blocks.fetch(self._object, start, stop), ending)

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
        found = self._listings.known_object(self.path)
        return found is not None and found.version == self._object.version

    def copy_on_write(self, length: int) -> _Bytes:
        return np.frombuffer(bytearray(self.read(0, length)), np.uint8)


@dataclass(slots=True, eq=False)
class _ObjectWindow:
    """A window that fills while pieces come. `low` is where its first range begins."""

    runs: Runs
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
            self.data = room(buffers, runs.size, self.low)
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
