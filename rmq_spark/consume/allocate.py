"""Which client of a group reads which queues of a topic: the six allocation strategies of RocketMQ's clients,
and the user's own.

`allocate(consumer_group, current_cid, mq_all, cid_all)` returns the queues of one client. A strategy goes by
the positions in both lists and does not sort them, as in Java; the caller sorts them with `sort_queues` and
`sort_clients`. Then every member of a group gets consistent results from the same two lists.
"""

from __future__ import annotations

import hashlib
import logging
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

from rmq_spark.consume.consumer import STRATEGIES, MessageQueue, is_own
from rmq_spark.consume.own_code import OwnStrategy, load, load_hash
from store_format.errors import OptionError
from store_format.java.text import utf16_key
from store_format.names import did_you_mean

_log = logging.getLogger(__name__)

_ROOM_SEPARATOR = "@"
_VIRTUAL_NODE_COUNT = 10


class AllocateMessageQueueStrategy(Protocol):
    """A strategy: its name, and the queues of one client."""

    @property
    def name(self) -> str: ...

    def allocate(
        self, consumer_group: str, current_cid: str, mq_all: Sequence[MessageQueue], cid_all: Sequence[str]
    ) -> list[MessageQueue]: ...


def _is_listed(group: str, current_cid: str, mq_all: Sequence[MessageQueue], cid_all: Sequence[str]) -> bool:
    """Whether the client is in the list; a client that is not owns nothing.

    AbstractAllocateMessageQueueStrategy.check, with its texts.
    """
    if not current_cid:
        raise OptionError("currentCID is empty")
    if not mq_all:
        raise OptionError("mqAll is null or mqAll empty")
    if not cid_all:
        raise OptionError("cidAll is null or cidAll empty")
    if current_cid in cid_all:
        return True
    _log.info("[BUG] ConsumerGroup: %s The consumerId: %s not in cidAll: %s", group, current_cid, cid_all)
    return False


@dataclass(frozen=True, slots=True)
class _Averagely:
    """AllocateMessageQueueAveragely: blocks of adjacent queues; the first clients get one more.

    8 queues on 3 clients: 0-2, 3-5, 6-7.
    """

    name: str = "AVG"

    def allocate(
        self, consumer_group: str, current_cid: str, mq_all: Sequence[MessageQueue], cid_all: Sequence[str]
    ) -> list[MessageQueue]:
        if not _is_listed(consumer_group, current_cid, mq_all, cid_all):
            return []
        index, (size, rest) = cid_all.index(current_cid), divmod(len(mq_all), len(cid_all))
        start = index * size + min(index, rest)
        return list(mq_all[start : start + size + (index < rest)])


@dataclass(frozen=True, slots=True)
class _AveragelyByCircle:
    """AllocateMessageQueueAveragelyByCircle: queues are dealt like cards.

    8 queues on 3 clients: 0 3 6, 1 4 7, 2 5.
    """

    name: str = "AVG_BY_CIRCLE"

    def allocate(
        self, consumer_group: str, current_cid: str, mq_all: Sequence[MessageQueue], cid_all: Sequence[str]
    ) -> list[MessageQueue]:
        if not _is_listed(consumer_group, current_cid, mq_all, cid_all):
            return []
        return list(mq_all[cid_all.index(current_cid) :: len(cid_all)])


@dataclass(frozen=True, slots=True)
class _ByConfig:
    """AllocateMessageQueueByConfig: the configured queues, of every topic.

    A query with several clients has a mapping from client ids to queues.
    """

    config: Mapping[str, Sequence[MessageQueue]] | Sequence[MessageQueue]
    name: str = "CONFIG"

    def allocate(
        self, consumer_group: str, current_cid: str, mq_all: Sequence[MessageQueue], cid_all: Sequence[str]
    ) -> list[MessageQueue]:
        return list(self.config.get(current_cid, ()) if isinstance(self.config, Mapping) else self.config)


