"""The records of a broker's pop: check points and acks, as JSON in the bodies of messages (spec 8.5, 11.5).

A broker writes a check point (tag `ck`) for each hand-out of up to 32 messages, and an ack for each message
(tag `ack`) or for several (tag `bAck`). PopReviveService matches them by their keys. PopCheckPoint, AckMsg
and BatchAckMsg have the members; fastjson writes them in the order of the alphabet, and leaves out null.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from store_format.errors import CorruptStoreError
from store_format.java.fastjson import loads
from store_format.metadata.encode import dumps

CK_TAG, ACK_TAG, BATCH_ACK_TAG = "ck", "ack", "bAck"  # PopAckConstants
CK_LEAD_MS = 1000  # a check point is delivered before its acks (PopAckConstants.ackTimeInterval)
MESSAGES_MAX = 32  # of a check point: its bit map is a Java int

_INT_MIN, _INT_MAX, _LONG_MAX = -(1 << 31), (1 << 31) - 1, (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class BrokerCheckPoint:
    """One hand-out: `count` messages of a queue from offset `start` on (PopCheckPoint).

    Bit k of `acked` marks message k as acknowledged. `diffs` are the offsets minus `start`; None: the offsets
    are consecutive. `put_times`: how often the broker has stored the check point again. `suspend`: the
    messages are delivered again without a higher reconsumeTimes; None up to 5.4, which do not write it.
    """

    topic: str
    group: str
    queue_id: int
    start: int
    count: int
    pop_time: int
    invisible_ms: int
    broker_name: str | None
    acked: int = 0
    diffs: tuple[int, ...] | None = None
    revive_offset: int = 0
    put_times: str | None = None
    suspend: bool | None = None

    @property
    def visible_at(self) -> int:
        """When the messages that are not acknowledged can be delivered again, in ms."""
        return self.pop_time + self.invisible_ms

    @property
    def offsets(self) -> tuple[int, ...]:
        """The queue offset of each message (ackOffsetByIndex)."""
        if not self.diffs:
            return tuple(range(self.start, self.start + self.count))
        return tuple(self.start + diff for diff in self.diffs[: self.count])

    @property
    def unacked(self) -> tuple[int, ...]:
        """The queue offsets of the messages that are not acknowledged."""
        return tuple(offset for i, offset in enumerate(self.offsets) if not self.acked >> i & 1)

    @property
    def unique_key(self) -> str:
        """UNIQ_KEY of the message (PopMessageProcessor.genCkUniqueId)."""
        return _unique_key(self, self.start, CK_TAG)

    def position(self, offset: int) -> int:
        """The bit of the message at this queue offset; -1 if the hand-out does not have it (indexOfAck)."""
        return self.offsets.index(offset) if offset in self.offsets else -1

    def with_acks(self, offsets: Iterable[int]) -> BrokerCheckPoint:
        """The check point with these messages acknowledged. Offsets of other messages do nothing."""
        acked = self.acked
        for offset in offsets:
            position = self.position(offset)
            acked |= 1 << position if position >= 0 else 0
        return replace(self, acked=acked)

    def to_json(self) -> bytes:
        """The body of the message, byte for byte as the broker writes it.

        >>> BrokerCheckPoint("T", "g", 2, 100, 2, 1000, 500, "a", diffs=(0, 3)).to_json()
        b'{"bm":0,"bn":"a","c":"g","d":[0,3],"it":500,"n":2,"pt":1000,"q":2,"reviveTime":1500,"ro":0,"so":100,"t":"T"}'
        """
        return _to_json(
            bm=self.acked - (1 << 32) if self.acked > _INT_MAX else self.acked,
            bn=self.broker_name,
            c=self.group,
            d=None if self.diffs is None else list(self.diffs),
            it=self.invisible_ms,
            n=self.count,
            pt=self.pop_time,
            q=self.queue_id,
            reviveTime=self.visible_at,
            ro=self.revive_offset,
            rp=self.put_times,
            so=self.start,
            sp=self.suspend,
            t=self.topic,
        )


@dataclass(frozen=True, slots=True)
class BrokerAck:
    """The acknowledgement of messages of the hand-out from `start` at `pop_time` (AckMsg, BatchAckMsg).

    `offsets` is None for one message, at `offset`. A batch has its messages in `offsets`, and `offset` is -1
    from AckMessageProcessor and 0 from PopBufferMergeService, which leaves out the name of the broker too.
    """

    topic: str
    group: str
    queue_id: int
    start: int
    pop_time: int
    broker_name: str | None
    offset: int
    offsets: tuple[int, ...] | None = None

    @property
    def acked(self) -> tuple[int, ...]:
        """The queue offsets of the acknowledged messages."""
        return (self.offset,) if self.offsets is None else self.offsets

    @property
    def tag(self) -> str:
        return ACK_TAG if self.offsets is None else BATCH_ACK_TAG

    @property
    def unique_key(self) -> str:
        """UNIQ_KEY of the message, of a batch too (PopMessageProcessor.genAckUniqueId)."""
        return _unique_key(self, self.offset, ACK_TAG)

    def to_json(self) -> bytes:
        """The body of the message, byte for byte as the broker writes it."""
        return _to_json(
            ao=self.offset,
            aol=None if self.offsets is None else list(self.offsets),
            bn=self.broker_name,
            c=self.group,
            pt=self.pop_time,
            q=self.queue_id,
            so=self.start,
            t=self.topic,
        )


BrokerRecord: TypeAlias = BrokerCheckPoint | BrokerAck


def merge_key(record: BrokerRecord, broker_name: str) -> tuple[str, str, int, int, int, str]:
    """What a check point and its acks have in common; `broker_name` is that of a record without a name.

    PopReviveService joins the parts to one text, in which 1 and 23 are as 12 and 3; the tuple keeps them.
    """
    return (
        record.topic,
        record.group,
        record.queue_id,
        record.start,
        record.pop_time,
        record.broker_name or broker_name,
    )


def parse_record(tag: str | None, body: bytes, place: str) -> BrokerRecord:
    """The record in the body of a message with this tag; `place` names the message in errors.

    Raises CorruptStoreError for another tag, for text that is no JSON object, and for members that no broker
    writes: a wrong type, a negative offset, more than 32 messages, fewer differences than messages.
    """
    if tag not in (CK_TAG, ACK_TAG, BATCH_ACK_TAG):
        raise CorruptStoreError(place, 0, "the tag ck, ack or bAck", repr(tag))
    value = loads(body, place)
    if not isinstance(value, dict):
        raise CorruptStoreError(place, 0, "a JSON object", type(value).__name__)
    members = _Members(value, place)
    return members.check_point() if tag == CK_TAG else members.ack(is_batch=tag == BATCH_ACK_TAG)


class _Members:
    """The members of one record. An absent number is 0, as in Java; only acks have long names."""

    def __init__(self, value: dict[str, Any], place: str) -> None:  # Any: JSON
        self.value, self.place = value, place

    def check_point(self) -> BrokerCheckPoint:
        count = self.number(("n",), 0, MESSAGES_MAX)
        start = self.number(("so",))
        diffs = self.numbers(("d",), _INT_MAX)
        if diffs and (len(diffs) < count or any(a >= b for a, b in itertools.pairwise(diffs))):
            self.fail("d", f"at least {count} rising numbers", diffs)
        if start + (max(diffs) if diffs else count) > _LONG_MAX:
            self.fail("so", "an offset that fits a long", start)
        pop_time, invisible_ms = self.number(("pt",)), self.number(("it",))
        if pop_time + invisible_ms > _LONG_MAX:
            self.fail("it", "a time that fits a long", invisible_ms)
        return BrokerCheckPoint(
            topic=self.name(("t",)),
            group=self.name(("c",)),
            queue_id=self.number(("q",), 0, _INT_MAX),
            start=start,
            count=count,
            pop_time=pop_time,
            invisible_ms=invisible_ms,
            broker_name=self.text(("bn",)),
            acked=self.number(("bm",), _INT_MIN, _INT_MAX) & 0xFFFFFFFF,
            diffs=diffs,
            revive_offset=self.number(("ro",), -1),
            put_times=self.text(("rp",)),
            suspend=self.flag("sp"),
        )

    def ack(self, *, is_batch: bool) -> BrokerAck:
        return BrokerAck(
            topic=self.name(("t", "topic")),
            group=self.name(("c", "consumerGroup")),
            queue_id=self.number(("q", "queueId"), 0, _INT_MAX),
            start=self.number(("so", "startOffset")),
            pop_time=self.number(("pt", "popTime")),
            broker_name=self.text(("bn", "brokerName")),
            offset=self.number(("ao", "ackOffset"), -1 if is_batch else 0),
            offsets=(self.numbers(("aol", "ackOffsetList"), _LONG_MAX) or ()) if is_batch else None,
        )

    def get(self, names: tuple[str, ...]) -> Any:  # Any: JSON
        return next((self.value[name] for name in names if self.value.get(name) is not None), None)

    def number(self, names: tuple[str, ...], low: int = 0, high: int = _LONG_MAX) -> int:
        found = self.get(names)
        if found is None:
            return 0
        if type(found) is not int or not low <= found <= high:
            self.fail(names[0], f"a number from {low} to {high}", found)
        return int(found)

    def numbers(self, names: tuple[str, ...], high: int) -> tuple[int, ...] | None:
        found = self.get(names)
        if found is None:
            return None
        if not isinstance(found, list) or any(type(n) is not int or not 0 <= n <= high for n in found):
            self.fail(names[0], f"a list of numbers from 0 to {high}", found)
        return tuple(found)

    def text(self, names: tuple[str, ...]) -> str | None:
        found = self.get(names)
        if found is not None and not isinstance(found, str):
            self.fail(names[0], "a text", found)
        return found or None

    def name(self, names: tuple[str, ...]) -> str:
        found = self.text(names)
        if found is None:
            self.fail(names[0], "a name", found)
        return str(found)

    def flag(self, name: str) -> bool | None:
        found = self.get((name,))
        if found is not None and not isinstance(found, bool):
            self.fail(name, "true or false", found)
        return None if found is None else bool(found)

    def fail(self, name: str, expected: str, found: object) -> None:
        raise CorruptStoreError(self.place, 0, f"{expected} as {name}", repr(found)[:100])


def _unique_key(record: BrokerRecord, offset: int, tag: str) -> str:
    parts = (record.topic, record.queue_id, offset, record.group, record.pop_time, record.broker_name, tag)
    return "@".join(map(str, parts))


def _to_json(**members: Any) -> bytes:  # Any: JSON
    return dumps({name: value for name, value in members.items() if value is not None}, pretty=False)
