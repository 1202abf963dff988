"""CRC32 as RocketMQ stores it: without the top bit (UtilAll.crc32), over the stored (compressed) body."""

from __future__ import annotations

from zlib import crc32

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from store_format import kernels
from store_format.arrays.ranges import flat_bytes
from store_format.message.one import CRC_MASK

_Ints = NDArray[np.int64]


def range_crcs(data: NDArray[np.uint8], starts: _Ints, stops: _Ints) -> _Ints:
    """Returns the CRC of data[start:stop] for each pair."""
    if not kernels.worth(len(starts)):
        view, pairs = data.data, zip(starts.tolist(), stops.tolist(), strict=True)
        return np.array([crc32(view[start:stop]) for start, stop in pairs], np.int64) & CRC_MASK
    crcs = np.empty(len(starts), np.int64)
    kernels.crc32.crc32_into(data, np.ascontiguousarray(starts), stops - starts, crcs)
    return crcs & CRC_MASK


def body_crcs(body: pa.Array) -> NDArray[np.int64]:
    """Returns the CRC of each body of a (large) binary array without nulls; 0 for an empty body."""
    data, offsets = flat_bytes(body)
    return range_crcs(data, offsets[:-1], offsets[1:])
