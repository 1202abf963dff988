"""Cells of other sessions, each in a process of its own: Spark Connect, and workers without this package."""

from __future__ import annotations

import rmq_spark
from tests.sparks.cells import STORE, TOPIC, Case, Seen, cell, digest, of_topic, refusal, told_places, works
from tests.sparks.rules import REPLACES_REGISTERED


@cell("Spark Connect: batch, SQL view, stream, write, errors", kind="connect")
def connect(case: Case) -> Seen:
    assert type(case.spark).__module__.startswith("pyspark.sql.connect")
    root, places = case.golden(STORE), told_places(of_topic)
    found = case.read(root, subscribe=TOPIC).count()
    rmq_spark.register(case.spark)
    rows = case.read(root, subscribe=TOPIC).select("topic", "queueId", "queueOffset").collect()
    assert sorted(tuple(row) for row in rows) == places
    assert found == len(places)
    case.spark.sql(f"CREATE TEMPORARY VIEW v USING rmqlog OPTIONS (path '{root}', subscribe '{TOPIC}')")
    assert case.spark.sql("SELECT count(*) FROM v").collect()[0][0] == len(places)
    frame = case.read_stream(root, subscribe=TOPIC, startingOffsets="earliest")
    columns = frame.select("topic", "queueId", "queueOffset")
    writer = columns.writeStream.format("parquet").trigger(availableNow=True)
    writer = writer.option("checkpointLocation", str(case.base / "checkpoints" / "connect"))
    query = writer.start(str(case.base / "parquet"))
    query.awaitTermination()
    streamed = case.spark.read.schema(columns.schema).parquet(str(case.base / "parquet")).collect()
    assert sorted(tuple(row) for row in streamed) == places
    target = case.base / "connected"
    case.read(root, subscribe=TOPIC).write.format("rmqlog").mode("append").save(str(target))
    assert case.read(target).count() == len(places)
    text = refusal(lambda: case.read(root, subscripe=TOPIC).collect())
    assert text == "unknown option 'subscripe'; did you mean subscribe?"
    return works(rows=len(places), digest=digest(sorted(tuple(row) for row in rows)), error=text)


@cell("`register(spark, by_value=True)`, Spark does not find rmqlog: batch, stream, write", kind="by-value")
def by_value(case: Case) -> Seen:
    root, places = case.golden(STORE), told_places(of_topic)

    def absent(_: int) -> list[str]:  # local, because workers cannot import this module
        from importlib.util import find_spec

        names = ("rmq_spark", "store_format", "pyspark_rmqlog", "numpy", "pyarrow")
        return [name for name in names if find_spec(name) is None]

    missing = case.spark.sparkContext.parallelize([1], 1).map(absent).collect()
    assert missing == [["rmq_spark", "store_format", "pyspark_rmqlog"]]
    rmq_spark.register(case.spark, by_value=True)
    rows = case.read(root, subscribe=TOPIC).select("topic", "queueId", "queueOffset").collect()
    assert sorted(tuple(row) for row in rows) == places
    frame = case.read_stream(root, subscribe=TOPIC, startingOffsets="earliest").select("queueOffset")
    writer = frame.writeStream.format("memory").queryName("carried").trigger(availableNow=True)
    query = writer.option("checkpointLocation", str(case.base / "checkpoints" / "by-value")).start()
    query.awaitTermination()
    assert case.spark.table("carried").count() == len(places)
    target = case.base / "carried"
    case.read(root, subscribe=TOPIC).write.format("rmqlog").mode("append").save(str(target))
    assert case.read(target).count() == len(places)
    return works(rows=len(places))


@cell("`register(spark, by_value=True)`, Spark finds rmqlog by itself")
def by_value_installed(case: Case) -> Seen:
    root, count = case.golden(STORE), len(told_places(of_topic))
    if case.version < REPLACES_REGISTERED:
        text = refusal(lambda: rmq_spark.register(case.spark, by_value=True))
        assert "by_value" in text
        assert case.read(root, subscribe=TOPIC).count() == count  # by the format that Spark has found
        return Seen("refused", {"text": text.replace(case.spark.version, "VERSION"), "rows": count})
    rmq_spark.register(case.spark, by_value=True)
    assert case.read(root, subscribe=TOPIC).count() == count
    rmq_spark.register(case.spark)
    return works(rows=count)
