"""Messages that cannot be stored again, as a stream takes them: each of them is a range of its own."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from rmq_spark.consume.message_queue import MessageQueue
from rmq_spark.consume.pop_offset import PoppedRange
from rmq_spark.plan.scan import Scan
from rmq_spark.pop.share import ConsumerShare
from store_format.pop.records import PointKey
from store_format.pop.state import PopState
from store_format.read.store import Queue

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class DueAgain:
    """One message that waits to be delivered again from its own place, by the key of its check point."""

    share: ConsumerShare
    name: MessageQueue
    queue: Queue
    key: PointKey

    @property
    def offset(self) -> int:
        return self.key[2]


def due_again(
    share: ConsumerShare, broker_name: str, queues: Mapping[MessageQueue, Queue], now_ms: int
) -> list[DueAgain]:
    """The messages of a share, in these queues, that wait to be delivered again; the oldest first."""
    found = []
    for key in share.run(lambda state: [point.key for point in state.again.due(now_ms)]):
        name = MessageQueue(share.topic_of(key[0]), broker_name, key[1])
        if name in queues:
            found.append(DueAgain(share, name, queues[name], key))
    return found


@dataclass(frozen=True, slots=True)
class AgainTaker:
    """Takes messages that wait, for one query: its `owner`, and what its options say."""

    scan: Scan
    owner: str
    invisible_ms: int
    now_ms: Callable[[], int]

    def take(self, due: Sequence[DueAgain]) -> list[PoppedRange]:
        """The ranges of those that no other member has taken meanwhile.

        A message that does not match the query's filters, or that retention has deleted, is acknowledged.
        """
        found = []
        for each in due:
            taken = each.share.run(self._change(each, self._is_wanted(each)))
            if taken is not None:
                found.append(taken)
        return found

    def _is_wanted(self, each: DueAgain) -> bool:
        if not each.queue.min_offset <= each.offset < each.queue.max_offset:
            _log.warning("1 messages lost: %s offset %d was deleted (retention)", each.name, each.offset)
            return False
        piece = each.queue.piece(each.offset, each.offset + 1)
        return len(self.scan.matching_offsets(each.queue.store, piece)) > 0

    def _change(self, each: DueAgain, is_wanted: bool) -> Callable[[PopState], PoppedRange | None]:
        def change(state: PopState) -> PoppedRange | None:
            if not is_wanted:
                state.ack(each.key)
                return None
            now = self.now_ms()
            point = state.deliver_again(each.key, 0, now, now + self.invisible_ms, self.owner)
            return (
                None
                if point is None
                else PoppedRange(each.name, point.start, point.start + 1, point.pop_time)
            )

        return change
