"""Properties strings of many messages: `name 0x01 value 0x02` for each property, without escapes (spec 2.5).

The rules are those of MessageDecoder.string2messageProperties: segments end at 0x02 or with the string; a
segment counts when its first 0x01 has at least one byte on both sides; of equal names the last value counts,
at the place of the first. Messages of one producer mostly have the same names in the same order: then names
are compared with those of the message before, and not with each other.
"""

from __future__ import annotations

import numpy as np

from store_format.kernels.jit import (
    BOOL,
    BYTES,
    INT,
    INTS,
    OUT_BOOLS,
    OUT_BYTES,
    OUT_INTS,
    OUT_INTS32,
    kernel,
    part,
)
from store_format.kernels.strings import (
    BLOCK,
    PADDING,
    block_masks,
    copy_text,
    equals,
    is_utf8,
    same_bytes,
    text_word,
)
from store_format.kernels.words import U64, prefetch_range, trailing_zeros, word

SCRATCH = 7  # integers for each property of a string
_AHEAD, _PREFETCHED_MAX = 8, 512  # strings ahead, and bytes of each
_MIX = U64(0x9E3779B97F4A7C15)


@part
def _split(buffer, start, stop, name_at, name_stop, value_at, value_stop):
    """Writes where each property of one string lies; returns how many, and whether all bytes are ASCII."""
    count = 0
    wide = U64(0)
    name, middle = start, np.int64(-1)
    for block in range(start, stop, BLOCK):
        ones, twos, high = block_masks(buffer, block, stop, 1, 2)
        wide |= high
        while twos != U64(0):
            end = np.int64(trailing_zeros(twos)) + block
            if middle < 0 and ones != U64(0):
                middle = np.int64(trailing_zeros(ones)) + block
            if name < middle < end - 1:
                name_at[count], name_stop[count] = name, middle
                value_at[count], value_stop[count] = middle + 1, end
                count += 1
            name, middle = end + 1, np.int64(-1)
            ones &= ~(twos ^ (twos - U64(1)))
            twos &= twos - U64(1)
        if middle < 0 and ones != U64(0):
            middle = np.int64(trailing_zeros(ones)) + block
    if name < middle < stop - 1:  # without a last 0x02
        name_at[count], name_stop[count] = name, middle
        value_at[count], value_stop[count] = middle + 1, stop
        count += 1
    return count, wide == U64(0)


@part
def _same_names(buffer, count, name_at, name_stop, known_at, known_stop, known_word):
    """Returns whether two strings have the same `count` names in the same order.

    `known_word` has the first 8 bytes of each known name in the upper bytes of a word, less at its end.
    """
    for row in range(count):
        at, size = name_at[row], name_stop[row] - name_at[row]
        if known_stop[row] - known_at[row] != size:
            return False
        if word(buffer, at) << U64(64 - 8 * min(size, 8)) != U64(known_word[row]):
            return False
        if size > 8 and not same_bytes(buffer, at + 8, known_at[row] + 8, size - 8):
            return False
    return True


@part
def _hash(buffer, start, stop):
    value = U64(stop - start)
    for at in range(start, stop, 8):
        value = (value ^ text_word(buffer, at, stop - at)) * _MIX
        value ^= value >> U64(32)
    return np.int64(value >> U64(1))


