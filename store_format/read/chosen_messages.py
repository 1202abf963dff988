"""Reads the messages of queues that a choice takes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from store_format.message.columns import DecodeOptions
from store_format.read.choice import BodyFilter, MessageChoice
from store_format.read.store import Queue, read_pieces
from store_format.read.tolerance import Tolerance

Rows = TypeVar("Rows", "pa.RecordBatch", "pa.Table")
_STORED = "storeTimestampMs"


def offsets_in_time(queue: Queue, choice: MessageChoice, *, on_damage: str = "FAILFAST") -> tuple[int, int]:
    """The offsets [start, stop) that may hold messages of the choice's store times, found by the broker's
    search.

    A BatchCQ queue, whose entries have the times of batches only, and a queue known only from the commitlog
    are not narrowed.
    """
    start, stop = queue.min_offset, queue.max_offset
    if queue.range.is_batch or queue.scanned is not None:
        return start, stop
    if choice.since_ms is not None:
        start = queue.offset_at(choice.since_ms, on_damage=on_damage)
    if choice.until_ms is not None:
        stop = queue.offset_at(choice.until_ms, on_damage=on_damage)
    return start, stop


def in_time(rows: Rows, choice: MessageChoice) -> Rows:
    """The rows of the choice's store times, by their column `storeTimestampMs`."""
    for bound, compare in ((choice.since_ms, pc.greater_equal), (choice.until_ms, pc.less)):
        if bound is not None:
            rows = rows.filter(compare(rows[_STORED], pa.scalar(bound, pa.int64())))
    return rows


def with_body(rows: Rows, wanted: str | BodyFilter) -> Rows:
    """The rows whose body contains the text, compared as UTF-8 bytes, or that the filter selects."""
    if isinstance(wanted, str):
        return rows.filter(pc.match_substring(rows["body"], wanted.encode("utf-8", "surrogateescape")))
    return rows.filter(wanted.mask(rows["body"]))


def read_chosen(
    ranges: Iterable[tuple[Queue, int, int]],
    columns: Sequence[str],
    tolerance: Tolerance,
    choice: MessageChoice,
    *,
    verify_crc: bool = True,
) -> Iterator[pa.RecordBatch]:
    """Batches of the chosen messages in these ranges of offsets, with the columns and `storeTimestampMs`."""
    names = tuple(dict.fromkeys((*columns, _STORED)))
    decode_options = DecodeOptions(
        names if choice.body is None else tuple(dict.fromkeys((*names, "body"))),
        verify_crc,
        tags=choice.tags,
        key=choice.key,
        message_id=choice.message_id,
        where=choice.where,
    )
    pieces = [(queue, queue.piece(start, stop)) for queue, start, stop in ranges]
    for batch in read_pieces(pieces, decode_options, tolerance, choice.tags_codes):
        batch = in_time(batch, choice)
        yield batch if choice.body is None else with_body(batch, choice.body).select(names)
