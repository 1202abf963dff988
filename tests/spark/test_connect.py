"""Spark Connect: the client builds plans without a JVM of its own, and the data source works as in a classic
session.

A classic session lives in this process, so the Connect session lives in another; it prints what it saw.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.fixtures import Golden
from tests.support.reads import told, told_places
from tests.support.spark.processes import run

pytestmark = pytest.mark.spark

STORE = "basic-5.5.0"

SCRIPT = """
import json, os, sys
from pyspark.sql import SparkSession
spark = SparkSession.builder.remote("local[2]").config("spark.ui.enabled", "false").getOrCreate()
path = sys.argv[1]
found = spark.read.format("rmqlog").option("subscribe", "Audit").load(path).count()
assert "rmq_spark" not in sys.modules
import rmq_spark
rmq_spark.register(spark)
group = spark.read.format("rmqlog").option("subscribe", "Orders").option("group", "g").option("offsetStore", "none")
try:
    group.option("allocateMessageQueueStrategy", "shutil:rmtree").load(path).collect()
    unlisted = ""
except Exception as caught:
    unlisted = str(caught)
read = lambda: spark.read.format("rmqlog").option("subscribe", "Orders")
frame = read().load(path)
schema = frame.schema.simpleString()
places = sorted(tuple(row) for row in frame.select("topic", "queueId", "queueOffset").collect())
own = read().schema("queueOffset long, BODY binary").load(path)
spark.sql(f"CREATE TEMPORARY VIEW orders USING rmqlog OPTIONS (path '{path}', subscribe 'Orders', subExpression 'BB')")
view = spark.sql("SELECT count(*), count(DISTINCT tags), min(tags) FROM orders").collect()
try:
    spark.read.format("rmqlog").option("subscripe", "Orders").load(path).collect()
    error = ""
except Exception as caught:
    error = str(caught)
def handle(row):
    if (row.queueId, row.queueOffset) == (2, 7):
        raise ValueError("no such customer")
from rmq_spark.consume.offset_store import LocalOffsets
from rmq_spark.services import Orderly
ordered = {
    "path": path, "subscribe": "Orders", "group": "g", "splitBy": "wholeQueue", "offsetStore": "local",
    "offsetStorePath": os.path.abspath("offsets"), "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET",
}
(
    spark.readStream.format("rmqlog").options(**ordered).load().writeStream.foreachBatch(Orderly(handle, ordered))
    .option("checkpointLocation", "orderly").trigger(availableNow=True).start().awaitTermination()
)
committed = LocalOffsets("offsets/g/offsets.json").read()
print(json.dumps({
    "orderly": {queue.queue_id: offset for queue, offset in committed.items() if queue.topic == "Orders"},
    "session": type(spark).__module__,
    "found": found,
    "schema": schema,
    "places": places,
    "own": [own.columns, own.count()],
    "view": list(view[0]),
    "error": error,
    "unlisted": unlisted,
}))
spark.stop()
"""  # noqa: E501


@pytest.mark.slow
def test_a_connect_session(golden: Golden, tmp_path: Path) -> None:
    seen = json.loads(run(SCRIPT, str(golden(STORE)), directory=tmp_path).splitlines()[-1])
    rows = told(STORE, lambda row: row["topic"] == "Orders")
    assert seen["session"].startswith("pyspark.sql.connect")
    assert seen["found"] == 351  # by itself, before `register`
    assert seen["schema"].startswith(
        "struct<topic:string,flag:int,body:binary,properties:map<string,string>,brokerName:string,"
    )
    assert [tuple(place) for place in seen["places"]] == told_places(rows)
    assert seen["own"] == [["queueOffset", "BODY"], len(rows)]
    assert seen["view"] == [sum(row["properties"].get("TAGS") == "BB" for row in rows), 1, "BB"]
    # The handler of an orderly query fails at offset 7 of queue 2.
    ends = {str(queue): sum(row["queueId"] == queue for row in rows) for queue in range(4)}
    assert seen["orderly"] == ends | {"2": 7}
    assert "unknown option 'subscripe'; did you mean subscribe?" in seen["error"]
    assert "shutil:rmtree: expected a name that this session may import" in seen["unlisted"]
