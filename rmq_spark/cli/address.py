"""`Orders/2@100`: a message named by topic, queue id and queue offset, as operators name it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rmq_spark.cli.exit_codes import NotFoundError
from rmq_spark.cli.options import known_topics
from store_format.names import did_you_mean

if TYPE_CHECKING:
    import pyarrow as pa

    from store_format import MessageStore

_FORM = re.compile(r"([^/@]+)/([0-9]{1,9})@([0-9]{1,18})")
_QUEUES_SHOWN = 8


@dataclass(frozen=True, slots=True)
class Address:
    """A place in a queue. In a cluster, each broker may have a message at this place."""

    topic: str
    queue_id: int
    offset: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.queue_id}@{self.offset}"


def parse_address(text: str) -> Address | None:
    """The address that `text` spells; None for another text, such as a message id.

    >>> parse_address("Orders/2@100")
    Address(topic='Orders', queue_id=2, offset=100)
    >>> parse_address("7F0000010A1B18B4AAC20000000A0001") is None
    True
    """
    found = _FORM.fullmatch(text)
    return None if found is None else Address(found[1], int(found[2]), int(found[3]))


def read_address(
    stores: Sequence[MessageStore], address: Address, names: Sequence[str]
) -> list[pa.RecordBatch]:
    """The message of each store at the address, with the columns `names`.

    Raises NotFoundError, with the topics, queues or offsets that exist, if no store has a message there.
    """
    queues = [queue for store in stores for queue in store.queues(address.topic.__eq__)]
    if not queues:
        topics = sorted(known_topics(stores))
        if address.topic in topics:
            raise NotFoundError(f"the topic {address.topic!r} has no messages")
        hint = did_you_mean(address.topic, topics, "topics")
        raise NotFoundError(f"no topic is named {address.topic!r}; {hint}")
    of_id = [queue for queue in queues if queue.queue_id == address.queue_id]
    if not of_id:
        ids = sorted({queue.queue_id for queue in queues})
        named = ", ".join(map(str, ids[:_QUEUES_SHOWN])) + (" …" if len(ids) > _QUEUES_SHOWN else "")
        raise NotFoundError(f"{address.topic} has no queue {address.queue_id}; its queues are {named}")
    batches = [
        batch
        for queue in of_id
        if queue.min_offset <= address.offset < queue.max_offset
        for batch in queue.read(address.offset, address.offset + 1, columns=names)
        if batch.num_rows
    ]
    if not batches:
        held = " and ".join(_offsets(queue.min_offset, queue.max_offset) for queue in of_id)
        raise NotFoundError(f"no message at {address}; the queue {address.topic}/{address.queue_id} {held}")
    return batches


def _offsets(start: int, stop: int) -> str:
    return f"has the offsets {start} to {stop - 1}" if start < stop else f"is empty, next offset {stop}"
