"""Messages that were handed out together, and the queue that they are from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from store_format.pop.records import COUNT_MAX, PointKey


class WitnessEntry(NamedTuple):
    """An entry of a consume queue: its queue offset, and the physical offset of the message it leads to."""

    offset: int
    physical_offset: int


@dataclass(slots=True)
class CheckPoint:
    """Messages that were handed out together (PopCheckPoint). Bit k of `acked` is the k-th of `offsets`.

    The messages are invisible until `visible_at`. `owner` is the consumer that got them. `origin` is (broker
    name, revive queue id) if a broker handed them out; `taken` are then the bits that it had acknowledged,
    and `suspend` says that the messages come again with the same reconsumeTimes. `again` is for one message
    that cannot be stored again: how often it was delivered from its own place; 0 for all others.
    """

    flag: int
    queue_id: int
    start: int
    offsets: Sequence[int]
    pop_time: int
    invisible_ms: int
    owner: str = ""
    origin: tuple[str, int] | None = None
    acked: int = 0
    taken: int = 0
    suspend: bool = False
    again: int = 0

    @property
    def key(self) -> PointKey:
        return self.flag, self.queue_id, self.start, self.pop_time

    @property
    def visible_at(self) -> int:
        return self.pop_time + self.invisible_ms

    @property
    def whole(self) -> int:
        """The bits of all messages."""
        return (1 << len(self.offsets)) - 1

    @property
    def left(self) -> int:
        """How many messages are not acknowledged."""
        return len(self.offsets) - self.acked.bit_count()

    @property
    def lowest(self) -> int:
        """The lowest offset that is not acknowledged."""
        free = ~self.acked
        return self.offsets[(free & -free).bit_length() - 1]

    def has(self, position: int, held: int = 0) -> bool:
        """Whether the message at the position is not acknowledged, and is not one of the bits `held`."""
        return 0 <= position < len(self.offsets) and not (self.acked | held) >> position & 1

    def unacked(self) -> Iterator[int]:
        """The offsets that are not acknowledged, ascending."""
        return (offset for bit, offset in enumerate(self.offsets) if not self.acked >> bit & 1)


@dataclass(slots=True)
class QueueState:
    """One queue: the next offset to hand out, and what is in flight by (first offset, pop time).

    `witness` is the entry of a message that the queue had: by it the queue of a topic that was created again
    is known (`store_format.pop.witness`).
    """

    next_offset: int
    witness: WitnessEntry | None = None
    check_points: dict[tuple[int, int], CheckPoint] = field(default_factory=dict)

    @property
    def lowest(self) -> int:
        """The lowest offset that is not acknowledged: what consumerOffset.json has while pop is ours."""
        return min((each.lowest for each in self.check_points.values()), default=self.next_offset)

    def free_pop_time(self, start: int, pop_time: int) -> int:
        """The pop time for a new check point: the next ms that no check point with this offset has."""
        while (start, pop_time) in self.check_points:
            pop_time += 1
        return pop_time


@dataclass(frozen=True, slots=True)
class BegunRevive:
    """A revive that has begun: its number, and the positions (bits) of each check point."""

    number: int
    bits: Mapping[PointKey, int]


def as_json(point: CheckPoint) -> dict[str, Any]:  # Any: JSON
    """The check point for a note of the log."""
    offsets = point.offsets
    runs = [offsets.start, offsets.stop] if isinstance(offsets, range) else None
    return {
        "key": list(point.key),
        "run" if runs else "offsets": runs or list(offsets),
        "ms": point.invisible_ms,
        "owner": point.owner,
        "origin": point.origin,
        "acked": hex(point.acked),
        "taken": hex(point.taken),
        **({"suspend": True} if point.suspend else {}),
        **({"again": point.again} if point.again else {}),
    }


def from_json(each: Mapping[str, Any]) -> CheckPoint:
    """The check point of a note."""
    flag, queue_id, start, pop_time = each["key"]
    origin = each["origin"]
    offsets = range(*each["run"]) if "run" in each else tuple(each["offsets"])
    if not offsets or offsets[COUNT_MAX:]:
        raise ValueError("a check point without messages, or with too many")
    return CheckPoint(
        flag,
        queue_id,
        start,
        offsets,
        pop_time,
        each["ms"],
        each["owner"],
        None if origin is None else (origin[0], origin[1]),
        int(each["acked"], 16),
        int(each["taken"], 16),
        each.get("suspend", False),
        each.get("again", 0),
    )


def bits_of(positions: Sequence[int]) -> int | None:
    """The bits of these positions; None for (), which stands for all."""
    if not positions:
        return None
    found = 0
    for each in positions:
        found |= 1 << each
    return found
