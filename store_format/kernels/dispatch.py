"""The consume queue entries and index keys of stored messages, from one pass over their units.

The rules are those of DefaultMessageStore.CommitLogDispatcherBuildConsumeQueue and IndexService.buildIndex
(spec 3.2, 4). What is rare is only marked: batches, light queues, text outside of ASCII.
"""

from __future__ import annotations

import numpy as np
from numba import types

from store_format.kernels.hashes import java_hash
from store_format.kernels.jit import BOOL, BYTES, INT, INTS, OUT_BYTES, OUT_INTS, OUT_INTS32, kernel, part
from store_format.kernels.units import find_parts
from store_format.kernels.words import U64, copy, load32, load64, put32, put64, trailing_zeros, word
from store_format.layouts import CQ_UNIT, INDEX_UNIT, MESSAGE_SIZE_MIN

_QUEUE_ID, _QUEUE_OFFSET, _SYS_FLAG, _BORN_HOST = 12, 20, 36, 48
_TRANSACTION, _PREPARED, _ROLLBACK = 0xC, 0x4, 0xC

# A row of the table of queues: where its topic begins in `names`, bytes of the topic, queue id, number in
# entries, the least queue offset that counts, the physical offset behind which messages count, whether only
# Python knows the rules of the queue.
QUEUE_WIDTH = 7
# An entry: number of the queue, queue offset, physical offset, size, tags code, store timestamp, messages.
ENTRY_WIDTH = 7
DONE, NEW_QUEUE, FULL = 0, 1, 2  # why `dispatch` ended

_QUEUE_OFFSET_MAX = 2**63 - 1 - 2**15  # so that the end of a batch is a queue offset, too

CQ_SIZE, INDEX_SIZE = CQ_UNIT.itemsize, INDEX_UNIT.itemsize

# What `index_keys` says of a unit.
PLAIN, ODD, NOT_INDEXED = 0, 1, 2

_MIX = U64(0x9E3779B97F4A7C15)
_SEVENS, _BEHIND_TWO, _HIGH = U64(0x7F7F7F7F7F7F7F7F), U64(0x7D7D7D7D7D7D7D7D), U64(0x8080808080808080)
_TAGS, _KEYS = U64(0x53474154), U64(0x5359454B)  # as words
_UNIQ_KEY, _MULTI, _DISPATCH = (
    U64(int.from_bytes(name, "little")) for name in (b"UNIQ_KEY", b"INNER_MU", b"DISPATCH")
)


@part
def text_word(buffer, at, size):
    """Returns the first bytes of a text as a word: at most 8 of its `size` bytes, zeros behind them."""
    if size >= 8:
        return word(buffer, at)
    if at + 8 <= len(buffer):
        return word(buffer, at) & ((U64(1) << U64(8 * size)) - U64(1))
    value = U64(0)
    for i in range(size):
        value |= U64(buffer[at + i]) << U64(8 * i)
    return value


# ---- Java hashes -------------------------------------------------------------------------------------------


@part
def _behind(value, character):
    return (value * 31 + character) & 0xFFFFFFFF


@part
def _signed(value):
    return value - (1 << 32) if value >> 31 else value


@part
def _add_key(buffer, start, stop, prefix, hashes, count):
    """Adds IndexFile.indexKeyHashMethod of a key: |hash|, and 0 for -2^31. Returns the bytes or'ed."""
    value, seen = java_hash(buffer, start, stop, prefix)
    size = abs(_signed(value))
    if count < len(hashes):
        hashes[count] = 0 if size == 1 << 31 else size
        return seen
    return _HIGH


@part
def hash_keys(buffer, parts, named, tag_keys, hashes, count):
    """Appends the hashes of a message's index entries to the first `count` of `hashes`.

    They are those of UNIQ_KEY, of the words of KEYS, and with `tag_keys` of TAGS. Returns how many hashes
    there are then, -1 where a text is not ASCII.
    """
    topic, seen = java_hash(buffer, parts[2], parts[2] + parts[3], 0)
    prefix = _behind(topic, 35)  # topic#
    if named[4] < named[5]:
        seen |= _add_key(buffer, named[4], named[5], prefix, hashes, count)
        count += 1
    at, stop = named[2], named[3]
    while at < stop:
        start = at
        while at < stop and buffer[at] != 32:
            at += 1
        if at > start:
            seen |= _add_key(buffer, start, at, prefix, hashes, count)
            count += 1
        at += 1
    if tag_keys and named[0] < named[1]:
        prefix = _behind(_behind(prefix, 84), 35)  # topic#T#
        seen |= _add_key(buffer, named[0], named[1], prefix, hashes, count)
        count += 1
    return -1 if seen & _HIGH else count


# ---- properties --------------------------------------------------------------------------------------------


@part
def _separators(buffer, at, stop):
    """Returns the high bit of each byte below 3 of the word at `at`, without those from `stop` on."""
    text = text_word(buffer, at, stop - at)
    found = ~(((text & _SEVENS) + _BEHIND_TWO) | text) & _HIGH
    return found if stop - at >= 8 else found & ((U64(1) << U64(8 * (stop - at))) - U64(1))


