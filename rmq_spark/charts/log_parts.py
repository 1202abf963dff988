"""The parts of each commitlog file, in cells: messages, padding, damage, not written, not read.

One walk over the commitlog. Only the drawn files are kept in memory: the newest, and the first damaged files
among the older ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from store_format.bookkeeping.journal import StoreState
from store_format.commitlog.walk import Damage, EndKind, Walk
from store_format.files.read import StoreFile

if TYPE_CHECKING:
    from store_format.read.store import Store

CELLS = 560  # cells of a file of full length
_DAMAGE_CELLS_MIN = 3


class Part(IntEnum):
    """The content of a cell; if a cell has several parts, the largest value counts."""

    UNWRITTEN = 0
    MESSAGES = 1
    BLANK = 2
    DAMAGE = 3
    UNREAD = 4


@dataclass(slots=True)
class FileParts:
    """One commitlog file: cells, bytes in messages, bytes in damage. `is_missing`: the file is lost."""

    file: StoreFile
    cells: NDArray[np.uint8]
    message_bytes: int = 0
    damage_bytes: int = 0
    is_missing: bool = False

    def mark(self, start: int, stop: int, part: Part) -> None:
        """Marks the bytes [start, stop) of the file: at least one cell, of damage three, to be visible."""
        count, size = len(self.cells), max(self.file.size, 1)
        first = min(start * count // size, count - 1)
        least = _DAMAGE_CELLS_MIN if part is Part.DAMAGE else 1
        cells = self.cells[first : max(-(-stop * count // size), first + least)]
        np.maximum(cells, np.uint8(part), out=cells)

    def fill(self, part: Part) -> None:
        """Marks the cells that no part has."""
        self.cells[self.cells == Part.UNWRITTEN] = part


@dataclass(frozen=True, slots=True)
class LogParts:
    """The files to draw, in order; the numbers of files left out, and of bytes not read."""

    files: list[FileParts]
    left_out: int
    damaged_left_out: int
    unread_bytes: int


def read_log_parts(store: Store, *, files_max: int, read_bytes_max: int) -> LogParts:
    """Walks the newest `read_bytes_max` bytes of the commitlog with CRC checks.

    Raises StoreError if a file is deleted meanwhile.
    """
    log = store.log
    first = len(log.files)
    left = read_bytes_max
    while first > 0 and (first == len(log.files) or log.files[first - 1].size <= left):
        first -= 1
        left -= log.files[first].size
    collected = _Collected(log.files, first, files_max, is_live=store.state is StoreState.LIVE)
    if first < len(log.files):
        collected.walk(log.walk(log.files[first].start, verify_crc=True, resync=True))
    return collected.parts()


class _Collected:
    """Collects the files while the walk passes them; `first` is the index of the first file of the walk."""

    def __init__(self, files: tuple[StoreFile, ...], first: int, files_max: int, *, is_live: bool) -> None:
        self._files, self._first, self._is_live = files, first, is_live
        self._usual = max((file.size for file in files), default=1)
        self._newest = {file.start for file in files[-files_max:]}
        self._older_max = files_max // 4  # older damaged files
        self._drawn: dict[int, FileParts] = {}
        self._older_damaged = self._damaged_left_out = 0
        self._current: FileParts | None = None

    def walk(self, walk: Walk) -> None:
        for step in walk:
            if isinstance(step, Damage) and step.at_tail and self._is_live:
                continue  # a message that a broker is writing
            parts = self._of(step.file)
            if isinstance(step, Damage):
                parts.mark(step.start, step.stop, Part.DAMAGE)
                parts.damage_bytes += step.stop - step.start
            else:
                start = int(step.positions[0])
                parts.mark(start, step.stop, Part.MESSAGES)
                parts.message_bytes += step.stop - start
        self._leave()
        assert walk.end is not None  # the walk is exhausted
        self._end_offset, self._end_kind = walk.end.offset, walk.end.kind

    def _of(self, file: StoreFile) -> FileParts:
        if self._current is None or self._current.file.start != file.start:
            self._leave()
            self._current = self._empty(file)
            self._current.is_missing = file not in self._files
        return self._current

    def _empty(self, file: StoreFile) -> FileParts:
        count = max(min(CELLS * file.size // self._usual, CELLS), 1)
        return FileParts(file, np.zeros(count, np.uint8))

    def _leave(self) -> None:
        """Keeps the file that the walk has passed, if the file will be drawn."""
        parts, self._current = self._current, None
        if parts is None:
            return
        if parts.file.start in self._newest or (parts.damage_bytes and self._older_damaged < self._older_max):
            self._older_damaged += parts.file.start not in self._newest
            self._drawn[parts.file.start] = parts
        else:
            self._damaged_left_out += bool(parts.damage_bytes)

    def parts(self) -> LogParts:
        for i, file in enumerate(self._files):
            if file.start in self._newest and file.start not in self._drawn:
                self._drawn[file.start] = self._empty(file)
            if file.start in self._drawn:
                self._fill(self._drawn[file.start], is_read=i >= self._first)
        unread = sum(file.size for file in self._files[: self._first])
        drawn = [self._drawn[start] for start in sorted(self._drawn)]
        missing = sum(parts.is_missing for parts in drawn)
        return LogParts(drawn, len(self._files) - len(drawn) + missing, self._damaged_left_out, unread)

    def _fill(self, parts: FileParts, *, is_read: bool) -> None:
        """Marks the bytes that the walk does not report: padding before the log's end, and unread bytes."""
        if not is_read:
            parts.fill(Part.UNREAD)
        elif parts.file.stop <= self._end_offset or (
            parts.file.start <= self._end_offset and self._end_kind is EndKind.BLANK
        ):
            parts.fill(Part.BLANK)
