"""Moves a group's offsets: by time, to the earliest or latest, to given offsets, or to another group's.

Each function returns an `OffsetPlan`: look at its `table()`, then `apply()` it. A reset raises the group's
reset number, so running queries continue at the new offsets, also backwards. The broker of the store must be
stopped, because it would overwrite the offset file. To reset a group on a running broker, use mqadmin
(resetOffsetByTime, cloneGroupOffset).

Example::

    stores = [MessageStore.open("/data/store")]
    plan = reset_to_latest(group_place("CG_orders", stores), stores, ["Orders"])
    print(plan.table())
    plan.apply()
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import pyarrow as pa

from rmq_spark.consume.consumer import MessageQueue, offset_limits, sort_queues
from rmq_spark.consume.group.change import Change, write_change
from rmq_spark.consume.group.directory import group_directory, other_places, read_state
from rmq_spark.consume.offset_store import OffsetStore, make_path, offset_store
from store_format import MessageStore, Queue
from store_format.display.columns import BROKER, INT, LONG, TEXT, ViewColumn, batch_of
from store_format.display.text import first_names
from store_format.errors import OptionError, UnsupportedFormatError
from store_format.files.lock import StoreLock
from store_format.files.write import FileWrites
from store_format.metadata.group_offsets import refuse_reset
from store_format.metadata.read import read_topics
from store_format.metadata.values import TopicConfig
from store_format.names import is_retry_topic
from store_format.opened.store import Opened

_LOCK_SECONDS = 10.0

RESET_COLUMNS = (
    ViewColumn("topic", TEXT, "The topic."),
    BROKER,
    ViewColumn("queueId", INT, "The queue."),
    ViewColumn("committedOffset", LONG, "The group's committed offset; null if unknown."),
    ViewColumn("targetOffset", LONG, "The new offset: the next one to read."),
    ViewColumn(
        "minOffset", LONG, "The first offset in the queue; null if the store does not have the queue."
    ),
    ViewColumn("maxOffset", LONG, "The offset after the last message."),
    ViewColumn(
        "change",
        LONG,
        "`targetOffset` minus `committedOffset`: messages that are skipped, or, if negative, read again.",
    ),
)


@dataclass(frozen=True, slots=True)
class GroupPlace:
    """A group, its offset store, and the directory where its Spark queries meet (None if they do not meet).

    `others` are the directories where they met before, and `roots` the stores of offsetStore=store.
    """

    group: str
    offsets: OffsetStore
    directory: str | None
    others: tuple[str, ...] = ()
    roots: tuple[str, ...] = ()


def group_place(
    group: str,
    stores: Sequence[MessageStore],
    *,
    kind: str | None = None,
    offset_store_path: str | None = None,
    group_path: str | None = None,
) -> GroupPlace:
    """Returns the place where a CLUSTERING group stores its offsets, according to the options of its queries.

    `kind` is the option offsetStore, `offset_store_path` is offsetStorePath, and `group_path` is groupPath.
    """
    roots = {store.broker_name: store.path for store in stores}
    offsets = offset_store(kind, group=group, roots=roots, offset_store_path=offset_store_path)
    directory = group_directory(offsets, group=group, roots=roots, group_path=group_path)
    others = [] if group_path is not None else other_places(directory, offsets, group=group, roots=roots)
    in_stores = tuple(roots.values()) if offsets.kind == "store" else ()
    return GroupPlace(group, offsets, directory, tuple(others), in_stores)


@dataclass(frozen=True, slots=True)
class OffsetPlan:
    """A reset that is not applied yet. `limits` maps each queue to its (min offset, max offset)."""

    place: GroupPlace
    targets: Mapping[MessageQueue, int]
    committed: Mapping[MessageQueue, int]
    limits: Mapping[MessageQueue, tuple[int, int]]

    def table(self) -> pa.Table:
        """Returns one row for each queue, with `RESET_COLUMNS`, sorted by queue."""
        return pa.Table.from_batches(
            [batch_of(RESET_COLUMNS, (self._row(queue) for queue in sort_queues(self.targets)))]
        )

    def _row(self, queue: MessageQueue) -> tuple[object, ...]:
        target, committed = self.targets[queue], self.committed.get(queue, -1)
        known = committed if committed >= 0 else None
        low, high = self.limits.get(queue, (None, None))
        return (
            queue.topic,
            queue.broker_name,
            queue.queue_id,
            known,
            target,
            low,
            high,
            None if known is None else target - known,
        )

    def refusals(self) -> list[str]:
        """Why `apply` writes nothing: a sentence for each store whose offsets only its broker changes."""
        found = []
        for root in self.place.roots:
            try:
                refuse_reset(Opened(root))
            except UnsupportedFormatError as error:
                found.append(str(error))
        return found

    def apply(self, *, clock_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000) -> int:
        """Writes the new offsets and returns the group's reset number; 0 for a group without a directory.

        Raises, with nothing changed in any store, StoreInUseError if a broker runs on a store,
        UnsupportedFormatError for the `refusals`, and OptionError for a plan without a queue.
        """
        if not self.targets:
            raise OptionError(f"group {self.place.group}: expected at least one queue to move, found none")
        if found := self.refusals():
            nowhere = "; nothing was written to any store" if len(self.place.roots) > 1 else ""
            raise UnsupportedFormatError(f"{'; '.join(found)}{nowhere}")
        self.place.offsets.check()
        directory = self.place.directory
        if directory is None:
            self.place.offsets.write(self.targets, is_reset=True)
            return 0
        make_path(directory)
        files = FileWrites(sync=True)
        # Under the lock of the members, so that no member records an earlier position in between.
        places = sorted((directory, *self.place.others))
        with ExitStack() as stack:
            for each in places:
                stack.enter_context(StoreLock(each, timeout=_LOCK_SECONDS))
            states = {each: read_state(each) for each in places}
            number = max(state.reset for state in states.values())
            # The offset file first: after a crash here, members still follow the reset backwards (`mirror`).
            self.place.offsets.write(self.targets, is_reset=True)
            for each, state in states.items():
                # The same number in all directories: a checkpoint does not say where its query met others.
                state.reset = number
                change = Change(state, "", clock_ms())
                change.reset(self.targets)
                write_change(each, change, files)
        return number + 1


# ---- kinds of resets ---------------------------------------------------------------------------------------


def reset_by_time(
    place: GroupPlace, stores: Sequence[MessageStore], timestamp_ms: int, topics: Iterable[str] | None = None
) -> OffsetPlan:
    """Returns a plan that moves the group to the first message stored at or after a time (resetOffsetByTime).

    `timestamp_ms` is in ms since 1970. A queue without a later message moves to its end. `topics` are by
    default all topics of which the group has offsets, including its retry topic.
    """

    def offset_of(queue: Queue | None) -> int:
        return 0 if queue is None else queue.offset_at(timestamp_ms, "LOWER", on_damage="DROPMALFORMED")

    return _offset_plan(place, stores, topics, offset_of)


def reset_to_earliest(
    place: GroupPlace, stores: Sequence[MessageStore], topics: Iterable[str] | None = None
) -> OffsetPlan:
    """Returns a plan that moves the group to the first message of each queue."""
    return _offset_plan(place, stores, topics, lambda queue: 0 if queue is None else queue.min_offset)


def reset_to_latest(
    place: GroupPlace, stores: Sequence[MessageStore], topics: Iterable[str] | None = None
) -> OffsetPlan:
    """Returns a plan that moves the group to the end of each queue: it skips the backlog
    (skipAccumulatedMessage).
    """
    return _offset_plan(place, stores, topics, lambda queue: 0 if queue is None else queue.max_offset)


def reset_to(
    place: GroupPlace, stores: Sequence[MessageStore], targets: Mapping[MessageQueue, int]
) -> OffsetPlan:
    """Returns a plan that moves the group to these offsets.

    Raises OptionError for a queue that no store has, and for an offset outside of its queue.
    """
    targets = {MessageQueue.given(queue): target for queue, target in targets.items()}
    limits = _limits_of_all(_queues_of(stores, {queue.topic for queue in targets}))
    for queue, target in targets.items():
        if queue not in limits:
            have = first_names(map(str, sort_queues(limits))) or "none"
            raise OptionError(f"no store has the queue {queue}; the queues of its topic are {have}")
        low, high = limits[queue]
        if not low <= target <= high:
            raise OptionError(f"{queue}: expected an offset from {low} to {high}, found {target}")
    return OffsetPlan(place, targets, place.offsets.read(), limits)


def copy_offsets(
    source: GroupPlace, place: GroupPlace, stores: Sequence[MessageStore], topics: Iterable[str] | None = None
) -> OffsetPlan:
    """Returns a plan that moves the group to the offsets of the group of `source` (cloneGroupOffset).

    Retry topics are not copied, because each group has its own. Raises OptionError if there is nothing to
    copy.
    """
    wanted = None if topics is None else set(topics)
    targets = {
        queue: offset
        for queue, offset in source.offsets.read().items()
        if offset >= 0 and not is_retry_topic(queue.topic) and (wanted is None or queue.topic in wanted)
    }
    if not targets:
        of_topics = "" if wanted is None else f" of {', '.join(sorted(wanted))}"
        raise OptionError(f"group {source.group}: expected offsets{of_topics} to copy, found none")
    targets = {MessageQueue.given(queue): target for queue, target in targets.items()}
    limits = _limits_of_all(_queues_of(stores, {queue.topic for queue in targets}))
    return OffsetPlan(place, targets, place.offsets.read(), limits)


def _offset_plan(
    place: GroupPlace,
    stores: Sequence[MessageStore],
    topics: Iterable[str] | None,
    target: Callable[[Queue | None], int],
) -> OffsetPlan:
    committed = place.offsets.read()
    names = {queue.topic for queue in committed} if topics is None else set(topics)
    if not names:
        raise OptionError(f"group {place.group}: expected committed offsets, found none; name the topics")
    queues = _queues_of(stores, names)
    missing = sorted(names - {queue.topic for queue in queues})
    if missing and topics is not None:
        raise OptionError(f"no store has a topic {missing[0]!r}")
    return OffsetPlan(
        place, {name: target(queue) for name, queue in queues.items()}, committed, _limits_of_all(queues)
    )


def _queues_of(stores: Sequence[MessageStore], topics: set[str]) -> dict[MessageQueue, Queue | None]:
    """The queues of these topics: those with files, and those below readQueueNums, None without a message."""
    found: dict[MessageQueue, Queue | None] = {}
    for store in stores:
        configured: Mapping[str, TopicConfig] = read_topics(store.opened) or {}
        for topic in topics & set(configured):
            found |= {
                MessageQueue(topic, store.broker_name, queue_id): None
                for queue_id in configured[topic].read_queue_ids
            }
        found |= {MessageQueue.of(queue): queue for queue in store.queues(topics.__contains__)}
    return found


def _limits_of_all(queues: Mapping[MessageQueue, Queue | None]) -> dict[MessageQueue, tuple[int, int]]:
    return {name: offset_limits(queue) for name, queue in queues.items()}
