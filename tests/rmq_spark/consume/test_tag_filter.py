"""TAG expressions: FilterAPI's cases as measured (spec consumption 5.2), and both halves of a match."""

from __future__ import annotations

import pytest

from rmq_spark.consume.consumer import parse_tags
from store_format.errors import OptionError
from store_format.java.text import java_hash
from store_format.read.choice import MessageChoice


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
    assert parse_tags(expression) == (tags or None)


@pytest.mark.parametrize("expression", ["||", "||||", " ", " || ", "\t"])
def test_an_expression_without_a_tag_is_refused(expression: str) -> None:
    with pytest.raises(OptionError) as caught:
        parse_tags(expression)
    assert str(caught.value) == (
        f"subExpression: expected tags such as TagA || TagB, found {expression!r}, which names no tag; "
        "use * for all messages"
    )


def test_codes_are_java_hashes() -> None:
    choice = MessageChoice(tags=parse_tags("AaAa||polygenelubricants"))
    assert choice.tags_codes == frozenset((java_hash("AaAa"), -(1 << 31)))
    for tag in ("AaAa", "BBBB"):
        assert MessageChoice(tags=parse_tags(tag)).tags_codes == frozenset((2031744,))
    assert MessageChoice().tags_codes is None
