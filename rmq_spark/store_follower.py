"""One store of a stream, followed: the chosen queues as of the last look, and which of them that look changed."""

from __future__ import annotations

from rmq_spark.store_queues import find_queues
from rmq_spark.topics import TopicChoice
from store_format import MessageStore, Queue

__all__ = ["StoreFollower"]

_Key = tuple[str, int]


class StoreFollower:
    """`queues` are the chosen ones by (topic, queue id); `changed` those that the last look that returned True found different."""

    def __init__(self, store: MessageStore, choice: TopicChoice) -> None:
        self.store = store
        self.queues: dict[_Key, Queue] = {}
        self.changed: dict[_Key, Queue | None] = {}
        self.cuts: list[int] = []
        self._choice = choice

    def look(self, *, anew: bool = False) -> bool:
        """Whether anything is different now."""
        there = find_queues(self.store, self._choice)
        self.cuts = there.cuts
        found = {(queue.topic, queue.queue_id): queue for queue in (*there.queues, *there.scanned)}
        self.changed = {key: queue for key, queue in found.items() if not _same(self.queues.get(key), queue)}
        self.changed |= dict.fromkeys(self.queues.keys() - found.keys())
        self.queues = found
        return bool(self.changed)


def _same(before: Queue | None, now: Queue) -> bool:
    return before is not None and before.range == now.range and before.scanned == now.scanned
