"""Loads, stores and copies at any byte of a buffer: the words that kernels are written in.

Fields in store files are big-endian: `load32(buffer, at)` is one load and one swap. No function here checks a
position, unless RMQLOG_CHECKED_KERNELS is 1 (`cache_directory.CHECKED`): the kernels check lengths before
they use them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from store_format.kernels.cache_directory import CHECKED
from store_format.kernels.jit import part

U64 = np.uint64
_ONES, _HIGH = U64(0x0101010101010101), U64(0x8080808080808080)
_BYTE, _WORD = ir.IntType(8), ir.IntType(64)


def address(context: Any, builder: Any, kind: Any, array: Any, at: Any, size: Any) -> Any:
    """Returns the address of byte `at` of an array of bytes; checked builds raise where `size` do not fit."""
    made = context.make_array(kind)(context, builder, array)
    if CHECKED:
        zero = ir.Constant(_WORD, 0)
        length = builder.mul(made.nitems, made.itemsize)
        inside = builder.and_(
            builder.and_(builder.icmp_signed(">=", at, zero), builder.icmp_signed(">=", size, zero)),
            builder.icmp_signed("<=", size, builder.sub(length, at)),
        )
        empty = builder.icmp_signed("==", size, zero)
        with builder.if_then(builder.not_(builder.or_(inside, empty)), likely=False):
            context.call_conv.return_user_exc(builder, IndexError, ("a kernel left its array",))
    return builder.gep(builder.bitcast(made.data, _BYTE.as_pointer()), [at])


def _load(bits: int, swap: bool) -> Callable[..., Any]:
    kind, result = ir.IntType(bits), types.int64 if swap else types.uint64

    @intrinsic
    def load(typingctx: Any, buffer: Any, at: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            size = ir.Constant(_WORD, bits // 8)
            pointer = address(context, builder, signature.args[0], arguments[0], arguments[1], size)
            value = builder.load(builder.bitcast(pointer, kind.as_pointer()))
            value.align = 1
            if not swap:
                return value if bits == 64 else builder.zext(value, _WORD)
            value = builder.bswap(value)
            return value if bits == 64 else builder.sext(value, _WORD)

        return result(buffer, types.int64), generate

    return load


def _put(bits: int, swap: bool) -> Callable[..., Any]:
    kind = ir.IntType(bits)

    @intrinsic
    def put(typingctx: Any, buffer: Any, at: Any, value: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            size = ir.Constant(_WORD, bits // 8)
            pointer = address(context, builder, signature.args[0], arguments[0], arguments[1], size)
            value = arguments[2] if bits == 64 else builder.trunc(arguments[2], kind)
            stored = builder.bswap(value) if swap else value
            builder.store(stored, builder.bitcast(pointer, kind.as_pointer())).align = 1
            return context.get_dummy_value()

        return types.void(buffer, types.int64, types.int64 if swap else types.uint64), generate

    return put


# Big-endian and signed, as Java writes: load64(buffer, at) -> int64, put64(buffer, at, number).
load16, load32, load64 = _load(16, True), _load(32, True), _load(64, True)
put16, put32, put64 = _put(16, True), _put(32, True), _put(64, True)
# Eight bytes as they lie in memory, the first byte lowest: word(buffer, at) -> uint64.
word, put_word = _load(64, False), _put(64, False)
half_word = _load(32, False)


@intrinsic
def trailing_zeros(typingctx: Any, value: Any) -> Any:
    """trailing_zeros(word) -> uint64: the number of zero bits below the lowest one; the word is not 0."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 1))

    return types.uint64(types.uint64), generate


@intrinsic
def copy(typingctx: Any, target: Any, to: Any, source: Any, at: Any, size: Any) -> Any:
    """copy(target, to, source, at, size): memcpy of `size` bytes between two arrays that do not overlap."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        target, to, source, at, size = arguments
        to_pointer = address(context, builder, signature.args[0], target, to, size)
        at_pointer = address(context, builder, signature.args[2], source, at, size)
        cgutils.raw_memcpy(builder, to_pointer, at_pointer, size, 1)
        return context.get_dummy_value()

    return types.void(target, types.int64, source, types.int64, types.int64), generate


@intrinsic
def prefetch(typingctx: Any, buffer: Any, at: Any) -> Any:
    """prefetch(buffer, at): loads the cache line of a byte while other work goes on. Any `at` is harmless."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        made = context.make_array(signature.args[0])(context, builder, arguments[0])
        place = builder.gep(builder.bitcast(made.data, _BYTE.as_pointer()), [arguments[1]])
        number = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [place.type, number, number, number])
        instruction = builder.module.declare_intrinsic("llvm.prefetch", [place.type], kind)
        builder.call(instruction, [place, number(0), number(3), number(1)])  # to read, into all caches
        return context.get_dummy_value()

    return types.void(buffer, types.int64), generate


@part
def prefetch_range(buffer, at, size):
    """Prefetches `size` bytes: eight messages ahead of a loop, the loop runs 2 to 3 times as fast."""
    for line in range(0, size, 64):
        prefetch(buffer, at + line)


@part
def find_byte(buffer, start, stop, byte):
    """Returns the first position in [start, stop) of `byte`, else `stop`. Reads up to 7 bytes behind `stop`.

    `byte` is a word of eight equal bytes (`eight(b)`). A word has a zero byte where
    (x - 0x01...) & ~x & 0x80... is not 0; its lowest bit marks the first.
    """
    at = start
    while at < stop:
        different = word(buffer, at) ^ byte
        found = (different - _ONES) & ~different & _HIGH
        if found != U64(0):
            place = at + np.int64(trailing_zeros(found) >> U64(3))
            return min(place, stop)
        at += 8
    return stop


def eight(byte: int) -> Any:
    """Returns the word of eight equal bytes for `find_byte`: a constant of a kernel's module."""
    return U64(byte * 0x0101010101010101)
