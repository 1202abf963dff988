"""The records of the in-flight log: frames of records, little-endian; and the messages that were handed out
together (`CheckPoint`).

A frame holds all changes of one moment, and counts as a whole or not at all. It is the length of its records
(u32), the records, and a checksum (u32): the CRC32 of the length and the records, begun with the four bytes
before the frame. These are the checksum of the frame before, so a checksum depends on everything before it:
a process that finds the same four bytes again has read the same log. Records of every hand-out have fixed
layouts, the others are JSON.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from zlib import crc32

from store_format.errors import CorruptStoreError

MAGIC = b"rmqpop2\n"
ACK, CHANGE, RENEW, SKIP, NOTE, HAND_OUT = range(2, 8)
COUNT_MAX = 1 << 24  # messages of one check point
CHECKSUM_SIZE = 4

PointKey = tuple[int, int, int, int]  # flag, queue id, first offset, pop time: the name of a check point

_NUMBER = struct.Struct("<I")
# kind, flag, queue id, start, pop time, invisible ms, next offset, messages, offsets listed, size of owner;
# then the physical offset of the last message, -1: unknown
_HAND_OUT = struct.Struct("<BBiqqqqIIBq")
_ACK = struct.Struct("<BBiqqI")  # kind, flag, queue id, start, pop time, positions that follow; 0: all
_CHANGE = struct.Struct(
    "<BBiqqIqq"
)  # kind, flag, queue id, start, pop time, position, new pop time, invisible ms
_RENEW = struct.Struct("<BBiqqq")  # kind, flag, queue id, start, pop time, invisible ms
_SKIP = struct.Struct("<BBiq")  # kind, flag, queue id, next offset
_NOTE = struct.Struct("<BI")  # kind, length of the JSON text


# ---- frames and records ------------------------------------------------------------------------------------


def frame(records: bytes, before: bytes = MAGIC) -> bytes:
    """The frame of these records, behind the bytes `before`."""
    data = _NUMBER.pack(len(records)) + records
    return data + _NUMBER.pack(crc32(data, _seed(before)))


def frames(data: bytes, before: bytes = MAGIC) -> Iterator[tuple[int, bytes]]:
    """(the position behind the frame, its records) for each whole frame, up to the first torn one.

    `before` are the bytes before `data`.
    """
    position, seed = 0, _seed(before)
    while position + _NUMBER.size <= len(data):
        start = position + _NUMBER.size
        stop = start + _NUMBER.unpack_from(data, position)[0]
        if stop == start or stop + _NUMBER.size > len(data):
            return
        seed = crc32(data[position:stop], seed)
        if seed != _NUMBER.unpack_from(data, stop)[0]:
            return
        position = stop + _NUMBER.size
        yield position, data[start:stop]


def _seed(before: bytes) -> int:
    seed: int = _NUMBER.unpack(before[-CHECKSUM_SIZE:])[0]
    return seed


def hand_out(
    key: PointKey,
    offsets: Sequence[int],
    next_offset: int,
    invisible_ms: int,
    owner: str,
    physical_offset: int,
) -> bytes:
    """Messages were handed out. Consecutive offsets are stored as their number, others one by one.

    `physical_offset` is that of the last message, -1: unknown.
    """
    flag, queue_id, start, pop_time = key
    name = owner.encode()
    deltas = () if isinstance(offsets, range) else [offset - start for offset in offsets]
    head = _HAND_OUT.pack(
        HAND_OUT, flag, queue_id, start, pop_time, invisible_ms, next_offset, len(offsets), len(deltas),
        len(name), physical_offset,
    )  # fmt: skip
    return head + name + struct.pack(f"<{len(deltas)}I", *deltas)


def ack(key: PointKey, positions: Sequence[int]) -> bytes:
    """The messages at these positions of the check point were acknowledged; () stands for all."""
    return _ACK.pack(ACK, *key, len(positions)) + struct.pack(f"<{len(positions)}I", *positions)


def change(key: PointKey, position: int, pop_time: int, invisible_ms: int) -> bytes:
    """The message at the position got a check point of its own, with another invisible time."""
    return _CHANGE.pack(CHANGE, *key, position, pop_time, invisible_ms)


def renew(key: PointKey, invisible_ms: int) -> bytes:
    """The check point is invisible for so long from its pop time on."""
    return _RENEW.pack(RENEW, *key, invisible_ms)


def skip(flag: int, queue_id: int, next_offset: int) -> bytes:
    """The messages before the offset need not be handed out: no subscription matches them."""
    return _SKIP.pack(SKIP, flag, queue_id, next_offset)


def note(do: str, **fields: Any) -> bytes:  # Any: JSON
    """Any other change, by its name."""
    text = json.dumps({"do": do, **fields}, separators=(",", ":")).encode()
    return _NOTE.pack(NOTE, len(text)) + text


def decoded(records: bytes, path: str, position: int) -> Iterator[tuple[int, Any]]:
    """(kind, its values) for each record of a frame that ends at `position` of the file.

    Raises CorruptStoreError for a kind that this release does not know.
    """
    at, kind = 0, 0
    try:
        while at < len(records):
            kind = records[at]
            if kind == HAND_OUT:
                _, flag, queue, start, pop, invisible, behind, count, deltas, owned, physical = (
                    _HAND_OUT.unpack_from(records, at)
                )
                at += _HAND_OUT.size
                owner = records[at : at + owned].decode()
                at += owned
                offsets: Sequence[int] = range(start, start + count)
                if deltas:
                    offsets = tuple(start + each for each in struct.unpack_from(f"<{deltas}I", records, at))
                    at += 4 * deltas
                if not 0 < len(offsets) <= COUNT_MAX or len(offsets) != count:
                    break
                yield kind, ((flag, queue, start, pop), offsets, behind, invisible, owner, physical)
            elif kind == ACK:
                _, flag, queue, start, pop, count = _ACK.unpack_from(records, at)
                at += _ACK.size
                yield kind, ((flag, queue, start, pop), struct.unpack_from(f"<{count}I", records, at))
                at += 4 * count
            elif kind == CHANGE:
                _, flag, queue, start, pop, *values = _CHANGE.unpack_from(records, at)
                at += _CHANGE.size
                yield kind, ((flag, queue, start, pop), *values)
            elif kind == RENEW:
                _, flag, queue, start, pop, invisible = _RENEW.unpack_from(records, at)
                at += _RENEW.size
                yield kind, ((flag, queue, start, pop), invisible)
            elif kind == SKIP:
                _, *values = _SKIP.unpack_from(records, at)
                at += _SKIP.size
                yield kind, tuple(values)
            elif kind == NOTE:
                _, length = _NOTE.unpack_from(records, at)
                at += _NOTE.size + length
                yield kind, json.loads(records[at - length : at])
            else:
                break
        else:
            return
    except (struct.error, ValueError, RecursionError):
        pass
    raise unreadable(path, position, f"a record of kind {kind}")


def unreadable(path: str, position: int, found: str) -> CorruptStoreError:
    """The error for a frame that ends at `position` with a right checksum and other records."""
    return CorruptStoreError(
        path, position, "records of pop as this release writes them",
        f"{found}, in the frame that ends there; use the release that wrote the file, or remove the file: "
        "messages in flight are then delivered again",
    )  # fmt: skip


# ---- what was handed out together --------------------------------------------------------------------------


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
    is known (`store_format.pop.log`).
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
