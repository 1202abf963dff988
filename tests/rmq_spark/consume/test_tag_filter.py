"""TAG expressions: FilterAPI's cases as measured (spec consumption 5.2), and both halves of a match."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from rmq_spark.consume.tag_filter import TagFilter, parse_tags
from store_format.errors import OptionError
from store_format.java.hashes import java_hash


@pytest.mark.parametrize(
    ("expression", "tags"),
    [
        (None, set()),
        ("", set()),
        ("*", set()),
        ("a", {"a"}),
        (" a || b ", {"a", "b"}),
        ("a||", {"a"}),
        ("||a", {"a"}),
        ("a||||b", {"a", "b"}),
        ("a|||b", {"a", "|b"}),
        ("a|b", {"a|b"}),
        ("a,b", {"a,b"}),
        ("* || a", {"*", "a"}),
        (" * ", {"*"}),
        ("\ta\x1f||\u3000b", {"a", "\u3000b"}),  # a full-width space stays
    ],
)
def test_expressions(expression: str | None, tags: set[str]) -> None:
    parsed = parse_tags(expression)
    assert parsed.tags == tags
    assert parsed.codes == {java_hash(tag) for tag in tags}
    assert parsed.subscribe_all is (not tags)


@pytest.mark.parametrize("expression", ["||", "||||", " ", " || ", "\t"])
def test_an_expression_without_a_tag_is_refused(expression: str) -> None:
    with pytest.raises(OptionError) as caught:
        parse_tags(expression)
    assert str(caught.value) == (
        f"subExpression: expected tags between ||, found {expression!r}, which names none; use * for all messages or TagA || TagB"
    )


def test_codes_let_through_every_match_and_what_is_no_hash() -> None:
    codes = np.array(
        [java_hash("TagA"), java_hash("TagB"), 0, 2031744, -(1 << 31) - 1, 1_700_000_000_000, -1], np.int64
    )
    assert parse_tags("TagA").match_codes(codes).tolist() == [True, False, False, False, True, True, False]
    assert parse_tags("AaAa||polygenelubricants").codes == {2031744, -(1 << 31)}
    # the hash of AaAa
    assert parse_tags("BBBB").match_codes(codes).tolist() == [False, False, False, True, True, True, False]
    assert parse_tags("*").match_codes(codes).all()


def test_the_string_decides() -> None:
    tags = pa.array(["TagA", "taga", None, "", "TagB", "TagA "], pa.string())
    assert parse_tags("TagA||TagC").match_tags(tags).tolist() == [True, False, False, False, False, False]
    assert parse_tags("*").match_tags(tags).tolist() == [True] * 6
    assert parse_tags("TagA").match_tags(tags[:0]).tolist() == []
    assert parse_tags("BBBB").match_tags(pa.array(["AaAa", "BBBB"])).tolist() == [False, True]


def test_the_default_subscribes_to_all() -> None:
    assert parse_tags("*") == TagFilter()
