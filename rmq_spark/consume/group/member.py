"""A query as a member of a consumer group: which queues it owns now, from which offset, and what it records.

The members of a group share a directory. `group.json` there says who owns each queue; it changes only under
the directory's lock, and a member reads it at the boundaries of its micro-batches. A queue goes to another
member after its owner has recorded how far it read and has released the queue, or after the owner's lease has
run out. Every new owner gets a new epoch of the queue. A member that was stopped for longer than its lease
finds that its epochs are over: it reads nothing more from the lost queues, and nothing that it reports about
them is recorded.

    member = join(directory, Membership("orders", ("c@0", "c@1"), strategy("AVG"), "Orders *"), offsets)
    now = member.settle(queues, positions, begin=first_offset, reset=reset)     # at each boundary
    member.leave(positions, reset)

The positions are also in the offset file, where other programs change them: see `offset_mirror`. A query that
shares no queues with other queries (messageModel BROADCASTING, or offsetStore=none) is a `SoleMember`: it has
the same methods, but no directory, no lease and no epochs.
"""

from __future__ import annotations

import logging
import os
import secrets
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace

from rmq_spark.consume.allocate import AllocateMessageQueueStrategy, described
from rmq_spark.consume.consumer import MessageQueue, sort_clients, sort_queues
from rmq_spark.consume.group.change import Change, write_change
from rmq_spark.consume.group.directory import (
    GroupState,
    Lease,
    MemberEntry,
    Watch,
    host_name,
    read_state,
    remove_lease,
    state_identity,
    state_serial,
)
from rmq_spark.consume.group.offset_mirror import GroupOffsetMirror
from rmq_spark.consume.offset_store import OffsetStore, make_path
from rmq_spark.consume.orderly import Stop
from store_format.display.text import first_names, shown
from store_format.errors import StoreInUseError
from store_format.files.lock import StoreLock
from store_format.files.polling import Clocks
from store_format.files.write import FileWrites

_log = logging.getLogger(__name__)

_LOCK_SECONDS = 5.0  # a change takes milliseconds: a process that holds the lock for longer was stopped
_LOOKS_A_LEASE = 15  # how often the leases of other members are looked at
_LOOK_SECONDS_MAX = 1.0
_WAIT_STEP_SECONDS = 0.05
_RETRY_SECONDS = 1.0  # between two attempts to save offsets when they are saved at every boundary

_LEASE_SECONDS = 30.0

_EPOCH = 1


# ---- what a query brings, and what it gets -----------------------------------------------------------------


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
    lease_seconds: float = _LEASE_SECONDS
    persist_seconds: float = 0.0
    brokers: tuple[str, ...] = ()
    kind: str = "query"

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
class _Owned:
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

    owned: Mapping[MessageQueue, _Owned] = field(default_factory=dict)
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


# ---- a member ----------------------------------------------------------------------------------------------


def join(
    directory: str, membership: Membership, offsets: OffsetStore, *, clocks: Clocks | None = None
) -> GroupMember:
    """Joins the group as a new member, which owns no queue before its first `settle`.

    Raises OptionError for a subscription, a strategy or a client id that does not fit the other members.
    """
    make_path(directory)
    member = GroupMember(directory, membership, offsets, clocks or Clocks())
    member.enter()
    return member


