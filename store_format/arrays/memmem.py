"""Search for bytes in a buffer with libc's memmem, at 3 to 6 GB/s and without the interpreter's lock.

Python's `bytes.find` is as fast but blocks all other threads. It is the fallback where libc has no memmem.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache

import numpy as np
from numpy.typing import NDArray

_Search = Callable[[int, int, bytes, int], int | None]


@cache
def _memmem() -> _Search | None:
    try:
        function = ctypes.CDLL(None).memmem
    except (AttributeError, OSError):
        return None
    function.restype = ctypes.c_void_p
    function.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p, ctypes.c_size_t)
    search: _Search = function
    return search


def occurrences(buffer: NDArray[np.uint8], wanted: bytes, count_max: int) -> NDArray[np.int64] | None:
    """Returns the positions of `wanted` (not empty) in `buffer`, overlapping ones too.

    Returns None for more than `count_max` positions.

    >>> occurrences(np.frombuffer(b"abcabc", np.uint8), b"bc", 9).tolist()
    [1, 4]
    """
    assert wanted
    assert buffer.flags.c_contiguous
    memmem = _memmem()
    find = _finder(buffer, wanted) if memmem is None else _libc_finder(memmem, buffer, wanted)
    places: list[int] = []
    place = find(0)
    while place >= 0:
        if len(places) == count_max:
            return None
        places.append(place)
        place = find(place + 1)
    return np.array(places, np.int64)


def _libc_finder(memmem: _Search, buffer: NDArray[np.uint8], wanted: bytes) -> Callable[[int], int]:
    base, size = buffer.ctypes.data, len(buffer)

    def find(start: int) -> int:
        found = memmem(base + start, size - start, wanted, len(wanted)) if start < size else None
        return -1 if found is None else found - base

    return find


def _finder(buffer: NDArray[np.uint8], wanted: bytes) -> Callable[[int], int]:
    data = buffer.tobytes()
    return lambda start: data.find(wanted, start)
