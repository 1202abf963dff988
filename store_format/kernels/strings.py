"""Texts in byte buffers: found, compared, checked, and gathered in the layout of Arrow's strings.

Each part may be used up to the last byte of a buffer: where a load of eight bytes would leave the buffer, it
goes byte by byte.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from store_format.kernels.jit import (
    BOOL,
    BYTES,
    INT,
    INTS,
    NOTHING,
    OUT_BOOLS,
    OUT_BYTES,
    OUT_INTS32,
    kernel,
    part,
)
from store_format.kernels.words import U64, address, copy, eight, find_byte, prefetch_range, word

BLOCK = 64  # bytes compared at once
_HIGH = U64(0x8080808080808080)
_AHEAD, _PREFETCHED_MAX = 8, 1024  # ranges ahead, and bytes of each
_SPACE = eight(0x20)
_SHORT = 128  # bytes up to which pieces are copied faster than memcpy is called
PADDING = 32  # bytes of a piece; so many behind the last text of an output are written, too


def _compare(comparison: str) -> Callable[..., Any]:
    """Makes compare(buffer, at, byte) -> uint64, whose bit i compares byte at + i of 64 with `byte`."""
    block = ir.VectorType(ir.IntType(8), BLOCK)

    @intrinsic
    def compare(typingctx: Any, buffer: Any, at: Any, byte: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            size = ir.Constant(ir.IntType(64), BLOCK)
            pointer = address(context, builder, signature.args[0], arguments[0], arguments[1], size)
            loaded = builder.load(builder.bitcast(pointer, block.as_pointer()))
            loaded.align = 1
            first = builder.insert_element(
                ir.Constant(block, ir.Undefined),
                builder.trunc(arguments[2], ir.IntType(8)),
                ir.Constant(ir.IntType(32), 0),
            )
            everywhere = ir.Constant(ir.VectorType(ir.IntType(32), BLOCK), [0] * BLOCK)
            bytes_ = builder.shuffle_vector(first, first, everywhere)
            bits = builder.icmp_signed(comparison, loaded, bytes_)
            return builder.bitcast(bits, ir.IntType(64))

        return types.uint64(buffer, types.int64, types.int64), generate

    return compare


_equal, _below = _compare("=="), _compare("<")


@intrinsic
def _copy_piece(typingctx: Any, target: Any, to: Any, source: Any, at: Any) -> Any:
    """_copy_piece(target, to, source, at): copies PADDING bytes at once."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        target, to, source, at = arguments
        kind, size = ir.VectorType(ir.IntType(8), PADDING), ir.Constant(ir.IntType(64), PADDING)
        places = (
            address(context, builder, signature.args[2], source, at, size),
            address(context, builder, signature.args[0], target, to, size),
        )
        source, target = (builder.bitcast(place, kind.as_pointer()) for place in places)
        loaded = builder.load(source)
        loaded.align = 1
        builder.store(loaded, target).align = 1
        return context.get_dummy_value()

    return types.void(target, types.int64, source, types.int64), generate


@part
def block_masks(buffer, start, stop, first, second):
    """Returns three words: bit i says whether byte start + i is `first`, is `second`, is no ASCII.

    Bits of bytes from `stop` on are 0.
    """
    if start + BLOCK <= len(buffer):
        ones, twos, wide = (
            _equal(buffer, start, first),
            _equal(buffer, start, second),
            _below(buffer, start, 0),
        )
        if stop - start < BLOCK:
            inside = (U64(1) << U64(stop - start)) - U64(1)
            return ones & inside, twos & inside, wide & inside
        return ones, twos, wide
    ones = twos = wide = U64(0)
    for i in range(stop - start):
        byte, bit = np.int64(buffer[start + i]), U64(1) << U64(i)
        if byte == first:
            ones |= bit
        if byte == second:
            twos |= bit
        if byte >= 0x80:
            wide |= bit
    return ones, twos, wide


@part
def find(buffer, start, stop, byte):
    """Returns the first position in [start, stop) of `byte` (`words.eight`), else `stop`."""
    if stop + 8 <= len(buffer):
        return find_byte(buffer, start, stop, byte)
    wanted = byte & U64(0xFF)
    for at in range(start, stop):
        if U64(buffer[at]) == wanted:
            return at
    return stop


@part
def text_word(buffer, at, size):
    """Returns the first bytes of a text as a word: at most 8 of its `size` bytes, zeros behind them."""
    if at + 8 <= len(buffer):
        return word(buffer, at) if size >= 8 else word(buffer, at) & ((U64(1) << U64(8 * size)) - U64(1))
    value = U64(0)
    for i in range(min(size, 8)):
        value |= U64(buffer[at + i]) << U64(8 * i)
    return value


@part
def same_bytes(buffer, first, second, size):
    """Returns whether two ranges of `size` bytes are equal."""
    done = 0
    while done < size:
        if text_word(buffer, first + done, size - done) != text_word(buffer, second + done, size - done):
            return False
        done += 8
    return True


