"""The view `index`: the entries of the index files."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from store_format.display.columns import (
    BROKER,
    INT,
    LONG,
    TEXT,
    TIME,
    ViewColumn,
    batch_of,
    schema_of,
    time_us,
)
from store_format.index.file import IndexFile, open_index_files
from store_format.views.view import View

if TYPE_CHECKING:
    from store_format.read.store import Store

_log = logging.getLogger(__name__)

_CLAMPED = 2**31 - 1

INDEX_COLUMNS = (
    BROKER,
    ViewColumn("file", TEXT, "The index file."),
    ViewColumn("number", INT, "The entry's number, from 1."),
    ViewColumn("slot", INT, "The hash slot of the entry."),
    ViewColumn("keyHash", INT, "The hash of `topic#key`; the key itself is not stored."),
    ViewColumn("physicalOffset", LONG, "The physical offset of the message."),
    ViewColumn(
        "storeTimestamp", TIME, "When the message was stored, to the second; null if the broker did not know."
    ),
    ViewColumn("previous", INT, "The previous entry in the slot's chain; 0 if there is none."),
)


def index(store: Store, now_ms: int) -> Iterator[pa.RecordBatch]:
    """One row for each entry, file by file.

    A file whose entries do not prove its numbers of slots and units is left out, with a warning.
    """
    yield batch_of(INDEX_COLUMNS, ())
    for file in open_index_files(f"{store.path}/index"):
        with file:
            if file.geometry is None:
                _log.warning(
                    "%s: the entries do not prove the numbers of hash slots and entries of the file; they "
                    "are not shown",
                    file.path,
                )
            else:
                yield from _entries(store, file)


def _entries(store: Store, file: IndexFile) -> Iterator[pa.RecordBatch]:
    begin = file.header().begin_timestamp
    slots = file.geometry.hash_slot_num if file.geometry is not None else 1
    for first, part in file.chunks():
        hashes, seconds = part["key_hash"].astype(np.int32), part["time_diff"].astype(np.int64)
        numbers = np.arange(first, first + len(part), dtype=np.int32)
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


VIEW = View("index", "The entries of the index files.", INDEX_COLUMNS, index)
