"""A read of one key or message id: the index files say which queue offsets to read, instead of all.

The index only says where to look: tasks read and test each message as in any other read. If the index cannot
answer, or leaves more than 1 GiB of the commitlog to scan, the tasks read everything.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from rmq_spark.options.read_options import ReadOptions
from store_format import Queue
from store_format.consumequeue.slices import QueueSlice
from store_format.errors import CorruptStoreError, StorePermissionError
from store_format.names import QueueKey, is_light_queue
from store_format.read.store import Store
from store_format.search.look_up import How, Question, bytes_to_scan, look_up

_log = logging.getLogger("rmq_spark")

_SCAN_BYTES_MAX = 1 << 30  # takes about a second of planning; the tasks scan more than that


def offsets_of_key(
    store: Store, queues: Sequence[Queue], options: ReadOptions
) -> Mapping[QueueKey, list[int]] | None:
    """The queue offsets of the messages with the `key` or `messageId` of the options, by queue.

    None means that all messages have to be read. That is so for light queues (%LMQ%), because the index knows
    a message by the topic it is stored under, and in PERMISSIVE, which returns damaged messages, too.
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
    except (CorruptStoreError, StorePermissionError) as error:
        # maybe in a topic that is not read: the tasks raise it if they meet it
        _log.info("%s: reading all messages, because the index cannot be used: %s", store.path, error)
        return None
    _log.info("%s: %d messages found by %s: %s", store.path, found.table.num_rows, found.how, found.searched)
    offsets: dict[QueueKey, list[int]] = {}
    for row in found.table.select(["topic", "queueId", "queueOffset"]).to_pylist():
        offsets.setdefault((row["topic"], row["queueId"]), []).append(row["queueOffset"])
    return offsets


def narrowed(piece: QueueSlice, offsets: Sequence[int]) -> Iterator[QueueSlice]:
    """The parts of a slice that hold the offsets: one part for each run of consecutive offsets."""
    wanted = sorted({offset for offset in offsets if piece.start <= offset < piece.stop})
    start = 0
    for i in range(1, len(wanted) + 1):
        if i == len(wanted) or wanted[i] != wanted[i - 1] + 1:
            yield replace(piece, start=wanted[start], stop=wanted[i - 1] + 1)
            start = i
