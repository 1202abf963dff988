"""Order pop: the rules for the last batch of a queue, the bytes of config/consumerOrderInfo.json, and the
state in the in-flight log.

Spec 11.9. RocketMQ 5.5 has the rules in `QueueLevelConsumerManager`, earlier versions in
`ConsumerOrderInfoManager`. A group that pops in order has one batch of each queue at a time: `OrderInfo`. The
queue is blocked while a message of the batch is neither acknowledged nor visible again. After that the group
reads from the committed offset, the first message of the batch that is not acknowledged, and gets every
message from there again, acknowledged or not. Such a group has no check points: `OrderState` has the
last batch of each queue in the in-flight log. The other functions are pure. Times are in ms, offsets are
queue offsets.

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

import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from store_format.java.fastjson import loads
from store_format.java.text import table_size
from store_format.metadata.values import (
    Dialect,
    OrderInfo,
    bean_errors_of,
    dialect_of,
    dumps,
    members,
    with_integer_keys,
)
from store_format.pop.records import CheckPoint, PointKey, QueueState, WitnessEntry

Digest = int  # of a batch; 0 without one

_ILLEGAL_OFFSET = -1  # `acknowledge`: the batch does not have the offset
_STALE_BATCH = -2  # `acknowledge`: the queue has a later batch
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


def _unblocked_at(info: OrderInfo, invisible_ms: int) -> int:
    """The time from which the queue is no longer blocked; 0 if every message is acknowledged.

    `invisible_ms`, the invisible time of the pop that asks, counts for a batch without a time of its own. The
    first form of the file had none.
    """
    own_ms = info.invisible_time or 0
    default = info.pop_time + (own_ms if own_ms > 0 else invisible_ms)
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
    return now_ms < _unblocked_at(info, invisible_ms)


def _next_offset(info: OrderInfo) -> int:
    """The offset that the group has committed: of the first message not acknowledged, else after the batch.

    STALE_BATCH for a batch without messages (getNextOffset).
    """
    if not info.offsets:
        return _STALE_BATCH
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
        return info, _ILLEGAL_OFFSET
    if pop_time != info.pop_time:
        return info, _STALE_BATCH
    if offset not in info.offsets:
        return info, _ILLEGAL_OFFSET
    after = _with_acknowledged(info, [info.offsets.index(offset)])
    return after, _next_offset(after)


def _with_acknowledged(info: OrderInfo, indexes: Iterable[int]) -> OrderInfo:
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


# ---- in the in-flight log ----------------------------------------------------------------------------------


class OrderState:
    """The batches by queue id, a part of PopState. Each change is one note of the log.

    `is_on`: the group pops in order. `mirrored` has what consumerOrderInfo.json has for a queue: the digests
    of (the batch before it was last written, the batch that it was given).
    """

    def __init__(
        self,
        queues: dict[tuple[int, int], QueueState],
        totals: Counter[str],
        note: Callable[..., None],
    ) -> None:
        self.is_on = False
        self.batches: dict[int, OrderInfo] = {}
        self.mirrored: dict[int, tuple[Digest, Digest]] = {}
        self._queues, self._totals, self._note = queues, totals, note

    # ---- what others ask -----------------------------------------------------------------------------------

    @property
    def in_flight(self) -> int:
        """How many messages of all batches are not acknowledged."""
        return sum(map(self.in_flight_of, self.batches))

    def in_flight_of(self, queue_id: int) -> int:
        """How many messages of the queue's batch are not acknowledged."""
        return len(self._indexes(queue_id))

    def _indexes(self, queue_id: int) -> list[int]:
        """The places in the queue's batch of the messages that are not acknowledged.

        Messages before the committed offset count as acknowledged (AckMessageProcessor.ackOrderly): a broker
        that was killed may leave a batch that is older than the offset.
        """
        info = self.batches.get(queue_id)
        if info is None:
            return []
        committed = self._queues[0, queue_id].next_offset
        return [
            index
            for index, offset in enumerate(info.offsets)
            if offset >= committed and not is_acknowledged(info, index)
        ]

    def is_in_flight(self, queue_id: int, offset: int, pop_time: int) -> bool:
        """Whether the queue's batch is of that pop time and has the message, not acknowledged."""
        info = self.batches.get(queue_id)
        if info is None or info.pop_time != pop_time:
            return False
        return any(info.offsets[index] == offset for index in self._indexes(queue_id))

    def check_point(self, key: PointKey) -> CheckPoint | None:
        """The queue's batch as a check point, if it is of that pop time. A change of it changes nothing."""
        flag, queue_id, start, pop_time = key
        info = self.batches.get(queue_id)
        if flag or info is None or info.pop_time != pop_time:
            return None
        point = CheckPoint(flag, queue_id, start, info.offsets, pop_time, info.invisible_time or 0)
        point.acked = info.commit_offset_bit & point.whole
        return point

    def is_blocked(
        self, queue_id: int, now_ms: int, invisible_ms: int, attempt_id: str | None = None
    ) -> bool:
        """Whether a pop at `now_ms` must leave the queue alone."""
        info = self.batches.get(queue_id)
        return info is not None and is_blocked(info, now_ms, invisible_ms, attempt_id)

    def next_unblocked(self, now_ms: int, invisible_ms: int) -> int | None:
        """When the next of the queues that are blocked now can be read again; None if no queue is blocked."""
        times = (_unblocked_at(info, invisible_ms) for info in self.batches.values())
        return min((time for time in times if time > now_ms), default=None)

    # ---- changes -------------------------------------------------------------------------------------------

    def switch(self, is_on: bool) -> None:
        """The group pops in order from now on, or no longer. The caller drops what is in flight."""
        self._note("order", act="mode", on=is_on)

    def hand_out(
        self,
        queue_id: int,
        offsets: Sequence[int],
        *,
        pop_time: int,
        invisible_ms: int,
        attempt_id: str | None = None,
        physical_offset: int = -1,
    ) -> OrderInfo:
        """Hands out the messages at these ascending offsets of a queue that is not blocked.

        `physical_offset` is that of the last message, -1: unknown.

        The batch's pop time is later than that of the batch before, so that no old handle fits the new batch.
        """
        queue, before = self._queues[0, queue_id], self.batches.get(queue_id)
        if not queue.next_offset <= offsets[0]:
            raise ValueError(f"offset {offsets[0]} is before {queue.next_offset}")
        info = next_batch(
            before,
            tuple(offsets),
            pop_time=max(pop_time, 0 if before is None else before.pop_time + 1),
            invisible_ms=invisible_ms,
            now_ms=pop_time,
            attempt_id=attempt_id,
        )
        self._note("order", act="pop", queue=queue_id, batch=_as_json(info), physical=physical_offset)
        return info

    def acknowledge(self, queue_id: int, offset: int, pop_time: int) -> bool:
        """Acknowledges one message of the batch of that pop time; False if the handle is not valid."""
        return bool(self.acknowledge_all(queue_id, [offset], pop_time))

    def acknowledge_all(self, queue_id: int, offsets: Iterable[int], pop_time: int) -> set[int]:
        """Acknowledges messages of the batch of that pop time. Returns the offsets whose handles are valid.

        The queue's next offset becomes the first one that is not acknowledged. A message whose invisible time
        has passed can be acknowledged until the queue is read again, as in the broker.
        """
        info = self.batches.get(queue_id)
        if info is None or info.pop_time != pop_time:
            return set()
        wanted = set(offsets)
        indexes = [index for index in self._indexes(queue_id) if info.offsets[index] in wanted]
        if indexes:
            self._note("order", act="ack", queue=queue_id, at=indexes)
        return {info.offsets[index] for index in indexes}

    def change_invisible(self, queue_id: int, offset: int, pop_time: int, next_visible_ms: int) -> bool:
        """Sets when one message of the batch is visible; False if the handle is not valid.

        The queue is blocked until all messages that are not acknowledged are visible.
        """
        if not self.is_in_flight(queue_id, offset, pop_time):
            return False
        self._note("order", act="visible", queue=queue_id, offset=offset, at=next_visible_ms)
        return True

    def take_over(self, batches: Mapping[int, OrderInfo | None]) -> None:
        """Sets the batches of these queues as a file has them; None: the queue has no batch."""
        for queue_id, info in batches.items():
            self._note("order", act="set", queue=queue_id, batch=None if info is None else _as_json(info))

    def forget(self, now_ms: int) -> None:
        """Drops the batches of queues that nobody popped for 24 hours, as the broker does."""
        old = [queue for queue, info in self.batches.items() if is_forgotten(info, now_ms)]
        self.take_over(dict.fromkeys(old))

    def note_mirrored(
        self, queue_ids: Iterable[int], before: Mapping[int, OrderInfo], after: Mapping[int, OrderInfo]
    ) -> None:
        """consumerOrderInfo.json has `before` or `after` for these queues: it is written now."""
        digests = [
            [queue_id, digest(before.get(queue_id)), digest(after.get(queue_id))] for queue_id in queue_ids
        ]
        self._note("order", act="mirror", queues=digests)

    def not_mirrored(self) -> list[int]:
        """The queues whose batch is not the one that consumerOrderInfo.json was last given."""
        known = self.batches.keys() | self.mirrored.keys()
        return sorted(
            queue for queue in known if digest(self.batches.get(queue)) != self.mirrored.get(queue, (0, 0))[1]
        )

    # ---- replay --------------------------------------------------------------------------------------------

    def apply(self, values: Mapping[str, Any]) -> None:
        """Applies a note."""
        act = values["act"]
        if act == "mode":
            self.is_on = values["on"]
        elif act == "mirror":
            for queue_id, before, now in values["queues"]:
                self.mirrored[queue_id] = (before, now)
        elif act == "state":
            self.is_on = values["on"]
            self.mirrored = {queue: (before, now) for queue, before, now in values["mirrored"]}
        else:
            self._apply_to_batch(act, values["queue"], values)

    def _apply_to_batch(self, act: str, queue_id: int, values: Mapping[str, Any]) -> None:
        if act in ("pop", "set"):
            self.batches.pop(queue_id, None)
            if values["batch"] is not None:
                info = self.batches[queue_id] = _from_json(values["batch"])
                self._queues.setdefault((0, queue_id), QueueState(max(_next_offset(info), 0)))
            if act == "pop":
                last = self.batches[queue_id].offsets[-1]
                self._totals["popped"] += len(self.batches[queue_id].offsets)
                if values["physical"] >= 0:
                    self._queues[0, queue_id].witness = WitnessEntry(last, values["physical"])
            return
        info = self.batches[queue_id]
        if act == "ack":
            info = self.batches[queue_id] = _with_acknowledged(info, values["at"])
            left, queue = self._indexes(queue_id), self._queues[0, queue_id]
            queue.next_offset = (
                info.offsets[left[0]] if left else max(queue.next_offset, info.offsets[-1] + 1)
            )
            self._totals["acked"] += len(values["at"])
        elif act == "visible":
            info = with_next_visible(info, values["offset"], info.pop_time, values["at"])
            self._totals["changed"] += 1
        else:
            raise ValueError(act)
        self.batches[queue_id] = info

    def bury(self, key: PointKey, bits: int) -> None:
        """Messages of a batch are dead letters now: acknowledged. Part of another change."""
        point = self.check_point(key)
        new = 0 if point is None else bits & point.whole & ~point.acked
        if new:
            self._apply_to_batch(
                "ack", key[1], {"at": [index for index in range(new.bit_length()) if new >> index & 1]}
            )

    def drop(self, queue_id: int) -> None:
        """The queue's offset was set: its batch does not count (clearBlock). Part of another change."""
        self.batches.pop(queue_id, None)

    def skip(self, queue_id: int) -> None:
        """Messages were passed over: no subscription matches them, or they are deleted. Part of a change."""
        batch = self.batches.get(queue_id)
        if batch is not None and not all(
            is_acknowledged(batch, index) for index in range(len(batch.offsets))
        ):
            self.drop(queue_id)

    def close(self) -> None:
        """consumerOrderInfo.json has the batches now. Part of another change."""
        self.batches.clear()
        self.mirrored.clear()
        self.is_on = False

    def snapshot(self, note: Callable[..., bytes]) -> bytes:
        """Records that rebuild the batches, behind those of the queues."""
        found = bytearray()
        for queue_id, info in self.batches.items():
            found += note("order", act="set", queue=queue_id, batch=_as_json(info))
        if self.is_on or self.mirrored:
            mirrored = [[queue, *digests] for queue, digests in self.mirrored.items()]
            found += note("order", act="state", on=self.is_on, mirrored=mirrored)
        return bytes(found)


def digest(info: OrderInfo | None) -> Digest:
    """A number that differs for different batches; 0 without a batch."""
    return 0 if info is None else 1 + zlib.crc32(repr(_as_json(info)).encode("utf-8", "backslashreplace"))


def _as_json(info: OrderInfo) -> list[Any]:
    """The batch for a note of the log; maps as sorted pairs, because keys of JSON are text."""
    maps = (info.consumed_count, info.next_visible_time)
    counts, times = (None if each is None else sorted(map(list, each.items())) for each in maps)
    return [
        list(info.offsets),
        info.pop_time,
        info.invisible_time,
        info.last_consume_timestamp,
        info.commit_offset_bit,
        info.attempt_id,
        counts,
        times,
    ]


def _from_json(values: Sequence[Any]) -> OrderInfo:
    offsets, pop_time, invisible_time, consumed_at, bits, attempt_id, counts, times = values
    return OrderInfo(
        tuple(offsets),
        pop_time,
        invisible_time,
        consumed_at,
        bits,
        attempt_id,
        None if counts is None else dict(counts),
        None if times is None else dict(times),
    )
