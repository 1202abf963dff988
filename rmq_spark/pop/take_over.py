"""Taking over what a broker's pop has in flight, so that its messages come back here when their time is past.

The broker's check points become check points of the in-flight log, with their visible times. The log keeps
where each is from: the broker needs acks for them when it goes on (`hand_over`).
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from rmq_spark.pop.pop_name import PopName
from store_format.display.text import shown
from store_format.metadata.broker_conf import BrokerConf
from store_format.metadata.group_offsets import read_group_offsets
from store_format.names import QueueKey
from store_format.pop.broker_in_flight import BrokerInFlight, read_broker_in_flight
from store_format.pop.check_point import CheckPoint
from store_format.pop.log import InFlightLog
from store_format.pop.records import PointKey
from store_format.pop.state import PopQueue, PopState
from store_format.pop.witness import is_point_deleted, popped_entry
from store_format.read.store import Store

_log = logging.getLogger(__name__)


def take_over(name: PopName, log: InFlightLog, store: Store, conf: BrokerConf | None = None) -> int:
    """Takes over what the broker's records have in flight of this group and topic; how many messages.

    For the first consumer that opens the log, under the store's lock, after the offsets of the queues were
    set. If an earlier consumer was killed, the log and the records are brought together: a check point of the
    broker that its records no longer have in flight was acknowledged or revived there, and counts as
    acknowledged here; one that this project wrote in a hand-over that was broken off becomes the broker's.

    Raises UnsupportedFormatError if RocksDB has the state of pop, of the timer or of the offsets.
    """
    every = read_broker_in_flight(store, conf)
    found = [each for each in every if (each.group, each.topic) == (name.group, name.topic)]
    if not found and not log.run(lambda state: state.in_flight or state.settled):
        return 0
    offsets = read_group_offsets(store.path, name.group)
    found, firsts = _of_this_topic(name, store, found)
    return log.run(lambda state: merge_broker_points(state, name, found, offsets, firsts))


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


def merge_broker_points(
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
    points = {each.key: each for each in map(_check_point, found)}
    for known in [each for each in state.check_points() if each.origin is not None]:
        held = points.pop(known.key, None)
        if held is None:
            state.ack(known.key)
        elif held.acked & ~known.acked:
            state.ack(known.key, _positions(held.acked & ~known.acked))
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


def _check_point(found: BrokerInFlight) -> CheckPoint:
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
    own: list[tuple[PointKey, list[int]]] = []
    for known in state.check_points():
        offsets = written.get((known.flag, known.queue_id, known.pop_time))
        if offsets is not None and known.origin is None:
            own.append((known.key, [i for i, offset in enumerate(known.offsets) if offset in offsets]))
    for key, positions in own:
        state.ack(key, positions)


def _positions(bits: int) -> list[int]:
    return [i for i in range(bits.bit_length()) if bits >> i & 1]
