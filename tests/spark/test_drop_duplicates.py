"""`drop_duplicates`: each key once, messages without a key all, and no message lost in a stream."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F

from rmq_spark import drop_duplicates
from store_format.commit.options import CommitOptions
from store_format.errors import OptionError
from tests.support import oracle
from tests.support.oracle import Message
from tests.support.reads import Place
from tests.support.spark.frames import places, read
from tests.support.staged import append, make_store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SECOND = 1000
_TIMEOUT_S = 120  # a query that hangs fails its test; it takes a few seconds


def store_at(root: Path, at_ms: int, *messages: tuple[int, str, str | None]) -> None:
    """Messages (queue, UNIQ_KEY, KEYS) of topic T, stored at a time."""
    made = []
    for queue, unique, key in messages:
        properties = {"UNIQ_KEY": unique} | ({} if key is None else {"KEYS": key})
        encoded = oracle.encode_properties(properties)
        made.append(Message(b"T", b"{}", encoded, queue_id=queue, born_timestamp=at_ms))
    append(root, made, options=CommitOptions(clock=lambda: at_ms))


@pytest.fixture
def root(root: Path) -> Path:
    base = 1_700_000_100_000
    store_at(root, base, (0, "A", "order-1"), (1, "B", "order-2"), (2, "C", None))
    store_at(root, base + SECOND, (3, "A", "order-1"), (2, "D", None), (0, "E", "order-2"))
    store_at(root, base + 3600 * SECOND, (1, "F", "order-1"), (1, "A", "order-1"))
    return root


T = "T"
# queue 0: A E, queue 1: B F A, queue 2: C D, queue 3: A
FIRST_IDS = [(T, 0, 0), (T, 0, 1), (T, 1, 0), (T, 1, 1), (T, 2, 0), (T, 2, 1)]


def test_a_batch_keeps_the_message_that_was_stored_first(spark: SparkSession, root: Path) -> None:
    frame = read(spark, root)
    found = drop_duplicates(frame)
    assert found.columns == frame.columns
    assert places(found) == FIRST_IDS
    # Messages without KEYS are no duplicates of each other.
    assert places(drop_duplicates(frame, by="keys")) == [(T, 0, 0), (T, 1, 0), (T, 2, 0), (T, 2, 1)]
    by_both = drop_duplicates(frame, by=[F.lower("msgId"), "keys"])
    assert places(by_both) == [(T, 0, 0), (T, 0, 1), (T, 1, 0), (T, 1, 1), (T, 2, 0), (T, 2, 1)]


def test_a_batch_may_have_a_key_again_after_a_time(spark: SparkSession, root: Path) -> None:
    frame = read(spark, root)
    assert places(drop_duplicates(frame, within="10s")) == [*FIRST_IDS[:4], (T, 1, 2), *FIRST_IDS[4:]]
    assert places(drop_duplicates(frame, within="2 hours")) == FIRST_IDS


def run(
    spark: SparkSession,
    root: Path,
    checkpoint: Path,
    change: Callable[[DataFrame], DataFrame],
    **options: str,
) -> list[Place]:
    found: list[Place] = []

    def take(frame: DataFrame, batch: int) -> None:
        found.extend(places(frame))

    stream = (
        spark.readStream.format("rmqlog")
        .option("startingOffsets", "earliest")
        .options(**options)
        .load(str(root))
    )
    writer = change(stream).writeStream.foreachBatch(take).option("checkpointLocation", str(checkpoint))
    query = writer.trigger(availableNow=True).start()
    try:
        assert query.awaitTermination(_TIMEOUT_S)
    finally:
        query.stop()
    return sorted(found)


@pytest.mark.slow
def test_a_stream_drops_what_it_has_read_also_after_a_restart(
    spark: SparkSession, root: Path, tmp_path: Path
) -> None:
    def change(stream: DataFrame) -> DataFrame:
        return drop_duplicates(stream, within="1 hour")

    found = run(spark, root, tmp_path / "c", change)
    assert len(found) == 6
    store_at(root, 1_700_009_100_000, (3, "B", "order-2"), (3, "G", "order-3"))
    assert run(spark, root, tmp_path / "c", change) == [(T, 3, 2)]


@pytest.mark.slow
def test_a_queue_that_lags_is_not_lost_in_a_stream(spark: SparkSession, tmp_path: Path) -> None:
    root = make_store(tmp_path / "store")
    base = 1_700_000_100_000
    store_at(root, base, *((0, f"old{number}", None) for number in range(6)))
    store_at(root, base + 86_400 * SECOND, (1, "new", None))
    found = run(
        spark,
        root,
        tmp_path / "c",
        lambda stream: drop_duplicates(stream, within="1s"),
        maxOffsetsPerTrigger="3",
    )
    assert found == [*((T, 0, offset) for offset in range(6)), (T, 1, 0)]


def test_what_cannot_be_done_is_one_sentence(spark: SparkSession, root: Path) -> None:
    frame = read(spark, root)
    calls: Sequence[tuple[Callable[[], Any], str]] = (
        (lambda: drop_duplicates(frame, by="key"), "by: did you mean keys?"),
        (lambda: drop_duplicates(frame, by=[]), "by: expected at least one column"),
        (lambda: drop_duplicates(frame.drop("queueId")), "found no queueId; drop duplicates before"),
        (lambda: drop_duplicates(frame.drop("storeTimestamp")), "found no storeTimestamp"),
        (lambda: drop_duplicates(frame, within="soon"), "within: expected a length of time such as 30s"),
        (
            lambda: drop_duplicates(spark.readStream.format("rmqlog").load(str(root))),
            "within: expected a time such as '1 hour' for a stream",
        ),
    )
    for call, said in calls:
        with pytest.raises(OptionError) as caught:
            call()
        assert said in str(caught.value)
