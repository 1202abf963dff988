"""What a stream can no longer read: messages that retention deleted, offsets that went back, deleted queues.

With failOnDataLoss, everything that one look finds is one error. Without it, each loss is one warning with
the number of messages, logged once.
"""

from __future__ import annotations

import logging

from rmq_spark.consume.consumer import MessageQueue
from store_format import Queue
from store_format.errors import OffsetOutOfRangeError
from store_format.follow.log_tail import Replaced

_log = logging.getLogger(__name__)

_CONTINUE = "set failOnDataLoss=false to continue"
_NEW_CHECKPOINT = "start with a new checkpoint"


class Losses:
    """Collects the losses of one look, until `report`.

    `keeps_offsets`: the offsets are those of a checkpoint, so that a new checkpoint begins elsewhere.
    """

    def __init__(self, fail_on_data_loss: bool, *, keeps_offsets: bool = True) -> None:
        self._fail = fail_on_data_loss
        self._anew = f"{_NEW_CHECKPOINT}, or " if keeps_offsets else ""
        self._found: list[tuple[int, str, str]] = []  # (messages, what happened, advice)
        self._reported: set[str] = set()
        self._replaced: dict[MessageQueue, Replaced] = {}  # reported; no micro-batch began there yet

    def begin(self, name: MessageQueue, position: int, queue: Queue) -> int:
        """The offset at which to continue in a queue whose next message should be at `position`."""
        low, high = queue.min_offset, queue.max_offset
        if position < low:
            what = (
                f"the next offset is {position} and the queue holds {low} to {high}: "
                f"retention deleted {low - position} messages"
            )
            self.add(name, low - position, what, f"{_CONTINUE} at offset {low}")
            return low
        if high < position <= queue.held_max_offset:
            return position  # the messages between are not read yet
        if position > high:
            # as a client: DefaultMessageStore.getMessage answers OFFSET_OVERFLOW_BADLY with the maximum
            what = (
                f"the next offset is {position} and the queue holds {low} to {high}: its offsets went back "
                f"by {position - high} "
                "(is the store an older copy, or was the topic deleted and created again?)"
            )
            self.add(name, 0, what, f"{self._anew}{_CONTINUE} at offset {high}")
            return high
        return position

    def replaced(self, name: MessageQueue, position: int, queue: Queue, replaced: Replaced) -> int:
        """The offset at which to continue in a queue with other messages at offsets already read."""
        low, high = queue.min_offset, queue.max_offset
        if self._replaced.get(name) == replaced and replaced.begin is not None:
            return replaced.begin
        if not self._fail:
            self._replaced[name] = replaced
        holds = f"the next offset is {position} and the queue holds {low} to {high}"
        if replaced.begin is not None:
            back = f": its offsets went back by {position - high}" if position > high else ""
            what = f"{holds}{back}: the topic was deleted and created again"
            lost = max(replaced.stop - position, 0)
            self.add(name, lost, what, f"{_NEW_CHECKPOINT}, or {_CONTINUE} at offset {replaced.begin}")
            return replaced.begin
        if not low <= position <= high:
            return self.begin(name, position, queue)
        what = (
            f"{holds}, but other messages than at the last look: the store's files were replaced, or a "
            f"broker overwrote them after a crash; the messages {low} to {position} are not read"
        )
        self.add(name, position - low, what, f"{_NEW_CHECKPOINT}, or {_CONTINUE} at offset {position}")
        return position

    def forget_replaced(self) -> None:
        """The next offset says where the replaced queues begin: equal replacements from now on are new."""
        self._replaced.clear()

    def vanished(self, name: MessageQueue, position: int) -> None:
        what = f"the next offset is {position} and the store no longer has the queue (was the topic deleted?)"
        self.add(name, 0, what, f"{_CONTINUE} without it")

    def add(self, name: MessageQueue, count: int, what: str, advice: str) -> None:
        """`count` messages of the queue are lost, because of `what`; `advice` is what the user can do."""
        message = f"{name}: {what}"
        if message not in self._reported:
            self._found.append((count, message, advice))

    def report(self) -> None:
        """Raises OffsetOutOfRangeError for, or logs, what was found since the last report."""
        found, self._found = self._found, []
        if not found:
            return
        if self._fail:
            _, message, advice = found[0]
            others = f" (and {len(found) - 1} more queues)" if len(found) > 1 else ""
            raise OffsetOutOfRangeError(f"{message}{others}; {advice}")
        for count, message, _ in found:
            self._reported.add(message)
            _log.warning("%d messages lost: %s", count, message)
