"""The places of appended units: one behind the other, with a BLANK at the end of a full file (spec 2.9).

The layout depends only on the start, the file size and the units' sizes, so a repeated commit gets the same
layout.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from store_format.errors import CorruptStoreError, UnsupportedFormatError
from store_format.files.read import offset_file_name
from store_format.layouts import BLANK_HEAD, MAGIC_BLANK, pack

BLANK_SIZE_MIN = 8  # CommitLog.END_FILE_MIN_BLANK_LENGTH: the least bytes behind the last unit of a file


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
            name = offset_file_name(self.position - self.position % self.file_size)
            raise CorruptStoreError(
                f"commitlog/{name}", self.file_size - left, f"{BLANK_SIZE_MIN} bytes for a BLANK", f"{left}"
            )


def blank_head(offset: int, file_size: int) -> bytes:
    """The 8 bytes of the BLANK at a physical offset: the rest of the file holds no unit."""
    return pack(BLANK_HEAD, {"size": file_size - offset % file_size, "magic": MAGIC_BLANK}).tobytes()
