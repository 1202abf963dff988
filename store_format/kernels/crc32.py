"""CRC-32 of byte ranges: by carry-less multiplication where the processor has it, else by tables.

The polynomial is that of zlib. Both ways give the same value for every range; RocketMQ keeps the value
without the top bit (UtilAll.crc32).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.registry import cpu_target
from numba.extending import intrinsic

from store_format.kernels.jit import BYTES, INTS, NOTHING, OUT_INTS, kernel, part
from store_format.kernels.words import U64, address, half_word, word

_POLYNOMIAL = 0xEDB88320  # bit-reflected
_FOLDED_MIN = 64  # bytes from which folding is faster than tables
_M = U64(255)


def _tables() -> np.ndarray[Any, np.dtype[np.uint32]]:
    """Returns table[k, b]: the CRC of byte b with k zero bytes behind it, for sixteen bytes a step."""
    tables = np.zeros((16, 256), np.uint32)
    for byte in range(256):
        value = byte
        for _ in range(8):
            value = value >> 1 ^ (_POLYNOMIAL if value & 1 else 0)
        tables[0, byte] = value
    for k in range(1, 16):
        tables[k] = tables[k - 1] >> 8 ^ tables[0, tables[k - 1] & 255]
    return tables


def _power(exponent: int) -> int:
    """Returns x^exponent modulo the polynomial, bit-reflected in 33 bits, for a fold over `exponent` bits."""
    value = 1 << 31  # x^0
    for _ in range(exponent):
        value = value >> 1 ^ (_POLYNOMIAL if value & 1 else 0)
    return value << 1


def _has_multiplication() -> bool:
    """By the features for which numba compiles, which NUMBA_CPU_NAME and NUMBA_CPU_FEATURES may lower."""
    *_, features = cpu_target.target_context.codegen().magic_tuple()
    return {"+pclmul", "+sse4.1"} <= set(features.split(","))


_TABLES = _tables()
FOLDS = _has_multiplication()
_VECTOR = ir.VectorType(ir.IntType(64), 2)


@part
def _of_16_bytes(low, high):
    """Returns the CRC register after the 16 bytes of two words, from register 0."""
    return U64(
        _TABLES[15, low & _M] ^ _TABLES[14, (low >> U64(8)) & _M]
        ^ _TABLES[13, (low >> U64(16)) & _M] ^ _TABLES[12, (low >> U64(24)) & _M]
        ^ _TABLES[11, (low >> U64(32)) & _M] ^ _TABLES[10, (low >> U64(40)) & _M]
        ^ _TABLES[9, (low >> U64(48)) & _M] ^ _TABLES[8, low >> U64(56)]
        ^ _TABLES[7, high & _M] ^ _TABLES[6, (high >> U64(8)) & _M]
        ^ _TABLES[5, (high >> U64(16)) & _M] ^ _TABLES[4, (high >> U64(24)) & _M]
        ^ _TABLES[3, (high >> U64(32)) & _M] ^ _TABLES[2, (high >> U64(40)) & _M]
        ^ _TABLES[1, (high >> U64(48)) & _M] ^ _TABLES[0, high >> U64(56)]
    )  # fmt: skip


@part
def crc32_by_tables(buffer, start, length, value):
    """Returns the CRC register after `length` bytes: 16 or 4 a step, each byte through a table of its own."""
    crc = U64(value)
    at, stop = start, start + length
    while stop - at >= 16:
        crc = _of_16_bytes(word(buffer, at) ^ crc, word(buffer, at + 8))
        at += 16
    while stop - at >= 4:
        crc ^= half_word(buffer, at)
        crc = U64(
            _TABLES[3, crc & _M] ^ _TABLES[2, (crc >> U64(8)) & _M]
            ^ _TABLES[1, (crc >> U64(16)) & _M] ^ _TABLES[0, crc >> U64(24)]
        )  # fmt: skip
        at += 4
    while at < stop:
        crc = U64(_TABLES[0, (crc ^ U64(buffer[at])) & _M]) ^ (crc >> U64(8))
        at += 1
    return crc


@intrinsic
def _folded(typingctx: Any, buffer: Any, start: Any, blocks: Any, crc: Any) -> Any:
    """_folded(buffer, start, blocks, crc) -> (low, high): 16 bytes with the same CRC, from register 0, as all
    blocks of 16 bytes, at least four, from register `crc`.

    Four lanes are folded over 64 bytes a step, then into one (Gopal and others: Fast CRC Computation for
    Generic Polynomials Using PCLMULQDQ, 2009). The tables finish the last 16 bytes.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return _fold(context, builder, signature, arguments)

    return types.UniTuple(types.uint64, 2)(buffer, types.int64, types.int64, types.uint64), generate


