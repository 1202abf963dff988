"""A SQL table keeps its options in the metadata of its first column."""

from __future__ import annotations

import json
import os
import pickle

import pytest
from pyspark.sql.types import StringType, StructField, StructType

from rmq_spark.spark.data_source import METADATA_KEY, recall_options, remember_options
from store_format.errors import OptionError
from tests.rmq_spark.options.test_read_options import CATALOG

SCHEMA = StructType(
    [StructField("topic", StringType(), True, {"comment": "c"}), StructField("tags", StringType())]
)


def table(**options: str) -> StructType:
    return remember_options(SCHEMA, {"provider": "rmqlog", "path": "/data/store", **options})


def test_a_table_remembers_what_the_caller_gave_and_nothing_that_spark_added() -> None:
    remembered = remember_options(SCHEMA, CATALOG)
    assert json.loads(remembered.fields[0].metadata[METADATA_KEY]) == {"path": "/a", "subscribe": "t"}
    assert remembered.fields[0].metadata["comment"] == "c"
    assert SCHEMA.fields[0].metadata == {"comment": "c"}
    assert recall_options(StructType.fromJson(json.loads(remembered.json())), {}) == {
        "path": "/a",
        "subscribe": "t",
    }


def test_a_read_that_no_catalog_asks_for_leaves_the_schema_alone() -> None:
    assert remember_options(SCHEMA, {"path": "/a"}) is SCHEMA


def test_what_is_remembered_means_the_same_elsewhere_and_later() -> None:
    remembered = table(path="store", storePathCommitLog="disk1,/disk2", startingTimestamp="-2 hours")
    assert recall_options(remembered, {}) == {
        "path": os.path.abspath("store"),
        "storePathCommitLog": f"{os.path.abspath('disk1')},/disk2",
        "startingTimestamp": "-2 hours",
    }
    several = remember_options(SCHEMA, {"provider": "rmqlog", "paths": '["a","/b"]'})
    assert json.loads(recall_options(several, {})["paths"]) == [os.path.abspath("a"), "/b"]


def test_options_of_the_statement_override() -> None:
    remembered = table(subscribe="a", verifyCrc="false", startingTimestamp="5")
    assert recall_options(remembered, {"SUBSCRIBE": "b"}) == {
        "path": "/data/store",
        "subscribe": "b",
        "verifyCrc": "false",
        "startingTimestamp": "5",
    }
    # What excludes or beats a remembered option silences it.
    assert recall_options(remembered, {"subscribepattern": ".*", "startingoffsets": "earliest"}) == {
        "path": "/data/store",
        "subscribePattern": ".*",
        "verifyCrc": "false",
        "startingOffsets": "earliest",
    }


@pytest.mark.parametrize("explicit", [{"path": "/other"}, {"paths": '["/other"]'}])
def test_an_explicit_path_is_another_read(explicit: dict[str, str]) -> None:
    assert recall_options(table(subscribe="a"), explicit) == explicit


def test_a_table_made_with_a_column_list_says_why_it_cannot_be_read() -> None:
    with pytest.raises(OptionError) as caught:
        recall_options(SCHEMA, {"subscribe": "a"})
    assert str(caught.value) == (
        "path is not given; give the broker's store directory, as in load('/data/store'). Create a table "
        "without a column list, "
        "as in CREATE TABLE t USING rmqlog OPTIONS (path '/data/store'): with a column list, Spark does "
        "not keep the options"
    )
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
    with pytest.raises(OptionError, match=r"^path is not given"):
        recall_options(StructType([]), {})


@pytest.mark.parametrize("kept", ["{", "[]", '{"path":1}', 5])
def test_metadata_that_somebody_else_wrote(kept: object) -> None:
    schema = StructType([StructField("topic", StringType(), True, {METADATA_KEY: kept})])
    with pytest.raises(
        OptionError,
        match=r"in the metadata rmqlog\.options of its first column, found something else; create the table "
        r"again$",
    ):
        recall_options(schema, {})


def test_a_typo_in_the_statement_is_noticed() -> None:
    with pytest.raises(OptionError, match=r"^unknown option 'subscibe'; did you mean subscribe\?$"):
        recall_options(table(), {"subscibe": "a"})
