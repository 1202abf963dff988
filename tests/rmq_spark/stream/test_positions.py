"""A stream's positions without Spark, over stores that grow, shrink and go back between two offsets."""

from __future__ import annotations

import json
import logging
import os
import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pytest

from rmq_spark.consume.consumer import MessageQueue
from rmq_spark.consume.stream_offset import StreamOffset
from rmq_spark.options.option import STREAM
from rmq_spark.options.read_options import parse_read_options
from rmq_spark.plan.output_fields import fields_from_options
from rmq_spark.plan.scan import Scan
from rmq_spark.stream.plan import plan_stream
from rmq_spark.stream.positions import StreamPositions
from rmq_spark.stream.stores import StreamStores
from store_format import MessageStore
from store_format.errors import OffsetOutOfRangeError, OptionError, StoreError
from tests.support import goldens, oracle
from tests.support.file_edits import overwrite
from tests.support.fixtures import Golden
from tests.support.staged import append, deleted_topic, make_store, messages_of, numbered, update_topic

Place = tuple[str, int, int]


class Stream:
    """A query's life: `step` is one trigger and `restart` another process with the same checkpoint."""

    defaults: ClassVar[dict[str, Any]] = {"startingOffsets": "earliest"}

    def __init__(self, root: str | Path, *, clock_ms: Callable[[], int] = lambda: 0, **options: Any) -> None:
        self.given: dict[str, str] = {}
        self.clock_ms = clock_ms
        self.log: list[tuple[dict[str, Any], dict[str, Any]]] = []
        self.restart(**{"path": root} | self.defaults | options)

    def restart(self, **options: Any) -> None:
        given = self.given | options
        self.given = {name: str(value) for name, value in given.items() if value is not None}
        self.options = parse_read_options(self.given, where=STREAM)
        self.scan = Scan(fields_from_options(self.options), self.options)
        self.stores = StreamStores(self.options)
        self.positions = self.positions_of(self.stores)

    def positions_of(self, stores: StreamStores) -> Any:
        """Any: the positions of a group, and those of a query that pops, have more methods."""
        return StreamPositions(stores, clock_ms=self.clock_ms)

    def start(self) -> dict[str, Any]:
        return json.loads(json.dumps(self.log[-1][1] if self.log else self.positions.initial()))

    def begin(self) -> bool:
        """Whether Spark sees a new offset and begins a micro-batch, which it may not come to commit."""
        start = self.start()
        end = json.loads(json.dumps(self.positions.latest(start)))
        if json.dumps(end) == json.dumps(start):
            return False
        self.log.append((start, end))
        return True

    def step(self) -> list[Place] | None:
        """The places of the next micro-batch; None when Spark would see no new offset."""
        return self.read() if self.begin() else None

    def batches(self, batch: int = -1, positions: StreamPositions | None = None) -> list[pa.RecordBatch]:
        planned = (positions or self.positions).plan(*self.log[batch])
        self.lost = planned.lost
        return [batch for split in planned.splits for batch in self.scan.read(split)]

    def read(self, batch: int = -1, positions: StreamPositions | None = None) -> list[Place]:
        return sorted(place for part in self.batches(batch, positions) for place in _places(part))

    def replay(self, batch: int) -> list[Place]:
        """The same batch as a new process reads it."""
        return self.read(batch, self.positions_of(StreamStores(self.options)))


def _places(batch: pa.RecordBatch) -> list[Place]:
    return list(zip(*(batch[name].to_pylist() for name in ("topic", "queueId", "queueOffset")), strict=True))


def expected(topic: str, *ranges: tuple[int, int]) -> list[Place]:
    """By queue number: [start, stop)."""
    return sorted(
        (topic, queue, offset) for queue, (low, high) in enumerate(ranges) for offset in range(low, high)
    )


@pytest.fixture
def root(root: Path) -> Path:
    """Topic T, four queues of 5 messages."""
    append(root, numbered("T", 0, 20))
    return root


# ---- going on ----------------------------------------------------------------------------------------------


def test_nothing_new_is_the_very_start(root: Path) -> None:
    stream = Stream(root)
    assert stream.step() == expected("T", *[(0, 5)] * 4)
    start = stream.start()
    assert stream.positions.latest(start) is start
    assert stream.positions.latest(start) is start  # remembered
    stream.restart()
    assert stream.positions.latest(start) is start


def test_replays_give_the_same_rows_whatever_came_since(root: Path) -> None:
    stream = Stream(root, maxOffsetsPerTrigger=7)
    seen = [stream.step(), stream.step()]
    append(root, numbered("T", 20, 8) + numbered("New", 0, 8))
    seen.append(stream.step())
    assert [stream.replay(batch) for batch in range(3)] == seen


