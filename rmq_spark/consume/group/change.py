"""Changes to a group's state: members join, leave or are expelled; queues are recorded, taken and released.

A `Change` is made from one state under the directory's lock. It collects the lines of the ownership log that
belong to it and touches no file; `write_change` writes both.

`ownership.log` in a group's directory says which client owned which queue when, one JSON object a line. Its
lines are written just before the state that they belong to, and the state contains the length of the log. If
a process dies between the two writes, its lines lie beyond that length: they never took effect, and the next
lines overwrite them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from types import MappingProxyType

from rmq_spark.consume.consumer import MessageQueue
from rmq_spark.consume.group.directory import GroupState, MemberEntry, QueueEntry, write_state
from rmq_spark.consume.orderly import Stop
from store_format.errors import OptionError, StoreWriteError
from store_format.files.read import files_at
from store_format.files.write import FileWrites

_SUBSCRIPTION_SHOWN_MAX = 200  # characters of a subscription in an error
_SAME_SUBSCRIPTION = (
    "All members must subscribe to the same topics with the same expression. Otherwise queues would go to "
    "members that do not read them, and messages would be filtered by the wrong expression without an error. "
    "Use the same options in all queries of the group, or another group"
)
_SAME_STRATEGY = (
    "Members with different strategies never agree on the owner of a queue. "
    "Use the same options in all queries of the group, or another group"
)

_SIZE_MAX = 4 << 20


@dataclass(slots=True)
class Change:
    """`writer` is the member that makes the change, `at` the time in ms since the epoch.

    `is_changed`: the state differs from the file and must be written.
    """

    state: GroupState
    writer: str
    at: int
    is_changed: bool = False
    events: list[OwnershipEvent] = field(default_factory=list)

    def note(self, event: str, queue: MessageQueue, entry: QueueEntry, member: str, why: str = "") -> None:
        """Adds a line to the ownership log and marks the state as changed."""
        self.is_changed = True
        self.events.append(
            OwnershipEvent(
                serial=self.state.serial + 1,
                writer=self.writer,
                at=self.at,
                event=event,
                topic=queue.topic,
                broker=queue.broker_name,
                queue=queue.queue_id,
                client=entry.client,
                member=member,
                epoch=entry.epoch,
                position=entry.position,
                why=why,
            )
        )

    # ---- members -------------------------------------------------------------------------------------------

    def admit(self, group: str, member: str, entry: MemberEntry, *, subscription: str, strategy: str) -> None:
        """Adds a member. Raises OptionError for a member that does not fit the present ones."""
        state = self.state
        if state.members:
            _refuse_difference("subscription", group, state.subscription, subscription, _SAME_SUBSCRIPTION)
            _refuse_difference("allocation strategy", group, state.strategy, strategy, _SAME_STRATEGY)
            twice = set(state.clients()) & set(entry.clients)
            if twice:
                raise OptionError(
                    f"group {group}: expected a clientId that no other query of the group uses, "
                    f"found {min(twice)!r} twice; set a different clientId for each query"
                )
        else:
            for queue_entry in state.queues.values():
                queue_entry.is_unattended = True
        state.subscription, state.strategy = subscription, strategy
        state.members[member] = entry
        self.is_changed = True

    def expel(self, member: str, why: str, *, was_seen: bool = True) -> None:
        """Removes a member whose lease is gone. Its queues keep the positions that it recorded.

        `was_seen`: the member was alive while it was watched.
        """
        for queue, entry in self.state.owned_by(member):
            self.note("expire", queue, entry, member, why)
            entry.owner = entry.client = None
            entry.is_unattended = not was_seen
        del self.state.members[member]
        self.is_changed = True

    def dismiss(self, member: str) -> None:
        """Removes a member that leaves, after it has recorded its positions."""
        for queue, _ in list(self.state.owned_by(member)):
            self.release(queue, member)
        del self.state.members[member]
        self.is_changed = True

    # ---- queues --------------------------------------------------------------------------------------------

    def owns(self, member: str, queue: MessageQueue, epoch: int) -> bool:
        """Whether the member has owned the queue without interruption since this epoch began."""
        entry = self.state.queues.get(queue)
        return entry is not None and entry.owner == member and entry.epoch == epoch

    def record(
        self,
        member: str,
        held: Mapping[MessageQueue, int],
        positions: Mapping[MessageQueue, int],
        reset: int,
        places: Mapping[MessageQueue, int] = MappingProxyType({}),
    ) -> None:
        """Raises the recorded positions of queues that the member owns in the epochs of `held`; lowers none.

        `reset` is the reset number of the offset that holds the positions. A position from before a queue's
        last reset is ignored. `places` are those of the messages before the positions.
        """
        for queue, epoch in held.items():
            position = positions.get(queue)
            if position is None or not self.owns(member, queue, epoch):
                continue
            entry = self.state.queues[queue]
            if entry.reset <= reset and (entry.position is None or position > entry.position):
                entry.position = position
                entry.at = (position, places[queue]) if queue in places else None
                self.is_changed = True
                if entry.stop is not None and position >= entry.stop.offset:
                    entry.stop = None

    def take(self, queue: MessageQueue, member: str, client: str, position: int) -> int:
        """Gives a free queue to a member; returns the new epoch. `position` is not below the recorded one."""
        entry = self.state.entry(queue)
        assert entry.owner is None, f"{queue} has an owner"
        entry.owner, entry.client, entry.position, entry.is_unattended = member, client, position, False
        entry.epoch += 1
        self.note("gain", queue, entry, member)
        return entry.epoch

    def hand_on(self, queue: MessageQueue, member: str, client: str) -> int:
        """Gives a queue to another client of the same member; returns the new epoch."""
        position = self.state.queues[queue].position
        self.release(queue, member)
        return self.take(queue, member, client, position or 0)

    def release(self, queue: MessageQueue, member: str) -> None:
        """Frees a queue whose owner has recorded its position."""
        entry = self.state.queues[queue]
        self.note("release", queue, entry, member)
        entry.owner = entry.client = None

    def reset(self, targets: Mapping[MessageQueue, int], why: str = "") -> None:
        """Moves queues to `targets`, which the offset file already has, under a new reset number.

        The owners of the queues continue at the targets, also backwards.
        """
        self.state.reset += 1
        for queue, position in targets.items():
            entry = self.state.entry(queue)
            entry.position, entry.reset, entry.mirrored = position, self.state.reset, position
            entry.stop = entry.at = None  # also if the position is that of a deleted topic
            self.note("reset", queue, entry, entry.owner or "", why)

    def stop(self, stops: Mapping[MessageQueue, Stop], why: str = "") -> None:
        """Notes where an orderly handler stopped; queues in which it failed continue there, as after a reset.

        The offset file is left alone: no member has recorded more than the messages before a stop. A queue
        that other members have read further meanwhile is left alone.
        """
        entries = {queue: self.state.entry(queue) for queue in stops}
        self.state.reset += any(stop.times for stop in stops.values())
        for queue, stop in stops.items():
            entry = entries[queue]
            if entry.position is not None and entry.position > stop.offset:
                continue
            entry.stop, self.is_changed = stop, True
            if stop.times:
                entry.position, entry.reset = stop.offset, self.state.reset
                self.note("stop", queue, entry, entry.owner or "", why)

    def replay(self, member: str, queues: Iterable[MessageQueue]) -> None:
        """Notes a micro-batch that Spark repeats, whoever owns its queues now."""
        for queue in queues:
            self.note("replay", queue, self.state.queues.get(queue) or QueueEntry(), member)


def write_change(directory: str, change: Change, files: FileWrites) -> None:
    """Writes the events to the ownership log, then the state under the next serial number.

    The caller holds the directory's lock.
    """
    state = change.state
    state.log_size = append_events(directory, change.events, state.log_size, files)
    state.serial += 1
    write_state(directory, state, files)


def _refuse_difference(what: str, group: str, expected: str, found: str, advice: str) -> None:
    if expected != found:
        raise OptionError(
            f"group {group}: expected the {what} of its members, {expected[:_SUBSCRIPTION_SHOWN_MAX]}; "
            f"found {found[:_SUBSCRIPTION_SHOWN_MAX]}. {advice}"
        )


# ---- the ownership log -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OwnershipEvent:
    """`event` is `gain`, `release`, `expire` (taken from a member whose lease is gone), `reset`,
    `stop` (a reset to a message at which an orderly handler failed) or `replay`.

    A replay is a micro-batch that Spark repeats after a restart, whoever owns its queues by then. `writer` is
    the member that made the change, `at` is in ms since the epoch.
    """

    serial: int
    writer: str
    at: int
    event: str
    topic: str
    broker: str
    queue: int
    client: str | None
    member: str
    epoch: int
    position: int | None
    why: str = ""


def append_events(directory: str, events: Iterable[OwnershipEvent], size: int, files: FileWrites) -> int:
    """Writes lines at byte `size` of the log and returns its new length, which the state must contain.

    A log above 4 MiB loses its older half first. The caller holds the directory's lock.
    """
    lines = "".join(json.dumps(asdict(event), separators=(",", ":")) + "\n" for event in events).encode()
    if not lines:
        return size
    path = f"{directory}/ownership.log"
    if size > _SIZE_MAX:
        data = (files_at(path).read(path) or b"")[:size]
        files.replace(path, data[data.find(b"\n", len(data) // 2) + 1 :])
    try:
        file = files.open(path)
    except StoreWriteError as error:
        if not isinstance(error.__cause__, FileNotFoundError):
            raise
        file = files.create(path, 0)
    with file:
        # The file is shorter than the state says if a process died right after it had halved the log.
        start = min(size, file.size)
        file.size = start + len(lines)
        file.write(start, lines)
    return start + len(lines)
