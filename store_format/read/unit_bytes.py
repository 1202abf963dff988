"""The bytes of a few message units at known places of the commitlog, in as few reads as possible."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import numpy as np

from store_format.commitlog.log import CommitLog
from store_format.errors import StoreNotFoundError
from store_format.files.read import StoreFile

# (commitlog file, bytes from the unit's first); b"" or too few bytes where the file ends earlier
UnitBytes = tuple[StoreFile, bytes]


def read_units(log: CommitLog, places: Sequence[tuple[int, int]]) -> list[UnitBytes | None]:
    """The units at (physical offset, size), ascending; None for a unit whose file is not there.

    Neighbours are read together. Nothing is checked. Of a long unit that stores another size, only the head
    is sure to be there.
    """
    found: list[UnitBytes | None] = []
    for file, group in groupby(places, lambda place: log.file_at(place[0])):
        mine = list(group)
        try:
            if file is None:
                raise StoreNotFoundError
            offsets, sizes = np.array(mine, np.int64).T
            (window,) = log.unit_windows(file, [(offsets, sizes)])
        except StoreNotFoundError:
            found += [None] * len(mine)
        else:
            data = memoryview(window.data.data)
            starts = window.positions.tolist()
            found += [
                (file, bytes(data[start : start + max(size, 0)]))
                for start, (_, size) in zip(starts, mine, strict=True)
            ]
    return found
