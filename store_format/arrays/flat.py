"""Arrow's string and binary arrays as what they are in memory: bytes and the offsets between them.

Both ways without copying the bytes; offsets are made 64 bits wide, so that no sum of lengths overflows.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

__all__ = ["fixed_width", "flat_bytes", "from_flat"]


def flat_bytes(array: pa.Array) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """The bytes that a string or binary array (large or not, sliced or not) covers, and its len + 1 offsets
    into them.

    A null has an extent too, mostly an empty one.
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
    """The inverse of `flat_bytes`, over the very same memory."""
    return pa.Array.from_buffers(
        pa.large_binary(), len(offsets) - 1, [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    )


def fixed_width(records: NDArray[Any]) -> pa.LargeBinaryArray:
    """Each record's bytes as one binary value."""
    size = records.itemsize
    return from_flat(
        np.ascontiguousarray(records).view(np.uint8).reshape(-1),
        np.arange(0, (len(records) + 1) * size, size, dtype=np.int64),
    )
