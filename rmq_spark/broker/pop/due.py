"""The messages whose invisible time has passed, as rows of arrays."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from store_format.pop.records import PointKey
from store_format.pop.state import PopQueue, PopState

_Ints = NDArray[np.int64]
_Flags = NDArray[np.bool_]

MESSAGES_MAX = 10_000  # of one revive


@dataclass(frozen=True, slots=True)
class DueCheckPoint:
    """The due messages of one check point: the bits of `all_offsets` that are set in `bits`."""

    key: PointKey
    visible_at: int
    bits: int
    all_offsets: Sequence[int]

    @property
    def count(self) -> int:
        return self.bits.bit_count()

    @property
    def positions(self) -> _Ints:
        """The positions of the messages in the check point, ascending."""
        return positions_of(self.bits)

    @property
    def offsets(self) -> _Ints:
        """The queue offsets of the messages, ascending."""
        every = self.all_offsets
        if isinstance(every, range):
            return self.positions + every.start
        offsets: _Ints = np.array(every, np.int64)[self.positions]
        return offsets


def first_due(state: PopState, now_ms: int, messages_max: int = MESSAGES_MAX) -> list[DueCheckPoint]:
    """The messages of one revive, by check point, the oldest first. Called under the lock of the log."""
    found: list[DueCheckPoint] = []
    for point in state.due(now_ms):
        bits = point.whole & ~point.acked
        if point.left > messages_max:
            bits = bits_of(positions_of(bits)[:messages_max])
        found.append(DueCheckPoint(point.key, point.visible_at, bits, point.offsets))
        messages_max -= found[-1].count
        if messages_max <= 0:
            break
    return found


def positions_of(bits: int) -> _Ints:
    """The positions of the bits that are set, ascending."""
    data = np.frombuffer(bits.to_bytes(bits.bit_length() // 8 + 1, "little"), np.uint8)
    return np.flatnonzero(np.unpackbits(data, bitorder="little"))


def bits_of(positions: _Ints) -> int:
    mask = np.zeros(int(positions.max(initial=-1)) + 1, np.uint8)
    mask[positions] = 1
    return int.from_bytes(np.packbits(mask, bitorder="little").tobytes(), "little")


@dataclass(frozen=True, slots=True)
class DueMessages:
    """The due messages as arrays: the check point `keys[point]`, the position in it, the queue offset."""

    keys: list[PointKey]
    point: _Ints
    position: _Ints
    offset: _Ints

    @staticmethod
    def of(due: list[DueCheckPoint]) -> DueMessages:
        return DueMessages(
            [each.key for each in due],
            np.repeat(np.arange(len(due)), [each.count for each in due]),
            np.concatenate([each.positions for each in due]),
            np.concatenate([each.offsets for each in due]),
        )

    def first(self, count: int) -> DueMessages:
        return DueMessages(self.keys, self.point[:count], self.position[:count], self.offset[:count])

    def slices(self) -> Iterator[tuple[PointKey, slice]]:
        """The rows of each check point."""
        bounds = np.searchsorted(self.point, np.arange(len(self.keys) + 1)).tolist()
        return (
            (key, slice(start, stop)) for key, (start, stop) in zip(self.keys, pairwise(bounds), strict=True)
        )

    def by_queue(self) -> dict[PopQueue, _Ints]:
        """The rows of each queue."""
        queues = list(dict.fromkeys(key[:2] for key in self.keys))
        of_point = np.array([queues.index(key[:2]) for key in self.keys], np.int64)[self.point]
        return {queue: np.flatnonzero(of_point == number) for number, queue in enumerate(queues)}

    def bits(self, chosen: _Flags) -> dict[PointKey, int]:
        """The bits of the chosen rows, by check point."""
        found = {key: bits_of(self.position[rows][chosen[rows]]) for key, rows in self.slices()}
        return {key: bits for key, bits in found.items() if bits}

    def marked(self, bits: Mapping[PointKey, int]) -> _Flags:
        """The rows whose bits are set."""
        marked = np.zeros(len(self.point), bool)
        for key, rows in self.slices():
            if key in bits:
                marked[rows] = np.isin(self.position[rows], positions_of(bits[key]))
        return marked
