"""A query that shares no queues with other queries: messageModel BROADCASTING, or offsetStore=none.

`SoleMember` has the methods of `GroupMember`, but no directory, no lease and no epochs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from rmq_spark.consume.group.membership import Assignment, Membership, Owned
from rmq_spark.consume.message_queue import MessageQueue
from rmq_spark.consume.offset_store import OffsetStore
from store_format.files.polling import Clocks

_EPOCH = 1
_RETRY_SECONDS = 1.0  # between two attempts to save offsets


class SoleMember:
    """`shares` False: the only client owns every queue (RebalanceImpl.rebalanceByTopic, BROADCASTING).

    Otherwise the strategy distributes the queues among the clients of the query.
    """

    def __init__(
        self, membership: Membership, offsets: OffsetStore, *, shares: bool, clocks: Clocks | None = None
    ) -> None:
        self.places: Mapping[MessageQueue, int] = {}  # as in `GroupMember`; nothing records them
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
        owned = {queue: Owned(client, _EPOCH) for queue, client in owner.items()}
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
