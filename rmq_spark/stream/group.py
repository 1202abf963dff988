"""A stream as a member of its consumer group: which queues the members share, and which the query owns.

Nothing is opened before the first boundary between micro-batches. From then on the query is a member until
its process ends, or until a bounded run has read everything.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from rmq_spark.consume.client_ids import BROADCASTING
from rmq_spark.consume.group.meeting import group_directory, inherit, other_places, refuse_members_elsewhere
from rmq_spark.consume.group.member import GroupMember, join
from rmq_spark.consume.group.membership import Assignment, Clocks, Membership
from rmq_spark.consume.group.sole_member import SoleMember
from rmq_spark.consume.message_queue import MessageQueue
from rmq_spark.consume.offset_store import CheckedOffsets, OffsetStore
from rmq_spark.consume.permission import consuming_group
from rmq_spark.consume.stream_offset import StreamOffset
from rmq_spark.options.group_options import GroupOptions
from rmq_spark.plan.starts import begin_of, subscribe_set, usable_offsets
from rmq_spark.plan.stores import refuse_unknown
from rmq_spark.stream.stores import StreamStores
from store_format.bookkeeping.journal import StoreState
from store_format.errors import OptionError, StoreWriteError
from store_format.files.read import stat_identity
from store_format.names import retry_topic
from store_format.pop.members import live_topics

_log = logging.getLogger(__name__)


class StreamGroup:
    """The group as one query sees it.

    `clients` are the logical clients of the query, in the order of their partitions; () before the first
    boundary.
    """

    def __init__(self, stores: StreamStores, options: GroupOptions, *, clocks: Clocks | None = None) -> None:
        self.clients: tuple[str, ...] = ()
        self._stores = stores
        self._options = options
        self._clocks = clocks
        self._part: GroupMember | SoleMember | None = None
        self._membership: Membership | None = None
        self._queues: Sequence[MessageQueue] = ()
        self._queues_seen: object = None
        self._first: frozenset[MessageQueue] | None = None
        self._has_waited = False

    def settle(self, previous: StreamOffset, *, is_bounded: bool) -> Assignment:
        """At a boundary: records the offsets that Spark has committed, and returns the queues the query owns.

        The first call of a bounded run waits, at most one lease time, for queues that other members have to
        give back. Raises StoreInUseError if a broker keeps the offsets, and OptionError for options that do
        not match the stores or the other members.
        """
        part = self._part or self._join()
        queues, positions, part.places = self._shared(), previous.positions, previous.at
        if self._first is None:
            self._first = frozenset(queues)
        if is_bounded and not self._has_waited:
            self._has_waited = True
            return part.wait_settled(queues, positions, begin=self._begin, reset=previous.reset)
        return part.settle(queues, positions, begin=self._begin, reset=previous.reset, force=is_bounded)

    def correct(self, targets: Mapping[MessageQueue, int], previous: StreamOffset) -> Assignment:
        """Called right after `settle`: moves owned queues back to `targets`, offsets that exist."""
        assert self._part is not None, "not joined"
        return self._part.correct(targets, previous.positions, previous.reset)

    def note_replay(self, queues: Sequence[MessageQueue]) -> None:
        """Before a micro-batch that Spark repeats: notes in the ownership log that its queues are read again.

        Other members may own them by now.
        """
        part = self._part or self._join()
        part.note_replay(queues)

    def allocate(self, queues: Sequence[MessageQueue]) -> dict[MessageQueue, str]:
        """Queue -> client of a repeated batch, by the strategy, as if this query were the only member."""
        assert self._membership is not None, "not joined"
        found: dict[MessageQueue, str] = self._membership.allocate(self.clients, queues)
        for number, queue in enumerate(queues):
            found.setdefault(queue, self.clients[number % len(self.clients)])
        return found

    def leave(self, previous: StreamOffset) -> None:
        """Records the offsets and gives all queues back: a bounded run has read everything."""
        if self._part is not None:
            self._part.places = previous.at
            self._part.leave(previous.positions, previous.reset)

    def _join(self) -> GroupMember | SoleMember:
        options, stores = self._options, self._stores.stores
        roots = {store.broker_name: store.path for store in stores}
        is_broadcasting = options.message_model == BROADCASTING
        for store in stores:
            consuming_group(store.path, options.group, is_broadcasting=is_broadcasting)
        self._refuse_unknown()
        self._refuse_pop()
        offsets = options.make_offset_store(roots)
        offsets.check()
        if any(store.state is StoreState.LIVE for store in stores):
            _log.warning(
                "group %s: a broker runs on the store. Its consumers and this query do not share queues: "
                "both read every message",
                options.group,
            )
        membership = options.make_membership(self._stores.options.subscription, sorted(roots))
        self.clients, self._membership = membership.clients, membership
        checked = CheckedOffsets(offsets, self._usable)
        paths = self._stores.options.paths
        directory = (
            None
            if is_broadcasting
            else group_directory(
                offsets, group=options.group, roots=roots, paths=paths, group_path=options.group_path
            )
        )
        if directory is None:
            self._part = SoleMember(membership, checked, shares=not is_broadcasting, clocks=self._clocks)
        else:
            others = []
            if options.group_path is None:
                others = other_places(directory, offsets, group=options.group, roots=roots, paths=paths)
            self._part = self._meet(directory, others, membership, checked)
        where = "no other members" if directory is None else f"members meet in {directory}"
        _log.info(
            "group %s: %s, offsets in %s, %s", options.group, ", ".join(self.clients), offsets.kind, where
        )
        return self._part

    def _usable(self, known: dict[MessageQueue, int]) -> dict[MessageQueue, int]:
        fails = self._stores.options.fail_on_data_loss
        return usable_offsets(known, self._options.group, frozenset(self._shared()), fail_on_data_loss=fails)

    def _meet(
        self, directory: str, others: Sequence[str], membership: Membership, offsets: OffsetStore
    ) -> GroupMember:
        """Joins the group in `directory`. Raises OptionError if it has members in one of `others`."""
        group, clocks = self._options.group, self._clocks or Clocks()
        gone = refuse_members_elsewhere(group, directory, others, clocks)
        try:
            inherit(directory, others)
            member = join(directory, membership, offsets, clocks=self._clocks)
        except StoreWriteError as error:
            raise StoreWriteError(
                f"{error}; the queries of group {group} meet in {directory}: make it writable, or set the "
                "same groupPath in all of them"
            ) from error
        try:
            # a member may have joined there, or begun to pop, at the same time
            refuse_members_elsewhere(group, directory, others, clocks, known_gone=gone)
            self._refuse_pop()
        except OptionError:
            member.leave({})
            raise
        return member

    def _refuse_pop(self) -> None:
        group = self._options.group
        for store in self._stores.stores:
            for topic in live_topics(store.path, group):
                if self._stores.options.topics.chooses_topic(topic):
                    raise OptionError(
                        f"group {group}: expected only members that read whole queues, found consumers that "
                        f"pop topic {topic} in {store.path}: a message would go to both. Stop them, set "
                        "consumeMode=pop, or use another group"
                    )

    def _refuse_unknown(self) -> None:
        queues = [*self._shared(), *self._stores.queues]
        refuse_unknown(self._stores.stores, self._stores.options, queues)
        shared = {queue.topic for queue in self._shared()}
        for topic in self._stores.options.topics.named_topics:
            if topic not in shared:
                _log.warning(
                    "group %s: topics.json allows reading no queue of topic %s (perm or readQueueNums)",
                    self._options.group,
                    topic,
                )

    def _shared(self) -> Sequence[MessageQueue]:
        """All queues that the members share. Read again only if a topics.json was replaced."""
        stores = self._stores
        identities = tuple(stat_identity(f"{store.path}/config/topics.json") for store in stores.stores)
        seen = identities, stores.version if None in identities else 0
        if seen != self._queues_seen:
            queues = subscribe_set(stores.stores, stores.options.topics, self._options.group)
            if self._options.message_model == BROADCASTING:
                queues = [queue for queue in queues if queue.topic != retry_topic(self._options.group)]
            self._queues, self._queues_seen = queues, seen
        return self._queues

    def _begin(self, queue: MessageQueue) -> int:
        """The start of a queue without a known offset. A queue created while the query runs is read from its
        first message.
        """
        there = self._stores.queues
        if self._first is not None and queue not in self._first:
            return there[queue].min_offset if queue in there else 0
        return begin_of(there, self._options)(queue)
