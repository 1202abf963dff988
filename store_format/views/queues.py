"""The views `queues` and `topics`: what each queue holds; the configuration and messages of each topic."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from store_format.display.columns import (
    BOOL,
    BROKER,
    INT,
    LONG,
    TEXT,
    TIME,
    ViewColumn,
    batches_of,
    time_us,
)
from store_format.metadata.read import TopicConfigs, read_topics
from store_format.names import perm_text
from store_format.read.store import Queue, Store
from store_format.survey.gone import QueueProofs
from store_format.views.measure import measure
from store_format.views.view import View

# ---- the view queues ---------------------------------------------------------------------------------------


QUEUE_COLUMNS = (
    BROKER,
    ViewColumn("topic", TEXT, "The topic."),
    ViewColumn("queueId", INT, "The queue."),
    ViewColumn("minOffset", LONG, "The first offset that can be read."),
    ViewColumn("maxOffset", LONG, "The offset after the last message."),
    ViewColumn(
        "messages",
        LONG,
        "`maxOffset` minus `minOffset`, without messages lost with missing parts of the commitlog or given "
        "up by a recovery.",
    ),
    ViewColumn(
        "bytes",
        LONG,
        "Bytes of these messages in the commitlog. A light queue (`%LMQ%`) shares the bytes of the topic "
        "that "
        "stores the messages.",
    ),
    ViewColumn("firstStoreTimestamp", TIME, "When the first message was stored."),
    ViewColumn("lastStoreTimestamp", TIME, "When the last message was stored."),
    ViewColumn(
        "source",
        TEXT,
        "Where the offsets come from: `consumequeue`, `batchconsumequeue`, or a scan of the `commitlog`.",
    ),
)


@dataclass(frozen=True, slots=True)
class SizedQueue:
    """A queue, its bytes, and the store times of its first and last message."""

    queue: Queue
    messages: int
    bytes: int
    first: int | None
    last: int | None


def queues(store: Store, now_ms: int) -> Iterator[pa.RecordBatch]:
    """One row for each queue."""
    return batches_of(QUEUE_COLUMNS, (_queue_row(store.broker_name, sized) for sized in sized_queues(store)))


def _queue_row(broker_name: str, sized: SizedQueue) -> tuple[object, ...]:
    queue = sized.queue
    return (
        broker_name,
        queue.topic,
        queue.queue_id,
        queue.min_offset,
        queue.max_offset,
        sized.messages,
        sized.bytes,
        time_us(sized.first),
        time_us(sized.last),
        "commitlog"
        if queue.scanned is not None
        else "batchconsumequeue"
        if queue.range.is_batch
        else "consumequeue",
    )


def sized_queues(store: Store) -> list[SizedQueue]:
    found = store.queues()
    measured = measure(store, found, {(queue.topic, queue.queue_id): _edges(queue) for queue in found})
    sized = []
    bounds = [
        each._replace(min_offset=max(each.min_offset, queue.min_offset))
        for queue in found
        if (each := queue.range.bounds) is not None
    ]
    gone = QueueProofs(store.opened, found[0].store.log).count_empty(store.state, bounds) if found else {}
    for queue in found:
        gone[queue.key] += queue.range.gaps if queue.scanned is None else queue.scanned.gaps
        low, last, high = _edges(queue)
        stretches = measured[queue.topic, queue.queue_id]
        sized.append(
            SizedQueue(
                queue,
                queue.max_offset - queue.min_offset - gone[queue.key],
                stretches.bytes_between(low, high),
                stretches.time_at(low),
                stretches.time_at(last),
            )
        )
    return sized


def _edges(queue: Queue) -> tuple[int, int, int]:
    return queue.min_offset, max(queue.max_offset - 1, queue.min_offset), queue.max_offset


QUEUES = View("queues", "Each queue: offsets, messages, bytes and times.", QUEUE_COLUMNS, queues)


# ---- the view topics ---------------------------------------------------------------------------------------


TOPIC_COLUMNS = (
    BROKER,
    ViewColumn("topic", TEXT, "The topic."),
    ViewColumn(
        "configured", BOOL, "Whether the broker's configuration has the topic; null if it cannot be read."
    ),
    ViewColumn("readQueueNums", INT, "Number of queues that consumers read."),
    ViewColumn("writeQueueNums", INT, "Number of queues that producers write to."),
    ViewColumn(
        "perm", TEXT, "Permissions as mqadmin prints them: `RW-` is readable, writable, not inherited."
    ),
    ViewColumn("ordered", BOOL, "The topic's `order` flag."),
    ViewColumn("queueType", TEXT, "`SimpleCQ` or `BatchCQ`."),
    ViewColumn("cleanupPolicy", TEXT, "`DELETE` or `COMPACTION`."),
    ViewColumn("messageType", TEXT, "`NORMAL`, `FIFO`, `DELAY`, `TRANSACTION`, …"),
    ViewColumn("queues", INT, "Number of queues that have or had messages."),
    ViewColumn("messages", LONG, "Number of messages that can be read."),
    ViewColumn("bytes", LONG, "Bytes of these messages in the commitlog."),
    ViewColumn("firstStoreTimestamp", TIME, "When the oldest message was stored."),
    ViewColumn("lastStoreTimestamp", TIME, "When the newest message was stored."),
)


def topics(store: Store, now_ms: int) -> Iterator[pa.RecordBatch]:
    """One row for each topic that is configured or has queues."""
    configured = read_topics(store.opened)
    by_topic: dict[str, list[SizedQueue]] = defaultdict(list)
    for sized in sized_queues(store):
        by_topic[sized.queue.topic].append(sized)
    names = sorted({*by_topic, *(configured or ())})
    rows = (
        (store.broker_name, name, *_topic_row(name, configured, by_topic.get(name, ()))) for name in names
    )
    return batches_of(TOPIC_COLUMNS, rows)


def _topic_row(name: str, configured: TopicConfigs | None, sized: Sequence[SizedQueue]) -> tuple[object, ...]:
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
        sum(each.messages for each in sized),
        sum(each.bytes for each in sized),
        time_us(min(times, default=None)),
        time_us(max(times, default=None)),
    )


TOPICS = View("topics", "Each topic: its configuration and its messages on disk.", TOPIC_COLUMNS, topics)
