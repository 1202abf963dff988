"""The queues that the members of a group share, and the first offset of a group in each queue."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import cache

from rmq_spark.consume.consume_from_where import Start, start_offset
from rmq_spark.consume.message_queue import MessageQueue, offset_limits, sort_queues
from rmq_spark.options.group_options import GroupOptions
from rmq_spark.options.topic_choice import TopicChoice
from store_format import Queue
from store_format.errors import OffsetOutOfRangeError
from store_format.metadata.known_topics import known_topics
from store_format.metadata.retry_owners import RetryOwners
from store_format.names import is_retry_topic, retry_topic
from store_format.read.store import Store

_log = logging.getLogger(__name__)

_UNKNOWN = -1


def subscribe_set(stores: Iterable[Store], choice: TopicChoice, group: str) -> list[MessageQueue]:
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
        configured = known_topics(store.path)
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


def _subscribed(store: Store, choice: TopicChoice, group: str) -> Callable[[str], bool]:
    """The function that answers whether the group subscribes to a topic of the store."""

    @cache
    def owners() -> RetryOwners:  # only stores with a candidate pay for it
        return RetryOwners.read(store.path, known_topics(store.path) or store.topics())

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
