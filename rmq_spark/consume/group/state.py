"""`group.json` in a group's directory: the members, the owner of each queue, and how far each queue was read.

The file changes only under the directory's lock and is replaced as a whole, so a reader without the lock sees
one consistent state. Each change raises `serial`. A queue's `epoch` rises each time the queue gets an owner;
what an earlier owner reports is ignored.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from rmq_spark.consume.message_queue import MessageQueue
from store_format.errors import CorruptStoreError
from store_format.files.read import read_bytes, stat_identity
from store_format.files.view import open_view
from store_format.files.write import FileWrites
from store_format.follow.replaced import mark_of, physical_offset_of, place_at

_VERSION = 1
NOT_IN_FILE = -1  # a mirrored offset: the offset file does not name the queue
_MEMBER_ID = re.compile(r"[0-9a-f]{16}", re.ASCII)
_LONG = 1 << 63
_INT = 1 << 31
_HEAD = re.compile(rb'\{"version":1,"serial":([0-9]{1,19}),')  # as `write_state` begins a state
_HEAD_SIZE = 64


@dataclass(slots=True)
class MemberEntry:
    """One query: its logical clients and the brokers whose queues it reads; no `brokers` means all of them.

    The other fields are for the members that watch its lease.
    """

    clients: list[str]
    host: str
    process_id: int
    lease_seconds: float
    brokers: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Stop:
    """Where an orderly handler stopped in a queue (`rmq_spark.services.Orderly`).

    The messages before `offset` are handled. The handler has failed `times` times at the message there, and
    the queue waits until `until_ms`, in ms since the epoch. `times` 0: it has not failed; a micro-batch that
    Spark repeats goes on at `offset`.
    """

    offset: int
    times: int = 0
    until_ms: int = 0


@dataclass(slots=True)
class QueueEntry:
    """One queue. `position` is the next offset to read, as its owners recorded it.

    `reset` is the number of the reset that last moved the queue. `mirrored` is the offset that members last
    wrote to the offset file or found there: `NOT_IN_FILE`, or None before the first look. `is_unattended`: no
    member has run since the queue's last owner. The module `offset_mirror` explains both. `stop` is where an
    orderly handler stopped, until a recorded position is beyond it. `at` is a recorded position with the
    place of the message before it (`follow.replaced`): no file of a store says that a topic was created
    again.
    """

    owner: str | None = None
    client: str | None = None
    epoch: int = 0
    position: int | None = None
    reset: int = 0
    mirrored: int | None = None
    is_unattended: bool = False
    stop: Stop | None = None
    at: tuple[int, int] | None = None

    @property
    def place(self) -> int | None:
        """The place of the message before `position`; None where nobody recorded it."""
        return self.at[1] if self.at is not None and self.at[0] == self.position else None


@dataclass(slots=True)
class GroupState:
    """`reset` is the group's reset number, `log_size` the length of the ownership log in bytes.

    `subscription` and `strategy` are those of the present members.
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
        """The brokers of each client whose member names its brokers."""
        return {
            client: member.brokers
            for member in self.members.values()
            if member.brokers
            for client in member.clients
        }

    def entry(self, queue: MessageQueue) -> QueueEntry:
        """The entry of the queue; a new queue gets one."""
        return self.queues.setdefault(queue, QueueEntry())

    def owned_by(self, member: str) -> Iterator[tuple[MessageQueue, QueueEntry]]:
        return ((queue, entry) for queue, entry in self.queues.items() if entry.owner == member)


def _state_path(directory: str) -> str:
    return f"{directory}/group.json"


def has_state(directory: str) -> bool:
    """Whether members have ever recorded something in this directory."""
    return os.path.isfile(_state_path(directory))


def state_identity(directory: str) -> tuple[int, int, int] | None:
    """Differs after the state was replaced. Costs one `stat`.

    It can be equal by chance: inodes are reused, and the clock of a filesystem ticks every few milliseconds.
    """
    return stat_identity(_state_path(directory))


def state_serial(directory: str) -> int | None:
    """The serial number of the state, from the first 64 bytes of the file; no two states share it.

    None without a file, and for a file that does not begin like a state.
    """
    try:
        with open_view(_state_path(directory)) as view:
            head = _HEAD.match(view.read(0, _HEAD_SIZE))
    except FileNotFoundError:
        return None
    return int(head[1]) if head else None


