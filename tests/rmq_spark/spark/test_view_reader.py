"""The reader of a view, without Spark: its rows are those of `MessageStore.view`, also in a partition that
Spark keeps for the life of a temporary SQL view. What is refused.
"""

from __future__ import annotations

import pickle
import time
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import IntegerType, LongType, StringType, StructType

from rmq_spark.options.read_options import parse_read_options
from rmq_spark.spark.data_source import RmqLogDataSource
from rmq_spark.spark.view_reader import RmqLogViewReader, view_from_options, view_from_schema
from store_format import MessageStore
from store_format.errors import OptionError
from store_format.views.registry import VIEWS
from tests.support.fixtures import Golden
from tests.support.staged import append, make_store, numbered


def without_ages(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Times as Spark returns them in a session in UTC; ages depend on the moment."""
    ages = {"lagMs", "ageMs", "dueInMs", "expiresInMs", "state"}
    return [
        {
            name: value.replace(tzinfo=None) if hasattr(value, "tzinfo") else value
            for name, value in row.items()
            if name not in ages
        }
        for row in rows
    ]


def read(root: Path, view: str, schema: StructType | None = None, **options: str) -> tuple[pa.Table, int]:
    """All rows, and how many partitions had them."""
    source = RmqLogDataSource({"path": str(root), "view": view, **options})
    declared = source.schema() if schema is None else schema
    reader = pickle.loads(pickle.dumps(source.reader(declared)))
    partitions = reader.partitions()
    batches = [batch for partition in partitions for batch in reader.read(partition)]
    return pa.Table.from_batches(batches, to_arrow_schema(declared, timezone="UTC")), len(partitions)


@pytest.mark.parametrize("view", [view.name for view in VIEWS])
def test_every_view_is_that_of_the_store(golden: Golden, view: str) -> None:
    """In batches of the very schema that Spark derives, which it compares."""
    root = golden("delay-tx-5.5.0")
    found, _ = read(root, view)
    expected = MessageStore.open(str(root)).view(view)
    assert found.schema == expected.schema
    assert without_ages(found.to_pylist()) == without_ages(expected.to_pylist())


@pytest.mark.parametrize(
    ("name", "options", "messages"),
    [
        ("compaction-5.5.0", {}, 298),
        ("compaction-5.5.0", {"compacted": "false"}, 600),
        ("tiered-5.5.0", {}, 144),
        ("tiered-5.5.0", {"tieredStoreFilePath": "tiered"}, 510),
    ],
)
def test_a_view_shows_what_the_options_read(
    golden: Golden, name: str, options: dict[str, str], messages: int
) -> None:
    root = golden(name)
    given = {key: str(root / value) if value == "tiered" else value for key, value in options.items()}
    found, _ = read(root, "queues", None, **given)
    assert sum(found["messages"].to_pylist()) == messages


def test_two_stores_are_compared_in_one_partition(golden: Golden, tmp_path: Path) -> None:
    messages = numbered("T", 0, 20) + numbered("U", 0, 5)
    a, b = (make_store(tmp_path / name) for name in "ab")
    append(a, messages)
    append(b, [*messages[:3], replace(messages[3], flag=1), *messages[5:], *numbered("%RETRY%g", 0, 1)])
    found, partitions = read(a, "diff", otherPath=str(b))
    assert partitions == 1
    expected = MessageStore.open(str(a)).diff(MessageStore.open(str(b))).to_table()
    assert found.schema == expected.schema
    assert without_ages(found.to_pylist()) == without_ages(expected.to_pylist())
    assert found["difference"].to_pylist() == ["changed", "onlyInA"]
    columns, _ = read(a, "DIFF", otherPath=str(b), columns="addressB,difference", subscribe="T")
    assert columns.to_pylist()[0] == {"addressB": "T/3@0", "difference": "changed"}
    assert read(a, "diff", otherPath=str(b), subscribePattern="U")[0].num_rows == 0
    system, _ = read(a, "diff", otherPath=str(b), includeSystemTopics="true")
    assert system["difference"].to_pylist() == ["changed", "onlyInA", "onlyInB"]
    cluster = golden("cluster-5.5.0")
    assert read(cluster, "diff", otherPath=str(cluster))[0].num_rows == 0
    assert read(cluster, "diff", otherPath=str(cluster / "broker-a"))[0].num_rows > 0


def test_a_cluster_is_one_table(golden: Golden) -> None:
    found, partitions = read(golden("cluster-5.5.0"), "queues")
    assert partitions == 2
    assert set(found["brokerName"].to_pylist()) == {"broker-a", "broker-b"}


def test_options_of_a_view(golden: Golden, tmp_path: Path) -> None:
    named, _ = read(golden("basic-5.5.0"), "topics", brokerName="mine")
    assert set(named["brokerName"].to_pylist()) == {"mine"}
    conf = tmp_path / "broker.conf"
    conf.write_text("fileReservedTime=1\n")
    root = golden("cleaned-5.5.0")
    usual, early = (
        set(found["expiresTimestamp"].to_pylist()) - {None}
        for found, _ in (read(root, "retention"), read(root, "retention", brokerConf=str(conf)))
    )
    assert {time - timedelta(hours=71) for time in usual} == early != set()


def test_columns_of_a_view(golden: Golden) -> None:
    root = golden("basic-5.5.0")
    assert read(root, "lag", columns="lagmessages,group")[0].schema.names == ["lagMessages", "group"]
    schema = StructType().add("LAGBYTES", LongType()).add("topic", StringType())
    declared, _ = read(root, "lag", schema)
    assert declared.schema.names == ["LAGBYTES", "topic"]
    assert declared["LAGBYTES"] == MessageStore.open(str(root)).view("lag")["lagBytes"]


def test_ages_count_to_the_moment_of_the_query(golden: Golden) -> None:
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
        ({"view": "topics", "startingOffsets": "earliest"}, "startingOffsets has no effect with view=topics"),
        ({"view": "topics", "key": "k"}, "key has no effect with view=topics"),
        ({"view": "topics", "otherPath": "/data/b"}, "otherPath has no effect with view=topics"),
        ({"otherPath": "/data/b"}, "otherPath has no effect in a read of messages; set view=diff"),
        ({"view": "diff"}, "view=diff compares two stores; name the other one with the option otherPath"),
        ({"view": "diff", "otherPath": "/data/b", "key": "k"}, "key has no effect with view=diff"),
        ({"view": "lag", "columns": "lagMessage"},
         "the view has no column 'lagMessage'; did you mean lagMessages?"),
        ({"view": "lag", "columns": "group,Group"}, "expected each column once, found 'group'"),
    ],
)  # fmt: skip
def test_what_a_view_does_not_take(options: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        view_from_options(parse_read_options({"path": "/data/store", **options}))


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        (StructType().add("lagMessages", IntegerType()),
         "expected lagMessages bigint, found lagMessages int"),
        (StructType().add("lagMessages", LongType(), False), "expected lagMessages to allow null"),
        (StructType().add("lag", LongType()), "the view has no column 'lag'"),
    ],
)  # fmt: skip
def test_a_schema_that_does_not_fit_the_view(schema: StructType, message: str) -> None:
    options = parse_read_options({"path": "/data/store", "view": "lag"})
    with pytest.raises(OptionError, match=message):
        view_from_schema(schema, options)
