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
        found += [None] * len(mine) if file is None else _in_file(log, file, mine)
    return found


def _in_file(log: CommitLog, file: StoreFile, places: list[tuple[int, int]]) -> Sequence[UnitBytes | None]:
    offsets, sizes = np.array(places, np.int64).T
    try:
        (window,) = log.unit_windows(file, [(offsets, sizes)])
    except StoreNotFoundError:
        return [None] * len(places)
    ends = window.positions + np.maximum(sizes, 0)
    return [
        (file, window.data[start:end].tobytes())
        for start, end in zip(window.positions.tolist(), ends.tolist(), strict=True)
    ]
