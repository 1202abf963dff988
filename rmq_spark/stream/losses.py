"""What a stream can no longer read: retention that overtook it, offsets that went back, queues that vanished.
Told with numbers.

With failOnDataLoss all of it is one error; without, each is one warning with a count, said once.
"""

from __future__ import annotations

import logging

from rmq_spark.consume.message_queue import MessageQueue
from store_format import Queue
from store_format.errors import OffsetOutOfRangeError
from store_format.follow.replaced import Replaced

_log = logging.getLogger(__name__)

_SHOWN_MAX = 3
_GO_ON = "set failOnDataLoss=false to go on"


class Losses:
    """Collects what is lost at one look; `tell` says it. `total` counts the messages of all looks."""

    def __init__(self, fail_on_data_loss: bool) -> None:
        self.total = 0
        self._fail = fail_on_data_loss
        self._found: list[tuple[int, str, str]] = []
        self._told: set[str] = set()
        self._replaced: dict[MessageQueue, Replaced] = {}  # told of, until a micro-batch begins there

    def begin(self, key: MessageQueue, position: int, queue: Queue) -> int:
        """Where to go on in a queue whose next message should be at `position`."""
        low, high = queue.min_offset, queue.max_offset
        if position < low:
            what = f"the next offset is {position} and the queue holds {low} to {high}: retention deleted {low - position} messages"
            self.add(key, low - position, what, f"{_GO_ON} at {low}")
            return low
        if position > high:
            # DefaultMessageStore.getMessage answers OFFSET_OVERFLOW_BADLY, and the client goes to the
            # maximum.
            what = (
                f"the next offset is {position} and the queue holds {low} to {high}: its offsets went back by {position - high} "
                f"(an older copy of the store, or a topic deleted and made again?)"
            )
            self.add(key, 0, what, f"begin with a new checkpoint, or {_GO_ON} at {high}")
            return high
        return position

    def replaced(self, key: MessageQueue, position: int, queue: Queue, replaced: Replaced) -> int:
        """Where to go on in a queue that has other messages at offsets that were read before."""
        low, high = queue.min_offset, queue.max_offset
        if self._replaced.get(key) == replaced and replaced.begin is not None:
            return replaced.begin
        if not self._fail:
            self._replaced[key] = replaced
        holds = f"the next offset is {position} and the queue holds {low} to {high}"
        if replaced.begin is not None:
            back = f": its offsets went back by {position - high}" if position > high else ""
            what = f"{holds}{back}: the topic was deleted and created again"
            self.add(
                key,
                max(replaced.stop - position, 0),
                what,
                f"begin with a new checkpoint, or {_GO_ON} at {replaced.begin}",
            )
            return replaced.begin
        if not low <= position <= high:
            return self.begin(key, position, queue)
        what = (
            f"{holds}, but other messages than at the last look: files of the store were replaced, or a broker that had crashed wrote "
            f"over them; those from {low} to {position} are not read"
        )
        self.add(key, position - low, what, f"begin with a new checkpoint, or {_GO_ON} at {position}")
        return position

    def forget_replaced(self) -> None:
        """The next offset says where the replaced queues begin: equal replacements from now on are new."""
        self._replaced.clear()

    def vanished(self, key: MessageQueue, position: int) -> None:
        what = f"the next offset is {position} and the store no longer has the queue: deleted?"
        self.add(key, 0, what, f"{_GO_ON} without it")

    def add(self, key: MessageQueue, count: int, what: str, advice: str) -> None:
        message = f"{key}: {what}"
        if message not in self._told:
            self._found.append((count, message, advice))

    def tell(self) -> None:
        """Raises OffsetOutOfRangeError, or logs, what was found since the last time."""
        found, self._found = self._found, []
        if not found:
            return
        if self._fail:
            _, message, advice = found[0]
            others = f" (and {len(found) - 1} more queues)" if len(found) > 1 else ""
            raise OffsetOutOfRangeError(f"{message}{others}; {advice}")
        for count, message, _ in found:
            self.total += count
            self._told.add(message)
            _log.warning("%d messages lost: %s", count, message)
