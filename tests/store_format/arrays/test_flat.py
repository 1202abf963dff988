"""Arrow arrays taken apart and put together again."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from store_format.arrays.ranges import fixed_width, flat_bytes, from_flat


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
