"""The properties string of a message: `name 0x01 value 0x02` for each property, without escapes (spec 2.5).

Strings are decoded one by one, or, many at a time, into columns by the kernels; the rules are those of
MessageDecoder.string2messageProperties. `property_encoder.py` encodes them. The tags code of a consume queue
entry is computed from the properties too (spec 3.2).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from store_format import kernels
from store_format.arrays.ranges import (
    PADDING,
    array_of,
    from_parts,
    gather_ranges,
    mapped_array,
    new_array,
    numbers,
)
from store_format.java.numbers import parse_long
from store_format.java.text import decode_utf8, tags_code_many
from store_format.layouts import (
    CRC_PROPERTY_NAME,
    CRC_PROPERTY_SIZE,
    NAME_VALUE_SEPARATOR,
    PROPERTY_SEPARATOR,
)
from store_format.names import DELAY, DELAY_LEVELS_MS, KEYS, TAGS, UNIQ_KEY

_NAME_VALUE = bytes([NAME_VALUE_SEPARATOR])
_PROPERTY = bytes([PROPERTY_SEPARATOR])
_CRC_PREFIX = CRC_PROPERTY_NAME + _NAME_VALUE
_CRC_DIGITS = CRC_PROPERTY_SIZE - len(_CRC_PREFIX) - 1

_MAP = pa.map_(pa.string(), pa.string())
WORDS_TYPE = pa.list_(pa.field("element", pa.string()))

_SPACE = ord(" ")
_TEXT_ROOM = (
    64  # bytes for each value of a wanted property; where values are longer, another pass copies them
)

_Ints = NDArray[np.int64]
_Places = tuple[_Ints, _Ints]  # where each value lies in the bytes, and its size; -1: absent


# ---- the properties of one message -------------------------------------------------------------------------


def decode_properties(raw: bytes) -> dict[str, str]:
    """Returns the properties of one message as Java reads them (MessageDecoder.string2messageProperties).

    A segment counts only when its first 0x01 has at least one byte on both sides; a value may contain further
    0x01. Of equal names the last value counts, at the place of the first.

    >>> decode_properties(b"KEYS\\x01k1 k2\\x02TAGS\\x01\\x02")
    {'KEYS': 'k1 k2'}
    """
    return {
        decode_utf8(name): decode_utf8(value)
        for name, _, value in (segment.partition(_NAME_VALUE) for segment in raw.split(_PROPERTY))
        if name and value
    }


# ---- the appended CRC property -----------------------------------------------------------------------------


def crc_properties(crcs: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Returns the CRC property of each CRC as a row of 20 bytes, with ten digits, the last digit first.

    The rule is MessageDecoder.createCrc32.

    >>> crc_properties(np.array([374855536])).tobytes()
    b'__CRC32#\\x016355584730\\x02'
    """
    rows = np.empty((len(crcs), CRC_PROPERTY_SIZE), np.uint8)
    rows[:, : len(_CRC_PREFIX)] = np.frombuffer(_CRC_PREFIX, np.uint8)
    rest = crcs.copy()
    for place in range(len(_CRC_PREFIX), len(_CRC_PREFIX) + _CRC_DIGITS):
        rest, digits = np.divmod(rest, 10)
        rows[:, place] = digits + ord("0")
    rows[:, -1] = PROPERTY_SEPARATOR
    return rows


def parse_crc_property(raw: bytes) -> int | None:
    """Returns the CRC in the last 20 bytes of a unit; None when they are no CRC property."""
    digits = raw[len(_CRC_PREFIX) : -1]
    if (
        len(raw) != CRC_PROPERTY_SIZE
        or not raw.startswith(_CRC_PREFIX)
        or not raw.endswith(_PROPERTY)
        or not digits.isdigit()
    ):
        return None
    return int(digits[::-1])


# ---- the properties of many messages -----------------------------------------------------------------------


