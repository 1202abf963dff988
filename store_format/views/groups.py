"""The view `groups`: groups that are configured, have offsets, or have a retry or dead letter topic."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from store_format.display.columns import BOOL, BROKER, INT, LONG, NAMES, TEXT, ViewColumn, batches_of
from store_format.metadata.group_offsets import RetryOwners
from store_format.metadata.read import Groups, read_subscription_groups, read_topics
from store_format.names import DLQ_PREFIX, is_retry_topic
from store_format.views.lag import lag_table
from store_format.views.view import View

if TYPE_CHECKING:
    from store_format.read.store import Store

GROUP_COLUMNS = (
    BROKER,
    ViewColumn("group", TEXT, "The consumer group."),
    ViewColumn(
        "configured", BOOL, "Whether subscriptionGroup.json has the group; null without that file (RocksDB)."
    ),
    ViewColumn("consumeEnable", BOOL, "Whether the group may consume."),
    ViewColumn("consumeBroadcastEnable", BOOL, "Whether the group may consume in BROADCASTING mode."),
    ViewColumn("consumeMessageOrderly", BOOL, "Whether pop delivers in order to the group."),
    ViewColumn("retryQueueNums", INT, "Queues of the group's retry topic."),
    ViewColumn("retryMaxTimes", INT, "Retries before a message becomes a dead letter."),
    ViewColumn("topics", NAMES, "Topics for which the group has committed offsets."),
    ViewColumn("queues", INT, "Queues for which the group has committed offsets."),
    ViewColumn(
        "lagMessages",
        LONG,
        "The sum over these queues; null if there are none, or if this store lacks one of them.",
    ),
    ViewColumn("lagMs", LONG, "Age of the oldest unconsumed message."),
    ViewColumn("deadLetters", LONG, "Messages in the group's dead letter topic."),
)


def groups(store: Store, now_ms: int) -> Iterator[pa.RecordBatch]:
    """One row for each group, sorted by name."""
    configured, topics = read_subscription_groups(store.path), read_topics(store.path)
    lag: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in lag_table(store, now_ms=now_ms).to_pylist():
        lag[row["group"]].append(row)
    dead: dict[str, int] = defaultdict(int)
    for queue in store.queues(lambda topic: topic.startswith(DLQ_PREFIX)):
        dead[queue.topic.removeprefix(DLQ_PREFIX)] += queue.max_offset - queue.min_offset
    known = {*lag, *dead, *(configured or ())}
    owners = RetryOwners.of(
        known, topics or (), ((row["group"], row["topic"]) for rows in lag.values() for row in rows)
    )
    # a broker creates a group's retry topic at the first heartbeat of a consumer
    names = sorted(known | {owners.owner(topic).group for topic in owners.topics if is_retry_topic(topic)})
    rows = (
        (
            store.broker_name,
            name,
            *_settings(name, configured),
            *_progress(lag.get(name, [])),
            dead.get(name, 0),
        )
        for name in names
    )
    return batches_of(GROUP_COLUMNS, rows)


def _settings(name: str, configured: Groups | None) -> tuple[object, ...]:
    group = None if configured is None else configured.get(name)
    if group is None:
        return (None if configured is None else False, *(None,) * 5)
    return (
        True, group.consume_enable, group.consume_broadcast_enable, group.consume_message_orderly,
        group.retry_queue_nums, group.retry_max_times,
    )  # fmt: skip


def _progress(rows: list[dict[str, Any]]) -> tuple[object, ...]:
    committed = [row for row in rows if row["committedOffset"] is not None]
    behind = [row["lagMessages"] for row in committed]
    ages = [row["lagMs"] for row in committed]
    return (
        sorted({row["topic"] for row in committed}),
        len(committed),
        None if not behind or None in behind else sum(behind),
        None if not ages or None in ages else max(ages),
    )


VIEW = View("groups", "Each consumer group: its settings and its lag.", GROUP_COLUMNS, groups)
