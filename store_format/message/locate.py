"""Checks message units at given positions, and finds the parts of each (MessageDecoder.decode).

`locate` checks many units at once. It reports the units that fail; `columns.py` makes Arrow columns of the
others.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from store_format.arrays.ranges import gather_ranges
from store_format.layouts import MESSAGE_SIZE_MIN
from store_format.message import sysflag
from store_format.message.crc import intact_bodies
from store_format.message.explain import explain
from store_format.message.parts import PartArrays, find_all_parts
from store_format.message.unit_refs import BadUnit, Identity, UnitRefs

_Ints = NDArray[np.int64]


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
        return self.refs.positions + self.refs.base

    def integers(self, name: str) -> NDArray[np.generic]:
        """Returns a head field of every unit as a native array."""
        return self.parts.integers(name)

    def hosts(self, which: str) -> list[tuple[_Ints | None, NDArray[np.void], NDArray[np.int32]]]:
        """Returns (rows, raw addresses, ports) of the `born` or `store` hosts for each head variant.

        `rows` is None where the variant is that of all units.
        """
        return [
            (rows, heads[f"{which}_ip"], heads[f"{which}_port"].astype(np.int32))
            for rows, heads in self.parts.heads.values()
        ]

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

    def stored_topics(self) -> pa.BinaryArray:
        """Returns the stored topics; units of a light queue (%LMQ%) have another topic than the queue."""
        return gather_ranges(self.refs.buffer, self.parts.topic_start, self.parts.topic_length)

    def select(self, keep: NDArray[np.generic]) -> Units:
        """Returns the units at `keep`, a boolean mask or ascending indices."""
        index = np.flatnonzero(keep) if keep.dtype == bool else np.asarray(keep, np.int64)
        return Units(self.refs.select(index), self.parts.select(index))


def locate(refs: UnitRefs, *, verify_crc: bool) -> tuple[Units, list[BadUnit]]:
    """Returns the units that pass every check, in order, and each bad unit with its reason.

    Checked: the unit lies in the buffer; total size, magic and physicalOffset; the lengths of body, topic and
    properties add up; topic, queueId and queueOffset equal the identity's (except for light queues: `rows.py`
    checks them); with `verify_crc` the CRC of the stored body.
    """
    inside = (
        (refs.positions >= 0)
        & (refs.sizes >= MESSAGE_SIZE_MIN)
        & (refs.positions <= len(refs.buffer) - refs.sizes)
    )
    good = np.flatnonzero(inside) if not inside.all() else None
    candidates = refs if good is None else refs.select(good)
    units = Units(candidates, find_all_parts(refs.buffer, candidates.positions, candidates.sizes, refs.base))
    passed = units.parts.fits
    if refs.identity is not None:
        passed = passed & _identity_equal(units)
    if verify_crc and len(units):
        parts, stored = units.parts, units.integers("body_crc")
        passed = passed & intact_bodies(
            refs.buffer, parts.body_start, parts.body_length, stored, units.stored_bodies
        )
    if good is None and passed.all():
        return units, []
    kept = np.zeros(len(refs), bool)
    kept[np.flatnonzero(passed) if good is None else good[passed]] = True
    bad = [BadUnit(int(i), explain(refs, int(i), verify_crc=verify_crc)) for i in np.flatnonzero(~kept)]
    return units.select(passed), bad


def _identity_equal(units: Units) -> NDArray[np.bool_]:
    """Returns whether each unit has the queue and topic of its queue entry. Light queues pass."""
    identity, parts = units.refs.identity, units.parts
    assert identity is not None
    same: NDArray[np.bool_] = (units.integers("queue_id") == identity.queue_ids) & (
        units.integers("queue_offset") == identity.queue_offsets
    )
    light = identity.light_rows()
    if light is not None:
        same |= light
    return same & _topic_equal(units.refs.buffer, parts.topic_start, parts.topic_length, identity, parts.fits)


def _topic_equal(
    buffer: NDArray[np.uint8], start: _Ints, length: _Ints, identity: Identity, passed: NDArray[np.bool_]
) -> NDArray[np.bool_]:
    """Returns whether each stored topic is the expected one. Units of light queues pass."""
    encoded = [topic.encode() for topic in identity.topics]
    equal = np.ones(len(start), bool)
    if identity.topic_index is None:
        if not (identity.light and identity.light[0]):
            equal = length == len(encoded[0])
            _clear_unequal(buffer, start, equal, np.array(encoded[:1]), None)
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
        _clear_unequal(buffer, start[rows], matches, np.array([encoded[i] for i in same]), ranks[rows])
        equal[rows] = matches
    return equal


def _clear_unequal(
    buffer: NDArray[np.uint8],
    start: _Ints,
    equal: NDArray[np.bool_],
    expected: NDArray[np.bytes_],
    ranks: _Ints | None,
) -> None:
    """Clears `equal` where the bytes at `start` are not the expected name. Rows already False stay False."""
    size = expected.dtype.itemsize
    if not equal.any() or not size:
        return
    # Options and directory listings refuse names with NUL, so that comparing S values compares bytes.
    windows = np.ndarray((len(buffer) - size + 1,), f"S{size}", buffer, strides=(1,))
    rows = slice(None) if equal.all() else np.flatnonzero(equal)
    found = windows[start[rows]]
    equal[rows] = found == (expected[0] if ranks is None else expected[ranks[rows]])


def inner_batches(units: Units) -> NDArray[np.bool_]:
    """Returns which units contain an inner batch, which consumers split (MessageDecoder.decodeMessage)."""
    both = sysflag.INNER_BATCH | sysflag.NEED_UNWRAP
    found: NDArray[np.bool_] = (units.sys_flag & both) == both
    return found