def test_the_first_batch_replays_from_its_own_starts(root: Path) -> None:
    """Spark asks a new process for the initial offset again, and `latest` is another one by then."""
    stream = Stream(root, startingOffsets="latest")
    assert stream.step() is None
    first = stream.positions.initial()
    append(root, numbered("T", 20, 4))
    assert stream.positions.initial() == first
    seen = stream.step()
    assert seen == expected("T", *[(5, 6)] * 4)
    append(root, numbered("T", 24, 4))
    stream.log[0] = (stream.positions_of(StreamStores(stream.options)).initial(), stream.log[0][1])
    assert stream.replay(0) == seen


def test_an_empty_first_batch_is_repeated(root: Path) -> None:
    """Spark logs it, and a driver that ends before it is committed repeats it behind newer messages."""
    stream = Stream(root, startingOffsets="latest")
    start = stream.start()
    assert stream.positions.latest(start) is start
    append(root, numbered("T", 20, 4))
    later = stream.positions_of(StreamStores(stream.options))
    stream.log.append((later.initial(), start))
    assert stream.read(0, later) == []
    assert stream.step() == expected("T", *[(5, 6)] * 4)


@pytest.mark.process
def test_however_a_batch_is_divided(tmp_path: Path) -> None:
    """Queues that were seen at different looks, before and behind new files of the log."""
    root = make_store(tmp_path / "store")
    append(root, numbered("T", 0, 4))
    stream, seen = Stream(root, maxOffsetsPerTrigger=17, splitBy="commitlog", minPartitions=4), []
    for number in range(4, 304, 60):
        append(root, numbered("T", number, 60) + numbered("U", number, 1))
        seen += stream.step() or []
    while (places := stream.step()) is not None:
        assert stream.replay(-1) == places
        seen += places
    assert sorted(seen) == sorted(expected("T", *[(0, 76)] * 4) + expected("U", (0, 5)))


