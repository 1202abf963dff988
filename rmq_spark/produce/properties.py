"""The properties of the messages of a batch: the caller's map and columns, and those of client and broker.

Properties that RocketMQ sets itself, and those that the store cannot hold, are left out and counted, or
refused (option strictProperties).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rmq_spark.produce.delays import Parked
from rmq_spark.produce.rows import WriteRows
from rmq_spark.produce.unique_ids import UniqueIds
from store_format.arrays.ranges import flat_bytes
from store_format.layouts import NAME_VALUE_SEPARATOR, PROPERTY_SEPARATOR
from store_format.message.property_encoder import encode_property_columns
from store_format.message.property_maps import PropertyMaps
from store_format.names import KEYS, RESERVED_PROPERTIES, SHARDING_KEY, TAGS, UNIQ_KEY, WAIT

_KIND = pa.large_binary()
_SEPARATORS = (chr(NAME_VALUE_SEPARATOR), chr(PROPERTY_SEPARATOR))
_SET_BY_ROCKETMQ = (
    "RocketMQ sets this property itself (strictProperties=true); leave it out, and use the columns "
    "delayTimeLevel and deliverTimestamp for a delay"
)


class MessageProperties:
    """The properties of one batch. `left_out` counts the properties that are not written, by name."""

    def __init__(self, rows: WriteRows, *, strict: bool = False, allowed: Collection[str] = ()) -> None:
        """Raises IllegalMessageError for a separator in a name or a value.

        With `strict` also for a property that would be left out. `allowed` are reserved properties that these
        messages may bring.
        """
        self._rows = rows
        self._reserved = RESERVED_PROPERTIES.difference(allowed)
        self._maps, self.left_out = _written_maps(rows, self._reserved, strict=strict)
        self._columns = self._property_columns(strict=strict)
        # A column that is not null wins over the map's entry.
        self._given = {
            TAGS: rows.text("tags"),
            KEYS: _unless_same(rows.keys(), self._entry(KEYS)),
            SHARDING_KEY: rows.text("shardingKey"),
        }
        self.tags, self.keys, self.sharding_key = (
            _first(column, self._entry(name)) for name, column in self._given.items()
        )

    def uniq_keys(self, ids: UniqueIds, now_ms: int) -> pa.LargeBinaryArray:
        """The UNIQ_KEYs of the rows, and new ones for rows without."""
        brought = self._entry(UNIQ_KEY)
        if brought is None:
            return ids.take(self._rows.count, now_ms)
        if not brought.null_count:
            return brought
        return pc.replace_with_mask(brought, brought.is_null(), ids.take(brought.null_count, now_ms))

    def strings(self, uniq_key: pa.LargeBinaryArray, parked: Parked, size_max: int) -> pa.LargeBinaryArray:
        """The property strings as the broker stores them.

        The map's properties come first, so that a message that was read and is written again keeps the order
        of names in the same hash bucket.
        """
        given = self._columns | {name: column for name, column in self._given.items() if column is not None}
        columns: dict[str, Any] = {
            name: _first(column, self._columns.get(name)) for name, column in given.items()
        }
        wait = self._entry(WAIT)
        if wait is None or wait.null_count:
            # The constructors of Message set WAIT.
            columns[WAIT] = "true" if wait is None else pc.fill_null(wait, b"true")
        columns |= parked.by_client
        if UNIQ_KEY in self._columns or uniq_key is not self._entry(UNIQ_KEY):
            columns[UNIQ_KEY] = uniq_key
        columns |= parked.by_broker
        for name, column in given.items():
            if (place := _separator_in(column)) is not None:
                self._rows.refuse(
                    place,
                    f"property {name}: expected a value without 0x02, which ends a property in the store",
                )
        strings = encode_property_columns(self._rows.count, columns, self._maps)
        sizes = pc.binary_length(strings).to_numpy()
        if int(sizes.max(initial=0)) > size_max:
            row = int(sizes.argmax())
            self._rows.refuse(
                row, f"expected properties of at most {size_max} bytes, found {sizes[row]} bytes"
            )
        return strings

    def _entry(self, name: str) -> pa.LargeBinaryArray | None:
        """The property in the rows: its own column, else its entries in the map."""
        return _first(self._columns.get(name), None if self._maps is None else self._maps.column(name))

    def _property_columns(self, *, strict: bool) -> dict[str, pa.LargeBinaryArray]:
        """The columns of propertyColumns with a value in some row, without RocketMQ's own properties."""
        found = {}
        for name in self._rows.property_columns:
            column = self._rows.text(name)
            if column is None:
                continue
            if name not in self._reserved:
                found[name] = column
            elif strict and column.null_count < len(column):
                row = column.is_valid().index(pa.scalar(True)).as_py()
                self._rows.refuse(row, f"property {name!r}: {_SET_BY_ROCKETMQ}")
            elif self._maps is None or name not in self._maps.names:
                self.left_out[name] += len(column) - column.null_count
        return found


