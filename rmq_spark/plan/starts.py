"""Which stores a read is about, and where it begins in each queue.

A name in the options that matches nothing in the stores is refused: a typo would otherwise look like an empty
topic. A read begins by the `starting…` options, or at the offset of its consumer group. A batch reads a
group's offsets, but writes none and joins no group. A stream has its own positions, and asks here for those
of a queue that is new to it.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache

from rmq_spark.consume.consumer import (
    BROADCASTING,
    ConsumeFromWhere,
    MessageQueue,
    Start,
    consuming_group,
    offset_limits,
    sort_queues,
    start_offset,
)
from rmq_spark.options.group_options import GroupOptions
from rmq_spark.options.option import Earliest, Latest, Offset, OffsetSpec, Position, Timestamp
from rmq_spark.options.read_options import ReadOptions
from store_format import Queue
from store_format.display.text import first_names, shown
from store_format.errors import OffsetOutOfRangeError, OptionError, StoreError
from store_format.files import paths
from store_format.files.paths import Refused, refuse
from store_format.files.read import places
from store_format.metadata.group_offsets import RetryOwners, known_groups
from store_format.metadata.read import known_topics
from store_format.names import did_you_mean, is_retry_topic, is_system_topic, nearest, retry_topic
from store_format.read.choice import MessageChoice, QueueName
from store_format.read.store import Store
from store_format.read.store_root import refuse_equal_names, refuse_repeated, store_roots

_log = logging.getLogger(__name__)
_UNKNOWN = -1


# ---- the stores of a read ----------------------------------------------------------------------------------


def open_stores(options: ReadOptions, *, skip_unreadable: bool | None = None) -> list[Store]:
    """The stores of all paths, in the order of the paths, and by name within a cluster.

    With `skip_unreadable` (by default if failOnDataLoss is false), stores and queues that the user must not
    read are left out with a warning. Queues of an unknown fate (`unfiledQueues`) are an error if
    failOnDataLoss is true, else left out with a warning.

    Raises StoreNotFoundError for a path without a store, and OptionError if two paths are one store, or if
    two stores have the same broker name: their queues would have the same names. (Master and slave of a
    broker are such a pair, with the same messages.)
    """
    reach_stores(options)
    skip = not options.fail_on_data_loss if skip_unreadable is None else skip_unreadable
    refused: list[StoreError] = []
    roots = [
        (path, root)
        for path in options.paths
        for root in _roots(path, options, refused.append if skip else refuse)
    ]
    found = [
        Store.open(
            root,
            broker_name=options.broker_name,
            commit_log_paths=options.commit_log_paths,
            skip_unreadable=skip,
            unfiled_queues=options.unfiled_queues,
            fail_on_unknown=None if skip_unreadable else options.fail_on_data_loss,
            holds_last=options.holds_last(root),
            compacted=options.compacted,
            tiered_path=options.tiered_store_file_path,
        )
        for _, root in roots
    ]
    refuse_repeated(
        (path, store.path, store.commit_log_paths) for (path, _), store in zip(roots, found, strict=True)
    )
    refuse_equal_names((store.broker_name, store.path) for store in found)
    found[0].pass_over(refused)
    return found


def reach_stores(options: ReadOptions) -> None:
    """Reaches object storage as the options say, in this process of Spark, which has no other open store."""
    tiered = options.tiered_store_file_path or "/"
    for place in filter(paths.is_remote, (*options.paths, *options.commit_log_paths, tiered)):
        places().reach(place, options.access_to(place), anew=True)


def _roots(path: str, options: ReadOptions, refused: Refused) -> list[str]:
    roots = [path] if options.commit_log_paths else store_roots(path, refused)
    if len(roots) > 1 and options.broker_name is not None:
        raise OptionError(
            f"brokerName names one store, and {path} is a cluster of {len(roots)} stores; "
            "leave it out: each store has the name of its broker"
        )
    return roots


# ---- names that match nothing ------------------------------------------------------------------------------


def refuse_unknown(stores: Sequence[Store], options: ReadOptions, queues: Collection[MessageQueue]) -> None:
    """Raises OptionError if the options name a topic or queue that no store has. `queues` are those read.

    Names of `subscribe`, `assign`, `starting…` and `ending…` count. Raises OffsetOutOfRangeError for an
    offset above 0 in a queue that topics.json has but that has no message yet.
    """
    refuse_unknown_names(stores, options, queues)
    for spec in (options.starting, options.ending):
        unread = spec.unread(queues)
        configured = _configured_queues(stores) if unread else {}
        for queue in unread:
            if not _is_configured(configured, queue) or not _may_choose(options.choice, queue):
                raise OptionError(
                    f"{spec.option}: {queue} is not one of the queues read; "
                    f"{_queue_advice(queue.topic, queues, 'queues read')}"
                )
            _refuse_offset_in_empty(spec, queue, options)


def refuse_unknown_names(
    stores: Sequence[Store], options: ReadOptions, queues: Collection[MessageQueue]
) -> None:
    """The part of `refuse_unknown` that holds at a restart too: the names of `subscribe` and `assign`."""
    topics = {queue.topic for queue in queues} if options.choice.named_topics else set[str]()
    missing = [topic for topic in options.choice.named_topics if topic not in topics]
    if missing:
        configured = {topic for store in stores for topic in store.configured_topics()}
        missing = [topic for topic in missing if topic not in configured]
    if missing:
        known = sorted({queue.topic for queue in _existing_queues(stores)})
        applications = [topic for topic in known if not is_system_topic(topic)]
        advice = did_you_mean(missing[0], known) or _listed(applications or known)
        raise OptionError(f"no store has a topic {missing[0]!r}; {advice}")
    read_queues = frozenset(queues if options.choice.queues else ())
    unknown = [queue for queue in options.choice.queues if not _is_read(queue, read_queues, stores)]
    configured_queues = _configured_queues(stores) if unknown else {}
    for queue in unknown:
        if not _is_configured(configured_queues, queue):
            advice = _queue_advice(queue.topic, _existing_queues(stores), "queues")
            raise OptionError(f"assign: no store has the queue {queue}; {advice}")


def warn_of_no_match(
    stores: Sequence[Store], options: ReadOptions, queues: Collection[MessageQueue], effect: str
) -> None:
    """Warns if `subscribePattern` matches no topic of the `queues`, and says what follows."""
    pattern = options.choice.pattern
    if pattern is not None and not any(options.choice.chooses_topic(queue.topic) for queue in queues):
        every = {queue.topic for queue in _existing_queues(stores)}
        topics = sorted(topic for topic in every if not is_system_topic(topic))
        near = nearest(pattern, topics) or (topics or [""])[0]
        example = f" a pattern is for the whole name, as {shown(re.escape(near[:3]))}.* is for {shown(near)};"
        _log.warning(
            "subscribePattern %s matches no topic;%s %s. %s",
            pattern,
            example if topics else "",
            _listed(topics),
            effect,
        )


def _existing_queues(stores: Sequence[Store]) -> list[MessageQueue]:
    """The queues to list in an error. Another error must not hide that one: damaged stores are left out."""
    found: list[MessageQueue] = []
    for store in stores:
        with suppress(StoreError):
            found += map(MessageQueue.of, store.queues())
    return found


def _is_read(queue: QueueName, read: frozenset[MessageQueue], stores: Sequence[Store]) -> bool:
    brokers = [queue.broker] if queue.broker is not None else [store.broker_name for store in stores]
    return any((queue.topic, broker, queue.queue_id) in read for broker in brokers)


def _configured_queues(stores: Sequence[Store]) -> dict[tuple[str, str], range]:
    """(topic, broker name) -> the queue ids in topics.json. A broker creates the files of a queue with its
    first message.
    """
    return {
        (name, store.broker_name): topic.queue_ids
        for store in stores
        for name, topic in (known_topics(store.opened) or {}).items()
    }


def _is_configured(configured: Mapping[tuple[str, str], range], queue: QueueName) -> bool:
    number = queue.queue_id or 0
    if queue.broker is not None:
        return number in configured.get((queue.topic or "", queue.broker), range(0))
    return any(topic == queue.topic and number in ids for (topic, _), ids in configured.items())


def _may_choose(choice: MessageChoice, queue: QueueName) -> bool:
    """Whether the named queue will be read once it has a message."""
    if queue.topic is None or not choice.chooses_topic(queue.topic):
        return False
    return not choice.queues or any(
        each.topic == queue.topic
        and (None in (each.broker, queue.broker) or each.broker == queue.broker)
        and queue.queue_id in (None, each.queue_id)
        for each in choice.queues
    )


def _refuse_offset_in_empty(spec: OffsetSpec, queue: QueueName, options: ReadOptions) -> None:
    """A queue without a message has no offset but 0."""
    offset = dict(spec.entries)[queue]
    if not isinstance(offset, Offset) or not offset.value:
        return
    message = f"{queue}: {spec.option} {offset} is not in the queue, which holds 0 to 0"
    if options.fail_on_data_loss:
        raise OffsetOutOfRangeError(
            f"{message}; correct it, or set failOnDataLoss=false to read the offsets that exist"
        )
    _log.warning("reading the offsets that exist: %s", message)


def _listed(known: Sequence[str]) -> str:
    plain = [topic for topic in known if not topic.startswith("%")] or list(known)
    return f"the topics are {first_names(plain)}" if plain else "the store is empty"


def _queue_advice(topic: str | None, queues: Iterable[MessageQueue], kind: str) -> str:
    known = list(queues)
    of_topic = [queue for queue in known if topic is None or queue.topic == topic] or known
    names = first_names("/".join(map(str, queue)) for queue in of_topic)
    return f"the {kind} are {names}" if names else f"there are no {kind}"


# ---- the starts of a batch read ----------------------------------------------------------------------------


class Starts:
    """The starts of a batch read. A batch reads a group's offsets, but writes none and joins no group.

    `clients` has the queues of each logical client, or None without the option `consumers`. `left_out` are
    the queues of the group that the strategy gives to no client.
    """

    def __init__(self, stores: Sequence[Store], options: ReadOptions) -> None:
        self._options = options
        self._group = options.group
        self._committed: dict[MessageQueue, int] = {}
        self.left_out: frozenset[MessageQueue] = frozenset()
        self.clients: list[frozenset[MessageQueue]] | None = None
        self._allocated: frozenset[MessageQueue] = frozenset()
        if self._group is not None:
            is_broadcasting = self._group.message_model == BROADCASTING
            for store in stores:
                consuming_group(store.path, self._group.group, is_broadcasting=is_broadcasting)
            known = self._group.make_offset_store({store.broker_name: store.path for store in stores}).read()
            shared = frozenset(subscribe_set(stores, options.choice, self._group.group))
            self._allocate(self._group, shared, sorted(store.broker_name for store in stores))
            group, fails = self._group.group, options.fail_on_data_loss
            self._committed = usable_offsets(known, group, shared, fail_on_data_loss=fails)
            if not shared & self._committed.keys() and self._group.where is ConsumeFromWhere.LAST:
                _warn_of_nothing(stores, group)

    def _allocate(self, group: GroupOptions, shared: frozenset[MessageQueue], brokers: Sequence[str]) -> None:
        """Divides the shared queues by the strategy, as if the read were the only member of the group."""
        if group.message_model == BROADCASTING:
            self._allocated = shared
            return
        membership = group.make_membership(self._options.subscription, brokers)
        owner = membership.allocate(membership.clients, shared)
        self._allocated = frozenset(owner)
        self.left_out = shared - self._allocated
        if group.consumers is not None:
            self.clients = [
                frozenset(queue for queue, client in owner.items() if client == own)
                for own in membership.clients
            ]

    def reads(self, queue: Queue) -> bool:
        """Whether the queue is read. A group reads only queues that topics.json makes readable, and that the
        strategy gives to its clients.
        """
        return self._group is None or MessageQueue.of(queue) in self._allocated

    def of(self, queue: Queue) -> tuple[str, int]:
        """(the option or offset that decides, the first offset). It may be outside of the queue."""
        if self._group is None:
            return self._options.starting.option, start_by_options(queue, self._options)
        start = start_of(queue, self._committed.get(MessageQueue.of(queue)), self._group)
        return f"the {start.origin} offset of group {self._group.group}", start.offset


def _warn_of_nothing(stores: Sequence[Store], group: str) -> None:
    """A misspelt group would look like a group with nothing to read."""
    known = {name for store in stores for name in known_groups(store.opened)} - {group}
    hint = did_you_mean(group, sorted(known), "groups")
    _log.warning(
        "group %s has no committed offset in the queues read, so a batch read begins at their ends and "
        "returns no rows; %s To read the messages of a new group, set consumeFromWhere=%s",
        group, hint if hint.endswith("?") else f"{hint}.", ConsumeFromWhere.FIRST,
    )  # fmt: skip


# ---- the starting… options ---------------------------------------------------------------------------------


def start_by_options(queue: Queue, options: ReadOptions) -> int:
    """The first offset to read by the `starting…` options. It may be outside of the queue."""
    there = queue.range
    stated = options.starting.for_queue(there.topic, queue.store.broker_name, there.queue_id)
    offset = stated_offset(queue, stated, options.mode)
    missing = isinstance(stated, Timestamp) and offset == there.max_offset > there.min_offset
    if missing and options.starting_offsets_by_timestamp_strategy == "error":
        raise OffsetOutOfRangeError(
            f"{MessageQueue.of(queue)}: no message at or after {stated}; take an earlier "
            "time, or set startingOffsetsByTimestampStrategy=latest to skip this queue"
        )
    return offset


def warn_of_deleted_times(starts: Iterable[tuple[Queue, int]], options: ReadOptions) -> None:
    """Warns once if retention has deleted messages since the times of the `starting…` options.

    `starts` has the queues with the offsets to which the options lead. As in Spark's Kafka source, a time
    before the first message is no error.
    """
    begins = [
        (queue, offset, stated.ms)
        for queue, offset in starts
        if isinstance(stated := options.starting.for_queue(*MessageQueue.of(queue)), Timestamp)
    ]
    if begins:
        from store_format.read.chosen_messages import warn_of_deleted  # it imports pyarrow.compute

        warn_of_deleted(begins, options.starting.option)


def stated_offset(queue: Queue, stated: Position, mode: str) -> int:
    """The offset in the queue that the value of an option states. It may be outside of the queue."""
    match stated:
        case Earliest():
            return queue.min_offset
        case Latest():
            return queue.max_offset
        case Offset(value):
            return value
        case Timestamp(ms):
            return offset_at(queue, ms, mode)


def offset_at(queue: Queue, timestamp_ms: int, mode: str) -> int:
    """The offset of the first message stored at or after a time; the maximum offset if there is none.

    For a time after the end of a BatchCQ queue a broker answers with the last unit, which is older than the
    time.
    """
    offset = queue.first_since(timestamp_ms, on_damage=mode)
    if queue.range.is_batch and offset < queue.max_offset:
        _, units = queue.piece(offset, offset + 1).read()
        if len(units) and int(units["store_timestamp"][0]) < timestamp_ms:
            return queue.max_offset
    return offset


# ---- the offsets of a group --------------------------------------------------------------------------------


def subscribe_set(stores: Iterable[Store], choice: MessageChoice, group: str) -> list[MessageQueue]:
    """`mqAll`: the readable queues of the chosen topics and of the group's retry topics, sorted.

    The retry topics of pop are part of them if `choice` has the group, and if no other group has the topic
    (`RetryOwners`): `%RETRY%a_b` may also be the retry topic of a group `a_b`.

    As in topicRouteData2TopicSubscribeInfo, these are the ids from 0 to readQueueNums, with and without
    messages. Without topics.json (RocksDB) they are the queues on disk.
    """
    retry = retry_topic(group)
    found: set[MessageQueue] = set()
    for store in stores:
        chooses = _subscribed(store, choice, group)
        configured = known_topics(store.opened)
        if configured is None:
            queues = [(queue.topic, queue.queue_id) for queue in store.queues(chooses)]
        else:
            queues = [
                (name, number)
                for name, config in configured.items()
                if chooses(name)
                for number in config.readable_queue_ids
            ]
        broker = store.broker_name
        found |= {
            MessageQueue(topic, broker, n)
            for topic, n in queues
            if topic == retry or choice.chooses_queue(topic, broker, n)
        }
    return sort_queues(found)


def _subscribed(store: Store, choice: MessageChoice, group: str) -> Callable[[str], bool]:
    """The function that answers whether the group subscribes to a topic of the store."""

    @cache
    def owners() -> RetryOwners:  # only stores with a candidate pay for it
        return RetryOwners.read(store.opened, known_topics(store.opened) or store.topics())

    def chooses(topic: str) -> bool:
        if topic == retry_topic(group) or choice.chooses_by_name(topic):
            return True
        return choice.chooses_popped(topic) and owners().owner(topic).group == group

    return chooses


def usable_offsets(
    known: Mapping[MessageQueue, int],
    group: str,
    queues: Collection[MessageQueue],
    *,
    fail_on_data_loss: bool,
) -> dict[MessageQueue, int]:
    """The committed offsets without those below -1, which no client and no broker commits.

    Raises OffsetOutOfRangeError if such an offset belongs to one of `queues`. If failOnDataLoss is false, it
    warns instead, and the queue begins where consumeFromWhere says.
    """
    bad = {queue: offset for queue, offset in known.items() if offset < _UNKNOWN}
    named = sort_queues(queue for queue in bad if queue in queues)
    if named:
        first = named[0]
        others = f" (and {len(named) - 1} more queues)" if len(named) > 1 else ""
        message = (
            f"{first}: the committed offset of group {group} is {bad[first]}, "
            f"expected 0 or more, or -1 for none{others}"
        )
        if fail_on_data_loss:
            advice = (
                "reset the group on this queue (rmqlog offsets), or set failOnDataLoss=false to begin where "
                "consumeFromWhere says"
            )
            raise OffsetOutOfRangeError(f"{message}; {advice}")
        _log.warning("%s; beginning where consumeFromWhere says", message)
    return {queue: offset for queue, offset in known.items() if queue not in bad}


def start_of(queue: Queue | None, committed: int | None, options: GroupOptions) -> Start:
    """Where the group begins in a queue; None is a queue without a message."""
    low, high = offset_limits(queue)
    return start_offset(
        committed,
        where=options.where,
        min_offset=low,
        max_offset=high,
        offset_at=lambda: (
            0
            if queue is None
            else queue.offset_at(options.consume_timestamp_ms, "LOWER", on_damage="DROPMALFORMED")
        ),
        is_retry=queue is not None and is_retry_topic(queue.topic),
        young_from_zero=options.young_from_zero,
    )


def begin_of(queues: Mapping[MessageQueue, Queue], options: GroupOptions) -> Callable[[MessageQueue], int]:
    """The function that `GroupMember.settle` calls for the start of a queue without a known offset.

    `queues` may be filled later.
    """
    return lambda queue: start_of(queues.get(queue), None, options).offset
