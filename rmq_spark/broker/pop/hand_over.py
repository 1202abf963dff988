"""Handing over to a broker what is in flight here, and taking over what is in flight there.

Handing over writes check points that the broker revives. It happens when the last consumer of a group closes,
under the store's lock, in this order:

1. the group in subscriptionGroup.json: a broker without autoCreateSubscriptionGroup does not revive others;
2. one commit with a check point for each 32 messages in flight, and with acks for the check points that were
   taken over from a broker and are acknowledged since;
3. these records in the timer's wheel, so that a broker that starts late delivers each check point before its
   acks;
4. the next offsets in consumerOffset.json;
5. the note in the in-flight log that it is closed.

Until step 4 the file has the lowest offsets that are not acknowledged. So a kill between two steps leads to
messages that are delivered again, and loses none; who opens the log next finds the records of step 2.

The records are the messages in which a broker keeps what pop has in flight: check points and acks (spec 8.5,
11.5). Each is a timer message for the revive topic. A check point is delivered a second before its messages
become visible, its acks when they do (PopMessageProcessor.buildCkMsg, AckMessageProcessor.appendAck). One
whose time has passed is stored in the revive topic at once (HookUtils.transformTimerMessage).

Taking over makes a broker's check points to check points of the in-flight log, with their visible times, so
that its messages come back here when their time is past. The log keeps where each is from: the broker needs
acks for them when it goes on. What a consumer of this project had gets its owner back.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rmq_spark.consume.group.offset_mirror import PopOffsetMirror
from rmq_spark.produce.columns import Host
from rmq_spark.write.timer_wheel import put_in_wheel
from store_format.bookkeeping.ledger import ServiceTurn
from store_format.bookkeeping.settings import broker_conf_of
from store_format.commit.session import WriteSession
from store_format.commit.unsupported import StoreRefusals
from store_format.display.text import shown
from store_format.errors import StoreError, UnsupportedFormatError
from store_format.message import sysflag
from store_format.message.encode import MessageColumns
from store_format.message.property_encoder import encode_property_columns
from store_format.metadata.group_offsets import (
    is_broker_49,
    put_subscription_group,
    read_committed,
    read_group_offsets,
)
from store_format.metadata.read import BrokerConf, read_topics
from store_format.metadata.timer import with_wheel_precision
from store_format.names import (
    REAL_QID,
    REAL_TOPIC,
    REVIVE_GROUP,
    REVIVE_PREFIX,
    TAGS,
    TIMER_DELIVER_MS,
    TIMER_OUT_MS,
    TIMER_TOPIC,
    UNIQ_KEY,
    QueueKey,
)
from store_format.opened.store import Opened
from store_format.pop.broker_in_flight import (
    CK_LEAD_MS,
    CK_TAG,
    MESSAGES_MAX,
    BrokerAck,
    BrokerCheckPoint,
    BrokerInFlight,
    read_broker_in_flight,
    refuse_kv_service,
)
from store_format.pop.log import InFlightLog, PopName, is_point_deleted, popped_entry
from store_format.pop.records import CheckPoint, PointKey
from store_format.pop.state import PopQueue, PopState
from store_format.read.store import Store
from store_format.read.stored_messages import read_stored_slice

_log = logging.getLogger(__name__)

_REPLY_SUFFIX = "_REPLY_TOPIC"  # <cluster>_REPLY_TOPIC, which each broker since 4.6 adds to topics.json
_ANY_HOST: Host = (bytes((127, 0, 0, 1)), 0)


# ---- handing over ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class HandedOver:
    """What the broker's records got: messages in flight, check points and acks for them."""

    in_flight: int
    check_points: int
    acks: int


