"""Static topics: clients see logical queues with offsets of their own, and topicQueueMapping.json says which
queues of which brokers hold their messages (TopicQueueMappingDetail, LogicQueueMappingItem).
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

from store_format.layouts import OFFSET_MAX
from store_format.message.columns import DecodeOptions, LogicalRange
from store_format.metadata.read import read_queue_mappings
from store_format.opened.store import Opened


def logical_ranges(opened: Opened, broker_name: str) -> tuple[LogicalRange, ...]:
    """The ranges that the broker of this name holds, as its own store says; () without static topics.

    A broker leads a logical queue while it has the last of its items, and decides the item's logical offset
    then. A logical offset is `logicOffset + queueOffset - startOffset`
    (LogicQueueMappingItem.computeStaticQueueOffsetStrictly). Raises CorruptStoreError.

    >>> logical_ranges(Opened("/data/broker-b"), "broker-b")[0]  # doctest: +SKIP
    LogicalRange(queue=('Static', 0), start=0, stop=9223372036854775807, queue_id=0, offset=10000, ...)
    """
    mappings = None
    with suppress(NotADirectoryError):  # `config` is a file: no topic is static
        mappings = read_queue_mappings(opened)
    return tuple(
        LogicalRange(
            (topic, item.queue_id),
            item.start_offset,
            item.end_offset if item.end_offset >= 0 else OFFSET_MAX,
            logical_id,
            item.logic_offset if item.logic_offset >= 0 else None,
            "" if item is hosted[-1] else hosted[-1].bname,
        )
        for topic, mapping in (mappings or {}).items()
        for logical_id, hosted in mapping.hosted_queues.items()
        for item in hosted
        if item.bname == broker_name
    )


def with_logical(options: DecodeOptions, opened: Opened, broker_name: str) -> DecodeOptions:
    """The options with the ranges of the store's static topics, if a column needs them."""
    if not options.wants_logical:
        return options
    return replace(options, logical=logical_ranges(opened, broker_name))
