"""Ranges of an open file, read into one array: a call of the system takes 1 us here, and 2 us from Python."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from store_format.kernels.jit import INT, INTS, OUT_BYTES, kernel
from store_format.kernels.words import address, copy

_PAGE_SIZE = 4096


@intrinsic
def _pread(typingctx: Any, descriptor: Any, target: Any, to: Any, size: Any, position: Any) -> Any:
    """_pread(descriptor, target, to, size, position) -> int64: pread of C, to byte `to` of an array."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        descriptor, target, to, size, position = arguments
        place = address(context, builder, signature.args[1], target, to, size)
        word, number = ir.IntType(64), ir.IntType(32)
        kind = ir.FunctionType(word, [number, place.type, word, word])
        function = builder.module.globals.get("pread") or ir.Function(builder.module, kind, "pread")
        return builder.call(function, [builder.trunc(descriptor, number), place, size, position])

    return types.int64(types.int64, target, types.int64, types.int64, types.int64), generate


@kernel(INT, INT, INTS, INTS, INT, OUT_BYTES, OUT_BYTES)
def read_ranges(descriptor, lows, highs, gap_max, block, data):
    """Reads the ranges [lows[i], highs[i]) of a file into `data`, one behind the other; returns how many.

    Neighbours with gaps of at most `gap_max` bytes are read with one call into `block`, which stays in the
    core's cache, and copied from there. Stops before ranges that do not fit into `data`, and of which the
    call gives fewer bytes.
    """
    first = end = 0
    while first < len(lows):
        low = lows[first]
        inside = low & (_PAGE_SIZE - 1)  # Linux copies faster between equal places of pages
        stop, size = first, 0
        while stop < len(lows):
            begin = highs[stop - 1] if stop > first else low
            if not begin <= lows[stop] <= highs[stop] or lows[stop] < 0:
                break
            if stop > first and (lows[stop] - begin > gap_max or highs[stop] - low > len(block) - inside):
                break
            if highs[stop] - lows[stop] > len(data) - end - size:
                break
            size += highs[stop] - lows[stop]
            stop += 1
        if stop == first:
            return first
        wide = highs[stop - 1] - low
        if stop == first + 1:
            if _pread(descriptor, data, end, wide, low) != wide:
                return first
        else:
            if _pread(descriptor, block, inside, wide, low) != wide:
                return first
            to = end
            for i in range(first, stop):
                copy(data, to, block, inside + lows[i] - low, highs[i] - lows[i])
                to += highs[i] - lows[i]
        end += size
        first = stop
    return first
