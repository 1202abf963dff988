"""The offsets of a stream that reads as a member of a consumer group: only the queues that it is given.

The group's answer at a boundary goes into the offset that ends the next micro-batch (`$from` and `$reset`)
and nowhere else, so a batch that Spark repeats is planned from the offsets alone. Nothing is opened before
the first boundary between micro-batches. From then on the query is a member until its process ends, or until
a bounded run has read everything.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from rmq_spark.consume.consumer import BROADCASTING, MessageQueue, consuming_group, offset_limits, sort_queues
from rmq_spark.consume.group.directory import (
    group_directory,
    inherit,
    live_topics,
    other_places,
    refuse_members_elsewhere,
)
from rmq_spark.consume.group.member import Assignment, GroupMember, Membership, SoleMember, join
from rmq_spark.consume.offset_store import CheckedOffsets, OffsetStore
from rmq_spark.consume.orderly import Stop
from rmq_spark.consume.stream_offset import StreamOffset
from rmq_spark.options.group_options import GroupOptions
from rmq_spark.plan.starts import begin_of, refuse_unknown, subscribe_set, usable_offsets
from rmq_spark.stream.plan import ranges
from rmq_spark.stream.positions import Step, StreamPositions
from rmq_spark.stream.stores import StreamStores
from store_format.bookkeeping.journal import StoreState
from store_format.errors import OffsetOutOfRangeError, OptionError, StoreError, StoreWriteError
from store_format.files.polling import Clocks
from store_format.follow.log_tail import Replaced, replaced_since
from store_format.metadata.read import known_topics
from store_format.names import retry_topic

_log = logging.getLogger(__name__)

_Json = dict[str, object]


class GroupPositions(StreamPositions):
    """A new query's first offset is empty: `$from` of its first batch says where each queue began."""

    def __init__(self, stores: StreamStores, options: GroupOptions, *, clocks: Clocks | None = None) -> None:
        super().__init__(stores)
        self._group = _StreamGroup(stores, options, clocks=clocks)
        self._options = options
        self._now = Assignment()
        self._resets: frozenset[MessageQueue] = frozenset()  # queues that were reset in the new topic
        self._compared = 0  # version of the stores that offsets were compared with
        self._clocks = clocks or Clocks()
        self._held: frozenset[MessageQueue] = frozenset()  # queues that wait after a failure
        self._stops_before: Mapping[MessageQueue, Stop] | None = None  # of the first boundary
        self._has_left = False
        self._resumed = True
        self._last_step = Step()

    def initial(self) -> _Json:
        """Empty: the group is asked at the first boundary, and Spark repeats a batch before that."""
        if self._initial is None:
            self._initial = {}
        return self._initial

    def latest(self, start: _Json) -> _Json:
        if self._has_left:
            return start
        if self.stores.waits_for_names:
            self.stores.look()
            if self.stores.waits_for_names:
                return start  # members know queues by the names of their brokers
        end = super().latest(start)
        if self._bound is not None and end == start:
            self._has_left = True
            self._group.leave(self._read(start))
        return end

    def advance(self, done: StreamOffset) -> Step:
        """What a consumer that is no query may read: it has handled everything before the offset `done`.

        The caller has looked at the stores once since then: a second look would hide what the first one saw.
        It owns the queues in `begins` and in `waiting`, and no others. Queues in `moved`, and those that
        `done` does not have, begin there; the others go on.
        """
        self._compare(done)
        self._at_boundary(done)
        asked = self.stores.version, done
        if self._idle != asked:
            self._idle, self._last_step = asked, self._step(done, is_first=False)
            self._forget_replaced()
        return self._last_step

    def offset_of(self, positions: dict[MessageQueue, int], step: Step, before: StreamOffset) -> StreamOffset:
        """The offset for the next `advance`, from what is handled now; `before` if nothing has changed."""
        if positions == before.positions and before.reset == self._now.reset and not step.moved:
            return before
        places: dict[MessageQueue, int] = {}
        with suppress(StoreError):  # files that were deleted since the last look
            places = self._places(positions, step, before)
        return StreamOffset(positions, reset=self._now.reset, at=places)

    def epoch_of(self, queue: MessageQueue) -> int:
        """The epoch in which the queue was taken. Only for a queue of the last step."""
        return self._now.owned[queue].epoch

    def keep(self, queues: Collection[MessageQueue]) -> None:
        """From now on, no queue goes to another member while it is in this collection."""
        self._group.kept = queues

    @property
    def leaving(self) -> frozenset[MessageQueue]:
        """The queues that go to other members when they are kept no longer."""
        return self._group.leaving

    def owns(self, queue: MessageQueue, epoch: int) -> bool:
        """Whether this member still has the queue in this epoch. Any thread may ask."""
        return self._group.owns(queue, epoch)

    def seek(self, targets: Mapping[MessageQueue, int], done: StreamOffset) -> None:
        """Moves queues of this member to offsets that exist, backwards too, for the whole group."""
        self._now, self._idle = self._group.correct(targets, done), None

    def recorded(self, queue: MessageQueue) -> int | None:
        """The position that the group has recorded for a queue; None without one."""
        return self._group.recorded(queue)

    def all_recorded(self) -> Mapping[MessageQueue, int]:
        """The positions that the group's members have recorded."""
        return self._group.all_recorded()

    def leave(self, done: StreamOffset) -> None:
        """Records the offset and leaves the group."""
        self._group.leave(done)

    def begin_batch(self, start: StreamOffset, end: StreamOffset) -> None:
        """Notes a batch of another process in the ownership log: other members may own its queues by now."""
        if not self._is_own(end):
            self._group.note_replay(list(ranges(start, end)))

    def clients_of(self, start: StreamOffset, end: StreamOffset) -> Sequence[frozenset[MessageQueue]] | None:
        """With `consumers`, the queues of each client: one partition each. A repeated batch is divided as if
        there were no other clients.
        """
        if self._options.consumers is None:
            return None
        keys = list(ranges(start, end))
        owner = (
            {queue: owned.client for queue, owned in self._now.owned.items()}
            if self._is_own(end)
            else self._group.allocate(keys)
        )
        return [frozenset(key for key in keys if owner[key] == client) for client in self._group.clients]

    def _at_boundary(self, previous: StreamOffset) -> None:
        now = self._group.settle(previous, is_bounded=self._bound is not None)
        if self._stops_before is None:
            self._stops_before = now.stops
        held = frozenset(queue for queue, stop in now.stops.items() if self._waits(queue, stop))
        is_same = now == self._now and held == self._held
        if is_same and self.stores.version == self._compared:
            return
        self._idle = self._idle if is_same else None
        # A reset that was seen before the new topic is one in the deleted topic; `_correct` makes none.
        known = self._resets if now.reset == self._now.reset else self.stores.replaced.keys()
        self._resets = now.resets.intersection(known)
        self._now, self._held, self._compared = now, held, self.stores.version
        if self._beyond(previous):
            self.stores.look(anew=True)  # another member may have read more since the last look
            self._compare(previous)  # a topic that was gone may be back
            self._compared = self.stores.version
            self._correct(self._beyond(previous), previous)

    def _waits(self, queue: MessageQueue, stop: Stop) -> bool:
        """Whether a queue in which an orderly handler failed is not read yet.

        A bounded run does not read it again: the run would never end.
        """
        if self._bound is not None:
            assert self._stops_before is not None
            return stop != self._stops_before.get(queue)
        return self._clocks.epoch_ms() < stop.until_ms

    def _beyond(self, previous: StreamOffset) -> dict[MessageQueue, tuple[int, int]]:
        """Own queues whose next offset is beyond their end: (that offset, the offset to continue at).

        The query continues at the offset of its last micro-batch if the queue has it, else at the end.
        """
        found: dict[MessageQueue, tuple[int, int]] = {}
        for key in self._now.owned:
            before = previous.positions.get(key)
            low, high = offset_limits(self.stores.queues.get(key))
            begin = self._now.next_offset(key, before)
            is_kept = before is not None and key not in self._resets
            replaced = self.stores.replaced.get(key) if is_kept else None
            since = self._replaced_since(key, begin)
            if since is not None and since.begin is not None:
                found[key] = begin, since.begin
            elif replaced is not None and replaced.begin is not None:
                if begin > replaced.begin and not self.stores.options.fail_on_data_loss:  # else `_add` raises
                    found[key] = begin, replaced.begin
            elif begin > high and begin > self._reach(key):
                found[key] = begin, before if before is not None and low <= before <= high else high
        return found

    def _reach(self, key: MessageQueue) -> int:
        """The offset behind the last message of a queue, also behind those that are not read yet."""
        queue = self.stores.queues.get(key)
        return 0 if queue is None else queue.held_max_offset

    def _replaced_since(self, key: MessageQueue, begin: int) -> Replaced | None:
        """How the queue was replaced since the group recorded its offset `begin`; None if it was not."""
        queue, place = self.stores.queues.get(key), self._now.places.get(key)
        return None if queue is None or place is None else replaced_since(queue, begin, place)

    def _correct(self, beyond: Mapping[MessageQueue, tuple[int, int]], previous: StreamOffset) -> None:
        """Moves the group's offsets that are beyond the end of their queue back, as a client does for
        OFFSET_ILLEGAL.

        Otherwise the query would skip new messages until the queue is as long as the old one was. Raises
        OffsetOutOfRangeError instead, unless failOnDataLoss is false.
        """
        group, reasons = self._options.group, []
        for key, (begin, _) in beyond.items():
            queue = self.stores.queues.get(key)
            low, high = offset_limits(queue)
            there = (
                "the store no longer has the queue" if queue is None else f"the queue holds {low} to {high}"
            )
            back = f"its offsets went back by {begin - high} " if begin > high else ""
            why = "is the store an older copy, or was the topic deleted and created again?"
            reasons.append(f"{key}: the next offset is {begin} and {there}: {back}({why})")
        if reasons and self.stores.options.fail_on_data_loss:
            others = f" (and {len(reasons) - 1} more queues)" if len(reasons) > 1 else ""
            advice = (
                f"move group {group} with rmqlog offsets, or set failOnDataLoss=false to move it back to the "
                "end of the queue"
            )
            raise OffsetOutOfRangeError(f"{reasons[0]}{others}; {advice}")
        for (begin, target), each in zip(beyond.values(), reasons, strict=True):
            _log.warning(
                "group %s is moved back from offset %d to %d, by %d: %s",
                group,
                begin,
                target,
                begin - target,
                each,
            )
        if reasons:
            self._now = self._group.correct({key: target for key, (_, target) in beyond.items()}, previous)

    def _step(self, previous: StreamOffset, *, is_first: bool) -> Step:
        self._refuse_other_brokers(previous)
        step = Step()
        owned = self._now.owned
        step.left_out = sum(key not in owned for key in previous.positions)
        for key in sort_queues(owned):
            self._add(step, key, previous.positions.get(key))
        self._losses.report()
        return step

    def _add(self, step: Step, key: MessageQueue, before: int | None) -> None:
        queue = self.stores.queues.get(key)
        is_reset = key in self._resets
        begin = self._now.next_offset(key, before)
        stop = begin
        if queue is None:
            if begin:
                self._losses.vanished(key, begin)
                step.left_out += before is not None
                return
        else:
            # without an offset in the checkpoint, the group's own counts
            known = begin if before is None else before
            replaced = self._replaced_since(key, begin) if before is None else self.stores.replaced.get(key)
            if (
                replaced is not None
                and not is_reset  # else somebody chose the offset, as `rmqlog offsets` does
                and (replaced.begin is not None or known <= queue.max_offset)
            ):
                begin = self._losses.replaced(key, known, queue, replaced)
            # beyond the end only if `_correct` reported it and could not change it yet
            begin = min(begin, max(queue.max_offset, self._reach(key)) if begin > queue.max_offset else begin)
            if begin < queue.range.min_offset:
                begin = self._losses.begin(key, begin, queue)
            stop = begin if key in self._held else self._stop(key, begin, queue)
        if before is None and begin == stop:
            step.waiting[key] = begin
            return
        step.begins[key], step.stops[key] = begin, stop
        if begin != before or is_reset:  # the same offset is that of another message now
            step.moved[key] = begin

    def _gone(self, positions: Mapping[MessageQueue, int], previous: StreamOffset) -> dict[MessageQueue, int]:
        """Nothing: the group's files keep the positions of queues that are gone, or are others' now."""
        return {}

    def _end(self, step: Step, previous: StreamOffset, *, is_first: bool) -> StreamOffset:
        return replace(super()._end(step, previous, is_first=is_first), reset=self._now.reset)