def read_state(directory: str) -> GroupState:
    """The state; an empty one without a file. Raises CorruptStoreError for a file with other content."""
    path = _state_path(directory)
    data = read_bytes(path)
    if data is None:
        return GroupState()
    try:
        value = json.loads(data)
        if value["version"] != _VERSION:
            raise ValueError(f"version {value['version']!r}")
        state = GroupState(
            serial=_from_zero(value["serial"]),
            reset=_from_zero(value["reset"]),
            log_size=_from_zero(value["logSize"]),
            subscription=_string(value["subscription"]),
            strategy=_string(value["strategy"]),
            members={_member_id(name): _member_entry(member) for name, member in value["members"].items()},
        )
        # Both lists were added later to version 1, so that older members can still read the file. A file
        # without them says nothing about the offset file.
        mirrored = value.get("mirrored", [None] * len(value["queues"]))
        unattended = {_from_zero(index) for index in value.get("unattended", ())}
        for index, (row, offset) in enumerate(zip(value["queues"], mirrored, strict=True)):
            queue, entry = _read_queue(row)
            entry.mirrored = offset if offset is None or offset == NOT_IN_FILE else _from_zero(offset)
            entry.is_unattended = index in unattended
            state.queues[queue] = entry
        entries = list(state.queues.values())
        for index, *stop in value.get("stops", ()):
            entries[_from_zero(index, len(entries))].stop = Stop(*map(_from_zero, stop))
        for index, position, physical in value.get("at", ()):
            entries[_from_zero(index, len(entries))].at = _from_zero(position), _from_zero(physical)
        for index, mark in value.get("marks", ()):  # the rest of the place, which older members leave out
            entry = entries[_from_zero(index, len(entries))]
            if entry.at is not None:
                entry.at = entry.at[0], place_at(entry.at[1], _from_zero(mark))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise CorruptStoreError(
            path, 0, "the state of a consumer group (JSON)", f"other content ({str(error)[:100]})"
        ) from error
    return state


def _member_entry(value: Mapping[str, Any]) -> MemberEntry:  # Any: JSON
    clients = [_string(client) for client in value["clients"]]
    seconds = value["leaseSeconds"]
    if not isinstance(seconds, int | float) or isinstance(seconds, bool) or not 0 < seconds < 1e9:
        raise ValueError(f"leaseSeconds {seconds!r}")
    brokers = [_string(broker) for broker in value.get("brokers", ())]
    return MemberEntry(
        clients, _string(value["host"]), _from_zero(value["processId"]), float(seconds), brokers
    )


def _read_queue(row: list[Any]) -> tuple[MessageQueue, QueueEntry]:
    topic, broker_name, queue_id, owner, client, epoch, position, reset = row
    queue = MessageQueue(_string(topic), _string(broker_name), _from_zero(queue_id, _INT))
    entry = QueueEntry(
        None if owner is None else _member_id(owner),
        None if client is None else _string(client),
        _from_zero(epoch),
        None if position is None else _from_zero(position),
        _from_zero(reset),
    )
    return queue, entry


def _from_zero(value: object, stop: int = _LONG) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < stop:
        return value
    raise ValueError(f"expected a number from 0, found {value!r}"[:100])


def _string(value: object) -> str:
    if isinstance(value, str):
        return value
    raise ValueError(f"expected a string, found {value!r}"[:100])


def _member_id(value: object) -> str:
    """A member's id: 16 hex digits and nothing else, because it becomes part of a path."""
    if isinstance(value, str) and _MEMBER_ID.fullmatch(value):
        return value
    raise ValueError(f"expected the id of a member, found {value!r}"[:100])


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
    stops = [
        [index, entry.stop.offset, entry.stop.times, entry.stop.until_ms]
        for index, entry in enumerate(state.queues.values())
        if entry.stop is not None
    ]
    if stops:
        value["stops"] = stops
    entries = enumerate(state.queues.values())
    places = [(index, entry.position, entry.place) for index, entry in entries if entry.place is not None]
    if places:
        value["at"] = [[index, position, physical_offset_of(place)] for index, position, place in places]
        value["marks"] = [[index, mark] for index, _, place in places if (mark := mark_of(place))]
    files.replace(_state_path(directory), json.dumps(value, separators=(",", ":")).encode())
