"""Stores for the tests of pop: topics with numbered messages, and groups that begin at the first one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa

from store_format.commit.prepare_store import CommitOptions
from store_format.message.encode import MessageColumns
from store_format.message.property_encoder import encode_property_columns
from store_format.metadata.group_offsets import write_group_offsets
from store_format.names import TAGS, UNIQ_KEY
from store_format.store import MessageStore
from tests.support.staged import make_store

GROUP, TOPIC = "billing", "Orders"


def popped_store(root: Path, messages: int = 0, *, queues: int = 1, group: str = GROUP) -> Path:
    """A store with `messages` in a topic, and a group that has consumed none of them."""
    make_store(root)
    if messages:
        append_numbered(root, messages, queues=queues)
        offsets = {(TOPIC, queue): 0 for queue in range(queues)}
        write_group_offsets(str(root), group, offsets, timestamp=1_700_000_000_000)
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
