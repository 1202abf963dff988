"""Message units: from bytes in a commitlog to checked positions of every part (MessageDecoder.decode, spec
2.1), many at once.

`locate` finds and checks; what it returns knows where each unit's body, topic and properties are and hands
out header fields as native arrays. `columns.py` makes Arrow columns from it. A unit that fails any check is
left out and reported.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from zlib import crc32

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from store_format.arrays.ranges import gather_ranges, gather_units
from store_format.errors import ChecksumError, CorruptStoreError, TruncatedRecordError
from store_format.layouts import MAGIC_V1, MAGIC_V2, MESSAGE_HEADS, MESSAGE_SIZE_MIN
from store_format.message import sysflag

__all__ = ["BadUnit", "Identity", "UnitRefs", "Units", "explain", "inner_batches", "locate"]

_HEAD_SIZE = MESSAGE_HEADS[0].itemsize  # 88: with two IPv4 hosts
_V6_EXTRA = 12  # an IPv6 host is this much longer
_CRC_MASK = 0x7FFFFFFF
_SLICE_ABOVE = 512  # mean body size from which CRCs are taken from views of the file, not from copies

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


@dataclass(slots=True)
class Units:
    """Units that passed every structural check, and where their parts are. Lengths and starts are bytes in
    the buffer.
    """

    refs: UnitRefs
    body_start: _Ints
    body_length: _Ints
    topic_start: _Ints
    topic_length: _Ints
    properties_start: _Ints
    properties_length: _Ints
    sys_flag: NDArray[np.int32]
    _heads: dict[int, tuple[_Ints | None, NDArray[np.void]]]
    _stored_bodies: pa.BinaryArray | None = field(default=None)
    _raw_properties: pa.BinaryArray | None = field(default=None)

    def __len__(self) -> int:
        return len(self.body_start)

    def integers(self, name: str) -> NDArray[np.generic]:
        """A header field of every unit as a native array."""
        native = MESSAGE_HEADS[0][name].newbyteorder("=")
        if len(self._heads) == 1:
            ((_, heads),) = self._heads.values()
            return heads[name].astype(native)
        values = np.empty(len(self), native)
        for rows, heads in self._heads.values():
            values[rows] = heads[name]
        return values

    def hosts(self, which: str) -> list[tuple[_Ints | None, NDArray[np.void], NDArray[np.int32]]]:
        """(rows, raw addresses, ports) of the `born` or `store` hosts, one tuple a header variant; rows None
        = all.
        """
        return [
            (rows, heads[f"{which}_ip"], heads[f"{which}_port"].astype(np.int32))
            for rows, heads in self._heads.values()
        ]

    def stored_bodies(self) -> pa.BinaryArray:
        """The bodies as stored: compressed ones compressed, inner batches whole."""
        if self._stored_bodies is None:
            self._stored_bodies = gather_ranges(self.refs.buffer, self.body_start, self.body_length)
        return self._stored_bodies

    def raw_properties(self) -> pa.BinaryArray:
        if self._raw_properties is None:
            self._raw_properties = gather_ranges(
                self.refs.buffer, self.properties_start, self.properties_length
            )
        return self._raw_properties

    def stored_topics(self) -> pa.BinaryArray:
        return gather_ranges(self.refs.buffer, self.topic_start, self.topic_length)

    def select(self, keep: NDArray[np.generic]) -> Units:
        """The units at `keep`, a boolean mask or ascending indices."""
        index = np.flatnonzero(keep) if keep.dtype == bool else np.asarray(keep, np.int64)
        heads: dict[int, tuple[_Ints | None, NDArray[np.void]]] = {}
        for variant, (rows, records) in self._heads.items():
            if rows is None:
                heads[variant] = (None, records[index])
                continue
            mine = np.isin(index, rows)
            if mine.any():
                heads[variant] = (np.flatnonzero(mine), records[np.searchsorted(rows, index[mine])])
        if len(heads) == 1:
            heads = {variant: (None, records) for variant, (_, records) in heads.items()}
        return Units(
            self.refs.select(index),
            self.body_start[index],
            self.body_length[index],
            self.topic_start[index],
            self.topic_length[index],
            self.properties_start[index],
            self.properties_length[index],
            self.sys_flag[index],
            heads or {0: (None, np.empty(0, MESSAGE_HEADS[0]))},
        )


def locate(refs: UnitRefs, *, verify_crc: bool) -> tuple[Units, list[BadUnit]]:
    """Find the parts of every unit and check them. Returns the good units in order, and every bad one with
    its reason.

    Checked: the unit lies in the buffer; total size, magic and physicalOffset; body, topic and properties
    lengths add up; topic, queueId and queueOffset equal the identity's (not the topic of light queues, see
    columns.py); with `verify_crc` the CRC of the stored body.
    """
    inside = (
        (refs.positions >= 0)
        & (refs.sizes >= MESSAGE_SIZE_MIN)
        & (refs.positions <= len(refs.buffer) - refs.sizes)
    )
    good = np.flatnonzero(inside) if not inside.all() else None
    candidates = refs if good is None else refs.select(good)
    units, passed = _measure(candidates)
    if verify_crc and len(units):
        intact = _crc_equal(units, passed)
        if not intact.all():
            passed &= intact
    if good is None and passed.all():
        return units, []
    kept = np.zeros(len(refs), bool)
    kept[np.flatnonzero(passed) if good is None else good[passed]] = True
    bad = [BadUnit(int(i), explain(refs, int(i), verify_crc=verify_crc)) for i in np.flatnonzero(~kept)]
    return units.select(passed), bad


def _measure(refs: UnitRefs) -> tuple[Units, NDArray[np.bool_]]:
    """Where the parts are if the unit is right, and whether it is (CRC apart). Ranges of wrong units are
    emptied.
    """
    buffer, positions, sizes = refs.buffer, refs.positions, refs.sizes
    heads = gather_units(buffer, positions, MESSAGE_HEADS[0])
    magic = heads["magic"].astype(np.uint32)
    sys_flag = heads["sys_flag"].astype(np.int32)
    v2 = magic == MAGIC_V2
    passed = (
        (heads["total_size"] == sizes)
        & (heads["physical_offset"] == positions + refs.base)
        & (v2 | (magic == MAGIC_V1))
    )
    if refs.identity is not None:
        same = (heads["queue_id"] == refs.identity.queue_ids) & (
            heads["queue_offset"] == refs.identity.queue_offsets
        )
        light = refs.identity.light_rows()
        passed &= same if light is None else same | light
    variant = (sys_flag >> 4) & 3
    any_v2 = bool(v2.any())
    if variant.any():
        by_variant, extra = _regather(refs, variant, passed)
        body_length = np.zeros(len(refs), np.int64)
        for rows, records in by_variant.values():
            body_length[rows] = records["body_length"]
    else:
        by_variant, extra = {0: (None, heads)}, None
        body_length = heads["body_length"].astype(np.int64)
    fixed = MESSAGE_SIZE_MIN + v2 if any_v2 else np.int64(MESSAGE_SIZE_MIN)
    if extra is not None:
        fixed = fixed + extra
    body_start = positions + _HEAD_SIZE if extra is None else positions + _HEAD_SIZE + extra
    room = sizes - fixed  # bytes of body, topic and properties together
    np.maximum(body_length, 0, out=body_length)  # MessageDecoder takes a negative length as no body
    passed &= body_length <= room
    body_length *= passed
    topic_start = body_start + body_length
    topic_length = buffer[np.minimum(topic_start, len(buffer) - 1)].astype(np.int64)
    passed &= topic_length <= (0x7F if not any_v2 else np.where(v2, 0x7FFF, 0x7F))
    topic_start = topic_start + 1
    if any_v2:
        low = buffer[np.minimum(topic_start, len(buffer) - 1)]
        topic_length = np.where(v2, topic_length << 8 | low, topic_length)
        topic_start = topic_start + v2
    properties_length = room - body_length - topic_length
    passed &= (properties_length >= 0) & (properties_length <= 0x7FFF)
    topic_length *= passed
    properties_start = topic_start + topic_length
    stored_length = buffer[np.minimum(properties_start, len(buffer) - 2)].astype(np.int64) << 8
    stored_length |= buffer[np.minimum(properties_start + 1, len(buffer) - 1)]
    passed &= stored_length == properties_length
    if refs.identity is not None:
        passed &= _topic_equal(buffer, topic_start, topic_length, refs.identity, passed)
    if not passed.all():
        body_length, topic_length, properties_length = (
            body_length * passed,
            topic_length * passed,
            properties_length * passed,
        )
        body_start, topic_start, properties_start = (
            body_start * passed,
            topic_start * passed,
            properties_start * passed,
        )
    units = Units(
        refs,
        body_start,
        body_length,
        topic_start,
        topic_length,
        properties_start + 2 * passed,
        properties_length,
        sys_flag,
        by_variant,
    )
    return units, passed


def _regather(
    refs: UnitRefs, variant: NDArray[np.int32], passed: NDArray[np.bool_]
) -> tuple[dict[int, tuple[_Ints | None, NDArray[np.void]]], _Ints]:
    """Heads by host family, where not all hosts are IPv4; `extra` is how much longer each unit's head is."""
    extra = ((variant & 1) + (variant >> 1)).astype(np.int64) * _V6_EXTRA
    passed &= refs.sizes >= MESSAGE_SIZE_MIN + extra
    heads: dict[int, tuple[_Ints | None, NDArray[np.void]]] = {}
    for kind in range(4):
        rows = np.flatnonzero(variant == kind)
        if len(rows):
            layout = MESSAGE_HEADS[kind]
            fitting = np.minimum(refs.positions[rows], len(refs.buffer) - layout.itemsize)
            if len(refs.buffer) < layout.itemsize:
                passed[rows] = False
                heads[kind] = (rows, np.zeros(len(rows), layout))
            else:
                heads[kind] = (rows, gather_units(refs.buffer, fitting, layout))
    return heads, extra


