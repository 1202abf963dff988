"""SQL92 filters: every case that RocketMQ's own filter module decided, errors with their place, and what
hostile text comes to.
"""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rmq_spark.consume.sql92 import CountingFilter, parse_condition, parse_sql92
from store_format.errors import OptionError
from tests.support import oracle_sql92 as oracle
from tests.support.fixtures import examples

_VECTORS = Path(__file__).parents[3] / "vectors"
VECTORS: dict[str, Any] = json.loads((_VECTORS / "sql92_vectors.json").read_text())
CORNERS: list[dict[str, str]] = json.loads((_VECTORS / "sql92_corners.json").read_text())["cases"]
OUTCOMES = ("false", "true", "null", "eval_error")


def outcome(expression: str, properties: dict[str, str]) -> str:
    """As the vectors name it."""
    try:
        parsed = parse_sql92(expression)
    except OptionError:
        return "parse_error"
    return OUTCOMES[parsed.outcomes(1, lambda name: pa.array([properties.get(name)], pa.string()))[0]]


@pytest.mark.parametrize("case", VECTORS["cases"], ids=lambda case: case["expr"])
def test_vectors(case: dict[str, Any]) -> None:
    assert outcome(case["expr"], VECTORS["properties"]) == case["result"]
    if case["result"] != "parse_error":
        properties = VECTORS["properties"]
        mask = parse_sql92(case["expr"]).mask(1, lambda name: pa.array([properties.get(name)], pa.string()))
        assert mask.to_pylist() == [case["delivered"]]


@pytest.mark.parametrize("case", CORNERS, ids=lambda case: case["expr"])
def test_corners(case: dict[str, str]) -> None:
    assert outcome(case["expr"], VECTORS["properties"]) == case["result"]


def test_there_are_so_many_vectors() -> None:
    assert (len(VECTORS["cases"]), len(CORNERS)) == (223, 53)


# ---- against the oracle ------------------------------------------------------------------------------------

NAMES = ("a", "b", "TAGS", "$_1")
TEXTS = (
    "3", "3.5", "abc", "true", "TRUE", "9999999999", "-5", " 3", "3 ", "it's", "1e3", "NaN", "-NaN",
    "Infinity", "-Infinity", "inf", "nan", "+3", "+-3", "-0", "-0.0", "0", "0.0", "1e400", "-1e400",
    "1e-400", "2147483647", "2147483648", "-2147483648", "-2147483649", "9223372036854775807",
    "9223372036854775808", "-9223372036854775808", "-9223372036854775809",
    "0000000000000000000000000000012", "3d", "3f", "3dd", "3L", "0x10", "0x1p4", " 0X1.8p-2D\t",
    "0x1p99999", "-0x1p99999", "0x.p1", "1_000", ".5", "5.", ".", "e5", "1e", "\uff11\uff12", "-\u0663",
    "\U0001d7cf", "\u00b2", "\u00a03", "\x003", "\x1f3", "tRuE", "\uff54rue", "\u4e2d\u6587", "",
    "\U0001f600",
)  # fmt: skip
NUMBERS = (
    "0", "3", "3L", "2147483647", "2147483648", "9223372036854775807", "9223372036854775808", "3.0", "3.5",
    ".5", "5.", "1e3", "0.0", "1E+400",
)  # fmt: skip

values = st.sampled_from(TEXTS) | st.text(max_size=4)
properties = st.tuples(st.just("property"), st.sampled_from(NAMES))
numbers = st.tuples(st.just("number"), st.sampled_from(NUMBERS))
strings = st.tuples(st.just("string"), values)
booleans = st.tuples(st.just("boolean"), st.booleans())
leaves = properties | strings | numbers | booleans | st.just(("null",))
signed = properties | numbers | st.tuples(st.sampled_from("+-"), properties | numbers)
lists = st.lists(values, min_size=1, max_size=6).map(tuple)
SEARCHES = ("contains", "startswith", "endswith")
ORDERINGS = (">", ">=", "<", "<=")
tests = (
    st.tuples(st.sampled_from(("=", "<>")), properties, signed | strings | booleans)
    | st.tuples(st.sampled_from(("=", "<>")), signed | strings, properties | numbers)
    | st.tuples(st.sampled_from(ORDERINGS), signed, signed)
    | st.tuples(st.just("between"), signed, signed, signed, st.booleans())
    | st.tuples(st.just("in"), properties, lists, st.booleans())
    | st.tuples(st.sampled_from(SEARCHES), properties | strings, values, st.booleans())
    | st.tuples(st.just("is null"), leaves, st.booleans())
)


