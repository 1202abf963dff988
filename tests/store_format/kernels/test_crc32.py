"""CRC-32 in kernels, by folding and by tables, beside zlib's."""

from __future__ import annotations

import importlib
from functools import cache
from typing import Any
from zlib import crc32

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from store_format import kernels


@given(st.binary(max_size=400), st.integers(0, 20), st.integers(0, 400))
def test_a_range_has_the_crc_that_zlib_computes(data: bytes, start: int, length: int) -> None:
    crcs = np.zeros(1, np.int64)
    starts, lengths = np.array([start], np.int64), np.array([length], np.int64)
    kernels.crc32.crc32_into(np.frombuffer(data, np.uint8), starts, lengths, crcs)
    inside = start + length <= len(data)
    assert crcs[0] == (crc32(data[start : start + length]) if inside else -1)


def test_every_length_up_to_several_steps_of_the_folding() -> None:
    data = np.random.default_rng(1).integers(0, 256, 1000).astype(np.uint8)
    lengths = np.arange(900, dtype=np.int64)
    starts, crcs = lengths % 16, np.empty(900, np.int64)
    kernels.crc32.crc32_into(data, starts, lengths, crcs)
    assert crcs.tolist() == [crc32(data[n % 16 : n % 16 + n].tobytes()) for n in range(900)]


@cache
def _by_numba() -> Any:
    """The module with its parts, which no object file has; callers of kernels do not see it."""
    module = importlib.import_module("store_format.kernels.crc32")
    vars(kernels).pop("crc32")
    return module


@given(st.binary(max_size=100))
def test_the_tables_alone_give_the_same(data: bytes) -> None:
    whole = np.frombuffer(data, np.uint8)
    register = _by_numba().crc32_by_tables(whole, 0, len(data), np.uint64(0xFFFFFFFF))
    assert int(register) ^ 0xFFFFFFFF == crc32(data)
