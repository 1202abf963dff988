"""What the members of a group agree on, in `group.json` of its directory: who there is, whose each queue is,
and how far it was read.

It is changed only under that directory's own lock, and replaced as a whole, so that whoever reads it without
the lock sees one state. `serial` rises with each change. A queue's `epoch` rises each time it gets an owner:
what an earlier owner says is void.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from rmq_spark.consume.message_queue import MessageQueue
from store_format.errors import CorruptStoreError
from store_format.files.read import FileView, read_bytes
from store_format.files.status import stat_identity
from store_format.files.write import FileWrites

__all__ = [
    "NOT_IN_FILE",
    "GroupState",
    "MemberEntry",
    "QueueEntry",
    "read_state",
    "state_identity",
    "state_serial",
    "write_state",
]

_VERSION = 1
NOT_IN_FILE = -1  # as a mirrored offset
_ID = re.compile(r"[0-9a-f]{16}", re.ASCII)
_LONG = 1 << 63
_INT = 1 << 31
_HEAD = re.compile(rb'\{"version":1,"serial":([0-9]{1,19}),')  # as `write_state` begins a state
_HEAD_SIZE = 64


@dataclass(slots=True)
class MemberEntry:
    """One query. `clients` are its logical clients, and it reads the queues of `brokers`, or of all where it
    does not say.

    The rest is what others need to judge its lease.
    """

    clients: list[str]
    host: str
    process_id: int
    lease_seconds: float
    brokers: list[str] = field(default_factory=list)


@dataclass(slots=True)
class QueueEntry:
    """One queue. `position` is the next offset to read, as its owners recorded it; `reset` the number of the
    reset that last moved it.

    `mirrored` is what members last wrote to the offset file, or found there: `NOT_IN_FILE`, or None where
    nobody has looked. `is_unattended`: no member has run since its last owner. What both are for is told in
    `mirror`.
    """

    owner: str | None = None
    client: str | None = None
    epoch: int = 0
    position: int | None = None
    reset: int = 0
    mirrored: int | None = None
    is_unattended: bool = False


@dataclass(slots=True)
class GroupState:
    """`reset` is the group's reset number, `log_size` the length of the ownership log in bytes.

    `subscription` and `strategy` are those of the members there are.
    """

    serial: int = 0
    reset: int = 0
    log_size: int = 0
    subscription: str = ""
    strategy: str = ""
    members: dict[str, MemberEntry] = field(default_factory=dict)
    queues: dict[MessageQueue, QueueEntry] = field(default_factory=dict)

    def clients(self) -> Iterator[str]:
        for member in self.members.values():
            yield from member.clients

    def readers(self) -> dict[str, list[str]]:
        """The brokers of each client that says them."""
        return {
            client: member.brokers
            for member in self.members.values()
            if member.brokers
            for client in member.clients
        }

    def entry(self, queue: MessageQueue) -> QueueEntry:
        """The queue's, made where it is new."""
        return self.queues.setdefault(queue, QueueEntry())

    def owned_by(self, member: str) -> Iterator[tuple[MessageQueue, QueueEntry]]:
        return ((queue, entry) for queue, entry in self.queues.items() if entry.owner == member)


def _path(directory: str) -> str:
    return f"{directory}/group.json"


def state_identity(directory: str) -> tuple[int, int, int] | None:
    """Another value when the state was replaced: one look, for whoever asks often.

    It may be the same by chance: an inode is used again, and a filesystem's clock ticks every few
    milliseconds.
    """
    return stat_identity(_path(directory))


def state_serial(directory: str) -> int | None:
    """The serial number of the state there, without the rest of it: never the same for two. None where it
    cannot be told.
    """
    try:
        with FileView(_path(directory)) as view:
            head = _HEAD.match(view.read(0, _HEAD_SIZE))
    except FileNotFoundError:
        return None
    return int(head[1]) if head else None


