"""Message units at given positions: references to them, their checks, and the parts of each
(MessageDecoder.decode).

A reference has the bytes of one file, where each unit should be, and in which queue. `locate` checks many
units at once. It reports the units that fail; `decode.py` makes Arrow columns of the others.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from store_format import kernels
from store_format.arrays.ranges import INT32_MAX, from_parts, gather_ranges, gather_units, new_array
from store_format.errors import CorruptStoreError
from store_format.files.paths import StoreFile
from store_format.layouts import MESSAGE_HEADS
from store_format.message import sysflag
from store_format.message.properties import PropertyTable
from store_format.message.single import Located, QueuePlace, Wrong, head_offset, head_variant, locate_one

_Ints = NDArray[np.int64]

# Of each head field its offset in each variant of the head.
_OFFSETS = {
    name: np.array([head_offset(name, variant) for variant in range(len(MESSAGE_HEADS))])
    for name in MESSAGE_HEADS[0].names or ()
}
_FOUND_WITH_PARTS = ("flag", "born_timestamp", "store_timestamp")
_NO_INTS, _NO_INTS32 = np.empty(0, np.int64), np.empty(0, np.int32)
PORT_MAX = 0xFFFF
_NO_ROOM = np.empty(0, np.uint8)
_NO_BYTES, _NO_BOOLS = np.empty(0, np.uint8), np.empty(0, bool)


# ---- references to units -----------------------------------------------------------------------------------


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
        return Identity(
            self.topics,
            topic_index,
            self.queue_ids[index],
            self.queue_offsets[index],
            self.light,
            None if self.wanted is None else (self.wanted[0][index], self.wanted[1][index]),
            None if self.counts is None else self.counts[index],
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
        return UnitRefs(
            self.file,
            self.buffer,
            self.positions[index],
            self.physical_offsets[index],
            self.sizes[index],
            None if self.tags_codes is None else self.tags_codes[index],
            None if self.identity is None else self.identity.select(index),
        )


@dataclass(frozen=True, slots=True)
class BadUnit:
    """A unit that failed a check: its index in the `UnitRefs`, and the reason."""

    index: int
    error: CorruptStoreError


# ---- checked units -----------------------------------------------------------------------------------------


@dataclass(slots=True)
class PartArrays:
    """The parts of many units: positions in the buffer and lengths, both in bytes, and some head fields.

    `fits` tells which units passed the checks; the other numbers of the others mean nothing. `is_unusual`
    tells which of them have a wrong port, or a sysFlag of a compressed body or an inner batch.
    """

    fits: NDArray[np.bool_]
    is_unusual: NDArray[np.bool_]
    sys_flag: NDArray[np.int32]
    flag: NDArray[np.int32]
    body_start: _Ints
    body_length: _Ints
    topic_start: _Ints
    topic_length: _Ints
    properties_start: _Ints
    properties_length: _Ints
    born_timestamp: _Ints
    store_timestamp: _Ints

    @classmethod
    def of(cls, count: int) -> PartArrays:
        """Returns the parts of `count` units of which none fits."""
        return cls(
            np.zeros(count, bool),
            np.empty(count, bool),
            *np.empty((2, count), np.int32),
            *np.empty((8, count), np.int64),
        )

    def select(self, index: _Ints) -> PartArrays:
        """Returns the parts of the units at ascending `index`."""
        return PartArrays(*(getattr(self, name)[index] for name in self.__slots__))


def stored_sizes(buffer: NDArray[np.uint8], positions: _Ints) -> _Ints:
    """Returns the total size stored at each position; 0, which `locate` refuses, outside the buffer."""
    return stored_field(buffer, positions, "total_size")


def stored_offsets(buffer: NDArray[np.uint8], positions: _Ints) -> _Ints:
    """Returns the physical offset stored in the unit at each position; 0 outside the buffer."""
    return stored_field(buffer, positions, "physical_offset")


def stored_field(buffer: NDArray[np.uint8], positions: _Ints, field: str) -> _Ints:
    """Returns the head field that the unit at each position stores; 0 outside the buffer."""
    found, kind = np.zeros(len(positions), np.int64), MESSAGE_HEADS[0][field]
    at = positions + head_offset(field)
    inside = (positions >= 0) & (at <= len(buffer) - kind.itemsize)
    found[inside] = gather_units(buffer, at[inside], kind)
    return found


@dataclass(slots=True)
class Units:
    """Units that passed every structural check, and where their parts are in the bytes of `refs`."""

    refs: UnitRefs
    parts: PartArrays
    _stored_bodies: pa.BinaryArray | None = field(default=None)
    _raw_properties: pa.BinaryArray | None = field(default=None)

    def __len__(self) -> int:
        return len(self.refs)

    @property
    def sys_flag(self) -> NDArray[np.int32]:
        return self.parts.sys_flag

    @property
    def physical_offsets(self) -> _Ints:
        return self.refs.physical_offsets

    def integers(self, name: str) -> NDArray[np.generic]:
        """Returns a head field of every unit as a native array."""
        if name in _FOUND_WITH_PARTS:
            found: NDArray[np.generic] = getattr(self.parts, name)
            return found
        kind, offsets = MESSAGE_HEADS[0][name], _OFFSETS[name]
        buffer, positions = self.refs.buffer, self.refs.positions
        native = kind.newbyteorder("=")
        if not kernels.ready():
            return gather_units(buffer, positions + offsets[head_variant(self.sys_flag)], kind).astype(native)
        wide = kind.itemsize == 8
        values = np.empty(len(self), np.int64 if wide else np.int32)
        read = kernels.units.head_longs if wide else kernels.units.head_ints
        read(buffer, positions, self.sys_flag, offsets, values)
        return values.view(native)

    def hosts(self, which: str) -> list[tuple[_Ints | None, NDArray[np.void], NDArray[np.int32]]]:
        """Returns (rows, raw addresses, ports) of the `born` or `store` hosts for each head variant.

        `rows` is None where the variant is that of all units.
        """
        variants = head_variant(self.sys_flag)
        ports = self.integers(f"{which}_port").astype(np.int32)
        found = []
        for variant in np.unique(variants).tolist() or [0]:
            rows = np.flatnonzero(variants == variant)
            at = self.refs.positions[rows] + head_offset(f"{which}_ip", variant)
            ips = gather_units(self.refs.buffer, at, MESSAGE_HEADS[variant][f"{which}_ip"])
            found.append((None if len(rows) == len(variants) else rows, ips, ports[rows]))
        return found

    def stored_bodies(self) -> pa.BinaryArray:
        """Returns the bodies as stored: compressed bodies compressed, inner batches whole."""
        if self._stored_bodies is None:
            parts = self.parts
            self._stored_bodies = gather_ranges(self.refs.buffer, parts.body_start, parts.body_length)
        return self._stored_bodies

    def raw_properties(self) -> pa.BinaryArray:
        """Returns the stored properties strings."""
        if self._raw_properties is None:
            parts = self.parts
            self._raw_properties = gather_ranges(
                self.refs.buffer, parts.properties_start, parts.properties_length
            )
        return self._raw_properties

    def properties(self) -> PropertyTable:
        """Returns the properties, not yet parsed."""
        parts = self.parts
        return PropertyTable.in_buffer(self.refs.buffer, parts.properties_start, parts.properties_length)

    def stored_topics(self) -> pa.BinaryArray:
        """Returns the stored topics; units of a light queue (%LMQ%) have another topic than the queue."""
        return gather_ranges(self.refs.buffer, self.parts.topic_start, self.parts.topic_length)

    def select(self, keep: NDArray[np.generic]) -> Units:
        """Returns the units at `keep`, a boolean mask or ascending indices."""
        index = np.flatnonzero(keep) if keep.dtype == bool else np.asarray(keep, np.int64)
        return Units(self.refs.select(index), self.parts.select(index))


def locate(refs: UnitRefs, *, verify_crc: bool, with_bodies: bool = False) -> tuple[Units, list[BadUnit]]:
    """Returns the units that pass every check, in order, and each bad unit with its reason.

    Checked: the unit lies in the buffer; total size, magic and physicalOffset; the lengths of body, topic and
    properties add up; topic, queueId and queueOffset equal the identity's (`decode.py` checks
    those of light queues); with `verify_crc` the CRC of the stored body. `with_bodies` says that
    `stored_bodies` of the units will be asked for: they are copied in the same pass.
    """
    parts, bodies = _find_parts(refs, verify_crc, with_bodies)
    if parts.fits.all():
        return Units(refs, parts, bodies), []
    good = np.flatnonzero(parts.fits)
    bad = [BadUnit(i, explain(refs, i, verify_crc=verify_crc)) for i in np.flatnonzero(~parts.fits).tolist()]
    return Units(refs.select(good), parts.select(good)), bad


def _find_parts(
    refs: UnitRefs, verify_crc: bool, with_bodies: bool
) -> tuple[PartArrays, pa.BinaryArray | None]:
    """Returns the parts of the units, and the stored bodies if they were copied."""
    found = PartArrays.of(len(refs))
    outputs = [getattr(found, name) for name in PartArrays.__slots__]
    if kernels.ready(len(refs)):
        # more than all bodies, if the sizes are right; wrong ones may be of any number
        room = int(refs.sizes.sum()) if with_bodies else 0
        with_bodies = 0 < room <= min(len(refs.buffer), INT32_MAX)
        offsets = new_array(len(refs) + 1, np.int32) if with_bodies else _NO_INTS32
        bodies = new_array(room, np.uint8) if with_bodies else _NO_ROOM
        kernels.units.locate(
            refs.buffer,
            refs.positions,
            refs.physical_offsets,
            refs.sizes,
            verify_crc,
            *_expected(refs.identity),
            *outputs,
            offsets,
            bodies,
        )
        is_copied = with_bodies and offsets[0] == 0
        return found, from_parts(pa.binary(), offsets, bodies) if is_copied else None
    for i in range(len(refs)):
        unit = _locate_one(refs, i, verify_crc)
        if isinstance(unit, Wrong):
            continue
        start, head, parts = int(refs.positions[i]), unit.head, unit.parts
        is_closed = bool(head.sys_flag & (sysflag.COMPRESSED | sysflag.INNER_BATCH))
        row = (
            True, is_closed or not 0 <= head.born_port <= PORT_MAX or not 0 <= head.store_port <= PORT_MAX,
            head.sys_flag, head.flag, start + parts.body_start, parts.body_length,
            start + parts.topic_start, parts.topic_length, start + parts.properties_start,
            parts.properties_length, head.born_timestamp, head.store_timestamp,
        )  # fmt: skip
        for output, value in zip(outputs, row, strict=True):
            output[i] = value
    return found, None


def _locate_one(refs: UnitRefs, i: int, verify_crc: bool) -> Located | Wrong:
    identity, place = refs.identity, None
    if identity is not None and not identity.is_light(i):
        place = QueuePlace(identity.topic_of(i), int(identity.queue_ids[i]), int(identity.queue_offsets[i]))
    return locate_one(
        refs.buffer,
        int(refs.positions[i]),
        int(refs.sizes[i]),
        int(refs.physical_offsets[i]),
        place,
        room=refs.file.size - refs.place(i),
        verify_crc=verify_crc,
    )


def explain(refs: UnitRefs, index: int, *, verify_crc: bool = True) -> CorruptStoreError:
    """Returns the first check that the unit fails, as an error with file, byte, expected and found."""
    wrong = _locate_one(refs, index, verify_crc)
    if not isinstance(wrong, Wrong):  # a broker has completed the unit meanwhile
        wrong = Wrong(0, "a valid message", "a message that fails a check")
    return wrong.error(refs.path, refs.place(index))


def _expected(identity: Identity | None) -> tuple[NDArray[Any], ...]:
    """Returns the arguments of the kernel that say in which queue each unit should be."""
    if identity is None:
        return _NO_INTS32, _NO_INTS, _NO_BYTES, _NO_INTS, _NO_INTS32, _NO_BOOLS
    topics, edges = _encoded_topics(identity.topics)
    return (
        np.ascontiguousarray(identity.queue_ids, np.int32),
        np.ascontiguousarray(identity.queue_offsets, np.int64),
        topics,
        edges,
        _NO_INTS32 if identity.topic_index is None else np.ascontiguousarray(identity.topic_index, np.int32),
        np.array(identity.light or [False] * len(identity.topics)),
    )


@lru_cache(maxsize=4)
def _encoded_topics(topics: tuple[str, ...]) -> tuple[NDArray[np.uint8], _Ints]:
    """Returns the bytes of all topics, padded for the kernel, and where each begins and the last ends."""
    encoded = [topic.encode() for topic in topics]
    return np.frombuffer(b"".join(encoded) + bytes(8), np.uint8), np.cumsum([0, *map(len, encoded)])


def inner_batches(units: Units) -> NDArray[np.bool_]:
    """Returns which units contain an inner batch, which consumers split (MessageDecoder.decodeMessage)."""
    both = sysflag.INNER_BATCH | sysflag.NEED_UNWRAP
    found: NDArray[np.bool_] = (units.sys_flag & both) == both
    return found
