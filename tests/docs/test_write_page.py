"""docs/write.md: what it tells people to type runs as it stands."""

from __future__ import annotations

import re
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING

from store_format import MessageStore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PAGE = (Path(__file__).resolve().parent.parent.parent / "docs" / "write.md").read_text(encoding="utf-8")
WRITE, THREADS, APPEND = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
(SQL,) = re.findall(r"^```sql\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def test_the_dataframe_is_written(spark: SparkSession, tmp_path: Path) -> None:
    orders = spark.createDataFrame(
        [(n, "north", f"customer-{n % 3}") for n in range(30)], "id int, region string, customer string"
    )
    exec(WRITE.replace("/data/store", str(tmp_path / "store")), {"orders": orders})
    rows = [
        row
        for queue in MessageStore.open(str(tmp_path / "store")).queues()
        for batch in queue.read()
        for row in batch.to_pylist()
    ]
    assert sorted(int(row["keys"][0]) for row in rows) == list(range(30))
    assert {row["tags"] for row in rows} == {"north"}
    queue_of = {(dict(row["properties"])["__SHARDINGKEY"], row["queueId"]) for row in rows}
    assert len(queue_of) == 3  # each customer has one queue
    exec(THREADS.replace("/data/store", str(tmp_path / "threads")), {"orders": orders, "spark": spark})
    ends = {
        (queue.topic, queue.max_offset > 0)
        for queue in MessageStore.open(str(tmp_path / "threads")).queues()
        if queue.max_offset
    }
    assert ends == {("Orders", True), ("Audit", True)}


def test_the_sql_writes(spark: SparkSession, tmp_path: Path) -> None:
    for statement in filter(
        None, map(str.strip, SQL.replace("/data/new-store", str(tmp_path / "store")).split(";"))
    ):
        spark.sql(statement)
    spark.catalog.dropTempView("new_orders")
    store = MessageStore.open(str(tmp_path / "store"))
    rows = [row for queue in store.queues() for batch in queue.read() for row in batch.to_pylist()]
    assert sorted((row["topic"], row["keys"][0], row["tags"], row["body"]) for row in rows) == [
        ("Orders", "order-1", "paid", b"one"),
        ("Orders", "order-2", "sent", b"two"),
    ]


def test_the_append_runs(tmp_path: Path) -> None:
    with redirect_stdout(StringIO()) as output:
        exec(APPEND.replace("/data/new-store", str(tmp_path / "store")), {})
    assert output.getvalue() == "True {('Orders', 1): (0, 2)}\n"
    rows = [
        row
        for batch in MessageStore.open(str(tmp_path / "store")).queue("Orders", 1).read(0, 2)
        for row in batch.to_pylist()
    ]
    assert [(row["body"], row["tags"], row["keys"]) for row in rows] == [
        (b"one", "A", ["order-1"]),
        (b"two", "B", None),
    ]
