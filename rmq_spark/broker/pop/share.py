"""A share: one topic of one store, whose messages the consumers of a group pop one by one.

The share keeps the in-flight log and the broker's files together. While consumers are alive
consumerOffset.json has the lowest offset that is not acknowledged of each queue: a broker that is started
after a crash delivers messages again, and loses none. The file is written about once a second, by one process
(`rmq_spark.consume.group.offset_mirror`).

If the group pops in order, consumerOrderInfo.json has the last batch of each queue. It is written with
consumerOffset.json, so that a broker goes on exactly: a queue that is blocked stays blocked, and deliveries
are counted on. The in-flight log notes what the file has and what it gets before the file is written. A batch
that is neither was written by a broker, and counts (`_OrderMirror`).

A message that the group has received too often is a dead letter: it is stored in `%DLQ%group`, not delivered.
The proxy does so when a consumer receives a message whose reconsumeTimes have reached the maximum
(PopMessageResultFilterImpl): it sends the message back with delay level -1, and acknowledges it. What is
written follows `produce.send_back`. The three steps, and what a kill between them leaves, are those of a
revive.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Literal, TypeVar

import numpy as np

from rmq_spark.broker.pop.hand_over import hand_over, take_over
from rmq_spark.broker.pop.revive import ReviveCounts, finish_revive, revive_due, revive_turn
from rmq_spark.consume.consumer import check_group
from rmq_spark.consume.group.directory import PopLease, live_clients, live_topics
from rmq_spark.consume.group.offset_mirror import PopOffsetMirror, opened
from rmq_spark.produce.send_back import send_back
from store_format.bookkeeping.journal import Journal
from store_format.bookkeeping.settings import broker_conf_of
from store_format.commit.options import CommitOptions
from store_format.commit.session import WriteSession, write_session
from store_format.display.text import shown
from store_format.errors import OptionError, StoreInUseError, UnsupportedFormatError
from store_format.files.lock import CheckedLock, StoreLock
from store_format.files.polling import Clocks
from store_format.files.read import files_at
from store_format.files.shared_log import FileLock
from store_format.files.write import FileWrites
from store_format.message.encode import StoredMessages, join_columns, stored_messages
from store_format.metadata.group_offsets import (
    is_broker_49,
    put_subscription_group,
    refuse_foreign_offsets,
    rewrite_config,
)
from store_format.metadata.read import config_path, read_order_infos, read_subscription_groups
from store_format.metadata.values import OrderInfo, SubscriptionGroup
from store_format.names import QueueKey
from store_format.opened.store import Opened
from store_format.pop.broker_in_flight import refuse_kv_service
from store_format.pop.log import (
    InFlightLog,
    PopName,
    forget_deleted,
    is_batch_deleted,
    note_witnesses,
    queue_ranges,
    read_in_flight,
)
from store_format.pop.order import digest, merge_order_infos
from store_format.pop.records import BegunRevive, CheckPoint, PointKey
from store_format.pop.state import TOPIC, PopQueue, PopState
from store_format.read.store import Store
from store_format.read.stored_messages import read_stored_units, units_at

_log = logging.getLogger(__name__)
_T = TypeVar("_T")

InitMode = Literal["MIN", "MAX"]
_BURY_SECONDS = 1.0  # that a receive waits for the store's lock
_LATE_MS, _LATE_WAIT_SECONDS = 3_000, 1.0  # a broker revives 2 to 3 s after the invisible time

_Limits = Mapping[QueueKey, tuple[int, int]]  # the first offset of each queue, and the one behind its end

_DEAD_LEVEL = -1


def epoch_ms() -> int:
    """A function with a name: readers are pickled to tasks, and a lambda cannot be pickled."""
    return time.time_ns() // 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareOptions:
    """How a share works.

    - `init_mode` (ConsumeInitMode): a group without an offset starts at the first message of a queue (MIN) or
      at the last one (MAX). With `young_from_zero` a queue from which nothing was deleted yet is read from
      its first message. A broker does so while that message is in its page cache, which no file shows.
    - `fifo`: the group pops in order; None: if its consumeMessageOrderly in subscriptionGroup.json says so.
    - `sync`: acknowledgements and offsets survive a power loss. Messages that are stored again do so as the
      store's other commits do (flushDiskType).
    - `lock_timeout`: seconds to wait for another writer of the store.
    """

    init_mode: InitMode = "MAX"
    young_from_zero: bool = False
    fifo: bool | None = None
    sync: bool = False
    lock_timeout: float = 10.0
    clock_ms: Callable[[], int] = epoch_ms


class PopGroup:
    """A group that pops one topic of one store, as one consumer of it has it; threads may use it together.

    `lost` counts messages that were deleted before the group could read them. `is_ordered`: the group pops in
    order, see `rmq_spark.broker.pop.order`.
    """

    def __init__(self, store: Store, name: PopName, options: ShareOptions) -> None:
        self.store = store
        self.name = name
        self.options = options
        self.log = InFlightLog(name.directory, sync=options.sync)
        self.lost = 0
        self.failure: Exception | None = None  # why nothing can be popped any more
        self._lease = PopLease(name.directory)
        self._keeper = FileLock(f"{name.directory}/keeper")
        self._mirror = PopOffsetMirror(name, self.log, options.clock_ms, sync=options.sync)
        self._order_mirror = _OrderMirror(name, self.log, options.clock_ms, sync=options.sync)
        self.is_ordered = False
        self._is_open = False
        self._keeping = threading.Lock()

    @classmethod
    def open(cls, store: Store, group: str, topic: str, options: ShareOptions | None = None) -> PopGroup:
        """Joins the consumers of the group, and takes over what a broker has in flight.

        Raises OptionError for a name that RocketMQ does not allow and for a group with queries that read
        whole queues (consumeMode=pull), StoreInUseError while a broker has the store, and
        UnsupportedFormatError for a broker that keeps offsets or pop's state in RocksDB.
        """
        share = cls(store, PopName(store.opened, check_group(group), topic), options or ShareOptions())
        share._refuse()
        groups = read_subscription_groups(store.opened)
        share.is_ordered = is_ordered(groups.get(group) if groups else None, share.options.fifo)
        share._refuse_other_order()
        share._lease.begin(share.options.lock_timeout)
        try:
            share._refuse()  # a query may have joined at the same time
            with write_session(store.path, share._commit_options()) as session:
                share._adopt(session)
        except BaseException:
            share.leave()
            raise
        share._is_open = True
        return share

    @property
    def topic(self) -> str:
        return self.name.topic

    @property
    def group(self) -> str:
        return self.name.group

    def topic_of(self, flag: int) -> str:
        """The topic of the queues with this flag: the topic itself, or a pop retry topic of the group."""
        return self.name.topic_of(flag)

    def run(self, change: Callable[[PopState], _T]) -> _T:
        """`InFlightLog.run`. Raises the error of `keep` once a broker has the store."""
        if self.failure is not None:
            raise self.failure
        return self.log.run(change)

    # ---- offsets -------------------------------------------------------------------------------------------

    def begin(self, queues: Iterable[PopQueue]) -> None:
        """Sets the next offset of queues that the group has not popped, and corrects others.

        Call it for a queue that the state lacks, or whose next offset is outside of the queue. The offset is
        the committed one, else that of `init_mode`, and is committed at once (PopMessageProcessor). An offset
        below the queue is raised to the first message, and the messages between are counted in `lost`, with a
        warning; an offset behind the end is lowered to the end, with a warning.
        """
        names = {queue: (self.topic_of(queue[0]), queue[1]) for queue in queues}
        topics = {topic for topic, _ in names.values()}
        with CheckedLock(self.name.opened.path, timeout=self.options.lock_timeout):
            known = self._mirror.read()
            taken = self.store.snapshot(topics.__contains__)
            forget_deleted(self.name, self.log, taken.queues)
            self._mirror.compare(known)
            for key in names.values():
                if key in taken.damaged:
                    raise taken.damaged[key]
            limits = {key: (each.min_offset, each.max_offset) for key, each in taken.queues.items()}
            begun = self.run(lambda state: _begin_queues(state, names, limits, known, self._first_offset))
            self.lost += begun.warn_corrected(self.name, limits)
            note_witnesses(self.name, self.log, taken.queues)
            self._mirror.write(begun.offsets)

    def _first_offset(self, flag: int, low: int, high: int) -> int:
        """Where a group without an offset starts (PopMessageProcessor.getInitOffset)."""
        options = self.options
        if flag != TOPIC or options.init_mode == "MIN" or (options.young_from_zero and low <= 0):
            return low
        return max(high - 1, low)

    def take_lost(self) -> int:
        """Returns `lost`, and counts from 0 again."""
        lost, self.lost = self.lost, 0
        return lost

    # ---- once a second -------------------------------------------------------------------------------------

    def keep(self) -> None:
        """Call it about once a second: looks for a broker, and writes consumerOffset.json if that changes.

        Raises StoreInUseError if a broker has opened the store, as every `run` from then on: the share
        must be opened again. The process that holds the lock `keeper` writes the file.
        """
        if self.failure is not None:
            raise self.failure
        try:
            self._refuse_broker()
        except StoreInUseError as error:
            self.failure = error
            raise
        with self._keeping:
            if self._is_open and self.run(lambda state: state.is_closed):
                self._reopen()
            if self._keeper.try_exclusive() and (
                self._mirror.is_changed() or self._order_mirror.is_changed()
            ):
                self._update()

    def _reopen(self) -> None:
        """Goes on after another program has removed the in-flight log: at the offsets of the file."""
        _log.warning("%s was removed; messages may be delivered again", self.name.directory)
        self._lease.end()
        self._lease.begin(self.options.lock_timeout)
        with write_session(self.name.opened.path, self._commit_options()) as session:
            self._adopt(session)

    def _update(self) -> None:
        """Writes the files; later if another writer has the store now."""
        try:
            with CheckedLock(self.name.opened.path, timeout=0.0):
                known = self._mirror.read()
                if self._mirror.is_moved(known):  # by a broker that ran while this process was stopped?
                    forget_deleted(self.name, self.log, queue_ranges(self.name, self.store))
                self._mirror.compare(known)
                self._order_mirror.update()
        except StoreInUseError as error:
            _log.debug("%s: offsets are written later: %s", self.name.opened.path, error)

    # ---- revive --------------------------------------------------------------------------------------------

    def revive(self, *, lock_timeout: float | None = None, until_ms: int = 0) -> ReviveCounts:
        """Stores messages again that are due now, or by `until_ms`; none if another writer has the store now.

        Waits `lock_timeout` seconds for the other writer; by default only if messages are late.
        """
        now_ms = max(self.options.clock_ms(), until_ms)
        first, reviving = self.run(lambda state: (state.next_visible, state.reviving))
        if reviving is None and (first is None or first > now_ms):
            return ReviveCounts()
        if lock_timeout is None:
            is_late = first is not None and now_ms - first > _LATE_MS
            lock_timeout = _LATE_WAIT_SECONDS if is_late else 0.0
        try:
            with write_session(self.name.opened.path, self._commit_options(lock_timeout)) as session:
                return revive_due(self.name, self.log, session, now_ms)
        except StoreInUseError as error:
            _log.debug("%s: due messages are stored again later: %s", self.name.opened.path, error)
            return ReviveCounts()

    def bury(self, group: SubscriptionGroup, messages: Sequence[tuple[CheckPoint, int]]) -> int:
        """Stores messages in flight, by check point and position, as dead letters. Returns how many.

        0 if another writer has the store for longer: the messages come again after their invisible time.
        """
        try:
            with write_session(self.name.opened.path, self._commit_options(_BURY_SECONDS)) as session:
                return _bury(self.name, self.log, session, group, messages)
        except StoreInUseError as error:
            _log.debug("%s: dead letters are stored later: %s", self.name.opened.path, error)
            return 0

    # ---- open and close ------------------------------------------------------------------------------------

    def close(self) -> None:
        """Leaves the group. The last consumer writes consumerOffset.json, and what is in flight.

        If the store cannot be written now, a warning says so: the next consumer finds everything in the
        in-flight log, and a broker delivers messages again.
        """
        try:
            if self.failure is None and self._lease.is_last():
                self._hand_over()
        finally:
            self.leave()

    def abandon(self) -> None:
        """In a forked child: closes the locks and files that it shares with its parent, which keeps them."""
        self._keeper.close()
        self._lease.end()
        self.log.abandon()

    def leave(self) -> None:
        """Closes the locks and files and hands over nothing, which is what a killed consumer leaves."""
        self._is_open = False
        self._keeper.close()
        self.log.close()
        self._lease.end()

    def _hand_over(self) -> None:
        try:
            with write_session(self.name.opened.path, self._commit_options()) as session:
                finish_revive(self.name, self.log, session)
                self._order_mirror.update()
                hand_over(self.name, self.log, self._mirror, session, self.options.clock_ms())
        except StoreInUseError as error:
            _log.warning(
                "%s: what group %s has in flight is not handed over: %s",
                self.name.opened.path,
                self.group,
                error,
            )

    def _adopt(self, session: WriteSession) -> None:
        """Takes over what the in-flight log, the offset file and a broker's records have."""
        store = session.store()
        queues = queue_ranges(self.name, store)
        finish_revive(self.name, self.log, session)
        forget_deleted(self.name, self.log, queues)
        known = self._mirror.read()
        self.log.run(lambda state: opened(state, self.name, known))
        self._mirror.compare(known)
        take_over(self.name, self.log, store)
        self.log.run(lambda state: _switch_order(state, self.is_ordered))

        def is_deleted(queue_id: int, batch: OrderInfo) -> bool:
            key = self.topic, queue_id
            return is_batch_deleted(store.log, queues.get(key), batch, known.get(key, -1))

        self._order_mirror.update(is_deleted)
        note_witnesses(self.name, self.log, queues)

    def _commit_options(self, lock_timeout: float | None = None) -> CommitOptions:
        opened = self.name.opened
        return CommitOptions(
            sync=self.options.sync or Journal.is_sync(opened, broker_conf_of(opened)),
            lock_timeout=self.options.lock_timeout if lock_timeout is None else lock_timeout,
            log_directories=self.store.commit_log_paths,
            disk_limit=100,  # consumers go on, however full the disk is
            clock=self.options.clock_ms,
        )

    # ---- refusals ------------------------------------------------------------------------------------------

    def _refuse(self) -> None:
        opened = self.name.opened
        self._refuse_broker()
        try:
            refuse_foreign_offsets(opened)
        except UnsupportedFormatError as error:
            raise UnsupportedFormatError(
                f"{opened} keeps consumer offsets in RocksDB (storeType=defaultRocksDB); pop needs "
                "consumerOffset.json: pop from the broker"
            ) from error
        refuse_kv_service(opened, broker_conf_of(opened))
        found = live_clients(self.group, (opened.path, opened.path.rpartition("/")[0]), Clocks())
        if found is not None:
            raise OptionError(
                f"group {self.group}: expected only consumers that pop, found the query "
                f"{', '.join(found[1])} in {found[0]}, which reads whole queues: a message would go to both. "
                "Stop the query, or use another group"
            )

    def _refuse_other_order(self) -> None:
        """Refuses a consumer that pops in order beside one that does not: they would share no message."""
        state = read_in_flight(self.name.directory)
        if state is None or state.is_closed or state.order.is_on == self.is_ordered:
            return
        if self.topic in live_topics(self.name.opened.path, self.group):
            there, here = ("in order", "without order")[:: 1 if state.order.is_on else -1]
            raise OptionError(
                f"fifo: consumers of group {self.group} pop topic {self.topic} {there}, found one that pops "
                f"{here}; give all of them the same fifo, or set consumeMessageOrderly of the group"
            )

    def _refuse_broker(self) -> None:
        holder = StoreLock.foreign_holder(f"{self.name.opened.path}/lock")
        if holder is not None:
            raise StoreInUseError(
                f"{self.name.opened}/lock: held by {StoreLock.described(holder)}, a broker; pop works while "
                "no broker has the store: stop the broker, or pop from it"
            )


