"""Writes message units: one pass over the messages, each byte copied once."""

from __future__ import annotations

from numba import types

from store_format.kernels.crc32 import crc32
from store_format.kernels.jit import BYTES, INT, INTS, NOTHING, OUT_BYTES, kernel, part
from store_format.kernels.words import copy, put16, put32, put64, put_word, word

_CRC_MASK = 0x7FFFFFFF  # UtilAll.crc32
_MEMCPY_MIN = 64  # bytes from which a call of memcpy is faster than words

# Of heads, as in `encode_parts`; an array has a number for each message, or one for all.
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
