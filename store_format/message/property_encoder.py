"""The properties strings of many messages, made from columns: byte for byte what a broker stores, without
per-message Python.

A broker reads the client's properties into a HashMap and writes that map, so names come out in Java's bucket
order, and properties with an empty name or value do not come out at all (spec 2.5).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from store_format.arrays.ranges import flat_bytes, from_flat
from store_format.errors import IllegalMessageError
from store_format.java.hash_map import BROKER_MAP_CAPACITY, hash_bucket, hash_map_order, table_size
from store_format.layouts import CRC_PROPERTY_NAME, NAME_VALUE_SEPARATOR, PROPERTY_SEPARATOR
from store_format.message.property_maps import PropertyMaps

_NAME_VALUE = bytes([NAME_VALUE_SEPARATOR])
_PROPERTY = bytes([PROPERTY_SEPARATOR])
_CRC_PREFIX = CRC_PROPERTY_NAME + _NAME_VALUE
_CRC_PROPERTY = re.compile(rb"(?:\A|(?<=\x02))" + re.escape(_CRC_PREFIX) + rb"[^\x02]*\x02?")
_KIND = pa.large_binary()
_NOTHING = pa.scalar(b"", _KIND)

# A column of values, null where the property is absent, or the one value of all messages.
_Values: TypeAlias = pa.LargeBinaryArray | bytes


def encode_property_columns(
    count: int,
    columns: Mapping[str, Any],
    properties: pa.MapArray | PropertyMaps | None = None,
    *,
    capacity: int = BROKER_MAP_CAPACITY,
) -> pa.LargeBinaryArray:
    """Returns `count` properties strings in the order of a HashMap made with `capacity`.

    The map gets `properties` (maps of string to string) first, then `columns` in their order: a string array
    has a value for each message, a str is the value of all messages. Null and empty values and empty names
    are left out; a name that is put twice keeps its place and gets the later value.

    Raises IllegalMessageError for a separator in a name or value, which would change the decoded properties.
    """
    given = {name: _as_values(name, values) for name, values in columns.items() if name}
    for name in given:
        _check_name(name)
    maps = _checked_maps(properties, count)
    merged = _merged_columns(maps.as_columns(), given)
    # With no more names than never make the table grow, one order serves every message, whichever of them it
    # has: unless names share a bucket and were not put in one order.
    if (
        merged is not None
        and table_size(len(merged), capacity) == capacity
        and (maps.alike or _apart(merged, capacity))
    ):
        return _encode_columns(count, merged, capacity)
    return _encode_entries(count, maps, given, capacity)


def _check_name(name: str) -> None:
    if "\x01" in name or "\x02" in name:
        raise IllegalMessageError(
            f"property name {name!r}: expected no 0x01, which ends a name in the store, "
            "and no 0x02, which ends a property"
        )


def _as_values(name: str | None, values: Any) -> _Values:
    if isinstance(values, str):
        flat = values.encode()
        separated = _PROPERTY in flat
    else:
        flat = values.cast(_KIND)
        separated = bool((flat_bytes(flat)[0] == PROPERTY_SEPARATOR).any())
        lengths = pc.binary_length(flat)
        if len(flat) and pc.min(lengths).as_py() == 0:
            flat = pc.if_else(pc.equal(lengths, 0), pa.scalar(None, _KIND), flat)
    if separated:
        where = "a property in a map" if name is None else f"property {name!r}"
        raise IllegalMessageError(
            f"{where}: a value contains 0x02, which ends a property in the store; remove it"
        )
    return flat


def _checked_maps(properties: pa.MapArray | PropertyMaps | None, count: int) -> PropertyMaps:
    if properties is None:
        return PropertyMaps([], np.zeros(count, np.int64), np.empty(0, np.int32), pa.array([], _KIND))
    maps = properties if isinstance(properties, PropertyMaps) else PropertyMaps.of(properties)
    for name in maps.names:
        _check_name(name)
    values = _as_values(None, maps.values)
    return maps if values is maps.values else PropertyMaps(maps.names, maps.counts, maps.codes, values)


def _apart(names: Collection[str], capacity: int) -> bool:
    return len({hash_bucket(name, capacity) for name in names}) == len(names)


def _merged_columns(
    columns: dict[str, _Values] | None, given: dict[str, _Values]
) -> dict[str, _Values] | None:
    """Returns `columns` with `given` put into them; None when `columns` is None."""
    if columns is None:
        return None
    for name, values in given.items():
        before = columns.get(name)
        if before is None or (isinstance(values, bytes) and values):
            columns[name] = values
        elif not isinstance(values, bytes):
            columns[name] = pc.coalesce(values, before)
    return columns


def _encode_columns(count: int, columns: dict[str, _Values], capacity: int) -> pa.LargeBinaryArray:
    """Joins all columns at once; the bytes between two columns without nulls are one scalar."""
    names = tuple(columns)
    parts: list[Any] = []
    text = b""
    for place in hash_map_order(names, capacity):
        name, values = names[place].encode() + _NAME_VALUE, columns[names[place]]
        if isinstance(values, bytes):
            text += name + values + _PROPERTY if values else b""
        elif values.null_count:
            # A null value removes its name and separators. The text before them is a part of its own, so that
            # the null does not remove it.
            parts += [
                pa.scalar(text, _KIND),
                pc.binary_join_element_wise(
                    pa.scalar(name, _KIND), values, pa.scalar(_PROPERTY, _KIND), _NOTHING
                ),
            ]
            text = b""
        else:
            parts += [pa.scalar(text + name, _KIND), values]
            text = _PROPERTY
    parts.append(pa.scalar(text, _KIND))
    if not any(isinstance(part, pa.Array) for part in parts):
        return pa.repeat(parts[-1], count)
    return pc.binary_join_element_wise(*parts, _NOTHING, null_handling="replace", null_replacement="")


def _encode_entries(
    count: int, maps: PropertyMaps, given: dict[str, _Values], capacity: int
) -> pa.LargeBinaryArray:
    """Encodes messages with different names: sorts all entries by message and bucket, then joins them."""
    names = list(maps.names)
    numbers = {name: number for number, name in enumerate(names)}
    present = maps.values.is_valid().to_numpy(zero_copy_only=False)
    if "" in numbers:
        present &= maps.codes != numbers[""]
    rows, codes, values = [maps.rows[present]], [maps.codes[present]], [maps.values.filter(pa.array(present))]
    for name, column in given.items():
        if name not in numbers:
            numbers[name] = len(names)
            names.append(name)
        if isinstance(column, bytes):
            column = pa.repeat(pa.scalar(column or None, _KIND), count)
        rows.append(np.flatnonzero(column.is_valid().to_numpy(zero_copy_only=False)))
        codes.append(np.full(len(rows[-1]), numbers[name]))
        values.append(column.drop_null())
    row, code = np.concatenate(rows), np.concatenate(codes)
    kept, source = _last_values(row * len(names) + code)
    row, code = row[kept], code[kept]
    counts = np.bincount(row, minlength=count)
    order = np.lexsort((_bucket_of_entries(names, code, counts[row], capacity), row))
    prefixes = pa.array([name.encode() + _NAME_VALUE for name in names], _KIND)
    taken = pa.concat_arrays(values).take(pa.array(source[order]))
    joined = pc.binary_join_element_wise(
        prefixes.take(pa.array(code[order])), taken, pa.scalar(_PROPERTY, _KIND), _NOTHING
    )
    data, offsets = flat_bytes(joined)
    bounds = np.zeros(count + 1, np.int64)
    np.cumsum(counts, out=bounds[1:])
    return from_flat(data, offsets[bounds])


def _last_values(keys: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Returns the first and the last place of each distinct key (message and name)."""
    everything = np.arange(len(keys))
    ordered = np.sort(keys)
    if not (ordered[1:] == ordered[:-1]).any():
        return everything, everything
    _, first = np.unique(keys, return_index=True)
    _, last = np.unique(keys[::-1], return_index=True)
    by_place = np.argsort(first)
    return first[by_place], len(keys) - 1 - last[by_place]


def _bucket_of_entries(
    names: list[str], codes: NDArray[np.int64], counts: NDArray[np.int64], capacity: int
) -> NDArray[np.int64]:
    """Returns the bucket of each entry in the HashMap of its message, which grows with its names."""
    largest = int(counts.max(initial=0))
    if table_size(largest, capacity) == capacity:  # nearly always: no HashMap has grown
        return _bucket_of_each(names, capacity)[codes]
    buckets = np.empty(len(codes), np.int64)
    sizes = np.array([table_size(number, capacity) for number in range(largest + 1)])[counts]
    for size in np.unique(sizes).tolist():
        of_size = sizes == size
        buckets[of_size] = _bucket_of_each(names, size)[codes[of_size]]
    return buckets


def _bucket_of_each(names: list[str], size: int) -> NDArray[np.int64]:
    return np.array([hash_bucket(name, size) for name in names], np.int64)


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
    ended = pc.binary_join_element_wise(properties, pa.scalar(_PROPERTY, _KIND), _NOTHING)
    return pc.if_else(pa.array(open_ended), ended, properties)
