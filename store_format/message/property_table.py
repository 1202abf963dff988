"""Decodes the properties strings of many messages at once, from one pass over the separators.

The rules are those of MessageDecoder.string2messageProperties (spec 2.5): segments end at 0x02; a segment
counts when its first 0x01 has at least one byte on both sides; of equal names the last value counts, at the
place of the first.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from store_format.arrays.ranges import gather_words, mapped_array
from store_format.java.text import decode_utf8
from store_format.layouts import NAME_VALUE_SEPARATOR, PROPERTY_SEPARATOR
from store_format.names import KEYS, UNIQ_KEY

_MASKS = np.array([(1 << (8 * n)) - 1 for n in range(9)], np.uint64)  # low n bytes of a little-endian word
_MIX = np.uint64(0x9E3779B97F4A7C15)
# For more properties in one message, sorting is cheaper than comparing all shifts.
_SHIFTED_COMPARES_MAX = 24
_WORD = 8
_REPEATED_ROWS = 1 << 14  # rows of the shared array of repeated names; batches are smaller


class PropertyTable:
    """All properties of a batch as flat arrays, one entry for each property, in stored order.

    `row` is the message of each property, `counts` the number of properties of each message. Names and values
    are ranges of `data`; one Arrow kernel makes a column or the maps from them.
    """

    def __init__(self, raw: pa.BinaryArray) -> None:
        """`raw`: the stored properties strings, one per message, none null."""
        offsets, data = mapped_array(raw)
        if len(data) and int(data.max()) >= 0x80:
            fixed = _replace_malformed(raw, offsets, data)
            if fixed is not None:
                offsets, data = mapped_array(fixed)
        first, last = int(offsets[0]), int(offsets[-1])  # a slice shares its bytes with the whole
        offsets, data = offsets - first, data[first:last]
        self.count = len(raw)
        self.data = np.empty(len(data) + _WORD, np.uint8)  # padded for eight-byte loads
        self.data[: len(data)] = data
        self.data[len(data) :] = 0
        self._size = len(data)
        self._split(offsets.astype(np.int64))
        self._words: NDArray[np.uint64] = (
            gather_words(self.data, self.name_start) & _MASKS[np.minimum(self.name_length, _WORD)]
        )
        self._names = self._shared_names()
        if self._names is None or len(set(self._names)) < len(self._names):
            self._names = None
            self._drop_repeated()
        self._strings: pa.StringArray | None = None

    # ---- segments ------------------------------------------------------------------------------------------

    def _split(self, offsets: NDArray[np.int64]) -> None:
        data = self.data[: self._size]
        separators = np.flatnonzero(data <= PROPERTY_SEPARATOR)
        kinds = data[separators]
        if len(kinds) and not kinds.min():  # a NUL is a character like any other
            separators, kinds = separators[kinds > 0], kinds[kinds > 0]
        ends = offsets[1:]
        filled = ends[ends > offsets[:-1]]
        regular = (
            not len(separators) & 1
            and bool((kinds[0::2] == NAME_VALUE_SEPARATOR).all())
            and bool((kinds[1::2] == PROPERTY_SEPARATOR).all())
            and bool((data[filled - 1] == PROPERTY_SEPARATOR).all())
        )
        # Set for a plain sequence of name 0x01 value 0x02: names and values alternate between separators.
        self._separators = separators if regular and _all_apart(separators) else None
        self._row: NDArray[np.int64] | None = None
        if self._separators is not None:
            middles, stops = separators[0::2], separators[1::2]
            starts = np.empty_like(stops)
            starts[:1] = 0
            np.add(stops[:-1], 1, out=starts[1:])
            self._set_segments(starts, middles, stops)
            each = len(stops) // max(self.count, 1)
            if each * self.count == len(stops) and each and bool((stops[each - 1 :: each] == ends - 1).all()):
                self.counts = np.full(self.count, each)
                return
        else:
            starts, middles, stops = _irregular_segments(data, offsets, separators, kinds)
            accepted = (middles > starts) & (middles < stops - 1)
            starts, middles, stops = starts[accepted], middles[accepted], stops[accepted]
            self._set_segments(starts, middles, stops)
        self.counts = np.diff(np.searchsorted(starts, offsets))

    def _set_segments(
        self, starts: NDArray[np.int64], middles: NDArray[np.int64], stops: NDArray[np.int64]
    ) -> None:
        self.name_start = starts
        self.name_length = middles - starts
        self.value_start = middles + 1
        self.value_stop = stops

    @property
    def row(self) -> NDArray[np.int64]:
        """Returns the message of each property."""
        if self._row is None:
            self._row = np.repeat(np.arange(self.count), self.counts)
        return self._row

    # ---- names ---------------------------------------------------------------------------------------------

    def _shared_names(self) -> tuple[bytes, ...] | None:
        """Returns the names if all messages have the same in the same order, as from one producer."""
        each = int(self.counts[0]) if self.count else 0
        if not each or not (self.counts == each).all():
            return None
        words, lengths = self._words, self.name_length
        # Compare each name with that of the message before: one call of numpy instead of a loop over short
        # rows.
        if not ((words[each:] == words[:-each]).all() and (lengths[each:] == lengths[:-each]).all()):
            return None
        names = []
        for column, size in enumerate(lengths[:each].tolist()):
            starts = self.name_start[column::each]
            name = self.data[int(starts[0]) : int(starts[0]) + size].tobytes()
            if size > _WORD:
                windows = np.ndarray((len(self.data) - size + 1,), f"V{size}", self.data, strides=(1,))
                if (windows[starts].view(np.uint8).reshape(-1, size) != np.frombuffer(name, np.uint8)).any():
                    return None
            names.append(name)
        return tuple(names)

    # ---- repeated names ------------------------------------------------------------------------------------

    def _drop_repeated(self) -> None:
        """Keeps one entry for each name of a message: the last value at the place of the first."""
        suspects = self._rows_with_repeated_names()
        if not len(suspects):
            return
        self._separators = None
        keep = np.ones(len(self.name_start), bool)
        firsts = np.concatenate(([0], np.cumsum(self.counts)))
        for row in suspects.tolist():
            places: dict[bytes, int] = {}
            for i in range(int(firsts[row]), int(firsts[row + 1])):
                start = int(self.name_start[i])
                first = places.setdefault(self.data[start : start + int(self.name_length[i])].tobytes(), i)
                if first != i:
                    keep[i] = False
                    self.value_start[first], self.value_stop[first] = self.value_start[i], self.value_stop[i]
        self.counts = np.add.reduceat(np.append(keep, False), firsts[:-1]) * (self.counts > 0)
        self.name_start, self.name_length = self.name_start[keep], self.name_length[keep]
        self._words = self._words[keep]
        self.value_start, self.value_stop = self.value_start[keep], self.value_stop[keep]
        self._row = None

    def _rows_with_repeated_names(self) -> NDArray[np.int64]:
        """Returns messages in which two names have equal hashes; a collision costs time only."""
        if not len(self.name_start):
            return np.empty(0, np.int64)
        most = int(self.counts.max())
        names = self._name_hashes()
        if most > _SHIFTED_COMPARES_MAX:
            order = np.lexsort((names, self.row))
            alike = (names[order][1:] == names[order][:-1]) & (self.row[order][1:] == self.row[order][:-1])
            return np.unique(self.row[order][1:][alike])
        hits = []
        for shift in range(1, most):
            alike = names[shift:] == names[:-shift]
            if alike.any():
                places = np.flatnonzero(alike)
                hits.append(self.row[places][self.row[places] == self.row[places + shift]])
        return np.unique(np.concatenate(hits)) if hits else np.empty(0, np.int64)

    def _name_hashes(self) -> NDArray[np.uint64]:
        """Returns a hash of each name: its first eight bytes, for longer names mixed with tail and length."""
        long = np.flatnonzero(self.name_length > _WORD)
        if not len(long):
            return self._words
        hashes: NDArray[np.uint64] = self._words.copy()
        stops = self.name_start[long] + self.name_length[long]
        tails = gather_words(self.data, stops - _WORD)
        hashes[long] += (tails ^ self.name_length[long].astype(np.uint64)) * _MIX
        return hashes

    # ---- columns -------------------------------------------------------------------------------------------

    def _ranges(self) -> pa.StringArray:
        """Returns an array in which element 4i is name i and element 4i + 2 is value i."""
        if self._strings is None:
            count = len(self.name_start)
            offsets = np.empty(4 * count + 1, np.int32)
            if self._separators is not None:
                offsets[0] = 0
                offsets[1::2] = self._separators
                np.add(offsets[1::2], 1, out=offsets[2::2])
            else:
                offsets[0:-1:4] = self.name_start
                np.add(self.name_start, self.name_length, out=offsets[1::4], casting="unsafe")
                offsets[2::4] = self.value_start
                offsets[3::4] = self.value_stop
                offsets[-1] = self._size
            self._strings = pa.Array.from_buffers(
                pa.string(), 4 * count, [None, pa.py_buffer(offsets), pa.py_buffer(self.data)]
            )
        return self._strings

    def map_array(self) -> pa.MapArray:
        """map<string, string>, one map a message, in stored order."""
        ranges = self._ranges()
        places = np.arange(0, 4 * len(self.name_start), 4, dtype=np.int32)
        offsets = np.zeros(self.count + 1, np.int32)
        np.cumsum(self.counts, out=offsets[1:])
        if self._names is not None and self.count <= _REPEATED_ROWS:
            names = _repeated_names(self._names)[: len(places)]
        else:
            names = ranges.take(pa.array(places))
        return pa.MapArray.from_arrays(pa.array(offsets), names, ranges.take(pa.array(places + np.int32(2))))

    def places(self, name: str) -> NDArray[np.int64]:
        """Returns the entry with this name for each message; -1 for a message without it."""
        encoded = name.encode()
        if self._names is not None:
            if encoded not in self._names:
                return np.full(self.count, -1, np.int64)
            return np.arange(self._names.index(encoded), len(self.name_start), len(self._names))
        word = np.uint64(int.from_bytes(encoded[:_WORD], "little"))
        found = np.flatnonzero((self._words == word) & (self.name_length == len(encoded)))
        if len(encoded) > _WORD and len(found):
            rest = np.frombuffer(encoded, np.uint8)[_WORD:]
            columns = self.name_start[found, None] + np.arange(_WORD, len(encoded))
            found = found[(self.data[columns] == rest).all(axis=1)]
        places = np.full(self.count, -1, np.int64)
        places[self.row[found]] = found
        return places

    def values(self, name: str) -> pa.StringArray:
        """Returns the value of a property for each message; null if absent."""
        places = self.places(name)
        absent = places < 0
        index = pa.array(places * 4 + 2, mask=absent) if absent.any() else pa.array(places * 4 + 2)
        return self._ranges().take(index)

    def has_key(self, key: str) -> pa.BooleanArray:
        """Which messages have `key` as UNIQ_KEY or as a word of KEYS.

        KEYS is split at single spaces (IndexService.buildIndex), so a key with a space can only be a
        UNIQ_KEY.
        """
        found = pc.fill_null(pc.equal(self.values(UNIQ_KEY), key), False)
        if " " in key:
            return found
        words = pc.binary_join_element_wise(" ", self.values(KEYS), " ", "")
        return pc.or_(found, pc.fill_null(pc.match_substring(words, f" {key} "), False))


@lru_cache(maxsize=8)
def _repeated_names(names: tuple[bytes, ...]) -> pa.StringArray:
    """Returns the names repeated for `_REPEATED_ROWS` messages; batches take slices without a copy."""
    return pa.array([decode_utf8(name) for name in names], pa.string()).take(
        pa.array(np.tile(np.arange(len(names)), _REPEATED_ROWS))
    )


def _all_apart(separators: NDArray[np.int64]) -> bool:
    """Returns whether no name and no value is empty: at least one byte lies before each separator."""
    return not len(separators) or bool(
        separators[0] > 0 and (len(separators) == 1 or np.diff(separators).min() > 1)
    )


def _irregular_segments(
    data: NDArray[np.uint8],
    offsets: NDArray[np.int64],
    separators: NDArray[np.int64],
    kinds: NDArray[np.uint8],
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Returns (start, first 0x01, stop) of each segment; for strings that are not plain pairs."""
    ends = offsets[1:]
    # The last segment of a string without a final 0x02 ends with the string.
    open_ended = (
        ends[(ends > offsets[:-1]) & (data[np.maximum(ends - 1, 0)] != PROPERTY_SEPARATOR)]
        if len(data)
        else ends[:0]
    )
    terminators = separators[kinds == PROPERTY_SEPARATOR]
    # An open end comes before a 0x02 at the same position, with which the next string begins: the stable sort
    # keeps this order.
    stops = np.concatenate((open_ended, terminators))
    terminated = np.concatenate((np.zeros(len(open_ended), np.int64), np.ones(len(terminators), np.int64)))
    order = np.argsort(stops, kind="stable")
    stops, terminated = stops[order], terminated[order]
    starts = np.empty_like(stops)
    if len(starts):
        starts[0] = 0
        starts[1:] = stops[:-1] + terminated[:-1]
    middles = separators[kinds == NAME_VALUE_SEPARATOR]
    index = np.searchsorted(middles, starts)
    padded = np.append(middles, np.iinfo(np.int64).max)
    return starts, padded[index], stops


def _replace_malformed(
    raw: pa.BinaryArray, offsets: NDArray[np.int32], data: NDArray[np.uint8]
) -> pa.BinaryArray | None:
    """Returns the strings with malformed UTF-8 replaced by U+FFFD, as in Java; None when all are well-formed.

    Each string is decoded alone: the next string must not complete a character that ends a string.
    """
    boundaries = offsets[1:-1]
    inside = boundaries[(boundaries > 0) & (boundaries < len(data))]
    whole = bool((data[inside] & 0xC0 != 0x80).all()) if len(inside) else True
    if whole:
        try:
            data.tobytes().decode()
        except UnicodeDecodeError:
            pass
        else:
            return None
    return pa.array([decode_utf8(string).encode() for string in raw.to_pylist()], pa.binary())
