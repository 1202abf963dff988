"""Pop in order: each queue has one batch at a time (FIFO groups, spec consumption.md 11.9).

A queue is left alone while a message of its last batch is neither acknowledged nor visible again. Then it is
read from the first message that is not acknowledged, so no message is delivered before the one ahead of it is
acknowledged. There is no retry topic: a message comes again in its place. The rules are those of
`store_format.pop.order`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from rmq_spark.broker.pop.message import ReceiptHandle, unknown_handle
from rmq_spark.broker.pop.topic_pop import HandedOut, PopRequest, QueueWindow, ShareRules, TopicPop, visits
from store_format.errors import InvalidReceiptHandleError
from store_format.pop.records import CheckPoint
from store_format.pop.state import TOPIC, PopQueue, PopState
from store_format.read.store import Queue

ORDER_REVIVE_QUEUE = 999  # KeyBuilder.POP_ORDER_REVIVE_QUEUE: a handle of an ordered message


class OrderPop(TopicPop):
    """`TopicPop` in order. Two messages of one queue are in flight together only in one batch."""

    is_ordered = True
    _revive_queue_id = ORDER_REVIVE_QUEUE

    def _order(self, queues: Mapping[PopQueue, Queue]) -> list[PopQueue]:
        # neither retry topics nor priorities (PopMessageProcessor.processRequest)
        topics = [queue_id for flag, queue_id in queues if flag == TOPIC]
        return list(visits(topics, [], ShareRules(), self._random))

    def next_visible(self, request: PopRequest) -> int | None:
        return self.share.run(
            lambda state: state.order.next_unblocked(request.pop_time, request.invisible_ms)
        )

    def _is_blocked(self, state: PopState, key: PopQueue, request: PopRequest) -> bool:
        if state.reviving is not None and any(held[:2] == key for held in state.reviving.bits):
            return True  # dead letters of the queue are being stored
        return state.order.is_blocked(key[1], request.pop_time, request.invisible_ms, request.attempt_id)

    def _take(
        self,
        state: PopState,
        queue: Queue,
        window: QueueWindow,
        taken: tuple[PopQueue, list[int], int],
        request: PopRequest,
    ) -> HandedOut:
        (flag, queue_id), offsets, _ = taken
        start = state.queues[flag, queue_id].next_offset  # stays: the first that is not acknowledged
        info = state.order.hand_out(
            queue_id,
            offsets,
            pop_time=request.pop_time,
            invisible_ms=request.invisible_ms,
            attempt_id=request.attempt_id,
            physical_offset=window.physical_offset(offsets[-1]),
        )
        point = CheckPoint(
            flag, queue_id, start, info.offsets, info.pop_time, request.invisible_ms, request.owner
        )
        return HandedOut(point, queue, window, info.consumed_count or {})

    # ---- handles -------------------------------------------------------------------------------------------

    def acknowledge(self, messages: Iterable[tuple[CheckPoint, int]]) -> None:
        given = [(point.queue_id, point.offsets[position], point.pop_time) for point, position in messages]
        self.share.run(lambda state: [state.order.acknowledge(*each) for each in given])

    def ack(self, handles: Sequence[ReceiptHandle], now_ms: int) -> list[InvalidReceiptHandleError]:
        """Acknowledges the messages of these handles. Returns an error for each handle that is not valid.

        A handle is valid until the queue is read again, also after its invisible time, as in a broker.
        """

        batches: dict[tuple[int, int], list[int]] = {}
        for each in handles:
            batches.setdefault((each.queue_id, each.pop_time), []).append(each.offset)

        def change(state: PopState) -> dict[tuple[int, int], set[int]]:
            return {
                (queue_id, pop_time): state.order.acknowledge_all(queue_id, offsets, pop_time)
                for (queue_id, pop_time), offsets in batches.items()
            }

        valid = self.share.run(change)
        return [
            unknown_handle(each) for each in handles if each.offset not in valid[each.queue_id, each.pop_time]
        ]

    def change_invisible(
        self, handle: ReceiptHandle, invisible_ms: int, now_ms: int
    ) -> ReceiptHandle | InvalidReceiptHandleError:
        """The message's new handle. Its queue is blocked until the message is visible or acknowledged.

        The old handle stays valid: both name the batch (ChangeInvisibleTimeProcessor).
        """
        visible_at = now_ms + invisible_ms
        if self.share.run(
            lambda state: state.order.change_invisible(
                handle.queue_id, handle.offset, handle.pop_time, visible_at
            )
        ):
            return handle._replace(invisible_ms=visible_at - handle.pop_time)
        return unknown_handle(handle)
