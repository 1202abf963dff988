"""The properties strings of many messages, made from maps and columns: byte for byte what a broker stores.

A broker reads the client's properties into a HashMap and writes that map, so names come out in Java's bucket
order, and properties with an empty name or value do not come out at all (spec 2.5).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import islice, pairwise, repeat
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from store_format import kernels
from store_format.arrays.ranges import flat_bytes, from_flat, new_array, repeats_each, without_nulls
from store_format.errors import IllegalMessageError
from store_format.java.text import BROKER_MAP_CAPACITY, decode_utf8, hash_bucket, hash_map_order, table_size
from store_format.layouts import CRC_PROPERTY_NAME, NAME_VALUE_SEPARATOR, PROPERTY_SEPARATOR

_NAME_VALUE = bytes([NAME_VALUE_SEPARATOR])
_PROPERTY = bytes([PROPERTY_SEPARATOR])
_CRC_PREFIX = CRC_PROPERTY_NAME + _NAME_VALUE
_CRC_PROPERTY = re.compile(rb"(?:\A|(?<=\x02))" + re.escape(_CRC_PREFIX) + rb"[^\x02]*\x02?")
_KIND = pa.large_binary()
_PADDING = 8  # bytes behind its output that a kernel may overwrite
_HASH_SIZE = 1 << 32


def encode_property_columns(
    count: int,
    columns: Mapping[str, Any],
    properties: pa.MapArray | PropertyMaps | None = None,
    *,
    capacity: int = BROKER_MAP_CAPACITY,
) -> pa.LargeBinaryArray:
    """Returns `count` property strings for `MessageColumns.properties`, as an array of bytes.

    `columns` maps a property name to its values: a string array has one value for each message, a str is the
    value for all messages. `properties` are maps of string to string; they come first, then `columns` in
    their order. Null values, empty values and empty names are left out. If a name occurs twice, it keeps its
    first place and gets the later value. The properties have the order of a Java HashMap made with
    `capacity`.

    Raises IllegalMessageError if a name or value contains a separator (0x01 or 0x02), which would change the
    decoded properties, and ValueError for an array that has not `count` values.

    Example::

        encode_property_columns(2, {"TAGS": "paid", "KEYS": pa.array(["order-1", None])})
        # two strings; the second has no KEYS
    """
    given = {name: _Values.of(repr(name), values) for name, values in columns.items() if name}
    for name in given:
        _check_name(name)
    maps = PropertyMaps.of(properties) if isinstance(properties, pa.MapArray) else properties
    if maps is None:
        maps = PropertyMaps([], np.zeros(count, np.int64), np.empty(0, np.int32), pa.array([], _KIND))
    for name in maps.names:
        _check_name(name)
    entries = _Values.of(None, maps.values)
    counts = {len(maps.counts), *(len(each.ends) - 1 for each in given.values() if not each.is_constant)}
    if counts - {count}:  # the kernel relies on them
        raise ValueError(f"expected properties of {count} messages, found {sorted(counts)}")
    if not kernels.ready(count):
        return pa.array(_strings_one_by_one(maps, entries, given, count, capacity), _KIND)
    return _strings(maps, entries, given, capacity)


def _check_name(name: str) -> None:
    if "\x01" in name or "\x02" in name:
        raise IllegalMessageError(
            f"property name {name!r}: expected no 0x01, which ends a name in the store, "
            "and no 0x02, which ends a property"
        )


@dataclass(frozen=True, slots=True)
class _Values:
    """Values end to end: one for each message or entry, or one for all messages. An empty value is none."""

    data: NDArray[np.uint8]
    ends: NDArray[np.int64]
    is_constant: bool

    @staticmethod
    def of(name: str | None, values: Any) -> _Values:
        is_constant = isinstance(values, str)
        array = pa.array([values.encode()], _KIND) if is_constant else without_nulls(values)
        data, ends = flat_bytes(array)
        if _PROPERTY in data.tobytes():
            where = "a property in a map" if name is None else f"property {name}"
            raise IllegalMessageError(
                f"{where}: a value contains 0x02, which ends a property in the store; remove it"
            )
        return _Values(data, ends, is_constant)

    def each(self, count: int) -> Iterator[bytes]:
        raw, ends = self.data.tobytes(), self.ends.tolist()
        return repeat(raw, count) if self.is_constant else (raw[start:stop] for start, stop in pairwise(ends))


def _strings(
    maps: PropertyMaps, entries: _Values, given: Mapping[str, _Values], capacity: int
) -> pa.LargeBinaryArray:
    """Returns the strings, written by a kernel."""
    count, groups = len(maps.counts), [entries, *given.values()]
    numbers: dict[str, int] = {}  # of names; maps may have two numbers for one name, in malformed UTF-8
    own = np.array([numbers.setdefault(name, len(numbers)) for name in maps.names], np.int32)
    names = np.array([numbers.setdefault(name, len(numbers)) for name in given], np.int64)
    prefixes = [name.encode() + _NAME_VALUE for name in numbers]
    sizes = np.array([len(prefix) for prefix in prefixes], np.int64)
    starts = np.cumsum([0, *(len(group.data) for group in groups)])
    values = np.concatenate([group.data for group in groups], out=new_array(int(starts[-1]), np.uint8))
    ends = np.concatenate([group.ends + start for group, start in zip(groups, starts.tolist(), strict=False)])
    firsts = np.cumsum([len(group.ends) for group in groups])[:-1]
    steps = np.array([not group.is_constant for group in given.values()], np.int64)
    codes = own[maps.codes] if len(numbers) < len(own) + len(given) else maps.codes
    most = int(maps.counts.max(initial=0)) + len(given)
    room = (
        len(values) + count * int(sum(len(group.data) for group in given.values() if group.is_constant))
        + int((sizes + 1)[codes].sum()) + count * int((sizes + 1)[names].sum())
    )  # fmt: skip
    out, offsets = new_array(room + _PADDING, np.uint8), np.empty(count + 1, np.int64)
    scratch = [
        *(np.empty(most, np.int64) for _ in range(5)),
        np.full(len(numbers), -1),
        np.empty(table_size(most, capacity), np.int64),
    ]
    kernels.encode.write_properties(
        out,
        offsets,
        maps.counts,
        codes,
        values,
        ends,
        firsts,
        steps,
        names,
        np.array([hash_bucket(name, _HASH_SIZE) if name else -1 for name in numbers], np.int64),
        np.frombuffer(b"".join(prefixes) + bytes(_PADDING), np.uint8),
        np.cumsum([0, *sizes]),
        capacity,
        tuple(scratch),
    )
    return from_flat(out, offsets)


def _strings_one_by_one(
    maps: PropertyMaps, entries: _Values, given: Mapping[str, _Values], count: int, capacity: int
) -> Iterator[bytes]:
    """Returns each string, as the kernel writes it."""
    own = zip((maps.names[code] for code in maps.codes.tolist()), entries.each(0), strict=True)
    columns = [values.each(count) for values in given.values()]
    for entries_count in maps.counts.tolist():
        pairs = [*islice(own, entries_count), *zip(given, map(next, columns), strict=True)]
        properties = {name: value for name, value in pairs if name and value}
        names = tuple(properties)
        yield b"".join(
            names[place].encode() + _NAME_VALUE + properties[names[place]] + _PROPERTY
            for place in hash_map_order(names, capacity)
        )


# ---- encoded strings ---------------------------------------------------------------------------------------


def without_crc_property(properties: pa.LargeBinaryArray) -> pa.LargeBinaryArray:
    """Returns properties strings without a CRC property and with a last 0x02, ready for a new CRC property.

    CommitLog.asyncPutMessage deletes `__CRC32#` (MessageUtils.deleteProperty), MessageExtEncoder adds a
    missing last 0x02.
    """
    holding = pc.match_substring(properties, _CRC_PREFIX)
    if pc.any(holding).as_py():
        cleaned = [_CRC_PROPERTY.sub(b"", raw) for raw in properties.filter(holding).to_pylist()]
        properties = pc.replace_with_mask(properties, holding, pa.array(cleaned, _KIND))
    data, offsets = flat_bytes(properties)
    open_ended = np.diff(offsets) > 0
    open_ended[open_ended] = data[offsets[1:][open_ended] - 1] != PROPERTY_SEPARATOR
    if not open_ended.any():
        return properties
    ended = pc.binary_join_element_wise(properties, pa.scalar(_PROPERTY, _KIND), pa.scalar(b"", _KIND))
    return pc.if_else(pa.array(open_ended), ended, properties)


# ---- maps as flat entries ----------------------------------------------------------------------------------


class PropertyMaps:
    """Entries in the order of messages and maps: entry i has the name `names[codes[i]]` and `values[i]`."""

    def __init__(
        self,
        names: list[str],
        counts: NDArray[np.int64],
        codes: NDArray[np.int32],
        values: pa.LargeBinaryArray,
    ) -> None:
        """`counts` is the number of entries of each message."""
        self.names = names
        self.counts = counts
        self.codes = codes
        self.values = values
        self._columns: dict[str, pa.LargeBinaryArray] = {}

    @staticmethod
    def of(properties: pa.MapArray) -> PropertyMaps:
        """Returns the entries of a map array of (large) strings; a null map is an empty map."""
        offsets = properties.offsets.to_numpy()
        counts = np.diff(offsets).astype(np.int64)
        keys = (
            properties.keys[int(offsets[0]) : int(offsets[-1])].cast(_KIND)
            if len(properties)
            else pa.array([], _KIND)
        )
        values = (
            properties.items[int(offsets[0]) : int(offsets[-1])].cast(_KIND)
            if len(properties)
            else pa.array([], _KIND)
        )
        if properties.null_count:
            valid = properties.is_valid().to_numpy(zero_copy_only=False)
            chosen = pa.array(np.repeat(valid, counts))  # a null map may have entries
            keys, values, counts = keys.filter(chosen), values.filter(chosen), np.where(valid, counts, 0)
        width = int(counts.max(initial=0))
        same = len(keys) == width * len(counts) and repeats_each(keys, width)  # the same names in each map
        coded = (keys[:width] if same else keys).dictionary_encode()
        codes = coded.indices.to_numpy()
        return PropertyMaps(
            [decode_utf8(name) for name in coded.dictionary.to_pylist()],
            counts,
            np.tile(codes, len(counts)) if same else codes,
            values,
        )

    @cached_property
    def rows(self) -> NDArray[np.int64]:
        """Returns the message of each entry."""
        return np.repeat(np.arange(len(self.counts)), self.counts)

    @cached_property
    def _shared(self) -> list[str] | None:
        """Returns the names if all messages have the same in the same order, each once; else None."""
        width = len(self.names)
        if not len(self.codes) or (self.counts != width).any():
            return None
        codes = self.codes.reshape(-1, width)
        if (codes != codes[0]).any() or len(set(codes[0].tolist())) < width:
            return None
        return [self.names[code] for code in codes[0]]

    def column(self, name: str) -> pa.LargeBinaryArray | None:
        """Returns a property of each message, null if absent; None if no message has the property."""
        if name not in self.names:
            return None
        if name not in self._columns:
            self._columns[name] = self.values.take(self._places(name))
        return self._columns[name]

    def _places(self, name: str) -> pa.Array:
        if self._shared is not None:
            return pa.array(np.arange(self._shared.index(name), len(self.codes), len(self.names)))
        found = np.flatnonzero(self.codes == self.names.index(name))
        places = np.full(len(self.counts), -1)
        places[self.rows[found]] = found
        return pa.array(places, mask=places < 0)

    def where(self, kept: NDArray[np.bool_]) -> PropertyMaps:
        """Returns the kept entries, without the names that no kept entry has."""
        counts = np.bincount(self.rows[kept], minlength=len(self.counts))
        codes = self.codes[kept]
        used = np.bincount(codes, minlength=len(self.names)) > 0
        names = [name for name, is_used in zip(self.names, used.tolist(), strict=True) if is_used]
        renumbered = (np.cumsum(used) - 1).astype(np.int32)
        return PropertyMaps(names, counts, renumbered[codes], self.values.filter(pa.array(kept)))

    def empty(self) -> NDArray[np.bool_]:
        """Returns the entries without a name or without a value, which are not stored."""
        found: NDArray[np.bool_] = pc.fill_null(pc.equal(pc.binary_length(self.values), 0), True).to_numpy(
            zero_copy_only=False
        )
        return found | (self.codes == self.names.index("")) if "" in self.names else found
