"""The reader of a view: Spark keeps its partitions for the life of a temporary SQL view. What is refused."""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.types import IntegerType, LongType, StructType

from rmq_spark.options.read_options import parse_read_options
from rmq_spark.spark.view_reader import RmqLogViewReader
from rmq_spark.spark.view_schema import view_from_options, view_from_schema
from store_format.errors import OptionError


def test_ages_count_to_the_moment_of_the_query(golden: Callable[[str], Path]) -> None:
    options = parse_read_options({"path": str(golden("basic-5.5.0")), "view": "lag"})
    reader = pickle.loads(pickle.dumps(RmqLogViewReader(view_from_options(options), options)))
    (partition,) = reader.partitions()

    def largest_age() -> int:
        ages = pa.Table.from_batches(list(reader.read(partition)))["lagMs"].to_pylist()
        return max(age for age in ages if age is not None)

    first = largest_age()
    time.sleep(0.02)
    assert largest_age() >= first + 20


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"view": "queue"}, "did you mean queues?"),
        (
            {"view": "topics", "startingOffsets": "earliest"},
            "startingOffsets has no effect with view=topics",
        ),
        ({"view": "topics", "key": "k"}, "key has no effect with view=topics"),
        (
            {"view": "lag", "columns": "lagMessage"},
            "the view has no column 'lagMessage'; did you mean lagMessages?",
        ),
        ({"view": "lag", "columns": "group,Group"}, "expected each column once, found 'group'"),
    ],
)
def test_what_a_view_does_not_take(options: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        view_from_options(parse_read_options({"path": "/data/store", **options}))


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        (
            StructType().add("lagMessages", IntegerType()),
            "expected lagMessages bigint, found lagMessages int",
        ),
        (StructType().add("lagMessages", LongType(), False), "expected lagMessages to allow null"),
        (StructType().add("lag", LongType()), "the view has no column 'lag'"),
    ],
)
def test_a_schema_that_does_not_fit_the_view(schema: StructType, message: str) -> None:
    options = parse_read_options({"path": "/data/store", "view": "lag"})
    with pytest.raises(OptionError, match=message):
        view_from_schema(schema, options)
