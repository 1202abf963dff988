"""A stream's offset is one text for one state: whatever order it was made in, and whatever Spark did to it in
between.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_spark.consume.consumer import MessageQueue, parse_subscription, parse_tags
from rmq_spark.consume.stream_offset import FROM, StreamOffset
from store_format.errors import OptionError
from store_format.java.text import java_hash
from store_format.read.choice import MessageChoice

NAMES = st.text(min_size=1, max_size=4).filter(lambda name: not name.startswith("$"))
POSITIONS = st.dictionaries(
    st.tuples(NAMES, NAMES, st.integers(0, 300)), st.integers(0, (1 << 63) - 1), max_size=12
)


def test_topics_and_brokers_by_name_and_queues_by_number() -> None:
    offset = StreamOffset(
        {
            MessageQueue("b", "x", 10): 3,
            MessageQueue("b", "x", 9): 2,
            MessageQueue("a", "y", 0): 1,
            MessageQueue("b", "a", 1): 5,
        },
        {MessageQueue("b", "x", 10): 0},
    )
    assert json.dumps(offset.to_json()) == (
        '{"a": {"y": {"0": 1}}, "b": {"a": {"1": 5}, "x": {"9": 2, "10": 3}}, "$from": {"b": {"x": {"10": '
        "0}}}}"
    )


def test_the_number_of_a_reset_comes_last() -> None:
    offset = StreamOffset({MessageQueue("z", "b", 1): 5}, {MessageQueue("z", "b", 1): 0}, 3)
    assert (
        json.dumps(offset.to_json()) == '{"z": {"b": {"1": 5}}, "$from": {"z": {"b": {"1": 0}}}, "$reset": 3}'
    )


@given(POSITIONS, POSITIONS, st.integers(0, 9), st.randoms())
def test_any_order_is_one_text_and_comes_back(
    positions: dict[MessageQueue, int], starts: dict[MessageQueue, int], reset: int, random: Any
) -> None:
    offset = StreamOffset(positions, starts, reset)
    text = json.dumps(offset.to_json())
    assert StreamOffset.from_json(json.loads(text)) == offset
    shuffled = list(positions.items())
    random.shuffle(shuffled)
    assert json.dumps(StreamOffset(dict(shuffled), dict(reversed(starts.items())), reset).to_json()) == text


def test_without_starts_there_is_no_key_for_them() -> None:
    assert FROM not in StreamOffset({MessageQueue("a", "b", 0): 1}).to_json()
    assert StreamOffset().to_json() == {}


# ---- TAG expressions ---------------------------------------------------------------------------------------


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


@pytest.mark.parametrize(
    "expression", ["region = 'eu-0'", "price>3", "a || TAGS IS NOT NULL", '"b"', "(c)", "price<=2"]
)
def test_a_tag_that_looks_like_a_condition_is_warned_of_once(
    expression: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A broker accepts the tag and finds nothing, so the read has no rows and a group passes its messages."""
    tags = parse_tags(expression)
    for _ in range(2):
        assert parse_subscription("TAG", expression) == (tags, None)
    (message,) = caplog.messages
    assert message == (
        f"subExpression: {expression.removeprefix('a || ')} is read as a tag, and looks like a SQL92 "
        "condition; for a condition, set expressionType=SQL92"
    )


@pytest.mark.parametrize("expression", [None, "*", " * ", "a || b", "a.b-c_d,e|f", "中文||$1"])
def test_other_tags_are_not_warned_of(expression: str | None, caplog: pytest.LogCaptureFixture) -> None:
    parse_subscription("TAG", expression)
    assert caplog.messages == []


def test_codes_are_java_hashes() -> None:
    choice = MessageChoice(tags=parse_tags("AaAa||polygenelubricants"))
    assert choice.tags_codes == frozenset((java_hash("AaAa"), -(1 << 31)))
    for tag in ("AaAa", "BBBB"):
        assert MessageChoice(tags=parse_tags(tag)).tags_codes == frozenset((2031744,))
    assert MessageChoice().tags_codes is None
