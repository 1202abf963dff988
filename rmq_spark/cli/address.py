"""`Orders/2@100`: a message named by topic, queue id and queue offset, as operators name it."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from rmq_spark.cli.exit_codes import NotFoundError
from rmq_spark.cli.options import known_topics
from store_format.display.text import first_names
from store_format.names import did_you_mean

if TYPE_CHECKING:
    import pyarrow as pa

    from store_format import MessageStore, Queue

_FORM = re.compile(r"([^/@]+)/([0-9]{1,9})@(-?[0-9]{1,18}|last)")
_NEAR = re.compile(r"([^/@]+)/([^/@]*)@([^/@]*)")
_NO_OFFSET = re.compile(
    r"[^/@:]+(?:/[^/@]*|@[^/@]*|[:/][0-9]+[:/][^/@:]+)"
)  # Orders/2, Orders@last, Orders:2:5
_LAST = ("end", "latest", "newest")


@dataclass(frozen=True, slots=True)
class Address:
    """A place in a queue. In a cluster, each broker may have a message at this place.

    An offset below 0 counts from the end of the queue: -1 is its newest message.
    """

    topic: str
    queue_id: int
    offset: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.queue_id}@{self.offset}"


def parse_address(text: str) -> Address | None:
    """The address that `text` spells; None for another text, such as a message id.

    >>> parse_address("Orders/2@100")
    Address(topic='Orders', queue_id=2, offset=100)
    >>> str(parse_address("Orders/2@last"))
    'Orders/2@-1'
    >>> parse_address("7F0000010A1B18B4AAC20000000A0001") is None
    True
    """
    found = _FORM.fullmatch(text)
    if found is None:
        return None
    return Address(found[1], int(found[2]), -1 if found[3] == "last" else int(found[3]))


def refuse_near_address(text: str, topics: Callable[[], set[str]] | None = None) -> None:
    """Raises UsageError for a text that is an address but for its numbers, such as `Orders/2@end`.

    With `topics`, where the text may also be a key, only if the topic is one of them.
    """
    if topics is None and _NO_OFFSET.fullmatch(text):
        raise click.UsageError(
            f"{text!r}: expected a message id, or TOPIC/QUEUE@OFFSET such as Orders/2@last"
        )
    near = _NEAR.fullmatch(text)
    if near is None or parse_address(text) is not None or (topics is not None and near[1] not in topics()):
        return
    topic, queue_id, offset = near.groups()
    is_queue = re.fullmatch("[0-9]{1,9}", queue_id) is not None
    found = f"the offset {offset!r}" if is_queue else f"the queue {queue_id!r}"
    hint = ""
    if is_queue and offset in _LAST:
        hint = f"; write {topic}/{queue_id}@last for the newest message"
    raise click.UsageError(f"{text!r}: expected a message as TOPIC/QUEUE@OFFSET, found {found}{hint}")


def read_address(
    stores: Sequence[MessageStore], address: Address, names: Sequence[str]
) -> list[pa.RecordBatch]:
    """The message of each store at the address, with the columns `names`. Raises as `_queues_with`."""
    batches = [
        batch
        for _, queue, offset in _queues_with(stores, address)
        for batch in queue.read(offset, offset + 1, columns=names)
        if batch.num_rows
    ]
    if not batches:
        raise NotFoundError(f"no message at {address}")
    return batches


def physical_places(stores: Sequence[MessageStore], address: Address) -> list[tuple[MessageStore, int]]:
    """(store, physical offset) of the message of each store at the address. The message may be damaged.

    Raises as `_queues_with`.
    """

    places = []
    for store, queue, offset in _queues_with(stores, address):
        if queue.scanned is None:
            _, units = queue.piece(offset, offset + 1).read()
            found = units["physical_offset"].tolist()
        else:
            rows = queue.read(offset, offset + 1, columns=("physicalOffset",))
            found = [place for batch in rows for place in batch["physicalOffset"].to_pylist()]
        places += [(store, int(place)) for place in found[:1]]
    return places


def _queues_with(stores: Sequence[MessageStore], address: Address) -> list[tuple[MessageStore, Queue, int]]:
    """(store, queue, queue offset) for each store whose queue has the offset.

    Raises NotFoundError, with the topics, queues or offsets that exist, if no store has it.
    """
    queues = [(store, queue) for store in stores for queue in store.queues(address.topic.__eq__)]
    if not queues:
        topics = sorted(known_topics(stores))
        if address.topic in topics:
            raise NotFoundError(f"the topic {address.topic!r} has no messages")
        hint = did_you_mean(address.topic, topics, "topics")
        raise NotFoundError(f"no topic is named {address.topic!r}; {hint}")
    of_id = [(store, queue) for store, queue in queues if queue.queue_id == address.queue_id]
    if not of_id:
        named = first_names(map(str, sorted({queue.queue_id for _, queue in queues})))
        raise NotFoundError(f"{address.topic} has no queue {address.queue_id}; its queues are {named}")
    places = [
        (store, queue, address.offset if address.offset >= 0 else queue.max_offset + address.offset)
        for store, queue in of_id
    ]
    having = [each for each in places if each[1].min_offset <= each[2] < each[1].max_offset]
    if not having:
        held = " and ".join(_offsets(queue.min_offset, queue.max_offset) for _, queue in of_id)
        raise NotFoundError(f"no message at {address}; the queue {address.topic}/{address.queue_id} {held}")
    return having


def _offsets(start: int, stop: int) -> str:
    return f"has the offsets {start} to {stop - 1}" if start < stop else f"is empty, next offset {stop}"
