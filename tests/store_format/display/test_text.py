"""Text of a hostile store becomes plain characters: escapes, controls, overrides, broken UTF-8, long
bodies.
"""

from __future__ import annotations

import json
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from store_format import errors
from store_format.display.text import body_text, cut, first_names, json_text, shown, width

HOSTILE = "\x1b]0;owned\x07\x1b[2J\u202eevil\u2066\r\n\x00\x7f\x9b31m\ud800"
HARMLESS = r"\x1b]0;owned\x07\x1b[2J\u202eevil\u2066\r\n\x00\x7f\x9b31m\ud800"


def test_hostile_text_is_spelled_out() -> None:
    assert shown(HOSTILE) == HARMLESS
    assert shown("订单 emoji😀 naïve عربى") == "订单 emoji😀 naïve عربى"
    assert body_text(b"a\xff\x1b[1mb", 40) == r"a\xff\x1b[1mb"


@pytest.mark.parametrize("name", errors.__all__)
def test_every_error_escapes_its_text(name: str) -> None:
    kind = getattr(errors, name)
    count = 4 if issubclass(kind, errors.CorruptStoreError) else 2 if "Handle" in name else 1
    error = kind(*[HOSTILE] * count)
    assert str(error).isprintable()
    assert str(error).count(HARMLESS) == count
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_the_first_names_are_escaped_and_the_others_marked() -> None:
    assert first_names([]) == ""
    assert first_names(iter(["a", HOSTILE])) == f"a, {HARMLESS}"
    assert first_names(map(str, range(8))) == "0, 1, 2, 3, 4, 5, 6, 7"
    assert first_names(map(str, range(9))) == "0, 1, 2, 3, 4, 5, 6, 7, …"


@given(st.text() | st.just(HOSTILE), st.booleans())
def test_json_is_exact_and_printable(text: str, ascii_only: bool) -> None:
    value = {"text": text, "list": [text, 1, None]}
    for indent in (None, 2):
        written = json_text(value, ascii_only=ascii_only, indent=indent)
        assert json.loads(written) == value
        assert all(line.isprintable() for line in written.split("\n"))
        assert written.isascii() or not ascii_only


def test_json_keeps_letters() -> None:
    assert json_text({"tags": "标签😀"}) == '{"tags": "标签😀"}'


@given(st.text())
def test_whatever_is_shown_is_printable(text: str) -> None:
    assert shown(text).isprintable()


@given(st.binary(max_size=300), st.integers(1, 50))
def test_a_body_has_its_columns_and_a_note(body: bytes, columns: int) -> None:
    text = body_text(body, columns)
    assert text.isprintable()
    kept, cut_off, note = text.rpartition("… (")
    if cut_off:
        assert note == f"{len(body):,} bytes)"
        assert width(kept) <= columns
    else:
        assert width(text) <= columns


@given(st.text(st.characters(blacklist_categories=["C"])), st.integers(1, 30))
def test_a_cut_text_fits(text: str, columns: int) -> None:
    kept = cut(text, columns)
    assert width(kept) <= max(columns, 1)
    assert kept == text or kept.endswith("…")


def test_a_large_body_is_cut_quickly() -> None:
    assert body_text(b"x" * (4 << 20), 5) == "xxxx… (4,194,304 bytes)"
