"""The queues of a store whose entries RocksDB keeps: the database up to its checkpoint, and the messages of
the commitlog behind it.

A broker writes the database without a write-ahead log. What a running or killed broker has dispatched since
the checkpoint is in the commitlog alone; a broker that starts dispatches it again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache

import numpy as np

from store_format.bookkeeping.journal import StoreState
from store_format.bookkeeping.settings import broker_conf_of
from store_format.commitlog.log import CommitLog
from store_format.consumequeue.database import QueueDatabase
from store_format.consumequeue.dispatch import MadeEntries
from store_format.consumequeue.files import QueueBounds
from store_format.consumequeue.slices import QueueRange
from store_format.errors import CorruptStoreError, StoreError
from store_format.names import QueueKey
from store_format.opened.store import Opened
from store_format.survey.fates import StoredTopics
from store_format.survey.gone import QueueProofs
from store_format.survey.scan import LogScan


def queues_in_database(
    opened: Opened,
    log: CommitLog,
    state: StoreState,
    database: QueueDatabase,
    select: Callable[[str], bool],
    log_end: int | None,
) -> tuple[dict[QueueKey, QueueRange], dict[QueueKey, StoreError]]:
    """The selected queues, and those that only a scan of the commitlog can read. `log_end` as in `Snapshot`.

    Raises UnsupportedFormatError without rocksdict, and CorruptStoreError for a database that cannot be read.
    """
    stop = log.stop if log_end is None else log_end
    chosen = [key for key in database.ends if select(key[0])]
    bounds = database.bounds(opened, chosen, log.min_offset, log_end)
    start = max(database.checkpoint, log.min_offset)
    made = _made_behind(opened, log, state, start if start <= stop else log.min_offset, stop, select)
    queues, damaged = dict[QueueKey, QueueRange](), dict[QueueKey, StoreError]()
    for key in sorted(bounds.keys() | made.keys()):
        queue = _joined(key, bounds.get(key), made.get(key))
        if queue is None:
            expected = f"entries of {key[0]}-{key[1]} that the commitlog behind the checkpoint continues"
            damaged[key] = CorruptStoreError(database.directory, 0, expected, "other entries")
        else:
            queues[key] = queue
    return queues, damaged


def _made_behind(
    opened: Opened, log: CommitLog, state: StoreState, start: int, stop: int, select: Callable[[str], bool]
) -> Mapping[QueueKey, MadeEntries]:
    """The entries of the selected topics' messages in [start, stop) of the log."""
    if start >= stop:
        return {}
    if state is not StoreState.CRASHED:
        stop = _written_stop(log, start, stop)
    deleted = StoredTopics(opened).deleted_until()
    scan = LogScan(
        delay_levels_ms=broker_conf_of(opened).message_delay_levels_ms,
        index=False,
        is_live=state is StoreState.LIVE,
    )
    filing = cache(lambda: QueueProofs(opened, log).filing(state))
    made, _ = scan.entries_between(log, [(start, stop)], filing=filing)
    return {key: each for key, each in made.items() if select(key[0]) and deleted(key[0]) < stop}


def _written_stop(log: CommitLog, start: int, stop: int) -> int:
    """Where the messages from `start` on end, if nothing is written behind them: to search the rest of a file
    of 1 GiB for a message takes half a second. Else `stop`.
    """
    walk = log.walk(start, stop)
    for _ in walk:
        pass
    return walk.end.offset if walk.end is not None and log.is_unwritten(walk.end.offset) else stop


def _joined(key: QueueKey, bounds: QueueBounds | None, made: MadeEntries | None) -> QueueRange | None:
    """The queue with the entries `made` behind those of the database; None if they do not continue it."""
    high = 0 if bounds is None else bounds.max_offset
    if made is None:
        assert bounds is not None
        return QueueRange(*key, bounds.min_offset, high, bounds, kind="database")
    offsets, units = made.queue_offsets, made.units
    is_new = offsets >= high
    if bounds is not None and not is_new.all():
        _, known = (
            QueueRange(*key, bounds.min_offset, high, bounds, kind="database")
            .piece(int(offsets[0]), int(offsets[0]) + 1)
            .read()
        )
        if not len(known) or known["physical_offset"][0] != units["physical_offset"][0]:
            return None
    offsets, units = offsets[is_new], units[is_new]
    if not len(offsets):
        return QueueRange(*key, bounds.min_offset if bounds else high, high, bounds, kind="database")
    first, stop = int(offsets[0]), int(offsets[-1]) + 1
    if (bounds is not None and first != high) or stop - first != len(offsets):
        return None
    low = first if bounds is None or bounds.min_offset == high else bounds.min_offset
    tail = units.tobytes(), offsets.astype(np.int64).tobytes()
    return QueueRange(*key, low, stop, bounds, first, *tail, kind="database")
