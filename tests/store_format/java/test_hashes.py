"""Hashes against the JDK's own values, and the vectorised form against the scalar definition."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from store_format import kernels
from store_format.java.text import decode_utf8, java_hash, java_hash_many, tags_code, tags_code_many

_VECTORS: dict[str, Any] = json.loads(
    (Path(__file__).parents[2] / "vectors" / "vectors.json").read_text("utf-8")
)

_TEXT = st.text(st.characters(codec="utf-8"), max_size=40)


@pytest.fixture(autouse=True, scope="module", params=["by kernel", "one by one"])
def way(request: pytest.FixtureRequest) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernels, "ready", lambda rows=0: request.param == "by kernel")
        yield


def defined_hash(text: str) -> int:
    """s[0]*31^(n-1) + ... + s[n-1], as the JDK documents it."""
    raw = text.encode("utf-16-be", "surrogatepass")
    units = [int.from_bytes(raw[i : i + 2], "big") for i in range(0, len(raw), 2)]
    total = sum(unit * 31 ** (len(units) - 1 - i) for i, unit in enumerate(units)) % 2**32
    return total - 2**32 if total >= 2**31 else total


def test_hash_and_tags_code_equal_the_jdks() -> None:
    for row in _VECTORS["java_string_hash"]:
        # two rows are lone surrogates
        text = bytes.fromhex(row["utf16_be_hex"]).decode("utf-16-be", "surrogatepass")
        assert java_hash(text) == row["hash"]
        assert tags_code(text) == row["tags_code"]
        assert tags_code(text).to_bytes(8, "big", signed=True).hex() == row["cq_tags_code_hex"]


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.binary(), pa.large_binary()])
def test_many_hashes_equal_the_jdks(kind: pa.DataType) -> None:
    rows = [row for row in _VECTORS["java_string_hash"] if row["s"] is not None]
    encoded = pa.array(
        [row["s"].encode() for row in rows], pa.large_binary() if "large" in str(kind) else pa.binary()
    ).cast(kind)
    assert java_hash_many(encoded).tolist() == [row["hash"] for row in rows]
    hashes = {row["s"]: row["hash"] for row in rows if row["s"].isascii()}
    assert java_hash_many(pa.array(list(hashes))).tolist() == list(hashes.values())


def test_index_keys_hash_as_the_jdk_hashes_them() -> None:
    hashes = {row["composed"]: row["java_hash"] for row in _VECTORS["index_key_hash"]}
    assert java_hash_many(pa.array(list(hashes))).tolist() == list(hashes.values())


@given(st.lists(st.none() | _TEXT), st.integers(0, 5), st.integers(0, 5))
def test_many_equals_the_definition_on_any_slice(texts: list[str | None], front: int, back: int) -> None:
    array = pa.array(texts, pa.string())[front:]
    array = array[: max(len(array) - back, 0)]
    expected = [0 if text is None else defined_hash(text) for text in array.to_pylist()]
    assert java_hash_many(array).tolist() == expected


@given(st.text(max_size=60))
def test_one_equals_the_definition(text: str) -> None:
    assert java_hash(text) == defined_hash(text)


@given(st.lists(st.binary(max_size=12)))
def test_malformed_utf8_hashes_as_its_java_text(raws: list[bytes]) -> None:
    expected = [defined_hash(decode_utf8(raw)) for raw in raws]
    assert java_hash_many(pa.array(raws, pa.binary())).tolist() == expected


def test_a_character_cut_in_two_by_an_offset_is_malformed_on_both_sides() -> None:
    raws = [b"\xe4\xb8", b"\xad"]  # together U+4E2D
    assert java_hash_many(pa.array(raws, pa.binary())).tolist() == [0xFFFD, 0xFFFD]


def test_bytes_under_a_null_do_not_count() -> None:
    array = pa.Array.from_buffers(
        pa.string(),
        2,
        [pa.py_buffer(b"\x02"), pa.py_buffer(np.array([0, 3, 4], np.int32)), pa.py_buffer(b"abcd")],
    )
    assert array.to_pylist() == [None, "d"]
    assert java_hash_many(array).tolist() == [0, ord("d")]


def test_strings_longer_than_a_block_and_many_blocks() -> None:
    texts = ["x" * 100_000, "", "k" * 65_535, "é" * 70_000, *[f"key-{i}" for i in range(5_000)], "y" * 65_537]
    expected = [java_hash(text) for text in texts]
    assert java_hash_many(pa.array(texts)).tolist() == expected
    ascii_texts = [text for text in texts if text.isascii()]
    assert java_hash_many(pa.array(ascii_texts)).tolist() == [java_hash(text) for text in ascii_texts]


def test_tags_codes_are_sign_extended() -> None:
    codes = tags_code_many(pa.array(["polygenelubricants", None, "TagA"]))
    assert codes.dtype == np.int64
    assert codes.tolist() == [-(2**31), 0, 2598919]


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (b"\xc3\xa9", "é"),
        (b"\xff", "\ufffd"),
        (b"\xe4\xb8", "\ufffd"),  # cut off
        (b"\xe4A", "\ufffdA"),
        (b"\xc0\x80", "\ufffd\ufffd"),  # overlong
        (b"\xed\xa0\x80", "\ufffd"),  # an encoded surrogate is one unit in Java
        (b"\xed\xa0", "\ufffd"),
        (b"\xed\xa0A", "\ufffdA"),
        (b"\xf0\x9f\x98", "\ufffd"),
        (b"\xf5\x80", "\ufffd\ufffd"),
    ],
)
def test_malformed_parts_are_replaced_as_java_does(raw: bytes, text: str) -> None:
    assert decode_utf8(raw) == text
