"""What a broker's pop groups have in flight: messages that were handed out and are not acknowledged.

The broker keeps no list. It stores each check point and each ack as a timer message; the timer delivers them
to the revive topic when the invisible time has passed, and PopReviveService reads them there (spec 11.4 to
11.6). So what is in flight follows from the records that the revive group has not processed yet, and from
those that still wait in the timer.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from store_format.bookkeeping.settings import broker_conf_of
from store_format.errors import CorruptStoreError, UnsupportedFormatError
from store_format.files.read import entry_names
from store_format.java.hashes import java_hash
from store_format.java.numbers import parse_long
from store_format.message.columns import DecodeOptions
from store_format.metadata.broker_conf import BrokerConf
from store_format.metadata.group_offsets import read_committed, refuse_foreign_offsets
from store_format.metadata.read import config_path
from store_format.metadata.timer import read_timer_check, recover_timer, with_wheel_precision
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
from store_format.pop.broker_records import BrokerAck, BrokerCheckPoint, merge_key, parse_record
from store_format.read.store import Queue, Store, read_pieces
from store_format.read.stored_messages import read_stored
from store_format.read.tolerance import Tolerance

_log = logging.getLogger(__name__)

_Ints = NDArray[np.int64]

_COLUMNS = ("queueId", "queueOffset", "physicalOffset", "body", TAGS, REAL_TOPIC, REAL_QID, TIMER_OUT_MS)
_MESSAGES_PER_READ = 1 << 13
_TIME_MAX = 1 << 62
_REVIVE_QUEUES = range(1 << 10)  # a record elsewhere is not a broker's


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


def refuse_kv_service(root: str, conf: BrokerConf) -> None:
    """Raises UnsupportedFormatError if the broker keeps pop's state in RocksDB (popConsumerKVServiceEnable).

    Without the setting in broker.conf, a database in `kvStore/` decides.
    """
    where = "broker.conf has popConsumerKVServiceEnable=true"
    found = conf.pop_consumer_kv_service_enable
    if "popConsumerKVServiceEnable" not in conf.given:
        found, where = "CURRENT" in entry_names(f"{root}/kvStore", missing_ok=True), "found kvStore/CURRENT"
    if found:
        raise UnsupportedFormatError(
            f"{root}: cannot read what is in flight, which the broker keeps in RocksDB: {where}. Let the "
            "consumers acknowledge everything, stop the broker, and set popConsumerKVServiceEnable=false in "
            "broker.conf"
        )


def read_broker_in_flight(store: Store, conf: BrokerConf | None = None) -> list[BrokerInFlight]:
    """The check points with messages in flight, by revive queue and in the order of their records.

    Reads what the timer has not delivered and what the revive group has not processed. A record that cannot
    be decoded is skipped with a warning. `conf` is the broker's broker.conf, by default that of the store.

    Raises UnsupportedFormatError if RocksDB has the state of pop, of the timer or of the offsets.
    """
    conf = with_wheel_precision(store.path, conf or broker_conf_of(store.path))
    refuse_kv_service(store.path, conf)
    refuse_foreign_offsets(store.path)
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
    committed = read_committed(store.path).offsets
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
    check = read_timer_check(config_path(store.path, "timercheck"))
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
    state = recover_timer(store.path, conf.timer_precision_ms, conf.timer_log_file_size)
    slots = state.slots_between(read_ms, _TIME_MAX)
    times = np.array([slot.time for slot in slots], np.int64)
    hashes = np.array([java_hash(name) for name in sorted(topics)], np.int64)
    stretches = _stretches([(slot.first, slot.last) for slot in slots if slot.last >= 0])
    for start, stop in stretches:
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