def _fold(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    buffer, start, blocks, crc = arguments
    i64 = ir.IntType(64)
    size = builder.mul(blocks, i64(16))
    data = address(context, builder, signature.args[0], buffer, start, size)
    multiply = builder.module.declare_intrinsic(
        "llvm.x86.pclmulqdq", (), ir.FunctionType(_VECTOR, [_VECTOR, _VECTOR, ir.IntType(8)])
    )

    def load(block: Any) -> Any:
        at = builder.gep(data, [builder.mul(block, i64(16))])
        value = builder.load(builder.bitcast(at, _VECTOR.as_pointer()))
        value.align = 1
        return value

    def fold(lane: Any, bits: int, onto: Any) -> Any:
        factors = ir.Constant(_VECTOR, [_power(bits + 32), _power(bits - 32)])
        low, high = (builder.call(multiply, [lane, factors, ir.IntType(8)(half)]) for half in (0x00, 0x11))
        return builder.xor(builder.xor(low, high), onto)

    register = builder.insert_element(ir.Constant(_VECTOR, [0, 0]), crc, ir.IntType(32)(0))
    lanes = [cgutils.alloca_once_value(builder, load(i64(i))) for i in range(4)]
    builder.store(builder.xor(builder.load(lanes[0]), register), lanes[0])
    steps = builder.udiv(builder.sub(blocks, i64(4)), i64(4))
    with cgutils.for_range(builder, steps) as loop:
        first = builder.mul(builder.add(loop.index, i64(1)), i64(4))
        for i, lane in enumerate(lanes):
            builder.store(fold(builder.load(lane), 512, load(builder.add(first, i64(i)))), lane)
    for lane in lanes[1:]:
        builder.store(fold(builder.load(lanes[0]), 128, builder.load(lane)), lanes[0])
    done = builder.mul(builder.add(steps, i64(1)), i64(4))
    with cgutils.for_range(builder, builder.sub(blocks, done)) as loop:
        more = load(builder.add(done, loop.index))
        builder.store(fold(builder.load(lanes[0]), 128, more), lanes[0])
    value = builder.load(lanes[0])
    parts = [builder.extract_element(value, ir.IntType(32)(i)) for i in range(2)]
    return context.make_tuple(builder, signature.return_type, parts)


if FOLDS:

    @part
    def _register(buffer, start, length, value):
        if length < _FOLDED_MIN:
            return crc32_by_tables(buffer, start, length, value)
        blocks = length >> 4
        low, high = _folded(buffer, start, blocks, U64(value))
        done = blocks << 4
        return crc32_by_tables(buffer, start + done, length - done, _of_16_bytes(low, high))

else:
    _register = crc32_by_tables

_ALL = U64(0xFFFFFFFF)


@part
def crc32(buffer, start, length):
    """Returns zlib.crc32(buffer[start:start + length]) as int64; the range lies inside of the buffer."""
    return np.int64(_register(buffer, start, length, _ALL) ^ _ALL)


@kernel(NOTHING, BYTES, INTS, INTS, OUT_INTS)
def crc32_into(data, starts, lengths, crcs):
    """Writes the CRC of each range of `data` into `crcs`; -1 for a range outside of `data`."""
    for i in range(len(starts)):
        start, length = starts[i], lengths[i]
        if start < 0 or length < 0 or start > len(data) - length:
            crcs[i] = -1
        else:
            crcs[i] = crc32(data, start, length)