def hand_over(
    name: PopName, log: InFlightLog, mirror: PopOffsetMirror, session: WriteSession, now_ms: int
) -> HandedOver | None:
    """Gives what is in flight to the broker that is started next, and closes the in-flight log.

    For the last consumer, when no revive is under way. Returns None, with a warning, if no broker of this
    store could revive the messages: then consumerOffset.json keeps the lowest offsets that are not
    acknowledged, and a broker delivers from there on.
    """
    mirror.compare(mirror.read())  # what somebody has moved is not in flight any more
    conf = with_wheel_precision(name.opened, broker_conf_of(name.opened, session.options.conf))
    store = session.store()
    points = log.run(lambda state: [*state.check_points(), *state.settled.values()])
    was_taken = any(each.origin is not None for each in points)
    found = _broker_points(name, store, conf) if was_taken else {}
    revive_topic = revive_topic_of(name.opened.path, conf)
    revive_queues = _revive_queues(name.opened.path, revive_topic, conf)
    own = list(_own_records(name, points, revive_queues, conf.broker_name or store.broker_name))
    acks = list(_acks(name, points, found))
    if own or was_taken:
        try:
            _refuse(name.opened.path, conf)
        except StoreError as error:
            _log.warning(
                "%s; group %s, topic %s: the messages in flight and those behind are delivered again",
                error, name.group, shown(name.topic),
            )  # fmt: skip
            return None
        put_subscription_group(name.opened, name.group, timestamp=now_ms, files=session.files)
    if own or acks:
        messages = pop_record_messages(
            [*own, *acks],
            revive_topic,
            now_ms=now_ms,
            precision_ms=conf.timer_precision_ms,
            broker_host=_broker_host(store, [*own, *acks]),
        )
        session.append(
            messages,
            turn=_turn(name, session),
            new_topics={revive_topic: max(conf.revive_queue_num, 1), TIMER_TOPIC: 1},
        )
    if was_taken and not conf.timer_stop_enqueue:  # also for acks of a hand-over that was broken off
        put_in_wheel(session, conf, now_ms)
    mirror.compare(mirror.read(), is_next=True)
    log.run(PopState.close)
    return HandedOver(sum(each.left for each in points), len(own), len(acks))


def revive_topic_of(root: str, conf: BrokerConf) -> str:
    """The revive topic of the store's broker, which is named after its cluster.

    The cluster is `brokerClusterName` of broker.conf, else that of the topics that a broker has made for
    itself, else DefaultCluster, as in a broker.
    """
    topics: list[str] = [*(read_topics(Opened(root)) or ())]
    if "brokerClusterName" not in conf.given:
        clusters = {each.removeprefix(REVIVE_PREFIX) for each in topics if each.startswith(REVIVE_PREFIX)}
        if len(clusters) != 1:
            replies = {each.removesuffix(_REPLY_SUFFIX) for each in topics if each.endswith(_REPLY_SUFFIX)}
            clusters = clusters & replies or {each for each in replies if each in topics}
        if len(clusters) == 1:
            return REVIVE_PREFIX + clusters.pop()
    return REVIVE_PREFIX + conf.broker_cluster_name


def _revive_queues(root: str, revive_topic: str, conf: BrokerConf) -> list[int]:
    """The queues of the revive topic that the broker reads; what is in another queue is lost.

    They follow from reviveQueueNum in broker.conf, else from the offsets that the revive group has committed.
    If neither is known, it is queue 0, which every broker reads.
    """
    if "reviveQueueNum" in conf.given:
        return list(range(max(conf.revive_queue_num, 1)))
    return sorted(read_committed(Opened(root)).offsets.get((REVIVE_GROUP, revive_topic), {})) or [0]


# ---- records -----------------------------------------------------------------------------------------------


def _broker_points(name: PopName, store: Store, conf: BrokerConf) -> dict[PointKey, BrokerInFlight]:
    """What the broker's records have in flight of this group and topic, by the key in the in-flight log."""
    return {
        (each.flag, each.queue_id, each.record.start, each.record.pop_time): each
        for each in read_broker_in_flight(store, conf)
        if (each.group, each.topic) == (name.group, name.topic)
    }