def _topic_equal(
    buffer: NDArray[np.uint8], start: _Ints, length: _Ints, identity: Identity, passed: NDArray[np.bool_]
) -> NDArray[np.bool_]:
    """Whether each stored topic is the one expected. Topics of light queues are left to their own rule."""
    encoded = [topic.encode() for topic in identity.topics]
    equal = np.ones(len(start), bool)
    if identity.topic_index is None:
        if not (identity.light and identity.light[0]):
            equal = length == len(encoded[0])
            _compare(buffer, start, equal, np.array(encoded[:1]), None)
        return equal
    lengths = np.array([len(topic) for topic in encoded])
    light = np.array(identity.light or [False] * len(encoded))
    for size in np.unique(lengths[~light]).tolist():
        same = np.flatnonzero((lengths == size) & ~light)
        rank = np.full(len(encoded), -1)
        rank[same] = np.arange(len(same))
        ranks = rank[identity.topic_index]
        rows = np.flatnonzero(ranks >= 0)
        matches = (length[rows] == size) & passed[rows]
        _compare(buffer, start[rows], matches, np.array([encoded[i] for i in same]), ranks[rows])
        equal[rows] = matches
    return equal


def _compare(
    buffer: NDArray[np.uint8],
    start: _Ints,
    equal: NDArray[np.bool_],
    expected: NDArray[np.bytes_],
    ranks: _Ints | None,
) -> None:
    """Clear `equal` where the bytes at `start` are not the expected name; rows already False are not looked
    at.
    """
    size = expected.dtype.itemsize
    if not equal.any() or not size:
        return
    # Names hold no NUL (options and directory listings see to it), so that S-comparison is byte comparison.
    windows = np.ndarray((len(buffer) - size + 1,), f"S{size}", buffer, strides=(1,))
    rows = slice(None) if equal.all() else np.flatnonzero(equal)
    found = windows[start[rows]]
    equal[rows] = found == (expected[0] if ranks is None else expected[ranks[rows]])