@dataclass(frozen=True, slots=True)
class _ByMachineRoom:
    """AllocateMessageQueueByMachineRoom: only queues in `consumer_idcs`, in blocks, the rest from the end.

    7 queues on 3 clients: 0 1 6, 2 3, 4 5. A queue's room is the part of its broker's name before the `@`.
    """

    consumer_idcs: frozenset[str]
    name: str = "MACHINE_ROOM"

    def allocate(
        self, consumer_group: str, current_cid: str, mq_all: Sequence[MessageQueue], cid_all: Sequence[str]
    ) -> list[MessageQueue]:
        if not _is_listed(consumer_group, current_cid, mq_all, cid_all):
            return []
        kept = [queue for queue in mq_all if self._is_kept(queue.broker_name)]
        index, (size, rest) = cid_all.index(current_cid), divmod(len(kept), len(cid_all))
        tail = kept[index + size * len(cid_all) :][:1] if index < rest else []
        return kept[size * index : size * (index + 1)] + tail

    def _is_kept(self, broker_name: str) -> bool:
        # String.split drops empty parts at the end.
        parts = broker_name.rstrip(_ROOM_SEPARATOR).split(_ROOM_SEPARATOR)
        return len(parts) == 2 and parts[0] in self.consumer_idcs


@dataclass(frozen=True, slots=True)
class _NearbyMachineRoom:
    """AllocateMachineRoomNearby: the queues of a room go to the clients in that room, by another strategy.

    The queues of a room without clients are shared among all clients.
    """

    inner: AllocateMessageQueueStrategy
    room_of_queue: Callable[[MessageQueue], str]
    room_of_client: Callable[[str], str]
    resolver: str = ""  # the name of the user's MachineRoomResolver

    @property
    def name(self) -> str:
        return f"MACHINE_ROOM_NEARBY-{self.inner.name}"

    def allocate(
        self, consumer_group: str, current_cid: str, mq_all: Sequence[MessageQueue], cid_all: Sequence[str]
    ) -> list[MessageQueue]:
        if not _is_listed(consumer_group, current_cid, mq_all, cid_all):
            return []
        queues: dict[str, list[MessageQueue]] = {}
        for queue in mq_all:
            queues.setdefault(_room(self.room_of_queue(queue), f"mq {queue.java_text()}"), []).append(queue)
        clients: dict[str, list[str]] = {}
        for client_id in cid_all:
            clients.setdefault(_room(self.room_of_client(client_id), f"consumer id {client_id}"), []).append(
                client_id
            )
        own = self.room_of_client(current_cid)
        found = []
        if own in queues:
            found += self.inner.allocate(consumer_group, current_cid, queues[own], clients[own])
        for room in sorted(queues.keys() - clients.keys(), key=utf16_key):
            found += self.inner.allocate(consumer_group, current_cid, queues[room], cid_all)
        return found


def _room(name: str, of: str) -> str:
    if not name:
        raise OptionError(f"Machine room is null for {of}")
    return name


def queue_room(queue: MessageQueue) -> str:
    """The room in a broker's name: `room1` of `room1@broker-a`."""
    return queue.broker_name.partition(_ROOM_SEPARATOR)[0]


def client_room(client_id: str) -> str:
    """The room in a client id: `room1` of `room1-10.0.0.7@100`."""
    return client_id.partition("-")[0]


def _md5(key: str) -> int:
    """ConsistentHashRouter.MD5Hash: the digest's first four bytes, unsigned."""
    digest = hashlib.md5(key.encode("utf-8", "replace"), usedforsecurity=False).digest()
    return int.from_bytes(digest[:4], "big")


@dataclass(frozen=True, slots=True)
class _ConsistentHash:
    """AllocateMessageQueueConsistentHash: a queue goes to the next client at or after its hash on a ring.

    Few queues move when a client joins or leaves. Shares are uneven: some clients may own nothing.
    """

    virtual_node_count: int = _VIRTUAL_NODE_COUNT
    hash_of: Callable[[str], int] = _md5
    hash_name: str = ""  # of the user's HashFunction
    name: str = "CONSISTENT_HASH"

    def allocate(
        self, consumer_group: str, current_cid: str, mq_all: Sequence[MessageQueue], cid_all: Sequence[str]
    ) -> list[MessageQueue]:
        if not _is_listed(consumer_group, current_cid, mq_all, cid_all):
            return []
        places, owners = _ring(tuple(cid_all), self.virtual_node_count, self.hash_of)
        if not places:
            return []
        return [
            queue
            for queue in mq_all
            if owners[bisect_left(places, self.hash_of(queue.java_text())) % len(places)] == current_cid
        ]


@lru_cache(maxsize=8)
def _ring(
    client_ids: tuple[str, ...], count: int, hash_of: Callable[[str], int]
) -> tuple[list[int], list[str]]:
    """The sorted places and their owners (ConsistentHashRouter); at an equal place the later client wins."""
    ring: dict[int, str] = {}
    for client_id in client_ids:
        first = sum(owner == client_id for owner in ring.values()) if client_ids.count(client_id) > 1 else 0
        ring |= {hash_of(f"{client_id}-{replica}"): client_id for replica in range(first, first + count)}
    places = sorted(ring)
    return places, [ring[place] for place in places]


