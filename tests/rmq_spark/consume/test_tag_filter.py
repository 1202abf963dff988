"""TAG expressions: FilterAPI's cases as measured (spec consumption 5.2), and both halves of a match."""

from __future__ import annotations

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
        f"subExpression: expected tags such as TagA || TagB, found {expression!r}, which names no tag; "
        "use * for all messages"
    )


def test_codes_are_java_hashes() -> None:
    assert parse_tags("AaAa||polygenelubricants").codes == {java_hash("AaAa"), -(1 << 31)}
    assert parse_tags("AaAa").codes == parse_tags("BBBB").codes == {2031744}


def test_the_default_subscribes_to_all() -> None:
    assert parse_tags("*") == TagFilter()
