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
from store_format.pop.order import OrderState
from store_format.pop.records import (
    COUNT_MAX,
    BegunRevive,
    CheckPoint,
    PointKey,
    QueueState,
    WitnessEntry,
    as_json,
    bits_of,
    from_json,
)

PopQueue = tuple[int, int]  # flag and queue id
TOPIC, RETRY, RETRY_V2 = _FLAGS = 0, 1, 2


class PopState:
    """The state; see the module. Only InFlightLog makes and changes one.

    `mirrored` has what consumerOffset.json was last given for a queue: (the value before, the value).
    `settled` are a broker's check points that were acknowledged here, for which the broker needs acks.
    `is_closed`: a broker's records have everything that is in flight; `owners` then has whose the messages
    are, by the queue and the pop time, which the broker's records do not say. `order` has the batches of a
    group that pops in order. `again` has the messages that cannot be stored again and are delivered again
    from their own place. `totals` counts messages: popped, acked, changed, revived. `renewals` counts the
    queues whose topic was created again.
    """

    def __init__(self) -> None:
        self.queues: dict[PopQueue, QueueState] = {}
        self.mirrored: dict[PopQueue, tuple[int, int]] = {}
        self.settled: dict[PointKey, CheckPoint] = {}
        self.reviving: BegunRevive | None = None
        self.revive_number = 0
        self.is_closed = True  # until the first consumer opens it
        self.owners: dict[tuple[PopQueue, int], str] = {}
        self.totals: Counter[str] = Counter()
        self.order = OrderState(self.queues, self.totals, self._note)
        self.in_flight = self.renewals = 0
        self.journal = bytearray()
        self._times = _VisibleTimes(self.queues, is_again=False)
        self.again = _VisibleTimes(self.queues, is_again=True)

    # ---- what others ask -----------------------------------------------------------------------------------

    def check_point(self, key: PointKey) -> CheckPoint | None:
        queue = self.queues.get(key[:2])
        return None if queue is None else queue.check_points.get(key[2:])

    def check_points(self) -> Iterator[CheckPoint]:
        for queue in self.queues.values():
            yield from queue.check_points.values()

    @property
    def next_visible(self) -> int | None:
        """When the next check point becomes visible, whose messages are then stored again, or None."""
        return self._times.first

    def due(self, now_ms: int) -> list[CheckPoint]:
        """The check points to store again: their invisible time has passed. The oldest first."""
        return self._times.due(now_ms)

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

    def renew_queue(self, flag: int, queue_id: int, offset: int) -> None:
        """The queue is that of a new topic and begins at the offset: nothing of the deleted topic counts."""
        self._note("new", queue=[flag, queue_id], offset=offset)

    def note_witnesses(self, entries: Mapping[PopQueue, WitnessEntry | None]) -> None:
        """Sets the witnesses of queues that are known, see QueueState."""
        self._note("entries", queues=[[*queue, *(entry or ())] for queue, entry in entries.items()])

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
        *,
        physical_offset: int = -1,
    ) -> CheckPoint:
        """Hands out the messages at these ascending offsets of a queue that is known.

        `physical_offset` is that of the last message, -1: unknown. The check point's pop time is later than
        `pop_time` if the offset was handed out in the same ms.
        """
        queue = self.queues[flag, queue_id]
        start = offsets[0]
        if not queue.next_offset <= start <= offsets[-1] < next_offset or len(offsets) > COUNT_MAX:
            raise ValueError(f"offsets {start} to {offsets[-1]} of {queue.next_offset} to {next_offset}")
        pop_time = queue.free_pop_time(start, pop_time)
        is_run = offsets[-1] - start == len(offsets) - 1
        offsets = range(start, start + len(offsets)) if is_run else tuple(offsets)
        key = flag, queue_id, start, pop_time
        values = key, offsets, next_offset, invisible_ms, owner, physical_offset
        self._apply(records.HAND_OUT, values)
        self.journal += records.hand_out(*values)
        return queue.check_points[start, pop_time]

    def ack(self, key: PointKey, positions: Iterable[int] | None = None) -> int:
        """Acknowledges the messages at these positions of a check point, None: all.

        Returns how many were not acknowledged before; 0 also for a check point that is not known any more.
        A message that is being revived is not acknowledged.
        """
        point = self.check_point(key)
        if point is None:
            return 0
        held = self._held(key)
        if positions is None and not held:
            chosen: tuple[int, ...] = ()
            count = point.left
        else:
            wanted = range(len(point.offsets)) if positions is None else sorted(set(positions))
            chosen = tuple(each for each in wanted if point.has(each, held))
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
        place = self._place_of(key, position, pop_time)
        if place is None:
            return None
        self._apply(records.CHANGE, (key, position, place[1], invisible_ms))
        self.journal += records.change(key, position, place[1], invisible_ms)
        return self.queues[key[:2]].check_points[place]

    def deliver_again(
        self, key: PointKey, position: int, pop_time: int, visible_at: int, owner: str = ""
    ) -> CheckPoint | None:
        """Gives one message that cannot be stored again a check point of its own, and counts a delivery.

        Whenever this check point is visible, the message is delivered again from its own place: call this
        method again then. Returns None as `change_invisible`.
        """
        place = self._place_of(key, position, pop_time)
        if place is None:
            return None
        invisible_ms = max(visible_at - place[1], 0)
        self._note("again", key=[*key], position=position, pop_time=place[1], ms=invisible_ms, owner=owner)
        return self.queues[key[:2]].check_points[place]

    def _place_of(self, key: PointKey, position: int, pop_time: int) -> tuple[int, int] | None:
        """The offset and a free pop time for a check point of one message; None if it is not in flight."""
        point = self.check_point(key)
        if point is None or not point.has(position, self._held(key)):
            return None
        offset = point.offsets[position]
        return offset, self.queues[key[:2]].free_pop_time(offset, pop_time)

    def _held(self, key: PointKey) -> int:
        """The bits of the messages of the check point that are being revived."""
        return self.reviving.bits.get(key, 0) if self.reviving is not None else 0

    def renew(self, key: PointKey, invisible_ms: int) -> bool:
        """Makes the check point visible at its pop time + `invisible_ms`; False if it is not known."""
        point = self.check_point(key)
        if point is None or (self.reviving is not None and key in self.reviving.bits):
            return False
        self._apply(records.RENEW, (key, invisible_ms))
        self.journal += records.renew(key, invisible_ms)
        return True

    def begin_revive(self, bits: Mapping[PointKey, int]) -> BegunRevive:
        """The messages of these bits are going to be stored again. Nobody acknowledges them from now on."""
        if self.reviving is not None:
            raise ValueError(f"revive {self.reviving.number} has not ended")
        self._note(
            "revive", number=self.revive_number + 1, points=[[*key, hex(each)] for key, each in bits.items()]
        )
        return BegunRevive(self.revive_number, dict(bits))

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

    def _note(self, do: str, **fields: Any) -> None:  # Any: JSON
        self._apply(records.NOTE, {"do": do, **fields})
        self.journal += records.note(do, **fields)

    def _apply(self, kind: int, values: Any) -> None:  # Any: by kind
        if kind == records.HAND_OUT:
            key, offsets, next_offset, invisible_ms, owner, physical_offset = values
            queue = self.queues.setdefault(_named(key[:2]), QueueState(0))
            queue.next_offset = next_offset
            if physical_offset >= 0:
                queue.witness = WitnessEntry(offsets[-1], physical_offset)
            flag, queue_id, start, pop_time = key
            self._add(CheckPoint(flag, queue_id, start, offsets, pop_time, invisible_ms, owner))
            self.totals["popped"] += len(offsets)
        elif kind == records.ACK:
            self._acked(values[0], bits_of(values[1]), "acked")
        elif kind == records.CHANGE:
            self._single(*values)
        elif kind == records.RENEW:
            key, invisible_ms = values
            point = self.check_point(key)
            if point is not None:
                point.invisible_ms = invisible_ms
                self._push(point)
        elif kind == records.SKIP:
            flag, queue_id, next_offset = values
            self.queues.setdefault(_named((flag, queue_id)), QueueState(0)).next_offset = next_offset
            if flag == TOPIC:
                self.order.skip(queue_id)
        else:
            _NOTES[values["do"]](self, values)

    def _add(self, point: CheckPoint) -> None:
        self.queues[point.key[:2]].check_points[point.key[2:]] = point
        self.in_flight += point.left
        self._push(point)

    def _push(self, point: CheckPoint) -> None:
        (self.again if point.again else self._times).push(point)

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

    def _single(
        self, key: PointKey, position: int, pop_time: int, invisible_ms: int, owner: str | None = None
    ) -> None:
        """Gives one message a check point of its own. With an owner it is delivered again to that one."""
        point = self.check_point(key)
        if point is None or position >= len(point.offsets):
            return
        is_again = owner is not None
        self._acked(key, 1 << position, "again" if is_again else "changed")
        offset = point.offsets[position]
        one = range(offset, offset + 1)
        owner = point.owner if owner is None else owner
        again = point.again + is_again
        self._add(CheckPoint(*key[:2], offset, one, pop_time, invisible_ms, owner, again=again))

    # ---- changes by name -----------------------------------------------------------------------------------

    def _apply_open(self, values: Mapping[str, Any]) -> None:
        self.is_closed = False

    def _apply_close(self, values: Mapping[str, Any]) -> None:
        points = [point for point in self.check_points() if point.owner]
        self.owners = {(point.key[:2], point.pop_time): point.owner for point in points}
        self.queues.clear()
        self.settled.clear()
        self._times.clear()
        self.again.clear()
        self.order.close()
        self.reviving, self.in_flight, self.is_closed = None, 0, True

    def _apply_offset(self, values: Mapping[str, Any]) -> None:
        flag, queue_id = _named(values["queue"])
        before = self.queues.get((flag, queue_id))
        for point in list(before.check_points.values()) if before is not None else ():
            self._acked(point.key, None, "dropped")
        self.queues[flag, queue_id] = QueueState(values["offset"], None if before is None else before.witness)
        if flag == TOPIC:
            self.order.drop(queue_id)

    def _apply_new(self, values: Mapping[str, Any]) -> None:
        self._apply_offset(values)
        flag, queue_id = values["queue"]
        self.queues[flag, queue_id].witness = None
        self.mirrored.pop((flag, queue_id), None)
        self.renewals += 1

    def _apply_entries(self, values: Mapping[str, Any]) -> None:
        for flag, queue_id, *entry in values["queues"]:
            self.queues[flag, queue_id].witness = WitnessEntry(*entry) if entry else None

    def _apply_order(self, values: Mapping[str, Any]) -> None:
        self.order.apply(values)

    def _apply_revive(self, values: Mapping[str, Any]) -> None:
        self.revive_number = values["number"]
        bits = {
            (flag, queue, start, pop): int(each, 16) for flag, queue, start, pop, each in values["points"]
        }
        self.reviving = BegunRevive(self.revive_number, bits)

    def _apply_revived(self, values: Mapping[str, Any]) -> None:
        revive, self.reviving = self.reviving, None
        if revive is not None and values["done"]:
            for key, bits in revive.bits.items():
                self._acked(key, bits, "revived")
                self.order.bury(key, bits)

    def _apply_mirror(self, values: Mapping[str, Any]) -> None:
        for flag, queue_id, offset in values["queues"]:
            queue = _named((flag, queue_id))
            self.mirrored[queue] = (self.mirrored.get(queue, (offset, offset))[1], offset)

    def _apply_take(self, values: Mapping[str, Any]) -> None:
        for each in values["points"]:
            point = from_json(each)
            self.queues.setdefault(_named(point.key[:2]), QueueState(0))
            if point.acked == point.whole:
                self.settled[point.key] = point
            else:
                self._add(point)

    def _apply_again(self, values: Mapping[str, Any]) -> None:
        flag, queue_id, start, pop_time = values["key"]
        key = flag, queue_id, start, pop_time
        self._single(key, values["position"], values["pop_time"], values["ms"], values["owner"])

    def _apply_state(self, values: Mapping[str, Any]) -> None:
        self.mirrored = {
            _named((flag, queue)): (before, now) for flag, queue, before, now in values["mirrored"]
        }  # fmt: skip
        self.revive_number = values["number"]
        self.totals.clear()
        self.totals.update(values["totals"])
        self.renewals = values["renewals"]
        self.owners = {((flag, queue), time): name for flag, queue, time, name in values.get("owners", ())}


def _named(queue: PopQueue) -> PopQueue:
    """The queue that a record names. Raises ValueError for a flag that no release writes."""
    flag, queue_id = queue
    if flag not in _FLAGS:
        raise ValueError(f"flag {flag!r}")
    return flag, queue_id


_NAMES = "open", "close", "offset", "new", "entries", "revive", "revived", "mirror", "take", "order", "again"
_NOTES = {name: getattr(PopState, f"_apply_{name}") for name in (*_NAMES, "state")}


# ---- visible times -----------------------------------------------------------------------------------------


class _VisibleTimes:
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
            yield from (each for each in queue.check_points.values() if (each.again > 0) is self._is_again)
