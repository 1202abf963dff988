"""Reads and streams with SQL92 conditions. The oracle says which of the broker's rows match."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.rmq_spark.stream.test_positions import Stream
from tests.support import goldens, oracle_sql92
from tests.support.fixtures import Golden
from tests.support.oracle_sql92 import Tree
from tests.support.reads import PLACE, Row, read, told, told_places

STORE = "basic-5.5.0"


def compare(symbol: str, name: str, literal: str) -> Tree:
    kind = "string" if literal.startswith("'") else "number"
    return symbol, ("property", name), (kind, literal.strip("'"))


REGION = ("in", ("property", "region"), ("eu-1", "eu-3"), False)
A = ("between", ("property", "a"), ("number", "10"), ("number", "600"), False)
CONDITIONS: dict[str, Tree] = {
    "a text": compare("=", "TAGS", "'Aa'"),
    "one of two texts": REGION,
    "none of two texts": (*REGION[:3], True),
    "numbers": A,
    "numbers that are sometimes no numbers": compare("<", "blank", "3"),  # ' x ' is an error, '0' a match
    "as doubles": compare(">=", "a", "220.0"),
    "absent": ("and", ("is null", ("property", "TAGS"), False), ("is null", ("property", "KEYS"), True)),
    "within": ("contains", ("property", "json"), '"n":1', False),
    "at the end": ("endswith", ("property", "BUYER_ID"), "2", False),
    "boolean": ("=", ("property", "WAIT"), ("boolean", False)),
    "all together": (
        "or",
        ("and", REGION, ("not", A)),
        ("startswith", ("property", "BUYER_ID"), "buyer1", False),
    ),
    "nothing": compare("=", "absent", "'x'"),
    "everything": ("not", ("=", ("number", "1"), ("number", "2"))),
}


def matches(condition: Tree) -> Callable[[Row], bool]:
    """Whether a broker delivers the row."""

    def keep(row: Row) -> bool:
        try:
            return oracle_sql92.evaluate(condition, row["properties"]) is True
        except oracle_sql92.EvaluationError:
            return False

    return keep


def where(condition: Tree) -> dict[str, Any]:  # Any: options, for a read as for a stream
    return {
        "expressionType": "SQL92",
        "subExpression": oracle_sql92.text(condition),
        "includeSystemTopics": True,
    }


@pytest.mark.parametrize("name", CONDITIONS)
def test_conditions_over_properties(golden: Golden, name: str) -> None:
    condition = CONDITIONS[name]
    rows = told(STORE, matches(condition))
    total = len(goldens.expected_rows(STORE))
    assert (0 < len(rows) < total) == (name not in ("nothing", "everything"))
    assert read(golden(STORE), columns=PLACE, **where(condition)).places() == told_places(rows)


@pytest.mark.parametrize("store", ["batchcq-5.5.0", "rocksdb-5.5.0", "edge-5.5.0", "delay-tx-5.5.0"])
def test_in_batches_without_consume_queues_and_of_every_topic(golden: Golden, store: str) -> None:
    condition = ("or", REGION, compare("=", "TAGS", "'T1'"))
    rows = told(store, matches(condition))
    assert 10 < len(rows) < len(goldens.expected_rows(store))
    assert read(golden(store), columns=PLACE, **where(condition)).places() == told_places(rows)


def test_every_column_of_what_matches(golden: Golden) -> None:
    """Properties, bodies and the property asked for as a column are those of the rows that stay."""
    frame = read(
        golden(STORE),
        subscribe="Orders",
        propertyColumns="region",
        **where(REGION) | {"includeSystemTopics": False},
    )
    rows = told(STORE, lambda row: row["topic"] == "Orders" and matches(REGION)(row))
    found = {(row["queueId"], row["queueOffset"]): row for row in frame.rows()}
    assert len(found) == len(rows) > 100
    for row in rows:
        mine = found[row["queueId"], row["queueOffset"]]
        assert dict(mine["properties"]) == row["properties"]
        assert mine["region"] == row["properties"]["region"]
        assert mine["body"] == base64.b64decode(row["body"])


def test_in_one_pass_over_the_files(golden: Golden) -> None:
    frame = read(golden(STORE), columns=PLACE, splitBy="commitlog", **where(REGION))
    assert frame.places() == told_places(told(STORE, matches(REGION)))


def test_the_ends_of_a_read_are_places_in_queues_not_matches(golden: Golden) -> None:
    ends = {
        "startingOffsets": json.dumps({"Orders": {"*": 100}}),
        "endingOffsets": json.dumps({"Orders": {"*": 200}}),
    }
    frame = read(
        golden(STORE),
        columns=PLACE,
        subscribe="Orders",
        **ends,
        **where(REGION) | {"includeSystemTopics": False},
    )
    rows = told(
        STORE,
        lambda row: row["topic"] == "Orders" and 100 <= row["queueOffset"] < 200 and matches(REGION)(row),
    )
    assert frame.places() == told_places(rows) != []


def test_a_stream_goes_on_behind_what_did_not_match(golden: Golden) -> None:
    """Offsets pass over every message: with another condition a restart finds nothing left."""
    stream = Stream(golden(STORE), maxOffsetsPerTrigger=900, **where(REGION))
    found = [place for rows in iter(stream.step, None) for place in rows]
    assert sorted(found) == told_places(told(STORE, matches(REGION)))
    assert stream.start()["Orders"]["broker-a"] == {
        str(queue): 1 + max(row["queueOffset"] for row in rows) for queue, rows in by_queue("Orders")
    }
    stream.restart(**where(CONDITIONS["everything"]))
    assert stream.step() is None


def by_queue(topic: str) -> list[tuple[int, list[Row]]]:
    rows = told(STORE, lambda row: row["topic"] == topic)
    return [
        (queue, [row for row in rows if row["queueId"] == queue])
        for queue in sorted({row["queueId"] for row in rows})
    ]
