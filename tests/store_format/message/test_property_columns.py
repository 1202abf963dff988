"""Properties of many messages at once, against the oracle's one string at a time."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from store_format import kernels
from store_format.java.text import decode_utf8
from store_format.message.properties import PropertyTable
from tests.support import oracle
from tests.support.strategies import property_bytes

LONG = "a name of more than eight bytes"
NAMES = ["KEYS", "TAGS", "UNIQ_KEY", "a", "k" * 40, LONG, "名", "", "a\0", "\ufffd"]

# Bytes that mean something to the parser or to UTF-8, so that short strings meet every case.
NASTY = st.lists(st.sampled_from([
    b"\x01", b"\x02", b"\0", b"a", b"b", b"\xff", b"\xc3", b"\xa4", b"\xe4\xb8", b"\xad", b"\xed\xa0",
    b"\x80", b"TAGS",
]), max_size=12).map(b"".join)  # fmt: skip
MANY = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 9)), max_size=60).map(
    lambda pairs: b"".join(b"%s%d\x01%d\x02" % (b"n" * (name % 12 + 1), name, value) for name, value in pairs)
)


def table(strings: list[bytes]) -> PropertyTable:
    return PropertyTable(pa.array(strings, pa.binary()))


def maps(strings: list[bytes]) -> list[list[tuple[str, str]]]:
    array = table(strings).map_array()
    array.validate(full=True)
    found: list[list[tuple[str, str]]] = array.to_pylist()
    return found


@pytest.fixture(params=[False, True], ids=["plain", "kernels"], autouse=True)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test twice: the strings one by one, and by the kernels."""
    monkeypatch.setattr(kernels, "ready", lambda rows=0: request.param)


@given(st.lists(st.one_of(property_bytes(), NASTY, MANY, st.binary(max_size=20)), max_size=8))
@example([b"a\x01b", b"\x02c\x01d\x02"])  # a string without its last 0x02, and one that begins with a 0x02
@example([b"a\x01\xe4\xb8", b"\xad\x01b\x02"])  # a character cut by the end of a string
@example([b"a\x01x\xed\xa0\x80y\x02"])  # an encoded surrogate is one replacement character to Java
@example([b"", b"", b"a\x01b\x02", b""])
@example([b"a\x01b", b"", b"c\x01d"])
def test_as_the_oracle_decodes_each_string(strings: list[bytes]) -> None:
    expected = [oracle.decode_properties(string) for string in strings]
    assert maps(strings) == [list(properties.items()) for properties in expected]
    read = table(strings)
    for name in NAMES:
        values = read.values(name)
        values.validate(full=True)
        assert values.to_pylist() == [properties.get(name) for properties in expected]


@pytest.mark.parametrize("count", [2, 24, 25, 26, 300])
@pytest.mark.parametrize("name", ["a", LONG])
def test_the_last_of_equal_names_wins_at_the_place_of_the_first(count: int, name: str) -> None:
    others = "".join(f"{i:012}\x01{i}\x02" for i in range(count - 2))
    string = f"{name}\x01first\x02{others}{name}\x01last\x02".encode()
    found = maps([b"a\x01z\x02", string, string])
    assert found[1] == found[2] == [(name, "last"), *((f"{i:012}", str(i)) for i in range(count - 2))]
    assert table([string]).values(name).to_pylist() == ["last"]


def test_names_that_differ_behind_their_eighth_byte_are_different() -> None:
    names = ["12345678", "12345678a", "12345678b", "12345678abcdefgha", "12345678abcdefghb", "12345678\0"]
    string = "".join(f"{name}\x01{i}\x02" for i, name in enumerate(names)).encode()
    assert maps([string]) == [[(name, str(i)) for i, name in enumerate(names)]]
    read = table([string])
    for i, name in enumerate(names):
        assert read.values(name).to_pylist() == [str(i)]


def test_a_slice_of_an_array_is_read_where_it_begins() -> None:
    whole = pa.array([b"a\x01b\x02", b"c\x01d\x02", b"e\x01f\x02"], pa.binary())
    assert PropertyTable(whole[1:]).map_array().to_pylist() == [[("c", "d")], [("e", "f")]]


def test_every_two_bytes_with_which_a_character_can_begin() -> None:
    edges = (0x7F, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, 0xC0)
    characters = [
        bytes([first, second]) + rest
        for first in range(0x80, 0x100)
        for second in edges
        for rest in (b"", b"\x80", b"\x80\xbf", b"\x80\xc0")
    ]
    found = table([b"a\x01" + character for character in characters]).values("a")
    assert found.to_pylist() == [decode_utf8(character) for character in characters]
    # one at a time: a malformed string must not hide that another is taken for well-formed
    wide = [character for character in characters if decode_utf8(character).encode() != character]
    for character in wide[:: len(wide) // 40]:
        assert table([b"a\x01" + character]).values("a").to_pylist() == [decode_utf8(character)]


def test_key_and_words() -> None:
    read = table([b"KEYS\x01k1  k2 \x02", b"UNIQ_KEY\x01k2\x02", b"", b"KEYS\x01 \x02", b"KEYS\x01k22\x02"])
    assert read.words("KEYS").to_pylist() == [["k1", "k2"], None, None, [], ["k22"]]
    assert read.has_key("k2").to_pylist() == [True, True, False, False, False]
    assert read.has_key("k1  k2 ").to_pylist() == [False] * 5
