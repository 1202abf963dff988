"""What each byte of the commitlog is, as coarse as a picture needs it: one walk, and a row of cells for each
file that is drawn.

Memory is that of the drawn files: the newest, and among older ones the first with damage.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from store_format.bookkeeping.state import StoreState
from store_format.commitlog.walk import Damage, EndKind, Walk
from store_format.files.read import StoreFile

if TYPE_CHECKING:
    from store_format.read.store import Store

__all__ = ["CELLS", "FileParts", "LogParts", "Part", "read_log_parts"]

CELLS = 560  # of a file of full length


class Part(IntEnum):
    """What a cell holds; of several the highest is shown."""

    UNWRITTEN = 0
    MESSAGES = 1
    BLANK = 2
    DAMAGE = 3
    UNREAD = 4


@dataclass(slots=True)
class FileParts:
    """One commitlog file: its cells, and its bytes in messages and in damage. `is_missing`: it should be
    there.
    """

    file: StoreFile
    cells: NDArray[np.uint8]
    message_bytes: int = 0
    damage_bytes: int = 0
    is_missing: bool = False

    def mark(self, start: int, stop: int, part: Part) -> None:
        """At least one cell, so that no damage is too small to be seen."""
        count, size = len(self.cells), max(self.file.size, 1)
        first = min(start * count // size, count - 1)
        cells = self.cells[first : max(-(-stop * count // size), first + 1)]
        np.maximum(cells, np.uint8(part), out=cells)

    def fill(self, part: Part) -> None:
        """What is still empty."""
        self.cells[self.cells == Part.UNWRITTEN] = part


@dataclass(frozen=True, slots=True)
class LogParts:
    """The files to draw, in order; how many are not drawn, and of how many bytes nothing was read."""

    files: list[FileParts]
    left_out: int
    damaged_left_out: int
    unread_bytes: int


def read_log_parts(store: Store, *, files_max: int, read_bytes_max: int) -> LogParts:
    """Walks the newest `read_bytes_max` bytes of the log, CRCs included. Raises StoreError where a file is
    gone by then.
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
    """The files while the walk passes them. `first` is where it begins."""

    def __init__(self, files: tuple[StoreFile, ...], first: int, files_max: int, *, is_live: bool) -> None:
        self._files, self._first, self._is_live = files, first, is_live
        self._usual = max((file.size for file in files), default=1)
        self._newest = {file.start for file in files[-files_max:]}
        self._older_max = files_max // 4  # damaged ones
        self._drawn: dict[int, FileParts] = {}
        self._older_damaged = self._damaged_left_out = 0
        self._current: FileParts | None = None

    def walk(self, walk: Walk) -> None:
        for step in walk:
            if isinstance(step, Damage) and step.at_tail and self._is_live:
                continue  # a unit that is being written
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
        """Keeps the file that the walk has passed if it is to be drawn."""
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
        """What the walk does not name: padding in front of the log's end, and what was not read."""
        if not is_read:
            parts.fill(Part.UNREAD)
        elif parts.file.stop <= self._end_offset or (
            parts.file.start <= self._end_offset and self._end_kind is EndKind.BLANK
        ):
            parts.fill(Part.BLANK)