def combined(conditions: st.SearchStrategy[oracle.Tree]) -> st.SearchStrategy[oracle.Tree]:
    """Conditions that RocketMQ takes, for the most part."""
    return (
        st.tuples(st.sampled_from(("and", "or")), conditions, conditions)
        | st.tuples(st.sampled_from(("=", "<>")), conditions, conditions | properties)
        | st.tuples(st.just("not"), conditions)
        | st.tuples(st.just("is null"), conditions | conditions.map(lambda tree: ("-", tree)), st.booleans())
    )


def anything(trees: st.SearchStrategy[oracle.Tree]) -> st.SearchStrategy[oracle.Tree]:
    """What the grammar takes; the compiler often does not."""
    return (
        st.tuples(st.sampled_from(("and", "or", "=", "<>", *ORDERINGS)), trees, trees)
        | st.tuples(st.sampled_from(("-", "+", "not")), trees)
        | st.tuples(st.just("is null"), trees, st.booleans())
        | st.tuples(st.just("between"), trees, trees, trees, st.booleans())
        | st.tuples(st.just("in"), trees, lists, st.booleans())
        | st.tuples(st.sampled_from(SEARCHES), trees, values, st.booleans())
    )


trees = st.recursive(tests, combined, max_leaves=6) | st.recursive(leaves | tests, anything, max_leaves=5)
messages = st.lists(st.dictionaries(st.sampled_from(NAMES), values), max_size=8)


def oracles_outcome(tree: oracle.Tree, properties: dict[str, str]) -> str:
    try:
        return str(oracle.evaluate(tree, properties)).lower().replace("none", "null")
    except oracle.EvaluationError:
        return "eval_error"


@pytest.mark.process
@given(trees, messages, st.randoms(use_true_random=False))
@settings(max_examples=examples(6))
def test_columns_give_what_the_oracle_gives_one_by_one(
    tree: oracle.Tree, rows: list[dict[str, str]], random: Random
) -> None:
    expression = oracle.text(tree, random)
    try:
        oracle.check(tree)
    except oracle.CompileError:
        with pytest.raises(OptionError):
            parse_sql92(expression)
        return
    parsed = parse_sql92(expression)
    columns = {name: pa.array([row.get(name) for row in rows], pa.string()) for name in parsed.names}
    found = [OUTCOMES[code] for code in parsed.outcomes(len(rows), columns.__getitem__)]
    assert found == [oracles_outcome(tree, row) for row in rows]


@pytest.mark.parametrize(
    "number", [number for number in NUMBERS if number not in ("9223372036854775808", "0.0", "1E+400")]
)
@pytest.mark.parametrize("sign", ["", "-"])
def test_every_text_beside_every_number(number: str, sign: str) -> None:
    literal: oracle.Tree = ("number", number)
    literal = ("-", literal) if sign else literal
    column = pa.array([*TEXTS, None], pa.string())
    rows = [{"a": text} for text in TEXTS] + [{}]
    for symbol in ("=", "<>", *ORDERINGS):
        for tree in ((symbol, ("property", "a"), literal), (symbol, literal, ("property", "a"))):
            found = parse_sql92(oracle.text(tree)).outcomes(len(rows), lambda name: column)
            assert [OUTCOMES[code] for code in found] == [oracles_outcome(tree, row) for row in rows], (
                oracle.text(tree)
            )


@given(trees, st.randoms(use_true_random=False))
def test_every_spelling_compiles_to_the_same_steps(tree: oracle.Tree, random: Random) -> None:
    try:
        oracle.check(tree)
    except oracle.CompileError:
        return
    parsed = parse_sql92(oracle.text(tree, random))
    assert parsed.parsed == parse_sql92(oracle.text(tree)).parsed
    assert pickle.loads(pickle.dumps(parsed)) == parsed
    assert parsed.parsed.ignored == ""


# ---- over messages -----------------------------------------------------------------------------------------


def test_errors_are_counted_and_deliver_nothing() -> None:
    texts = pa.array(["4", "x", "2", None, "3.5"], pa.string())
    counting = CountingFilter(parse_sql92("a > 3"))
    assert counting.mask(5, lambda name: texts).to_pylist() == [True, False, False, False, False]
    assert counting.mask(1, lambda name: texts[1:2]).to_pylist() == [False]
    assert counting.errors == 3


