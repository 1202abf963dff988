"""Long.parseLong for one text: what Java reads, and what it refuses."""

from __future__ import annotations

import pytest

from store_format.java.numbers import parse_long


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0", 0),
        ("+7", 7),
        ("-9223372036854775808", -(2**63)),
        ("9223372036854775807", 2**63 - 1),
        ("9223372036854775808", None),
        ("0" * 30 + "12", 12),
        ("\u0661\u0662", 12),  # Arabic-Indic digits
        ("\U0001d7cf", None),  # a digit above the basic plane
        ("", None),
        ("+", None),
        ("++5", None),
        (" 5", None),
        ("5 ", None),
        ("0x5", None),
        ("\u00b2", None),  # a superscript is no decimal digit
        (None, None),
    ],
)
def test_parse_long(text: str | None, expected: int | None) -> None:
    assert parse_long(text) == expected
