"""SQL over stores: views and tables keep their options, a statement overrides them, and nothing is ever
written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from chispa import assert_df_equality
from pyspark.errors import PySparkException

from store_format import MessageStore
from tests.support.fixtures import Golden, SparkSession, Unchanged
from tests.support.reads import PLACE, copy_of, told
from tests.support.spark.frames import read
from tests.support.writes import SMALL, numbered_rows, write

STORE = "basic-5.5.0"
COLUMN_LIST = (
    "CREATE TABLE t (topic STRING, queueId INT, queueOffset BIGINT) USING rmqlog OPTIONS (path '{}')"
)


@pytest.fixture
def sql(spark: SparkSession) -> Iterator[Callable[[str], list[tuple[object, ...]]]]:
    """Runs a statement; the table `t` and the view `v` are gone after the test."""
    yield lambda statement: [tuple(row) for row in spark.sql(statement).collect()]
    spark.sql("DROP TABLE IF EXISTS t")
    spark.catalog.dropTempView("v")


Sql = Callable[[str], list[tuple[object, ...]]]

# ---- views -------------------------------------------------------------------------------------------------


def test_a_view_keeps_its_options(sql: Sql, golden: Golden) -> None:
    sql(
        f"CREATE TEMPORARY VIEW v USING rmqlog OPTIONS (path '{golden(STORE)}', subscribe 'Orders', "
        f"subExpression 'BB || Aa')"
    )
    rows = told(STORE, lambda row: row["topic"] == "Orders" and row["properties"].get("TAGS") in ("Aa", "BB"))
    counts = {tag: sum(row["properties"]["TAGS"] == tag for row in rows) for tag in ("Aa", "BB")}
    assert sql("SELECT tags, count(*) FROM v GROUP BY tags ORDER BY tags") == sorted(counts.items())


def test_a_view_of_chosen_columns(sql: Sql, golden: Golden) -> None:
    sql(
        "CREATE TEMPORARY VIEW v (queueOffset BIGINT, Region STRING) USING rmqlog "
        f"OPTIONS (path '{golden(STORE)}', subscribe 'Audit', propertyColumns 'Region')"
    )
    # property names have their case
    assert sql("SELECT min(queueOffset), max(queueOffset), count(Region) FROM v") == [(0, 350, 0)]


def test_a_view_shows_what_was_there_at_its_first_query_and_a_table_what_is_there(
    sql: Sql, tmp_path: Path
) -> None:
    root = tmp_path / "store"
    write(root, numbered_rows(0, 40), key=None, **SMALL)
    sql(f"CREATE TEMPORARY VIEW v USING rmqlog OPTIONS (path '{root}', subscribe 'T')")
    sql(f"CREATE TABLE t USING rmqlog OPTIONS (path '{root}', subscribe 'T')")
    count, tables = "SELECT count(*) FROM v", "SELECT count(*) FROM t"
    assert (sql(count), sql(tables)) == ([(40,)], [(40,)])
    write(root, numbered_rows(40, 50))
    sql("REFRESH TABLE v")
    assert (sql(count), sql(tables)) == ([(40,)], [(50,)])
    sql(f"CREATE OR REPLACE TEMPORARY VIEW v USING rmqlog OPTIONS (path '{root}', subscribe 'T')")
    assert sql(count) == [(50,)]
    sql("CREATE OR REPLACE TEMPORARY VIEW v AS SELECT * FROM t WHERE queueId >= 0")
    assert sql(count) == [(50,)]
    write(root, numbered_rows(50, 55))
    assert sql(count) == [(55,)]


# ---- tables ------------------------------------------------------------------------------------------------


def test_a_table_keeps_its_options(spark: SparkSession, sql: Sql, golden: Golden) -> None:
    options = f"path '{golden(STORE)}', subscribe 'Orders', propertyColumns 'region', columns '{PLACE},body'"
    sql(f"CREATE TABLE t USING rmqlog OPTIONS ({options})")
    table = spark.table("t")
    assert table.columns == ["topic", "queueId", "queueOffset", "body", "region"]
    frame = read(spark, golden(STORE), subscribe="Orders", propertyColumns="region", columns=f"{PLACE},body")
    assert_df_equality(table, frame, ignore_row_order=True, ignore_metadata=True)
    assert table.count() == len(told(STORE, lambda row: row["topic"] == "Orders"))


def test_a_table_at_a_location_is_dropped_without_its_store(sql: Sql, golden: Golden, tmp_path: Path) -> None:
    root = copy_of(golden, "basic-4.9.7", tmp_path)
    sql(f"CREATE TABLE t USING rmqlog LOCATION '{root}' TBLPROPERTIES ('team' = 'orders')")
    assert sql("SELECT count(*) FROM t WHERE topic = 'Audit'") == [(88,)]
    sql("DROP TABLE t")
    assert MessageStore.open(str(root)).queue("Audit", 0).max_offset == 88


def test_a_statement_overrides_what_the_table_has(sql: Sql, golden: Golden) -> None:
    sql(
        f"CREATE TABLE t USING rmqlog OPTIONS (path '{golden(STORE)}', subscribe 'Orders', startingOffsets "
        f'\'{{"Orders":{{"0":200}}}}\')'
    )
    whole = len(told(STORE, lambda row: row["topic"] == "Orders"))
    count = "SELECT count(*) FROM t"
    assert sql(count) == [(whole - 200,)]
    assert sql(f"{count} WITH (startingOffsets = 'earliest')") == [(whole,)]
    assert sql(f'{count} WITH (endingOffsets = \'{{"Orders":{{"0":201,"1":0,"2":0,"3":0}}}}\')') == [(1,)]
    assert sql(f"{count} WITH (subscribePattern = 'Audit|Metrics', startingOffsets = 'earliest')") == [
        (351 + 328,)
    ]
    assert sql(f"{count} WITH (path = '{golden('basic-4.9.7')}')") == [(604,)]  # another read
    assert sql(count) == [(whole - 200,)]


# ---- refused -----------------------------------------------------------------------------------------------


def refused(sql: Sql, statement: str) -> str:
    with pytest.raises(PySparkException) as caught:
        sql(statement)
    return str(caught.value)


def test_a_table_with_a_column_list_says_why_not(sql: Sql, golden: Golden) -> None:
    sql(COLUMN_LIST.format(golden(STORE)))  # Spark asks nobody here
    message = refused(sql, "SELECT * FROM t")
    assert (
        "Create a table without a column list, as in CREATE TABLE t USING rmqlog OPTIONS (path '/data/store')"
        in message
    )
    assert "with a column list, Spark does not keep the options" in message


def test_a_table_with_a_misspelt_option(sql: Sql, golden: Golden) -> None:
    message = refused(
        sql, f"CREATE TABLE t USING rmqlog OPTIONS (path '{golden(STORE)}', subscribes 'Orders')"
    )
    assert "unknown option 'subscribes'; did you mean subscribe?" in message


def test_nothing_is_written(sql: Sql, golden: Golden, tmp_path: Path, unchanged: Unchanged) -> None:
    """Spark passes a table's options to reads only: whatever is asked of it, its store stays as it is."""
    root = copy_of(golden, "basic-4.9.7", tmp_path)
    with unchanged(root):
        sql(f"CREATE TABLE t USING rmqlog OPTIONS (path '{root}', subscribe 'Audit', columns '{PLACE}')")
        for statement in (
            "INSERT INTO t SELECT * FROM t",
            "INSERT INTO t VALUES ('x', 0, 0)",
            f"CREATE TABLE ctas USING rmqlog OPTIONS (path '{root}') AS SELECT 'T' AS topic, 'x' AS body",
        ):
            assert "INSERT INTO t WITH (path = '/data/store')" in refused(sql, statement)
        for statement in (
            "INSERT OVERWRITE t SELECT * FROM t",
            "DELETE FROM t WHERE queueId = 0",
            "TRUNCATE TABLE t",
        ):
            refused(sql, statement)
        assert sql("SELECT count(*) FROM t") == [(88,)]
        assert sql("SHOW TABLES LIKE 'ctas'") == []


def test_a_statement_that_gives_the_path_writes_into_a_tables_store(
    sql: Sql, golden: Golden, tmp_path: Path
) -> None:
    root = copy_of(golden, "basic-4.9.7", tmp_path)
    sql(f"CREATE TABLE t USING rmqlog OPTIONS (path '{root}', subscribe 'Fresh')")
    sql(f"INSERT INTO t WITH (path = '{root}') (topic, body) VALUES ('Fresh', CAST('one' AS BINARY))")
    sql(f"CREATE TEMPORARY VIEW v USING rmqlog OPTIONS (path '{root}')")
    sql("INSERT INTO v (topic, body) VALUES ('Fresh', CAST('two' AS BINARY))")
    assert sorted(sql("SELECT CAST(body AS STRING) FROM v WHERE topic = 'Fresh'")) == [("one",), ("two",)]
