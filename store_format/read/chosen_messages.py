"""Reads the messages of queues that a choice takes."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from store_format.display.rows import iso_utc
from store_format.display.text import shown
from store_format.message.columns import DecodeOptions
from store_format.read.choice import BodyFilter, MessageChoice
from store_format.read.store import Queue, Store, read_pieces
from store_format.read.tolerance import Tolerance

Rows = TypeVar("Rows", "pa.RecordBatch", "pa.Table")
_STORED = "storeTimestampMs"
_log = logging.getLogger(__name__)


def chosen_queues(store: Store, choice: MessageChoice) -> list[Queue]:
    """The queues that the choice takes."""
    return [
        queue
        for queue in store.queues(choice.chooses_topic)
        if choice.chooses_queue(queue.topic, store.broker_name, queue.queue_id)
    ]


def offsets_in_time(queue: Queue, choice: MessageChoice, *, on_damage: str = "FAILFAST") -> tuple[int, int]:
    """The offsets [start, stop) that may hold messages of the choice's store times, found by the broker's
    search, from the choice's `offset` on.

    A BatchCQ queue, whose entries have the times of batches only, and a queue known only from the commitlog
    are not narrowed by time.
    """
    start, stop = queue.min_offset, queue.max_offset
    if not queue.range.is_batch and queue.scanned is None:
        if choice.since_ms is not None:
            start = queue.first_since(choice.since_ms, on_damage=on_damage)
        if choice.until_ms is not None:
            stop = queue.first_since(choice.until_ms, on_damage=on_damage)
    start = max(start, choice.offset or 0)
    return start, max(start, stop)


def warn_of_deleted(begins: Iterable[tuple[Queue, int, int]], option: str) -> None:
    """Warns, once for all queues, that retention has deleted messages since a time.

    `begins` has queues with the first offset to read and the time in ms that led to it; `option` is the name
    of that time. No queue is read: where the time leads to the first offset of a queue, above 0, messages
    before this offset were deleted. They are all older than the first message of the commitlog, which is read
    once for each store. How many of them are newer than the time is unknown, so the warning has the number of
    all.
    """
    oldest: dict[str, int] = {}  # by path
    late: list[tuple[Queue, int]] = []
    for queue, start, since_ms in begins:
        if not start == queue.min_offset > 0:
            continue
        store = queue.store
        if store.path not in oldest:
            oldest[store.path] = store.time_at(store.log.min_offset) if store.log.files else -1
        if oldest[store.path] < 0 or since_ms < oldest[store.path]:  # -1: unknown
            late.append((queue, since_ms))
    if late:
        queue, since_ms = late[0]
        _log.warning(
            "%s after %s (%s): earlier messages were deleted, as in %s of %s, which begins at offset %d; "
            "in all, %d deleted messages may be newer than the time: do not overwrite what an earlier read "
            "of this time wrote",
            "1 queue begins" if len(late) == 1 else f"{len(late)} queues begin",
            option,
            iso_utc(since_ms),
            shown(f"{queue.topic}-{queue.queue_id}"),
            shown(queue.store.broker_name),
            queue.min_offset,
            sum(each.min_offset for each, _ in late),
        )


def ranges_in_time(
    queues: Iterable[Queue], choice: MessageChoice, *, on_damage: str = "FAILFAST"
) -> list[tuple[Queue, int, int]]:
    """Each queue with its `offsets_in_time`. Warns if messages since the choice's time were deleted."""
    ranges = [(queue, *offsets_in_time(queue, choice, on_damage=on_damage)) for queue in queues]
    if choice.since_ms is not None:
        warn_of_deleted(((queue, start, choice.since_ms) for queue, start, _ in ranges), "since")
    return ranges


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
