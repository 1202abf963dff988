"""What a client calls a queue, and the orders that RocketMQ's clients share: of queues and of client ids.

Both compare UTF-16 code units, as String.compareTo does; members of a group agree only because their lists
have one order.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

__all__ = ["MessageQueue", "sort_clients", "sort_queues", "utf16"]


def utf16(text: str) -> bytes:
    """The order of String.compareTo: UTF-16 code units, which is not that of code points above U+FFFF."""
    return text.encode("utf-16-be", "surrogatepass")


class MessageQueue(NamedTuple):
    """RocketMQ's partition; equal to the plain tuple of its parts. Its text is the one that CONSISTENT_HASH
    hashes.
    """

    topic: str
    broker_name: str
    queue_id: int

    def __str__(self) -> str:
        return f"MessageQueue [topic={self.topic}, brokerName={self.broker_name}, queueId={self.queue_id}]"

    def sort_key(self) -> tuple[bytes, bytes, int]:
        """MessageQueue.compareTo."""
        return utf16(self.topic), utf16(self.broker_name), self.queue_id


def sort_queues(queues: Iterable[MessageQueue]) -> list[MessageQueue]:
    """mqAll as RebalanceImpl.rebalanceByTopic hands it to a strategy."""
    return sorted(queues, key=MessageQueue.sort_key)


def sort_clients(client_ids: Iterable[str]) -> list[str]:
    """cidAll in the same order for everybody."""
    return sorted(client_ids, key=utf16)