# ---- where a group begins ----------------------------------------------------------------------------------


@dataclass(slots=True)
class _Begun:
    """What `_begin_queues` has done: offsets to commit, and (name, offset before) of corrected queues."""

    offsets: dict[PopQueue, int] = field(default_factory=dict)
    corrected: list[tuple[QueueKey, int]] = field(default_factory=list)

    def warn_corrected(self, name: PopName, limits: _Limits) -> int:
        """Warns of each correction. Returns how many messages the group has lost."""
        count = 0
        for key, before in self.corrected:
            low, high = limits[key]
            lost = max(low - before, 0)
            count += lost
            why = f"retention deleted {lost} messages; pop goes on at {low}"
            if not lost:
                why = f"the topic was created again, or the store is an older copy; pop goes on at {high}"
            _log.warning(
                "%d messages lost: %s, group %s: the next offset of %s-%d is %d and the queue holds %d to "
                "%d: %s",
                lost, name.opened.path, name.group, shown(key[0]), key[1], before, low, high, why,
            )  # fmt: skip
        return count


def _begin_queues(
    state: PopState,
    names: Mapping[PopQueue, QueueKey],
    limits: _Limits,
    known: Mapping[QueueKey, int],
    first_offset: Callable[[int, int, int], int],
) -> _Begun:
    """Sets the next offsets of these queues, see `PopGroup.begin`; a change of the in-flight log.

    `known` are the committed offsets. `first_offset` tells from (flag, first offset, end) of a queue where a
    group without an offset begins.
    """
    begun = _Begun()
    for queue, key in names.items():
        low, high = limits.get(key, (0, 0))
        there = state.queues.get(queue)
        offset = known.get(key, -1) if there is None else there.next_offset
        if offset < 0:
            offset = first_offset(queue[0], low, high)
        after = min(max(offset, low), high) if key in limits else offset
        if after != offset:
            begun.corrected.append((key, offset))
        if there is None or after < offset:
            state.set_offset(*queue, after)
            state.note_witnesses({queue: None})  # an older copy of the store does not have that entry
        elif after > offset:
            state.skip(*queue, after)
        else:
            continue
        if there is None and known.get(key, -1) >= 0:
            state.note_mirrored({queue: known[key]})
        begun.offsets[queue] = state.queues[queue].lowest
    if begun.offsets:
        state.note_mirrored(begun.offsets)
    return begun


