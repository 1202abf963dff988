"""Reads the messages of chosen queues for a view, with or without consume queues.

A damaged message is left out and counted in a warning; the view `problems` names it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from store_format.message.columns import DecodeOptions
from store_format.names import QueueKey
from store_format.read.store import read_pieces
from store_format.read.tolerance import Tolerance

if TYPE_CHECKING:
    from store_format.read.store import Queue


def read_queues(
    queues: Sequence[Queue],
    columns: Sequence[str],
    starts: Mapping[QueueKey, int] | None = None,
) -> Iterator[pa.RecordBatch]:
    """The messages of the queues, each queue in order, from its offset in `starts` if it has one.

    Names in `columns` that are no columns are properties.
    """
    tolerance = Tolerance("DROPMALFORMED", fail_on_data_loss=False)
    starts = starts or {}
    pieces = [(queue, queue.piece(starts.get(queue.key))) for queue in queues]
    yield from read_pieces(pieces, DecodeOptions(tuple(columns), verify_crc=False), tolerance)