def _own_records(
    name: PopName, points: list[CheckPoint], revive_queues: list[int], broker_name: str
) -> Iterator[PopRecord]:
    """Check points for what was handed out here; the revive queues take turns, as in a broker."""
    own = [each for point in points if point.origin is None for each in _split(name, point, broker_name)]
    yield from (
        PopRecord.of(record, revive_queues[number % len(revive_queues)]) for number, record in enumerate(own)
    )


def _acks(
    name: PopName, points: list[CheckPoint], found: Mapping[PointKey, BrokerInFlight]
) -> Iterator[PopRecord]:
    """Acks for what a broker had handed out and still has in flight."""
    for point in points:
        there = found.get(point.key)
        bits = 0 if there is None else point.acked & ~there.record.acked
        if point.origin is None or there is None or not bits:
            continue
        broker, revive_queue_id = point.origin
        acked = tuple(offset for i, offset in enumerate(point.offsets) if bits >> i & 1)
        ack = BrokerAck(
            name.topic_of(point.flag), name.group, point.queue_id, point.start, point.pop_time,
            broker or None, acked[0] if len(acked) == 1 else -1, None if len(acked) == 1 else acked,
        )  # fmt: skip
        yield PopRecord(ack, revive_queue_id, there.visible_at, must_wait=there.is_waiting)


def _split(name: PopName, point: CheckPoint, broker_name: str) -> Iterator[BrokerCheckPoint]:
    """The check points of a broker for what is not acknowledged: its bit map has 32 bits."""
    left = list(point.unacked())
    for low in range(0, len(left), MESSAGES_MAX):
        offsets = left[low : low + MESSAGES_MAX]
        yield BrokerCheckPoint(
            topic=name.topic_of(point.flag),
            group=name.group,
            queue_id=point.queue_id,
            start=offsets[0],
            count=len(offsets),
            pop_time=point.pop_time,
            invisible_ms=point.invisible_ms,
            broker_name=broker_name,
            diffs=tuple(each - offsets[0] for each in offsets),
            suspend=point.suspend,
        )


def _refuse(root: str, conf: BrokerConf) -> None:
    """Raises UnsupportedFormatError if the store's broker would not read the records."""
    opened = Opened(root)
    if is_broker_49(opened):
        raise UnsupportedFormatError(f"{root}: brokers up to 4.9 have no pop, so nothing is handed over")
    if not conf.timer_wheel_enable:
        raise UnsupportedFormatError(
            f"{root}: broker.conf has timerWheelEnable=false, and without the timer a broker revives "
            "nothing; set timerWheelEnable=true to hand over what is in flight"
        )
    refuse_kv_service(opened, conf)
    StoreRefusals(opened).refuse_timeline(conf)


def _turn(name: PopName, session: WriteSession) -> ServiceTurn:
    part = f"{name.part}/hand-over"
    entry = session.ledger().keys.get(ServiceTurn(part, 0, 0).key_id)
    began = 0 if entry is None else entry.number
    return ServiceTurn(part, began + 1, began)


def _broker_host(store: Store, records: list[PopRecord]) -> Host:
    """The broker's address: the store host of a message that the records name."""
    topic, queue_id = records[0].record.topic, records[0].record.queue_id
    start = records[0].record.start
    for queue in store.queues(topic.__eq__):
        if queue.queue_id == queue_id and queue.scanned is None:
            stored, _, _ = read_stored_slice(store.log, queue.piece(start, start + 1))
            if len(stored):
                messages = stored.messages
                ip = np.asarray(messages.store_ip)[0].tobytes()
                is_v6 = int(np.asarray(messages.sys_flag)[0]) & sysflag.STORE_HOST_V6
                return ip if is_v6 else ip[:4], int(np.asarray(messages.store_port)[0])
    return _ANY_HOST


# ---- taking over -------------------------------------------------------------------------------------------


