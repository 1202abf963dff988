"""What a broker's pop groups have in flight: messages that were handed out and are not acknowledged.

The broker keeps no list. It stores each check point and each ack as a timer message; the timer delivers them
to the revive topic when the invisible time has passed, and PopReviveService reads them there (spec 11.4 to
11.6). So what is in flight follows from the records that the revive group has not processed yet, and from
those that still wait in the timer.

The records are JSON in the bodies of messages (spec 8.5, 11.5). A broker writes a check point (tag `ck`) for
each hand-out of up to 32 messages, and an ack for each message (tag `ack`) or for several (tag `bAck`).
PopReviveService matches them by their keys. PopCheckPoint, AckMsg and BatchAckMsg have the members; fastjson
writes them in the order of the alphabet, and leaves out null.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from store_format.bookkeeping.settings import broker_conf_of
from store_format.errors import CorruptStoreError, UnsupportedFormatError
from store_format.java.fastjson import loads
from store_format.java.numbers import parse_long
from store_format.java.text import java_hash
from store_format.message.columns import DecodeOptions
from store_format.metadata.group_offsets import read_committed, refuse_unreadable_offsets
from store_format.metadata.read import BrokerConf
from store_format.metadata.timer import TimerCheck, TimerState, with_wheel_precision
from store_format.metadata.values import dumps
from store_format.names import (
    REAL_QID,
    REAL_TOPIC,
    REVIVE_GROUP,
    REVIVE_PREFIX,
    TAGS,
    TIMER_OUT_MS,
    TIMER_TOPIC,
    normal_topic,
)
from store_format.opened.store import Opened
from store_format.read.store import Queue, Store, read_pieces
from store_format.read.stored_messages import read_stored
from store_format.read.tolerance import Tolerance

_log = logging.getLogger(__name__)

_Ints = NDArray[np.int64]

_COLUMNS = ("queueId", "queueOffset", "physicalOffset", "body", TAGS, REAL_TOPIC, REAL_QID, TIMER_OUT_MS)
_MESSAGES_PER_READ = 1 << 13
_TIME_MAX = 1 << 62
_REVIVE_QUEUES = range(1 << 10)  # a record elsewhere is not a broker's

CK_TAG, _ACK_TAG, _BATCH_ACK_TAG = "ck", "ack", "bAck"  # PopAckConstants
CK_LEAD_MS = 1000  # a check point is delivered before its acks (PopAckConstants.ackTimeInterval)
MESSAGES_MAX = 32  # of a check point: its bit map is a Java int

_INT_MIN, _INT_MAX, _LONG_MAX = -(1 << 31), (1 << 31) - 1, (1 << 63) - 1


# ---- the records -------------------------------------------------------------------------------------------


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
        return _ACK_TAG if self.offsets is None else _BATCH_ACK_TAG

    @property
    def unique_key(self) -> str:
        """UNIQ_KEY of the message, of a batch too (PopMessageProcessor.genAckUniqueId)."""
        return _unique_key(self, self.offset, _ACK_TAG)

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


_BrokerRecord: TypeAlias = BrokerCheckPoint | BrokerAck


def merge_key(record: _BrokerRecord, broker_name: str) -> tuple[str, str, int, int, int, str]:
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


def parse_record(tag: str | None, body: bytes, place: str) -> _BrokerRecord:
    """The record in the body of a message with this tag; `place` names the message in errors.

    Raises CorruptStoreError for another tag, for text that is no JSON object, and for members that no broker
    writes: a wrong type, a negative offset, more than 32 messages, fewer differences than messages.
    """
    if tag not in (CK_TAG, _ACK_TAG, _BATCH_ACK_TAG):
        raise CorruptStoreError(place, 0, "the tag ck, ack or bAck", repr(tag))
    value = loads(body, place)
    if not isinstance(value, dict):
        raise CorruptStoreError(place, 0, "a JSON object", type(value).__name__)
    members = _Members(value, place)
    return members.check_point() if tag == CK_TAG else members.ack(is_batch=tag == _BATCH_ACK_TAG)


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


def _unique_key(record: _BrokerRecord, offset: int, tag: str) -> str:
    parts = (record.topic, record.queue_id, offset, record.group, record.pop_time, record.broker_name, tag)
    return "@".join(map(str, parts))


def _to_json(**members: Any) -> bytes:  # Any: JSON
    return dumps({name: value for name, value in members.items() if value is not None}, pretty=False)


# ---- what is in flight -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BrokerInFlight:
    """A check point of a broker with messages in flight; `record` has all acks that were found.

    `topic` is the topic that was popped; `flag` tells whether the queue is one of `topic` (0) or of the
    group's pop retry topic for it (1, or 2 for version 2). `revive_topic` and `revive_queue_id` are where the
    record is delivered, and where the acks of its messages must go. `physical_offset` is the place of the
    record in the commitlog. `is_waiting`: the timer has not delivered the record yet.
    """

    record: BrokerCheckPoint
    topic: str
    flag: int
    revive_topic: str
    revive_queue_id: int
    physical_offset: int
    is_waiting: bool = False

    @property
    def group(self) -> str:
        return self.record.group

    @property
    def queue_id(self) -> int:
        return self.record.queue_id

    @property
    def unacked(self) -> tuple[int, ...]:
        """The queue offsets of the messages in flight."""
        return self.record.unacked

    @property
    def visible_at(self) -> int:
        """From when the broker delivers the messages again, in ms."""
        return self.record.visible_at


def refuse_kv_service(opened: Opened, conf: BrokerConf) -> None:
    """Raises UnsupportedFormatError if the broker keeps pop's state in RocksDB (popConsumerKVServiceEnable).

    Without the setting in broker.conf, a database in `kvStore/` decides.
    """
    where = "broker.conf has popConsumerKVServiceEnable=true"
    found = conf.pop_consumer_kv_service_enable
    if "popConsumerKVServiceEnable" not in conf.given:
        found = "CURRENT" in opened.files.names(f"{opened.path}/kvStore", missing_ok=True)
        where = "found kvStore/CURRENT"
    if found:
        raise UnsupportedFormatError(
            f"{opened}: cannot read what is in flight, which the broker keeps in RocksDB: {where}. Let the "
            "consumers acknowledge everything, stop the broker, and set popConsumerKVServiceEnable=false in "
            "broker.conf"
        )


def read_broker_in_flight(store: Store, conf: BrokerConf | None = None) -> list[BrokerInFlight]:
    """The check points with messages in flight, by revive queue and in the order of their records.

    Reads what the timer has not delivered and what the revive group has not processed. A record that cannot
    be decoded is skipped with a warning. `conf` is the broker's broker.conf, by default that of the store.

    Raises UnsupportedFormatError if RocksDB has the state of pop or of the timer, or offsets that cannot be
    read.
    """
    conf = with_wheel_precision(store.opened, conf or broker_conf_of(store.opened))
    refuse_kv_service(store.opened, conf)
    refuse_unreadable_offsets(store.opened)
    queues = store.queues(lambda topic: topic.startswith(REVIVE_PREFIX))
    topics = {queue.topic for queue in queues}
    topics |= {topic for topic in store.configured_topics() if topic.startswith(REVIVE_PREFIX)}
    if not topics:  # no broker has had pop here
        return []
    found = _Merge(store.broker_name)
    for batch in _delivered(store, queues):
        found.add_all(batch)
    for batch in _waiting(store, conf, topics):
        found.add_all(batch)
    return found.in_flight()


@dataclass(frozen=True, slots=True)
class _RecordPlace:
    """Where a record of pop is: its queue of the revive topic, and the message that has the record."""

    revive_topic: str
    revive_queue_id: int
    text: str
    physical_offset: int
    is_waiting: bool = False


_Batch = list[tuple[_RecordPlace, str | None, bytes]]


class _Merge:
    """Check points by revive queue and key, with their acks, as PopReviveService collects them."""

    def __init__(self, broker_name: str) -> None:
        self.broker_name = broker_name
        self.check_points: dict[tuple[object, ...], tuple[_RecordPlace, BrokerCheckPoint]] = {}
        self.acks: list[tuple[tuple[object, ...], BrokerAck]] = []

    def add_all(self, batch: _Batch) -> None:
        for place, tag, body in batch:
            try:
                record = parse_record(tag, body, place.text)
            except CorruptStoreError as error:
                _log.warning("a record of pop is skipped: %s", error)
                continue
            key = (place.revive_topic, place.revive_queue_id, *merge_key(record, self.broker_name))
            if isinstance(record, BrokerAck):
                self.acks.append((key, record))
            else:
                self.check_points.setdefault(key, (place, record))

    def in_flight(self) -> list[BrokerInFlight]:
        acked: dict[tuple[object, ...], list[int]] = {}
        for key, ack in self.acks:
            acked.setdefault(key, []).extend(ack.acked)
        found = []
        for key, (place, record) in self.check_points.items():
            merged = record.with_acks(acked.get(key, ()))
            if merged.unacked:
                topic, flag = normal_topic(record.topic, record.group)
                found.append(
                    BrokerInFlight(
                        merged,
                        topic,
                        flag,
                        place.revive_topic,
                        place.revive_queue_id,
                        place.physical_offset,
                        place.is_waiting,
                    )
                )
        return sorted(found, key=lambda each: (each.revive_topic, each.revive_queue_id))


def _delivered(store: Store, queues: Sequence[Queue]) -> Iterator[_Batch]:
    """The records in the revive topic behind the offsets of the revive group."""
    committed = read_committed(store.opened).offsets
    pieces = [
        (queue, queue.piece(committed.get((REVIVE_GROUP, queue.topic), {}).get(queue.queue_id)))
        for queue in queues
    ]
    for queue, piece in pieces:
        for rows in _rows(queue, piece.start):
            yield [
                (_place(queue.topic, queue.queue_id, queue, row), row[TAGS], row["body"])
                for row in rows.to_pylist()
            ]


def _waiting(store: Store, conf: BrokerConf, topics: Collection[str]) -> Iterator[_Batch]:
    """The records that the timer has not delivered: in the wheel, and not yet put into the wheel."""
    queue = next(iter(store.queues(TIMER_TOPIC.__eq__)), None)
    if queue is None:
        return
    if conf.timer_rocksdb_enable:
        raise UnsupportedFormatError(
            f"{store.path}: cannot read which check points of pop wait in the timer's RocksDB "
            "(timerRocksDBEnable=true); start the store's broker and let it deliver them"
        )
    check = TimerCheck.read(store.opened)
    read_ms = check.last_read_time if check is not None else 0
    enqueued = check.last_timer_queue_offset if check is not None else queue.min_offset
    start = enqueued
    try:
        yield from _in_wheel(store, conf, read_ms, queue, topics)
    except CorruptStoreError as error:
        _log.warning("%s: the timer's files are not read, the whole timer topic is: %s", store.path, error)
        start = queue.min_offset
    for rows in _rows(queue, start):
        yield [
            each
            for row in rows.to_pylist()
            if row["queueOffset"] >= enqueued or (parse_long(row[TIMER_OUT_MS]) or 0) >= read_ms
            for each in _record_of(queue, row[REAL_TOPIC], row[REAL_QID], row)
        ]


def _rows(queue: Queue, start: int) -> Iterator[pa.RecordBatch]:
    tolerance = Tolerance("DROPMALFORMED", fail_on_data_loss=False)
    yield from read_pieces([(queue, queue.piece(start))], DecodeOptions(_COLUMNS, verify_crc=True), tolerance)


def _record_of(
    queue: Queue, topic: str | None, queue_id: str | None, row: dict[str, object]
) -> Iterator[tuple[_RecordPlace, str | None, bytes]]:
    """The record of a timer message; nothing for a message of another topic than a revive topic."""
    real_id = parse_long(queue_id)
    if real_id is None:
        return
    if topic is not None and topic.startswith(REVIVE_PREFIX) and real_id in _REVIVE_QUEUES:
        tag, body = row[TAGS], row["body"]
        assert isinstance(body, bytes)
        yield _place(topic, real_id, queue, row), None if tag is None else str(tag), body


def _place(topic: str, queue_id: int, queue: Queue, row: dict[str, object]) -> _RecordPlace:
    path = f"{queue.store.path}: {queue.topic}-{queue.queue_id}, message {row['queueOffset']}"
    physical = row["physicalOffset"]
    assert isinstance(physical, int)
    return _RecordPlace(topic, queue_id, path, physical, is_waiting=queue.topic == TIMER_TOPIC)


# ---- the timer wheel ---------------------------------------------------------------------------------------


def _in_wheel(
    store: Store, conf: BrokerConf, read_ms: int, queue: Queue, topics: Collection[str]
) -> Iterator[_Batch]:
    """The records whose slots of the wheel have not fired.

    Reads the stretches of the timerlog in which these slots have units, and of the messages only those for
    revive topics, by the hash of the topic in each unit.
    """
    state = TimerState.recover(store.opened, conf.timer_precision_ms, conf.timer_log_file_size)
    slots = state.slots_between(read_ms, _TIME_MAX)
    times = np.array([slot.time for slot in slots], np.int64)
    hashes = np.array([java_hash(name) for name in sorted(topics)], np.int64)
    for start, stop in _stretches([(slot.first, slot.last) for slot in slots if slot.last >= 0]):
        for first, units in state.log.scan(start):
            positions = first + units.itemsize * np.arange(len(units), dtype=np.int64)
            in_slot = (units["write_timestamp"] + units["delayed_time"]) // conf.timer_precision_ms
            kept = (positions <= stop) & np.isin(in_slot, times) & np.isin(units["topic_hash"], hashes)
            yield from _messages_of(store, queue, units[kept])
            if len(units) and int(positions[-1]) >= stop:
                break


def _stretches(ranges: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """The ranges of positions, both ends included, without overlaps.

    >>> _stretches([(0, 52), (520, 520), (52, 104)])
    [(0, 104), (520, 520)]
    """
    found: list[tuple[int, int]] = []
    for start, stop in sorted((max(start, 0), stop) for start, stop in ranges):
        if found and start <= found[-1][1]:
            found[-1] = found[-1][0], max(stop, found[-1][1])
        else:
            found.append((start, stop))
    return found


def _messages_of(store: Store, queue: Queue, units: NDArray[np.void]) -> Iterator[_Batch]:
    for low in range(0, len(units), _MESSAGES_PER_READ):
        part = units[low : low + _MESSAGES_PER_READ]
        messages, _, damaged = read_stored(
            store.log, part["physical_offset"].astype(np.int64), part["message_size"].astype(np.int64)
        )
        for each in damaged:
            _log.warning("%s: a timer message is skipped: %s", store.path, each.error)
        tags, topics, queue_ids = messages.properties(TAGS, REAL_TOPIC, REAL_QID)
        names = TAGS, "body", "queueOffset", "physicalOffset", REAL_TOPIC, REAL_QID
        columns = (
            tags.to_pylist(), messages.messages.body.to_pylist(), messages.queue_offsets.tolist(),
            messages.physical_offsets.tolist(), topics.to_pylist(), queue_ids.to_pylist(),
        )  # fmt: skip
        rows = (dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True))
        yield [each for row in rows for each in _record_of(queue, row[REAL_TOPIC], row[REAL_QID], row)]
