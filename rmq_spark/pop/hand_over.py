"""Handing over to a broker: what is in flight here becomes check points that the broker revives.

Written when the last consumer of a group closes, under the store's lock, in this order:

1. the group in subscriptionGroup.json: a broker without autoCreateSubscriptionGroup does not revive others;
2. one commit with a check point for each 32 messages in flight, and with acks for the check points that were
   taken over from a broker and are acknowledged since;
3. these records in the timer's wheel, so that a broker that starts late delivers each check point before its
   acks;
4. the next offsets in consumerOffset.json;
5. the note in the in-flight log that it is closed.

Until step 4 the file has the lowest offsets that are not acknowledged. So a kill between two steps leads to
messages that are delivered again, and loses none; who opens the log next finds the records of step 2.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from rmq_spark.pop.mirror import PopOffsetMirror
from rmq_spark.pop.pop_name import PopName
from rmq_spark.produce.pop_records import PopRecord, pop_record_messages
from rmq_spark.produce.rows import Host
from rmq_spark.write.timer_wheel import put_in_wheel
from store_format.bookkeeping.ledger import ServiceTurn
from store_format.bookkeeping.settings import broker_conf_of
from store_format.commit.session import WriteSession
from store_format.commit.unsupported import refuse_timeline
from store_format.display.text import shown
from store_format.errors import StoreError, UnsupportedFormatError
from store_format.message.sysflag import STORE_HOST_V6
from store_format.metadata.add_group import add_subscription_group
from store_format.metadata.broker_conf import BrokerConf
from store_format.metadata.group_offsets import is_broker_49, read_committed
from store_format.metadata.read import read_topics
from store_format.metadata.timer_precision import with_wheel_precision
from store_format.names import REVIVE_GROUP, REVIVE_PREFIX, TIMER_TOPIC
from store_format.pop.broker_in_flight import BrokerInFlight, read_broker_in_flight, refuse_kv_service
from store_format.pop.broker_records import MESSAGES_MAX, BrokerAck, BrokerCheckPoint
from store_format.pop.check_point import CheckPoint
from store_format.pop.log import InFlightLog
from store_format.pop.records import PointKey
from store_format.pop.state import PopState
from store_format.read.store import Store
from store_format.read.stored_messages import read_stored_slice

_log = logging.getLogger(__name__)

_REPLY_SUFFIX = "_REPLY_TOPIC"  # <cluster>_REPLY_TOPIC, which each broker since 4.6 adds to topics.json
_ANY_HOST: Host = (bytes((127, 0, 0, 1)), 0)


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
    conf = with_wheel_precision(name.root, broker_conf_of(name.root, session.options.conf))
    store = session.store()
    points = log.run(lambda state: [*state.check_points(), *state.settled.values()])
    was_taken = any(each.origin is not None for each in points)
    found = _broker_points(name, store, conf) if was_taken else {}
    revive_topic = revive_topic_of(name.root, conf)
    revive_queues = _revive_queues(name.root, revive_topic, conf)
    own = list(_own_records(name, points, revive_queues, conf.broker_name or store.broker_name))
    acks = list(_acks(name, points, found))
    if own or was_taken:
        try:
            _refuse(name.root, conf)
        except StoreError as error:
            _log.warning(
                "%s; group %s, topic %s: the messages in flight and those behind are delivered again",
                error, name.group, shown(name.topic),
            )  # fmt: skip
            return None
        add_subscription_group(name.root, name.group, timestamp=now_ms, files=session.files)
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
    topics: list[str] = [*(read_topics(root) or ())]
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
    return sorted(read_committed(root).offsets.get((REVIVE_GROUP, revive_topic), {})) or [0]


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
    for number, record in enumerate(own):
        yield PopRecord.of(record, revive_queues[number % len(revive_queues)])


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
    if is_broker_49(root):
        raise UnsupportedFormatError(f"{root}: brokers up to 4.9 have no pop, so nothing is handed over")
    if not conf.timer_wheel_enable:
        raise UnsupportedFormatError(
            f"{root}: broker.conf has timerWheelEnable=false, and without the timer a broker revives "
            "nothing; set timerWheelEnable=true to hand over what is in flight"
        )
    refuse_kv_service(root, conf)
    refuse_timeline(root, conf)


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
                is_v6 = int(np.asarray(messages.sys_flag)[0]) & STORE_HOST_V6
                return ip if is_v6 else ip[:4], int(np.asarray(messages.store_port)[0])
    return _ANY_HOST
