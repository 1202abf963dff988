"""The property maps of many messages as flat entries: the message, the number of the name, and the value.

Names repeat, so that each is decoded once.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from store_format.java.text import decode_utf8

_KIND = pa.large_binary()


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
        coded = keys.dictionary_encode()
        return PropertyMaps(
            [decode_utf8(name) for name in coded.dictionary.to_pylist()],
            counts,
            coded.indices.to_numpy(),
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
