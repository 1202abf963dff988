"""Messages with a delay level, as a producer's broker stores them, and what of them was delivered."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from store_format import MessageStore
from store_format.commit.options import CommitOptions
from store_format.names import SCHEDULE_TOPIC, TIMER_TOPIC
from tests.support import oracle
from tests.support.oracle import Message
from tests.support.staged import columns_of
from tests.support.stored_rows import rows_in

# Long before the present: a store's clock is an argument.
BEGIN_MS = 1_700_000_200_000


def delayed(topic: str, level: int, first: int, count: int, *, queues: int = 4) -> list[Message]:
    """`count` messages of a delay level for `topic`, numbered from `first`: body, UNIQ_KEY and key differ."""
    made = []
    for i in range(first, first + count):
        properties = {
            "UNIQ_KEY": f"U{i:07d}", "KEYS": f"k{i}", "TAGS": f"T{i % 3}", "DELAY": str(level),
            "REAL_TOPIC": topic, "REAL_QID": str(i % queues),
        }  # fmt: skip
        body = f"message {i} of {topic}".encode()
        made.append(
            Message(
                SCHEDULE_TOPIC.encode(), body, oracle.encode_properties(properties), queue_id=level - 1,
                born_timestamp=BEGIN_MS - 7 + i,
            )
        )  # fmt: skip
    return made


def poisoned(topic: str, level: int, number: int) -> Message:
    """A message of a delay level that cannot be delivered: its REAL_QID is no number."""
    (made,) = delayed(topic, level, number, 1)
    properties = {**made.properties, "REAL_QID": "x"}
    return Message(
        made.topic_bytes, made.body, oracle.encode_properties(properties), queue_id=level - 1,
        born_timestamp=made.born_timestamp,
    )  # fmt: skip


def timed(
    topic: str, out_ms: int, first: int, count: int, properties: Mapping[str, str] | None = None
) -> list[Message]:
    """`count` messages that wait for a time, numbered from `first`; `properties` are added to each."""
    made = []
    for i in range(first, first + count):
        own = {
            "UNIQ_KEY": f"U{i:07d}", "KEYS": f"k{i}", "TAGS": f"T{i % 3}",
            "TIMER_DELIVER_MS": str(out_ms + 1), "TIMER_OUT_MS": str(out_ms),
            "REAL_TOPIC": topic, "REAL_QID": str(i % 4), **(properties or {}),
        }  # fmt: skip
        body = f"message {i} of {topic}".encode()
        made.append(
            Message(
                TIMER_TOPIC.encode(), body, oracle.encode_properties(own), born_timestamp=BEGIN_MS - 7 + i
            )
        )
    return made


def recall_of(message: Message, *, has_topic: bool = False) -> Message:
    """The message that a broker stores when a producer recalls a timer message (RecallMessageProcessor)."""
    victim = message.properties
    key = f"{victim['REAL_TOPIC']}+{victim['UNIQ_KEY']}" if has_topic else victim["UNIQ_KEY"]
    (mark,) = timed(victim["REAL_TOPIC"], int(victim["TIMER_OUT_MS"]), 0, 1)
    properties = {**mark.properties, "UNIQ_KEY": victim["UNIQ_KEY"], "TIMER_DEL_UNIQKEY": key}
    return Message(TIMER_TOPIC.encode(), b"0", oracle.encode_properties(properties))


def append(root: Path, messages: list[Message], at_ms: int = BEGIN_MS, *, sync: bool = True) -> None:
    """Appends the messages at this time, and creates their topics: 4 queues, 18 for delay levels."""
    topics = {name: 4 for m in messages if _can_be(name := m.properties.get("REAL_TOPIC", m.topic))}
    options = CommitOptions(
        sync=sync, clock=lambda: at_ms, new_topics={**topics, SCHEDULE_TOPIC: 18, TIMER_TOPIC: 1}
    )
    MessageStore.open(str(root)).append(columns_of(messages), store_timestamps=at_ms, options=options)


def _can_be(topic: str) -> bool:
    return "/" not in topic


def bodies(root: Path, topic: str) -> Counter[bytes]:
    """The bodies of a topic's messages, and how often the topic has each."""
    return Counter(row["body"] for row in rows_in(root, "body", topic=topic))
