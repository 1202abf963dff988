"""Ranges of offsets, byte ranges of one buffer, and Arrow's string and binary arrays as bytes and offsets.

A void view gathers fixed records ten times faster than the structured dtype; a kernel copies ranges of any
length. Offsets are 64 bits wide, so that no sum of lengths overflows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from store_format import kernels

PADDING = 32  # bytes behind the last text that kernels may write
INT32_MAX = 2**31 - 1


def within_ranges(offsets: NDArray[np.int64], ranges: Iterable[tuple[int, int]]) -> NDArray[np.bool_]:
    """Which offsets lie in one of the ranges [start, stop), which may overlap and come in any order."""
    edges = np.array(sorted(ranges), np.int64).reshape(-1, 2)
    row = np.searchsorted(edges[:, 0], offsets, side="right") - 1
    # row -1, before all ranges, takes the last stop: no offset is less
    stops = np.append(np.maximum.accumulate(edges[:, 1]), np.iinfo(np.int64).min)
    within: NDArray[np.bool_] = offsets < stops[row]
    return within


def merged_ranges(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """The ranges [start, stop) in ascending order; those that overlap or touch are joined.

    >>> merged_ranges([(7, 9), (0, 3), (3, 5)])
    [(0, 5), (7, 9)]
    """
    merged: list[tuple[int, int]] = []
    for start, stop in sorted(ranges):
        if merged and start <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(stop, merged[-1][1])
        else:
            merged.append((start, stop))
    return merged


def without_ranges(start: int, stop: int, ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """The parts of [start, stop) that no range has.

    >>> without_ranges(0, 10, [(2, 4), (8, 12)])
    [(0, 2), (4, 8)]
    """
    edges = [start, *(edge for each in merged_ranges(ranges) for edge in each), stop]
    found = ((max(low, start), min(high, stop)) for low, high in zip(edges[::2], edges[1::2], strict=True))
    return [(low, high) for low, high in found if low < high]


def consecutive(numbers: NDArray[np.int64]) -> list[tuple[int, int]]:
    """The ranges [start, stop) of numbers in ascending ones.

    >>> consecutive(np.array([3, 4, 7]))
    [(3, 5), (7, 8)]
    """
    runs = np.split(numbers, np.flatnonzero(np.diff(numbers) != 1) + 1)
    return [(int(run[0]), int(run[-1]) + 1) for run in runs if len(run)]


def gather_units(
    buffer: NDArray[np.uint8], positions: NDArray[np.int64], layout: np.dtype[Any]
) -> NDArray[Any]:
    """Returns a copy of the `layout` records at `positions` of `buffer`, which must contain every record."""
    size = layout.itemsize
    if len(buffer) < size:
        return np.empty(0, layout)
    windows = np.ndarray((len(buffer) - size + 1,), f"V{size}", buffer, strides=(1,))
    return windows[positions].view(layout)


def gather_ranges(
    buffer: NDArray[np.uint8],
    starts: NDArray[np.int64],
    lengths: NDArray[np.int64],
    kind: pa.DataType | None = None,
) -> pa.Array:
    """Returns buffer[start:start+length] for each pair as a new Arrow array of type `kind` (default: binary).

    A negative length gives null. The sum of the lengths must be below 2 GiB; callers cut batches long before.
    """
    count, kind = len(starts), kind or pa.binary()
    if not kernels.ready():
        pairs = zip(starts.tolist(), lengths.tolist(), strict=True)
        return array_of([None if size < 0 else buffer[at : at + size].tobytes() for at, size in pairs], kind)
    total = int(np.maximum(lengths, 0).sum())
    if total > INT32_MAX:
        raise OverflowError(f"{total} bytes do not fit one Arrow array: decode smaller batches")
    offsets, data, valid = (
        new_array(count + 1, np.int32),
        new_array(total + PADDING, np.uint8),
        new_array(count // 8 + 1, np.uint8),
    )
    nulls = kernels.strings.gather(buffer, starts, lengths, offsets, data, valid)
    return from_parts(kind, offsets, data, valid if nulls else None)


def array_of(values: Sequence[bytes | None], kind: pa.DataType) -> pa.Array:
    """Returns the string or binary array of these values.

    `pa.array` of a list, and `to_numpy` of an array, import pandas where it is installed: 0.2 s of CPU, which
    a command or a stream's source that reads a few messages would wait for.
    """
    lengths = np.array([-1 if value is None else len(value) for value in values], np.int64)
    offsets = np.zeros(len(values) + 1, np.int32)
    np.cumsum(np.maximum(lengths, 0), out=offsets[1:])
    valid = np.packbits(lengths >= 0, bitorder="little") if (lengths < 0).any() else None
    return from_parts(kind, offsets, np.frombuffer(b"".join(filter(None, values)), np.uint8), valid)


def distinct_values(array: pa.BinaryArray) -> tuple[list[bytes], NDArray[np.int32]]:
    """Returns the distinct values of an array without nulls, by first occurrence, and the index of each."""
    if len(array) and kernels.ready():
        coded = array.dictionary_encode()
        return coded.dictionary.to_pylist(), np.frombuffer(coded.indices.buffers()[1], np.int32)
    numbers: dict[bytes, int] = {}
    index = [numbers.setdefault(value, len(numbers)) for value in array.to_pylist()]
    return list(numbers), np.array(index, np.int32)


def repeats_each(array: pa.Array, count: int) -> bool:
    """Returns whether a string or binary array repeats its first `count` values to its end, without nulls.

    A topic, or the names in maps, usually do: 2 instead of 50 ns a value to code them.
    """
    data, offsets = flat_bytes(array)
    if not 0 < count <= len(array) or len(array) % count or array.null_count:
        return False
    size = int(offsets[count])
    return bool(
        (offsets[count:] - offsets[:-count] == size).all()
        and np.array_equal(data[size:], data[: len(data) - size])
    )


def new_array(count: int, dtype: Any) -> NDArray[Any]:
    """Returns memory of Arrow's pool as an array to be written.

    The pool keeps its pages; those of new numpy arrays would be faulted in for each batch.
    """
    return np.frombuffer(pa.allocate_buffer(count * np.dtype(dtype).itemsize), dtype)


def numbers(values: NDArray[Any], kind: pa.DataType | None = None) -> pa.Array:
    """Returns the array of these values, which have the layout of `kind`, without a copy.

    `pa.array` takes three times as long, as it looks for types of pandas.
    """
    buffers = [None, pa.py_buffer(np.ascontiguousarray(values))]
    return pa.Array.from_buffers(kind or pa.from_numpy_dtype(values.dtype), len(values), buffers)


def from_parts(
    kind: pa.DataType,
    offsets: NDArray[np.int32],
    data: NDArray[np.uint8],
    valid: NDArray[np.uint8] | None = None,
) -> pa.Array:
    """Returns the string or binary array of these offsets, bytes and bits of validity, without a copy."""
    bits = None if valid is None else pa.py_buffer(valid)
    buffers = [bits, pa.py_buffer(offsets), pa.py_buffer(data).slice(0, int(offsets[-1]))]
    return pa.Array.from_buffers(kind, len(offsets) - 1, buffers)


def mapped_array(array: pa.Array) -> tuple[NDArray[np.int32], NDArray[np.uint8]]:
    """Returns (offsets, data) of a string or binary array without a copy; the data begins before a slice."""
    _, offsets, data = array.buffers()
    first = array.offset
    numbers = (
        np.frombuffer(offsets, np.int32)[first : first + len(array) + 1] if offsets else np.zeros(1, np.int32)
    )
    return numbers, np.frombuffer(data, np.uint8) if data is not None and data.size else np.empty(0, np.uint8)


def as_bytes(buffer: NDArray[np.uint8], start: int, stop: int) -> bytes:
    """Returns one range as bytes, for single messages."""
    return buffer[start:stop].tobytes()


# ---- Arrow arrays as bytes and offsets
# ----------------------------------------------------------------------


def flat_bytes(array: pa.Array) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Returns the bytes of a string or binary array (large or not, sliced or not) and its len + 1 offsets.

    The offsets begin at 0. A null has a range too, which may contain bytes.
    """
    wide = pa.types.is_large_string(array.type) or pa.types.is_large_binary(array.type)
    if not len(array):
        return np.empty(0, np.uint8), np.zeros(1, np.int64)
    _, offset_buffer, data_buffer = array.buffers()
    offsets = np.frombuffer(offset_buffer, np.int64 if wide else np.int32)[
        array.offset : array.offset + len(array) + 1
    ]
    first, last = int(offsets[0]), int(offsets[-1])
    if first == last:
        return np.empty(0, np.uint8), np.zeros(len(offsets), np.int64)
    return np.frombuffer(data_buffer, np.uint8)[first:last], offsets.astype(np.int64) - first


