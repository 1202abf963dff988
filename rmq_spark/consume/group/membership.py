"""What a query brings into a group, and what it gets: plain values between the stream reader and `members`."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from rmq_spark.consume.allocate import AllocateMessageQueueStrategy
from rmq_spark.consume.message_queue import MessageQueue, sort_clients, sort_queues

__all__ = ["LEASE_SECONDS", "Assignment", "Clocks", "Membership", "Owned"]

LEASE_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Membership:
    """What a query brings into the group. `subscription` is its topics and expression as text, which all
    members must share.

    `persist_seconds` is persistConsumerOffsetInterval: 0 records at each boundary.
    """

    group: str
    clients: tuple[str, ...]
    strategy: AllocateMessageQueueStrategy
    subscription: str
    lease_seconds: float = LEASE_SECONDS
    persist_seconds: float = 0.0
    brokers: tuple[str, ...] = ()

    def allocate(
        self,
        clients: Iterable[str],
        queues: Iterable[MessageQueue],
        readers: Mapping[str, Collection[str]] | None = None,
    ) -> dict[MessageQueue, str]:
        """What the strategy gives the own ones of all `clients`, topic by topic
        (RebalanceImpl.rebalanceByTopic).

        `readers` are the brokers of clients that do not read all of them, because they began before one was
        added: the queues of each broker are shared by the clients that read it.
        """
        sorted_clients = sort_clients(clients)
        by_topic: dict[str, list[MessageQueue]] = {}
        for queue in sort_queues(queues):
            by_topic.setdefault(queue.topic, []).append(queue)
        found: dict[MessageQueue, str] = {}
        for of_topic in by_topic.values():
            parts: dict[tuple[str, ...], list[MessageQueue]] = {}
            for queue in of_topic:
                parts.setdefault(_able(sorted_clients, queue.broker_name, readers or {}), []).append(queue)
            for able, part in parts.items():
                there = set(part)
                for client in filter(able.__contains__, self.clients):
                    for queue in self.strategy.allocate(self.group, client, part, able):
                        if queue in there:  # CONFIG gives what was configured, of whatever topic
                            found.setdefault(queue, client)
        return found


def _able(clients: Sequence[str], broker: str, readers: Mapping[str, Collection[str]]) -> tuple[str, ...]:
    return tuple(client for client in clients if client not in readers or broker in readers[client])


@dataclass(frozen=True, slots=True)
class Clocks:
    """`monotonic` in seconds measures leases and intervals, `epoch_ms` dates the ownership log."""

    monotonic: Callable[[], float] = time.monotonic
    epoch_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000
    sleep: Callable[[float], None] = time.sleep


@dataclass(frozen=True, slots=True)
class Owned:
    """A queue that this query reads now: for which of its clients, and in which epoch."""

    client: str
    epoch: int


@dataclass(frozen=True, slots=True)
class Assignment:
    """What is the query's own at this boundary: its next offset has these queues and no others.

    `starts` has the next offset to read of those that do not go on where the positions said: gained ones of
    which others read more, and those that were reset. It is told until positions come that know it. `lost`
    went since the last boundary. `is_settled`: all that the strategy gives the query is its own. `reset` is
    the group's reset number, which belongs into the query's offset.
    """

    owned: Mapping[MessageQueue, Owned] = field(default_factory=dict)
    starts: Mapping[MessageQueue, int] = field(default_factory=dict)
    lost: frozenset[MessageQueue] = frozenset()
    is_settled: bool = False
    reset: int = 0

    def begins(self, positions: Mapping[MessageQueue, int]) -> dict[MessageQueue, int]:
        """The next offset to read of each queue, given the positions that `settle` was told."""
        return {
            queue: self.starts[queue] if queue in self.starts else positions[queue] for queue in self.owned
        }

    def by_client(self) -> dict[str, list[MessageQueue]]:
        """The queues of each client, in order: one Spark partition each."""
        found: dict[str, list[MessageQueue]] = {}
        for queue in sort_queues(self.owned):
            found.setdefault(self.owned[queue].client, []).append(queue)
        return found