def read_state(directory: str) -> GroupState:
    """The state; an empty one where there is none. Raises CorruptStoreError for a file that is none of ours."""
    path = _path(directory)
    data = read_bytes(path)
    if data is None:
        return GroupState()
    try:
        value = json.loads(data)
        if value["version"] != _VERSION:
            raise ValueError(f"version {value['version']!r}")
        state = GroupState(
            serial=_number(value["serial"]),
            reset=_number(value["reset"]),
            log_size=_number(value["logSize"]),
            subscription=_text(value["subscription"]),
            strategy=_text(value["strategy"]),
            members={_id(name): _member(member) for name, member in value["members"].items()},
        )
        # Both lists came later than version 1: without them nothing is known, and older members read the
        # rest.
        mirrored = value.get("mirrored", [None] * len(value["queues"]))
        unattended = {_number(index) for index in value.get("unattended", ())}
        for index, (row, offset) in enumerate(zip(value["queues"], mirrored, strict=True)):
            queue, entry = _queue(row)
            entry.mirrored = offset if offset is None or offset == NOT_IN_FILE else _number(offset)
            entry.is_unattended = index in unattended
            state.queues[queue] = entry
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise CorruptStoreError(
            path, 0, "the state of a consumer group", f"something else ({str(error)[:100]})"
        ) from error
    return state


def _member(value: Mapping[str, Any]) -> MemberEntry:  # Any: JSON
    clients = [_text(client) for client in value["clients"]]
    seconds = value["leaseSeconds"]
    if not isinstance(seconds, int | float) or isinstance(seconds, bool) or not 0 < seconds < 1e9:
        raise ValueError(f"leaseSeconds {seconds!r}")
    brokers = [_text(broker) for broker in value.get("brokers", ())]
    return MemberEntry(clients, _text(value["host"]), _number(value["processId"]), float(seconds), brokers)


def _queue(row: list[Any]) -> tuple[MessageQueue, QueueEntry]:
    topic, broker_name, queue_id, owner, client, epoch, position, reset = row
    queue = MessageQueue(_text(topic), _text(broker_name), _number(queue_id, _INT))
    entry = QueueEntry(
        None if owner is None else _id(owner),
        None if client is None else _text(client),
        _number(epoch),
        None if position is None else _number(position),
        _number(reset),
    )
    return queue, entry


def _number(value: object, stop: int = _LONG) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < stop:
        return value
    raise ValueError(f"a number from 0 was expected, not {value!r}"[:100])


def _text(value: object) -> str:
    if isinstance(value, str):
        return value
    raise ValueError("a text was expected")


def _id(value: object) -> str:
    """A member's id becomes part of a path, so nothing else passes."""
    if isinstance(value, str) and _ID.fullmatch(value):
        return value
    raise ValueError("a member's id was expected")


def write_state(directory: str, state: GroupState, files: FileWrites) -> None:
    """Replaces the state. The caller holds the directory's lock and has raised `serial`."""
    members = {
        name: {
            "clients": m.clients,
            "host": m.host,
            "processId": m.process_id,
            "leaseSeconds": m.lease_seconds,
            "brokers": m.brokers,
        }
        for name, m in state.members.items()
    }
    value = {
        "version": _VERSION,
        "serial": state.serial,
        "reset": state.reset,
        "logSize": state.log_size,
        "subscription": state.subscription,
        "strategy": state.strategy,
        "members": members,
        "queues": [
            [
                queue.topic,
                queue.broker_name,
                queue.queue_id,
                entry.owner,
                entry.client,
                entry.epoch,
                entry.position,
                entry.reset,
            ]
            for queue, entry in state.queues.items()
        ],
        "mirrored": [entry.mirrored for entry in state.queues.values()],
        "unattended": [index for index, entry in enumerate(state.queues.values()) if entry.is_unattended],
    }
    files.replace(_path(directory), json.dumps(value, separators=(",", ":")).encode())
