"""Options and stores become a plan: which queues are read, from where to where, and whose share each is.

Planning looks at each queue's first and last entries only. What does not fit the stores, a misspelt topic or
an offset that is not there, is said here, before any task runs.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from rmq_spark.consume.message_queue import MessageQueue
from rmq_spark.options.offset_spec import Earliest, Latest, Offset, OffsetSpec, QueueName, Timestamp
from rmq_spark.options.read_options import ReadOptions
from rmq_spark.options.topic_choice import TopicChoice
from rmq_spark.plan.by_key import narrowed, places_of_key
from rmq_spark.plan.splits import Findings, Piece, Split, estimate_bytes, make_splits
from rmq_spark.plan.starts import Starts, offset_at
from rmq_spark.plan.stores import open_stores
from store_format import Queue
from store_format.consumequeue.slices import QueueSlice
from store_format.errors import OffsetOutOfRangeError, OptionError, StoreError
from store_format.metadata.read import read_topics
from store_format.names import did_you_mean
from store_format.read.store import Store
from store_format.read.store_queues import find_queues

__all__ = ["Plan", "available_cores", "plan", "refuse_unknown", "refuse_unknown_names", "warn_of_no_match"]

_log = logging.getLogger(__name__)

_NAMED_MAX = 5


@dataclass(slots=True)
class Plan:
    """The splits of a read, at least one, and how many messages planning knows to be lost."""

    splits: list[Split]
    lost: int = 0


def plan(options: ReadOptions, *, cores: int | None = None) -> Plan:
    """Look at the stores once and say who reads what. `cores` (default: this machine's) is how many tasks are
    worth having.

    Raises StoreNotFoundError for paths, OptionError for topics, queues or options that fit no store,
    OffsetOutOfRangeError for offsets asked for that are not there (unless failOnDataLoss is false).
    """
    stores = open_stores(options)
    found = Findings()
    starts = Starts(stores, options)
    for store in stores:
        _look(store, options, found, starts)
    refuse_unknown(stores, options, found)
    return Plan(make_splits(found, options, cores or available_cores()), found.lost)


def available_cores() -> int:
    """How many tasks this machine can run at once."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


# ---- queues and their ranges -------------------------------------------------------------------------------


def _look(store: Store, options: ReadOptions, found: Findings, starts: Starts) -> None:
    there = find_queues(store, options.topics)
    log_bytes = store.log.size_bytes
    known = places_of_key(store, there.queues, options)
    for queue in filter(starts.reads, there.queues):
        found.queues.append(MessageQueue.of(queue))
        piece = _slice(queue, options, found, starts)
        for part in (
            [piece] if known is None else narrowed(piece, known.get((queue.topic, queue.queue_id), ()))
        ):
            if part.start < part.stop:
                found.pieces.append(Piece(store, part, min(estimate_bytes(part), log_bytes)))
    slices = []
    repeated = []
    for queue in filter(starts.reads, there.scanned):
        found.queues.append(MessageQueue.of(queue))
        slices.append(_slice(queue, options, found, starts))
        repeated += [queue.scanned] if queue.scanned is not None and len(queue.scanned.epochs) > 1 else []
    if slices:
        found.scanned.append((store, slices, repeated, there.cuts))


def _slice(queue: Queue, options: ReadOptions, found: Findings, starts: Starts) -> QueueSlice:
    start_option, start = starts.of(queue)
    stop = _stop(queue, options)
    name = MessageQueue.of(queue)
    low, high = queue.min_offset, queue.max_offset
    for option, offset in ((start_option, start), (options.ending.option, stop)):
        if not low <= offset <= high:
            message = f"{name}: {option} {offset} is not in the queue, which holds {low} to {high}"
            if options.fail_on_data_loss:
                raise OffsetOutOfRangeError(
                    f"{message}; correct it, or set failOnDataLoss=false to read what is there"
                )
            if offset < low:
                lost = min(low, max(stop, offset)) - offset if option == start_option else 0
                found.lost += max(lost, 0)
                _log.warning("%d messages lost: %s", lost, message)
            else:
                _log.warning("reading what is there: %s", message)
    start, stop = min(max(start, low), high), min(max(stop, low), high)
    if start > stop and options.group is not None:
        start = stop  # the group has consumed the queue beyond the end: nothing of it is left to read
    if start > stop:
        raise OptionError(
            f"{name}: {start_option} leads to offset {start}, behind {options.ending.option}, which leads to {stop}"
        )
    return queue.range.piece(start, stop)


def _stop(queue: Queue, options: ReadOptions) -> int:
    match options.ending.for_queue(queue.topic, queue.store.broker_name, queue.queue_id):
        case Earliest():
            return queue.min_offset
        case Latest():
            return queue.max_offset
        case Offset(value):
            return value
        case Timestamp(ms):
            return offset_at(queue, ms, options.mode)


def refuse_unknown(stores: Sequence[Store], options: ReadOptions, found: Findings) -> None:
    """Names in the options that fit nothing: a typo would otherwise look like an empty topic."""
    refuse_unknown_names(stores, options, found)
    for spec in (options.starting, options.ending):
        unread = spec.unread(found.queues)
        configured = _configured_queues(stores) if unread else {}
        for queue in unread:
            if not _is_configured(configured, queue) or not _may_choose(options.topics, queue):
                raise OptionError(
                    f"{spec.option}: {queue} is none of the queues read; {_queue_advice(queue.topic, found.queues)}"
                )
            _refuse_offset_of_none(spec, queue, options)


def refuse_unknown_names(stores: Sequence[Store], options: ReadOptions, found: Findings) -> None:
    """The part of it that holds at a restart too: the names of `subscribe` and `assign`."""
    read = {topic for topic, _, _ in found.queues}
    missing = [topic for topic in options.topics.named_topics if topic not in read]
    if missing:
        configured = {topic for store in stores for topic in store.configured_topics()}
        missing = [topic for topic in missing if topic not in configured]
    if missing:
        known = sorted({topic for topic, _, _ in _queues_there(stores)})
        raise OptionError(f"no store has a topic {missing[0]!r}; {_topic_advice(missing[0], known)}")
    there = set(found.queues)
    unknown = [queue for queue in options.topics.queues if not _names_any(queue, there, stores)]
    configured_queues = _configured_queues(stores) if unknown else {}
    for queue in unknown:
        if not _is_configured(configured_queues, queue):
            have = _queue_advice(queue.topic, _queues_there(stores), "the queues there")
            raise OptionError(f"assign: no store has the queue {queue}; {have}")


def _queues_there(stores: Sequence[Store]) -> list[MessageQueue]:
    """(topic, broker, queue id) for advice, which is worth no other error: none of a store where some may not
    be read.
    """
    found: list[MessageQueue] = []
    for store in stores:
        with suppress(StoreError):
            found += map(MessageQueue.of, store.queues())
    return found


def _names_any(queue: QueueName, there: set[MessageQueue], stores: Sequence[Store]) -> bool:
    brokers = [queue.broker] if queue.broker is not None else [store.broker_name for store in stores]
    return any((queue.topic, broker, queue.queue_id) in there for broker in brokers)


def _configured_queues(stores: Sequence[Store]) -> dict[tuple[str, str], range]:
    """(topic, broker name) -> the queue ids in topics.json. A broker creates the files of a queue with its
    first message.
    """
    return {
        (name, store.broker_name): topic.queue_ids
        for store in stores
        for name, topic in (read_topics(store.path) or {}).items()
    }


def _is_configured(configured: Mapping[tuple[str, str], range], queue: QueueName) -> bool:
    number = queue.queue_id or 0
    if queue.broker is not None:
        return number in configured.get((queue.topic or "", queue.broker), range(0))
    return any(topic == queue.topic and number in ids for (topic, _), ids in configured.items())


def _may_choose(choice: TopicChoice, queue: QueueName) -> bool:
    """Whether the named queue is among those that are read once they have a message."""
    if queue.topic is None or not choice.chooses_topic(queue.topic):
        return False
    return not choice.queues or any(
        each.topic == queue.topic
        and (None in (each.broker, queue.broker) or each.broker == queue.broker)
        and queue.queue_id in (None, each.queue_id)
        for each in choice.queues
    )


def _refuse_offset_of_none(spec: OffsetSpec, queue: QueueName, options: ReadOptions) -> None:
    """Of a queue without a message: 0 is the only offset that it has."""
    offset = dict(spec.entries)[queue]
    if not isinstance(offset, Offset) or not offset.value:
        return
    message = f"{queue}: {spec.option} {offset} is not in the queue, which holds 0 to 0"
    if options.fail_on_data_loss:
        raise OffsetOutOfRangeError(
            f"{message}; correct it, or set failOnDataLoss=false to read what is there"
        )
    _log.warning("reading what is there: %s", message)


def warn_of_no_match(stores: Sequence[Store], options: ReadOptions, found: Findings) -> None:
    """A stream whose pattern matches no topic waits for one, perhaps for ever."""
    pattern = options.topics.pattern
    if pattern is not None and not any(options.topics.chooses_topic(topic) for topic, _, _ in found.queues):
        known = sorted({topic for topic, _, _ in _queues_there(stores)})
        _log.warning(
            "subscribePattern %s matches no topic; %s. The stream waits for one", pattern, _listed(known)
        )


def _topic_advice(name: str, known: Sequence[str]) -> str:
    return did_you_mean(name, known) or _listed(known)


def _listed(known: Sequence[str]) -> str:
    plain = [topic for topic in known if not topic.startswith("%")] or list(known)
    shown = ", ".join(plain[:_NAMED_MAX]) + (", …" if len(plain) > _NAMED_MAX else "")
    return f"the topics are {shown}" if plain else "the store is empty"


def _queue_advice(topic: str | None, queues: Iterable[MessageQueue], what: str = "the queues read") -> str:
    names = [
        f"{name}/{broker}/{number}" for name, broker, number in queues if topic is None or name == topic
    ] or [f"{name}/{broker}/{number}" for name, broker, number in queues]
    return (
        f"{what} are {', '.join(names[:_NAMED_MAX])}{', …' if len(names) > _NAMED_MAX else ''}"
        if names
        else f"{what} are none"
    )
