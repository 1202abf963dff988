"""The view `deadLetters`: messages that a group has given up, with the topic of the first message."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from store_format.display.columns import BROKER, INT, LONG, NAMES, TEXT, TIME, ViewColumn, batches_of, time_us
from store_format.names import DLQ_PREFIX, RETRY_TOPIC
from store_format.read.store import Store
from store_format.views.view import View, read_queues

DEAD_LETTER_COLUMNS = (
    BROKER,
    ViewColumn("group", TEXT, "The group that gave up the message."),
    ViewColumn("originTopic", TEXT, "The topic to which the producer sent the message (RETRY_TOPIC)."),
    ViewColumn("msgId", TEXT, "The message id that clients show; the first message has the same id."),
    ViewColumn("originMsgId", TEXT, "The offset message id of the first message (ORIGIN_MESSAGE_ID)."),
    ViewColumn(
        "reconsumeTimes",
        INT,
        "How often the group failed to consume the message: the first delivery and each retry.",
    ),
    ViewColumn("tags", TEXT, "The tags."),
    ViewColumn("keys", NAMES, "The keys."),
    ViewColumn("bornTimestamp", TIME, "When the producer created the message."),
    ViewColumn("storeTimestamp", TIME, "When the message became a dead letter."),
    ViewColumn("topic", TEXT, "The dead letter topic."),
    ViewColumn("queueId", INT, "The queue of the dead letter topic."),
    ViewColumn("queueOffset", LONG, "The offset in that queue."),
    ViewColumn("physicalOffset", LONG, "The physical offset in the commitlog."),
    ViewColumn("bytes", LONG, "The size in the commitlog."),
)

_COLUMNS = (
    "topic", "queueId", "queueOffset", "physicalOffset", "storeSize", "storeTimestampMs", "bornTimestampMs",
    "msgId", "tags", "keys",
    "reconsumeTimes", RETRY_TOPIC, "DLQ_ORIGIN_TOPIC", "ORIGIN_MESSAGE_ID", "DLQ_ORIGIN_MESSAGE_ID",
)  # fmt: skip


def dead_letters(store: Store, now_ms: int, *, group: str | None = None) -> Iterator[pa.RecordBatch]:
    """One row for each message of a `%DLQ%` topic, or of one group; messages of one queue are in order."""
    return batches_of(DEAD_LETTER_COLUMNS, _dead_letter_rows(store, group))


def _dead_letter_rows(store: Store, group: str | None) -> Iterator[tuple[object, ...]]:
    queues = store.queues(
        lambda topic: topic.startswith(DLQ_PREFIX) and group in (None, topic.removeprefix(DLQ_PREFIX))
    )
    for batch in read_queues(queues, _COLUMNS):
        for row in batch.to_pylist():
            yield (
                store.broker_name, row["topic"].removeprefix(DLQ_PREFIX),
                row[RETRY_TOPIC] or row["DLQ_ORIGIN_TOPIC"], row["msgId"],
                row["ORIGIN_MESSAGE_ID"] or row["DLQ_ORIGIN_MESSAGE_ID"], row["reconsumeTimes"],
                row["tags"], row["keys"],
                time_us(row["bornTimestampMs"]), time_us(row["storeTimestampMs"]), row["topic"],
                row["queueId"], row["queueOffset"],
                row["physicalOffset"], row["storeSize"],
            )  # fmt: skip


VIEW = View("deadLetters", "Messages that a consumer group has given up.", DEAD_LETTER_COLUMNS, dead_letters)