# ---- dead letters ------------------------------------------------------------------------------------------


def _bury(
    name: PopName,
    log: InFlightLog,
    session: WriteSession,
    group: SubscriptionGroup,
    messages: Sequence[tuple[CheckPoint, int]],
) -> int:
    """Stores messages in flight, by check point and position, as dead letters, and acknowledges them.

    Returns how many were stored: a message that was acknowledged meanwhile is left out. Raises what
    `send_back` and `WriteSession.append` raise; the messages are then in flight as before.
    """
    finish_revive(name, log, session)
    given = log.run(lambda state: [each for each in messages if _is_in_flight(state, *each)])
    stored = _read(name, session, given)
    if not len(stored):
        return 0
    dead = send_back(stored, group, delay_levels=_DEAD_LEVEL)
    revive = log.run(lambda state: _begin(state, given))
    if revive is None:
        return 0
    session.append(dead.messages, turn=revive_turn(name, revive), new_topics=dead.new_topics)
    log.run(lambda state: state.end_revive(revive.number, is_done=True))
    return dead.dead_letters


def _is_in_flight(state: PopState, point: CheckPoint, position: int) -> bool:
    """Whether nobody has acknowledged the message; `point` is the hand-out as the consumer got it."""
    now = state.check_point(point.key)
    if now is not None:
        return not now.acked >> position & 1
    return state.order.is_in_flight(point.queue_id, point.offsets[position], point.pop_time)


