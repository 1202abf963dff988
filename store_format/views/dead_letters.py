"""Dead letters: messages that a group has given up, with the topic they came from."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa

from store_format.display.columns import BROKER, INT, LONG, NAMES, TEXT, TIME, ViewColumn, batches_of, time_us
from store_format.names import DLQ_PREFIX, RETRY_TOPIC
from store_format.views.messages import read_queues
from store_format.views.view import View

if TYPE_CHECKING:
    from store_format.read.store import Store

__all__ = ["VIEW"]

DEAD_LETTER_COLUMNS = (
    BROKER,
    ViewColumn("group", TEXT, "The group that gave it up."),
    ViewColumn("originTopic", TEXT, "The topic it was sent to (RETRY_TOPIC)."),
    ViewColumn("msgId", TEXT, "The id a client shows; the first message has the same one."),
    ViewColumn("originMsgId", TEXT, "The offset message id of the first message (ORIGIN_MESSAGE_ID)."),
    ViewColumn("reconsumeTimes", INT, "How often it was delivered again."),
    ViewColumn("tags", TEXT, "Its tags."),
    ViewColumn("keys", NAMES, "Its keys."),
    ViewColumn("bornTimestamp", TIME, "When the producer made it."),
    ViewColumn("storeTimestamp", TIME, "When it became a dead letter."),
    ViewColumn("topic", TEXT, "The dead letter topic."),
    ViewColumn("queueId", INT, "Its place there."),
    ViewColumn("queueOffset", LONG, "Its place there."),
    ViewColumn("physicalOffset", LONG, "Its place in the commitlog."),
    ViewColumn("bytes", LONG, "Its size there."),
)

_COLUMNS = (
    "topic", "queueId", "queueOffset", "physicalOffset", "storeSize", "storeTimestampMs", "bornTimestampMs", "msgId", "tags", "keys",
    "reconsumeTimes", RETRY_TOPIC, "DLQ_ORIGIN_TOPIC", "ORIGIN_MESSAGE_ID", "DLQ_ORIGIN_MESSAGE_ID",
)  # fmt: skip


def dead_letters(store: Store, now_ms: int) -> Iterator[pa.RecordBatch]:
    """One row a message of a `%DLQ%` topic; of one topic in order."""
    return batches_of(DEAD_LETTER_COLUMNS, _rows(store))


def _rows(store: Store) -> Iterator[tuple[object, ...]]:
    queues = store.queues(lambda topic: topic.startswith(DLQ_PREFIX))
    for batch in read_queues(store, queues, _COLUMNS):
        for row in batch.to_pylist():
            yield (
                store.broker_name, row["topic"].removeprefix(DLQ_PREFIX), row[RETRY_TOPIC] or row["DLQ_ORIGIN_TOPIC"], row["msgId"],
                row["ORIGIN_MESSAGE_ID"] or row["DLQ_ORIGIN_MESSAGE_ID"], row["reconsumeTimes"], row["tags"], row["keys"],
                time_us(row["bornTimestampMs"]), time_us(row["storeTimestampMs"]), row["topic"], row["queueId"], row["queueOffset"],
                row["physicalOffset"], row["storeSize"],
            )  # fmt: skip


VIEW = View("deadLetters", "Messages that a group has given up.", DEAD_LETTER_COLUMNS, dead_letters)
