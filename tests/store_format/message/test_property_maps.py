"""Maps of properties as entries and as columns; their bytes are proved in `test_property_encoder`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from store_format.message.property_encoder import PropertyMaps

MAP = pa.map_(pa.string(), pa.string())


def maps_of(*rows: Any) -> PropertyMaps:
    return PropertyMaps.of(pa.array(rows, MAP))


def columns(maps: PropertyMaps) -> dict[str, list[bytes | None]]:
    found = {name: maps.column(name) for name in maps.names}
    return {name: values.to_pylist() for name, values in found.items() if values is not None}


def test_equal_names_in_equal_order_are_columns_in_that_order() -> None:
    maps = maps_of([("b", "1"), ("a", "2")], [("b", "3"), ("a", None)])
    assert columns(maps) == {"b": [b"1", b"3"], "a": [b"2", None]}
    assert list(columns(maps)) == ["b", "a"]
    assert maps.rows.tolist() == [0, 0, 1, 1]


def test_names_that_some_messages_lack_are_columns_with_nulls() -> None:
    maps = maps_of([("a", "1"), ("b", "2")], [("b", "3")], None, [("a", "4"), ("b", "5")])
    assert columns(maps) == {"a": [b"1", None, None, b"4"], "b": [b"2", b"3", None, b"5"]}


def test_one_property_of_all_messages() -> None:
    maps = maps_of([("a", "1"), ("a", "2")], None, [("b", "3")])
    assert maps.column("c") is None
    found = maps.column("a")
    assert found is not None
    assert found.to_pylist() == [b"2", None, None]
    assert maps.column("a") is found


def test_entries_can_be_left_out_and_their_names_with_them() -> None:
    maps = maps_of([("a", "1"), ("b", "2")], [("b", ""), ("", "x")], [("b", None), ("c", "3")])
    assert maps.empty().tolist() == [False, False, True, True, True, False]
    kept = maps.where(~maps.empty() & np.array([False, True, True, True, True, True]))
    assert (kept.counts.tolist(), kept.rows.tolist()) == ([1, 0, 1], [0, 2])
    assert (kept.names, kept.values.to_pylist()) == (["b", "c"], [b"2", b"3"])
    assert [kept.names[code] for code in kept.codes] == ["b", "c"]


def test_slices_and_null_maps_that_cover_entries() -> None:
    whole = pa.MapArray.from_arrays(
        pa.array([0, 1, 2, 3]), pa.array(["a", "b", "c"]), pa.array(["1", "2", "3"])
    )
    hidden = pa.MapArray.from_buffers(
        MAP, 3, [pa.py_buffer(b"\x05"), whole.buffers()[1]], children=[whole.values]
    )
    assert columns(PropertyMaps.of(hidden)) == {"a": [b"1", None, None], "c": [None, None, b"3"]}
    assert columns(PropertyMaps.of(whole[1:2])) == {"b": [b"2"]}
    assert columns(PropertyMaps.of(whole[:0])) == {}


_ENTRIES = st.lists(st.tuples(st.sampled_from("ab"), st.just("1")), min_size=1, max_size=2)


@given(st.lists(_ENTRIES, max_size=4), st.integers(1, 3))
def test_maps_with_the_same_names_are_entries_as_others_are(rows: list[Any], times: int) -> None:
    maps = maps_of(*rows * times)
    assert [maps.names[code] for code in maps.codes] == [name for row in rows * times for name, _ in row]
    assert (maps.counts.tolist(), len(set(maps.names))) == (list(map(len, rows * times)), len(maps.names))