class PropertyTable:
    """The properties of messages: one column for a name, or all as maps.

    Names that are wanted together should be given to `find` first: each call is one pass over the strings.
    """

    def __init__(self, raw: pa.BinaryArray) -> None:
        """`raw`: the stored properties strings, one per message, none null."""
        offsets, data = mapped_array(raw)
        kernels.ready(len(raw))
        self._set(data, offsets[:-1].astype(np.int64), np.diff(offsets).astype(np.int64))

    @classmethod
    def in_buffer(cls, buffer: NDArray[np.uint8], starts: _Ints, lengths: _Ints) -> PropertyTable:
        """Returns the table of the strings at these positions of a buffer, which are not copied."""
        table = cls.__new__(cls)
        table._set(buffer, starts, lengths)
        return table

    def _set(self, buffer: NDArray[np.uint8], starts: _Ints, lengths: _Ints) -> None:
        self._buffer, self._starts, self._lengths = buffer, starts, lengths
        self._places: dict[str, _Places] = {}
        self._texts: dict[str, tuple[NDArray[np.int32], NDArray[np.uint8]]] = {}
        self._maps: pa.MapArray | None = None
        self._rows: list[dict[str, str]] | None = None
        if not kernels.ready():
            self._rows = [decode_properties(raw) for raw in self._raw()]

    def _raw(self) -> list[bytes]:
        pairs = zip(self._starts.tolist(), (self._starts + self._lengths).tolist(), strict=True)
        return [self._buffer[start:stop].tobytes() for start, stop in pairs]

    def find(self, names: Collection[str], *, maps: bool = False) -> None:
        """Finds the values of these names, and with `maps` makes the maps, in one pass over all strings."""
        if self._rows is not None:
            return
        new = [name for name in dict.fromkeys(names) if name not in self._places]
        if new or (maps and self._maps is None):
            self._parse(new, maps)

    def _parse(self, names: list[str], maps: bool) -> None:
        count = len(self._starts)
        text_stops, share = np.empty(len(names), np.int64), _TEXT_ROOM * count + PADDING
        text_offsets = new_array(len(names) * (count + 1), np.int32)
        copies = new_array(len(names) * share, np.uint8)
        encoded = [name.encode() for name in names]
        at, size = np.empty((len(names), count), np.int64), np.empty((len(names), count), np.int64)
        malformed = np.empty(count, np.bool_)
        bytes_max = int(self._lengths.sum()) if maps else 0
        entries_max = (bytes_max + count) // 4
        map_offsets = new_array(count + 1, np.int32)
        texts = [
            new_array(n, kind)
            for n, kind in 2 * ((entries_max + 1, np.int32), (bytes_max + PADDING, np.uint8))
        ]
        places = int(self._lengths.max(initial=0)) // 4 + 2
        bad = kernels.properties.parse(
            self._buffer,
            self._starts,
            self._lengths,
            np.frombuffer(b"".join(encoded), np.uint8),
            np.cumsum([len(name) for name in encoded], dtype=np.int64),
            maps,
            np.empty(kernels.properties.SCRATCH * places + len(names), np.int64),
            np.zeros(4 << places.bit_length(), np.int64),
            malformed,
            at.reshape(-1),
            size.reshape(-1),
            text_stops,
            text_offsets,
            copies,
            map_offsets,
            *texts,
        )
        if bad:
            self._replace(malformed)
            self._parse([*self._places, *names], maps or self._maps is not None)
            return
        self._places |= {name: (at[i], size[i]) for i, name in enumerate(names)}
        for i, stop in enumerate(text_stops.tolist()):
            if stop >= 0:
                offsets = text_offsets[i * (count + 1) : (i + 1) * (count + 1)]
                self._texts[names[i]] = offsets, copies[i * share : (i + 1) * share]
        if maps:
            entries = int(map_offsets[-1]) + 1
            keys, items = (from_parts(pa.string(), texts[i][:entries], texts[i + 1]) for i in (0, 2))
            self._maps = pa.MapArray.from_arrays(numbers(map_offsets), keys, items)

    def _replace(self, malformed: NDArray[np.bool_]) -> None:
        """Replaces malformed UTF-8 by U+FFFD, as Java does."""
        strings = self._raw()
        for row in np.flatnonzero(malformed).tolist():
            strings[row] = decode_utf8(strings[row]).encode()
        self._buffer = np.frombuffer(b"".join(strings), np.uint8)
        self._lengths = np.array([len(string) for string in strings], np.int64)
        self._starts = np.cumsum(self._lengths) - self._lengths

    # ---- columns -------------------------------------------------------------------------------------------

    def map_array(self) -> pa.MapArray:
        """map<string, string>, one map a message, in stored order."""
        if self._rows is not None:
            return pa.array([list(row.items()) for row in self._rows], _MAP)
        self.find((), maps=True)
        return self._maps

    def values(self, name: str) -> pa.StringArray:
        """Returns the value of a property for each message; null if absent."""
        if self._rows is not None:
            texts = (row.get(name) for row in self._rows)
            return array_of([None if text is None else text.encode() for text in texts], pa.string())
        at, size = self._found(name)  # which may replace the buffer
        if name not in self._texts:
            return gather_ranges(self._buffer, at, size, pa.string())
        has_nulls = len(size) and size.min() < 0
        return from_parts(
            pa.string(), *self._texts[name], np.packbits(size >= 0, bitorder="little") if has_nulls else None
        )

    def words(self, name: str) -> pa.ListArray:
        """Returns the words of a property for each message, split at spaces, without empty words."""
        if self._rows is not None:
            values = [row.get(name) for row in self._rows]
            return pa.array(
                [value and [word for word in value.split(" ") if word] for value in values], WORDS_TYPE
            )
        at, size = self._found(name)
        count = len(at)
        if count and name in self._texts and size.min() >= 0:
            offsets, data = self._texts[name]
            if not (data[: int(offsets[-1])] == _SPACE).any():  # each value is one word
                lists = pa.py_buffer(np.arange(count + 1, dtype=np.int32))
                words = from_parts(pa.string(), offsets, data)
                return pa.ListArray.from_buffers(WORDS_TYPE, count, [None, lists], children=[words])
        total = int(np.maximum(size, 0).sum())
        lists, valid = new_array(count + 1, np.int32), new_array(count // 8 + 1, np.uint8)
        offsets, data = new_array((total + count) // 2 + 1, np.int32), new_array(total + PADDING, np.uint8)
        nulls = kernels.strings.split_words(self._buffer, at, size, lists, valid, offsets, data)
        words = from_parts(pa.string(), offsets[: int(lists[-1]) + 1], data)
        buffers = [pa.py_buffer(valid) if nulls else None, pa.py_buffer(lists)]
        return pa.ListArray.from_buffers(WORDS_TYPE, count, buffers, children=[words])

    def has_key(self, key: str) -> pa.BooleanArray:
        """Which messages have `key` as UNIQ_KEY or as a word of KEYS.

        KEYS is split at single spaces (IndexService.buildIndex), so a key with a space can only be a
        UNIQ_KEY.
        """
        if self._rows is not None:
            rows = (
                row.get(UNIQ_KEY) == key or (" " not in key and key in row.get(KEYS, "").split(" "))
                for row in self._rows
            )
            return pa.array(rows, pa.bool_())
        found = np.zeros(len(self._starts), np.bool_)
        wanted = np.frombuffer(key.encode(), np.uint8)
        self.find((UNIQ_KEY, KEYS))
        kernels.strings.match(self._buffer, *self._places[UNIQ_KEY], wanted, False, found)
        if " " not in key:
            kernels.strings.match(self._buffer, *self._places[KEYS], wanted, True, found)
        return pa.array(found)

    def _found(self, name: str) -> _Places:
        self.find((name,))
        return self._places[name]


# ---- tags codes --------------------------------------------------------------------------------------------


def tags_codes(
    table: PropertyTable,
    scheduled: NDArray[np.bool_],
    store_timestamps: NDArray[np.int64],
    delay_levels_ms: Sequence[int] = DELAY_LEVELS_MS,
    *,
    unknown: int | None = None,
) -> NDArray[np.int64]:
    """Returns the Java hash of TAGS, 0 without; for delayed messages (`scheduled`) the delivery time in ms.

    CommitLog.checkMessageAndReturnSize and DefaultMessageStore.computeDeliverTimestamp: a level above the
    highest counts as the highest; a level of 0 or less counts as no level. A delayed message whose level is
    no number has the code `unknown`, if that is given.
    """
    codes: NDArray[np.int64] = tags_code_many(table.values(TAGS)).astype(np.int64)
    if scheduled.any() and len(delay_levels_ms):
        for i, text in enumerate(table.values(DELAY).to_pylist()):
            level = parse_long(text)
            if scheduled[i] and level is None and unknown is not None:
                codes[i] = unknown
            if scheduled[i] and level is not None and level > 0:
                delay = np.int64(delay_levels_ms[min(level, len(delay_levels_ms)) - 1])
                # as arrays, whose sum wraps silently as in Java
                codes[i : i + 1] = store_timestamps[i : i + 1] + delay
    return codes
