"""The reader of a view: Spark keeps its partitions for the life of a temporary SQL view."""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa

from rmq_spark.options.read_options import parse_read_options
from rmq_spark.spark.view_reader import RmqLogViewReader
from rmq_spark.spark.view_schema import view_from_options


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
