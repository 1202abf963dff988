"""What one group has in flight of one topic in one store: the state that the in-flight log rebuilds.

Each change is made by a method that applies it and adds its record to `journal`; a replay applies the
records. So every process that reads the log has the same state. Offsets are queue offsets, times are ms.

A `flag` tells the queues of the topic (0) from those of the group's retry topics `%RETRY%group_topic` (1) and
`%RETRY%group+topic` (2), as in RocketMQ's receipt handles (spec consumption.md 11.7).
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from store_format.pop import records
from store_format.pop.check_point import CheckPoint, QueueState, Revive, as_json, from_json
from store_format.pop.order_state import OrderState
from store_format.pop.records import COUNT_MAX, PointKey

PopQueue = tuple[int, int]  # flag and queue id
TOPIC, RETRY, RETRY_V2 = 0, 1, 2


class PopState:
    """The state; see the module. Only InFlightLog makes and changes one.

    `mirrored` has what consumerOffset.json was last given for a queue: (the value before, the value).
    `settled` are a broker's check points that were acknowledged here, for which the broker needs acks.
    `is_closed`: a broker's records have everything that is in flight. `order` has the batches of a group that
    pops in order. `totals` counts messages: popped, acked, changed, revived.
    """

    def __init__(self) -> None:
        self.queues: dict[PopQueue, QueueState] = {}
        self.mirrored: dict[PopQueue, tuple[int, int]] = {}
        self.settled: dict[PointKey, CheckPoint] = {}
        self.reviving: Revive | None = None
        self.revive_number = 0
        self.is_closed = True  # until the first consumer opens it
        self.totals: Counter[str] = Counter()
        self.order = OrderState(self.queues, self.totals, self._note)
        self.in_flight = 0
        self.journal = bytearray()
        self._heap: list[tuple[int, PointKey]] = []  # visible_at and key; old entries are passed over

    # ---- what others ask -----------------------------------------------------------------------------------

    def check_point(self, key: PointKey) -> CheckPoint | None:
        queue = self.queues.get(key[:2])
        return None if queue is None else queue.check_points.get(key[2:])

    def check_points(self) -> Iterator[CheckPoint]:
        for queue in self.queues.values():
            yield from queue.check_points.values()

    @property
    def next_visible(self) -> int | None:
        """When the next check point becomes visible; None if nothing is in flight."""
        self._drop_old()
        return self._heap[0][0] if self._heap else None

    def due(self, now_ms: int) -> list[CheckPoint]:
        """The check points whose invisible time has passed, the oldest first."""
        first = self.next_visible
        if first is None or first > now_ms:
            return []
        return sorted(
            (each for each in map(self.check_point, {key for at, key in self._heap if at <= now_ms})
             if each is not None and each.visible_at <= now_ms),
            key=lambda each: (each.visible_at, each.key),
        )  # fmt: skip

    # ---- changes -------------------------------------------------------------------------------------------

    def open(self) -> None:
        """The state counts from now on. The opener sets the offsets, and takes over what is in flight."""
        self._note("open")

    def close(self) -> None:
        """A broker's records and consumerOffset.json have everything: nothing here counts any more."""
        self._note("close")

    def set_offset(self, flag: int, queue_id: int, offset: int) -> None:
        """The next offset to hand out: at the start, or after a reset. Nothing is in flight then."""
        self._note("offset", queue=[flag, queue_id], offset=offset)

    def skip(self, flag: int, queue_id: int, next_offset: int) -> None:
        """Passes over messages that no subscription matches, or that no longer exist."""
        self._apply(records.SKIP, (flag, queue_id, next_offset))
        self.journal += records.skip(flag, queue_id, next_offset)

    def hand_out(
        self,
        flag: int,
        queue_id: int,
        offsets: Sequence[int],
        next_offset: int,
        pop_time: int,
        invisible_ms: int,
        owner: str = "",
    ) -> CheckPoint:
        """Hands out the messages at these ascending offsets of a queue that is known.

        The check point's pop time is later than `pop_time` if the offset was handed out in the same ms.
        """
        queue = self.queues[flag, queue_id]
        start = offsets[0]
        if not queue.next_offset <= start <= offsets[-1] < next_offset or len(offsets) > COUNT_MAX:
            raise ValueError(f"offsets {start} to {offsets[-1]} of {queue.next_offset} to {next_offset}")
        while (start, pop_time) in queue.check_points:
            pop_time += 1
        is_run = offsets[-1] - start == len(offsets) - 1
        offsets = range(start, start + len(offsets)) if is_run else tuple(offsets)
        key = flag, queue_id, start, pop_time
        self._apply(records.HAND_OUT, (key, offsets, next_offset, invisible_ms, owner))
        self.journal += records.hand_out(key, offsets, next_offset, invisible_ms, owner)
        return queue.check_points[start, pop_time]

    def ack(self, key: PointKey, positions: Iterable[int] | None = None) -> int:
        """Acknowledges the messages at these positions of a check point, None: all.

        Returns how many were not acknowledged before; 0 also for a check point that is not known any more.
        A message that is being revived is not acknowledged.
        """
        point = self.check_point(key)
        if point is None:
            return 0
        held = self.reviving.bits.get(key, 0) if self.reviving is not None else 0
        if positions is None and not held:
            chosen: tuple[int, ...] = ()
            count = point.left
        else:
            wanted = range(len(point.offsets)) if positions is None else sorted(set(positions))
            chosen = tuple(
                each for each in wanted
                if 0 <= each < len(point.offsets) and not (point.acked | held) >> each & 1
            )  # fmt: skip
            count = len(chosen)
            if not chosen:
                return 0
        self._apply(records.ACK, (key, chosen))
        self.journal += records.ack(key, chosen)
        return count

    def change_invisible(
        self, key: PointKey, position: int, pop_time: int, invisible_ms: int
    ) -> CheckPoint | None:
        """Gives one message a check point of its own, with another invisible time (spec 11.7).

        The old handle of the message is worth nothing afterwards. Returns None for a message that is not in
        flight under this key.
        """
        point = self.check_point(key)
        held = self.reviving.bits.get(key, 0) if self.reviving is not None else 0
        if point is None or not 0 <= position < len(point.offsets) or (point.acked | held) >> position & 1:
            return None
        queue, offset = self.queues[key[:2]], point.offsets[position]
        while (offset, pop_time) in queue.check_points:
            pop_time += 1
        self._apply(records.CHANGE, (key, position, pop_time, invisible_ms))
        self.journal += records.change(key, position, pop_time, invisible_ms)
        return queue.check_points[offset, pop_time]

    def renew(self, key: PointKey, invisible_ms: int) -> bool:
        """Makes the check point visible at its pop time + `invisible_ms`; False if it is not known."""
        point = self.check_point(key)
        if point is None or (self.reviving is not None and key in self.reviving.bits):
            return False
        self._apply(records.RENEW, (key, invisible_ms))
        self.journal += records.renew(key, invisible_ms)
        return True

    def begin_revive(self, bits: Mapping[PointKey, int]) -> Revive:
        """The messages of these bits are going to be stored again. Nobody acknowledges them from now on."""
        if self.reviving is not None:
            raise ValueError(f"revive {self.reviving.number} has not ended")
        self._note(
            "revive", number=self.revive_number + 1, points=[[*key, hex(each)] for key, each in bits.items()]
        )
        return Revive(self.revive_number, dict(bits))

    def end_revive(self, number: int, *, is_done: bool) -> None:
        """The messages are in the retry topic now, or are still in flight."""
        self._note("revived", number=number, done=is_done)

    def note_mirrored(self, offsets: Mapping[PopQueue, int]) -> None:
        """Before consumerOffset.json gets these offsets."""
        self._note("mirror", queues=[[*queue, offset] for queue, offset in offsets.items()])

    def take_over(self, points: Iterable[CheckPoint]) -> None:
        """Takes over what a broker has in flight. The offsets of the queues were set before."""
        self._note("take", points=[as_json(each) for each in points])

    # ---- replay --------------------------------------------------------------------------------------------

    def replay(self, frame: bytes, path: str, position: int) -> None:
        """Applies the records of a frame. Raises CorruptStoreError for records of a newer release."""
        for kind, values in records.decoded(frame, path, position):
            try:
                self._apply(kind, values)
            except (LookupError, TypeError, ValueError) as error:
                raise records.unreadable(path, position, f"{values!r:.100}") from error

    def snapshot(self) -> bytes:
        """Records that rebuild the state."""
        found = bytearray()
        if not self.is_closed:
            found += records.note("open")
        for (flag, queue_id), queue in self.queues.items():
            found += records.note("offset", queue=[flag, queue_id], offset=queue.next_offset)
        points = [*self.check_points(), *self.settled.values()]
        found += records.note("take", points=[as_json(each) for each in points])
        found += self.order.snapshot(records.note)
        if self.reviving is not None:
            found += records.note(
                "revive",
                number=self.reviving.number,
                points=[[*key, hex(each)] for key, each in self.reviving.bits.items()],
            )
        return bytes(
            found
            + records.note(
                "state",
                mirrored=[[*queue, *values] for queue, values in self.mirrored.items()],
                number=self.revive_number,
                totals=dict(self.totals),
            )
        )

    def _note(self, do: str, **fields: Any) -> None:  # Any: JSON
        self._apply(records.NOTE, {"do": do, **fields})
        self.journal += records.note(do, **fields)

    def _apply(self, kind: int, values: Any) -> None:  # Any: by kind
        if kind == records.HAND_OUT:
            key, offsets, next_offset, invisible_ms, owner = values
            queue = self.queues.setdefault(key[:2], QueueState(0))
            queue.next_offset = next_offset
            flag, queue_id, start, pop_time = key
            self._add(CheckPoint(flag, queue_id, start, offsets, pop_time, invisible_ms, owner))
            self.totals["popped"] += len(offsets)
        elif kind == records.ACK:
            self._acked(values[0], _bits(values[1]), "acked")
        elif kind == records.CHANGE:
            key, position, pop_time, invisible_ms = values
            point = self.check_point(key)
            if point is not None and position < len(point.offsets):
                offset, owner = point.offsets[position], point.owner
                self._acked(key, 1 << position, "changed")
                one = range(offset, offset + 1)
                self._add(CheckPoint(key[0], key[1], offset, one, pop_time, invisible_ms, owner))
        elif kind == records.RENEW:
            key, invisible_ms = values
            point = self.check_point(key)
            if point is not None:
                point.invisible_ms = invisible_ms
                self._push(point)
        elif kind == records.SKIP:
            flag, queue_id, next_offset = values
            self.queues.setdefault((flag, queue_id), QueueState(0)).next_offset = next_offset
            if flag == TOPIC:
                self.order.skip(queue_id)
        else:
            _NOTES[values["do"]](self, values)

    def _add(self, point: CheckPoint) -> None:
        self.queues[point.key[:2]].check_points[point.key[2:]] = point
        self.in_flight += point.left
        self._push(point)

    def _push(self, point: CheckPoint) -> None:
        heapq.heappush(self._heap, (point.visible_at, point.key))
        live = sum(len(each.check_points) for each in self.queues.values())
        if len(self._heap) > 64 + 4 * live:
            self._heap = [(each.visible_at, each.key) for each in self.check_points()]
            heapq.heapify(self._heap)

    def _drop_old(self) -> None:
        while self._heap:
            at, key = self._heap[0]
            point = self.check_point(key)
            if point is not None and point.visible_at == at:
                return
            heapq.heappop(self._heap)

    def _acked(self, key: PointKey, bits: int | None, what: str) -> None:
        """Sets bits of a check point, None: all. A whole one is forgotten, a broker's is settled."""
        point = self.check_point(key)
        if point is None:
            return
        new = (point.whole if bits is None else bits & point.whole) & ~point.acked
        point.acked |= new
        self.in_flight -= new.bit_count()
        self.totals[what] += new.bit_count()
        if point.acked == point.whole:
            del self.queues[key[:2]].check_points[key[2:]]
            if point.origin is not None:
                self.settled[key] = point

    # ---- changes by name -----------------------------------------------------------------------------------

    def _apply_open(self, values: Mapping[str, Any]) -> None:
        self.is_closed = False

    def _apply_close(self, values: Mapping[str, Any]) -> None:
        self.queues.clear()
        self.settled.clear()
        self._heap.clear()
        self.order.close()
        self.reviving, self.in_flight, self.is_closed = None, 0, True

    def _apply_offset(self, values: Mapping[str, Any]) -> None:
        flag, queue_id = values["queue"]
        before = self.queues.get((flag, queue_id))
        for point in list(before.check_points.values()) if before is not None else ():
            self._acked(point.key, None, "dropped")
        self.queues[flag, queue_id] = QueueState(values["offset"])
        if flag == TOPIC:
            self.order.drop(queue_id)

    def _apply_order(self, values: Mapping[str, Any]) -> None:
        self.order.apply(values)

    def _apply_revive(self, values: Mapping[str, Any]) -> None:
        self.revive_number = values["number"]
        bits = {
            (flag, queue, start, pop): int(each, 16) for flag, queue, start, pop, each in values["points"]
        }
        self.reviving = Revive(self.revive_number, bits)

    def _apply_revived(self, values: Mapping[str, Any]) -> None:
        revive, self.reviving = self.reviving, None
        if revive is not None and values["done"]:
            for key, bits in revive.bits.items():
                self._acked(key, bits, "revived")
                self.order.bury(key, bits)

    def _apply_mirror(self, values: Mapping[str, Any]) -> None:
        for flag, queue_id, offset in values["queues"]:
            before = self.mirrored.get((flag, queue_id), (offset, offset))[1]
            self.mirrored[flag, queue_id] = (before, offset)

    def _apply_take(self, values: Mapping[str, Any]) -> None:
        for each in values["points"]:
            point = from_json(each)
            self.queues.setdefault(point.key[:2], QueueState(0))
            if point.acked == point.whole:
                self.settled[point.key] = point
            else:
                self._add(point)

    def _apply_state(self, values: Mapping[str, Any]) -> None:
        self.mirrored = {
            (flag, queue): (before, now) for flag, queue, before, now in values["mirrored"]
        }  # fmt: skip
        self.revive_number = values["number"]
        self.totals.clear()
        self.totals.update(values["totals"])


_NOTES = {
    name: getattr(PopState, f"_apply_{name}")
    for name in ("open", "close", "offset", "revive", "revived", "mirror", "take", "order", "state")
}


def _bits(positions: Sequence[int]) -> int | None:
    """The bits of these positions; None for (), which stands for all."""
    if not positions:
        return None
    found = 0
    for each in positions:
        found |= 1 << each
    return found
