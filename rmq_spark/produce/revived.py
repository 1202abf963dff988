"""What a broker stores when nobody acknowledges a popped message in time: a copy in the pop retry topic.

The rule is PopReviveService.reviveRetry (spec consumption.md 11.6). The same group can pop the copy at once:
the wait was the invisible time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rmq_spark.produce.rows import Host
from store_format.message import sysflag
from store_format.message.encode import MessageColumns, StoredMessages, edited_properties
from store_format.message.properties import PropertyTable
from store_format.message.property_encoder import encode_property_columns
from store_format.names import (
    FIRST_POP_TIME,
    INNER_MULTI_DISPATCH,
    INNER_NUM,
    ORIGIN_GROUP,
    TAGS,
    is_retry_topic,
    pop_retry_topic,
)

_Ints = NDArray[np.int64]
_Flags = NDArray[np.bool_]

_RETRY_QUEUE_NUMS = 1  # PopAckConstants.retryQueueNum
_MAP_CAPACITY = 16  # new HashMap(): PopReviveService does not give a capacity


@dataclass(frozen=True, slots=True)
class RevivedCopies:
    """Copies to append, one for each message, in their order.

    `new_topics` are the topics that a broker creates if topics.json lacks them, with their queues. The group
    starts at offset 0 in each of their queues (PopReviveService.initPopRetryOffset).
    """

    messages: MessageColumns
    new_topics: Mapping[str, int]


def revived(
    stored: StoredMessages,
    group: str,
    pop_times: _Ints | int,
    *,
    keeps_times: _Flags | bool = False,
    queue_nums: int | None = None,
    broker_host: Host | None = None,
) -> RevivedCopies:
    """The copies of messages that `group` has popped at `pop_times` (ms) and nobody has acknowledged.

    A copy has the topic `%RETRY%<group>_<topic>`; the copy of a message that is in a retry topic stays in
    that topic. reconsumeTimes increases by one, unless `keeps_times` (a check point with `sp`: the consumer
    has only suspended the message). The property 1ST_POP_TIME has the time of the first pop. The queue is 0;
    with `queue_nums`, the queues of the topic, it is the message's own queue (useSeparateRetryQueue).
    `broker_host` is the address of the broker, by default the store host of each message; the copy is born
    there.
    """
    count = len(stored)
    topics = pc.dictionary_encode(pc.cast(stored.messages.topic, pa.string()))
    names = [
        each if is_retry_topic(each) else pop_retry_topic(group, each)
        for each in topics.dictionary.to_pylist()
    ]
    times = np.asarray(stored.messages.reconsume_times, np.int64)
    queues = np.zeros(count, np.int64)
    if queue_nums is not None:
        own = np.asarray(stored.messages.queue_id, np.int64)
        queues = np.where(own < queue_nums, own, 0)
    host = {"store_ip": stored.messages.store_ip, "store_port": stored.messages.store_port}
    flags = np.asarray(stored.messages.sys_flag, np.int64)
    if broker_host is not None:
        host = {"store_ip": broker_host[0], "store_port": broker_host[1]}
        wide = np.full(count, len(broker_host[0]) == 16)
        flags = np.where(wide, flags | sysflag.STORE_HOST_V6, flags & ~sysflag.STORE_HOST_V6)
    wide = flags & sysflag.STORE_HOST_V6 != 0
    columns = stored.copies(
        topic=pa.DictionaryArray.from_arrays(topics.indices, names),
        queue_id=queues,
        properties=_properties(stored, group, np.broadcast_to(np.asarray(pop_times, np.int64), count)),
        sys_flag=np.where(wide, flags | sysflag.BORN_HOST_V6, flags & ~sysflag.BORN_HOST_V6),
        reconsume_times=times + ~np.broadcast_to(np.asarray(keeps_times, bool), count),
        prepared_transaction_offset=np.zeros(count, np.int64),
        born_ip=host["store_ip"],
        born_port=host["store_port"],
        **host,
    )
    return RevivedCopies(columns, dict.fromkeys(names, queue_nums or _RETRY_QUEUE_NUMS))


def refused_copies(stored: StoredMessages) -> _Flags:
    """Marks messages whose copies cannot be stored here: inner batches, and messages of light queues.

    A broker refuses the first (HookUtils.checkInnerBatch) and puts the second into the light queues again.
    """
    flags = np.asarray(stored.messages.sys_flag, np.int64)
    inner, light = stored.properties(INNER_NUM, INNER_MULTI_DISPATCH)
    either = pc.or_(pc.is_valid(inner), pc.is_valid(light)).to_numpy(zero_copy_only=False)
    refused: _Flags = (flags & sysflag.INNER_BATCH != 0) | either
    return refused


# ---- properties --------------------------------------------------------------------------------------------


def _properties(stored: StoredMessages, group: str, pop_times: _Ints) -> pa.LargeBinaryArray:
    """The properties of the copies, in the order of the HashMap that PopReviveService makes.

    The map begins with TAGS and then gets the decoded properties. Without TAGS the map is empty at first, so
    that its table is made for the number of the decoded properties.
    """
    first, tags = stored.properties(FIRST_POP_TIME, TAGS)
    is_first = pa.array(np.asarray(stored.messages.reconsume_times, np.int64) == 0)
    times = pa.array(pop_times).cast(pa.string())
    popped = pc.if_else(pc.or_(is_first, pc.is_null(first)), times, first)
    # HashMap(128), into which a broker decodes properties, gives the order in which they are put
    decoded = PropertyTable(edited_properties(stored.messages.properties, {}).cast(pa.binary())).map_array()
    counts = np.diff(decoded.offsets.to_numpy())
    has_tags = tags.is_valid().to_numpy(zero_copy_only=False)
    capacities = np.where(has_tags | (counts == 0), _MAP_CAPACITY, _table_for(counts))
    ordered = _tags_first(decoded)
    parts, places = [], []
    for capacity in np.unique(capacities).tolist():
        chosen = np.flatnonzero(capacities == capacity)
        mask = pa.array(chosen)
        put = {FIRST_POP_TIME: popped.take(mask), ORIGIN_GROUP: group}
        parts.append(encode_property_columns(len(chosen), put, ordered.take(mask), capacity=capacity))
        places.append(chosen)
    if not parts:
        return pa.array([], pa.large_binary())
    return pa.concat_arrays(parts).take(pa.array(np.argsort(np.concatenate(places), kind="stable")))


def _table_for(counts: _Ints) -> _Ints:
    """The buckets of an empty HashMap after putAll of maps with so many names (HashMap.putMapEntries)."""
    wanted = (counts / 0.75 + 1.0).astype(np.int64)
    sizes: _Ints = 1 << np.ceil(np.log2(np.maximum(wanted, 1))).astype(np.int64)
    return sizes


def _tags_first(maps: pa.MapArray) -> pa.MapArray:
    """The maps with TAGS moved to the front."""
    offsets = maps.offsets.to_numpy()
    keys, items = maps.keys[offsets[0] : offsets[-1]], maps.items[offsets[0] : offsets[-1]]
    rows = np.repeat(np.arange(len(maps)), np.diff(offsets))
    is_other = pc.not_equal(keys, TAGS).to_numpy(zero_copy_only=False)
    order = pa.array(np.lexsort((is_other, rows)))
    return pa.MapArray.from_arrays(
        pa.array((offsets - offsets[0]).astype(np.int32)), keys.take(order), items.take(order)
    )
