"""DataFrames of Spark in a notebook's tables and cards: no more rows are fetched than are shown."""

from __future__ import annotations

from rmq_spark import show
from tests.support.fixtures import Golden, SparkSession
from tests.support.html_check import read_page


def test_a_dataframe_as_a_table_and_its_rows_as_messages(spark: SparkSession, golden: Golden) -> None:
    frame = spark.read.format("rmqlog").option("subscribe", "Audit").load(str(golden("basic-5.5.0")))
    page = read_page(show.table(frame, limit=3).source)
    assert "the first 3 rows of more" in page.text
    assert page.rows == 4
    row = frame.first()
    assert row is not None
    assert read_page(show.message(row).source).text.startswith(f"Audit-0 at {row['queueOffset']}message")
