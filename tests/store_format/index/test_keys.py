"""Hashes of index keys against key strings that are built and hashed one by one."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from store_format import kernels
from store_format.index.updates import index_key_hashes
from tests.support.index_writer import java_string_hash, message_index_keys

Properties = dict[str, str]

TEXTS = st.text(st.sampled_from("aB9-#é中\U0001f600"), max_size=6)
PROPERTIES = st.fixed_dictionaries(
    {},
    optional={
        "UNIQ_KEY": TEXTS,
        "KEYS": st.lists(TEXTS, max_size=4).map(" ".join) | st.sampled_from(["", " ", "  a  b ", "中 中"]),
        "TAGS": TEXTS,
    },
)


def _expected_hashes(topic: str, properties: Properties, tags: bool) -> list[int]:
    hashes = [java_string_hash(key) for key in message_index_keys(topic, properties, tags=tags)]
    return [0 if value == -(2**31) else abs(value) for value in hashes]


@given(
    st.lists(st.tuples(st.sampled_from(["T", "Orders", "主题"]), PROPERTIES), max_size=12),
    st.booleans(),
    st.booleans(),
    st.data(),
)
def test_key_hashes(
    drawn: list[tuple[str, Properties]], tags: bool, by_kernel: bool, data: st.DataObject
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernels, "worth", lambda rows, **_: by_kernel)
        assert_key_hashes(drawn, tags, data)


def assert_key_hashes(drawn: list[tuple[str, Properties]], tags: bool, data: st.DataObject) -> None:
    rolled_back = np.array([data.draw(st.booleans()) for _ in drawn], bool)
    expected = [
        [] if back else _expected_hashes(*message, tags)
        for message, back in zip(drawn, rolled_back, strict=True)
    ]
    columns = [
        pa.array([properties.get(name) for _, properties in drawn], pa.string())
        for name in ("UNIQ_KEY", "KEYS", "TAGS")
    ]
    topics = pa.array([topic for topic, _ in drawn], pa.string())
    for array in (topics, topics.dictionary_encode()):
        hashes, index = index_key_hashes(array, *columns, tag_keys=tags, rolled_back=rolled_back)
        assert hashes.tolist() == [value for values in expected for value in values]
        assert index.tolist() == [i for i, values in enumerate(expected) for _ in values]


def test_key_hashes_of_slices_of_one_topic_and_of_a_hash_without_absolute_value() -> None:
    keys = pa.array(["x", None, "aXA4ptp  k2", "y"]).slice(1, 2)
    nothing = pa.array(["a", None, None, "b"]).slice(1, 2)
    hashes, index = index_key_hashes(pa.array(["TopicTest"] * 2), nothing, keys, nothing)
    assert (hashes.tolist(), index.tolist()) == ([0, java_string_hash("TopicTest#k2")], [1, 1])


def test_key_hashes_of_a_null_that_covers_bytes() -> None:
    raw = pa.Array.from_buffers(
        pa.string(),
        2,
        [pa.py_buffer(b"\x02"), pa.array([0, 3, 4], pa.int32()).buffers()[1], pa.py_buffer(b"a bc")],
    )
    hashes, index = index_key_hashes(pa.array(["T", "T"]), raw, raw, raw)
    assert index.tolist() == [1, 1, 1]
    assert hashes.tolist() == [java_string_hash(key) for key in ("T#c", "T#c", "T#T#c")]