@part
def find_named(buffer, start, stop):
    """Returns start and stop of the values of TAGS, KEYS and UNIQ_KEY, and 1 with INNER_MULTI_DISPATCH.

    Each is 0 without the property. The last of equal names counts. A property ends at 0x02 or with the
    string; it counts if its first 0x01 has a byte on both sides (MessageDecoder.string2messageProperties).
    """
    tags = tags_stop = keys = keys_stop = uniq = uniq_stop = light = 0
    name, middle, at = start, -1, start
    while True:
        found = _separators(buffer, at, stop) if at < stop else U64(0)
        while True:
            place = stop if found == U64(0) else at + np.int64(trailing_zeros(found) >> U64(3))
            if place == stop and at + 8 < stop:
                break
            if place < stop and buffer[place] != 2:
                if buffer[place] == 1 and middle < 0:
                    middle = place
            else:
                if name < middle < place - 1:
                    length = middle - name
                    if length == 4:
                        text = text_word(buffer, name, 4)
                        if text == _TAGS:
                            tags, tags_stop = middle + 1, place
                        elif text == _KEYS:
                            keys, keys_stop = middle + 1, place
                    elif length == 8:
                        if text_word(buffer, name, 8) == _UNIQ_KEY:
                            uniq, uniq_stop = middle + 1, place
                    elif (
                        length == 20 and word(buffer, name) == _MULTI and word(buffer, name + 12) == _DISPATCH
                    ):
                        light = 1
                name, middle = place + 1, -1
                if place == stop:
                    return tags, tags_stop, keys, keys_stop, uniq, uniq_stop, light
            found &= found - U64(1)
        at += 8


# ---- queues ------------------------------------------------------------------------------------------------


@part
def _place_of(buffer, start, length, queue_id, slots, queues, names):
    """Returns the place in `slots`, a hash table of numbers + 1, of the queue, or the empty place for it."""
    mixed = U64(length) ^ (U64(queue_id) << U64(32))
    for at in range(0, length, 8):
        mixed = (mixed ^ text_word(buffer, start + at, length - at)) * _MIX
        mixed ^= mixed >> U64(29)
    place = np.int64((mixed * _MIX) >> U64(33)) & (len(slots) - 1)
    while slots[place]:
        row = (slots[place] - 1) * QUEUE_WIDTH
        if queues[row + 2] == queue_id and queues[row + 1] == length:
            name, at = queues[row], 0
            while at < length and text_word(names, name + at, length - at) == text_word(
                buffer, start + at, length - at
            ):
                at += 8
            if at >= length:
                break
        place = (place + 1) & (len(slots) - 1)
    return place


@kernel(types.void, OUT_INTS, INTS, BYTES, INT)
def fill_slots(slots, queues, names, count):
    """Fills an empty hash table, of a power of two of places and more than `count`, with the queues."""
    for number in range(count):
        row = number * QUEUE_WIDTH
        place = _place_of(names, queues[row], queues[row + 1], queues[row + 2], slots, queues, names)
        slots[place] = number + 1


@kernel(
    types.UniTuple(INT, 4), BYTES, INTS, INTS, INT, INT,
    OUT_INTS, OUT_INTS, OUT_BYTES, INT, INT, OUT_INTS, INT, OUT_INTS, INT,
)  # fmt: skip
def dispatch(
    buffer, starts, sizes, base, first,
    slots, queues, names, queue_count, names_size, entries, count, odd, odd_count,
):  # fmt: skip
    """Appends the missing entries of units to the first `count` of `entries`; odd units to `odd`.

    Unit i lies at starts[i] of `buffer`, whose first byte has the physical offset `base`. Units that do not
    fit have no entry. Returns (why it ended, the unit to go on with, `count`, `odd_count`). At NEW_QUEUE the
    first three numbers of the queue's row are set, and the caller sets the others. At FULL the caller makes
    the tables larger.
    """
    for i in range(first, len(starts)):
        at, size = starts[i], sizes[i]
        parts = find_parts(buffer, at, size, base + at)
        flag = load32(buffer, at + _SYS_FLAG) if parts[0] else _PREPARED
        if flag & _TRANSACTION in (_PREPARED, _ROLLBACK):
            continue
        queue_id, length = load32(buffer, at + _QUEUE_ID), parts[3]
        place = _place_of(buffer, parts[2], length, queue_id, slots, queues, names)
        row = (slots[place] - 1) * QUEUE_WIDTH
        if row < 0:
            row = queue_count * QUEUE_WIDTH
            if 2 * queue_count >= len(slots) or row >= len(queues) or length > len(names) - names_size:
                return FULL, i, count, odd_count
            copy(names, names_size, buffer, parts[2], length)
            queues[row], queues[row + 1], queues[row + 2] = names_size, length, queue_id
            slots[place] = queue_count + 1
            return NEW_QUEUE, i, count, odd_count
        named = find_named(buffer, parts[4], parts[4] + parts[5])
        tags_code, seen = java_hash(buffer, named[0], named[1], 0)
        if queues[row + 6] or named[6] or seen & _HIGH:
            odd[odd_count] = i
            odd_count += 1
            continue
        offset = load64(buffer, at + _QUEUE_OFFSET)
        if not max(queues[row + 4], 0) <= offset <= _QUEUE_OFFSET_MAX or base + at <= queues[row + 5]:
            continue
        entry = count * ENTRY_WIDTH
        entries[entry], entries[entry + 1], entries[entry + 2] = queues[row + 3], offset, base + at
        entries[entry + 3], entries[entry + 4], entries[entry + 6] = size, _signed(tags_code), 1
        entries[entry + 5] = load64(buffer, at + _BORN_HOST + (20 if flag & 0x10 else 8))
        count += 1
    return DONE, len(starts), count, odd_count


