"""Stores for the tests of pop: topics with numbered messages, and groups that begin at the first one."""

from __future__ import annotations

import base64
import json
from collections import defaultdict
from pathlib import Path

import numpy as np
import pyarrow as pa

from rmq_spark.pop import MessageView, SimpleConsumer
from store_format.bookkeeping.settings import StoreSettings
from store_format.commit.options import CommitOptions
from store_format.message.encode import MessageColumns
from store_format.message.property_encoder import encode_property_columns
from store_format.metadata.group_offsets import write_group_offsets
from store_format.names import REAL_TOPIC, REVIVE_PREFIX, TAGS, UNIQ_KEY
from store_format.opened.store import Opened
from store_format.store import MessageStore
from tests.support import goldens
from tests.support.staged import make_store

Place = tuple[str, int, int]  # topic, queue id, queue offset

GROUP, TOPIC = "billing", "Orders"


class Clock:
    """A clock that the test sets, in ms."""

    def __init__(self, ms: int = 1_700_000_000_000) -> None:
        self.ms = ms

    def __call__(self) -> int:
        return self.ms


def drain(consumer: SimpleConsumer) -> list[MessageView]:
    """Receives and acknowledges what there is."""
    found: list[MessageView] = []
    while batch := consumer.receive(32, 60):
        found += batch
        consumer.ack(batch)
    return found


def popped_store(
    root: Path, messages: int = 0, *, queues: int = 1, group: str = GROUP, file_size: int | None = None
) -> Path:
    """A store with `messages` in a topic, and a group that has consumed none of them.

    Files are small, unless `file_size` says how long a commitlog file is.
    """
    make_store(root, None if file_size is None else StoreSettings("broker-a", file_size, 20 * 20_000))
    if messages:
        append_numbered(root, messages, queues=queues)
        offsets = {(TOPIC, queue): 0 for queue in range(queues)}
        write_group_offsets(Opened(str(root)), group, offsets, timestamp=1_700_000_000_000)
    return root


def append_numbered(
    root: Path, messages: int, *, first: int = 0, queues: int = 1, topic: str = TOPIC, body_size: int = 0
) -> None:
    """Appends messages with the ids and bodies `first`, `first` + 1 ..., tags Tag0 to Tag3, in turn."""
    number = np.arange(first, first + messages)
    texts = np.char.mod("%d", number)
    properties = encode_property_columns(
        messages,
        {
            UNIQ_KEY: pa.array(texts),
            TAGS: pa.array(np.char.mod("Tag%d", number % 4)),
            "price": pa.array(np.char.mod("%d", number % 10)),
        },
    )
    bodies = [text.encode().ljust(body_size, b".") for text in texts.tolist()]
    columns = MessageColumns(
        topic=topic,
        body=pa.array(bodies, pa.binary()),
        properties=properties,
        queue_id=number % queues,
        born_timestamp=1_700_000_000_000,
    )
    options = CommitOptions(new_topics={topic: queues}, lock_timeout=60.0)
    MessageStore.open(str(root)).append(columns, options=options)


def popped_and_open() -> dict[Place, int]:
    """What the consumers of the golden store left open: the time when each of the messages comes back.

    From the delivered messages only, without the timer's files and offsets of the revive group: of each
    message that was popped, the last hand-out counts. It is over if an ack names it, or if the message is in
    the retry topic.
    """
    rows = goldens.expected_rows("pop-5.5.0")
    unique = {(row["topic"], row["queueId"], row["queueOffset"]): row["properties"][UNIQ_KEY] for row in rows}
    revived = {row["properties"][UNIQ_KEY] for row in rows if row["topic"].startswith("%RETRY%")}
    last: dict[Place, tuple[int, int]] = {}
    acks: defaultdict[Place, set[int]] = defaultdict(set)
    for row in rows:
        if not row["properties"].get(REAL_TOPIC, "").startswith(REVIVE_PREFIX):
            continue
        body = json.loads(base64.b64decode(row["body"]))
        if "ao" in body:
            acks[body["t"], body["q"], body["ao"]].add(body["pt"])
        else:
            for diff in body["d"]:
                key = body["t"], body["q"], body["so"] + diff
                last[key] = max(last.get(key, (0, 0)), (body["pt"], body["it"]))
    return {
        key: time + wait
        for key, (time, wait) in last.items()
        if time not in acks[key] and unique[key] not in revived
    }