def take_over(name: PopName, log: InFlightLog, store: Store) -> int:
    """Takes over what the broker's records have in flight of this group and topic; how many messages.

    For the first consumer that opens the log, under the store's lock, after the offsets of the queues were
    set. If an earlier consumer was killed, the log and the records are brought together: a check point of the
    broker that its records no longer have in flight was acknowledged or revived there, and counts as
    acknowledged here; one that this project wrote in a hand-over that was broken off becomes the broker's.

    Raises UnsupportedFormatError if RocksDB has the state of pop, of the timer or of the offsets.
    """
    every = read_broker_in_flight(store)
    found = [each for each in every if (each.group, each.topic) == (name.group, name.topic)]
    if not found and not log.run(lambda state: state.in_flight or state.settled):
        return 0
    offsets = read_group_offsets(store.opened, name.group)
    found, firsts = _of_this_topic(name, store, found)
    return log.run(lambda state: _merge_broker_points(state, name, found, offsets, firsts))


def _of_this_topic(
    name: PopName, store: Store, found: Sequence[BrokerInFlight]
) -> tuple[list[BrokerInFlight], dict[PopQueue, int]]:
    """(the check points that the queues can have had, where queues begin whose topic was created again).

    A topic was created again if messages of its queue were stored after their pop time, see
    `is_point_deleted`, which views ask too.
    """
    queues = {queue.key: queue.range for queue in store.queues(name.flags().__contains__)}
    kept, gone, firsts = list[BrokerInFlight](), list[BrokerInFlight](), dict[PopQueue, int]()
    for each in found:
        record = each.record
        queue = queues.get((record.topic, record.queue_id))
        if is_point_deleted(store.log, queue, each):
            gone.append(each)
        else:
            kept.append(each)
        if queue is None or record.offsets[-1] >= queue.max_offset:
            continue
        if popped_entry(store.log, queue, record.start, record.pop_time)[1]:
            firsts[each.flag, each.queue_id] = queue.min_offset
    popped = {(each.flag, each.queue_id) for each in kept}
    for each in gone:
        queue = queues.get((each.record.topic, each.queue_id))
        if queue is not None and (each.flag, each.queue_id) not in popped:
            firsts[each.flag, each.queue_id] = queue.min_offset
    if gone:
        record = gone[0].record
        _log.warning(
            "%s: group %s: topic %s was deleted and created again, or the store is an older copy; %d "
            "messages that were in flight at a broker are forgotten, such as offset %d of %s-%d",
            store.path, shown(name.group), shown(name.topic), sum(len(each.unacked) for each in gone),
            record.start, shown(record.topic), record.queue_id,
        )  # fmt: skip
    return kept, firsts


def _merge_broker_points(
    state: PopState,
    name: PopName,
    found: Sequence[BrokerInFlight],
    offsets: Mapping[QueueKey, int],
    firsts: Mapping[PopQueue, int],
) -> int:
    """`take_over` with the records and the group's offsets at hand; a change of the in-flight log.

    `firsts` are where the group begins in queues of a new topic if it has no offset, otherwise it begins at
    the first message in flight.
    """
    points = {each.key: each for each in (_check_point(each, state.owners) for each in found)}
    for known in [each for each in state.check_points() if each.origin is not None]:
        held = points.pop(known.key, None)
        if held is None:
            state.ack(known.key)
        elif bits := held.acked & ~known.acked:
            state.ack(known.key, [i for i in range(bits.bit_length()) if bits >> i & 1])
    new = [each for each in points.values() if each.key not in state.settled]
    _ack_handed_over(state, new)
    lowest = dict[PopQueue, int]()
    for point in new:
        queue = point.key[:2]
        lowest[queue] = min(lowest.get(queue, point.start), point.start)
    for queue, first in (lowest | dict(firsts)).items():
        if queue not in state.queues:
            state.set_offset(*queue, offsets.get((name.topic_of(queue[0]), queue[1]), first))
    new = [each for each in new if state.check_point(each.key) is None]
    if new:
        state.take_over(new)
    return sum(each.left for each in new)


