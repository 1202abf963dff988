"""Queues of a few entries that are all as the commitlog says. A broker with 10,000 queues has mostly such
ones: whole arrays find them, and `queues.py` reads only the others one by one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from store_format.consumequeue.units import lost_mask, pre_blank_mask, valid_units
from store_format.diagnose.commitlog import Targets
from store_format.files.view import FileView
from store_format.layouts import CQ_EXT_ADDRESS_MAX, CQ_UNIT
from store_format.names import QueueKey
from store_format.survey.queues import ComparedQueue

_UNITS_MAX = 512  # entries of a plain queue
_UNITS_READ = 3 * _UNITS_MAX  # what a look at each entry reads of a queue of so many
_FEW_UNITS = 24  # that most queues have
_QUEUES_AT_ONCE = 64  # whose blocks stay in a processor's cache

_Bytes = NDArray[np.uint8]
_Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class PlainEntries:
    """The queue offset behind the last entry of a queue, and the physical offset in its first one."""

    stop: int
    first_physical: int


def plain_queues(queues: Iterable[ComparedQueue], targets: Targets) -> dict[QueueKey, PlainEntries]:
    """Those of the compared local queues whose only file begins with an entry for each of their messages, in
    the order of the log, and has zeros behind them. A look at each entry would report nothing.
    """
    asked = [queue for queue in queues if _may_be_plain(queue)]
    into = np.empty((min(len(asked), _QUEUES_AT_ONCE), _UNITS_READ * CQ_UNIT.itemsize), np.uint8)
    found: dict[QueueKey, PlainEntries] = {}
    for low in range(0, len(asked), _QUEUES_AT_ONCE):
        mine = asked[low : low + _QUEUES_AT_ONCE]
        is_read = FileView.begins([next(iter(queue.stored.files.values())) for queue in mine], into)
        for row, count, physical in _ends(into[: len(mine)], targets):
            queue = mine[row]
            if is_read[row] and count == queue.equal:
                found[queue.key] = PlainEntries(queue.stored.first + count, physical)
    return found


def _may_be_plain(queue: ComparedQueue) -> bool:
    is_as_in_log = not (
        queue.differences or queue.seen.claims.repeated or queue.error or queue.places.problem
    )
    has_one_file = len(queue.stored.files) == 1 and not queue.stored.misfit and not queue.stored.is_batch
    return is_as_in_log and has_one_file and 0 < queue.equal <= _UNITS_MAX


def _ends(blocks: _Bytes, targets: Targets) -> Iterator[tuple[int, int, int]]:
    """(row, entries, physical offset in the first entry) of the blocks of plain queues."""
    used = (_FEW_UNITS * CQ_UNIT.itemsize, _UNITS_MAX * CQ_UNIT.itemsize)
    is_long, is_longer = (blocks[:, size:].view(np.uint64).max(axis=1, initial=0) > 0 for size in used)
    for units_max, is_asked in (_FEW_UNITS, ~is_long), (_UNITS_MAX, is_long & ~is_longer):
        rows = np.flatnonzero(is_asked)
        size = (units_max + 1) * CQ_UNIT.itemsize  # an empty unit ends them
        counts, physical = _plain_counts(blocks[rows, :size].view(CQ_UNIT), targets)
        plain = np.flatnonzero(counts)
        yield from zip(rows[plain].tolist(), counts[plain].tolist(), physical[plain].tolist(), strict=True)


def _plain_counts(units: NDArray[np.void], targets: Targets) -> tuple[_Ints, _Ints]:
    """The entries of each row, 0 for one that is not plain, and the physical offset in the first one."""
    physical = units["physical_offset"].astype(np.int64)
    valid = valid_units(units)
    counts = valid.argmin(axis=1)
    is_behind = ~valid
    words = units.view(np.uint32).reshape(*units.shape, CQ_UNIT.itemsize // np.uint32().itemsize)
    right = ~pre_blank_mask(units) & ~lost_mask(units) & (units["tags_code"] > CQ_EXT_ADDRESS_MAX)
    right &= targets.readable(physical.reshape(-1)).reshape(units.shape)
    right[:, 1:] &= physical[:, 1:] >= physical[:, :-1]
    right |= is_behind & ~words.any(axis=2)
    plain = (np.count_nonzero(valid, axis=1) == counts) & right.all(axis=1)
    return np.where(plain, counts, 0), physical[:, 0]
