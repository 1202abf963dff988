"""A query's part in a consumer group: which queues are its own now, from where, and what it may record.

Members meet in a directory. Who owns a queue is written in its state, which is changed only under the
directory's lock; a member looks at it at the boundaries of its micro-batches. A queue changes hands when its
owner has recorded how far it read and gives it back, or when the owner's lease is gone. Each owner has an
epoch of its own, and one that was stopped for longer than its lease finds, when it goes on, that its epoch is
over: it reads on nothing that it lost, and nothing that it says is recorded.

    member = join(directory, Membership("orders", ("c@0", "c@1"), strategy("AVG"), "Orders *"), offsets)
    now = member.settle(queues, positions, begin=first_offset, reset=reset)     # at each boundary
    member.leave(positions, reset)
"""

from __future__ import annotations

import logging
import os
import secrets
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import replace

from rmq_spark.consume.allocate import described
from rmq_spark.consume.group.change import Change
from rmq_spark.consume.group.leases import Lease, Watch, host_name, remove_lease
from rmq_spark.consume.group.membership import Assignment, Clocks, Membership, Owned
from rmq_spark.consume.group.mirror import Mirror
from rmq_spark.consume.group.ownership_log import append_events
from rmq_spark.consume.group.state import (
    GroupState,
    MemberEntry,
    read_state,
    state_identity,
    state_serial,
    write_state,
)
from rmq_spark.consume.message_queue import MessageQueue
from rmq_spark.consume.offset_store import OffsetStore, make_path
from store_format.errors import StoreInUseError
from store_format.files.lock import StoreLock
from store_format.files.write import FileWrites

__all__ = ["Member", "join"]

_log = logging.getLogger(__name__)

_LOCK_SECONDS = 5.0  # changes take milliseconds: whoever has the lock for longer was stopped with it
_LOOKS_A_LEASE = 15  # how often other members' leases are looked at
_LOOK_SECONDS_MAX = 1.0
_WAIT_STEP_SECONDS = 0.05
_RETRY_SECONDS = 1.0  # between two attempts to save offsets, where they are saved at each boundary


def join(
    directory: str, membership: Membership, offsets: OffsetStore, *, clocks: Clocks | None = None
) -> Member:
    """Becomes a member; the queues come with `settle`.

    Raises OptionError for a subscription, a strategy or a client id that does not fit the other members.
    """
    make_path(directory)
    member = Member(directory, membership, offsets, clocks or Clocks())
    member.enter()
    return member


