"""References to message units: one file's bytes, and where in them each unit should be and whose it should be."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from store_format.errors import CorruptStoreError

_Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Identity:
    """Who the units should be: the queue entry that led to each. Topics are few, `topic_index` says which is
    whose.

    `light[i]` marks topics[i] as a light queue (%LMQ%): its units carry another topic, and name the queue in
    a property.
    """

    topics: tuple[str, ...]
    topic_index: NDArray[np.int32] | None  # None: all are topics[0]
    queue_ids: NDArray[np.int32]
    queue_offsets: _Ints
    light: tuple[bool, ...] = ()
    # For entries that cover several queue offsets (BatchCQ): the half-open range asked for, for each unit.
    wanted: tuple[_Ints, _Ints] | None = None
    counts: NDArray[np.int16] | None = None  # and how many offsets each entry covers

    def light_rows(self) -> NDArray[np.bool_] | None:
        """Which units are reached through a light queue; None when none is."""
        if not any(self.light):
            return None
        if self.topic_index is None:
            return np.ones(len(self.queue_ids), bool)
        return np.array(self.light)[self.topic_index]

    def topic_of(self, i: int) -> str:
        return self.topics[0 if self.topic_index is None else int(self.topic_index[i])]

    def select(self, index: NDArray[np.generic]) -> Identity:
        topic_index = None if self.topic_index is None else self.topic_index[index]
        wanted = None if self.wanted is None else (self.wanted[0][index], self.wanted[1][index])
        counts = None if self.counts is None else self.counts[index]
        return Identity(
            self.topics,
            topic_index,
            self.queue_ids[index],
            self.queue_offsets[index],
            self.light,
            wanted,
            counts,
        )


@dataclass(frozen=True, slots=True)
class UnitRefs:
    """Where units should be: one file's bytes and, for each unit, its position there and its size in bytes.

    `base` is the physical offset of buffer[0]. `identity` None means the units speak for themselves (a
    commitlog scan).
    """

    path: str
    buffer: NDArray[np.uint8]
    base: int
    positions: _Ints
    sizes: _Ints
    tags_codes: _Ints | None  # None where no queue entry led there
    identity: Identity | None = None

    def __len__(self) -> int:
        return len(self.positions)

    def select(self, index: NDArray[np.generic]) -> UnitRefs:
        identity = None if self.identity is None else self.identity.select(index)
        tags_codes = None if self.tags_codes is None else self.tags_codes[index]
        return UnitRefs(
            self.path, self.buffer, self.base, self.positions[index], self.sizes[index], tags_codes, identity
        )


@dataclass(frozen=True, slots=True)
class BadUnit:
    """A unit that failed: its place in the refs it came from, and why."""

    index: int
    error: CorruptStoreError
