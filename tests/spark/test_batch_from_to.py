"""Where a batch read begins and ends: offsets in every form, times as the broker answers them, and what lies
outside.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException

from tests.support import goldens
from tests.support.spark.frames import PLACE, places, read, told, told_places

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STORE = "basic-5.5.0"
FAR_MS = 4_000_000_000_000  # the year 2096

Golden = Callable[[str], Path]
Queue = tuple[str, int]


def orders(
    start: dict[int, int] | int = 0, stop: dict[int, int] | int = 1 << 40
) -> list[tuple[str, int, int]]:
    """The places of Orders from `start` to `stop`, one bound for all queues or one each."""

    def bound(at: dict[int, int] | int, queue: int, other: int) -> int:
        return at if isinstance(at, int) else at.get(queue, other)

    return told_places(
        row
        for row in told(STORE, lambda row: row["topic"] == "Orders")
        if bound(start, row["queueId"], 0) <= row["queueOffset"] < bound(stop, row["queueId"], 1 << 40)
    )


# ---- offsets -----------------------------------------------------------------------------------------------

OFFSETS: dict[str, tuple[dict[str, Any], list[tuple[str, int, int]]]] = {
    "words": ({"startingOffsets": "earliest", "endingOffsets": "latest"}, orders()),
    "without the broker": ({"startingOffsets": {"Orders": {"0": 290, "2": 364}}}, orders({0: 290, 2: 364})),
    "with the broker": ({"startingOffsets": {"Orders": {"broker-a": {"1": 7}}}}, orders({1: 7})),
    "any queue": ({"startingOffsets": {"Orders": {"*": 300}}}, orders(300)),
    "any topic": ({"startingOffsets": {"*": {"broker-a": {"3": 100}}}}, orders({3: 100})),
    "the most exact decides": (
        {"startingOffsets": {"*": {"*": 5}, "Orders": {"broker-a": {"0": 9}}}},
        orders({0: 9, 1: 5, 2: 5, 3: 5}),
    ),
    "-2 and -1": (
        {"startingOffsets": {"Orders": {"0": -2, "1": 330}}, "endingOffsets": {"Orders": {"0": 3, "1": -1}}},
        orders({1: 330}, {0: 3}),
    ),
    "both ends": (
        {"startingOffsets": {"Orders": {"*": 100}}, "endingOffsets": {"Orders": {"*": 101, "2": 100}}},
        orders(100, {0: 101, 1: 101, 2: 100, 3: 101}),
    ),
    "an empty range at the end": ({"startingOffsets": {"Orders": {"0": 300}}}, orders({0: 300})),
}


@pytest.mark.parametrize("case", OFFSETS)
@pytest.mark.parametrize(
    "split_by", ["queue", pytest.param("commitlog", marks=(pytest.mark.whole, pytest.mark.slow))]
)
def test_offsets(spark: SparkSession, golden: Golden, case: str, split_by: str) -> None:
    given, expected = OFFSETS[case]
    options = {name: value if isinstance(value, str) else json.dumps(value) for name, value in given.items()}
    frame = read(spark, golden(STORE), subscribe="Orders", columns=PLACE, splitBy=split_by, **options)
    assert places(frame) == expected


def test_offsets_of_a_batch_queue_lead_into_a_batch(spark: SparkSession, golden: Golden) -> None:
    """A unit of a BatchCQ queue holds several offsets; a range may begin and end inside one."""
    rows = told(
        "batchcq-5.5.0",
        lambda row: row["topic"] == "Inner" and row["queueId"] == 0 and row.get("batchNum", 1) > 3,
    )
    start = rows[0]["outerQueueOffset"] + 1
    stop = rows[-1]["outerQueueOffset"] + rows[-1]["batchNum"] - 1
    options = {
        "startingOffsets": json.dumps({"Inner": {"0": start}}),
        "endingOffsets": json.dumps({"Inner": {"0": stop}}),
    }
    frame = read(spark, golden("batchcq-5.5.0"), assign='{"Inner":[0]}', columns=PLACE, **options)
    assert places(frame) == [("Inner", 0, offset) for offset in range(start, stop)]


def test_an_offset_before_the_minimum_is_data_loss(spark: SparkSession, golden: Golden) -> None:
    options = {"subscribe": "Orders", "startingOffsets": '{"Orders":{"0":70}}', "columns": PLACE}
    with pytest.raises(PySparkException) as caught:
        read(spark, golden("cleaned-5.5.0"), **options).collect()
    assert "Orders-0 of broker-a: startingOffsets 70 is not in the queue, which holds 73 to 240" in str(
        caught.value
    )
    assert "failOnDataLoss=false" in str(caught.value)
    frame = read(spark, golden("cleaned-5.5.0"), failOnDataLoss=False, **options)
    assert places(frame) == told_places(told("cleaned-5.5.0", lambda row: row["topic"] == "Orders"))


def test_an_offset_behind_the_end(spark: SparkSession, golden: Golden) -> None:
    options = {"subscribe": "Orders", "endingOffsets": '{"Orders":{"0":301}}', "columns": PLACE}
    with pytest.raises(PySparkException, match="endingOffsets 301 is not in the queue, which holds 0 to 300"):
        read(spark, golden(STORE), **options).collect()
    assert places(read(spark, golden(STORE), failOnDataLoss=False, **options)) == orders()


def test_a_start_behind_the_end(spark: SparkSession, golden: Golden) -> None:
    options = {"startingOffsets": '{"Orders":{"0":30}}', "endingOffsets": '{"Orders":{"0":29}}'}
    with pytest.raises(
        PySparkException, match="startingOffsets starts at offset 30, after endingOffsets, which ends at 29"
    ):
        read(spark, golden(STORE), subscribe="Orders", **options).collect()


# ---- times -------------------------------------------------------------------------------------------------


def probes(store: str) -> list[dict[Queue, tuple[int, int]]]:
    """The broker's LOWER answers, (timestamp, offset) by queue: the first of each queue, the second of each
    queue, …
    """
    boundary = (
        "LOWER"
        if any(probe["boundary"] == "LOWER" for probe in goldens.expected(store)["offsetsByTime"])
        else "V4"
    )
    by_queue: dict[Queue, list[tuple[int, int]]] = {}
    for probe in goldens.expected(store)["offsetsByTime"]:
        if probe["boundary"] == boundary:
            by_queue.setdefault((probe["topic"], probe["queueId"]), []).append(
                (probe["timestamp"], probe["offset"])
            )
    return [
        {queue: answers[i] for queue, answers in by_queue.items() if i < len(answers)}
        for i in range(max(len(answers) for answers in by_queue.values()))
    ]


def by_timestamp(probe: dict[Queue, tuple[int, int]]) -> str:
    tree: dict[str, dict[str, int]] = {}
    for (topic, queue_id), (timestamp, _) in probe.items():
        tree.setdefault(topic, {})[str(queue_id)] = timestamp
    return json.dumps(tree)


# In edge-5.5.0 times go backwards: the broker's search decides, not an order that is not there.
@pytest.mark.parametrize("store", ["basic-5.5.0", "cleaned-5.5.0", "edge-5.5.0"])
def test_times_lead_where_the_broker_says(spark: SparkSession, golden: Golden, store: str) -> None:
    checked = 0
    for probe in probes(store)[1::3]:
        topics = {topic for topic, _ in probe}
        assign: dict[str, list[int]] = {
            topic: [queue_id for name, queue_id in probe if name == topic] for topic in topics
        }
        rows = told(store, lambda row, probe=probe: (row["topic"], row["queueId"]) in probe)  # type: ignore[misc]  # a default in a lambda
        common = {"assign": json.dumps(assign), "columns": PLACE}
        late = read(
            spark,
            golden(store),
            startingOffsetsByTimestamp=by_timestamp(probe),
            startingOffsetsByTimestampStrategy="latest",
            **common,
        )
        assert places(late) == told_places(
            row for row in rows if row["queueOffset"] >= probe[row["topic"], row["queueId"]][1]
        )
        early = read(spark, golden(store), endingOffsetsByTimestamp=by_timestamp(probe), **common)
        assert places(early) == told_places(
            row for row in rows if row["queueOffset"] < probe[row["topic"], row["queueId"]][1]
        )
        checked += len(probe)
    assert checked > 20


def test_one_time_for_all_queues_beats_offsets(spark: SparkSession, golden: Golden) -> None:
    """Start inclusive, end exclusive, by the store time; times that repeat stay together."""
    rows = told(STORE, lambda row: row["topic"] == "Orders")
    start, stop = (sorted(row["storeTimestamp"] for row in rows)[len(rows) * i // 3] for i in (1, 2))
    expected = told_places(row for row in rows if start <= row["storeTimestamp"] < stop)
    assert 100 < len(expected) < len(rows)
    frame = read(
        spark,
        golden(STORE),
        subscribe="Orders",
        columns=PLACE,
        startingTimestamp=start,
        endingTimestamp=stop,
        startingOffsets='{"Orders":{"0":299}}',
        endingOffsetsByTimestamp='{"Orders":{"0":1}}',
    )
    assert places(frame) == expected


@pytest.mark.parametrize("store", ["basic-5.5.0", "batchcq-5.5.0", "rocksdb-5.5.0"])
def test_times_before_and_behind_everything(spark: SparkSession, golden: Golden, store: str) -> None:
    """For BatchCQ queues the broker answers a late time with the last unit, which was stored before that time
    all the same.
    """
    rows = told_places(told(store))
    common: dict[str, str | bool] = {"includeSystemTopics": True, "columns": PLACE}
    latest = {"startingOffsetsByTimestampStrategy": "latest"}
    assert places(read(spark, golden(store), startingTimestamp=0, **common)) == rows
    assert places(read(spark, golden(store), endingTimestamp=FAR_MS, **common)) == rows
    assert places(read(spark, golden(store), endingTimestamp=0, **common)) == []
    assert places(read(spark, golden(store), startingTimestamp=FAR_MS, **(common | latest))) == []


@pytest.mark.parametrize("store", ["batchcq-5.5.0", "rocksdb-5.5.0"])
def test_times_in_batch_queues_and_in_scans(spark: SparkSession, golden: Golden, store: str) -> None:
    rows = told(store, lambda row: not row["topic"].startswith(("%", "SCHEDULE")))
    middle = sorted(row["storeTimestamp"] for row in rows)[len(rows) // 2]
    options = {"columns": PLACE, "startingOffsetsByTimestampStrategy": "latest"}
    late = told_places(row for row in rows if row["storeTimestamp"] >= middle)
    assert 0 < len(late) < len(rows)
    assert places(read(spark, golden(store), startingTimestamp=middle, **options)) == late
    early = told_places(row for row in rows if row["storeTimestamp"] < middle)
    assert places(read(spark, golden(store), endingTimestamp=middle, **options)) == early


def test_a_start_behind_the_last_message_is_an_error_unless_said(spark: SparkSession, golden: Golden) -> None:
    with pytest.raises(PySparkException) as caught:
        read(spark, golden(STORE), subscribe="Audit", startingTimestamp=FAR_MS).collect()
    assert "Audit-0 of broker-a: no message at or after 4000000000000 (2096-10-02" in str(caught.value)
    assert "startingOffsetsByTimestampStrategy=latest" in str(caught.value)
