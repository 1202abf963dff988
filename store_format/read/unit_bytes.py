"""The bytes of a few message units at known places of the commitlog, in as few reads as possible."""

from __future__ import annotations

from collections.abc import Sequence

from store_format.commitlog.log import CommitLog
from store_format.errors import StoreNotFoundError
from store_format.files.read import StoreFile
from store_format.files.view import FileView

_GAP_MAX = 64 << 10  # bytes of other messages that one read may take along
_READ_MAX = 4 << 20
_SHOWN_SIZE = 128  # of a long unit whose entry has another size: the head, which shows what is wrong

# (commitlog file, bytes from the unit's first); b"" or too few bytes where the file ends earlier
UnitBytes = tuple[StoreFile, bytes]


def read_units(log: CommitLog, places: Sequence[tuple[int, int]]) -> list[UnitBytes | None]:
    """The units at (physical offset, size), ascending; None for a unit whose file is not there.

    Neighbours are read together, other messages between them included. Nothing is checked.
    """
    found: list[UnitBytes | None] = []
    while len(found) < len(places):
        index = len(found)
        start = places[index][0]
        file = log.file_at(start)
        if file is None:
            found.append(None)
            continue
        last, stop = _joined(places, index, file)
        try:
            view = log.view(file)
            if stop - start > _READ_MAX and _stored_size(view, start - file.start) != places[index][1]:
                stop = start + _SHOWN_SIZE
            data = view.read(start - file.start, stop - start)
        except StoreNotFoundError:
            found += [None] * (last - index)
        else:
            found += [
                (file, data[offset - start : max(offset - start + size, 0)])
                for offset, size in places[index:last]
            ]
    return found


def _joined(places: Sequence[tuple[int, int]], index: int, file: StoreFile) -> tuple[int, int]:
    """(index after the last unit to read together with the one at `index`, where the read stops)."""
    start, size = places[index]
    stop = min(start + max(size, 0), file.stop)
    for last in range(index + 1, len(places)):
        offset, size = places[last]
        end = min(max(stop, offset + size), file.stop)
        if not start <= offset < file.stop or offset - stop > _GAP_MAX or end - start > _READ_MAX:
            return last, stop
        stop = end
    return len(places), stop


def _stored_size(view: FileView, position: int) -> int:
    return int.from_bytes(view.read(position, 4), "big")
