"""The consume queue entries and index keys of stored messages, from one pass over their units.

The rules are those of DefaultMessageStore.CommitLogDispatcherBuildConsumeQueue and IndexService.buildIndex
(spec 3.2, 4). What is rare is only marked: batches, light queues, malformed text.
"""

from __future__ import annotations

import numpy as np
from numba import types

from store_format.kernels.hashes import MALFORMED, text_hash
from store_format.kernels.jit import BOOL, BYTES, INT, INTS, OUT_BYTES, OUT_INTS, OUT_INTS32, kernel, part
from store_format.kernels.strings import BLOCK, block_masks, equals, text_word
from store_format.kernels.units import find_parts
from store_format.kernels.words import U64, copy, load32, load64, trailing_zeros, word
from store_format.layouts import INDEX_UNIT

_QUEUE_ID, _QUEUE_OFFSET, _SYS_FLAG, _BORN_HOST = 12, 20, 36, 48
_IS_BATCH = 0xC0  # sysflag.INNER_BATCH and NEED_UNWRAP
_TRANSACTION, _PREPARED, _ROLLBACK = 0xC, 0x4, 0xC

# A row of the table of queues: where its topic begins in `names`, bytes of the topic, queue id, number in
# entries, the least queue offset that counts, the physical offset behind which messages count, and what only
# Python knows: 1 the rules of the queue, 2 those of its inner batches.
QUEUE_WIDTH = 7
# An entry: number of the queue, queue offset, physical offset, size, tags code, store timestamp, messages.
ENTRY_WIDTH = 7
DONE, NEW_QUEUE, FULL = 0, 1, 2  # why `dispatch` ended

_QUEUE_OFFSET_MAX = 2**63 - 1 - 2**15  # so that the end of a batch is a queue offset, too

_INDEX_SIZE = INDEX_UNIT.itemsize

# What `index_keys` says of a unit.
PLAIN, ODD, NOT_INDEXED = 0, 1, 2

_MIX = U64(0x9E3779B97F4A7C15)
_TAGS, _KEYS = U64(0x53474154), U64(0x5359454B)  # as words
_UNIQ_KEY, _MULTI, _DISPATCH = (
    U64(int.from_bytes(name, "little")) for name in (b"UNIQ_KEY", b"INNER_MU", b"DISPATCH")
)


# ---- Java hashes -------------------------------------------------------------------------------------------


@part
def _behind(value, character):
    return (value * 31 + character) & 0xFFFFFFFF


@part
def _signed(value):
    return value - (1 << 32) if value >> 31 else value


@part
def _add_key(buffer, start, stop, prefix, hashes, count):
    """Adds IndexFile.indexKeyHashMethod of a key: |hash|, and 0 for -2^31; False for malformed text."""
    value = text_hash(buffer, start, stop, prefix)
    if value == MALFORMED or count >= len(hashes):
        return False
    size = abs(_signed(value))
    hashes[count] = 0 if size == 1 << 31 else size
    return True


@part
def hash_keys(buffer, parts, named, tag_keys, hashes, count):
    """Appends the hashes of a message's index entries to the first `count` of `hashes`.

    They are those of UNIQ_KEY, of the words of KEYS, and with `tag_keys` of TAGS. Returns how many hashes
    there are then, -1 where a text is malformed.
    """
    topic = text_hash(buffer, parts[2], parts[2] + parts[3], 0)
    if topic == MALFORMED:
        return -1
    prefix = _behind(topic, 35)  # topic#
    fits = True
    if named[4] < named[5]:
        fits &= _add_key(buffer, named[4], named[5], prefix, hashes, count)
        count += 1
    at, stop = named[2], named[3]
    while at < stop:
        start = at
        while at < stop and buffer[at] != 32:
            at += 1
        if at > start:
            fits &= _add_key(buffer, start, at, prefix, hashes, count)
            count += 1
        at += 1
    if tag_keys and named[0] < named[1]:
        prefix = _behind(_behind(prefix, 84), 35)  # topic#T#
        fits &= _add_key(buffer, named[0], named[1], prefix, hashes, count)
        count += 1
    return count if fits else -1


# ---- properties --------------------------------------------------------------------------------------------


