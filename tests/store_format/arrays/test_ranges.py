"""Ranges picked out of a buffer, against slicing it."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from store_format import kernels
from store_format.arrays.ranges import (
    as_bytes,
    fixed_width,
    flat_bytes,
    from_flat,
    gather_ranges,
    gather_units,
    mapped_array,
    merged_ranges,
    repeats_each,
    within_ranges,
)
from store_format.layouts import BLANK_HEAD

DATA = bytes(range(256))
BUFFER = np.frombuffer(DATA, np.uint8)
RANGES = st.lists(st.tuples(st.integers(0, 256), st.integers(0, 256)), max_size=20)


@given(
    st.lists(
        st.tuples(st.integers(0, 40), st.integers(0, 40)).map(lambda ends: tuple(sorted(ends))), max_size=6
    )
)
def test_offsets_in_ranges_and_ranges_joined(ranges: list[tuple[int, int]]) -> None:
    offsets = range(-2, 44)
    inside = [any(start <= offset < stop for start, stop in ranges) for offset in offsets]
    joined = merged_ranges(ranges)
    for each in (ranges, joined):
        assert within_ranges(np.array(offsets, np.int64), each).tolist() == inside
    assert all(before[1] < after[0] for before, after in pairwise(joined))


@given(RANGES, st.booleans())
def test_ranges(ranges: list[tuple[int, int]], compiled: bool) -> None:
    """One by one and by the kernel; a range from its stop back to its start is null."""
    starts = np.array([start for start, _ in ranges], np.int64)
    lengths = np.array([stop - start if stop >= start else -1 for start, stop in ranges], np.int64)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernels, "ready", lambda rows=0: compiled)
        found = gather_ranges(BUFFER, starts, lengths)
    found.validate(full=True)
    assert found.type == pa.binary()
    assert found.to_pylist() == [DATA[start:stop] if stop >= start else None for start, stop in ranges]


def test_ranges_as_text() -> None:
    found = gather_ranges(BUFFER, np.array([65, 97]), np.array([3, 0]), pa.string())
    assert found.equals(pa.array(["ABC", ""]))


def test_units() -> None:
    units = gather_units(BUFFER, np.array([0, 248, 3]), BLANK_HEAD)
    assert units["size"].tolist() == [
        int.from_bytes(DATA[at : at + 4], "big", signed=True) for at in (0, 248, 3)
    ]
    assert [unit.tobytes() for unit in units] == [DATA[at : at + 8] for at in (0, 248, 3)]
    assert gather_units(BUFFER[:7], np.empty(0, np.int64), BLANK_HEAD).tolist() == []


def test_arrays_are_mapped_where_they_begin() -> None:
    array = pa.array([b"abc", b"", b"de"], pa.binary())
    for part in (array, array[1:], array[:0]):
        offsets, data = mapped_array(part)
        assert [data[a:b].tobytes() for a, b in pairwise(offsets)] == part.to_pylist()
    assert mapped_array(pa.array([], pa.binary()))[0].tolist() == [0]


def test_as_bytes() -> None:
    assert as_bytes(BUFFER, 3, 6) == b"\3\4\5"


# ---- Arrow arrays as bytes and offsets ---------------------------------------------------------------------


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary()])
@given(st.lists(st.binary(max_size=5)), st.integers(0, 4), st.integers(0, 4))
def test_there_and_back_on_any_slice(kind: pa.DataType, values: list[bytes], front: int, back: int) -> None:
    array = pa.array(values, kind)[front:]
    array = array[: max(len(array) - back, 0)]
    data, offsets = flat_bytes(array)
    assert (offsets[0], offsets[-1]) == (0, len(data))
    assert from_flat(data, offsets).to_pylist() == array.to_pylist()


def test_records_become_values() -> None:
    assert fixed_width(np.array([1, -2], ">i2")).to_pylist() == [b"\0\1", b"\xff\xfe"]
    assert fixed_width(np.empty(0, "V88")).to_pylist() == []


@given(st.lists(st.sampled_from(["a", "b", "ab", ""]), max_size=6), st.integers(0, 4), st.integers(0, 3))
def test_values_that_repeat(values: list[str], times: int, count: int) -> None:
    """Also those of a slice, and values whose bytes repeat while their ends do not."""
    values = values * times
    expected = 0 < count <= len(values) and values == values[:count] * (len(values) // count)
    for array in (pa.array(values, pa.string()), pa.array(["ab", *values], pa.large_string())[1:]):
        assert repeats_each(array, count) == expected


def test_a_null_is_not_an_empty_value_that_repeats() -> None:
    assert not repeats_each(pa.array(["", None]), 1)
