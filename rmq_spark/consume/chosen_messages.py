"""Reads the messages of queues that have given store times, tags, keys and properties."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from store_format.java.hashes import tags_code
from store_format.message.columns import DecodeOptions
from store_format.read.store import Queue, read_pieces

if TYPE_CHECKING:
    from rmq_spark.consume.sql92 import Sql92Filter
    from store_format.read.tolerance import Tolerance

_STORED = "storeTimestampMs"


def offsets_in_time(
    queue: Queue, since_ms: int | None, until_ms: int | None, *, on_damage: str = "FAILFAST"
) -> tuple[int, int]:
    """The offsets [start, stop) that may hold messages of these store times, found by the broker's search.

    `since_ms` is inclusive, `until_ms` exclusive. A BatchCQ queue and a queue known only from the commitlog
    are not narrowed.
    """
    start, stop = queue.min_offset, queue.max_offset
    if queue.range.is_batch or queue.scanned is not None:
        return start, stop
    if since_ms is not None:
        start = queue.offset_at(since_ms, on_damage=on_damage)
    if until_ms is not None:
        stop = queue.offset_at(until_ms, on_damage=on_damage)
    return start, stop


def read_chosen(
    ranges: Iterable[tuple[Queue, int, int]],
    columns: Sequence[str],
    tolerance: Tolerance,
    *,
    since_ms: int | None = None,
    until_ms: int | None = None,
    where: Sql92Filter | None = None,
    tags: Collection[str] = (),
    key: str | None = None,
) -> Iterator[pa.RecordBatch]:
    """Batches of the chosen messages in these ranges of offsets, with the columns and `storeTimestampMs`."""
    counting = None
    if where is not None:
        from rmq_spark.consume.sql92 import CountingFilter  # 5 ms that few calls need

        counting = CountingFilter(where)
    decode_options = DecodeOptions(
        tuple(dict.fromkeys((*columns, _STORED))), tags=frozenset(tags) or None, key=key, where=counting
    )
    codes = frozenset(map(tags_code, tags)) or None
    pieces = [(queue, queue.piece(start, stop)) for queue, start, stop in ranges if start < stop]
    for batch in read_pieces(pieces, decode_options, tolerance, codes):
        for bound, compare in ((since_ms, pc.greater_equal), (until_ms, pc.less)):
            if bound is not None:
                batch = batch.filter(compare(batch[_STORED], pa.scalar(bound, pa.int64())))
        yield batch