def _crc_equal(units: Units, passed: NDArray[np.bool_]) -> NDArray[np.bool_]:
    lengths = units.body_length
    total = int(lengths.sum())
    if total > _SLICE_ABOVE * len(units):
        view = memoryview(units.refs.buffer)  # type: ignore[arg-type] # an array is a buffer; 3.11 cannot say so
        stops = (units.body_start + lengths).tolist()
        sums = [crc32(view[start:stop]) for start, stop in zip(units.body_start.tolist(), stops, strict=True)]
    else:
        sums = list(map(crc32, units.stored_bodies().to_pylist()))
    actual = np.array(sums, np.int64) & _CRC_MASK
    # Recovery checks only bodies that have bytes (CommitLog.checkMessageAndReturnSize).
    equal: NDArray[np.bool_] = (actual == units.integers("body_crc")) | (lengths == 0) | ~passed
    return equal


def explain(refs: UnitRefs, index: int, *, verify_crc: bool = True) -> CorruptStoreError:
    """Why this unit is not a good one, in the order of the checks. The slow, scalar twin of `locate`, for
    errors only.
    """
    position, size = int(refs.positions[index]), int(refs.sizes[index])
    buffer, path = refs.buffer, refs.path
    if size < MESSAGE_SIZE_MIN:
        return CorruptStoreError(
            path, position, f"a message of at least {MESSAGE_SIZE_MIN} bytes", f"an entry of size {size}"
        )
    if position < 0 or position + size > len(buffer):
        return TruncatedRecordError(
            path, position, f"a message of {size} bytes", f"a file of {len(buffer)} bytes"
        )
    data = buffer[position : position + size].tobytes()
    head = np.frombuffer(data[:_HEAD_SIZE], MESSAGE_HEADS[0])[0]
    magic = int(head["magic"])
    wrong = _first_difference(refs, index, head, position, size, magic)
    if wrong is not None:
        return wrong
    variant = (int(head["sys_flag"]) >> 4) & 3
    layout = MESSAGE_HEADS[variant]
    if size < layout.itemsize + 3:
        return TruncatedRecordError(
            path, position, f"a head of {layout.itemsize} bytes", f"a message of {size} bytes"
        )
    head = np.frombuffer(data[: layout.itemsize], layout)[0]
    return _explain_parts(refs, index, data, head, layout.itemsize, verify_crc)


