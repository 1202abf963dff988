"""Java's String.hashCode of ranges of UTF-8, and the hashes of index keys.

The hash of a text is a polynomial in 31 over its UTF-16 code units, modulo 2^32.
"""

from __future__ import annotations

import numpy as np

from store_format.kernels.jit import BOOL, BOOLS, BYTES, INT, INTS, OUT_INTS, OUT_INTS32, kernel, part
from store_format.kernels.words import U64, word

MALFORMED = 1 << 40  # in place of a hash: the text is not valid UTF-8, Java replaces parts of it

_HIGH = U64(0x8080808080808080)
_EVEN_BYTES, _EVEN_PAIRS = U64(0x00FF00FF00FF00FF), U64(0x0000FFFF0000FFFF)
_LOW, _ALL = U64(0xFFFFFFFF), U64(2**64 - 1)
_POWERS = np.array([31**count % 2**32 for count in range(9)], np.uint64)
_LEAST = np.array([0, 0x80, 0x800, 0x10000])  # the least character of 1 to 4 bytes


@part
def java_hash(buffer, start, stop, value):
    """Returns String.hashCode (32 bits) of a text behind a text of hash `value`, and all bytes or'ed.

    The text is ASCII, or a byte has its high bit. Eight characters a step: one word has the sums of two, then
    of four, then of eight.
    """
    hashed, seen, at = U64(value), U64(0), start
    while at < stop:
        if stop < 8:  # no eight bytes lie before the end
            text, count = U64(buffer[at]) << U64(56), 1
        else:
            text, count = word(buffer, min(at, stop - 8)), min(stop - at, 8)
        if count < 8:
            text &= _ALL << U64(64 - 8 * count)  # zeros before a text add nothing to its sum
        seen |= text
        pairs = (text & _EVEN_BYTES) * U64(31) + ((text >> U64(8)) & _EVEN_BYTES)
        fours = (pairs & _EVEN_PAIRS) * U64(961) + ((pairs >> U64(16)) & _EVEN_PAIRS)
        eights = (fours & _LOW) * U64(31**4) + (fours >> U64(32))
        hashed = (hashed * _POWERS[count] + eights) & _LOW
        at += count
    return np.int64(hashed), seen


@part
def _utf8_hash(data, at, stop, value):
    """Returns the hash of a text that goes on with data[at:stop], or MALFORMED."""
    while at < stop:
        first = np.int64(data[at])
        at += 1
        if first < 0x80:
            value = value * U64(31) + U64(first)
            continue
        more = 1 if first < 0xE0 else 2 if first < 0xF0 else 3
        if first < 0xC2 or first > 0xF4 or at + more > stop:
            return MALFORMED
        character = first & (0x3F >> more)
        for place in range(more):
            byte = np.int64(data[at + place])
            if byte & 0xC0 != 0x80:
                return MALFORMED
            character = character << 6 | byte & 0x3F
        at += more
        if character < _LEAST[more] or 0xD800 <= character < 0xE000 or character > 0x10FFFF:
            return MALFORMED
        if character >= 0x10000:
            value = value * U64(31) + U64(0xD7C0 + (character >> 10))
            character = 0xDC00 | character & 0x3FF
        value = value * U64(31) + U64(character)
    return np.int64(value & _LOW)


@part
def text_hash(data, start, stop, before):
    """Returns the hash (32 bits) of a text behind a text of hash `before`, or MALFORMED."""
    value, seen = java_hash(data, start, stop, before)
    return _utf8_hash(data, start, stop, U64(before)) if seen & _HIGH else value


@kernel(INT, BYTES, INTS, OUT_INTS)
def java_hashes(data, ends, hashes):
    """Writes the hash of each data[ends[i]:ends[i + 1]], signed. Returns how many are MALFORMED."""
    malformed = 0
    for i in range(len(ends) - 1):
        value = text_hash(data, ends[i], ends[i + 1], 0)
        malformed += value == MALFORMED
        hashes[i] = value - (1 << 32) if value >> 31 == 1 else value
    return malformed


# ---- index keys --------------------------------------------------------------------------------------------


@part
def _key_hash(data, start, stop, seed):
    """IndexFile.indexKeyHashMethod: |hash|, and 0 for -2^31. -1 for a malformed text."""
    value = text_hash(data, start, stop, seed)
    size = min(value, (1 << 32) - value)
    return np.int32(-1 if value == MALFORMED else 0 if size == 1 << 31 else size)


@kernel(BOOL, INTS, INTS, INTS, BYTES, INTS, BOOLS, BYTES, INTS, BYTES, INTS, BOOLS, OUT_INTS32, OUT_INTS)
def key_hashes(
    topic, key_seeds, tag_seeds, uniq, uniq_ends, has_uniq, keys, key_ends, tags, tag_ends, skipped,
    hashes, ends,
):  # fmt: skip
    """Writes the hashes of message i's index keys to hashes[ends[i]:ends[i + 1]] (IndexService.buildIndex).

    First UNIQ_KEY, where `has_uniq`; then the parts of KEYS between spaces, without empty ones; then TAGS, if
    not empty. The seeds are the hashes of each topic with `#`, and with `#T#` (without: tags are no keys);
    `topic` is the number of each message's topic, or of all. Returns whether each text is valid UTF-8; else
    the hash of a malformed one is -1.
    """
    end, valid = 0, True
    ends[0] = 0
    for i in range(len(uniq_ends) - 1):
        if not skipped[i if len(skipped) > 1 else 0]:
            number = topic[i if len(topic) > 1 else 0]
            seed = key_seeds[number]
            if has_uniq[i if len(has_uniq) > 1 else 0]:
                hashes[end] = _key_hash(uniq, uniq_ends[i], uniq_ends[i + 1], seed)
                valid &= hashes[end] >= 0
                end += 1
            at, stop = key_ends[i], key_ends[i + 1]
            while at < stop:
                start = at
                while at < stop and keys[at] != 0x20:
                    at += 1
                if at > start:
                    hashes[end] = _key_hash(keys, start, at, seed)
                    valid &= hashes[end] >= 0
                    end += 1
                at += 1
            if len(tag_seeds) and tag_ends[i + 1] > tag_ends[i]:
                hashes[end] = _key_hash(tags, tag_ends[i], tag_ends[i + 1], tag_seeds[number])
                valid &= hashes[end] >= 0
                end += 1
        ends[i + 1] = end
    return valid
