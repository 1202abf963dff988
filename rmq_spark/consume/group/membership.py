"""What a query brings into a group (`Membership`) and what it gets there (`Assignment`): plain values."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from rmq_spark.consume.allocate import AllocateMessageQueueStrategy
from rmq_spark.consume.group.state import Stop
from rmq_spark.consume.message_queue import MessageQueue, sort_clients, sort_queues

LEASE_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Membership:
    """What a query brings into the group.

    `subscription` is the text of its topics and expression, which must be the same for all members.
    `persist_seconds` is persistConsumerOffsetInterval; 0 records at each boundary of a micro-batch.
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
        """The queues of this query's clients, topic by topic (RebalanceImpl.rebalanceByTopic).

        `readers` are the brokers of the clients that do not read all brokers, because they started before a
        broker was added. The queues of a broker are shared by the clients that read it.
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
                        if queue in there:  # CONFIG returns the configured queues, of every topic
                            found.setdefault(queue, client)
        return found


def _able(clients: Sequence[str], broker: str, readers: Mapping[str, Collection[str]]) -> tuple[str, ...]:
    """The clients that read the broker."""
    return tuple(client for client in clients if client not in readers or broker in readers[client])


@dataclass(frozen=True, slots=True)
class Owned:
    """A queue that this query reads now: for which of its clients, and in which epoch."""

    client: str
    epoch: int


@dataclass(frozen=True, slots=True)
class Assignment:
    """What the query owns at a boundary: its next offset contains exactly these queues.

    `starts` has the next offset to read of the queues that do not continue at their positions: queues that
    were gained and that others read further, and queues that were reset. They are repeated until positions
    arrive that include them. `lost` are the queues that went to others since the last boundary. `is_settled`:
    the query owns every queue that the strategy allocates to it. `reset` is the group's reset number, which
    belongs into the query's offset. `stops` are the owned queues in which an orderly handler failed. `places`
    has the place of the message before each start, where it was recorded. `resets` are the owned
    queues that were reset since the offset with the positions was made.
    """

    owned: Mapping[MessageQueue, Owned] = field(default_factory=dict)
    starts: Mapping[MessageQueue, int] = field(default_factory=dict)
    lost: frozenset[MessageQueue] = frozenset()
    is_settled: bool = False
    reset: int = 0
    stops: Mapping[MessageQueue, Stop] = field(default_factory=dict)
    places: Mapping[MessageQueue, int] = field(default_factory=dict)
    resets: frozenset[MessageQueue] = frozenset()

    def next_offset(self, queue: MessageQueue, position: int | None) -> int:
        """The next offset to read of an owned queue. `position` is the one that `settle` was called with."""
        return self.starts[queue] if queue in self.starts or position is None else position