@kernel(INT, BYTES, INTS, INTS, INT, BOOL, OUT_BYTES, OUT_INTS, OUT_INTS32, OUT_INTS)
def index_keys(buffer, starts, sizes, base, tag_keys, kinds, timestamps, hashes, messages):
    """Writes the key hashes of units, and the number of the unit of each; returns how many there are.

    `kinds` says of each unit whether it is PLAIN, ODD (its keys are missing), or NOT_INDEXED (rolled back, or
    it does not fit). `hashes` has room for half as many as all units have bytes.
    """
    count = 0
    for i in range(len(starts)):
        at = starts[i]
        parts = find_parts(buffer, at, sizes[i], base + at)
        flag = load32(buffer, at + _SYS_FLAG) if parts[0] else _ROLLBACK
        kinds[i] = NOT_INDEXED
        if flag & _TRANSACTION == _ROLLBACK:
            continue
        timestamps[i] = load64(buffer, at + _BORN_HOST + (20 if flag & 0x10 else 8))
        named = find_named(buffer, parts[4], parts[4] + parts[5])
        stop = hash_keys(buffer, parts, named, tag_keys, hashes, count)
        kinds[i] = ODD if stop < 0 else PLAIN
        for key in range(count, stop):
            messages[key] = i
        count = max(stop, count)
    return count


@kernel(BOOL, INTS, OUT_INTS, OUT_INTS, OUT_BYTES)
def group(entries, edges, offsets, units):
    """Writes the entries of queue q, in their order, as consume queue units edges[q] to edges[q + 1].

    `edges` is zeros, two more than there are queues; `offsets` gets the queue offset of each unit.
    Returns False where the offsets of a queue do not ascend, or a unit stands for several.
    """
    count, queues = len(entries) // ENTRY_WIDTH, len(edges) - 2
    for i in range(count):
        queue = entries[i * ENTRY_WIDTH]
        if not 0 <= queue < queues or entries[i * ENTRY_WIDTH + 6] != 1:
            return False
        edges[queue + 2] += 1
    for queue in range(1, queues + 2):
        edges[queue] += edges[queue - 1]
    for i in range(count):
        entry = i * ENTRY_WIDTH
        place = edges[entries[entry] + 1]
        edges[entries[entry] + 1] += 1
        offsets[place] = entries[entry + 1]
        put64(units, place * CQ_SIZE, entries[entry + 2])
        put32(units, place * CQ_SIZE + 8, entries[entry + 3])
        put64(units, place * CQ_SIZE + 12, entries[entry + 4])
    for queue in range(queues):
        for place in range(edges[queue] + 1, edges[queue + 1]):
            if offsets[place] <= offsets[place - 1]:
                return False
    return True


@kernel(INT, BYTES, INTS, BYTES, INT, OUT_INTS32, OUT_INTS)
def doubtful_keys(index, rows, buffer, base, hashes, doubtful):
    """Writes the numbers of the index units that are not certainly right; returns how many there are.

    An index unit is right if a message begins at its physical offset and has a key of its hash. `buffer` has
    the messages; its first byte has the physical offset `base`. `hashes` has room for the keys of a message.
    """
    count, last, keys = 0, -1, 0
    for i in range(len(rows)):
        at = rows[i] * INDEX_SIZE
        if at < 0 or at > len(index) - INDEX_SIZE:
            continue
        physical = load64(index, at + 4)
        if physical != last:
            last, keys, position = physical, 0, physical - base
            if 0 <= position <= len(buffer) - MESSAGE_SIZE_MIN:
                parts = find_parts(buffer, position, load32(buffer, position), physical)
                if parts[0]:
                    named = find_named(buffer, parts[4], parts[4] + parts[5])
                    keys = hash_keys(buffer, parts, named, True, hashes, 0)
        key = 0
        while key < keys and hashes[key] != load32(index, at):
            key += 1
        if key >= keys:
            doubtful[count] = rows[i]
            count += 1
    return count
