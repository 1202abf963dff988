"""Which consume queue entries a message has, from its stored unit alone (spec 3.2, 3.5, 3.6).

This is the rule of DefaultMessageStore.CommitLogDispatcherBuildConsumeQueue. A writer that rebuilds queues
and a reader that does without them both call `find_entries`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from store_format.arrays.ranges import distinct_values
from store_format.consumequeue.files import QUEUE_OFFSET_MAX
from store_format.java.numbers import parse_long
from store_format.java.text import decode_utf8
from store_format.message import sysflag
from store_format.message.locate import Units, inner_batches
from store_format.message.properties import PropertyTable
from store_format.names import (
    INNER_BASE,
    INNER_MULTI_DISPATCH,
    INNER_MULTI_QUEUE_OFFSET,
    INNER_NUM,
    RETRY_PREFIX,
    SCHEDULE_TOPIC,
    SYSTEM_PREFIX,
    QueueKey,
    is_light_queue,
)

_LIGHT_QUEUE_ID = 0
_NOT_MULTI_DISPATCHED = (RETRY_PREFIX, SYSTEM_PREFIX)  # MultiDispatchUtils.isNeedHandleMultiDispatch
_MULTI_DISPATCH = INNER_MULTI_DISPATCH.encode() + b"\x01"
_BATCH_SIZE_MAX = 0x7FFF  # INNER_NUM is a Java short

_Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class FoundEntries:
    """Queue entries, one element each: the queue is `keys[key]`, the message is unit number `unit`.

    `offset` is the first queue offset of the entry, `count` how many it covers. The entries of a queue are in
    the order of the units.
    """

    keys: list[QueueKey]
    key: _Ints
    unit: _Ints
    offset: _Ints
    count: _Ints
    physical: _Ints
    size: _Ints


def find_entries(
    units: Units,
    select: Callable[[str], bool] = lambda topic: True,
    batch_topics: Collection[str] | None = None,
) -> FoundEntries:
    """The queue entries that a broker would make of these units, in the queues of the selected topics.

    Messages of the transaction types prepared and rollback have none. `batch_topics` are the topics with
    queue.type=BatchCQ; None means that nobody knows them, and then the system flag of an inner batch, which a
    broker accepts in such topics alone, says that an entry covers several queue offsets.
    """
    kind = units.sys_flag & sysflag.TRANSACTION_MASK
    queued = np.flatnonzero((kind == sysflag.TRANSACTION_NONE) | (kind == sysflag.TRANSACTION_COMMIT))
    chosen = units if len(queued) == len(units) else units.select(queued)
    topics, topic_index = distinct_values(chosen.stored_topics())
    names = [decode_utf8(topic) for topic in topics]
    keys, key, offset, count = _own_entries(chosen, names, topic_index, batch_topics)
    is_selected = np.array([select(topic) for topic, _ in keys], bool)
    unit = np.flatnonzero(is_selected[key] & has_queue_offset(offset)) if keys else np.empty(0, np.int64)
    key, offset, count = key[unit], offset[unit], count[unit]
    light = _light_entries(chosen, names, topic_index, select)
    if light:
        numbers: dict[QueueKey, int] = {}
        light_key = [numbers.setdefault((name, _LIGHT_QUEUE_ID), len(numbers)) for name, _, _ in light]
        key = np.append(key, np.array(light_key) + len(keys))
        offset = np.append(offset, [number for _, number, _ in light])
        count = np.append(count, np.ones(len(light), np.int64))
        unit = np.append(unit, [i for _, _, i in light])
        keys += numbers
    physical = chosen.physical_offsets[unit]
    return FoundEntries(keys, key, queued[unit], offset, count, physical, chosen.refs.sizes[unit])


def has_queue_offset(offsets: _Ints) -> NDArray[np.bool_]:
    """True for numbers that can be queue offsets, together with those of a batch behind them."""
    return (offsets >= 0) & (offsets <= QUEUE_OFFSET_MAX)


def _own_entries(
    units: Units, names: list[str], topic_index: NDArray[np.int32], batch_topics: Collection[str] | None
) -> tuple[list[QueueKey], _Ints, _Ints, _Ints]:
    """(queues, and of each unit the queue, the queue offset and how many offsets the entry covers)."""
    combined = topic_index.astype(np.int64) << 32 | units.integers("queue_id").astype(np.int64) & 0xFFFFFFFF
    distinct, key = np.unique(combined, return_inverse=True)
    keys = [
        (names[topic], queue_id)
        for topic, queue_id in zip((distinct >> 32).tolist(), distinct.astype(np.int32).tolist(), strict=True)
    ]
    offset, count = units.integers("queue_offset").astype(np.int64), np.ones(len(units), np.int64)
    if batch_topics is None:
        batches = np.flatnonzero(inner_batches(units))
    else:
        batches = np.flatnonzero(np.array([name in batch_topics for name in names], bool)[topic_index])
    if len(batches):
        _set_batches(units, batches, offset, count)
    return keys, key, offset, count


def _set_batches(units: Units, rows: NDArray[np.intp], offset: _Ints, count: _Ints) -> None:
    """INNER_BASE and INNER_NUM count only together (CommitLog.checkMessageAndReturnSize)."""
    table = PropertyTable(units.select(rows).raw_properties())
    bases, sizes = table.values(INNER_BASE).to_pylist(), table.values(INNER_NUM).to_pylist()
    for row, base_text, size_text in zip(rows.tolist(), bases, sizes, strict=True):
        base, size = parse_long(base_text), parse_long(size_text)
        if base is not None and size is not None and base >= 0 and 0 < size <= _BATCH_SIZE_MAX:
            offset[row], count[row] = base, size


def _light_entries(
    units: Units, names: list[str], topic_index: NDArray[np.int32], select: Callable[[str], bool]
) -> list[tuple[str, int, int]]:
    """(light queue, queue offset, unit) of the light queues that messages name in their properties.

    The rules are those of MultiDispatchUtils and ConsumeQueue.multiDispatchLmqQueue.
    """
    if not len(units):
        return []
    properties = units.raw_properties().buffers()[2]
    if properties is None or _MULTI_DISPATCH not in properties.to_pybytes():
        return []
    is_dispatched = [name != SCHEDULE_TOPIC and not name.startswith(_NOT_MULTI_DISPATCHED) for name in names]
    table = PropertyTable(units.raw_properties())
    queues = table.values(INNER_MULTI_DISPATCH).to_pylist()
    offsets = table.values(INNER_MULTI_QUEUE_OFFSET).to_pylist()
    return [
        (queue, offset, unit)
        for unit, topic in enumerate(topic_index.tolist())
        if is_dispatched[topic] and queues[unit] and offsets[unit]
        for queue, offset in _light_queues(queues[unit], offsets[unit])
        if 0 <= offset <= QUEUE_OFFSET_MAX and select(queue)
    ]


def _light_queues(names: str, offsets: str) -> Iterator[tuple[str, int]]:
    """Names and offsets pair by pair; nothing when their numbers differ, as in the broker.

    Names that would leave the directory are skipped, and so are names without %LMQ%: a 5.x broker gives them
    no offset (LmqDispatch.wrapLmqDispatch), so an offset is a producer's own property, in the name of any
    topic. (A 4.9 broker with enableMultiDispatch does dispatch to them; those entries are neither read nor
    rebuilt.)
    """
    name_list, offset_list = _split(names), _split(offsets)
    if len(name_list) != len(offset_list):
        return
    for name, text in zip(name_list, offset_list, strict=True):
        offset = parse_long(text)
        if is_light_queue(name) and "/" not in name and offset is not None:
            yield name, offset


def _split(text: str) -> list[str]:
    """String.split(","): empty parts at the end are dropped."""
    return text.rstrip(",").split(",")
