"""Columns of properties against one message at a time: the same bytes, whichever way they were made."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from store_format import kernels
from store_format.errors import IllegalMessageError
from store_format.message.properties import decode_properties
from store_format.message.property_encoder import encode_property_columns
from tests.support import oracle, oracle_units

# Few names, two of them in one bucket, so that messages agree and collide.
_NAMES = st.sampled_from(["KEYS", "TAGS", "UNIQ_KEY", "Aa", "BB", "标签", ""])
_VALUES = st.none() | st.text(st.characters(codec="utf-8", exclude_characters="\x02"), max_size=4)
_MAP = pa.map_(pa.string(), pa.string())


def put_one_by_one(capacity: int, *pairs: tuple[str, str | None]) -> bytes:
    """What a broker would write: empty ones dropped, the rest put into a HashMap."""
    properties = {}
    for name, value in pairs:
        if name and value:
            properties[name] = value
    return oracle.encode_properties(
        (name, properties[name]) for name in oracle_units.java_hashmap_order(properties, capacity)
    )


def expected(count: int, columns: dict[str, Any], maps: list[Any] | None, capacity: int = 128) -> list[bytes]:
    strings = []
    for i in range(count):
        own = (maps[i] or []) if maps else []
        given_ = [
            (name, values if isinstance(values, str) else values[i]) for name, values in columns.items()
        ]
        strings.append(put_one_by_one(capacity, *own, *given_))
    return strings


def encoded(count: int, columns: dict[str, Any], maps: list[Any] | None, capacity: int = 128) -> list[bytes]:
    arrays = {
        name: values if isinstance(values, str) else pa.array(values, pa.string())
        for name, values in columns.items()
    }
    strings = encode_property_columns(
        count, arrays, None if maps is None else pa.array(maps, _MAP), capacity=capacity
    )
    strings.validate(full=True)
    return strings.to_pylist()


@st.composite
def batches(draw: st.DrawFn) -> tuple[int, dict[str, Any], list[Any] | None]:
    count = draw(st.integers(0, 5))
    column = st.text(st.characters(codec="utf-8", exclude_characters="\x02"), max_size=4) | st.lists(
        _VALUES, min_size=count, max_size=count
    )
    columns = draw(st.dictionaries(_NAMES, column, max_size=4))
    entries = st.lists(st.tuples(_NAMES, _VALUES), max_size=5)
    alike = st.lists(_NAMES, max_size=4).flatmap(
        lambda names: st.lists(
            st.tuples(*[st.tuples(st.just(n), _VALUES) for n in names]).map(list),
            min_size=count,
            max_size=count,
        )
    )
    maps = draw(st.none() | alike | st.lists(st.none() | entries, min_size=count, max_size=count))
    return count, columns, maps


@given(batches(), st.sampled_from([2, 16, 128]), st.booleans())
def test_columns_and_maps_equal_one_by_one(
    batch: tuple[int, dict[str, Any], list[Any] | None], capacity: int, by_kernel: bool
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernels, "ready", lambda rows=0: by_kernel)
        assert encoded(*batch, capacity=capacity) == expected(*batch, capacity=capacity)


def test_what_a_broker_adds_to_a_clients_message() -> None:
    own = {"KEYS": ["k1", "k2 k3"], "TAGS": [None, "TagA"]}
    columns = {**own, "MSG_REGION": "DefaultRegion", "TRACE_ON": "true", "CLUSTER": "c"}
    strings = encoded(2, columns, None)
    assert strings == expected(2, columns, None)
    assert strings[0] == b"MSG_REGION\x01DefaultRegion\x02CLUSTER\x01c\x02KEYS\x01k1\x02TRACE_ON\x01true\x02"


@pytest.fixture(params=[True, False], ids=["kernels", "plain"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "ready", lambda rows=0: request.param)


@pytest.mark.usefixtures("way")
def test_more_names_than_the_table_holds_grow_it() -> None:
    columns = {f"name-{i}": [f"v{i}", None if i % 3 else "w"] for i in range(120)}
    strings = encoded(2, columns, None)
    assert strings == expected(2, columns, None)
    assert len(decode_properties(strings[0])) == 120  # 256 buckets
    assert len(decode_properties(strings[1])) == 40  # 128 buckets: another order


@pytest.mark.usefixtures("way")
def test_names_of_one_bucket_keep_the_order_of_each_message() -> None:
    both = [[("BB", "3"), ("Aa", "4")], [("Aa", "5"), ("BB", "6")]]
    maps = [[("Aa", None)], [("Aa", "1")], [("BB", "2")], *both]
    columns = {"BB": ["x"] * 5, "Aa": ["y"] * 5}
    assert encoded(5, columns, maps) == expected(5, columns, maps)
    assert encoded(5, columns, maps)[0] == b"BB\x01x\x02Aa\x01y\x02"
    assert encoded(4, {}, maps[1:]) == expected(4, {}, maps[1:])


def test_sliced_arrays_and_maps() -> None:
    maps = pa.array([[("x", "y")], None, [("KEYS", "a"), ("b", "c")], [], [("KEYS", "d")]], _MAP)[1:4]
    tags = pa.array(["no", "t1", "t2", "t3", "no"])[1:4]
    strings = encode_property_columns(3, {"TAGS": tags}, maps)
    assert strings.to_pylist() == expected(
        3, {"TAGS": ["t1", "t2", "t3"]}, [None, [("KEYS", "a"), ("b", "c")], []]
    )


def test_no_properties_at_all() -> None:
    assert encoded(2, {}, None) == [b"", b""]
    assert encoded(2, {}, [[], None]) == [b"", b""]
    assert encoded(0, {"TAGS": []}, []) == []


@pytest.mark.parametrize(
    ("columns", "maps", "message"),
    [
        ({"a\x01b": "v"}, None, "property name 'a\\x01b'"),
        ({"TAGS": ["a\x02b"]}, None, "property 'TAGS': a value contains 0x02"),
        ({"TAGS": "a\x02b"}, None, "property 'TAGS': a value contains 0x02"),
        ({}, [[("a\x02", "v")]], "property name 'a\\x02'"),
        ({}, [[("a", "\x02")]], "in a map: a value contains 0x02"),
    ],
)
def test_separators_that_would_change_the_properties_are_refused(
    columns: dict[str, Any], maps: Any, message: str
) -> None:
    with pytest.raises(IllegalMessageError) as caught:
        encoded(1, columns, maps)
    assert message in str(caught.value)
