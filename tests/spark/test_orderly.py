"""`Orderly` with real streams: a queue stops at its first failure, others go on, a restart knows where."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException

from rmq_spark.consume.consumer import MessageQueue
from rmq_spark.consume.group.directory import read_state
from rmq_spark.consume.offset_store import StoreOffsets
from rmq_spark.consume.orderly import OrderlyRun, Stop
from rmq_spark.services import Orderly
from rmq_spark.spark.orderly_tasks import handle_rows
from store_format import MessageStore
from store_format.errors import OptionError
from tests.support.fixtures import SparkSession
from tests.support.spark.orderly_notes import Notes, query_options
from tests.support.staged import append, make_store, numbered, update_topic

BROKER = "broker-a"
_TIMEOUT_S = 120  # a query that hangs fails its test; it takes a few seconds


class Bench:
    """A store with topic T and three queues of 4 messages, a handler, and runs of one query over it."""

    def __init__(self, spark: SparkSession, base: Path) -> None:
        self.spark, self.base = spark, base
        self.root = make_store(base / "store")
        append(self.root, numbered("T", 0, 12, queues=3))
        update_topic(self.root, "T", 3)
        self.notes = Notes(base)
        self.notes.fail_at()
        self.options = query_options(str(self.root))

    def start(self, handler: Callable[[Any, int], None], **trigger: Any) -> Any:
        stream = self.spark.readStream.format("rmqlog").options(**self.options).load()
        writer = stream.writeStream.foreachBatch(handler).trigger(**trigger)
        return writer.option("checkpointLocation", str(self.base / "checkpoint")).start()

    def run(self, **orderly: Any) -> dict[int, list[tuple[int, int]]]:
        query = self.start(Orderly(self.notes, self.options, **orderly), availableNow=True)
        try:
            assert query.awaitTermination(_TIMEOUT_S)
        finally:
            query.stop()
        return self.notes.take()

    def committed(self) -> dict[int, int]:
        found = StoreOffsets("g", {BROKER: str(self.root)}).read()
        return {queue.queue_id: offset for queue, offset in found.items() if queue.topic == "T"}

    def stop_of(self, queue: int) -> Stop | None:
        state = read_state(f"{self.root}/.rmqlog/groups/g")
        return state.queues[MessageQueue("T", BROKER, queue)].stop


@pytest.fixture
def bench(spark: SparkSession, tmp_path: Path) -> Bench:
    return Bench(spark, tmp_path)


def all_of(*ranges: tuple[int, int], times: int = 0) -> list[tuple[int, int]]:
    return [(offset, times) for low, high in ranges for offset in range(low, high)]


@pytest.mark.slow
def test_a_failed_queue_stops_and_the_others_go_on(bench: Bench) -> None:
    with pytest.raises(OptionError, match="found none of the name storedTopic; keep them in the DataFrame"):
        handle_rows(bench.spark.range(1), bench.notes, partial(OrderlyRun, {}))
    bench.notes.fail_at("1 2")
    found = bench.run(max_reconsume_times=2)
    assert found == {0: all_of((0, 4)), 1: all_of((0, 3)), 2: all_of((0, 4))}
    assert bench.committed() == {0: 4, 1: 2, 2: 4}
    stop = bench.stop_of(1)
    assert stop is not None
    assert (stop.offset, stop.times) == (2, 1)
    append(bench.root, numbered("T", 12, 3, queues=3))
    assert bench.run(max_reconsume_times=2) == {0: [(4, 0)], 1: [(2, 1)], 2: [(4, 0)]}
    assert bench.committed() == {0: 5, 1: 2, 2: 5}
    # The third failure is the last: the message becomes a dead letter and the queue goes on.
    assert bench.run(max_reconsume_times=2) == {1: [(2, 2), (3, 0), (4, 0)]}
    assert bench.committed() == {0: 5, 1: 5, 2: 5}
    assert bench.stop_of(1) is None
    (batch,) = MessageStore.open(str(bench.root)).queue("%DLQ%g", 0).read()
    assert batch["body"].to_pylist()[0].startswith(b"message 7 of T")


def test_a_repeated_batch_handles_only_what_is_not_done(bench: Bench) -> None:
    bench.notes.fail_at("1 2")
    orderly = Orderly(bench.notes, bench.options)

    def breaks_off(frame: Any, batch_id: int) -> None:
        orderly(frame, batch_id)
        raise RuntimeError("the query ends before Spark commits")

    with pytest.raises(PySparkException, match="before Spark commits"):
        bench.start(breaks_off, availableNow=True).awaitTermination(_TIMEOUT_S)
    assert bench.notes.take()[1] == all_of((0, 3))
    bench.notes.fail_at()
    # Spark repeats the batch; then the group goes back to the stop, and no message is handled again.
    assert bench.run() == {0: all_of((0, 4)), 1: [(2, 1), (3, 0)], 2: all_of((0, 4))}
    assert bench.committed() == dict.fromkeys(range(3), 4)
    assert bench.stop_of(1) is None
