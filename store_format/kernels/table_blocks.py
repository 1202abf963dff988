"""Blocks of a RocksDB table: their checksums, and the records of one queue in them (BlockBasedTable, Block).

A block has records in the order of their keys. A record has the number of bytes that its key shares with the
key before it, the length of the rest of its key, and that of its value, as varints; then the rest of the key
and the value. A key ends with 8 bytes: the kind in the low byte, above it the sequence number, which is
higher for a later write. Behind the records are the restart points, maybe a hash index, and a word.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from store_format.kernels.jit import BYTES, INT, INTS, OUT_BYTES, OUT_INTS, kernel, part
from store_format.kernels.words import U64, copy, load64, word

TRAILER_SIZE = 5  # behind each block: the kind of compression, and the checksum
_POLYNOMIAL = 0x82F63B78  # CRC-32C, bit-reflected
_MASK = U64(0xA282EAD8)  # crc32c::Mask
_LOW = U64(0xFFFFFFFF)
_BYTE = U64(255)
_VALUE, _DELETED, _DELETED_ONCE = 1, 0, 7  # kTypeValue, kTypeDeletion, kTypeSingleDeletion


def _tables() -> np.ndarray[Any, np.dtype[np.uint64]]:
    """Returns table[k, b]: the CRC of byte b with k zero bytes behind it, for eight bytes a step."""
    tables = np.zeros((8, 256), np.uint64)
    for byte in range(256):
        value = byte
        for _ in range(8):
            value = value >> 1 ^ (_POLYNOMIAL if value & 1 else 0)
        tables[0, byte] = value
    for k in range(1, 8):
        before = tables[k - 1]
        tables[k] = before >> U64(8) ^ tables[0, (before & U64(255)).astype(np.int64)]
    return tables


_TABLES = _tables()


@part
def _crc32c(data, start, stop):
    """Returns the CRC-32C of the bytes [start, stop)."""
    register, at = _LOW, start
    while at + 8 <= stop:
        mixed = word(data, at) ^ register
        register = U64(0)
        for k in range(8):
            register ^= _TABLES[7 - k, np.int64(mixed >> U64(8 * k) & _BYTE)]
        at += 8
    while at < stop:
        register = register >> U64(8) ^ _TABLES[0, np.int64((register ^ U64(data[at])) & _BYTE)]
        at += 1
    return register ^ _LOW


@kernel(INT, BYTES, INTS, INTS)
def right_blocks(data, starts, sizes):
    """Returns how many of the blocks, from the first one on, have the checksum that is behind them."""
    count = min(len(starts), len(sizes))
    for i in range(count):
        start, size = starts[i], sizes[i]
        if start < 0 or size < 0 or size > len(data) - TRAILER_SIZE - start:
            return i
        stop = start + size + 1
        crc = _crc32c(data, start, stop)
        masked = (((crc >> U64(15)) | (crc << U64(17))) + _MASK) & _LOW
        kept = U64(0)
        for k in range(4):
            kept |= U64(data[stop + k]) << U64(8 * k)
        if masked != kept:
            return i
    return count


@part
def _records_stop(block):
    """Returns where the records of a block end; -1 for one that is too short."""
    size = len(block)
    if size < 4:
        return -1
    restarts = np.int64(0)
    for k in range(4):
        restarts |= np.int64(block[size - 4 + k]) << (8 * k)
    if restarts >> 31:  # with a hash index: the number of its bytes is in the two before the word
        if size < 6:
            return -1
        hash_size = np.int64(block[size - 6]) + (np.int64(block[size - 5]) << 8)
        return max(size - 6 - hash_size - 4 * (restarts & 0x7FFFFFFF), -1)
    return max(size - 4 - 4 * restarts, -1)


@part
def _varint(block, at, stop):
    """Returns (number, the position behind it), which is -1 if the number is not whole, or too large."""
    if at < stop and block[at] < 128:
        return np.int64(block[at]), at + 1
    number, shift = np.int64(0), 0
    while at < stop and shift < 35:
        byte = np.int64(block[at])
        number |= (byte & 127) << shift
        at += 1
        if byte < 128:
            return number, at
        shift += 7
    return number, -1


@kernel(INT, BYTES, BYTES, INT, INT, INT, OUT_BYTES, OUT_INTS, OUT_BYTES)
def take_numbered(block, prefix, low, high, value_size, key, sequences, values):
    """Takes the records of a block whose keys are `prefix` and a number in [low, high), 8 bytes. Returns 0,
    or -1 if there is anything else than whole values of `value_size` bytes and deletions.

    `sequences` and `values` have room for high - low records: the sequence number of each, -1 before any, and
    its value, zeros if it is deleted. The record with the higher sequence number counts. `key` is scratch.
    """
    stop, begin = _records_stop(block), len(prefix)
    count = high - low
    if stop < 0 or count < 0 or len(sequences) < count or value_size < 0 or len(key) < begin + 16:
        return -1
    if value_size and len(values) // value_size < count:
        return -1
    at, length, same = np.int64(0), np.int64(0), np.int64(0)
    while at < stop:
        shared, at = _varint(block, at, stop)
        if at < 0:
            return -1
        rest, at = _varint(block, at, stop)
        if at < 0:
            return -1
        size, at = _varint(block, at, stop)
        if at < 0 or shared > length or rest + size > stop - at or shared + rest > len(key):
            return -1
        length = shared + rest
        for i in range(rest):  # mostly ten bytes: faster than a call of memcpy
            key[shared + i] = block[at + i]
        at += rest
        same = min(same, shared)  # bytes in which the key is equal to the prefix
        while same < begin and same < length and key[same] == prefix[same]:
            same += 1
        if same == begin and length == begin + 16:
            number = load64(key, begin)
            if low <= number < high:
                place = number - low
                kind, sequence = np.int64(key[begin + 8]), np.int64(word(key, begin + 8) >> U64(8))
                if sequence == sequences[place]:
                    return -1
                if kind == _VALUE and size == value_size:
                    if sequence > sequences[place]:
                        copy(values, place * value_size, block, at, value_size)
                        sequences[place] = sequence
                elif kind in (_DELETED, _DELETED_ONCE):
                    if sequence > sequences[place]:
                        values[place * value_size : (place + 1) * value_size] = 0
                        sequences[place] = sequence
                else:
                    return -1
        at += size
    return 0
