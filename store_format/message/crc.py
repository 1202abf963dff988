"""CRC32 as RocketMQ stores it: without the top bit (UtilAll.crc32), over the stored (compressed) body."""

from __future__ import annotations

from collections.abc import Callable
from zlib import crc32

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from store_format.arrays.ranges import flat_bytes, gather_ranges
from store_format.message.parts import Sliceable

_MASK = 0x7FFFFFFF
_PIECE_SIZE = 1 << 20  # a body may be as long as a file; its CRC is computed without holding it
_SLICE_ABOVE = 512  # mean size in bytes from which slicing a range is cheaper than copying it


def range_crc(buffer: Sliceable, start: int, stop: int) -> int:
    """Returns the CRC of buffer[start:stop]."""
    value = 0
    for at in range(start, stop, _PIECE_SIZE):
        value = crc32(buffer[at : min(at + _PIECE_SIZE, stop)], value)
    return value & _MASK


def range_crcs(
    data: NDArray[np.uint8],
    starts: NDArray[np.int64],
    stops: NDArray[np.int64],
    copies: Callable[[], pa.Array] | None = None,
) -> NDArray[np.int64]:
    """Returns the CRC of data[start:stop] for each pair.

    `copies` returns the same ranges as a binary array, if the caller has it: short ranges are copied first.
    """
    if int((stops - starts).sum()) > _SLICE_ABOVE * len(starts):
        view = data.data
        pairs = zip(starts.tolist(), stops.tolist(), strict=True)
        sums = np.array([crc32(view[start:stop]) for start, stop in pairs], np.int64)
    else:
        values = gather_ranges(data, starts, stops - starts) if copies is None else copies()
        sums = np.fromiter(map(crc32, values.to_numpy(zero_copy_only=False)), np.int64, len(starts))
    return sums & _MASK


def body_crcs(body: pa.Array) -> NDArray[np.int64]:
    """Returns the CRC of each body of a (large) binary array without nulls; 0 for an empty body."""
    data, offsets = flat_bytes(body)
    return range_crcs(data, offsets[:-1], offsets[1:], lambda: body)


def intact_bodies(
    data: NDArray[np.uint8],
    starts: NDArray[np.int64],
    lengths: NDArray[np.int64],
    stored: NDArray[np.generic],
    copies: Callable[[], pa.Array] | None = None,
) -> NDArray[np.bool_]:
    """Returns whether each body has its stored CRC. Empty bodies pass, as in recovery by a broker."""
    crcs = range_crcs(data, starts, starts + lengths, copies)
    intact: NDArray[np.bool_] = (crcs == stored) | (lengths == 0)
    return intact