@part
def find_named(buffer, start, stop):
    """Returns start and stop of the values of TAGS, KEYS and UNIQ_KEY, and 1 with INNER_MULTI_DISPATCH.

    Each is 0 without the property. The last of equal names counts. A property ends at 0x02 or with the
    string; it counts if its first 0x01 has a byte on both sides (MessageDecoder.string2messageProperties).
    """
    tags = tags_stop = keys = keys_stop = uniq = uniq_stop = light = 0
    name, middle, block = start, -1, start - BLOCK
    marks = ends = U64(0)
    while True:
        while marks == U64(0) and block + BLOCK < stop:
            block += BLOCK
            middles, ends, _ = block_masks(buffer, block, stop, 1, 2)
            marks = middles | ends
        at = stop
        if marks != U64(0):
            bit = trailing_zeros(marks)
            at = block + np.int64(bit)
            marks &= marks - U64(1)
            if (ends >> bit) & U64(1) == U64(0):
                middle = at if middle < 0 else middle
                continue
        if name < middle < at - 1:
            length = middle - name
            if length == 4:
                text = text_word(buffer, name, 4)
                if text == _TAGS:
                    tags, tags_stop = middle + 1, at
                elif text == _KEYS:
                    keys, keys_stop = middle + 1, at
            elif length == 8:
                if text_word(buffer, name, 8) == _UNIQ_KEY:
                    uniq, uniq_stop = middle + 1, at
            elif length == 20 and word(buffer, name) == _MULTI and word(buffer, name + 12) == _DISPATCH:
                light = 1
        if at == stop:
            return tags, tags_stop, keys, keys_stop, uniq, uniq_stop, light
        name, middle = at + 1, -1


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
        same = queues[row + 2] == queue_id and queues[row + 1] == length
        if same and equals(buffer, start, names, queues[row], length):
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
    types.UniTuple(INT, 4), BYTES, INTS, INTS, INTS, INT,
    OUT_INTS, OUT_INTS, OUT_BYTES, INT, INT, OUT_INTS, INT, OUT_INTS, INT,
)  # fmt: skip
def dispatch(
    buffer, starts, physical_offsets, sizes, first,
    slots, queues, names, queue_count, names_size, entries, count, odd, odd_count,
):  # fmt: skip
    """Appends the missing entries of units to the first `count` of `entries`; odd units to `odd`.

    Unit i lies at starts[i] of `buffer` and has the physical offset physical_offsets[i]. Units that do not
    fit have no entry. Returns (why it ended, the unit to go on with, `count`, `odd_count`). At NEW_QUEUE the
    first three numbers of the queue's row are set, and the caller sets the others. At FULL the caller makes
    the tables larger.
    """
    for i in range(first, len(starts)):
        at, physical, size = starts[i], physical_offsets[i], sizes[i]
        parts = find_parts(buffer, at, size, physical)
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
        tags_code = text_hash(buffer, named[0], named[1], 0)
        is_odd = queues[row + 6] == 1 or (queues[row + 6] == 2 and flag & _IS_BATCH == _IS_BATCH)
        if is_odd or named[6] or tags_code == MALFORMED:
            odd[odd_count] = i
            odd_count += 1
            continue
        offset = load64(buffer, at + _QUEUE_OFFSET)
        if not max(queues[row + 4], 0) <= offset <= _QUEUE_OFFSET_MAX or physical <= queues[row + 5]:
            continue
        entry = count * ENTRY_WIDTH
        entries[entry], entries[entry + 1], entries[entry + 2] = queues[row + 3], offset, physical
        entries[entry + 3], entries[entry + 4], entries[entry + 6] = size, _signed(tags_code), 1
        entries[entry + 5] = load64(buffer, at + _BORN_HOST + (20 if flag & 0x10 else 8))
        count += 1
    return DONE, len(starts), count, odd_count


@kernel(INT, BYTES, INTS, INTS, INTS, BOOL, OUT_BYTES, OUT_INTS, OUT_INTS32, OUT_INTS)
def index_keys(buffer, starts, physical_offsets, sizes, tag_keys, kinds, timestamps, hashes, messages):
    """Writes the key hashes of units, and the number of the unit of each; returns how many there are.

    `kinds` says of each unit whether it is PLAIN, ODD (its keys are missing), or NOT_INDEXED (rolled back, or
    it does not fit). `hashes` has room for half as many as all units have bytes.
    """
    count = 0
    for i in range(len(starts)):
        at = starts[i]
        parts = find_parts(buffer, at, sizes[i], physical_offsets[i])
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


@kernel(INT, BYTES, INTS, INTS, BYTES, INTS, INTS, OUT_INTS32, OUT_INTS)
def doubtful_keys(index, rows, messages, buffer, starts, sizes, hashes, doubtful):
    """Writes the numbers of the index units that are not certainly right; returns how many there are.

    An index unit is right if a message begins at its physical offset and has a key of its hash. The message
    of the unit rows[i] has the number m = messages[i]: it lies at starts[m] of `buffer` with sizes[m] bytes.
    `hashes` has room for the keys of a message.
    """
    count, last, keys = 0, -1, 0
    for i in range(len(rows)):
        at = rows[i] * _INDEX_SIZE
        if at < 0 or at > len(index) - _INDEX_SIZE:
            continue
        message = messages[i]
        if message != last:
            last, keys = message, 0
            parts = find_parts(buffer, starts[message], sizes[message], load64(index, at + 4))
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