class GroupMember:
    """One query in a group; made by `join`. Only the thread of the query's reader may use it, and any thread
    `owns`.
    """

    def __init__(self, directory: str, membership: Membership, offsets: OffsetStore, clocks: Clocks) -> None:
        self.places: Mapping[MessageQueue, int] = {}  # of the messages before the positions (`$at`)
        self.kept: Collection[MessageQueue] = ()  # not released while they are in it; see `leaving`
        self.leaving: frozenset[MessageQueue] = frozenset()  # kept queues that are others' by the strategy
        self._directory = directory
        self._membership = membership
        self._mirror = GroupOffsetMirror(membership.group, offsets)
        self._clocks = clocks
        self._files = FileWrites(sync=True)
        self._id = ""
        self._lease: Lease | None = None
        self._others = _OtherMembers(directory, membership.group, clocks)
        self._held: dict[MessageQueue, int] = {}  # own queues and the epochs in which they were taken
        self._now = Assignment()
        self._identity: tuple[int, int, int] | None = None
        self._serial = 0
        # The state as this member wrote or read it last; valid while the file has the same serial number.
        self._state: GroupState | None = None
        self._targeted: tuple[object, Sequence[MessageQueue], dict[MessageQueue, str]] = (None, (), {})
        self._queues: Sequence[MessageQueue] = ()
        self._positions: Mapping[MessageQueue, int] = {}
        self._reset = 0
        self._look_seconds = min(membership.lease_seconds / _LOOKS_A_LEASE, _LOOK_SECONDS_MAX)
        self._next_look = self._next_record = clocks.monotonic()
        self._is_mirror_due = self._is_waiting = False
        self._asked: tuple[tuple[int, int, int] | None, GroupState] = (None, GroupState())

    def owns(self, queue: MessageQueue, epoch: int) -> bool:
        """Whether `group.json` gives the queue to this member in this epoch now.

        Any thread may ask, before it hands out messages. Costs one `stat` while the file is the same.
        """
        identity, state = self._asked
        now = state_identity(self._directory)
        if now != identity:
            state = read_state(self._directory)
            self._asked = now, state
        entry = state.queues.get(queue)
        return entry is not None and entry.owner == self._id and entry.epoch == epoch

    def recorded(self, queue: MessageQueue) -> int | None:
        """The position that the members have recorded for a queue; None without one."""
        entry = read_state(self._directory).queues.get(queue)
        return None if entry is None else entry.position

    def all_recorded(self) -> Mapping[MessageQueue, int]:
        """The positions that the members have recorded."""
        queues = read_state(self._directory).queues
        return {queue: entry.position for queue, entry in queues.items() if entry.position is not None}

    @property
    def id(self) -> str:
        """The member's id in `group.json` and `ownership.log`; an expelled member gets a new one."""
        return self._id

    def enter(self) -> None:
        try:
            with self._locked():
                change = self._begin()
                self._admit(change)
                self._write(change)
        except BaseException:
            if self._lease is not None:
                self._lease.end()
            raise

    def settle(
        self,
        queues: Sequence[MessageQueue],
        positions: Mapping[MessageQueue, int],
        *,
        begin: Callable[[MessageQueue], int],
        reset: int = 0,
        force: bool = False,
    ) -> Assignment:
        """Records positions, releases and takes queues at a boundary; returns what the query then owns.

        `queues` are all readable queues of the subscribed topics. `positions` are the next offsets that Spark
        has durably committed; in the first call those of the checkpoint. `reset` is the reset number of the
        assignment (`Assignment.reset`) under which the offset with these positions was made. `begin` gives
        the start of a queue for which neither the group nor the checkpoint has a position. `force` records
        even if persistConsumerOffsetInterval is not over.

        A call with nothing to do costs one `stat` of a file, if unchanged queues and positions are passed as
        the same objects.
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
        """Repeats `settle` until `is_settled`, at most for one lease time: a bounded run needs this."""
        found = Assignment()
        lost: frozenset[MessageQueue] = frozenset()
        for _ in self._clocks.attempts(self._membership.lease_seconds, _WAIT_STEP_SECONDS):
            found = self.settle(queues, positions, begin=begin, reset=reset)
            lost = (lost | found.lost) - found.owned.keys()
            if found.is_settled:
                break
        return replace(found, lost=lost)

    def correct(
        self, targets: Mapping[MessageQueue, int], positions: Mapping[MessageQueue, int], reset: int = 0
    ) -> Assignment:
        """Moves own queues, whose recorded positions are beyond their ends, back to `targets`.

        Returns what `settle` would return from here on. The offset file is lowered too, as a client does on
        OFFSET_ILLEGAL. While another process holds the lock nothing is corrected.
        """
        try:
            with self._locked():
                change = self._begin()
                self._drop_lost(change)
                own = {queue: offset for queue, offset in targets.items() if queue in self._held}
                self._mirror.correct(change, own)
                self._write(change)
                self._save(change.state)
                found = self._assignment(change.state, set(self._held), self._held.keys(), positions, reset)
                self._now = replace(found, is_settled=self._now.is_settled)
        except StoreInUseError as error:
            return self._without_lock(positions, reset, error)
        return self._now

    def note_replay(self, queues: Sequence[MessageQueue]) -> None:
        """Notes in the ownership log that Spark repeats a micro-batch of these queues."""
        with self._locked():
            change = self._begin()
            change.replay(self._id, queues)
            self._write(change)

    def leave(self, positions: Mapping[MessageQueue, int], reset: int = 0) -> None:
        """Records positions, releases all queues and leaves the group. The lease ends even if that fails."""
        try:
            with self._locked():
                change = self._begin()
                if self._id in change.state.members:
                    change.record(self._id, self._held, positions, reset, self.places)
                    self._drop_lost(change)
                    self._mirror.follow(change, self._held, ())
                    self._write(change)
                    change = self._save(change.state)
                    change.dismiss(self._id)
                    self._write(change)
        finally:
            if self._lease is not None:
                self._lease.end()
            self._lease, self._held, self._now = None, {}, Assignment()

    # ---- under the lock ------------------------------------------------------------------------------------

    def _locked(self, seconds: float = _LOCK_SECONDS) -> StoreLock:
        return StoreLock(self._directory, timeout=seconds)

    def _begin(self) -> Change:
        state, self._state = self._state, None  # the change modifies it, and may fail before it is written
        if state is None or state_serial(self._directory) != state.serial:
            state = read_state(self._directory)
        return Change(state, self._id, self._clocks.epoch_ms())

    def _write(self, change: Change) -> None:
        if change.is_changed:
            write_change(self._directory, change, self._files)
        self._identity = state_identity(self._directory)
        self._state, self._serial = change.state, change.state.serial

    def _target(self, state: GroupState, queues: Sequence[MessageQueue]) -> dict[MessageQueue, str]:
        """The queues that the strategy allocates to this member, cached by clients and queue list."""
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
            self._others.expel_gone(change, self._id)
        else:
            self._come_back(change)
        # The checkpoint comes from another directory of the group: the next reset needs a higher number.
        if reset > change.state.reset:
            change.state.reset, change.is_changed = reset, True
        change.record(self._id, self._held, positions, reset, self.places)
        self._drop_lost(change)
        target = self._target(change.state, queues)
        self._exchange(change, target, positions, reset, begin)
        self._write(change)
        if force or now >= self._next_record:
            self._save(change.state)
            retry_seconds = _RETRY_SECONDS if self._is_mirror_due else 0.0
            self._next_record = now + max(self._membership.persist_seconds, retry_seconds)
        else:
            self._is_mirror_due = self._is_mirror_due or change.is_changed
        self._now = self._assignment(change.state, before, target.keys(), positions, reset)
        return self._now

    def _exchange(
        self,
        change: Change,
        target: Mapping[MessageQueue, str],
        positions: Mapping[MessageQueue, int],
        reset: int,
        begin: Callable[[MessageQueue], int],
    ) -> None:
        """Releases own queues that are not in `target`, takes the queues of `target` that have no owner."""
        free = [
            queue for queue in target if queue not in self._held and change.state.entry(queue).owner is None
        ]
        moved_back = self._mirror.follow(change, self._held, free)
        others = self._held.keys() - target.keys()
        self.leaving = frozenset(queue for queue in others if queue in self.kept)
        for queue in others - self.leaving:
            change.release(queue, self._id)
            del self._held[queue]
        for queue in self._held.keys() & target.keys():
            if change.state.queues[queue].client != target[queue]:
                self._held[queue] = change.hand_on(queue, self._id, target[queue])
        for queue in free:
            checkpoint = positions.get(queue) if change.state.entry(queue).reset <= reset else None
            self._take(change, queue, target[queue], checkpoint, begin, is_moved_back=queue in moved_back)

    def _assignment(
        self,
        state: GroupState,
        before: set[MessageQueue],
        target: Set[MessageQueue],
        positions: Mapping[MessageQueue, int],
        reset: int,
    ) -> Assignment:
        owned = {
            queue: _Owned(state.queues[queue].client or "", epoch) for queue, epoch in self._held.items()
        }
        starts = {}
        for queue in owned:
            entry, position = state.queues[queue], positions.get(queue)
            recorded = entry.position or 0
            if position is None or position < recorded or entry.reset > reset:
                starts[queue] = recorded
        stops = {queue: stop for queue in owned if (stop := state.queues[queue].stop) and stop.times}
        # A failure of a handler has raised the number of its queue, too.
        resets = frozenset(queue for queue in owned if state.queues[queue].reset > reset) - stops.keys()
        places = {queue: place for queue in starts if (place := state.queues[queue].place) is not None}
        lost, is_settled = frozenset(before - owned.keys()), target == owned.keys()
        return Assignment(owned, starts, lost, is_settled, state.reset, stops, places, resets)

    def _admit(self, change: Change) -> None:
        """Adds this query with a new id and a new lease. A refused query leaves no lease behind."""
        spec = self._membership
        self._id = change.writer = secrets.token_hex(8)
        self._others.expel_gone(change, self._id)
        self._others.warn_of_unread_brokers(change.state, spec.brokers)
        clients, brokers = list(spec.clients), list(spec.brokers)
        entry = MemberEntry(clients, host_name(), os.getpid(), spec.lease_seconds, brokers, spec.kind)
        change.admit(
            spec.group, self._id, entry, subscription=spec.subscription, strategy=described(spec.strategy)
        )
        self._lease = Lease(self._directory, self._id, spec.lease_seconds, self._others.look)
        self._lease.begin()

    def _come_back(self, change: Change) -> None:
        """Joins again after other members expelled this one: its queues are lost."""
        spec = self._membership
        _log.warning(
            "group %s: the lease of %s ran out after %g s and its %d queues went to other members; it joins "
            "again",
            spec.group, ", ".join(spec.clients), spec.lease_seconds, len(self._held),
        )  # fmt: skip
        self._held = {}
        if self._lease is not None:
            self._lease.end()
        self._admit(change)

    def _drop_lost(self, change: Change) -> None:
        self._held = {q: epoch for q, epoch in self._held.items() if change.owns(self._id, q, epoch)}

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
        """Takes a free queue. `checkpoint` None: no position, or one from before a reset."""
        position = change.state.entry(queue).position
        if checkpoint is not None and checkpoint > (-1 if position is None else position):
            if is_moved_back:
                _log.warning(
                    "group %s: %s was set back to offset %d, but this query's checkpoint is at offset %d, "
                    "so the query continues there. To go back, use rmqlog offsets",
                    self._membership.group,
                    queue,
                    position,
                    checkpoint,
                )
            position = checkpoint
        start = begin(queue) if position is None else position
        self._held[queue] = change.take(queue, self._id, client, start)

    def _save(self, state: GroupState) -> Change:
        """Writes the positions to the offset file, then writes into the state what that file now contains."""
        change = Change(state, self._id, self._clocks.epoch_ms())
        self._is_mirror_due = not self._mirror.save(change, self._held)
        self._write(change)
        return Change(state, self._id, change.at)

    # ---- without the lock ----------------------------------------------------------------------------------

    def _is_due(
        self, queues: Sequence[MessageQueue], positions: Mapping[MessageQueue, int], reset: int, now: float
    ) -> bool:
        if state_identity(self._directory) != self._identity or reset != self._reset:
            return True
        if now >= self._next_look:
            self._next_look = now + self._look_seconds
            is_changed = state_serial(self._directory) != self._serial
            if is_changed or self._others.any_gone() or self._mirror.is_replaced():
                return True
        if self._is_mirror_due and now >= self._next_record:
            # Recorded positions reach the offset file after the interval even when no new message arrives.
            return True
        if any(queue not in self.kept for queue in self.leaving):
            return True
        is_other = queues is not self._queues and list(queues) != list(self._queues)
        is_moved = positions is not self._positions and positions != self._positions
        return is_other or (is_moved and (now >= self._next_record or bool(self._now.starts)))

    def _quiet(self) -> Assignment:
        """The assignment of the last boundary, without its `lost` queues."""
        if self._now.lost:
            self._now = replace(self._now, lost=frozenset())
        return self._now

    def _without_lock(
        self, positions: Mapping[MessageQueue, int], reset: int, error: StoreInUseError
    ) -> Assignment:
        """What the member owns while a stopped process holds the lock: it reads on, and records nothing."""
        if not self._is_waiting:
            _log.warning(
                "group %s: queues are not reassigned and positions are not recorded for now: %s",
                self._membership.group,
                error,
            )
        self._is_waiting = True
        change = self._begin()
        before = set(self._held)
        self._drop_lost(change)
        found = self._assignment(change.state, before, self._held.keys(), positions, reset)
        self._now = replace(found, is_settled=False)
        return self._now


# ---- the other members -------------------------------------------------------------------------------------


class _OtherMembers:
    """One `Watch` for each other member, kept from one micro-batch boundary to the next."""

    def __init__(self, directory: str, group: str, clocks: Clocks) -> None:
        self._directory = directory
        self._group = group
        self._clocks = clocks
        self._watches: dict[str, Watch] = {}

    def look(self) -> None:
        """Reads all beats. May be called from the lease's thread."""
        for watch in list(self._watches.values()):
            watch.look()

    def any_gone(self) -> bool:
        return any(watch.why_gone() for watch in self._watches.values())

    def expel_gone(self, change: Change, own_id: str) -> None:
        """Removes every other member whose lease is gone, with a warning, and begins to watch new members."""
        others = {name: entry for name, entry in change.state.members.items() if name != own_id}
        self._watches = {name: watch for name, watch in self._watches.items() if name in others}
        for name, entry in others.items():
            watch = self._watches.get(name)
            if watch is None:
                watch = self._watches[name] = Watch(self._directory, name, entry, self._clocks.monotonic)
            why = watch.why_gone()
            if why is not None:
                clients = ", ".join(entry.clients)
                _log.warning("group %s: %s is no longer a member: %s", self._group, shown(clients), why)
                change.expel(name, why, was_seen=watch.has_beaten)
                remove_lease(self._directory, name)

    def warn_of_unread_brokers(self, state: GroupState, brokers: Collection[str]) -> None:
        """Warns of members that started before some of `brokers` were added and do not read those."""
        for other in state.members.values():
            missing = sorted(set(brokers) - set(other.brokers or brokers))
            if missing:
                _log.warning(
                    "group %s: its query %s started before broker %s was added and reads nothing from it; "
                    "restart that query to share the broker's queues",
                    self._group,
                    shown(", ".join(other.clients)),
                    first_names(missing),
                )


