"""What every group has in flight in a store: by our in-flight logs, and by the records of a broker.

While pop is ours, the in-flight log of a group and topic counts. After a hand-over, and where a broker
popped, the broker's check points and acks count, and consumerOrderInfo.json for groups that pop in order.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from store_format.consumequeue.slices import QueueRange
from store_format.display.text import shown
from store_format.errors import StoreError, UnsupportedFormatError
from store_format.metadata.group_offsets import read_group_offsets
from store_format.metadata.read import (
    BrokerConf,
    read_order_infos,
    read_request_modes,
    read_timer_metrics,
    read_topics,
)
from store_format.metadata.timer import TimerCheck
from store_format.metadata.values import OrderInfo
from store_format.names import REVIVE_PREFIX, TIMER_TOPIC, QueueKey, normal_topic
from store_format.pop.broker_in_flight import BrokerInFlight, read_broker_in_flight
from store_format.pop.log import (
    PopName,
    in_flight_directory,
    in_flight_logs,
    is_batch_deleted,
    is_point_deleted,
    new_queues,
    noted_queues,
    queue_topic,
    read_in_flight,
)
from store_format.pop.order import consumed_count, is_acknowledged
from store_format.pop.state import TOPIC, PopQueue, PopState
from store_format.read.store import Store

_log = logging.getLogger(__name__)

OURS, BROKER = "rmqlog", "broker"

Pair = tuple[str, str]  # group and popped topic
GroupQueueKey = tuple[str, str, int]  # group, topic of the queue, queue id


@dataclass(frozen=True, slots=True)
class InFlight:
    """Messages that were handed out together and are not acknowledged. Times are ms.

    `topic` is the topic of the queue: the popped topic, or a retry topic of pop. `owner` is the consumer, if
    known. `source` is `rmqlog` or `broker`. `earlier` are the deliveries of each message before this one that
    its `reconsumeTimes` does not count; only a group that pops in order has them, and messages that cannot be
    stored again.
    """

    group: str
    topic: str
    queue_id: int
    offsets: tuple[int, ...]
    pop_time: int
    visible_at: int
    source: str
    owner: str = ""
    earlier: int = 0


@dataclass(slots=True)
class PopProgress:
    """How far the groups that pop have come; the result of `read_pop_progress`.

    `in_flight` has the messages by queue. `next_offsets` are the first offsets that nobody was given, where
    an in-flight log knows better than consumerOffset.json. `pairs` are the groups and topics that pop, as far
    as files say so. `unknown` are the pairs of which nobody knows what is in flight. With
    `is_broker_unknown`, that is so for every pair without an in-flight log.
    """

    in_flight: dict[GroupQueueKey, list[InFlight]] = field(default_factory=dict)
    next_offsets: dict[GroupQueueKey, int] = field(default_factory=dict)
    pairs: set[Pair] = field(default_factory=set)
    ours: set[Pair] = field(default_factory=set)
    unknown: set[Pair] = field(default_factory=set)
    is_broker_unknown: bool = False

    def add(self, found: InFlight) -> None:
        self.in_flight.setdefault((found.group, found.topic, found.queue_id), []).append(found)

    def is_unknown(self, pair: Pair) -> bool:
        return pair in self.unknown or (self.is_broker_unknown and pair not in self.ours)


def read_pop_progress(store: Store, conf: BrokerConf | None = None) -> PopProgress:
    """What is in flight in the store, and which groups pop. Costs little in a store without pop.

    `conf` is the broker's broker.conf, by default that of the store. A damaged log, and a store whose broker
    keeps the state of pop in RocksDB, make the numbers of these groups unknown, with a warning.
    """
    progress = PopProgress()
    for topic, modes in (read_request_modes(store.opened) or {}).items():
        progress.pairs |= {(group, topic) for group, mode in modes.items() if mode.mode == "POP"}
    opened = ((pair, _open_state(progress, store, pair)) for pair in in_flight_logs(store.opened))
    states = {pair: state for pair, state in opened if state is not None}
    batches = {
        pair: infos
        for pair, infos in _by_pair(read_order_infos(store.opened) or {})
        if pair not in progress.ours
    }
    progress.pairs |= batches.keys()
    records = _broker_records(progress, store, conf)
    topics = {queue_topic(*pair, flag) for pair, state in states.items() for flag, _ in state.queues}
    topics |= {topic for _, topic in batches} | {each.record.topic for each in records}
    queues = _Queues(store, topics)
    for pair, state in states.items():
        new = new_queues(PopName(store.opened, *pair), noted_queues(state), queues.ranges)
        _add_state(progress, pair, state, {queue: start for queue, (start, _) in new.items()}, queues)
    for pair, infos in batches.items():
        _add_batches(progress, pair, queues.without_deleted(pair, infos), BROKER)
    _add_records(progress, records, queues)
    return progress


class _Queues:
    """The queues of topics, and whether a topic was deleted. Without consume queue files nothing is known."""

    def __init__(self, store: Store, topics: Collection[str]) -> None:
        self._store = store
        self.is_known = bool(topics) and store.has_consume_queues
        self.ranges: Mapping[QueueKey, QueueRange] = {}
        if self.is_known:
            self.ranges = store.snapshot(topics.__contains__).queues
        self._present = {topic for topic, _ in self.ranges}
        self._deleted: dict[str, bool] = {}

    def is_deleted(self, topic: str) -> bool:
        """Whether the topic has no queue and is not in topics.json: no consumer can get its messages."""
        if not self.is_known or topic in self._present:
            return False
        if topic not in self._deleted:
            topics = read_topics(self._store.opened)
            self._deleted[topic] = topics is not None and topic not in topics
        return self._deleted[topic]

    def is_point_deleted(self, found: BrokerInFlight) -> bool:
        """Whether a consumer that opens the topic would forget the check point of a broker."""
        record = found.record
        queue = self.ranges.get((record.topic, record.queue_id))
        return self.is_known and is_point_deleted(self._store.log, queue, found)

    def without_deleted(self, pair: Pair, batches: Mapping[int, OrderInfo]) -> dict[int, OrderInfo]:
        """The batches of consumerOrderInfo.json without those that a consumer would pass over."""
        group, topic = pair
        if self.is_deleted(topic):
            return {}
        known = read_group_offsets(self._store.opened, group)
        return {
            queue_id: batch
            for queue_id, batch in batches.items()
            if not is_batch_deleted(
                self._store.log,
                self.ranges.get((topic, queue_id)),
                batch,
                known.get((topic, queue_id), -1),
            )
        }


def _open_state(progress: PopProgress, store: Store, pair: Pair) -> PopState | None:
    """The state of an in-flight log that counts; None if it is closed or cannot be read."""
    group, topic = pair
    try:
        state = read_in_flight(in_flight_directory(store.opened, group, topic))
    except StoreError as error:
        _log.warning(
            "group %s, topic %s: what is in flight is unknown: %s", shown(group), shown(topic), error
        )
        progress.unknown.add(pair)
        progress.pairs.add(pair)
        return None
    if state is None:
        return None
    progress.pairs.add(pair)
    if state.is_closed:
        return None
    progress.ours.add(pair)
    return state


def _add_state(
    progress: PopProgress, pair: Pair, state: PopState, new: Mapping[PopQueue, int], queues: _Queues
) -> None:
    """`new` are the queues of a new topic, see `new_queues`."""
    group, popped = pair
    gone = {each for each in state.queues if queues.is_deleted(queue_topic(group, popped, each[0]))}
    for (flag, queue_id), queue in state.queues.items():
        offset = new.get((flag, queue_id), queue.next_offset)
        progress.next_offsets[group, queue_topic(group, popped, flag), queue_id] = offset
    for point in state.check_points():
        if (point.flag, point.queue_id) in gone | new.keys():
            continue
        topic = queue_topic(group, popped, point.flag)
        offsets = tuple(point.unacked())
        progress.add(
            InFlight(
                group, topic, point.queue_id, offsets, point.pop_time, point.visible_at, OURS, point.owner,
                earlier=max(point.again - 1, 0),
            )
        )  # fmt: skip
    batches = {
        each: info for each, info in state.order.batches.items() if (TOPIC, each) not in gone | new.keys()
    }
    _add_batches(progress, pair, batches, OURS)


def _add_batches(progress: PopProgress, pair: Pair, batches: dict[int, OrderInfo], source: str) -> None:
    """The batches of a group that pops in order. The queue goes on after the batch.

    Its committed offset is the first message of the batch that is not acknowledged.
    """
    group, topic = pair
    for queue_id, info in batches.items():
        if not info.offsets:
            continue
        for index, offset in enumerate(info.offsets):
            if not is_acknowledged(info, index):
                default = info.pop_time + (info.invisible_time or 0)
                visible_at = (info.next_visible_time or {}).get(offset, default)
                earlier = consumed_count(info, offset)
                progress.add(
                    InFlight(
                        group, topic, queue_id, (offset,), info.pop_time, visible_at, source, earlier=earlier
                    )
                )
        if (group, topic, queue_id) in progress.in_flight:
            progress.next_offsets[group, topic, queue_id] = info.offsets[-1] + 1


def _by_pair(infos: dict[str, dict[int, OrderInfo]]) -> Iterator[tuple[Pair, dict[int, OrderInfo]]]:
    for name, batches in infos.items():
        topic, at, group = name.partition("@")
        if at:
            yield (group, topic), batches


def _broker_records(progress: PopProgress, store: Store, conf: BrokerConf | None) -> Sequence[BrokerInFlight]:
    """The check points of a broker, but for groups whose in-flight log has taken them over."""
    try:
        found = read_broker_in_flight(store, conf) if _may_have_records(store) else []
    except UnsupportedFormatError as error:
        _log.debug("%s", error)
        progress.is_broker_unknown = True
        return []
    progress.pairs |= {(each.group, each.topic) for each in found}
    return [each for each in found if (each.group, each.topic) not in progress.ours]


def _add_records(progress: PopProgress, records: Sequence[BrokerInFlight], queues: _Queues) -> None:
    for each in records:
        record = each.record
        if not queues.is_point_deleted(each):
            progress.add(
                InFlight(
                    each.group, record.topic, each.queue_id, each.unacked, record.pop_time, each.visible_at,
                    BROKER,
                )
            )  # fmt: skip


def _may_have_records(store: Store) -> bool:
    """Whether a broker of the store may have popped. The timer is read only then.

    Records are in the revive topic, or wait in the timer: timermetrics counts these. The messages that the
    timer has not put into the wheel are not in timermetrics yet.
    """
    if any(queue.max_offset for queue in store.queues(lambda topic: topic.startswith(REVIVE_PREFIX))):
        return True
    metrics = read_timer_metrics(store.opened) or {}
    if any(name.startswith(REVIVE_PREFIX) and metric.count > 0 for name, metric in metrics.items()):
        return True
    timer = next(iter(store.queues(TIMER_TOPIC.__eq__)), None)
    if timer is None:
        return False
    check = TimerCheck.read(store.opened)
    return check is None or check.last_timer_queue_offset < timer.max_offset


def popped_pair(group: str, topic: str) -> Pair:
    """The group and the popped topic of a queue's topic."""
    return group, normal_topic(topic, group)[0]