# ---- strategies by name ------------------------------------------------------------------------------------


def strategy(
    name: str = "AVG",
    *,
    config: Mapping[str, Sequence[MessageQueue]] | Sequence[MessageQueue] | None = None,
    consumer_idcs: Iterable[str] | None = None,
    inner: str | AllocateMessageQueueStrategy = "AVG",
    virtual_node_count: int = _VIRTUAL_NODE_COUNT,
    resolver: str | None = None,
    hash_function: str | None = None,
) -> AllocateMessageQueueStrategy:
    """The strategy with this name, or the user's own: `package.module:name` (`own_code`).

    Each other argument belongs to one strategy; the others ignore it. `resolver` and `hash_function` are
    names of the user's code, too.

    >>> queues = [MessageQueue("T", "broker-a", queue_id) for queue_id in range(5)]
    >>> [queue.queue_id for queue in strategy("AVG").allocate("g", "b", queues, ["a", "b"])]
    [3, 4]

    Raises OptionError for an unknown name, and for a strategy without the argument that it needs.
    """
    match name:
        case "AVG":
            return _Averagely()
        case "AVG_BY_CIRCLE":
            return _AveragelyByCircle()
        case "CONFIG":
            if config is None:
                raise _lacks_option("allocateConfig", "the queues of each client", name)
            return _ByConfig(config)
        case "MACHINE_ROOM":
            if consumer_idcs is None:
                raise _lacks_option("consumerIdcs", "the machine rooms whose queues are read", name)
            return _ByMachineRoom(frozenset(consumer_idcs))
        case "MACHINE_ROOM_NEARBY":
            nested = _inner(inner, virtual_node_count) if isinstance(inner, str) else inner
            if resolver is None:
                return _NearbyMachineRoom(nested, queue_room, client_room)
            own = load("machineRoomResolver", resolver, "broker_deploy_in", "consumer_deploy_in")
            return _NearbyMachineRoom(nested, own.broker_deploy_in, own.consumer_deploy_in, resolver)
        case "CONSISTENT_HASH":
            if virtual_node_count < 0:
                raise OptionError(f"illegal virtualNodeCnt :{virtual_node_count}")
            if hash_function is None:
                return _ConsistentHash(virtual_node_count)
            hash_of = load_hash("hashFunction", hash_function)
            return _ConsistentHash(virtual_node_count, hash_of, hash_function)
    if is_own(name):
        return OwnStrategy(load("allocateMessageQueueStrategy", name, "allocate", "get_name"), name)
    hint = did_you_mean(name, STRATEGIES, "strategies")
    raise OptionError(f"allocateMessageQueueStrategy: unknown strategy {name!r}; {hint}")


def _lacks_option(option: str, expected: str, name: str) -> OptionError:
    return OptionError(
        f"{option}: expected {expected} for allocateMessageQueueStrategy={name}, found none; set {option}"
    )


def described(chosen: AllocateMessageQueueStrategy) -> str:
    """The strategy's name with the arguments that all members of a group must share.

    The queues of CONFIG are not part of it: each member has its own.
    """
    match chosen:
        case _ConsistentHash():
            own = f" hashFunction={chosen.hash_name}" if chosen.hash_name else ""
            return f"{chosen.name} virtualNodeCount={chosen.virtual_node_count}{own}"
        case _ByMachineRoom():
            return f"{chosen.name} consumerIdcs={','.join(sorted(chosen.consumer_idcs))}"
        case _NearbyMachineRoom():
            own = f" machineRoomResolver={chosen.resolver}" if chosen.resolver else ""
            return f"MACHINE_ROOM_NEARBY-{described(chosen.inner)}{own}"
    return chosen.name


def _inner(name: str, virtual_node_count: int) -> AllocateMessageQueueStrategy:
    """A strategy that MACHINE_ROOM_NEARBY can use within one room."""
    possible = ("AVG", "AVG_BY_CIRCLE", "CONSISTENT_HASH")
    if name not in possible:
        raise OptionError(f"machineRoomNearbyInner: expected one of {', '.join(possible)}, found {name!r}")
    return strategy(name, virtual_node_count=virtual_node_count)
