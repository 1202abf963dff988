"""The messages whose invisible time has passed, as rows of arrays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from store_format.pop.records import PointKey
from store_format.pop.state import PopQueue, PopState

_Ints = NDArray[np.int64]
_Flags = NDArray[np.bool_]

MESSAGES_MAX = 10_000  # of one revive


@dataclass(frozen=True, slots=True)
class Due:
    """Due messages of one check point: their positions in it and their queue offsets, both ascending."""

    key: PointKey
    visible_at: int
    positions: _Ints
    offsets: _Ints


def first_due(state: PopState, now_ms: int, messages_max: int = MESSAGES_MAX) -> list[Due]:
    """The messages of one revive, by check point, the oldest first."""
    found: list[Due] = []
    for point in state.due(now_ms):
        positions = positions_of(point.whole & ~point.acked)[:messages_max]
        offsets = point.offsets
        every = (
            positions + offsets.start
            if isinstance(offsets, range)
            else np.array(offsets, np.int64)[positions]
        )
        found.append(Due(point.key, point.visible_at, positions, every))
        messages_max -= len(positions)
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
class Rows:
    """The due messages in a row: check point `keys[point]`, position in it, queue offset."""

    keys: list[PointKey]
    point: _Ints
    position: _Ints
    offset: _Ints

    @staticmethod
    def of(due: list[Due]) -> Rows:
        counts = [len(each.positions) for each in due]
        return Rows(
            [each.key for each in due],
            np.repeat(np.arange(len(due)), counts),
            np.concatenate([each.positions for each in due]),
            np.concatenate([each.offsets for each in due]),
        )

    def first(self, count: int) -> Rows:
        return Rows(self.keys, self.point[:count], self.position[:count], self.offset[:count])

    def by_queue(self) -> dict[PopQueue, _Ints]:
        """The rows of each queue."""
        queues = list(dict.fromkeys(key[:2] for key in self.keys))
        of_point = np.array([queues.index(key[:2]) for key in self.keys], np.int64)[self.point]
        return {queue: np.flatnonzero(of_point == number) for number, queue in enumerate(queues)}

    def bits(self, chosen: _Flags) -> dict[PointKey, int]:
        """The bits of the chosen rows, by check point."""
        return {
            key: bits_of(self.position[rows])
            for number, key in enumerate(self.keys)
            if len(rows := np.flatnonzero(chosen & (self.point == number)))
        }

    def marked(self, bits: Mapping[PointKey, int]) -> _Flags:
        """The rows whose bits are set."""
        marked = np.zeros(len(self.point), bool)
        for number, key in enumerate(self.keys):
            rows = self.point == number
            marked[rows] = np.isin(self.position[rows], positions_of(bits.get(key, 0)))
        return marked
