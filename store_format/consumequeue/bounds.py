"""Where a queue begins and ends on disk, for both kinds of consume queue."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from store_format.consumequeue.batch import batch_edges, valid_batch_units
from store_format.consumequeue.files import (
    Edges,
    FileRun,
    QueueBounds,
    QueueKind,
    UnitFiles,
    Validity,
    file_run,
)
from store_format.consumequeue.simple import simple_edges, valid_units
from store_format.errors import OffsetOutOfRangeError, StoreNotFoundError
from store_format.layouts import BATCH_CQ_UNIT, CQ_UNIT

_LISTINGS = 3  # the broker may delete the oldest file between the listing and the opening


class _Rules(NamedTuple):
    layout: np.dtype[np.void]
    is_valid: Validity
    edges: Callable[[UnitFiles, FileRun, int, int], Edges]


_RULES: dict[QueueKind, _Rules] = {
    "simple": _Rules(CQ_UNIT, valid_units, simple_edges),
    "batch": _Rules(BATCH_CQ_UNIT, valid_batch_units, batch_edges),
}


def queue_bounds(
    kind: QueueKind,
    directory: str,
    topic: str,
    queue_id: int,
    commit_log_min: int,
    *,
    commit_log_stop: int | None = None,
    scan: bool = False,
    clean: bool = False,
    likely: int | None = None,
) -> QueueBounds | None:
    """Where the queue of a directory begins and ends; None when it has no files.

    `commit_log_min` is the start of the first commitlog file: units that point before it are expired. After a
    crash, units that point to `commit_log_stop` or behind it do not count
    (ConsumeQueue.truncateDirtyLogicFiles), and `scan` finds the first invalid unit even if valid ones follow
    (UnitFiles.find_stop). `clean` says that the store was shut down cleanly.
    `likely` is the number behind the last unit, if it is not wrong.

    Raises CorruptStoreError when the files do not fit together, or have damage that a clean shutdown does not
    leave.
    """
    rules = _RULES[kind]
    size, is_valid = rules.layout.itemsize, _valid_below(rules.is_valid, commit_log_stop)
    for _ in range(_LISTINGS):
        run = file_run(directory, size, clean=clean)
        if run is None:
            return None
        with UnitFiles(directory, rules.layout, run, (topic, queue_id)) as files:
            try:
                stop = files.find_stop(is_valid, scan=scan, clean=clean, likely=likely)
                edges = rules.edges(files, run, stop, commit_log_min)
            except OffsetOutOfRangeError:
                continue
        last_file = max(run.first_file, (stop * size - 1) // run.file_size * run.file_size)
        place = (directory, kind, run.file_size, run.first_file, last_file)
        return QueueBounds(topic, queue_id, *place, commit_log_min, *edges)
    raise StoreNotFoundError(
        f"{directory}: its files are deleted while they are listed, {_LISTINGS} times; is the store being "
        "deleted?"
    )


def first_unit_from(files: UnitFiles, queue: QueueBounds, physical: int, low: int) -> int:
    """The number of the queue's first unit, from `low` on, that points to the physical offset or behind it.

    By bisection: units of zeros, which are damage, lie before it.
    """
    high = queue.unit_stop
    while low < high:
        middle = (low + high) // 2
        if int(files.read(middle, middle + 1)["physical_offset"][0]) < physical:
            low = middle + 1
        else:
            high = middle
    return low


def _valid_below(is_valid: Validity, commit_log_stop: int | None) -> Validity:
    """`is_valid`, and a physical offset before the commitlog's end, if that is known."""
    if commit_log_stop is None:
        return is_valid
    return lambda units: is_valid(units) & (units["physical_offset"] < commit_log_stop)
