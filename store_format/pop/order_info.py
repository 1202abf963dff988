"""Order pop: the rules for the last batch of a queue, and the bytes of config/consumerOrderInfo.json.

Spec 11.9. RocketMQ 5.5 has the rules in `QueueLevelConsumerManager`, earlier versions in
`ConsumerOrderInfoManager`. A group that pops in order has one batch of each queue at a time: `OrderInfo`. The
queue is blocked while a message of the batch is neither acknowledged nor visible again. After that the group
reads from the committed offset, the first message of the batch that is not acknowledged, and gets every
message from there again, acknowledged or not. The functions are pure. Times are in ms, offsets are queue
offsets.

>>> batch = next_batch(None, (10, 11, 13), pop_time=1_000, invisible_ms=500, now_ms=1_000)
>>> is_blocked(batch, 1_499, 500), is_blocked(batch, 1_500, 500)
(True, False)
>>> batch, committed = acknowledge(batch, 11, 1_000)
>>> committed
10
>>> again = next_batch(batch, (10, 11, 13), pop_time=1_500, invisible_ms=500, now_ms=1_500)
>>> consumed_count(again, 10)
1
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from store_format.java.fastjson import loads
from store_format.java.hashes import table_size
from store_format.metadata.encode import Dialect, dialect_of, dumps, with_integer_keys
from store_format.metadata.values import OrderInfo, bean_errors_of, members

ILLEGAL_OFFSET = -1  # `acknowledge`: the batch does not have the offset
STALE_BATCH = -2  # `acknowledge`: the queue has a later batch
FORGET_MS = 24 * 3600 * 1000  # CLEAN_SPAN_FROM_LAST

_MAP_CAPACITY = 16  # new HashMap<>()
_LONG = 1 << 63


# ---- rules -------------------------------------------------------------------------------------------------


def next_batch(
    before: OrderInfo | None,
    offsets: tuple[int, ...],
    *,
    pop_time: int,
    invisible_ms: int,
    now_ms: int,
    attempt_id: str | None = None,
) -> OrderInfo:
    """The batch that replaces `before`: what a pop hands out (update, mergeOffsetConsumedCount).

    A message that was in `before` has one delivery more. A repeat of the same attempt counts no delivery.
    """
    counts = None
    if before is not None and attempt_id is not None and attempt_id == before.attempt_id:
        counts = before.consumed_count or {}
    elif before is not None:
        old, there = before.consumed_count or {}, set(before.offsets)
        counts = {offset: old.get(offset, 0) + 1 for offset in offsets if offset in there}
    return OrderInfo(offsets, pop_time, invisible_ms, now_ms, 0, attempt_id, counts)


def consumed_count(info: OrderInfo, offset: int) -> int:
    """How often the message was delivered before this batch; the client's reconsumeTimes."""
    return (info.consumed_count or {}).get(offset, 0)


def is_acknowledged(info: OrderInfo, index: int) -> bool:
    """Whether the message at `index` of the batch is acknowledged; Java shifts by the index modulo 64."""
    return bool(info.commit_offset_bit >> (index & 63) & 1)


def unacknowledged_count(info: OrderInfo) -> int:
    """How many messages of the batch are not acknowledged."""
    return sum(not is_acknowledged(info, index) for index in range(len(info.offsets)))


def unblocked_at(info: OrderInfo, invisible_ms: int) -> int:
    """The time from which the queue is no longer blocked; 0 if every message is acknowledged.

    `invisible_ms`, the invisible time of the pop that asks, counts for a batch without a time of its own. The
    first form of the file had none.
    """
    default = info.pop_time + (invisible_ms if not _has_invisible_time(info) else info.invisible_time or 0)
    times = info.next_visible_time or {}
    return max(
        (
            times.get(offset, default)
            for index, offset in enumerate(info.offsets)
            if not is_acknowledged(info, index)
        ),
        default=0,
    )


def is_blocked(info: OrderInfo, now_ms: int, invisible_ms: int, attempt_id: str | None = None) -> bool:
    """Whether a pop must leave the queue alone (needBlock). A repeat of the same attempt is not blocked."""
    if attempt_id is not None and attempt_id == info.attempt_id:
        return False
    return now_ms < unblocked_at(info, invisible_ms)


def _has_invisible_time(info: OrderInfo) -> bool:
    return info.invisible_time is not None and info.invisible_time > 0


