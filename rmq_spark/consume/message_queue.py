"""`MessageQueue`, the name of a queue, and the orders in which RocketMQ's clients sort queues and client ids.

Both orders compare UTF-16 code units, as String.compareTo does. The members of a group allocate the same
queues to the same clients only because all of them sort both lists in this way.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from store_format.display.text import shown
from store_format.java.text import utf16_key

if TYPE_CHECKING:
    from store_format.read.store import Queue


class MessageQueue(NamedTuple):
    """One queue of a topic on one broker: RocketMQ's partition. Equal to the plain tuple of its fields.

    Plain comparison (`<`) is by Unicode code points; `sort_queues` has the order of RocketMQ's clients.
    """

    topic: str
    broker_name: str
    queue_id: int

    @staticmethod
    def of(queue: Queue) -> MessageQueue:
        return MessageQueue(queue.topic, queue.store.broker_name, queue.queue_id)

    def __str__(self) -> str:
        """The text in errors and log lines, escaped: `Orders-0 of broker-a`."""
        return shown(f"{self.topic}-{self.queue_id} of {self.broker_name}")

    def java_text(self) -> str:
        """MessageQueue.toString, which CONSISTENT_HASH hashes."""
        return f"MessageQueue [topic={self.topic}, brokerName={self.broker_name}, queueId={self.queue_id}]"

    def sort_key(self) -> tuple[bytes, bytes, int]:
        """MessageQueue.compareTo."""
        return utf16_key(self.topic), utf16_key(self.broker_name), self.queue_id


def offset_limits(queue: Queue | None) -> tuple[int, int]:
    """(min offset, max offset) of a queue; (0, 0) for None, a queue without a message."""
    return (0, 0) if queue is None else (queue.min_offset, queue.max_offset)


def sort_queues(queues: Iterable[MessageQueue]) -> list[MessageQueue]:
    """The queues in the order in which RebalanceImpl.rebalanceByTopic passes `mqAll` to a strategy."""
    return sorted(queues, key=MessageQueue.sort_key)


def sort_clients(client_ids: Iterable[str]) -> list[str]:
    """The client ids (`cidAll`) in the order that every member of a group uses."""
    return sorted(client_ids, key=utf16_key)