def test_only_named_properties_are_fetched_and_each_once() -> None:
    fetched: list[str] = []

    def values_of(name: str) -> pa.StringArray:
        fetched.append(name)
        return pa.array(["1"], pa.string())

    parsed = parse_sql92("b = 1 AND a > 0 OR b < 1.5 AND a IN ('1') AND 'c' = 'c'")
    assert parsed.names == ("b", "a")
    assert parsed.mask(1, values_of).to_pylist() == [True]
    assert fetched == ["b", "a"]


# ---- mistakes ----------------------------------------------------------------------------------------------

_TOKEN = "a word, a number, a string or an operator"


def test_what_rocketmq_ignores_is_told(caplog: pytest.LogCaptureFixture) -> None:
    assert parse_sql92("told LIKE 'a%'").names == ("told",)
    assert [record.getMessage() for record in caplog.records] == [
        "subExpression: RocketMQ evaluates 'told' and ignores the text after it, \"LIKE 'a%'\""
    ]


@pytest.mark.parametrize("operator", ["=", "<>"])
def test_a_word_that_is_probably_a_string(operator: str, caplog: pytest.LogCaptureFixture) -> None:
    """A consumer may compare two properties; a person who types a condition has forgotten the quotes."""
    expression = f"price > 3 AND region {operator} north"
    about = (
        f"region {operator} north compares two message properties; for a text write region {operator} 'north'"
    )
    assert parse_sql92(expression).names == ("price", "region", "north")
    assert [record.getMessage() for record in caplog.records] == [f"subExpression: {about}"]
    with pytest.raises(OptionError) as caught:
        parse_condition(expression, "--where")
    assert str(caught.value) == f"--where: {about}, or region {operator} (north) for the property"
    caplog.clear()
    for meant in (f"region {operator} (north)", f"region {operator} 'north' AND a < b AND paid"):
        assert parse_condition(meant, "--where").parsed == parse_sql92(meant).parsed
    assert not caplog.records


_DEEP = "expected parentheses, signs and NOT nested at most 64 deep, found"
HOSTILE = {
    "parentheses": ("(" * 10_000 + "a = 1" + ")" * 10_000, f"{_DEEP} ( at character 65: "),
    "NOT": ("NOT " * 10_000 + "a", f"{_DEEP} NOT at character 257: "),
    "signs": ("- " * 10_000 + "1 > 0", f"{_DEEP} - at character 129: "),
    "a megabyte": ("a = 1 OR " * (1 << 17), "expected at most 262144 characters of SQL92, found 1179648"),
    "comments without an end": ("/* " * 80_000, f"expected {_TOKEN}, found / at character 1: "),
    "quotes": ("'" * 262_143, f"expected {_TOKEN}, found ' at character 262143: "),
    "digits": (
        "a = " + "9" * 200_000,
        "expected a whole number up to 9223372036854775807, found 999999999999999999999999… at character 5: ",
    ),
    "half a character": ("a = '\ud800'", "expected text, found half of a surrogate pair at character 6"),
}


@pytest.mark.parametrize(("expression", "message"), HOSTILE.values(), ids=HOSTILE)
def test_hostile_expressions(expression: str, message: str) -> None:
    with pytest.raises(OptionError) as caught:
        parse_sql92(expression)
    assert message in str(caught.value)
    assert len(str(caught.value)) < 400


@pytest.mark.process
@pytest.mark.parametrize("link", [" IS NULL", " = TRUE", " OR a = 1", " AND NOT (a = 2)", " CONTAINS 'x'"])
def test_long_chains_do_not_recurse(link: str) -> None:
    parsed = parse_sql92("a = 1" + link * 5000)
    assert pickle.loads(pickle.dumps(parsed)) == parsed
    found = parsed.outcomes(2, lambda name: pa.array(["1", None], pa.string())).tolist()
    assert found in ([1, 1], [1, 2], [0, 0])


@pytest.mark.parametrize(
    ("text", "whole", "real"),
    [
        ("9" * 32_000, "eval_error", "false"),
        ("-" * 32_000, "eval_error", "eval_error"),
        ("0" * 32_000, "true", "false"),
        ("0x" + "f" * 32_000 + "p9", "eval_error", "false"),
        ("1" + "e1" * 16_000, "eval_error", "eval_error"),
        ("\0" * 32_000, "eval_error", "eval_error"),
        ("\uff11" * 10_000, "eval_error", "eval_error"),
    ],
    ids=lambda text: text[:6],
)
def test_hostile_values_are_no_numbers(text: str, whole: str, real: str) -> None:
    assert (outcome("a = 0", {"a": text}), outcome("a = 1.5", {"a": text})) == (whole, real)