class Member:
    """One query in a group; made by `join`. For one thread: the query's reader."""

    def __init__(self, directory: str, membership: Membership, offsets: OffsetStore, clocks: Clocks) -> None:
        self._directory = directory
        self._membership = membership
        self._mirror = Mirror(membership.group, offsets)
        self._clocks = clocks
        self._files = FileWrites(sync=True)
        self._id = ""
        self._lease: Lease | None = None
        self._watches: dict[str, Watch] = {}
        self._held: dict[MessageQueue, int] = {}  # the epoch in which it got them
        self._now = Assignment()
        self._identity: tuple[int, int, int] | None = None
        self._serial = 0
        # as this member wrote or read it last; it stands while the serial number does
        self._state: GroupState | None = None
        self._targeted: tuple[object, Sequence[MessageQueue], dict[MessageQueue, str]] = (None, (), {})
        self._queues: Sequence[MessageQueue] = ()
        self._positions: Mapping[MessageQueue, int] = {}
        self._reset = 0
        self._look_seconds = min(membership.lease_seconds / _LOOKS_A_LEASE, _LOOK_SECONDS_MAX)
        self._next_look = self._next_record = clocks.monotonic()
        self._is_mirror_due = self._is_waiting = False

    @property
    def id(self) -> str:
        """The name in the state and in the ownership log; another one after it was expelled and came back."""
        return self._id

    def enter(self) -> None:
        with self._locked():
            change = self._begin()
            self._admit(change)
            self._write(change)

    def settle(
        self,
        queues: Sequence[MessageQueue],
        positions: Mapping[MessageQueue, int],
        *,
        begin: Callable[[MessageQueue], int],
        reset: int = 0,
        force: bool = False,
    ) -> Assignment:
        """At a boundary: records, gives back, takes, and says what is the query's own from here on.

        `queues` are all readable ones of the subscribed topics, `positions` what Spark has durably committed
        (the next offsets, in the first call those of the checkpoint), and `reset` the number that the offset
        with these positions was made under (`Assignment.reset`). `begin` gives the start of a queue of which
        nobody knows a position. `force` records even if persistConsumerOffsetInterval is not over. Where
        nothing can have changed this costs one look at a file; the same objects again for unchanged queues
        and positions keep it so.
        """
        now = self._clocks.monotonic()
        if not force and not self._is_due(queues, positions, reset, now):
            return self._quiet()
        try:
            with self._locked(0.0 if self._is_waiting else _LOCK_SECONDS):
                found = self._settle(queues, positions, reset, begin, now, force=force)
        except StoreInUseError as error:
            return self._without_lock(positions, reset, error)
        self._queues, self._positions, self._reset, self._is_waiting = queues, positions, reset, False
        return found

    def wait_settled(
        self,
        queues: Sequence[MessageQueue],
        positions: Mapping[MessageQueue, int],
        *,
        begin: Callable[[MessageQueue], int],
        reset: int = 0,
    ) -> Assignment:
        """`settle` until it is settled, at most one lease time: what a bounded run needs before it takes its
        end.
        """
        deadline = self._clocks.monotonic() + self._membership.lease_seconds
        lost: frozenset[MessageQueue] = frozenset()
        while True:
            found = self.settle(queues, positions, begin=begin, reset=reset)
            lost = (lost | found.lost) - found.owned.keys()
            if found.is_settled or self._clocks.monotonic() >= deadline:
                return replace(found, lost=lost)
            self._clocks.sleep(_WAIT_STEP_SECONDS)

    def record(self, positions: Mapping[MessageQueue, int], reset: int = 0) -> frozenset[MessageQueue]:
        """Records outside of a boundary; the queues of `positions` that are not this member's any more, of
        which nothing is recorded.
        """
        with self._locked():
            change = self._begin()
            change.record(self._id, self._held, positions, reset)
            self._write(change)
            self._save(change.state)
            return frozenset(
                q for q in positions if q not in self._held or not change.owns(self._id, q, self._held[q])
            )

    def correct(
        self, targets: Mapping[MessageQueue, int], positions: Mapping[MessageQueue, int], reset: int = 0
    ) -> Assignment:
        """Moves own queues to offsets below the recorded ones, which are beyond the end of their queues; as
        `settle` from there on.

        The offset file is lowered too: a client answers OFFSET_ILLEGAL so. While somebody has the lock
        nothing is corrected.
        """
        try:
            with self._locked():
                change = self._begin()
                self._drop_lost(change)
                self._mirror.correct(
                    change, {queue: offset for queue, offset in targets.items() if queue in self._held}
                )
                self._write(change)
                self._save(change.state)
                settled = self._now.is_settled
                self._now = self._assignment(
                    change.state, set(self._held), self._held.keys(), positions, reset
                )
                self._now = replace(self._now, is_settled=settled)
        except StoreInUseError as error:
            return self._without_lock(positions, reset, error)
        return self._now

    def note_replay(self, queues: Sequence[MessageQueue]) -> None:
        """Marks in the ownership log that Spark repeats a micro-batch of these queues, whoever owns them by
        now.
        """
        with self._locked():
            change = self._begin()
            change.replay(self._id, queues)
            self._write(change)

    def leave(self, positions: Mapping[MessageQueue, int], reset: int = 0) -> None:
        """Records, gives everything back and goes."""
        with self._locked():
            change = self._begin()
            if self._id in change.state.members:
                change.record(self._id, self._held, positions, reset)
                self._drop_lost(change)
                self._mirror.follow(change, self._held, ())
                self._write(change)
                change = self._save(change.state)
                change.dismiss(self._id)
                self._write(change)
        if self._lease is not None:
            self._lease.end()
        self._lease, self._held, self._now = None, {}, Assignment()

    # ---- under the lock ------------------------------------------------------------------------------------

    def _locked(self, seconds: float = _LOCK_SECONDS) -> StoreLock:
        return StoreLock(self._directory, timeout=seconds)

    def _begin(self) -> Change:
        state, self._state = self._state, None  # it is changed from here on, and may not come to be written
        if state is None or state_serial(self._directory) != state.serial:
            state = read_state(self._directory)
        return Change(state, self._id, self._clocks.epoch_ms())

    def _write(self, change: Change) -> None:
        if change.is_changed:
            change.state.log_size = append_events(
                self._directory, change.events, change.state.log_size, self._files
            )
            change.state.serial += 1
            write_state(self._directory, change.state, self._files)
        self._identity = state_identity(self._directory)
        self._state, self._serial = change.state, change.state.serial

    def _target(self, state: GroupState, queues: Sequence[MessageQueue]) -> dict[MessageQueue, str]:
        """What the strategy gives this member; the same again for the same clients and the same list."""
        clients, readers = list(state.clients()), state.readers()
        if self._targeted[0] != (clients, readers) or self._targeted[1] is not queues:
            self._targeted = ((clients, readers), queues, self._membership.allocate(clients, queues, readers))
        return self._targeted[2]

    def _settle(
        self,
        queues: Sequence[MessageQueue],
        positions: Mapping[MessageQueue, int],
        reset: int,
        begin: Callable[[MessageQueue], int],
        now: float,
        *,
        force: bool,
    ) -> Assignment:
        change = self._begin()
        before = set(self._held)
        if self._id in change.state.members:
            self._expel_gone(change)
        else:
            self._come_back(change)
        # the checkpoint is of members that met somewhere else: the next reset must be a later one
        if reset > change.state.reset:
            change.state.reset, change.is_changed = reset, True
        change.record(self._id, self._held, positions, reset)
        self._drop_lost(change)
        target = self._target(change.state, queues)
        free = [
            queue for queue in target if queue not in self._held and change.state.entry(queue).owner is None
        ]
        moved_back = self._mirror.follow(change, self._held, free)
        for queue in [queue for queue in self._held if queue not in target]:
            change.release(queue, self._id)
            del self._held[queue]
        for queue in self._held:
            if change.state.queues[queue].client != target[queue]:
                self._held[queue] = change.hand_on(queue, self._id, target[queue])
        for queue in free:
            checkpoint = positions.get(queue) if change.state.entry(queue).reset <= reset else None
            self._take(change, queue, target[queue], checkpoint, begin, is_moved_back=queue in moved_back)
        self._write(change)
        if force or now >= self._next_record:
            self._save(change.state)
            self._next_record = now + max(
                self._membership.persist_seconds, _RETRY_SECONDS if self._is_mirror_due else 0.0
            )
        else:
            self._is_mirror_due = self._is_mirror_due or change.is_changed
        self._now = self._assignment(change.state, before, target.keys(), positions, reset)
        return self._now

    def _assignment(
        self,
        state: GroupState,
        before: set[MessageQueue],
        target: Set[MessageQueue],
        positions: Mapping[MessageQueue, int],
        reset: int,
    ) -> Assignment:
        owned = {queue: Owned(state.queues[queue].client or "", epoch) for queue, epoch in self._held.items()}
        starts = {}
        for queue in owned:
            entry, position = state.queues[queue], positions.get(queue)
            recorded = entry.position or 0
            if position is None or position < recorded or entry.reset > reset:
                starts[queue] = recorded
        return Assignment(
            owned, starts, frozenset(before - owned.keys()), target == owned.keys(), state.reset
        )

    def _admit(self, change: Change) -> None:
        """As a new member, with a new id and a new lease. Refused ones leave no lease behind."""
        spec = self._membership
        self._id = change.writer = secrets.token_hex(8)
        self._expel_gone(change)
        entry = MemberEntry(
            list(spec.clients), host_name(), os.getpid(), spec.lease_seconds, list(spec.brokers)
        )
        for other in change.state.members.values():
            missing = sorted(set(spec.brokers) - set(other.brokers or spec.brokers))
            if missing:
                told = "group %s: its query %s began before broker %s was added and reads nothing of it; restart it to share those queues"
                _log.warning(told, spec.group, ", ".join(other.clients), ", ".join(missing))
        change.admit(
            spec.group, self._id, entry, subscription=spec.subscription, strategy=described(spec.strategy)
        )
        self._lease = Lease(self._directory, self._id, spec.lease_seconds, self._look_around)
        self._lease.begin()

    def _look_around(self) -> None:
        """In the lease's thread."""
        for watch in list(self._watches.values()):
            watch.look()

    def _come_back(self, change: Change) -> None:
        """After others took this member for gone: what it held is theirs, and it begins anew."""
        _log.warning(
            "group %s: the lease of %s had run out (%g s), its %d queues went to other members; it joins again",
            self._membership.group, ", ".join(self._membership.clients), self._membership.lease_seconds, len(self._held),
        )  # fmt: skip
        self._held = {}
        if self._lease is not None:
            self._lease.end()
        self._admit(change)

    def _expel_gone(self, change: Change) -> None:
        others = {name: entry for name, entry in change.state.members.items() if name != self._id}
        self._watches = {name: watch for name, watch in self._watches.items() if name in others}
        for name, entry in others.items():
            watch = self._watches.get(name)
            if watch is None:
                watch = self._watches[name] = Watch(self._directory, name, entry, self._clocks.monotonic)
            why = watch.why_gone()
            if why is not None:
                _log.warning(
                    "group %s: %s is no member any more, %s",
                    self._membership.group,
                    ", ".join(entry.clients),
                    why,
                )
                change.expel(name, why, was_seen=watch.has_beaten)
                remove_lease(self._directory, name)

    def _drop_lost(self, change: Change) -> None:
        self._held = {
            queue: epoch for queue, epoch in self._held.items() if change.owns(self._id, queue, epoch)
        }

    def _take(
        self,
        change: Change,
        queue: MessageQueue,
        client: str,
        checkpoint: int | None,
        begin: Callable[[MessageQueue], int],
        *,
        is_moved_back: bool,
    ) -> None:
        """`checkpoint` None says nothing, as one from before a reset does."""
        position = change.state.entry(queue).position
        if checkpoint is not None and checkpoint > (-1 if position is None else position):
            if is_moved_back:
                told = "group %s: %s was set back to offset %d, but the checkpoint of this query is at %d and further, so it goes on there"
                _log.warning(
                    f"{told}. To go back, use rmqlog offsets",
                    self._membership.group,
                    queue,
                    position,
                    checkpoint,
                )
            position = checkpoint
        self._held[queue] = change.take(
            queue, self._id, client, begin(queue) if position is None else position
        )

    def _save(self, state: GroupState) -> Change:
        """Shows RocketMQ's tools how far the group is, under the lock still; then writes into the state what
        they see.
        """
        change = Change(state, self._id, self._clocks.epoch_ms())
        self._is_mirror_due = not self._mirror.save(change, self._held)
        self._write(change)
        return Change(state, self._id, change.at)

    # ---- without it ----------------------------------------------------------------------------------------

    def _is_due(
        self, queues: Sequence[MessageQueue], positions: Mapping[MessageQueue, int], reset: int, now: float
    ) -> bool:
        if state_identity(self._directory) != self._identity or reset != self._reset:
            return True
        if now >= self._next_look:
            self._next_look = now + self._look_seconds
            if state_serial(self._directory) != self._serial or any(
                watch.why_gone() for watch in self._watches.values()
            ):
                return True
            if self._mirror.is_moved():
                return True
        if self._is_mirror_due and now >= self._next_record:
            # what was recorded in between shows outside of the group after the interval, also when nothing
            # comes
            return True
        if queues is not self._queues and list(queues) != list(self._queues):
            return True
        is_moved = positions is not self._positions and positions != self._positions
        return is_moved and (now >= self._next_record or bool(self._now.starts))

    def _quiet(self) -> Assignment:
        """The same again, with nothing new in it."""
        if self._now.lost:
            self._now = replace(self._now, lost=frozenset())
        return self._now

    def _without_lock(
        self, positions: Mapping[MessageQueue, int], reset: int, error: StoreInUseError
    ) -> Assignment:
        """Somebody was stopped with the lock. What the state still gives this member it goes on reading;
        nothing is recorded meanwhile.
        """
        if not self._is_waiting:
            _log.warning(
                "group %s: queues stay where they are and nothing is recorded for now: %s",
                self._membership.group,
                error,
            )
        self._is_waiting = True
        change = self._begin()
        before = set(self._held)
        self._held = {
            queue: epoch for queue, epoch in self._held.items() if change.owns(self._id, queue, epoch)
        }
        self._now = replace(
            self._assignment(change.state, before, self._held.keys(), positions, reset), is_settled=False
        )
        return self._now