# ---- a query without other members -------------------------------------------------------------------------


class SoleMember:
    """`shares` False: the only client owns every queue (RebalanceImpl.rebalanceByTopic, BROADCASTING).

    Otherwise the strategy distributes the queues among the clients of the query.
    """

    def __init__(
        self, membership: Membership, offsets: OffsetStore, *, shares: bool, clocks: Clocks | None = None
    ) -> None:
        self.places: Mapping[MessageQueue, int] = {}  # as in `GroupMember`; nothing records them
        self.kept: Collection[MessageQueue] = ()  # as in `GroupMember`; nothing is released
        self.leaving: frozenset[MessageQueue] = frozenset()
        self._membership = membership
        self._offsets = offsets
        self._shares = shares
        self._clocks = clocks or Clocks()
        self._queues: Sequence[MessageQueue] | None = None
        self._positions: Mapping[MessageQueue, int] = {}
        self._begins: dict[
            MessageQueue, int
        ] = {}  # starts of queues that no offset of the query contains yet
        # the corrected offset, and the reset number of the first offset that contains it
        self._corrected: dict[MessageQueue, tuple[int, int]] = {}
        self._reset = 0
        self._saved: dict[MessageQueue, int] = {}
        self._saved_positions: Mapping[MessageQueue, int] | None = None
        self._next_save = self._clocks.monotonic()
        self._now = Assignment()

    def settle(
        self,
        queues: Sequence[MessageQueue],
        positions: Mapping[MessageQueue, int],
        *,
        begin: Callable[[MessageQueue], int],
        reset: int = 0,
        force: bool = False,
    ) -> Assignment:
        """Returns all queues: each starts at its position, else at the group's offset, else at `begin`.

        The arguments are those of `GroupMember.settle`.
        """
        self._reset = max(self._reset, reset)
        if not self._precedes_correction(reset):
            self._save(positions, force=force)
        if queues is not self._queues or (self._now.starts and positions is not self._positions):
            self._now = self._assign(queues, positions, begin, reset)
            self._queues, self._positions = queues, positions
        return self._now

    def wait_settled(
        self,
        queues: Sequence[MessageQueue],
        positions: Mapping[MessageQueue, int],
        *,
        begin: Callable[[MessageQueue], int],
        reset: int = 0,
    ) -> Assignment:
        """Returns what `settle` returns, at once: there is no other member to wait for."""
        return self.settle(queues, positions, begin=begin, reset=reset)

    def correct(
        self, targets: Mapping[MessageQueue, int], positions: Mapping[MessageQueue, int], reset: int = 0
    ) -> Assignment:
        """Moves queues to `targets`, also in the offset store, and returns the new assignment.

        The arguments are those of `GroupMember.correct`.
        """
        self._reset += 1
        self._corrected |= {queue: (offset, self._reset) for queue, offset in targets.items()}
        self._begins |= targets
        self._offsets.save(targets, is_reset=True)
        self._saved |= targets
        self._now = replace(self._now, starts={**self._now.starts, **targets}, reset=self._reset)
        return self._now

    def _precedes_correction(self, reset: int) -> bool:
        """Whether positions under this reset number are from before a correction and would undo it."""
        return any(number > reset for _, number in self._corrected.values())

    def recorded(self, queue: MessageQueue) -> int | None:
        """The offset of the queue in the offset store; None without one."""
        return self._offsets.read().get(queue)

    def all_recorded(self) -> Mapping[MessageQueue, int]:
        """The positions that this member has saved; with the offset store `none`, those it would have."""
        return self._saved

    def owns(self, queue: MessageQueue, epoch: int) -> bool:
        """True: there is no other member."""
        return True

    def note_replay(self, queues: Sequence[MessageQueue]) -> None:
        """Does nothing: no other query can own the queues."""

    def leave(self, positions: Mapping[MessageQueue, int], reset: int = 0) -> None:
        """Saves the positions."""
        if not self._precedes_correction(reset):
            self._save(positions, force=True)

    def _assign(
        self,
        queues: Sequence[MessageQueue],
        positions: Mapping[MessageQueue, int],
        begin: Callable[[MessageQueue], int],
        reset: int,
    ) -> Assignment:
        clients = self._membership.clients
        owner = (
            self._membership.allocate(clients, queues) if self._shares else dict.fromkeys(queues, clients[0])
        )
        new = [queue for queue in owner if queue not in positions and queue not in self._begins]
        known = self._offsets.read() if new else {}
        for queue in new:
            committed = known.get(queue, -1)
            self._begins[queue] = committed if committed >= 0 else begin(queue)
        starts = {queue: self._begins[queue] for queue in owner if queue not in positions}
        starts |= {
            queue: offset
            for queue, (offset, number) in self._corrected.items()
            if number > reset and queue in owner
        }
        owned = {queue: _Owned(client, _EPOCH) for queue, client in owner.items()}
        return Assignment(owned, starts, is_settled=True, reset=self._reset)

    def _save(self, positions: Mapping[MessageQueue, int], *, force: bool) -> None:
        now = self._clocks.monotonic()
        if positions is self._saved_positions or (not force and now < self._next_save):
            return
        self._next_save = now + self._membership.persist_seconds
        changed = {
            queue: position for queue, position in positions.items() if self._saved.get(queue) != position
        }
        if changed and not self._offsets.save(changed):
            self._next_save = now + max(self._membership.persist_seconds, _RETRY_SECONDS)
            return
        self._saved |= changed
        self._saved_positions = positions
