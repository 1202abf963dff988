"""Appends to the commitlog: the places of the units, and the files that are written.

The units lie one behind the other, with a BLANK at the end of a full file (spec 2.9). The layout depends only
on the start, the file size and the units' sizes, so a repeated commit gets the same layout. A file is created
with its first write; an undo zeroes or removes files.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from store_format.commitlog.log import CommitLog
from store_format.errors import CorruptStoreError, UnsupportedFormatError
from store_format.files import paths
from store_format.files.paths import StoreFile
from store_format.files.read import files_at
from store_format.files.write import FileWrites, WritableFile
from store_format.layouts import BLANK_HEAD, MAGIC_BLANK, pack

_FULL_PERCENT = 85  # diskSpaceCleanForciblyRatio, at most 85
BLANK_SIZE_MIN = 8  # CommitLog.END_FILE_MIN_BLANK_LENGTH: the least bytes behind the last unit of a file


# ---- the places of units -----------------------------------------------------------------------------------


class Extent(NamedTuple):
    """The placed units [first, stop) begin at the physical offset `offset`, in one file.

    first == stop: a BLANK begins there.
    """

    first: int
    stop: int
    offset: int


class LogLayout:
    """Places units from the physical offset `position` on (CommitLog.DefaultAppendMessageCallback.doAppend).

    Each call moves `position` behind the placed units.

    Example: files of 1000 bytes, position 0, three units of 400: the first two at 0 and 400; 400 + 8 > 200,
    so a BLANK of 200 bytes at 800, and the third at 1000.
    """

    def __init__(self, position: int, file_size: int) -> None:
        self.position = position
        self.file_size = file_size

    def place(self, sizes: NDArray[np.integer[Any]]) -> tuple[NDArray[np.int64], list[Extent]]:
        """The physical offset of each unit, and the contiguous stretches to write.

        Raises UnsupportedFormatError for a unit that no file can hold.
        """
        ends = np.zeros(len(sizes) + 1, np.int64)
        np.cumsum(sizes, out=ends[1:])
        offsets = np.empty(len(sizes), np.int64)
        extents: list[Extent] = []
        first = 0
        while first < len(sizes):
            left = self.file_size - self.position % self.file_size
            limit = ends[first] + left - BLANK_SIZE_MIN
            stop = int(np.searchsorted(ends[first + 1 :], limit, side="right")) + first
            if stop > first:
                offsets[first:stop] = ends[first:stop] + (self.position - ends[first])
                extents.append(Extent(first, stop, self.position))
                self.position += int(ends[stop] - ends[first])
                first = stop
            else:
                self._refuse(int(sizes[first]), left)
                extents.append(Extent(first, first, self.position))
                self.position += left
        return offsets, extents

    def _refuse(self, size: int, left: int) -> None:
        if size + BLANK_SIZE_MIN > self.file_size:
            raise UnsupportedFormatError(
                f"a message record of {size} bytes does not fit into a commitlog file of {self.file_size} "
                f"bytes (mappedFileSizeCommitLog): expected at most {self.file_size - BLANK_SIZE_MIN} bytes. "
                "Send a smaller message, or write to a store with larger files"
            )
        if left < BLANK_SIZE_MIN:
            name = StoreFile.name_at(self.position - self.position % self.file_size)
            raise CorruptStoreError(
                f"commitlog/{name}", self.file_size - left, f"{BLANK_SIZE_MIN} bytes for a BLANK", f"{left}"
            )


def blank_head(offset: int, file_size: int) -> bytes:
    """The 8 bytes of the BLANK at a physical offset: the rest of the file holds no unit."""
    return pack(BLANK_HEAD, {"size": file_size - offset % file_size, "magic": MAGIC_BLANK}).tobytes()


# ---- files -------------------------------------------------------------------------------------------------


class LogFiles:
    """Writes at physical offsets, one file open at a time. Syncs a file before it opens the next.

    `made` has the paths of the files that it created. `read_only` directories get no new file.
    """

    def __init__(
        self,
        log: CommitLog,
        directories: Sequence[str],
        file_size: int,
        files: FileWrites,
        read_only: Collection[str] = (),
    ) -> None:
        self._files = files
        self._read_only = read_only
        self._directories = sorted(directories)  # String order
        self._file_size = file_size
        self._paths = {file.start: file.path for file in log.files}
        self._file: WritableFile | None = None
        self._start = -1
        self.made: list[str] = []

    def write(self, offset: int, data: Any) -> None:
        start = offset - offset % self._file_size
        if self._file is None or self._start != start:
            self.close()
            self._file, self._start = self._open(start), start
        self._file.write(offset - start, data)

    def write_blank(self, offset: int) -> None:
        """Writes a BLANK at `offset`: no unit in the rest of the file."""
        self.write(offset, blank_head(offset, self._file_size))

    def close(self) -> None:
        if self._file is not None:
            file, self._file = self._file, None
            with file:
                self._files.sync(file)

    def _open(self, start: int) -> WritableFile:
        path = self._paths.get(start) or self._new_path(start)
        file, made = self._files.open_full(path, self._file_size)
        self._paths[start] = path
        if made:
            self.made.append(path)  # At once, so that a failure from here on removes the file again.
            try:
                self._files.sync_directory(paths.parent(path))
            except BaseException:
                file.close()
                raise
        return file

    def _new_path(self, start: int) -> str:
        """The directories take turns, without those that are read-only or full, unless all are
        (MultiPathMappedFileQueue.tryCreateMappedFile, CleanCommitLogService.isSpaceToDelete).
        """
        turns = self._directories
        if len(turns) > 1:
            turns = [
                each for each in turns if each not in self._read_only and files_at(each).may_write(each)
            ] or turns
            turns = [
                each for each in turns if files_at(each).disk_space(each).used_percent <= _FULL_PERCENT
            ] or turns
        return f"{turns[start // self._file_size % len(turns)]}/{StoreFile.name_at(start)}"

    def clear_behind(self, base: int, *, keep: int = -1) -> None:
        """Zeroes all bytes at or behind `base`, and removes the files in `made` that begin there.

        Also removes files that begin at or behind `keep`, unless `keep` is negative.
        """
        if self._file is not None:
            self._file.close()
            self._file = None
        for start, path in sorted(self._paths.items(), reverse=True):
            if start + self._file_size <= base:
                continue
            if path in self.made or 0 <= keep <= start:
                if self._files.remove(path):
                    self._files.sync_directory(paths.parent(path))
                del self._paths[start]
            else:
                with self._files.open(path) as file:
                    file.zero(max(base - start, 0), file.size)
                    self._files.sync(file)