def _first_difference(
    refs: UnitRefs, index: int, head: np.void, position: int, size: int, magic: int
) -> CorruptStoreError | None:
    path, identity = refs.path, refs.identity
    checks: list[tuple[bool, int, str, str]] = [
        (magic in (MAGIC_V1, MAGIC_V2), 4, "magic code 0xDAA320A7 (V1) or 0xDAA320AB (V2)", f"0x{magic:08X}"),
        (int(head["total_size"]) == size, 0, f"total size {size}", str(int(head["total_size"]))),
        (
            int(head["physical_offset"]) == refs.base + position,
            28,
            f"physicalOffset {refs.base + position}",
            str(int(head["physical_offset"])),
        ),
    ]
    if identity is not None and not _is_light(identity, index):
        queue_id, queue_offset = int(identity.queue_ids[index]), int(identity.queue_offsets[index])
        checks += [
            (
                int(head["queue_id"]) == queue_id,
                12,
                f"queueId {queue_id} of {identity.topic_of(index)}",
                str(int(head["queue_id"])),
            ),
            (
                int(head["queue_offset"]) == queue_offset,
                20,
                f"queueOffset {queue_offset}",
                str(int(head["queue_offset"])),
            ),
        ]
    for right, offset, expected, found in checks:
        if not right:
            return CorruptStoreError(path, position + offset, expected, found)
    return None


def _is_light(identity: Identity, index: int) -> bool:
    light = identity.light_rows()
    return light is not None and bool(light[index])


def _explain_parts(
    refs: UnitRefs, index: int, data: bytes, head: np.void, head_size: int, verify_crc: bool
) -> CorruptStoreError:
    path, position, size = refs.path, int(refs.positions[index]), len(data)
    width = 2 if int(head["magic"]) == MAGIC_V2 else 1
    body_length = max(int(head["body_length"]), 0)
    if head_size + body_length + width + 2 > size:
        return CorruptStoreError(
            path,
            position + head_size - 4,
            f"a body that fits the message of {size} bytes",
            f"body length {body_length}",
        )
    at = head_size + body_length
    topic_length = int.from_bytes(data[at : at + width], "big")
    limit = 0x7F if width == 1 else 0x7FFF
    if topic_length > limit or at + width + topic_length + 2 > size:
        return CorruptStoreError(
            path,
            position + at,
            f"a topic that fits the message of {size} bytes",
            f"topic length {topic_length}",
        )
    topic = data[at + width : at + width + topic_length]
    after = at + width + topic_length
    properties_length = int.from_bytes(data[after : after + 2], "big", signed=True)
    if properties_length != size - after - 2:
        return CorruptStoreError(
            path,
            position + after,
            f"properties of {size - after - 2} bytes",
            f"properties length {properties_length}",
        )
    identity = refs.identity
    if identity is not None and not _is_light(identity, index) and topic != identity.topic_of(index).encode():
        shown = topic.decode(errors="backslashreplace")
        return CorruptStoreError(
            path, position + at + width, f"topic {identity.topic_of(index)!r}", repr(shown)
        )
    computed = crc32(data[head_size:at]) & _CRC_MASK
    if verify_crc and body_length and computed != int(head["body_crc"]):
        return ChecksumError(
            path,
            position + 8,
            f"body CRC 0x{computed:08X} of the {body_length} stored bytes",
            f"0x{int(head['body_crc']):08X}",
        )
    return CorruptStoreError(path, position, "a valid message", "one that failed a check")


def inner_batches(units: Units) -> NDArray[np.bool_]:
    """Which units hold a batch that the consumer has to split (MessageDecoder.decodeMessage)."""
    both = sysflag.INNER_BATCH | sysflag.NEED_UNWRAP
    found: NDArray[np.bool_] = (units.sys_flag & both) == both
    return found
