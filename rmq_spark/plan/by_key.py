"""Where the messages with a key or an id stand, by the index files: so that a read of one message is not a
read of all.

What is known is only where to look; each message is then read and tested as every other. Where the index
leaves too much of the commitlog to be scanned, or cannot know, nothing is known, and the tasks look at
everything.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from rmq_spark.options.read_options import ReadOptions
from store_format import Queue
from store_format.consumequeue.slices import QueueSlice
from store_format.errors import CorruptStoreError, StorePermissionError
from store_format.names import is_light_queue
from store_format.read.store import Store
from store_format.search.look_up import How, Question, bytes_to_scan, look_up

__all__ = ["narrowed", "places_of_key"]

_log = logging.getLogger("rmq_spark")

_SCAN_BYTES_MAX = 1 << 30  # about a second of planning; more is for the tasks


def places_of_key(
    store: Store, queues: Sequence[Queue], options: ReadOptions
) -> Mapping[tuple[str, int], list[int]] | None:
    """The queue offsets of the messages asked for by `key` or `messageId`, by queue; None when all messages
    have to be looked at.

    The index knows the topic that a message is stored under, so light queues are looked at; and PERMISSIVE
    shows damaged messages, which have no key.
    """
    if (options.key is None and options.message_id is None) or not queues or options.permissive:
        return None
    topics = {queue.topic for queue in queues}
    if any(is_light_queue(topic) for topic in topics):
        return None
    question = Question(options.key, options.message_id, next(iter(topics)) if len(topics) == 1 else None)
    how = How(
        ("topic", "queueId", "queueOffset"),
        verify_crc=options.verify_crc,
        hash_slot_num=options.max_hash_slot_num,
        index_num=options.max_index_num,
    )
    try:
        if bytes_to_scan(store, question, how) > _SCAN_BYTES_MAX:
            return None
        found = look_up(store, question, how)
    except (
        CorruptStoreError,
        StorePermissionError,
    ) as error:  # perhaps of a topic that nobody asked for: the tasks will say it, or not
        _log.info("%s: looking at all messages, since the index or the log is damaged: %s", store.path, error)
        return None
    _log.info("%s: %d messages found by %s: %s", store.path, found.table.num_rows, found.how, found.searched)
    places: dict[tuple[str, int], list[int]] = {}
    for row in found.table.select(["topic", "queueId", "queueOffset"]).to_pylist():
        places.setdefault((row["topic"], row["queueId"]), []).append(row["queueOffset"])
    return places


def narrowed(piece: QueueSlice, offsets: Sequence[int]) -> Iterator[QueueSlice]:
    """The parts of a slice that hold the offsets, those that follow one another together."""
    wanted = sorted({offset for offset in offsets if piece.start <= offset < piece.stop})
    start = 0
    for i in range(1, len(wanted) + 1):
        if i == len(wanted) or wanted[i] != wanted[i - 1] + 1:
            yield replace(piece, start=wanted[start], stop=wanted[i - 1] + 1)
            start = i