def _begin(state: PopState, messages: Iterable[tuple[CheckPoint, int]]) -> BegunRevive | None:
    """Notes what is about to be stored; None if a part was acknowledged meanwhile: the rest comes again."""
    bits: dict[PointKey, int] = {}
    for point, position in messages:
        if not _is_in_flight(state, point, position):
            return None
        bits[point.key] = bits.get(point.key, 0) | 1 << position
    return state.begin_revive(bits)


def _read(name: PopName, session: WriteSession, given: Iterable[tuple[CheckPoint, int]]) -> StoredMessages:
    """The messages as stored. Raises the error of a damaged one."""
    offsets: dict[PopQueue, list[int]] = {}
    for point, position in given:
        offsets.setdefault(point.key[:2], []).append(point.offsets[position])
    taken = session.store().snapshot(name.flags().__contains__)
    parts = []
    for (flag, queue_id), wanted in offsets.items():
        key = name.topic_of(flag), queue_id
        messages, _, damaged = read_stored_units(
            taken.log, key, *units_at(taken.queues[key], np.array(sorted(wanted), np.int64))
        )
        for error in damaged.values():
            raise error
        parts.append(messages.messages)
    return StoredMessages(join_columns(parts)) if parts else stored_messages([])


# ---- the batches of a group that pops in order -------------------------------------------------------------


