"""Where a batch read begins and ends: offsets in every form, times as the broker answers them, and what lies
outside.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import rmq_spark
from store_format import MessageStore
from store_format.errors import OffsetOutOfRangeError, OptionError, StoreError
from tests.rmq_spark.stream.test_positions import Stream
from tests.support.fixtures import Golden
from tests.support.reads import PLACE, copy_of, read, told, told_places

STORE = "basic-5.5.0"
FAR_MS = 4_000_000_000_000  # the year 2096
FIRST_FILE = 262144  # bytes of the first commitlog file


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
    "the most exact decides":
        ({"startingOffsets": {"*": {"*": 5}, "Orders": {"broker-a": {"0": 9}}}},
         orders({0: 9, 1: 5, 2: 5, 3: 5})),
    "-2 and -1":
        ({"startingOffsets": {"Orders": {"0": -2, "1": 330}}, "endingOffsets": {"Orders": {"0": 3, "1": -1}}},
         orders({1: 330}, {0: 3})),
    "both ends":
        ({"startingOffsets": {"Orders": {"*": 100}}, "endingOffsets": {"Orders": {"*": 101, "2": 100}}},
         orders(100, {0: 101, 1: 101, 2: 100, 3: 101})),
    "an empty range at the end": ({"startingOffsets": {"Orders": {"0": 300}}}, orders({0: 300})),
}  # fmt: skip


@pytest.mark.parametrize("case", OFFSETS)
@pytest.mark.parametrize("split_by", ["queue", "commitlog"])
def test_offsets(golden: Golden, case: str, split_by: str) -> None:
    given, expected = OFFSETS[case]
    options = {name: value if isinstance(value, str) else json.dumps(value) for name, value in given.items()}
    frame = read(golden(STORE), subscribe="Orders", columns=PLACE, splitBy=split_by, **options)
    assert frame.places() == expected


def test_offsets_of_a_batch_queue_lead_into_a_batch(golden: Golden) -> None:
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
    frame = read(golden("batchcq-5.5.0"), assign='{"Inner":[0]}', columns=PLACE, **options)
    assert frame.places() == [("Inner", 0, offset) for offset in range(start, stop)]


def test_an_offset_before_the_minimum_is_data_loss(golden: Golden) -> None:
    options = {"subscribe": "Orders", "startingOffsets": '{"Orders":{"0":70}}', "columns": PLACE}
    sentence = "startingOffsets 70 is not in the queue, which holds 73 to 240; .*failOnDataLoss=false"
    with pytest.raises(OffsetOutOfRangeError, match=sentence):
        read(golden("cleaned-5.5.0"), **options).rows()
    frame = read(golden("cleaned-5.5.0"), failOnDataLoss=False, **options)
    assert frame.places() == told_places(told("cleaned-5.5.0", lambda row: row["topic"] == "Orders"))


def test_an_offset_behind_the_end(golden: Golden) -> None:
    options = {"subscribe": "Orders", "endingOffsets": '{"Orders":{"0":301}}', "columns": PLACE}
    sentence = "endingOffsets 301 is not in the queue, which holds 0 to 300"
    with pytest.raises(OffsetOutOfRangeError, match=sentence):
        read(golden(STORE), **options).rows()
    assert read(golden(STORE), failOnDataLoss=False, **options).places() == orders()


def test_a_start_behind_the_end(golden: Golden) -> None:
    options = {"startingOffsets": '{"Orders":{"0":30}}', "endingOffsets": '{"Orders":{"0":29}}'}
    with pytest.raises(
        OptionError, match="startingOffsets starts at offset 30, after endingOffsets, which ends at 29"
    ):
        read(golden(STORE), subscribe="Orders", **options).rows()


# ---- times -------------------------------------------------------------------------------------------------


def test_a_time_for_each_queue(golden: Golden) -> None:
    """tests/test_conformance.py compares where a time leads in each queue with the brokers' answers."""
    rows = told(STORE, lambda row: row["topic"] == "Orders")
    times = {row["queueId"]: row["storeTimestamp"] for row in rows if row["queueOffset"] == 100}
    assert len(set(times.values())) > 1
    by_time, common = json.dumps({"Orders": times}), {"subscribe": "Orders", "columns": PLACE}
    late = read(golden(STORE), startingOffsetsByTimestamp=by_time, **common)
    assert late.places() == told_places(row for row in rows if row["storeTimestamp"] >= times[row["queueId"]])
    early = read(golden(STORE), endingOffsetsByTimestamp=by_time, **common)
    assert early.places() == told_places(row for row in rows if row["storeTimestamp"] < times[row["queueId"]])


