"""The links that the units of an index file must have: a unit leads to the unit before it in its slot, and a
slot to its newest unit (IndexFile.putKey).

One pass compares them, without following a chain: a link to a later unit would lead a broker in a circle, and
a link that skips units hides their messages.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from store_format.index.file import IndexFile
from store_format.layouts import INDEX_HEADER, INDEX_SLOT, INDEX_UNIT

_CHUNK = 1 << 16  # units or slots
_PREV_AT, _SLOT_COUNT_AT = 16, 32  # in a unit, and in the header


class WrongLink(NamedTuple):
    """The link at byte `position` of the file leads to unit `found`, not to unit `right` (0: to none).

    `what` has it: unit `number`, or a slot. An empty `what`: the header counts `found` slots in use, not
    `right`.
    """

    position: int
    what: str
    number: int
    right: int
    found: int


def wrong_links(file: IndexFile, stop: int, *, is_live: bool = False) -> Iterator[WrongLink]:
    """The wrong links among the units up to `stop`, those of units first.

    While a broker or a commit writes (`is_live`), slots may lead to older units, or to units that the header
    does not count yet. Takes memory for all slots.
    """
    geometry = file.geometry
    assert geometry is not None
    newest = np.zeros(geometry.hash_slot_num, np.int32)
    for start in range(1, stop, _CHUNK):
        units = file.units(start, min(start + _CHUNK, stop))
        previous = _take(newest, units["key_hash"].astype(np.int64) % len(newest), start)
        for i in np.flatnonzero(units["prev_index"] != previous).tolist():
            number, found = start + i, int(units["prev_index"][i])
            position = geometry.units_start + INDEX_UNIT.itemsize * number + _PREV_AT
            yield WrongLink(position, f"unit {number}", number, int(previous[i]), found)
    for start in range(0, len(newest), _CHUNK):
        stored = file.slots(start, start + _CHUNK)
        wanted = newest[start : start + len(stored)]
        wrong = stored != wanted
        if is_live:
            wrong &= (stored > wanted) & (stored < stop)
        for i in np.flatnonzero(wrong).tolist():
            position = INDEX_HEADER.itemsize + INDEX_SLOT.itemsize * (start + i)
            yield WrongLink(position, f"slot {start + i}", 0, int(wanted[i]), int(stored[i]))
    used, counted = int(np.count_nonzero(newest)), file.header().hash_slot_count
    if used != counted and not is_live:
        yield WrongLink(_SLOT_COUNT_AT, "", 0, used, counted)


def _take(newest: NDArray[np.int32], slots: NDArray[np.int64], start: int) -> NDArray[np.int32]:
    """The unit before each of the units from number `start` on in its slot; puts them into `newest`."""
    numbers = np.arange(start, start + len(slots), dtype=np.int32)
    order = np.argsort(slots, kind="stable")
    previous = newest[slots]
    again = np.flatnonzero(np.diff(slots[order]) == 0)
    previous[order[again + 1]] = numbers[order[again]]
    newest[slots[order]] = numbers[order]  # of a slot's units the last one stays
    return previous
