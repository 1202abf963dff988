"""Writes message units and properties strings: one pass over the messages, each byte copied once."""

from __future__ import annotations

import numpy as np
from numba import types

from store_format.kernels.crc32 import crc32
from store_format.kernels.jit import BYTES, INT, INTS, INTS32, NOTHING, OUT_BYTES, OUT_INTS, kernel, part
from store_format.kernels.words import copy, put16, put32, put64, put_word, word
from store_format.layouts import PROPERTY_SEPARATOR

_CRC_MASK = 0x7FFFFFFF  # UtilAll.crc32
_MEMCPY_MIN = 64  # bytes from which a call of memcpy is faster than words

_FEW_NAMES = 32

# Of heads, as in `_UnitParts`; an array has a number for each message, or one for all.
_NUMBERS = types.UniTuple(INTS, 11)


@part
def _of(values, i):
    """Returns the number of message i: of an array with one for each message, or with one for all."""
    return values[i if len(values) > 1 else 0]


@part
def _append(out, at, source, start, size):
    """Copies `size` bytes to `at` and returns the end. Up to 7 bytes behind the end are written."""
    if size >= _MEMCPY_MIN or start + size + 7 > len(source):
        copy(out, at, source, start, size)
    else:
        done = 0
        while done < size:
            put_word(out, at + done, word(source, start + done))
            done += 8
    return at + size


# ---- units -------------------------------------------------------------------------------------------------


@part
def _put_host(out, at, addresses, size, i, is_v6, port):
    """Writes an address of 4 or 16 bytes and a port. `addresses` has one of `size` bytes for each message."""
    start = i * size if len(addresses) > size else 0
    length = 16 if is_v6 else 4
    for place in range(length):
        out[at + place] = addresses[start + place]
    put32(out, at + length, port)
    return at + length + 4


@kernel(
    NOTHING,
    OUT_BYTES,
    INTS,
    _NUMBERS,
    BYTES,
    INTS,
    BYTES,
    INTS,
    BYTES,
    INTS,
    INTS,
    INTS,
    BYTES,
    INT,
    BYTES,
    INT,
    INT,
)
def write_units(
    out, places, numbers, body, bodies, properties, property_ends, topic_pieces, topics, magics, topic,
    born_ip, born_size, store_ip, store_size, more,
):  # fmt: skip
    """Writes unit i to out[places[i]:places[i + 1]] (MessageExtEncoder.encode, spec 2.1).

    The fields of a head are those of `layouts.MESSAGE_HEADS`. A topic's piece is its length and its name.
    `more` bytes behind the properties count as properties and become zeros. `out` has eight more bytes, which
    keep no value.
    """
    queue_id, flag, queue_offset, physical_offset, sys_flag = numbers[:5]
    born_timestamp, born_port, store_timestamp, store_port, reconsume_times, prepared = numbers[5:]
    for i in range(len(places) - 1):
        at = places[i]
        size, start = bodies[i + 1] - bodies[i], bodies[i]
        flags = _of(sys_flag, i)
        put32(out, at, places[i + 1] - at)
        number = _of(topic, i)
        put32(out, at + 4, magics[number])
        put32(out, at + 8, crc32(body, start, size) & _CRC_MASK)
        put32(out, at + 12, _of(queue_id, i))
        put32(out, at + 16, _of(flag, i))
        put64(out, at + 20, _of(queue_offset, i))
        put64(out, at + 28, _of(physical_offset, i))
        put32(out, at + 36, flags)
        put64(out, at + 40, _of(born_timestamp, i))
        at = _put_host(out, at + 48, born_ip, born_size, i, flags & 16 != 0, _of(born_port, i))
        put64(out, at, _of(store_timestamp, i))
        at = _put_host(out, at + 8, store_ip, store_size, i, flags & 32 != 0, _of(store_port, i))
        put32(out, at, _of(reconsume_times, i))
        put64(out, at + 4, _of(prepared, i))
        put32(out, at + 12, size)
        at = _append(out, at + 16, body, start, size)
        at = _append(out, at, topic_pieces, topics[number], topics[number + 1] - topics[number])
        size = property_ends[i + 1] - property_ends[i]
        put16(out, at, size + more)
        at = _append(out, at + 2, properties, property_ends[i], size)
        for place in range(more):
            out[at + place] = 0


