"""Messages that cannot be stored again: they are delivered again from their own place in the queue.

A revive stores a copy of a message that nobody acknowledged. Of a damaged message, of an inner batch and of a
message of light queues no copy is made. Such a message has a check point of its own (`PopState.again`). When
that becomes visible, the message is handed out again: at once in a fifth of the receives, as a message of the
retry topic, otherwise behind the new messages. It never becomes a dead letter, which is a copy, too.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace

from rmq_spark.pop.handed_out import HandedOut, PopRequest
from rmq_spark.pop.metrics import Counters
from rmq_spark.pop.window import Subscription, read_window
from store_format.errors import CorruptStoreError, UnsupportedFormatError
from store_format.pop.check_point import CheckPoint
from store_format.pop.state import PopQueue, PopState
from store_format.read.store import Queue

_log = logging.getLogger(__name__)


def hand_out_again(
    state: PopState, queues: Mapping[PopQueue, Queue], request: PopRequest, count: int
) -> list[HandedOut]:
    """Hands out up to `count` messages of these queues whose time has passed.

    `located` reads where they are, without the lock of the log.
    """
    found: list[HandedOut] = []
    for before in state.again.due(request.pop_time):
        queue = queues.get(before.key[:2])
        if queue is None or len(found) >= count:
            continue
        visible_at = request.pop_time + request.invisible_ms
        point = state.deliver_again(before.key, 0, request.pop_time, visible_at, request.owner)
        if point is not None:
            found.append(HandedOut(point, queue, None, {point.start: before.again}))
    return found


def located(
    out: Sequence[HandedOut], subscription: Subscription, counters: Counters
) -> tuple[list[HandedOut], list[tuple[CheckPoint, int]]]:
    """(what was handed out, with the places of the messages; those that nobody gets any more).

    A message whose queue cannot be read now is left out, and comes again after its invisible time.
    """
    found: list[HandedOut] = []
    passed: list[tuple[CheckPoint, int]] = []
    for each in out:
        offset, queue = each.point.start, each.queue
        if each.window is not None:
            found.append(each)
            continue
        try:
            window = read_window(queue, offset, 1, subscription)
        except (CorruptStoreError, UnsupportedFormatError) as error:
            _log.warning("a message comes again after its invisible time, because of its queue: %s", error)
            continue
        if offset in window.offsets:
            found.append(replace(each, window=window))
        else:
            passed.append((each.point, 0))
            counters.add(**{"filtered" if window.covers(offset) else "lost": 1})
    return found, passed
