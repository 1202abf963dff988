"""References to message units: the bytes of one file, where each unit should be, and in which queue."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from store_format.errors import CorruptStoreError
from store_format.files.read import StoreFile

_Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Identity:
    """The topic, queue and queue offset that each unit should have, from the consume queue entry of the unit.

    `topic_index` maps units to `topics`. `light[i]` marks topics[i] as a light queue (%LMQ%), whose units
    have another topic and name the light queue in a property.
    """

    topics: tuple[str, ...]
    topic_index: NDArray[np.int32] | None  # None: topics[0] for all units
    queue_ids: NDArray[np.int32]
    queue_offsets: _Ints
    light: tuple[bool, ...] = ()
    # For entries of several queue offsets (BatchCQ): the half-open range [start, stop) to read, for each
    # unit.
    wanted: tuple[_Ints, _Ints] | None = None
    counts: NDArray[np.int16] | None = None  # the number of queue offsets of each entry

    def light_rows(self) -> NDArray[np.bool_] | None:
        """Returns which units come from a light queue; None when no unit does."""
        if not any(self.light):
            return None
        if self.topic_index is None:
            return np.ones(len(self.queue_ids), bool)
        return np.array(self.light)[self.topic_index]

    def topic_of(self, i: int) -> str:
        return self.topics[self._topic(i)]

    def is_light(self, i: int) -> bool:
        return bool(self.light) and self.light[self._topic(i)]

    def _topic(self, i: int) -> int:
        return 0 if self.topic_index is None else int(self.topic_index[i])

    def select(self, index: NDArray[np.generic] | slice) -> Identity:
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
    """Where units of one commitlog file should be, and bytes of the file that have them.

    Unit i should have the physical offset `physical_offsets[i]`, and begins at `positions[i]` of `buffer`.
    A unit whose bytes the file does not have ends behind `buffer`. `identity` is None for a scan of the
    commitlog.
    """

    file: StoreFile
    buffer: NDArray[np.uint8]
    positions: _Ints
    physical_offsets: _Ints
    sizes: _Ints
    tags_codes: _Ints | None  # of the queue entries; None for a scan of the commitlog
    identity: Identity | None = None

    def __len__(self) -> int:
        return len(self.positions)

    @property
    def path(self) -> str:
        return self.file.path

    def place(self, i: int) -> int:
        """Returns the byte of the file at which unit i should begin."""
        return int(self.physical_offsets[i]) - self.file.start

    def select(self, index: NDArray[np.generic] | slice) -> UnitRefs:
        identity = None if self.identity is None else self.identity.select(index)
        tags_codes = None if self.tags_codes is None else self.tags_codes[index]
        return UnitRefs(
            self.file,
            self.buffer,
            self.positions[index],
            self.physical_offsets[index],
            self.sizes[index],
            tags_codes,
            identity,
        )


@dataclass(frozen=True, slots=True)
class BadUnit:
    """A unit that failed a check: its index in the `UnitRefs`, and the reason."""

    index: int
    error: CorruptStoreError
