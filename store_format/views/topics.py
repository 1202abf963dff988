"""The view `topics`: the configuration of each topic, and what its queues hold."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

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
from store_format.views.queues import SizedQueue, sized_queues
from store_format.views.view import View

if TYPE_CHECKING:
    from store_format.read.store import Store

TOPIC_COLUMNS = (
    BROKER,
    ViewColumn("topic", TEXT, "The topic."),
    ViewColumn("configured", BOOL, "Whether topics.json has the topic; null without that file (RocksDB)."),
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
    configured = read_topics(store.path)
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


VIEW = View("topics", "Each topic: its configuration and its messages on disk.", TOPIC_COLUMNS, topics)
