"""Properties strings by the broker's rules, the order of Java's HashMap, and the appended CRC property."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from store_format.java.text import BROKER_MAP_CAPACITY, hash_bucket, hash_map_order, table_size
from store_format.message.properties import (
    crc_properties,
    decode_properties,
    parse_crc_property,
)
from tests.support import oracle
from tests.support.fixtures import Golden

_TESTS = Path(__file__).parents[2]
_VECTORS: dict[str, Any] = json.loads((_TESTS / "vectors" / "vectors.json").read_text("utf-8"))
_TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\x01\x02"), min_size=1, max_size=8)


@pytest.mark.parametrize("row", _VECTORS["properties"], ids=lambda row: row["name"])
def test_decoding_equals_the_vectors(row: dict[str, Any]) -> None:
    kept = {name: value for name, value in row["pairs"] if name and value}
    assert decode_properties(bytes.fromhex(row["encoded_hex"])) == kept


@pytest.mark.parametrize("row", _VECTORS["properties_parse"], ids=lambda row: row["raw_hex"] or "empty")
def test_parsing_equals_the_vectors(row: dict[str, Any]) -> None:
    assert decode_properties(bytes.fromhex(row["raw_hex"])) == row["expect"]


def javas_loop(text: str) -> dict[str, str]:
    """MessageDecoder.string2messageProperties, statement by statement."""
    properties = {}
    index = 0
    while index < len(text):
        new_index = text.find("\x02", index)
        if new_index < 0:
            new_index = len(text)
        if new_index - index >= 3:
            separator = text.find("\x01", index)
            if index < separator < new_index - 1:
                properties[text[index:separator]] = text[separator + 1 : new_index]
        index = new_index + 1
    return properties


@given(st.text(st.sampled_from("\x01\x02\0aB=é标😀"), max_size=30))
def test_parsing_equals_javas_loop(text: str) -> None:
    assert decode_properties(text.encode()) == javas_loop(text)


@given(st.dictionaries(_TEXT, _TEXT))
def test_there_and_back(properties: dict[str, str]) -> None:
    assert list(decode_properties(oracle.encode_properties(properties.items())).items()) == list(
        properties.items()
    )


def test_malformed_utf8_does_not_move_the_separators() -> None:
    assert decode_properties(b"a\xe4\x01b\xed\xa0\x80\x02\xff\x01\xf0\x9f\x02c\x01d") == {
        "a\ufffd": "b\ufffd",
        "\ufffd": "\ufffd",
        "c": "d",
    }


def ordered(*names: str, capacity: int = BROKER_MAP_CAPACITY) -> list[str]:
    return [names[place] for place in hash_map_order(names, capacity)]


@pytest.mark.parametrize("row", _VECTORS["java_hashmap_order"], ids=lambda row: str(row["table_size"]))
def test_hashmap_order_equals_the_jdks(row: dict[str, Any]) -> None:
    names = row["insertion_order"]
    assert ordered(*names, capacity=row["table_size"]) == row["iteration_order"]


def test_a_real_broker_wrote_in_this_order(golden: Golden) -> None:
    files = sorted((golden("basic-5.5.0") / "commitlog").iterdir())
    walk = oracle.walk_files({int(file.name): file.read_bytes() for file in files}, files[0].stat().st_size)
    # the broker made these from a client's request
    sent = [m for m in walk.messages if "TRACE_ON" in m.properties]
    assert len(sent) > 1_000
    for message in sent:
        names = list(decode_properties(message.properties_bytes))
        assert names == ordered(*names)


def test_buckets_keep_insertion_order() -> None:
    assert hash_bucket("Aa", 128) == hash_bucket("BB", 128)
    assert ordered("BB", "Aa") == ["BB", "Aa"]
    assert ordered("Aa", "BB") == ["Aa", "BB"]


def test_the_table_doubles_above_three_quarters() -> None:
    assert [table_size(count, 16) for count in (0, 12, 13, 24, 25)] == [16, 16, 32, 32, 64]
    assert [table_size(count) for count in (96, 97)] == [128, 256]
    names = [f"name-{i}" for i in range(97)]
    assert ordered(*names) == sorted(names, key=lambda name: hash_bucket(name, 256))


@pytest.mark.parametrize("row", _VECTORS["crc_property"], ids=lambda row: str(row["crc"]))
def test_crc_property_equals_the_vectors(row: dict[str, Any]) -> None:
    assert crc_properties(np.array([row["crc"]])).tobytes().hex() == row["hex"]
    assert parse_crc_property(bytes.fromhex(row["hex"])) == row["crc"]


@given(st.lists(st.integers(0, 2**31 - 1)))
def test_crc_properties_parse_back(crcs: list[int]) -> None:
    rows = crc_properties(np.array(crcs, np.int64))
    assert [parse_crc_property(row.tobytes()) for row in rows] == crcs


@pytest.mark.parametrize(
    "raw",
    [
        *(b"", b"__CRC32#\x0112345\x02", b"__CRC32#\x01123456789\xb2\x02"),
        *(b"__CRC32!\x011234567890\x02", b"__CRC32#\x011234567890\x01"),
    ],
)
def test_what_is_no_crc_property(raw: bytes) -> None:
    assert parse_crc_property(raw) is None