def from_flat(data: NDArray[np.uint8], offsets: NDArray[np.int64]) -> pa.LargeBinaryArray:
    """Returns the array with these bytes and offsets: the inverse of `flat_bytes`, without a copy."""
    return pa.Array.from_buffers(
        pa.large_binary(), len(offsets) - 1, [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    )


def fixed_width(records: NDArray[Any]) -> pa.LargeBinaryArray:
    """Returns the bytes of each record as a binary value."""
    size = records.itemsize
    return from_flat(
        np.ascontiguousarray(records).view(np.uint8).reshape(-1),
        np.arange(0, (len(records) + 1) * size, size, dtype=np.int64),
    )


def is_valid(array: pa.Array) -> NDArray[np.bool_]:
    """Returns which values of an array are not null, without `pyarrow.compute`."""
    bits = array.buffers()[0]
    if bits is None:
        return np.ones(len(array), bool)
    valid = np.unpackbits(np.frombuffer(bits, np.uint8), bitorder="little")
    return valid[array.offset : array.offset + len(array)].astype(bool)


def without_nulls(array: pa.Array) -> pa.Array:
    """Returns a string or binary array with empty values in place of nulls, which may cover bytes."""
    if not array.null_count:
        return array
    _, ends = flat_bytes(array)
    if (np.diff(ends)[~is_valid(array)] == 0).all():  # the usual nulls, without `fill_null` and its imports
        return pa.Array.from_buffers(array.type, len(array), [None, *array.buffers()[1:]], 0, array.offset)
    return array.fill_null(pa.scalar("", array.type))
