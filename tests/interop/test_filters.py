"""SQL92 conditions decided by RocketMQ: its filter module on random cases, and a broker that filters what a
client pulls.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings

from rmq_spark.consume.sql92 import parse_sql92
from rmq_spark.options.read_options import parse_read_options
from rmq_spark.plan.batch import plan
from rmq_spark.plan.output_fields import fields_from_options
from rmq_spark.plan.scan import Scan
from store_format.errors import OptionError
from tests.interop.harness import Client, RocketMQ
from tests.interop.programs import Program
from tests.rmq_spark.consume.sql92.test_sql92 import CORNERS, VECTORS, messages, outcome, trees
from tests.support import goldens
from tests.support import oracle_sql92 as oracle
from tests.support.fixtures import Golden, examples
from tests.support.rows import table_rows

CONDITIONS = [
    "region IN ('eu-1', 'eu-3')",
    "region NOT IN ('eu-1', 'eu-3') AND TAGS <> 'Aa'",
    "a BETWEEN 10 AND 600 OR BUYER_ID = 'buyer2'",
    "blank < 3",  # of the values "0" and " x " one is a number
    "blank = 0.5 OR region IS NULL",
    "TAGS IS NULL AND KEYS IS NOT NULL",
    "NOT (region = 'eu-0') AND a >= 100.5",
    "WAIT = TRUE AND 3 > 2",
]
NONE_MATCHES = [
    "UNIQ_KEY > 1 OR region = 'eu-0'",  # an error for every message
    "TAGS LIKE 'Tag%'",
]
# not with 4.9
NEW_CONDITIONS = ["json CONTAINS '\"n\":1' AND NOT (region STARTSWITH 'eu')", "KEYS NOT ENDSWITH 'b1'"]


@pytest.fixture(scope="module")
def module(rocketmq: Callable[[str], RocketMQ]) -> Iterator[Program]:
    """RocketMQ's filter module, a condition and properties a line."""
    program = rocketmq("5.5.0").program("Sql92", [])
    yield program
    program.close()


def decided(module: Program, expression: str, properties: dict[str, str]) -> str:
    module.say(expression, *(word for pair in properties.items() for word in pair))
    return str(module.line(60.0)["result"])


def test_vectors(module: Program) -> None:
    """What was recorded once is what it says today."""
    for case in [*VECTORS["cases"], *CORNERS]:
        assert decided(module, case["expr"], VECTORS["properties"]) == case["result"], case


@given(tree=trees, rows=messages, random=...)
@settings(max_examples=examples(8), suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_random_conditions(
    module: Program, tree: oracle.Tree, rows: list[dict[str, str]], random: Random
) -> None:
    expression = oracle.text(tree, random)
    for row in rows[:2]:
        assert decided(module, expression, row) == outcome(expression, row)


WORDS = (
    *(
        "a",
        "b",
        "$_1",
        "3",
        "3.5",
        "0",
        "03",
        ".5",
        "1e3",
        "9223372036854775808",
        "'x'",
        "''",
        "'it''s'",
        "'",
    ),
    *(
        '"x"',
        "TRUE",
        "NULL",
        "and",
        "OR",
        "not",
        "Between",
        "IN",
        "IS",
        "CONTAINS",
        "STARTSWITH",
        "LIKE",
        "=",
    ),
    *("<>", ">", ">=", "(", ")", ",", "+", "-", "!=", "--", "-- x\n", "/* x */", "/*", "*", ".", "\f"),
    "\u00a0",
)


def test_any_words_at_all(module: Program) -> None:
    """Most of it is refused, and what is not may end in the middle."""
    random = Random(92)
    row = {"a": "3", "b": "x"}
    for _ in range(4000):
        expression = "".join(
            random.choice(WORDS) + random.choice((" ", " ", "")) for _ in range(random.randrange(1, 9))
        )
        assert decided(module, expression, row) == outcome(expression, row), expression


@pytest.mark.parametrize(
    ("store", "version"),
    [("basic-5.5.0", "5.5.0"), pytest.param("basic-4.9.7", "4.9.7", marks=pytest.mark.whole)],
)
def test_a_broker_delivers_what_a_read_gives(
    rocketmq: Callable[[str], RocketMQ], copy_of: Golden, store: str, version: str
) -> None:
    root = copy_of(store)
    conditions = CONDITIONS + NONE_MATCHES + (NEW_CONDITIONS if version != "4.9.7" else [])
    with rocketmq(version).broker(root, goldens.config(store) | {"enablePropertyFilter": "true"}) as broker:
        client: Client = broker.client()
        for condition in conditions:
            delivered = sorted(
                (line["queueId"], line["queueOffset"]) for line in client.matching("Orders", condition)
            )
            assert delivered == sorted(read(root, "Orders", condition)), condition
            assert bool(delivered) == (condition not in NONE_MATCHES), condition


def read(root: Path, topic: str, condition: str) -> list[tuple[int, int]]:
    """The same through a plan and a scan, of the store that the broker has open."""
    given = {
        "path": str(root),
        "subscribe": topic,
        "expressionType": "SQL92",
        "subExpression": condition,
        "columns": "queueId,queueOffset",
    }
    options = parse_read_options(given)
    scan = Scan(fields_from_options(options), options)
    return [
        (row["queueId"], row["queueOffset"])
        for split in plan(options).splits
        for row in table_rows(scan.read(split))
    ]


def test_the_module_refuses_deep_expressions_too(module: Program) -> None:
    deep = "(" * 60 + "a = 3" + ")" * 60
    assert decided(module, deep, {"a": "3"}) == outcome(deep, {"a": "3"}) == "true"
    too_deep = "(" * 100_000 + "a = 3" + ")" * 100_000
    assert decided(module, too_deep, {"a": "3"}) == "parse_error"
    with pytest.raises(OptionError):
        parse_sql92(too_deep)