def _check_point(found: BrokerInFlight, owners: Mapping[tuple[PopQueue, int], str]) -> CheckPoint:
    record = found.record
    offsets = record.offsets
    is_run = offsets[-1] - offsets[0] == len(offsets) - 1
    acked = record.acked & (1 << len(offsets)) - 1
    return CheckPoint(
        found.flag,
        record.queue_id,
        record.start,
        range(offsets[0], offsets[-1] + 1) if is_run else offsets,
        record.pop_time,
        record.invisible_ms,
        owners.get(((found.flag, record.queue_id), record.pop_time), ""),
        origin=(record.broker_name or "", found.revive_queue_id),
        acked=acked,
        taken=acked,
        suspend=bool(record.suspend),
    )


def _ack_handed_over(state: PopState, points: Iterable[CheckPoint]) -> None:
    """Takes from the log's own check points what a hand-over that was broken off has written for them."""
    written: defaultdict[tuple[int, int, int], set[int]] = defaultdict(set)
    for point in points:
        written[point.flag, point.queue_id, point.pop_time].update(point.offsets)
    for known in [each for each in state.check_points() if each.origin is None]:
        offsets = written.get((known.flag, known.queue_id, known.pop_time))
        if offsets is not None:
            state.ack(known.key, [i for i, offset in enumerate(known.offsets) if offset in offsets])


# ---- the records of a broker -------------------------------------------------------------------------------


_MAP_CAPACITY = 16  # new HashMap(), as MessageAccessor.putProperty makes it


@dataclass(frozen=True, slots=True)
class PopRecord:
    """A check point or an ack, the queue of the revive topic for it, and when it is delivered there, in ms.

    An ack is delivered when the messages of its check point become visible, and to the same queue.
    `must_wait`: it goes through the timer although its time has passed, because its check point waits there.
    """

    record: BrokerCheckPoint | BrokerAck
    revive_queue_id: int
    deliver_ms: int
    must_wait: bool = False

    @staticmethod
    def of(point: BrokerCheckPoint, revive_queue_id: int) -> PopRecord:
        return PopRecord(point, revive_queue_id, point.visible_at - CK_LEAD_MS)


def pop_record_messages(
    records: Sequence[PopRecord], revive_topic: str, *, now_ms: int, precision_ms: int, broker_host: Host
) -> MessageColumns:
    """The messages of these records, in their order, as a broker at `broker_host` stores them at `now_ms`.

    `precision_ms` is the broker's timerPrecisionMs.
    """
    deliver = np.array([each.deliver_ms for each in records], np.int64)
    queue_ids = np.array([each.revive_queue_id for each in records], np.int64)
    waits = (deliver > now_ms) | np.array([each.must_wait for each in records], bool)
    tags = [each.record.tag if isinstance(each.record, BrokerAck) else CK_TAG for each in records]
    out = (deliver - 1) // precision_ms * precision_ms
    mask = pa.array(waits)
    nothing = pa.scalar(None, pa.string())
    properties = encode_property_columns(
        len(records),
        {
            TAGS: pa.array(tags, pa.string()),
            UNIQ_KEY: pa.array([each.record.unique_key for each in records], pa.string()),
            TIMER_DELIVER_MS: pa.array(deliver).cast(pa.string()),
            TIMER_OUT_MS: pc.if_else(mask, pa.array(out).cast(pa.string()), nothing),
            REAL_TOPIC: pc.if_else(mask, pa.scalar(revive_topic, pa.string()), nothing),
            REAL_QID: pc.if_else(mask, pa.array(queue_ids).cast(pa.string()), nothing),
        },
        capacity=_MAP_CAPACITY,
    )
    return MessageColumns(
        topic=pc.if_else(mask, TIMER_TOPIC, revive_topic),
        body=pa.array([each.record.to_json() for each in records], pa.large_binary()),
        properties=properties,
        queue_id=np.where(waits, 0, queue_ids),
        born_timestamp=now_ms,
        born_ip=broker_host[0],
        born_port=broker_host[1],
        store_ip=broker_host[0],
        store_port=broker_host[1],
    )
