"""Dead letters: messages that a group has received too often are stored in `%DLQ%group`, not delivered.

The proxy does so when a consumer receives a message whose reconsumeTimes have reached the maximum
(PopMessageResultFilterImpl): it sends the message back with delay level -1, and acknowledges it. What is
written follows `produce.send_back`. The three steps, and what a kill between them leaves, are those of a
revive.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from rmq_spark.pop.pop_name import PopName
from rmq_spark.pop.revive import finish_revive, revive_turn
from rmq_spark.produce.send_back import send_back
from store_format.commit.session import WriteSession
from store_format.message.stored import StoredMessages, join_columns, stored_messages
from store_format.metadata.values import SubscriptionGroup
from store_format.pop.check_point import BegunRevive, CheckPoint
from store_format.pop.log import InFlightLog
from store_format.pop.records import PointKey
from store_format.pop.state import PopQueue, PopState
from store_format.read.stored_messages import read_stored_units, units_at

_DEAD_LEVEL = -1


def bury(
    name: PopName,
    log: InFlightLog,
    session: WriteSession,
    group: SubscriptionGroup,
    messages: Sequence[tuple[CheckPoint, int]],
) -> int:
    """Stores messages in flight, by check point and position, as dead letters, and acknowledges them.

    Returns how many were stored: a message that was acknowledged meanwhile is left out. Raises what
    `send_back` and `WriteSession.append` raise; the messages are then in flight as before.
    """
    finish_revive(name, log, session)
    given = log.run(lambda state: [each for each in messages if _is_in_flight(state, *each)])
    stored = _read(name, session, given)
    if not len(stored):
        return 0
    dead = send_back(stored, group, delay_levels=_DEAD_LEVEL)
    revive = log.run(lambda state: _begin(state, given))
    if revive is None:
        return 0
    session.append(dead.messages, turn=revive_turn(name, revive), new_topics=dead.new_topics)
    log.run(lambda state: state.end_revive(revive.number, is_done=True))
    return dead.dead_letters


def _is_in_flight(state: PopState, point: CheckPoint, position: int) -> bool:
    """Whether nobody has acknowledged the message; `point` is the hand-out as the consumer got it."""
    now = state.check_point(point.key)
    if now is not None:
        return not now.acked >> position & 1
    return state.order.is_in_flight(point.queue_id, point.offsets[position], point.pop_time)


def _begin(state: PopState, messages: Iterable[tuple[CheckPoint, int]]) -> BegunRevive | None:
    """Notes what is about to be stored; None if a part was acknowledged meanwhile: the rest comes again."""
    bits: dict[PointKey, int] = {}
    for point, position in messages:
        if not _is_in_flight(state, point, position):
            return None
        bits[point.key] = bits.get(point.key, 0) | 1 << position
    return state.begin_revive(bits)


def _read(name: PopName, session: WriteSession, given: Iterable[tuple[CheckPoint, int]]) -> StoredMessages:
    """The messages as stored. Raises the error of a damaged one."""
    offsets: dict[PopQueue, list[int]] = {}
    for point, position in given:
        offsets.setdefault(point.key[:2], []).append(point.offsets[position])
    store = session.store()
    taken = store.snapshot(name.flags().__contains__)
    parts = []
    for (flag, queue_id), wanted in offsets.items():
        key = name.topic_of(flag), queue_id
        messages, _, damaged = read_stored_units(
            taken.log, key, *units_at(taken.queues[key], np.array(sorted(wanted), np.int64))
        )
        for error in damaged.values():
            raise error
        parts.append(messages.messages)
    return StoredMessages(join_columns(parts)) if parts else stored_messages([])