# ---- properties strings ------------------------------------------------------------------------------------


@part
def _put_order(slots, count, codes, hashes, capacity, seen, place_of, heads, order):
    """Writes into `order` the entries to store, in the order of the HashMap; returns their number.

    Entry k of the message has the name slots[k]. The first entry of a name has the place, the last one the
    value. The table has `capacity` buckets, and doubles until at most three quarters are names.
    """
    names = 0
    for k in range(count):
        code = slots[k]
        if seen[code] < 0:
            seen[code] = names
            codes[names] = code
            names += 1
        place_of[seen[code]] = k
    size = capacity
    while 4 * names > 3 * size:
        size *= 2
    if names <= _FEW_NAMES:  # sorted by insertion, which is faster for so few
        for name in range(names):
            bucket, to = hashes[codes[name]] & (size - 1), name
            while to > 0 and heads[to - 1] > bucket:
                heads[to], order[to] = heads[to - 1], order[to - 1]
                to -= 1
            heads[to], order[to] = bucket, place_of[name]
            seen[codes[name]] = -1
        return names
    for bucket in range(size):
        heads[bucket] = 0
    for name in range(names):
        heads[hashes[codes[name]] & (size - 1)] += 1
    end = 0
    for bucket in range(size):
        end += heads[bucket]
        heads[bucket] = end - heads[bucket]
    for name in range(names):
        bucket = hashes[codes[name]] & (size - 1)
        order[heads[bucket]] = place_of[name]
        heads[bucket] += 1
        seen[codes[name]] = -1
    return names


_SCRATCH = types.UniTuple(OUT_INTS, 7)


@kernel(
    NOTHING,
    OUT_BYTES,
    OUT_INTS,
    INTS,
    INTS32,
    BYTES,
    INTS,
    INTS,
    INTS,
    INTS,
    INTS,
    BYTES,
    INTS,
    INT,
    _SCRATCH,
)
def write_properties(
    out, ends, counts, entry_names, values, value_ends, columns, steps, column_names, hashes, prefixes,
    prefix_ends, capacity, scratch,
):  # fmt: skip
    """Writes the properties string of message i to out[ends[i]:ends[i + 1]]: `name 0x01 value 0x02` for each.

    Message i has the next counts[i] entries, value after value; then from column c the value
    columns[c] + steps[c] * i, where a step of 0 repeats one value. An empty value is no entry. The entries
    are put into a HashMap of `capacity` buckets; `hashes` has HashMap.hash of each name, -1 for an empty one.
    A prefix is a name and 0x01. `out` has eight more bytes, which keep no value. `scratch`: five arrays with
    room for the entries of a message, one of -1 for each name, and one for the buckets.
    """
    slots, numbers, order, codes, place_of, seen, heads = scratch
    entry = at = stored = last = 0
    ends[0] = 0
    for i in range(len(counts)):
        count, same = 0, True
        for k in range(counts[i] + len(columns)):
            if k < counts[i]:
                number, name = entry, np.int64(entry_names[entry])
                entry += 1
            else:
                c = k - counts[i]
                number, name = columns[c] + steps[c] * i, column_names[c]
            if value_ends[number + 1] > value_ends[number] and hashes[name] >= 0:
                same &= slots[count] == name
                slots[count], numbers[count] = name, number
                count += 1
        if not same or count != last:  # else the names are those of the message before
            stored = _put_order(slots, count, codes, hashes, capacity, seen, place_of, heads, order)
            last = count
        for k in range(stored):
            number, name = numbers[order[k]], slots[order[k]]
            start = prefix_ends[name]
            at = _append(out, at, prefixes, start, prefix_ends[name + 1] - start)
            start = value_ends[number]
            at = _append(out, at, values, start, value_ends[number + 1] - start)
            out[at] = PROPERTY_SEPARATOR
            at += 1
        ends[i + 1] = at