@part
def _drop_repeated(buffer, count, name_at, name_stop, value_at, value_stop, generation, table):
    """Keeps one property for each name, the last value at the place of the first; returns how many are left.

    Rows of `table`, a hash table of names, are (generation, property): what another generation has left is
    empty, so that the table needs no clearing.
    """
    kept = 0
    for row in range(count):
        start, stop = name_at[row], name_stop[row]
        place = _hash(buffer, start, stop) & (len(table) // 2 - 1)
        first = kept
        while table[2 * place] == generation:
            known = table[2 * place + 1]
            size = name_stop[known] - name_at[known]
            if size == stop - start and same_bytes(buffer, name_at[known], start, size):
                first = known
                break
            place = (place + 1) & (len(table) // 2 - 1)
        if first == kept:
            table[2 * place], table[2 * place + 1] = generation, kept
            name_at[kept], name_stop[kept] = start, stop
            kept += 1
        value_at[first], value_stop[first] = value_at[row], value_stop[row]
    return kept


@part
def _find_wanted(buffer, count, name_at, name_stop, wanted, wanted_stops, slots):
    """Writes which property has each wanted name, -1 for none."""
    begin = 0
    for wish in range(len(slots)):
        slots[wish] = -1
        size = wanted_stops[wish] - begin
        for row in range(count):
            at = name_at[row]
            if name_stop[row] - at == size and equals(buffer, at, wanted, begin, size):
                slots[wish] = row
        begin = wanted_stops[wish]


@kernel(
    INT, BYTES, INTS, INTS, BYTES, INTS, BOOL, OUT_INTS, OUT_INTS,
    OUT_BOOLS, OUT_INTS, OUT_INTS, OUT_INTS, OUT_INTS32, OUT_BYTES,
    OUT_INTS32, OUT_INTS32, OUT_BYTES, OUT_INTS32, OUT_BYTES,
)  # fmt: skip
def parse(
    buffer, starts, lengths, wanted, wanted_stops, with_maps, scratch, table,
    malformed, found_at, found_size, text_stops, text_offsets, texts,
    map_offsets, name_offsets, names, value_offsets, values,
):  # fmt: skip
    """Finds the wanted properties of each string, and with `with_maps` writes all properties as a map.

    String i is buffer[starts[i]:starts[i] + lengths[i]]. Wanted name w is wanted[stop of w - 1:stop of w];
    found_at[w * len(starts) + i] and found_size[...] say where its value in string i lies; -1 where it has
    none. `text_offsets` and `texts` have an equal share for each name, which gets the values as Arrow's
    strings; text_stops[w] says where they end, -1 if the share of `texts` is too small. The maps have the
    layout of Arrow's map<string, string>. Strings that are not UTF-8 are marked in `malformed` and taken as
    empty; returns how many.

    The caller gives enough memory. Outputs: (length + 1) / 4 properties of each string, and names and values
    of `strings.PADDING` bytes more than all strings. For n = the longest length // 4 + 2: `scratch` has
    SCRATCH * n integers and one for each wanted name; `table` has twice a power of two of zeros, that power
    at least 2 * n.
    """
    rows = len(starts)
    most = (len(scratch) - len(wanted_stops)) // SCRATCH
    name_at, name_stop, value_at = scratch[:most], scratch[most : 2 * most], scratch[2 * most : 3 * most]
    value_stop, known_word = scratch[3 * most : 4 * most], scratch[6 * most : 7 * most]
    known_at, known_stop = scratch[4 * most : 5 * most], scratch[5 * most : 6 * most]
    slots = scratch[7 * most : 7 * most + len(wanted_stops)]
    share = len(texts) // max(len(text_stops), 1)
    for wish in range(len(slots)):
        slots[wish] = -1
        text_stops[wish] = text_offsets[wish * (rows + 1)] = 0
    known_count = entries = names_size = values_size = names_before = bad = 0
    if with_maps:
        map_offsets[0] = name_offsets[0] = value_offsets[0] = 0
    for i in range(rows):
        if i + _AHEAD < rows:
            prefetch_range(buffer, starts[i + _AHEAD], min(lengths[i + _AHEAD], _PREFETCHED_MAX))
        start, stop = starts[i], starts[i] + lengths[i]
        if start < 0 or stop < start or stop > len(buffer) or stop - start >= 4 * most - 4:
            start = stop = 0  # the caller's strings lie in the buffer
        count, is_ascii = _split(buffer, start, stop, name_at, name_stop, value_at, value_stop)
        malformed[i] = not is_ascii and not is_utf8(buffer, start, stop)
        if malformed[i]:
            bad += 1
            count = 0
        is_known = (
            count == known_count
            and stop + 8 <= len(buffer)
            and _same_names(buffer, count, name_at, name_stop, known_at, known_stop, known_word)
        )
        if not is_known:
            count = _drop_repeated(buffer, count, name_at, name_stop, value_at, value_stop, i + 1, table)
            _find_wanted(buffer, count, name_at, name_stop, wanted, wanted_stops, slots)
            known_count = count
            for row in range(count):
                size = min(name_stop[row] - name_at[row], 8)
                known_at[row], known_stop[row] = name_at[row], name_stop[row]
                known_word[row] = np.int64(text_word(buffer, name_at[row], size) << U64(64 - 8 * size))
        for wish in range(len(slots)):
            row = slots[wish]
            found_at[wish * rows + i] = value_at[row] if row >= 0 else -1
            size = value_stop[row] - value_at[row] if row >= 0 else -1
            found_size[wish * rows + i] = size
            end = text_stops[wish]
            if size >= 0 and end >= 0:
                if end + size + PADDING <= share:
                    copy_text(texts, wish * share + end, buffer, value_at[row], size)
                    end += size
                else:
                    end = -1
                text_stops[wish] = end
            text_offsets[wish * (rows + 1) + i + 1] = end
        if with_maps:
            begin = names_size
            if is_known:  # all names lie side by side in front of this place
                copy_text(names, begin, names, begin - names_before, names_before)
            for row in range(count):
                size = name_stop[row] - name_at[row]
                if not is_known:
                    copy_text(names, names_size, buffer, name_at[row], size)
                names_size += size
                size = value_stop[row] - value_at[row]
                copy_text(values, values_size, buffer, value_at[row], size)
                values_size += size
                entries += 1
                name_offsets[entries], value_offsets[entries] = names_size, values_size
            map_offsets[i + 1] = entries
            names_before = names_size - begin
    return bad
