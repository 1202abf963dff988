"""Writing through Spark: what is read again, what is refused, and that a replayed batch is written once."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

import rmq_spark
from store_format import MessageStore
from store_format.bookkeeping.settings import StoreSettings
from store_format.metadata.read import read_topics
from store_format.opened.store import Opened
from tests.support.fixtures import Golden
from tests.support.staged import make_store
from tests.support.writes import bodies

_TIMEOUT_S = 120  # a query that hangs fails its test; it takes a few seconds
CONTENT = ["topic", "body", "tags", "keys", "flag", "msgId", "bornTimestampMs", "bornHost"]


def _read(spark: SparkSession, path: Path, *columns: str) -> DataFrame:
    return spark.read.format("rmqlog").option("columns", ",".join(columns or CONTENT)).load(str(path))


def _rows(frame: DataFrame) -> Counter[str]:
    return Counter(repr(row) for row in frame.collect())


def test_what_was_read_can_be_written_and_read_again(
    spark: SparkSession, golden: Golden, tmp_path: Path
) -> None:
    source = _read(spark, golden("basic-5.5.0"), *CONTENT, "properties", "queueOffset")
    source.write.format("rmqlog").mode("append").save(str(tmp_path / "store"))
    assert _rows(_read(spark, tmp_path / "store")) == _rows(source.select(*CONTENT))
    for queue in MessageStore.open(str(tmp_path / "store")).queues():
        offsets = queue.to_table(columns=["queueOffset"])["queueOffset"].to_pylist()
        assert offsets == list(range(queue.max_offset))


def test_what_is_wrong_is_said_on_the_driver(spark: SparkSession, tmp_path: Path) -> None:
    """Before any task: the rows of these DataFrames would fail to be made."""
    doomed = spark.range(3).selectExpr("'T' AS topic", "raise_error('a task ran') AS body", "1 AS flag")
    wrong = {
        r"unknown column 'flags'; did you mean flag\?": doomed.withColumnRenamed("flag", "flags"),
        r"column keys: expected string or array<string>, found array<int>": doomed.selectExpr(
            "*", "array(1) AS keys"
        ),
        r"a write needs the column body \(binary or string\), found topic, flag": doomed.drop("body"),
    }
    for message, frame in wrong.items():
        with pytest.raises(Exception, match=message) as caught:
            frame.write.format("rmqlog").mode("append").save(str(tmp_path / "store"))
        assert "a task ran" not in str(caught.value)
    with pytest.raises(Exception, match=r"can only be appended to: use mode\('append'\)"):
        doomed.write.format("rmqlog").mode("overwrite").save(str(tmp_path / "store"))
    full = doomed.write.format("rmqlog").mode("append").option("diskSpaceWarningLevelRatio", 0)
    with pytest.raises(Exception, match=r"file system .* full, above the limit of 0 % for writes") as caught:
        full.save(str(tmp_path / "store"))
    assert "a task ran" not in str(caught.value)
    rows = spark.readStream.format("rate").load().selectExpr("'T' AS topic", "value AS bodi")
    query = rows.writeStream.format("rmqlog").option("checkpointLocation", str(tmp_path / "checkpoint"))
    with pytest.raises(Exception, match=r"unknown column 'bodi'; did you mean body\?"):
        query.start(str(tmp_path / "store")).awaitTermination()
    assert not (tmp_path / "store").exists()


def test_empty_collections_say_nothing_and_a_row_is_named_with_its_partition(
    spark: SparkSession, tmp_path: Path
) -> None:
    rows = (
        spark.range(4)
        .repartition(2)
        .selectExpr("'T' AS topic", "cast(id AS string) AS body", "array() AS keys", "map() AS properties")
    )
    rows.write.format("rmqlog").mode("append").save(str(tmp_path / "store"))
    assert {row["keys"] for row in _read(spark, tmp_path / "store", "keys").collect()} == {None}
    bad = spark.range(8, numPartitions=2).selectExpr(
        "'T' AS topic", "nullif(cast(id AS string), '6') AS body", "concat('k', id) AS keys"
    )
    with pytest.raises(
        Exception,
        match=r"topic T, row 2 of partition 1 \(keys 'k6'\): expected a body of at least 1 byte, found null",
    ):
        bad.write.format("rmqlog").mode("append").save(str(tmp_path / "store"))


def test_threads_of_the_driver_write_when_each_registers(spark: SparkSession, tmp_path: Path) -> None:
    """Spark 4.3 looks up the format of a write in the JVM thread's active session, and a new thread has
    none.
    """
    frame = spark.range(5).selectExpr("cast(id AS string) AS body")

    def write(topic: str) -> None:
        frame.write.format("rmqlog").mode("append").option("topic", topic).save(str(tmp_path / "store"))

    with ThreadPoolExecutor(1) as threads, pytest.raises(Exception, match="DATA_SOURCE_NOT_FOUND"):
        threads.submit(write, "A").result()
    with ThreadPoolExecutor(2, initializer=rmq_spark.register, initargs=(spark,)) as threads:
        list(threads.map(write, ["A", "B", "C"]))
    assert Counter(row.topic for row in _read(spark, tmp_path / "store", "topic").collect()) == {
        "A": 5,
        "B": 5,
        "C": 5,
    }


def test_a_stream_writes_each_row_once_over_a_restart(spark: SparkSession, tmp_path: Path) -> None:
    source = tmp_path / "source"
    for part in range(3):
        spark.range(part * 100, part * 100 + 100).selectExpr("cast(id AS string) AS body").write.parquet(
            str(source / f"part={part}")
        )
        rows = (
            spark.readStream.schema("body string")
            .parquet(str(source / "part=*"))
            .selectExpr("'T' AS topic", "body")
        )
        query = (
            rows.writeStream.format("rmqlog")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .option("path", str(tmp_path / "store"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        written = [row.body.decode() for row in _read(spark, tmp_path / "store", "body").collect()]
        assert sorted(map(int, written)) == list(range((part + 1) * 100))


def test_messages_for_later_wait_in_topics_of_the_broker_and_theirs_are_made(
    spark: SparkSession, tmp_path: Path
) -> None:
    late = ("'Late' AS topic", "cast(id AS string) AS body")
    spark.range(3).selectExpr(*late, "3 AS delayTimeLevel").write.format("rmqlog").mode("append").save(
        str(tmp_path / "store")
    )
    topics = read_topics(Opened(str(tmp_path / "store")))
    assert topics is not None
    assert {name: config.read_queue_nums for name, config in topics.items() if "MEMBER" not in name} == {
        "Late": 4,
        "SCHEDULE_TOPIC_XXXX": 18,
    }
    in_an_hour = "current_timestamp() + interval 1 hour AS deliverTimestamp"
    spark.range(2).selectExpr(*late, in_an_hour).write.format("rmqlog").mode("append").save(
        str(tmp_path / "store")
    )
    assert _read(spark, tmp_path / "store", "body").count() == 0  # no user sees them yet
    queues = {
        (queue.topic, queue.queue_id): queue.max_offset
        for queue in MessageStore.open(str(tmp_path / "store")).queues()
    }
    assert queues == {("SCHEDULE_TOPIC_XXXX", 2): 3, ("rmq_sys_wheel_timer", 0): 2}


def test_a_batch_is_spread_over_a_cluster_and_written_once(spark: SparkSession, tmp_path: Path) -> None:
    stores = [tmp_path / "cluster" / name for name in ("broker-a", "broker-b")]
    for store in stores:
        store.parent.mkdir(exist_ok=True)
        make_store(store, StoreSettings(store.name, 1 << 16, 4000, 500, 2000))
    for version in (1, 1, 2):
        rows = spark.range(1000 * version, 1000 * version + 400, 1, 4)
        writer = rows.selectExpr("'T' AS topic", "cast(id AS string) AS body").write.format("rmqlog")
        writer.mode("append").options(txnAppId="daily", txnVersion=version).save(str(tmp_path / "cluster"))
    assert bodies(*stores) == dict.fromkeys([*range(1000, 1400), *range(2000, 2400)], 1)
    assert all(bodies(store).total() >= 360 for store in stores)
    assert not any(any((store / ".rmqlog" / "staging").iterdir()) for store in stores)


def test_a_first_write_that_fails_leaves_the_place_as_it_was(spark: SparkSession, tmp_path: Path) -> None:
    place = tmp_path / "store"
    bad = spark.range(0, 8, 1, 4).selectExpr("'T' AS topic", "if(id = 5, '', cast(id AS string)) AS body")
    with pytest.raises(Exception, match="expected a body of at least 1 byte"):
        bad.write.format("rmqlog").mode("append").save(str(place))
    assert not place.exists()
    # one task: Spark kills those beside one that fails, and tells of none
    bad.coalesce(1).write.parquet(str(tmp_path / "source"))
    rows = spark.readStream.schema("topic string, body string").parquet(str(tmp_path / "source"))
    query = rows.writeStream.format("rmqlog").option("checkpointLocation", str(tmp_path / "checkpoint"))
    with pytest.raises(Exception, match="expected a body of at least 1 byte"):
        query.start(str(place)).awaitTermination(_TIMEOUT_S)
    assert not place.exists()
