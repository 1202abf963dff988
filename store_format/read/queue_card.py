"""The HTML of a queue, for notebooks: its offsets and its newest messages."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import starmap

import pyarrow as pa

from store_format.consumequeue.slices import QueueRange
from store_format.display.page import PageSpace, card, fact, facts, text, warning
from store_format.display.table import table
from store_format.errors import StoreError

PREVIEW_ROWS = 10
PREVIEW_COLUMNS = ("queueOffset", "storeTimestamp", "tags", "keys", "msgId", "body")


def queue_card(queue: QueueRange, broker_name: str, newest: Iterable[pa.RecordBatch]) -> str:
    """A page of the queue; an error that reading `newest` raises is a line of it."""
    lines = [
        ("broker", text(broker_name)),
        ("offsets", f"{queue.min_offset} to {queue.max_offset} (exclusive: the next message gets it)"),
        ("messages", f"{queue.max_offset - queue.min_offset:,}"),
    ]
    parts: list[str] = []
    try:
        batches = list(newest)
        if batches:
            rows = table(batches, batches[0].schema, PageSpace(), limit=PREVIEW_ROWS)
            parts.append(f'<div class="s">the newest</div>{rows}')
    except (StoreError, OSError) as error:
        parts.append(warning(f"its newest messages cannot be read: {error}"))
    name = f"{queue.topic}-{queue.queue_id}"
    return card(name, "message queue", [facts(starmap(fact, lines)), *parts]).source
