"""Reads the messages of chosen queues for a view, with or without consume queues.

A damaged message is left out and counted in a warning; the view `problems` names it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from store_format.message.columns import DecodeOptions
from store_format.names import QueueKey
from store_format.read.log_reader import LogReader
from store_format.read.tolerance import Tolerance

if TYPE_CHECKING:
    from store_format.read.store import Queue, Store

__all__ = ["read_queues"]


def read_queues(
    store: Store,
    queues: Sequence[Queue],
    columns: Sequence[str],
    starts: Mapping[QueueKey, int] | None = None,
) -> Iterator[pa.RecordBatch]:
    """The messages of the queues, each queue in order, from its offset in `starts` if it has one.

    Names in `columns` that are no columns are properties.
    """
    tolerance = Tolerance("DROPMALFORMED", fail_on_data_loss=False)
    reader = store.reader(DecodeOptions(tuple(columns), verify_crc=False), tolerance)
    from_files = [queue for queue in queues if queue.scanned is None]
    pieces = [queue.piece((starts or {}).get((queue.topic, queue.queue_id))) for queue in from_files]
    yield from reader.read([piece for piece in pieces if piece.start < piece.stop])
    scanned = {(queue.topic, queue.queue_id): queue.scanned for queue in queues if queue.scanned is not None}
    if scanned:
        slices = [
            queue.piece((starts or {}).get((queue.topic, queue.queue_id)))
            for queue in queues
            if queue.scanned is not None
        ]
        stop = max(queue.physical_stop for queue in scanned.values())
        yield from LogReader(reader, slices, scanned).read(store.log.min_offset, stop)