# ---- the group ---------------------------------------------------------------------------------------------


class _StreamGroup:
    """The group as one query sees it.

    `clients` are the logical clients of the query, in the order of their partitions; () before the first
    boundary.
    """

    def __init__(self, stores: StreamStores, options: GroupOptions, *, clocks: Clocks | None = None) -> None:
        self.clients: tuple[str, ...] = ()
        self.kept: Collection[MessageQueue] = ()
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
        part.kept = self.kept
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
        (self._part or self._join()).note_replay(queues)

    def allocate(self, queues: Sequence[MessageQueue]) -> dict[MessageQueue, str]:
        """Queue -> client of a repeated batch, by the strategy, as if this query were the only member."""
        assert self._membership is not None, "not joined"
        found: dict[MessageQueue, str] = self._membership.allocate(self.clients, queues)
        for number, queue in enumerate(queues):
            found.setdefault(queue, self.clients[number % len(self.clients)])
        return found

    @property
    def leaving(self) -> frozenset[MessageQueue]:
        return frozenset() if self._part is None else self._part.leaving

    def owns(self, queue: MessageQueue, epoch: int) -> bool:
        return self._part is not None and self._part.owns(queue, epoch)

    def recorded(self, queue: MessageQueue) -> int | None:
        return None if self._part is None else self._part.recorded(queue)

    def all_recorded(self) -> Mapping[MessageQueue, int]:
        return {} if self._part is None else self._part.all_recorded()

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
            if is_broadcasting or options.is_alone
            else group_directory(
                offsets, group=options.group, roots=roots, paths=paths, group_path=options.group_path
            )
        )
        if directory is None:
            self._part = SoleMember(
                membership, checked, shares=not (is_broadcasting or options.is_alone), clocks=self._clocks
            )
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
                if self._stores.options.choice.chooses_topic(topic):
                    raise OptionError(
                        f"group {group}: expected only members that read whole queues, found consumers that "
                        f"pop topic {topic} in {store.path}: a message would go to both. Stop them, set "
                        "consumeMode=pop, or use another group"
                    )

    def _refuse_unknown(self) -> None:
        refuse_unknown(self._stores.stores, self._stores.options, [*self._shared(), *self._stores.queues])
        shared = {queue.topic for queue in self._shared()}
        for topic in self._stores.options.choice.named_topics:
            if topic not in shared:
                _log.warning(
                    "group %s: topics.json allows reading no queue of topic %s (perm or readQueueNums)",
                    self._options.group,
                    topic,
                )

    def _shared(self) -> Sequence[MessageQueue]:
        """All queues that the members share. Read again only if a topics.json has changed."""
        stores = self._stores
        topics = tuple(known_topics(store.opened) for store in stores.stores)
        seen = topics, stores.version if None in topics else 0
        if seen != self._queues_seen:
            queues = subscribe_set(stores.stores, stores.options.choice, self._options.group)
            if self._options.message_model == BROADCASTING or self._options.is_alone:
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
