"""When check points become visible: the next one, and those whose time has passed."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping

from store_format.pop.check_point import CheckPoint, QueueState
from store_format.pop.records import PointKey


class VisibleTimes:
    """The check points of `queues` by the time when they become visible.

    `is_again`: those that are delivered again from their own place, otherwise those that are stored again.
    """

    def __init__(self, queues: Mapping[tuple[int, int], QueueState], *, is_again: bool) -> None:
        self._queues = queues
        self._is_again = is_again
        self._heap: list[tuple[int, PointKey]] = []  # visible_at and key; old entries are passed over

    def push(self, point: CheckPoint) -> None:
        """Notes a check point of this kind, or its new time."""
        heapq.heappush(self._heap, (point.visible_at, point.key))
        live = sum(len(each.check_points) for each in self._queues.values())
        if len(self._heap) > 64 + 4 * live:
            self._heap = [(each.visible_at, each.key) for each in self._all()]
            heapq.heapify(self._heap)

    def clear(self) -> None:
        self._heap.clear()

    @property
    def first(self) -> int | None:
        """When the next check point becomes visible; None if there is none."""
        while self._heap:
            at, key = self._heap[0]
            point = self._find(key)
            if point is not None and point.visible_at == at:
                return at
            heapq.heappop(self._heap)
        return None

    def due(self, now_ms: int) -> list[CheckPoint]:
        """The check points whose invisible time has passed, the oldest first."""
        first = self.first
        if first is None or first > now_ms:
            return []
        return sorted(
            (each for each in map(self._find, {key for at, key in self._heap if at <= now_ms})
             if each is not None and each.visible_at <= now_ms),
            key=lambda each: (each.visible_at, each.key),
        )  # fmt: skip

    def _find(self, key: PointKey) -> CheckPoint | None:
        queue = self._queues.get(key[:2])
        point = None if queue is None else queue.check_points.get(key[2:])
        return point if point is not None and (point.again > 0) is self._is_again else None

    def _all(self) -> Iterator[CheckPoint]:
        for queue in self._queues.values():
            for each in queue.check_points.values():
                if (each.again > 0) is self._is_again:
                    yield each
