"""The stores that a read is about, and names in its options that match nothing in them.

A typo would otherwise look like an empty topic.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress

from rmq_spark.consume.message_queue import MessageQueue
from rmq_spark.options.queues import Offset, OffsetSpec
from rmq_spark.options.read_options import ReadOptions
from store_format.display.text import first_names
from store_format.errors import OffsetOutOfRangeError, OptionError, StoreError
from store_format.files.read import Refused, refuse
from store_format.metadata.read import known_topics
from store_format.names import did_you_mean
from store_format.read.choice import MessageChoice, QueueName
from store_format.read.store import Store
from store_format.read.store_root import refuse_equal_names, refuse_repeated, store_roots

_log = logging.getLogger(__name__)


def open_stores(options: ReadOptions, *, skip_unreadable: bool | None = None) -> list[Store]:
    """The stores of all paths, in the order of the paths, and by name within a cluster.

    With `skip_unreadable` (by default if failOnDataLoss is false), stores and queues that the user must not
    read are left out with a warning. Queues of an unknown fate (`unfiledQueues`) are an error if
    failOnDataLoss is true, else left out with a warning.

    Raises StoreNotFoundError for a path without a store, and OptionError if two paths are one store, or if
    two stores have the same broker name: their queues would have the same names. (Master and slave of a
    broker are such a pair, with the same messages.)
    """
    skip = not options.fail_on_data_loss if skip_unreadable is None else skip_unreadable
    refused: list[StoreError] = []
    stores: list[tuple[str, Store]] = []
    for path in options.paths:
        for root in _roots(path, options, refused.append if skip else refuse):
            store = Store.open(
                root,
                broker_name=options.broker_name,
                commit_log_paths=options.commit_log_paths,
                skip_unreadable=skip,
                unfiled_queues=options.unfiled_queues,
                fail_on_unknown=None if skip_unreadable else options.fail_on_data_loss,
            )
            stores.append((path, store))
    refuse_repeated((path, store.path, store.commit_log_paths) for path, store in stores)
    found = [store for _, store in stores]
    refuse_equal_names((store.broker_name, store.path) for store in found)
    found[0].pass_over(refused)
    return found


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
    topics = {queue.topic for queue in queues}
    missing = [topic for topic in options.choice.named_topics if topic not in topics]
    if missing:
        configured = {topic for store in stores for topic in store.configured_topics()}
        missing = [topic for topic in missing if topic not in configured]
    if missing:
        known = sorted({queue.topic for queue in _existing_queues(stores)})
        advice = did_you_mean(missing[0], known) or _listed(known)
        raise OptionError(f"no store has a topic {missing[0]!r}; {advice}")
    read_queues = frozenset(queues)
    unknown = [queue for queue in options.choice.queues if not _is_read(queue, read_queues, stores)]
    configured_queues = _configured_queues(stores) if unknown else {}
    for queue in unknown:
        if not _is_configured(configured_queues, queue):
            advice = _queue_advice(queue.topic, _existing_queues(stores), "queues")
            raise OptionError(f"assign: no store has the queue {queue}; {advice}")


def warn_of_no_match(stores: Sequence[Store], options: ReadOptions, queues: Collection[MessageQueue]) -> None:
    """Warns if `subscribePattern` matches no topic of the `queues`: the stream may wait for ever."""
    pattern = options.choice.pattern
    if pattern is not None and not any(options.choice.chooses_topic(queue.topic) for queue in queues):
        known = sorted({queue.topic for queue in _existing_queues(stores)})
        _log.warning(
            "subscribePattern %s matches no topic; %s. The stream waits for a topic that matches",
            pattern,
            _listed(known),
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
        for name, topic in (known_topics(store.path) or {}).items()
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
