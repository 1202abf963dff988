"""What may happen to a group's state, without touching a file: who joins, who is expelled, who records, takes
and gives back.

A `Change` is made of one state under the directory's lock, and carries the lines of the ownership log that go
with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from rmq_spark.consume.group.ownership_log import OwnershipEvent
from rmq_spark.consume.group.state import GroupState, MemberEntry, QueueEntry
from rmq_spark.consume.message_queue import MessageQueue
from store_format.errors import OptionError

__all__ = ["Change"]

_SHOWN_MAX = 200  # characters of a subscription in an error


@dataclass(slots=True)
class Change:
    """`writer` is the member that makes it, `at` the time in ms since the epoch. `is_changed`: there is
    something to write.
    """

    state: GroupState
    writer: str
    at: int
    is_changed: bool = False
    events: list[OwnershipEvent] = field(default_factory=list)

    def note(self, event: str, queue: MessageQueue, entry: QueueEntry, member: str, why: str = "") -> None:
        """A line for the log, and the state counts as changed."""
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
        """Adds a member. Raises OptionError for one that does not fit those who are there."""
        state = self.state
        if state.members:
            _refuse_other("subscription", group, state.subscription, subscription, _SUBSCRIPTIONS)
            _refuse_other("allocation strategy", group, state.strategy, strategy, _STRATEGIES)
            twice = set(state.clients()) & set(entry.clients)
            if twice:
                raise OptionError(
                    f"group {group} has a member with the client id {min(twice)!r} already; give each query its own clientId"
                )
        else:
            for queue_entry in state.queues.values():
                queue_entry.is_unattended = True
        state.subscription, state.strategy = subscription, strategy
        state.members[member] = entry
        self.is_changed = True

    def expel(self, member: str, why: str, *, was_seen: bool = True) -> None:
        """Removes a member whose lease is gone. Its queues keep the positions it recorded. `was_seen`: it was
        alive some time ago.
        """
        for queue, entry in self.state.owned_by(member):
            self.note("expire", queue, entry, member, why)
            entry.owner = entry.client = None
            entry.is_unattended = not was_seen
        del self.state.members[member]
        self.is_changed = True

    def dismiss(self, member: str) -> None:
        """Removes a member that leaves, after it has recorded what it read."""
        for queue, _ in list(self.state.owned_by(member)):
            self.release(queue, member)
        del self.state.members[member]
        self.is_changed = True

    # ---- queues --------------------------------------------------------------------------------------------

    def owns(self, member: str, queue: MessageQueue, epoch: int) -> bool:
        """Whether the queue is the member's still, and not again."""
        entry = self.state.queues.get(queue)
        return entry is not None and entry.owner == member and entry.epoch == epoch

    def record(
        self, member: str, held: Mapping[MessageQueue, int], positions: Mapping[MessageQueue, int], reset: int
    ) -> None:
        """Moves positions on, where the member owns the queue in the epoch that it holds. Never back.

        `reset` is the number that the positions have seen: one from before a queue's last reset says nothing
        about it.
        """
        for queue, epoch in held.items():
            position = positions.get(queue)
            if position is None or not self.owns(member, queue, epoch):
                continue
            entry = self.state.queues[queue]
            if entry.reset <= reset and (entry.position is None or position > entry.position):
                entry.position = position
                self.is_changed = True

    def take(self, queue: MessageQueue, member: str, client: str, position: int) -> int:
        """Gives a free queue to a member, from a position on that is not below the recorded one; the epoch."""
        entry = self.state.entry(queue)
        assert entry.owner is None, f"{queue} has an owner"
        entry.owner, entry.client, entry.position, entry.is_unattended = member, client, position, False
        entry.epoch += 1
        self.note("gain", queue, entry, member)
        return entry.epoch

    def hand_on(self, queue: MessageQueue, member: str, client: str) -> int:
        """From one client of a member to another one of it; the new epoch."""
        entry = self.state.queues[queue]
        position = entry.position
        self.release(queue, member)
        return self.take(queue, member, client, position or 0)

    def release(self, queue: MessageQueue, member: str) -> None:
        """Frees a queue whose owner has recorded its position."""
        entry = self.state.queues[queue]
        self.note("release", queue, entry, member)
        entry.owner = entry.client = None

    def reset(self, targets: Mapping[MessageQueue, int], why: str = "") -> None:
        """Moves queues to positions, which the offset file has, under a new reset number: their owners jump
        there, backwards too.
        """
        self.state.reset += 1
        for queue, position in targets.items():
            entry = self.state.entry(queue)
            entry.position, entry.reset, entry.mirrored = position, self.state.reset, position
            self.note("reset", queue, entry, entry.owner or "", why)

    def replay(self, member: str, queues: Iterable[MessageQueue]) -> None:
        """Marks a micro-batch that Spark repeats, whoever owns its queues by now."""
        for queue in queues:
            self.note("replay", queue, self.state.queues.get(queue) or QueueEntry(), member)


_SUBSCRIPTIONS = (
    "All members must subscribe to the same topics with the same expression: else queues go to members that do not read them, and "
    "messages are filtered by somebody else's expression, without a word. Use the same options everywhere, or another group"
)
_STRATEGIES = "Members that allocate in different ways never agree about a queue. Use the same options everywhere, or another group"


def _refuse_other(what: str, group: str, theirs: str, ours: str, why: str) -> None:
    if theirs != ours:
        raise OptionError(
            f"group {group}: its members have the {what} {theirs[:_SHOWN_MAX]}, this query has {ours[:_SHOWN_MAX]}. {why}"
        )
