"""Where Spark writes: over the stores of a cluster, past one that is in use, once for each key; what is
refused before any task runs.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from store_format.bookkeeping.settings import StoreSettings
from tests.support.staged import make_store
from tests.support.writes import held

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_NAMES = ("broker-a", "broker-b")


@pytest.fixture
def cluster(tmp_path: Path) -> Path:
    directory = tmp_path / "cluster"
    directory.mkdir()
    for name in _NAMES:
        make_store(directory / name, StoreSettings(name, 1 << 16, 4000, 500, 2000))
    return directory


def _frame(spark: SparkSession, first: int, stop: int) -> DataFrame:
    return spark.range(first, stop, 1, 4).selectExpr(
        "'T' AS topic", "cast(id AS string) AS body", "array(concat('k', id)) AS keys"
    )


def _write(frame: DataFrame, path: Path, **options: str | int) -> None:
    writer = frame.write.format("rmqlog").mode("append")
    writer.options(**{name: str(value) for name, value in options.items()}).save(str(path))


def _numbers(spark: SparkSession, path: Path) -> dict[str, Counter[int]]:
    """By broker the number in each message."""
    found: dict[str, Counter[int]] = {name: Counter() for name in _NAMES}
    for row in spark.read.format("rmqlog").option("columns", "brokerName,body").load(str(path)).collect():
        found[row.brokerName][int(row.body)] += 1
    return found


def test_a_batch_is_spread_over_a_cluster_and_written_once(spark: SparkSession, cluster: Path) -> None:
    for version in (1, 1, 2):
        _write(
            _frame(spark, 1000 * version, 1000 * version + 400), cluster, txnAppId="daily", txnVersion=version
        )
    found = _numbers(spark, cluster)
    assert sum(found.values(), Counter()) == dict.fromkeys([*range(1000, 1400), *range(2000, 2400)], 1)
    assert all(len(numbers) >= 360 for numbers in found.values())
    assert not any(any((cluster / name / ".rmqlog" / "staging").iterdir()) for name in _NAMES)


def test_a_stream_goes_on_while_one_store_is_in_use(
    spark: SparkSession, cluster: Path, tmp_path: Path
) -> None:
    _write(_frame(spark, 0, 8), cluster)  # the topic is in both

    def run(part: int) -> None:
        new = spark.range(100 * part, 100 * part + 100).selectExpr("cast(id AS string) AS body")
        new.write.parquet(str(tmp_path / f"source/part={part}"))
        rows = (
            spark.readStream.schema("body string")
            .parquet(str(tmp_path / "source/part=*"))
            .selectExpr("'T' AS topic", "body")
        )
        writer = (
            rows.writeStream.format("rmqlog")
            .option("path", str(cluster))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
        )
        assert writer.trigger(availableNow=True).start().awaitTermination(120)

    run(1)
    with held(cluster / "broker-a"):
        run(2)
    run(3)
    found = _numbers(spark, cluster)
    assert sum(found.values(), Counter()) == dict.fromkeys([*range(8), *range(100, 400)], 1)
    assert set(range(200, 300)) <= set(found["broker-b"])
    assert found["broker-a"].keys() & set(range(300, 400))


def test_a_fixed_queue_of_a_store_in_use_is_an_error(spark: SparkSession, cluster: Path) -> None:
    frame = _frame(spark, 0, 8).selectExpr("*", "'broker-a' AS brokerName", "1 AS queueId")
    sentence = "queueId 1 selects a queue of broker-a, which takes no messages now: in use by process"
    with held(cluster / "broker-a"), pytest.raises(Exception, match=sentence):
        _write(frame, cluster)
    _write(frame, cluster)
    assert _numbers(spark, cluster)["broker-a"] == dict.fromkeys(range(8), 1)


def test_a_store_that_takes_no_messages_is_told_before_any_task_runs(
    spark: SparkSession, tmp_path: Path
) -> None:
    seen = spark.sparkContext.accumulator(0)

    def count(batches):  # type: ignore[no-untyped-def]
        for batch in batches:
            seen.add(batch.num_rows)
            yield batch

    frame = _frame(spark, 0, 8).select("topic", "body").mapInArrow(count, "topic string, body string")
    root = make_store(tmp_path / "store", StoreSettings("broker-a", 1 << 16, 4000, 500, 2000))
    with (
        held(root),
        pytest.raises(
            Exception,
            match=r"StoreInUseError: .*store is in use by process \d+ .*; stop the broker, or write to ",
        ),
    ):
        _write(frame, root)
    with pytest.raises(
        Exception,
        match=r"StoreWriteError: .*store: the file system .* is \d+ % full, above the limit of 0 % for "
        r"writes; free ",
    ):
        _write(frame, root, diskSpaceWarningLevelRatio=0)
    assert seen.value == 0
    _write(frame, root)
    assert seen.value == 8


@pytest.mark.parametrize("is_there", [False, True])
def test_a_first_write_that_fails_leaves_the_place_as_it_was(
    spark: SparkSession, tmp_path: Path, is_there: bool
) -> None:
    place = tmp_path / "store"
    if is_there:
        place.mkdir()
    bad = _frame(spark, 0, 8).selectExpr("topic", "if(body = '5', '', body) AS body")
    with pytest.raises(Exception, match="expected a body of at least 1 byte"):
        _write(bad, place)
    assert place.exists() == is_there
    assert not is_there or not any(place.iterdir())
    # one task: Spark kills those beside one that fails, and tells of none
    bad.coalesce(1).write.parquet(str(tmp_path / "source"))
    rows = spark.readStream.schema("topic string, body string").parquet(str(tmp_path / "source"))
    query = (
        rows.writeStream.format("rmqlog")
        .option("path", str(place))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .start()
    )
    with pytest.raises(Exception, match="expected a body of at least 1 byte"):
        query.awaitTermination(120)
    assert place.exists() == is_there
    assert not is_there or not any(place.iterdir())


def test_what_cannot_be_collected_does_not_fail_a_batch(spark: SparkSession, tmp_path: Path) -> None:
    root = make_store(tmp_path / "store", StoreSettings("broker-a", 1 << 16, 4000, 500, 2000))
    (root / ".rmqlog" / "staging" / "dead" / "report").mkdir(parents=True)
    (root / ".rmqlog" / "staging" / "dead" / "report" / "page").touch()
    for first in (0, 8):
        _write(_frame(spark, first, first + 8), root, stagingRetention="0s")
        (root / ".rmqlog" / "staging" / f"linked-{first}").symlink_to(tmp_path)
    rows = spark.read.format("rmqlog").option("columns", "body").load(str(root)).collect()
    assert Counter(int(row.body) for row in rows) == dict.fromkeys(range(16), 1)
    assert (root / ".rmqlog" / "staging" / "dead" / "report" / "page").exists()
