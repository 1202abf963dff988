"""The slots of one index file in memory: changed there by a batch after the other, and written once.

The pages of a file that lies on disk are mapped as copies on write, so that a small commit reads and writes
only the pages of its own slots. A write through a shared memory map would kill the process when the disk is
full.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from store_format.files.view import FileView
from store_format.files.write import WritableFile
from store_format.index.geometry import IndexGeometry
from store_format.layouts import INDEX_HEADER, INDEX_SLOT

_PAGE = 4096
_GAP_PAGES_MAX = 16  # unchanged pages between two changed ones that are written with them


@dataclass(frozen=True, eq=False, slots=True)
class IndexSlots:
    """`head` is the file up to its units, the header included; `pages` is 1 for a page of it that changed."""

    head: NDArray[np.uint8]
    pages: NDArray[np.uint8]

    @classmethod
    def empty(cls, geometry: IndexGeometry) -> IndexSlots:
        return cls._of(np.zeros(geometry.units_start, np.uint8))

    @classmethod
    def read(cls, view: FileView, geometry: IndexGeometry) -> IndexSlots:
        """The slots of a file; those that a short file lacks are empty."""
        size = geometry.units_start
        if view.size >= size:
            return cls._of(view.copy_on_write(size))
        slots = cls.empty(geometry)
        view.read_into(0, slots.head[: view.size - view.size % INDEX_SLOT.itemsize])
        return slots

    @classmethod
    def _of(cls, head: NDArray[np.uint8]) -> IndexSlots:
        return cls(head, np.zeros(-(-len(head) // _PAGE), np.uint8))

    @property
    def values(self) -> NDArray[np.int32]:
        """The slots as INDEX_SLOT, to be changed together with `mark`."""
        return self.head[INDEX_HEADER.itemsize :].view(INDEX_SLOT)

    def mark(self, numbers: NDArray[np.int64] | Sequence[int]) -> None:
        """Notes that the slots of these numbers have changed."""
        self.pages[(np.asarray(numbers, np.int64) * INDEX_SLOT.itemsize + INDEX_HEADER.itemsize) // _PAGE] = 1

    def write(self, file: WritableFile) -> None:
        """Writes the changed pages, without the header."""
        changed = np.flatnonzero(self.pages)
        if not len(changed):
            return
        cuts = np.flatnonzero(np.diff(changed) > _GAP_PAGES_MAX) + 1
        for low, high in zip([0, *cuts.tolist()], [*cuts.tolist(), len(changed)], strict=True):
            start = max(int(changed[low]) * _PAGE, INDEX_HEADER.itemsize)
            file.write(start, self.head[start : (int(changed[high - 1]) + 1) * _PAGE])
        self.pages[:] = 0