def next_offset(info: OrderInfo) -> int:
    """The offset that the group has committed: of the first message not acknowledged, else after the batch.

    STALE_BATCH for a batch without messages (getNextOffset).
    """
    if not info.offsets:
        return STALE_BATCH
    for index, offset in enumerate(info.offsets):
        if not is_acknowledged(info, index):
            return offset
    return info.offsets[-1] + 1


def acknowledge(info: OrderInfo, offset: int, pop_time: int) -> tuple[OrderInfo, int]:
    """The batch with the message acknowledged, and the offset to commit (commitAndNext).

    Instead of the offset ILLEGAL_OFFSET if the batch does not have the message, and STALE_BATCH for a message
    of an earlier batch; the batch is then unchanged.
    """
    if not info.offsets:
        return info, ILLEGAL_OFFSET
    if pop_time != info.pop_time:
        return info, STALE_BATCH
    if offset not in info.offsets:
        return info, ILLEGAL_OFFSET
    after = with_acknowledged(info, [info.offsets.index(offset)])
    return after, next_offset(after)


def with_acknowledged(info: OrderInfo, indexes: Iterable[int]) -> OrderInfo:
    """The batch with the messages at these places acknowledged."""
    bits = info.commit_offset_bit
    for index in indexes:
        bits |= 1 << (index & 63)
    bits %= 2 * _LONG
    return replace(info, commit_offset_bit=bits - 2 * _LONG if bits >= _LONG else bits)


def with_next_visible(info: OrderInfo, offset: int, pop_time: int, next_visible_ms: int) -> OrderInfo:
    """The batch with another time for one message (updateNextVisibleTime).

    A message of an earlier batch changes nothing. As in the broker the offset may be any.
    """
    if pop_time != info.pop_time:
        return info
    return replace(info, next_visible_time={**(info.next_visible_time or {}), offset: next_visible_ms})


def is_forgotten(info: OrderInfo, now_ms: int) -> bool:
    """Whether the broker drops the batch: nothing was popped from the queue for 24 hours (autoClean)."""
    return now_ms - info.last_consume_timestamp > FORGET_MS


# ---- consumerOrderInfo.json --------------------------------------------------------------------------------


def merge_order_infos(
    data: bytes | None, key: str, infos: Mapping[int, OrderInfo], file: str = "config/consumerOrderInfo.json"
) -> bytes | None:
    """The file with the batches of one `topic@group`, by queue id; None if nothing changes.

    `data` is the present file, None or empty without one. The batches of other groups stay as they are.
    Without `infos` the member `key` is removed. The form is that of the broker that wrote the file; a new
    file has the form of 5.5. Raises CorruptStoreError for a file of another kind.
    """
    with bean_errors_of(file):
        value = with_integer_keys(loads(data, file), "consumerOrderInfo.json") if data else None
        raw = dict(members(value, "the file"))
        table = dict(members(raw.get("table"), "table"))
    if infos:
        table[key] = {queue_id: _members(infos[queue_id]) for queue_id in sorted(infos)}
    else:
        table.pop(key, None)
    if not data:
        raw = {"orderInfoCount": 0, "orderedConsumptionLevel": "QUEUE"}
    if "orderInfoCount" in raw:
        raw["orderInfoCount"] = len(table)
    raw["table"] = table
    after = dumps(raw, dialect_of(data) if data else Dialect.FASTJSON2)
    return None if after == data else after


def _members(info: OrderInfo) -> dict[str, Any]:
    """The members of one batch, sorted by name; offsets after the first as differences from the first."""
    first = info.offsets[:1]
    return {
        "a": info.attempt_id,
        "cm": info.commit_offset_bit,
        "i": info.invisible_time,
        "l": info.last_consume_timestamp,
        "o": [*first, *(offset - first[0] for offset in info.offsets[1:])],
        "oc": _in_map_order(info.consumed_count),
        "ot": _in_map_order(info.next_visible_time),
        "popTime": info.pop_time,
    }


def _in_map_order(values: Mapping[int, int] | None) -> dict[int, int] | None:
    """The entries in the order of a HashMap with Long keys."""
    if values is None:
        return None
    size = table_size(len(values), _MAP_CAPACITY)
    return {offset: values[offset] for offset in sorted(values, key=lambda offset: _bucket(offset, size))}


def _bucket(offset: int, size: int) -> int:
    value = (offset ^ (offset % (2 * _LONG)) >> 32) & 0xFFFFFFFF  # Long.hashCode
    return (value ^ value >> 16) & (size - 1)