def test_one_time_for_all_queues_beats_offsets(golden: Golden) -> None:
    """Start inclusive, end exclusive, by the store time; times that repeat stay together."""
    rows = told(STORE, lambda row: row["topic"] == "Orders")
    start, stop = (sorted(row["storeTimestamp"] for row in rows)[len(rows) * i // 3] for i in (1, 2))
    expected = told_places(row for row in rows if start <= row["storeTimestamp"] < stop)
    assert 100 < len(expected) < len(rows)
    frame = read(
        golden(STORE),
        subscribe="Orders",
        columns=PLACE,
        startingTimestamp=start,
        endingTimestamp=stop,
        startingOffsets='{"Orders":{"0":299}}',
        endingOffsetsByTimestamp='{"Orders":{"0":1}}',
    )
    assert frame.places() == expected


@pytest.mark.parametrize("store", ["basic-5.5.0", "batchcq-5.5.0", "rocksdb-5.5.0"])
def test_times_before_and_behind_everything(golden: Golden, store: str) -> None:
    """For BatchCQ queues the broker answers a late time with the last unit, which was stored before that time
    all the same.
    """
    rows = told_places(told(store))
    common: dict[str, str | bool] = {"includeSystemTopics": True, "columns": PLACE}
    latest = {"startingOffsetsByTimestampStrategy": "latest"}
    assert read(golden(store), startingTimestamp=0, **common).places() == rows
    assert read(golden(store), endingTimestamp=FAR_MS, **common).places() == rows
    assert read(golden(store), endingTimestamp=0, **common).places() == []
    assert read(golden(store), startingTimestamp=FAR_MS, **(common | latest)).places() == []


@pytest.mark.parametrize("store", ["batchcq-5.5.0", "rocksdb-5.5.0"])
def test_times_in_batch_queues_and_in_scans(golden: Golden, store: str) -> None:
    rows = told(store, lambda row: not row["topic"].startswith(("%", "SCHEDULE")))
    middle = sorted(row["storeTimestamp"] for row in rows)[len(rows) // 2]
    options = {"columns": PLACE, "startingOffsetsByTimestampStrategy": "latest"}
    late = told_places(row for row in rows if row["storeTimestamp"] >= middle)
    assert 0 < len(late) < len(rows)
    assert read(golden(store), startingTimestamp=middle, **options).places() == late
    early = told_places(row for row in rows if row["storeTimestamp"] < middle)
    assert read(golden(store), endingTimestamp=middle, **options).places() == early


def test_a_start_behind_the_last_message_is_an_error_unless_said(golden: Golden) -> None:
    sentence = r"Audit-0 of broker-a: no message at or after 4000000000000 \(2096-10-02.*Strategy=latest"
    with pytest.raises(StoreError, match=sentence):
        read(golden(STORE), subscribe="Audit", startingTimestamp=FAR_MS).rows()


def test_a_time_before_messages_that_retention_deleted_is_a_warning(
    golden: Golden, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As in Spark's Kafka source, such a time is no error. One warning says that messages are missing."""
    root = copy_of(golden, STORE, tmp_path)
    (root / "commitlog" / f"{0:020d}").unlink()
    left = told(STORE, lambda row: row["topic"] == "Orders" and row["physicalOffset"] >= FIRST_FILE)
    oldest = min(row["storeTimestamp"] for row in told(STORE) if row["physicalOffset"] >= FIRST_FILE)
    firsts = [MessageStore.open(str(root)).queue("Orders", number).min_offset for number in range(4)]
    first = firsts[0]
    assert first > 0
    common: dict[str, str | bool] = {"subscribe": "Orders", "columns": PLACE}

    assert read(root, startingTimestamp=oldest, **common).places() == told_places(left)
    assert Stream(root, subscribe="Orders", startingTimestamp=str(oldest)).step() == told_places(left)
    rmq_spark.open(str(root)).messages("Orders", since=oldest).to_table()
    assert read(root, **common).places() == told_places(left)
    assert caplog.messages == []  # all messages that were deleted are older than the time

    early = str(oldest - 1)
    assert read(root, startingTimestamp=early, **common).places() == told_places(left)
    by_time = json.dumps({"Orders": {"0": oldest - 1, "1": oldest}})
    assert read(root, startingOffsetsByTimestamp=by_time, **common).places() == told_places(left)
    assert Stream(root, subscribe="Orders", startingTimestamp=early).step() == told_places(left)
    assert rmq_spark.open(str(root)).messages("Orders", since=oldest - 1).to_table().num_rows == len(left)
    deleted = f"earlier messages were deleted, as in Orders-0 of broker-a, which begins at offset {first}"
    assert [message.split(" (")[0] for message in caplog.messages] == [
        "4 queues begin after startingTimestamp",
        "1 queue begins after startingOffsetsByTimestamp",
        "4 queues begin after startingTimestamp",
        "4 queues begin after since",
    ]
    for message, lost in zip(caplog.messages, [sum(firsts), first, sum(firsts), sum(firsts)], strict=True):
        assert message.endswith(
            f"Z): {deleted}; in all, {lost} deleted messages may be newer than the time: do not overwrite "
            "what an earlier read of this time wrote"
        )
