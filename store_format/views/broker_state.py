"""What brokers note for themselves: the entries of index files, the numbers of checkpoints; and what
`diagnose` finds.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from store_format.diagnose.problems import PROBLEM_COLUMNS
from store_format.display.columns import (
    BROKER,
    INT,
    LONG,
    TEXT,
    TIME,
    ViewColumn,
    batch_of,
    batches_of,
    schema_of,
    time_us,
)
from store_format.index.file import IndexFile, open_index_files
from store_format.metadata.checkpoint import CHECKPOINT_SINCE, read_checkpoint
from store_format.metadata.read import config_path
from store_format.metadata.timer import read_timer_check

if TYPE_CHECKING:
    from store_format.read.store import Store

__all__ = ["CHECKPOINT_COLUMNS", "INDEX_COLUMNS", "checkpoint", "index", "problems"]

_log = logging.getLogger(__name__)

_ENTRIES_A_BATCH = 1 << 15
_CLAMPED = 2**31 - 1
_TIMER_SINCE = "5.0"

INDEX_COLUMNS = (
    BROKER,
    ViewColumn("file", TEXT, "The index file."),
    ViewColumn("number", INT, "The entry's number, from 1."),
    ViewColumn("slot", INT, "The hash slot that leads to it."),
    ViewColumn("keyHash", INT, "The hash of `topic#key`: all that is stored of the key."),
    ViewColumn("physicalOffset", LONG, "The message it leads to."),
    ViewColumn(
        "storeTimestamp", TIME, "When that was stored, to the second; null where the broker could not tell."
    ),
    ViewColumn("previous", INT, "The entry before it in the slot's chain; 0 for none."),
)

CHECKPOINT_COLUMNS = (
    BROKER,
    ViewColumn("file", TEXT, "`checkpoint`, or `config/timercheck`."),
    ViewColumn("name", TEXT, "What the number is, as the broker names it."),
    ViewColumn("value", LONG, "The number; 0 where the broker has not set it."),
    ViewColumn("timestamp", TIME, "The same as a time, if it is one."),
    ViewColumn("since", TEXT, "The first release that writes it."),
)


def index(store: Store, now_ms: int) -> Iterator[pa.RecordBatch]:
    """One row an entry, file by file. A file whose numbers of slots and units its entries do not prove is
    left out, with a warning.
    """
    yield batch_of(INDEX_COLUMNS, ())
    for file in open_index_files(f"{store.path}/index"):
        with file:
            if file.geometry is None:
                _log.warning("%s: its entries do not prove its geometry, so they are not shown", file.path)
            else:
                yield from _entries(store, file)


def _entries(store: Store, file: IndexFile) -> Iterator[pa.RecordBatch]:
    begin = file.header().begin_timestamp
    slots = file.geometry.hash_slot_num if file.geometry is not None else 1
    units = file.units()
    for start in range(0, len(units), _ENTRIES_A_BATCH):
        part = units[start : start + _ENTRIES_A_BATCH]
        hashes, seconds = part["key_hash"].astype(np.int32), part["time_diff"].astype(np.int64)
        numbers = np.arange(start + 1, start + 1 + len(part), dtype=np.int32)
        times = [
            time_us(begin + second * 1000) if 0 <= second < _CLAMPED else None for second in seconds.tolist()
        ]
        columns = [
            pa.repeat(pa.scalar(store.broker_name, TEXT), len(part)),
            pa.repeat(pa.scalar(file.path.removeprefix(f"{store.path}/"), TEXT), len(part)),
            pa.array(numbers),
            pa.array((hashes.astype(np.int64) % slots).astype(np.int32)),
            pa.array(hashes),
            pa.array(part["physical_offset"].astype(np.int64)),
            pa.array(times, TIME),
            pa.array(part["prev_index"].astype(np.int32)),
        ]
        yield pa.RecordBatch.from_arrays(columns, schema=schema_of(INDEX_COLUMNS))


def checkpoint(store: Store, now_ms: int) -> Iterator[pa.RecordBatch]:
    """One row a number: how far the broker had flushed, and how far its timer has got."""
    rows: list[tuple[object, ...]] = []
    for file, read, since in (
        ("checkpoint", read_checkpoint(f"{store.path}/checkpoint"), CHECKPOINT_SINCE),
        ("config/timercheck", read_timer_check(config_path(store.path, "timercheck")), {}),
    ):
        for name, value in (asdict(read) if read is not None else {}).items():
            time = time_us(value) if name.endswith(("timestamp", "time")) and value > 0 else None
            rows.append((store.broker_name, file, _camel(name), value, time, since.get(name, _TIMER_SINCE)))
    return batches_of(CHECKPOINT_COLUMNS, rows)


def _camel(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(word.capitalize() for word in others)


def problems(store: Store, now_ms: int) -> Iterator[pa.RecordBatch]:
    """One row a problem, in the order in which they are looked for. The whole commitlog is read."""
    from store_format.diagnose import diagnose  # all its rooms: other views do not wait for them

    found = diagnose(store.path, store.commit_log_paths)
    rows = (
        (store.broker_name, each.severity, each.file, each.position, each.expected, each.found, each.advice)
        for each in found
    )
    return batches_of(PROBLEM_COLUMNS, rows)