def _written_maps(
    rows: WriteRows, reserved: frozenset[str], *, strict: bool
) -> tuple[PropertyMaps | None, Counter[str]]:
    column = rows.column("properties")
    if column is None:
        return None, Counter()
    maps = PropertyMaps.of(column)
    for name in maps.names:
        if any(separator in name for separator in _SEPARATORS):
            rows.refuse(
                maps.rows[_of_name(maps, name).argmax()],
                f"property {name!r}: expected a name without 0x01 and 0x02, "
                "which separate properties in the store",
            )
    place = _separator_in(maps.values)
    if place is not None:
        name = maps.names[maps.codes[place]]
        rows.refuse(
            maps.rows[place],
            f"property {name}: expected a value without 0x02, which ends a property in the store",
        )
    own = reserved.intersection(maps.names)
    gone = maps.empty()
    for name in own:
        gone = gone | _of_name(maps, name)
    if not gone.any():
        return maps, Counter()
    if strict:
        entry = int(gone.argmax())
        name = maps.names[maps.codes[entry]]
        why = (
            _SET_BY_ROCKETMQ
            if name in own
            else "the store cannot hold an empty name or value (strictProperties=true); leave it out"
        )
        rows.refuse(maps.rows[entry], f"property {name!r}: {why}")
    counts = np.bincount(maps.codes[gone], minlength=len(maps.names)).tolist()
    return maps.where(~gone), Counter(
        {name: count for name, count in zip(maps.names, counts, strict=True) if count}
    )


def _of_name(maps: PropertyMaps, name: str) -> NDArray[np.bool_]:
    found: NDArray[np.bool_] = maps.codes == maps.names.index(name)
    return found


def _separator_in(values: pa.LargeBinaryArray) -> int | None:
    """The place of the first value with a 0x02, which would end the property there."""
    data, offsets = flat_bytes(values)
    place = data.tobytes().find(PROPERTY_SEPARATOR)
    return None if place < 0 else int(np.searchsorted(offsets, place, side="right")) - 1


def _unless_same(
    keys: pa.LargeBinaryArray | None, entry: pa.LargeBinaryArray | None
) -> pa.LargeBinaryArray | None:
    """The column, null where the map's entry has the same keys.

    Some producers write several spaces between keys. A read splits at spaces, so the entry keeps them.
    """
    if keys is None or entry is None:
        return keys
    other = pc.fill_null(pc.not_equal(keys, entry), False)
    if not pc.any(other).as_py():
        return keys
    pairs = zip(keys.filter(other).to_pylist(), entry.filter(other).to_pylist(), strict=True)
    same = pa.array(
        [[*filter(None, own.split(b" "))] == [*filter(None, mapped.split(b" "))] for own, mapped in pairs]
    )
    kept = pc.if_else(same, pa.scalar(None, _KIND), keys.filter(other))
    return pc.replace_with_mask(keys, other, kept)


def _first(
    column: pa.LargeBinaryArray | None, entry: pa.LargeBinaryArray | None
) -> pa.LargeBinaryArray | None:
    """The column; where it is null, the map's entry."""
    if column is None or entry is None:
        return entry if column is None else column
    return pc.coalesce(column, entry)
