"""Reads with SQL92 conditions, through DataFrames, SQL and streams. The oracle says of each of the broker's
rows whether it matches.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support import goldens, oracle_sql92
from tests.support.oracle_sql92 import Tree
from tests.support.spark.frames import PLACE, Place, places, read, told, told_places

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

STORE = "basic-5.5.0"

Golden = Callable[[str], Path]
Row = dict[str, Any]  # a line of expected.jsonl.gz


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


def where(condition: Tree) -> dict[str, str | bool]:
    return {
        "expressionType": "SQL92",
        "subExpression": oracle_sql92.text(condition),
        "includeSystemTopics": True,
    }


@pytest.mark.parametrize("name", CONDITIONS)
def test_conditions_over_properties(spark: SparkSession, golden: Golden, name: str) -> None:
    condition = CONDITIONS[name]
    rows = told(STORE, matches(condition))
    total = len(goldens.expected_rows(STORE))
    assert (0 < len(rows) < total) == (name not in ("nothing", "everything"))
    assert places(read(spark, golden(STORE), columns=PLACE, **where(condition))) == told_places(rows)


@pytest.mark.parametrize("store", ["batchcq-5.5.0", "rocksdb-5.5.0", "edge-5.5.0", "delay-tx-5.5.0"])
def test_in_batches_without_consume_queues_and_of_every_topic(
    spark: SparkSession, golden: Golden, store: str
) -> None:
    condition = ("or", REGION, compare("=", "TAGS", "'T1'"))
    rows = told(store, matches(condition))
    assert 10 < len(rows) < len(goldens.expected_rows(store))
    assert places(read(spark, golden(store), columns=PLACE, **where(condition))) == told_places(rows)


def test_every_column_of_what_matches(spark: SparkSession, golden: Golden) -> None:
    """Properties, bodies and the property asked for as a column are those of the rows that stay."""
    frame = read(
        spark,
        golden(STORE),
        subscribe="Orders",
        propertyColumns="region",
        **where(REGION) | {"includeSystemTopics": False},
    )
    rows = told(STORE, lambda row: row["topic"] == "Orders" and matches(REGION)(row))
    found = {(row.queueId, row.queueOffset): row for row in frame.collect()}
    assert len(found) == len(rows) > 100
    for row in rows:
        mine = found[row["queueId"], row["queueOffset"]]
        assert mine.properties == row["properties"]
        assert mine.region == row["properties"]["region"]
        assert bytes(mine.body) == base64.b64decode(row["body"])


def test_in_one_pass_over_the_files(spark: SparkSession, golden: Golden) -> None:
    frame = read(spark, golden(STORE), columns=PLACE, splitBy="commitlog", **where(REGION))
    assert places(frame) == told_places(told(STORE, matches(REGION)))


def test_through_sql(spark: SparkSession, golden: Golden) -> None:
    spark.sql(
        f"CREATE OR REPLACE TEMPORARY VIEW north USING rmqlog OPTIONS (path '{golden(STORE)}', subscribe "
        f"'Orders', "
        "expressionType 'SQL92', subExpression \"region IN ('eu-1', 'eu-3') AND NOT (a IS NULL)\")"
    )
    rows = told(
        STORE, lambda row: row["topic"] == "Orders" and matches(REGION)(row) and "a" in row["properties"]
    )
    assert spark.sql("SELECT count(*), count(DISTINCT properties['a']) FROM north").collect()[0] == (
        len(rows),
        len(rows),
    )
    assert len(rows) > 10


def test_the_ends_of_a_read_are_places_in_queues_not_matches(spark: SparkSession, golden: Golden) -> None:
    ends = {
        "startingOffsets": json.dumps({"Orders": {"*": 100}}),
        "endingOffsets": json.dumps({"Orders": {"*": 200}}),
    }
    frame = read(
        spark,
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
    assert places(frame) == told_places(rows) != []


def test_a_stream_goes_on_behind_what_did_not_match(
    spark: SparkSession, golden: Golden, tmp_path: Path
) -> None:
    """Offsets pass over every message: the second run, with another condition, finds nothing left."""
    found: list[Place] = []
    ends: list[dict[str, Any]] = []

    def take(frame: DataFrame, batch: int) -> None:
        found.extend(
            (row.topic, row.queueId, row.queueOffset) for row in frame.select(*PLACE.split(",")).collect()
        )

    for condition in (REGION, CONDITIONS["everything"]):
        options = where(condition) | {
            "includeSystemTopics": "true",
            "startingOffsets": "earliest",
            "maxOffsetsPerTrigger": "900",
        }
        stream = spark.readStream.format("rmqlog").options(**options).load(str(golden(STORE)))
        writer = stream.writeStream.foreachBatch(take).option(
            "checkpointLocation", str(tmp_path / "checkpoint")
        )
        query = writer.trigger(availableNow=True).start()
        assert query.awaitTermination(120)
        ends.append(json.loads(query.lastProgress["sources"][0]["endOffset"]) if query.lastProgress else {})
    assert sorted(found) == told_places(told(STORE, matches(REGION)))
    assert ends[0]["Orders"]["broker-a"] == {
        str(queue): 1 + max(row["queueOffset"] for row in rows) for queue, rows in by_queue("Orders")
    }


def by_queue(topic: str) -> list[tuple[int, list[Row]]]:
    rows = told(STORE, lambda row: row["topic"] == topic)
    return [
        (queue, [row for row in rows if row["queueId"] == queue])
        for queue in sorted({row["queueId"] for row in rows})
    ]