@part
def equals(buffer, at, other, start, size):
    """Returns whether `size` bytes of two buffers are equal."""
    i = 0
    while i < size and buffer[at + i] == other[start + i]:
        i += 1
    return i == size


@part
def copy_text(target, to, source, at, size):
    """Copies `size` bytes; writes less than PADDING bytes behind them."""
    if size <= _SHORT and at + size + PADDING <= len(source):
        done = 0
        while done < size:  # mostly once: texts of one word and of four take the same branch
            _copy_piece(target, to + done, source, at + done)
            done += PADDING
    else:
        copy(target, to, source, at, size)


@part
def is_utf8(buffer, start, stop):
    """Returns whether a text is well-formed UTF-8: no overlong form, no surrogate, nothing above U+10FFFF."""
    seen = U64(0)
    at = start
    while at + 8 <= stop:
        seen |= word(buffer, at)
        at += 8
    if at < stop:
        seen |= text_word(buffer, at, stop - at)
    return seen & _HIGH == U64(0) or _is_wide_utf8(buffer, start, stop)


@part
def _is_wide_utf8(buffer, start, stop):
    at = start
    while at < stop:
        first = np.int64(buffer[at])
        at += 1
        if first < 0x80:
            continue
        low, high = 0x80, 0xBF  # of the second byte
        if 0xC2 <= first <= 0xDF:
            more = 1
        elif 0xE0 <= first <= 0xEF:
            more = 2
            low = 0xA0 if first == 0xE0 else low
            high = 0x9F if first == 0xED else high
        elif 0xF0 <= first <= 0xF4:
            more = 3
            low = 0x90 if first == 0xF0 else low
            high = 0x8F if first == 0xF4 else high
        else:
            return False
        if at + more > stop:
            return False
        for _ in range(more):
            if not low <= np.int64(buffer[at]) <= high:
                return False
            low, high = 0x80, 0xBF
            at += 1
    return True


@kernel(INT, BYTES, INTS, INTS, OUT_INTS32, OUT_BYTES, OUT_BYTES)
def gather(buffer, starts, lengths, offsets, data, valid):
    """Copies ranges one behind the other, as Arrow's strings have them; returns how many are null.

    A range of a negative length is null. `data` has PADDING bytes more than all ranges together, `valid` one
    bit for each range.
    """
    nulls = end = 0
    offsets[0] = 0
    bits = np.int64(0)
    for i in range(len(starts)):
        if i + _AHEAD < len(starts):
            prefetch_range(buffer, starts[i + _AHEAD], min(lengths[i + _AHEAD], _PREFETCHED_MAX))
        at, size = starts[i], lengths[i]
        if size < 0:
            nulls += 1
        else:
            bits |= np.int64(1) << (i & 7)
            if at >= 0 and size <= len(buffer) - at and end + size + PADDING <= len(data):
                copy_text(data, end, buffer, at, size)
                end += size
        offsets[i + 1] = end
        if i & 7 == 7 or i == len(starts) - 1:
            valid[i >> 3] = bits
            bits = np.int64(0)
    return nulls


@kernel(INT, BYTES, INTS, INTS, OUT_INTS32, OUT_BYTES, OUT_INTS32, OUT_BYTES)
def split_words(buffer, starts, lengths, list_offsets, valid, offsets, data):
    """Splits texts at spaces, without empty words, into the lists of strings that Arrow has; returns how many
    lists are null.

    A text of a negative length is null. `offsets` has room for (length + 1) // 2 words of each text, `data`
    for all bytes and PADDING more.
    """
    nulls = words = end = 0
    list_offsets[0] = offsets[0] = 0
    bits = np.int64(0)
    for i in range(len(starts)):
        at, stop = starts[i], starts[i] + lengths[i]
        if lengths[i] < 0:
            nulls += 1
        else:
            bits |= np.int64(1) << (i & 7)
            if at < 0 or stop > len(buffer) or end + lengths[i] + PADDING > len(data):
                stop = at
        while at < stop:
            space = find(buffer, at, stop, _SPACE)
            if space > at:
                copy_text(data, end, buffer, at, space - at)
                end += space - at
                words += 1
                offsets[words] = end
            at = space + 1
        list_offsets[i + 1] = words
        if i & 7 == 7 or i == len(starts) - 1:
            valid[i >> 3] = bits
            bits = np.int64(0)
    return nulls


@kernel(NOTHING, BYTES, INTS, INTS, BYTES, BOOL, OUT_BOOLS)
def match(buffer, starts, lengths, wanted, words, matches):
    """Marks each text that equals `wanted`, or with `words` has it between its single spaces."""
    size = len(wanted)
    for i in range(len(starts)):
        at, stop = starts[i], starts[i] + lengths[i]
        if at < 0 or lengths[i] < size or stop > len(buffer):
            continue
        if not words:
            matches[i] |= lengths[i] == size and equals(buffer, at, wanted, 0, size)
            continue
        while at + size <= stop:
            space = find(buffer, at, stop, _SPACE)
            if space - at == size and equals(buffer, at, wanted, 0, size):
                matches[i] = True
                break
            at = space + 1