def test_names_that_lead_elsewhere_are_none(
    root: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Topics come from messages here, and a message may say anything."""
    stream = Stream(root)
    stream.step()
    (tmp_path / "elsewhere").mkdir()
    shutil.copytree(root / "consumequeue" / "T" / "0", tmp_path / "elsewhere" / "0")
    names = ["../../elsewhere", "..", ".", "a/b", "$from"]
    last = messages_of(root)[-1]
    position = last.physical_offset + last.total_size
    for name in names:
        unit = replace(last, topic_bytes=name.encode(), physical_offset=position, queue_offset=0)
        overwrite(root / "commitlog" / oracle.file_name(0), position, oracle.encode_message(unit))
        position += unit.total_size
    assert stream.step() is None
    shutil.copytree(root / "consumequeue" / "T", root / "consumequeue" / "$from")
    stream.restart()
    assert stream.step() is None
    of_queue, of_name = (record.message for record in caplog.records)
    assert "1 consume queues lack the entries of their newest messages: $from-3" in of_queue
    assert of_name == "topic '$from' is not read: in a checkpoint, names that begin with $ are reserved"


# ---- where a stream starts ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "first"),
    [
        ({"startingOffsets": None}, [5, 5, 5, 5]),
        ({"startingOffsets": '{"T":{"0":3,"1":-2,"*":-1}}'}, [3, 0, 5, 5]),
        ({"startingOffsets": '{"T":{"0":3}}'}, [3, 5, 5, 5]),
        ({"startingOffsets": '{"T":{"0":9}}', "failOnDataLoss": "false"}, [5, 5, 5, 5]),
        ({"startingTimestamp": "1000"}, [0, 0, 0, 0]),
        ({"startingOffsetsByTimestamp": '{"T":{"0":1000}}'}, [0, 5, 5, 5]),
        ({"startingTimestamp": "1900000000000", "startingOffsetsByTimestampStrategy": "latest"}, [5] * 4),
    ],
)
def test_the_starting_options(root: Path, options: dict[str, Any], first: list[int]) -> None:
    ends = {"T": {"broker-a": {str(queue): offset for queue, offset in enumerate(first)}}}
    start = Stream(root, **options).start()
    assert {name: start[name] for name in ("T", "$from")} == {"T": ends["T"], "$from": ends}
    assert start.get("$at", {"T": {"broker-a": {}}})["T"]["broker-a"].keys() == {
        str(queue)
        for queue, offset in enumerate(first)
        if offset  # `$at`: the message before the offset
    }


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"startingOffsets": '{"T":{"0":9}}'},
         "T-0 of broker-a: startingOffsets 9 is not in the queue, which holds 0 to 5; correct it"),
        ({"startingTimestamp": "1900000000000"}, "no message at or after 1900000000000"),
        ({"subscribe": "Tt"}, "no store has a topic 'Tt'; did you mean T?"),
        ({"startingOffsets": '{"T":{"7":0}}'}, "startingOffsets: T/*/7 is not one of the queues read"),
    ],
)  # fmt: skip
def test_a_start_that_is_not_there_is_refused(root: Path, options: dict[str, Any], said: str) -> None:
    with pytest.raises(StoreError) as caught:
        Stream(root, **options).start()
    assert said in str(caught.value)


def test_with_a_checkpoint_the_starting_options_are_ignored_and_that_is_said_once(
    root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stream = Stream(root)
    stream.step()
    append(root, numbered("T", 20, 1))
    stream.restart(startingOffsets='{"T":{"0":999}}')
    with caplog.at_level(logging.INFO, "rmq_spark"):
        assert stream.step() == [("T", 0, 5)]
        assert stream.step() is None
    assert caplog.messages == [
        "continuing from the checkpoint; the starting… options apply to new queries only"
    ]


# ---- queues that come and go -------------------------------------------------------------------------------


@pytest.mark.parametrize("choice", [{}, {"subscribePattern": "[TN].*"}])
def test_new_topics_and_queues_are_read_from_their_beginning(root: Path, choice: dict[str, Any]) -> None:
    stream = Stream(root, **choice, startingOffsets="latest")
    assert stream.step() is None
    append(root, numbered("New", 0, 4, queues=2))
    assert stream.step() == expected("New", (0, 2), (0, 2))
    assert stream.log[-1][1]["$from"] == stream.start()["$from"]
    update_topic(root, "T", 6)
    append(root, numbered("T", 0, 12, queues=6))
    assert stream.step() == expected("T", *[(5, 7)] * 4, *[(0, 2)] * 2)
    assert stream.log[-1][1]["$from"] == {"T": {"broker-a": {"4": 0, "5": 0}}}


def test_topics_that_are_not_subscribed_make_no_offsets(root: Path) -> None:
    stream = Stream(root, subscribe="T")
    stream.step()
    append(root, numbered("New", 0, 400))
    assert stream.step() is None
    append(root, numbered("T", 20, 1))
    assert stream.step() == [("T", 0, 5)]


def test_a_broker_of_another_name_is_an_error(root: Path) -> None:
    stream = Stream(root)
    stream.step()
    stream.restart(brokerName="other", failOnDataLoss="false")
    with pytest.raises(OptionError) as caught:
        stream.step()
    assert str(caught.value) == (
        "the checkpoint reads broker broker-a and the path has other; "
        "set brokerName=broker-a if it is the same store, or start with a new checkpoint"
    )


# ---- data loss ---------------------------------------------------------------------------------------------


def delete_log_files(root: Path, count: int) -> None:
    """Retention: the first commitlog files go."""
    for path in sorted((root / "commitlog").iterdir())[:count]:
        path.unlink()


def grown(tmp_path: Path) -> Path:
    """Topic T, four queues of 100 messages, in many commitlog files."""
    root = make_store(tmp_path / "grown")
    for number in range(0, 400, 40):
        append(root, numbered("T", number, 40))
    return root


def minima(root: Path) -> list[int]:
    store = MessageStore.open(str(root))
    return [store.queue("T", queue).min_offset for queue in range(4)]


def test_retention_that_overtakes_the_reader(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    root = grown(tmp_path)
    stream = Stream(root, maxOffsetsPerTrigger=40)
    assert stream.step() == expected("T", *[(0, 10)] * 4)
    delete_log_files(root, 3)
    lows = minima(root)
    with pytest.raises(OffsetOutOfRangeError) as caught:
        stream.step()
    assert str(caught.value) == (
        f"T-0 of broker-a: the next offset is 10 and the queue holds {lows[0]} to 100: retention deleted "
        f"{lows[0] - 10} messages (and 3 more queues; in all, {sum(lows) - 40} messages of 4 queues are "
        f"lost); set failOnDataLoss=false to continue at offset {lows[0]}"
    )
    stream.restart(failOnDataLoss="false")
    seen = stream.step() or []
    assert len(seen) == 40
    assert stream.log[-1][1]["$from"] == {"T": {"broker-a": dict(zip("0123", lows, strict=True))}}
    total = sum(lows) - 40
    assert sum(int(message.split(" messages lost")[0]) for message in caplog.messages[:4]) == total
    while (places := stream.step()) is not None:
        seen += places
    assert sorted(seen) == expected("T", *[(low, 100) for low in lows])
    assert caplog.messages[4:] == [f"in all, {total} messages of 4 queues are lost"]


def test_a_repeated_batch_says_how_many_messages_of_the_queue_are_gone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """More than the messages of the batch: also those behind it, up to the first one that exists."""
    root = grown(tmp_path)
    stream = Stream(root, maxOffsetsPerTrigger=40)
    stream.step()
    delete_log_files(root, 3)
    low = minima(root)[0]
    assert low > 10
    with pytest.raises(OffsetOutOfRangeError) as caught:
        stream.replay(0)
    message = (
        f"T-0 of broker-a: 10 of the messages 0 to 10 of this batch no longer exist; the queue holds {low} "
        f"to 100: all {low} messages from 0 to {low} were deleted"
    )
    assert str(caught.value) == f"{message}. Set failOnDataLoss=false to continue without them"
    stream.restart(failOnDataLoss="false")
    stream.replay(0)
    assert caplog.messages[0] == f"10 messages lost: {message}"
    assert caplog.messages[4:] == ["in all, 40 messages of 4 queues are lost in this batch"]


def test_retention_between_the_end_and_its_planning(tmp_path: Path) -> None:
    root = grown(tmp_path)
    stream = Stream(root)
    stream.step()
    delete_log_files(root, 3)
    with pytest.raises(
        OffsetOutOfRangeError,
        match=r"T-0 of broker-a: \d+ of the messages 0 to 100 of this batch no longer exist",
    ):
        stream.replay(0)
    stream.restart(failOnDataLoss="false")
    lows = minima(root)
    assert stream.replay(0) == expected("T", *[(low, 100) for low in lows])
    assert stream.lost == sum(lows)


def test_an_empty_batch_plans_nothing_whatever_was_deleted(root: Path) -> None:
    """Before Spark 4.2, each restart plans the empty batch at the checkpoint's newest offset."""
    stream = Stream(root)
    stream.step()
    end = stream.log[-1][1]
    delete_log_files(root, 1)
    stream.restart()
    assert [split.shares for split in stream.positions.plan(end, end).splits] == [()]


def test_offsets_that_go_back(root: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    older = Path(shutil.copytree(root, tmp_path / "older"))
    append(root, numbered("T", 20, 20))
    stream = Stream(root)
    stream.step()
    shutil.rmtree(root)
    older.rename(root)
    with pytest.raises(OffsetOutOfRangeError) as caught:
        stream.step()
    assert str(caught.value) == (
        "T-0 of broker-a: the next offset is 10 and the queue holds 0 to 5: its offsets went back by 5 (is "
        "the store an older copy, or was the topic deleted and created again?) (and 3 more queues); start "
        "with a new checkpoint, or set failOnDataLoss=false to continue at offset 5"
    )
    stream.restart(failOnDataLoss="false")
    assert stream.step() == []
    append(root, numbered("T", 100, 4))
    assert stream.step() == expected("T", *[(5, 6)] * 4)
    assert [record.levelname for record in caplog.records] == ["WARNING"] * 4


@pytest.mark.parametrize("restarted", [False, True])
def test_a_queue_that_vanishes(root: Path, caplog: pytest.LogCaptureFixture, restarted: bool) -> None:
    append(root, numbered("U", 0, 2, queues=1))
    stream = Stream(root)
    stream.step()
    deleted_topic(root, "U")
    if restarted:
        stream.restart()
    with pytest.raises(OffsetOutOfRangeError) as caught:
        stream.step()
    assert str(caught.value) == (
        "U-0 of broker-a: the next offset is 2 and the store no longer has the queue (was the topic "
        "deleted?); set failOnDataLoss=false to continue without it"
    )
    stream.restart(failOnDataLoss="false")
    assert stream.step() == []
    assert stream.start().keys() == {"T", "$at"}
    assert stream.step() is None
    assert [record.levelname for record in caplog.records] == ["WARNING"]


# ---- rates -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limits", [{}, {"maxOffsetsPerTrigger": 6}])
def test_limits_hold_in_every_batch(tmp_path: Path, limits: dict[str, Any]) -> None:
    root = make_store(tmp_path / "store")
    for number in range(0, 60, 12):
        append(root, numbered("T", number, 12, body_size=20 * number + 1))
    columns = ["topic", "queueId", "queueOffset", "storeSize"]
    rows = [row for batch in MessageStore.open(str(root)).scan(columns) for row in batch.to_pylist()]
    sizes = {tuple(row.values())[:3]: row["storeSize"] for row in rows}
    stream, seen = Stream(root, maxBytesPerTrigger=3000, **limits), []
    while (places := stream.step()) is not None:
        seen += places
        assert sum(sizes[place] for place in places) <= 3000
        assert len(places) <= limits.get("maxOffsetsPerTrigger", 60)
    assert sorted(seen) == expected("T", *[(0, 15)] * 4)


def test_limits_of_queues_and_topics_hold_in_every_batch(tmp_path: Path) -> None:
    root = make_store(tmp_path / "store")
    append(root, numbered("T", 0, 40) + numbered("U", 0, 8))
    stream, seen = Stream(root, maxOffsetsPerQueue=3, maxOffsetsPerTopic=7), []
    while (places := stream.step()) is not None:
        seen += places
        assert max(Counter(place[:2] for place in places).values()) <= 3
        assert max(Counter(topic for topic, *_ in places).values()) <= 7
    assert sorted(seen) == expected("T", *[(0, 10)] * 4) + expected("U", *[(0, 2)] * 4)


def test_available_now_with_limits_of_queues_is_complete(root: Path) -> None:
    stream = Stream(root, maxOffsetsPerQueue=2)
    stream.positions.bound_now()
    append(root, numbered("T", 20, 8))
    assert [len(stream.step() or []) for _ in range(4)] == [8, 8, 4, 0]


def test_a_minimum_waits_but_not_for_ever(root: Path) -> None:
    now = [0]
    stream = Stream(root, minOffsetsPerTrigger=10, maxTriggerDelay="5s", clock_ms=lambda: now[0])
    assert stream.step() is not None
    append(root, numbered("T", 20, 3))
    for now[0] in (1, 2000, 4999):
        assert stream.step() is None
    now[0] = 5000
    assert stream.step() == [("T", 0, 5), ("T", 1, 5), ("T", 2, 5)]
    append(root, numbered("T", 23, 10))
    assert len(stream.step() or []) == 10


def test_available_now_ends_where_the_queues_ended(root: Path) -> None:
    stream = Stream(root, maxOffsetsPerTrigger=6, minOffsetsPerTrigger=6)
    stream.positions.bound_now()
    seen = list(stream.step() or [])
    append(root, numbered("T", 20, 8) + numbered("New", 0, 8))
    while (places := stream.step()) is not None:
        seen += places
    assert sorted(seen) == expected("T", *[(0, 5)] * 4)
    stream.restart()
    stream.positions.bound_now()
    while (places := stream.step()) is not None:
        seen += places
    assert sorted(seen) == sorted(expected("T", *[(0, 7)] * 4) + expected("New", *[(0, 2)] * 4))


def test_reported_is_where_the_queues_end(root: Path) -> None:
    stream = Stream(root, maxOffsetsPerTrigger=1)
    assert stream.positions.report() is None
    stream.step()
    append(root, numbered("T", 20, 1))
    stream.step()
    assert stream.positions.report() == {"T": {"broker-a": {"0": 6, "1": 5, "2": 5, "3": 5}}}


# ---- checkpoints that are none of ours ---------------------------------------------------------------------

_NO_START = 'the checkpoint has no start offset for T-0 of broker-a, neither in "$from" nor before'


@pytest.mark.parametrize(
    ("start", "said"),
    [(None, _NO_START), (4, "the checkpoint moves T-0 of broker-a back from offset 4 to 3")],
)
def test_a_checkpoint_that_tells_no_start_or_goes_back_is_refused(
    root: Path, start: int | None, said: str
) -> None:
    options, queue = parse_read_options({"path": str(root)}, where=STREAM), MessageQueue("T", "broker-a", 0)
    with pytest.raises(OptionError, match="was it edited") as caught:
        plan_stream(
            options,
            StreamStores(options),
            StreamOffset({} if start is None else {queue: start}),
            StreamOffset({queue: 3}),
        )
    assert str(caught.value).startswith(said)


@pytest.mark.process
@pytest.mark.parametrize(
    "name",
    [name for name in goldens.NAMES if name != "defaults-5.5.0" and "brokers" not in goldens.expected(name)],
)
def test_golden_stores_in_small_batches(golden: Golden, name: str) -> None:
    """Crashed stores, stores without consume queues, message batches: in micro-batches as in one."""
    root = golden(name)
    whole = Stream(root).step()
    stream, seen = Stream(root, maxOffsetsPerTrigger=-(-len(whole or [0]) // 4)), []
    while (places := stream.step()) is not None:
        assert stream.replay(-1) == places
        seen += places
    assert sorted(seen) == (whole or [])
    assert len(stream.log) in (0, 4)
    assert os.listdir(root)
