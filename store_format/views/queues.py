"""Topics and queues: what is configured, what lies on disk, and how much of it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from store_format.display.columns import BOOL, BROKER, INT, LONG, TEXT, TIME, ViewColumn, batches_of, time_us
from store_format.metadata.read import Topics, read_topics
from store_format.names import perm_text
from store_format.views.measure import measure

if TYPE_CHECKING:
    from store_format.read.store import Queue, Store

__all__ = ["QUEUE_COLUMNS", "TOPIC_COLUMNS", "queues", "topics"]


QUEUE_COLUMNS = (
    BROKER,
    ViewColumn("topic", TEXT, "The topic."),
    ViewColumn("queueId", INT, "The queue."),
    ViewColumn("minOffset", LONG, "The first offset that can be read."),
    ViewColumn("maxOffset", LONG, "The offset behind the last message."),
    ViewColumn("messages", LONG, "`maxOffset` less `minOffset`."),
    ViewColumn(
        "bytes",
        LONG,
        "Their bytes in the commitlog. A light queue (`%LMQ%`) shares the bytes of the topic that stores them.",
    ),
    ViewColumn("firstStoreTimestamp", TIME, "When the first of them was stored."),
    ViewColumn("lastStoreTimestamp", TIME, "When the last of them was stored."),
    ViewColumn(
        "source",
        TEXT,
        "What leads to the messages: `consumequeue`, `batchconsumequeue`, or the `commitlog` alone.",
    ),
)

TOPIC_COLUMNS = (
    BROKER,
    ViewColumn("topic", TEXT, "The topic."),
    ViewColumn("configured", BOOL, "Whether topics.json has it; null without that file (RocksDB)."),
    ViewColumn("readQueueNums", INT, "Queues that consumers read."),
    ViewColumn("writeQueueNums", INT, "Queues that producers write to."),
    ViewColumn("perm", TEXT, "`RW-`: readable, writable, not inherited, as mqadmin shows it."),
    ViewColumn("ordered", BOOL, "The topic's `order` flag."),
    ViewColumn("queueType", TEXT, "`SimpleCQ` or `BatchCQ`."),
    ViewColumn("cleanupPolicy", TEXT, "`DELETE` or `COMPACTION`."),
    ViewColumn("messageType", TEXT, "`NORMAL`, `FIFO`, `DELAY`, `TRANSACTION`, …"),
    ViewColumn("queues", INT, "Queues that have messages, or had some."),
    ViewColumn("messages", LONG, "Messages that can be read."),
    ViewColumn("bytes", LONG, "Their bytes in the commitlog."),
    ViewColumn("firstStoreTimestamp", TIME, "When the oldest of them was stored."),
    ViewColumn("lastStoreTimestamp", TIME, "When the newest of them was stored."),
)


@dataclass(frozen=True, slots=True)
class _Sized:
    """A queue, its bytes, and the store times of its first and last message."""

    queue: Queue
    bytes: int
    first: int | None
    last: int | None


def queues(store: Store, now_ms: int) -> Iterator[pa.RecordBatch]:
    """One row a queue."""
    return batches_of(QUEUE_COLUMNS, (_queue_row(store.broker_name, sized) for sized in _sized(store)))


def _queue_row(broker_name: str, sized: _Sized) -> tuple[object, ...]:
    queue = sized.queue
    return (
        broker_name,
        queue.topic,
        queue.queue_id,
        queue.min_offset,
        queue.max_offset,
        queue.max_offset - queue.min_offset,
        sized.bytes,
        time_us(sized.first),
        time_us(sized.last),
        "commitlog"
        if queue.scanned is not None
        else "batchconsumequeue"
        if queue.range.is_batch
        else "consumequeue",
    )


def _sized(store: Store) -> list[_Sized]:
    found = store.queues()
    edges = {(queue.topic, queue.queue_id): _edges(queue) for queue in found}
    measured = measure(store, found, edges)
    sized = []
    for queue in found:
        low, last, high = _edges(queue)
        stretches = measured[queue.topic, queue.queue_id]
        sized.append(
            _Sized(queue, stretches.bytes_between(low, high), stretches.time_at(low), stretches.time_at(last))
        )
    return sized


def _edges(queue: Queue) -> tuple[int, int, int]:
    return queue.min_offset, max(queue.max_offset - 1, queue.min_offset), queue.max_offset


def topics(store: Store, now_ms: int) -> Iterator[pa.RecordBatch]:
    """One row for each topic that is configured or has queues."""
    configured = read_topics(store.path)
    by_topic: dict[str, list[_Sized]] = defaultdict(list)
    for sized in _sized(store):
        by_topic[sized.queue.topic].append(sized)
    names = sorted({*by_topic, *(configured or ())})
    rows = (
        (store.broker_name, name, *_topic_row(name, configured, by_topic.get(name, ()))) for name in names
    )
    return batches_of(TOPIC_COLUMNS, rows)


def _topic_row(name: str, configured: Topics | None, sized: Sequence[_Sized]) -> tuple[object, ...]:
    config = None if configured is None else configured.get(name)
    times = [time for each in sized for time in (each.first, each.last) if time is not None]
    settings: tuple[object, ...] = (None,) * 7
    if config is not None:
        settings = (
            config.read_queue_nums, config.write_queue_nums, perm_text(config.perm), config.order,
            config.queue_type, config.cleanup_policy, config.message_type,
        )  # fmt: skip
    return (
        None if configured is None else config is not None,
        *settings,
        len(sized),
        sum(each.queue.max_offset - each.queue.min_offset for each in sized),
        sum(each.bytes for each in sized),
        time_us(min(times, default=None)),
        time_us(max(times, default=None)),
    )
