"""The messages of a store, read queue by queue without a plan."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from store_format import MessageStore
from store_format.message.columns import DEFAULT_COLUMNS


def rows_in(
    store: MessageStore | Path | str, *columns: str, topic: str | None = None
) -> list[dict[str, Any]]:  # Any: values of any column
    """The rows of one topic or of all, a queue after the other."""
    opened = store if isinstance(store, MessageStore) else MessageStore.open(str(store))
    queues = opened.queues() if topic is None else opened.queues(topic.__eq__)
    batches = [batch for queue in queues for batch in queue.read(columns=columns or DEFAULT_COLUMNS)]
    return [row for batch in batches for row in batch.to_pylist()]


def bodies_in(store: MessageStore | Path | str) -> list[str]:
    """The bodies of all messages, without the dots of `numbered`, sorted."""
    return sorted(row["body"].decode().rstrip(".") for row in rows_in(store, "body"))