def is_ordered(group: SubscriptionGroup | None, fifo: bool | None) -> bool:
    """Whether a group pops in order: as `fifo` says, None: as the group's consumeMessageOrderly."""
    return fifo if fifo is not None else group is not None and group.consume_message_orderly


def _switch_order(state: PopState, is_on: bool) -> None:
    """The group pops in order from now on, or no longer; nobody of it is popping in the other way.

    What is in flight is forgotten, and the queues go on at the first message that is not acknowledged: the
    messages are delivered again, in the new way.
    """
    if state.order.is_on == is_on:
        return
    for (flag, queue_id), queue in list(state.queues.items()):
        if flag == TOPIC and (queue.check_points or queue_id in state.order.batches):
            state.set_offset(flag, queue_id, queue.lowest)
    state.order.switch(is_on)


class _OrderMirror:
    """Keeps the batches of an in-flight log and those of the file together; nothing without order."""

    def __init__(self, name: PopName, log: InFlightLog, clock_ms: Callable[[], int], *, sync: bool) -> None:
        self._path = config_path(name.opened, "consumerOrderInfo.json")
        self._root, self._group = name.opened.path, name.group
        self._key = f"{name.topic}@{name.group}"
        self._in_flight = log
        self._clock_ms = clock_ms
        self._files = FileWrites(sync=sync)
        self._seen: object = None  # the identity of the file at the last comparison

    def is_changed(self) -> bool:
        """Whether the file was replaced by another program, or no longer has the right batches."""
        is_on, changed = self._in_flight.run(lambda state: (state.order.is_on, state.order.not_mirrored()))
        return is_on and (bool(changed) or self._seen != files_at(self._path).stat_identity(self._path))

    def update(self, is_deleted: Callable[[int, OrderInfo], bool] = lambda queue_id, batch: False) -> None:
        """Takes over what a broker has written, then writes what the log has. Under the store's lock.

        Batches of a deleted topic are passed over.
        """
        stored = (read_order_infos(Opened(self._root)) or {}).get(self._key, {})
        deleted = {queue_id for queue_id, batch in stored.items() if is_deleted(queue_id, batch)}
        batches = self._in_flight.run(lambda state: _compared(state, stored, deleted, self._clock_ms()))
        if batches is not None:
            if not is_broker_49(Opened(self._root)):
                # a broker drops the batches of a group that it does not know (autoClean)
                put_subscription_group(
                    Opened(self._root), self._group, timestamp=self._clock_ms(), files=self._files
                )
            rewrite_config(
                self._path, lambda data, file: merge_order_infos(data, self._key, batches, file), self._files
            )
            queues = stored.keys() | batches.keys()
            # from here on the batches before would be a broker's
            self._in_flight.run(lambda state: state.order.note_mirrored(queues, batches, batches))
        self._seen = files_at(self._path).stat_identity(self._path)


def _compared(
    state: PopState, stored: Mapping[int, OrderInfo], deleted: Set[int], now_ms: int
) -> dict[int, OrderInfo] | None:
    """The batches for the file, which has `stored`; None if the file needs no change.

    The batches of the queues `deleted` do not count.
    """
    order = state.order
    if not order.is_on:
        return None
    foreign = {
        queue_id: None if queue_id in deleted else stored.get(queue_id)
        for queue_id in stored.keys() | order.mirrored.keys()
        if digest(stored.get(queue_id)) not in order.mirrored.get(queue_id, ())
    }
    if foreign:
        order.take_over(foreign)
        order.note_mirrored(foreign, stored, stored)
    order.forget(now_ms)
    known = stored.keys() | order.batches.keys()
    changed = {
        queue_id for queue_id in known if digest(stored.get(queue_id)) != digest(order.batches.get(queue_id))
    }
    noted = sorted(changed.union(order.not_mirrored()))
    if noted:
        order.note_mirrored(noted, stored, order.batches)
    return dict(order.batches) if changed else None
