"""Streams: catching up beside a stream of ready Arrow batches, looks that find nothing or something, and
micro-batches.
"""

from __future__ import annotations

import itertools
import secrets
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from benchmarks.ceiling import prepare_batches
from benchmarks.fill import Filling, message_columns
from benchmarks.processes import cpu_seconds
from benchmarks.rounds import Figure, interleave
from benchmarks.spark_read import Comparison
from rmq_spark.options.option import STREAM
from rmq_spark.options.read_options import parse_read_options
from rmq_spark.plan.output_fields import fields_from_options
from rmq_spark.plan.scan import Scan
from rmq_spark.spark.types import to_spark_schema
from rmq_spark.stream.positions import StreamPositions
from rmq_spark.stream.stores import StreamStores
from store_format.commit.append import commit
from store_format.commit.options import CommitOptions
from store_format.commit.staging import StagingWriter
from store_format.opened.store import Opened

_IDLE_LOOKS = 200
_APPENDS = 10
_FEW = 10
_MICRO_BATCHES = 6
TICK_S = 0.06  # directories count once they are older than a tick of the clock
_BATCH_TIMEOUT_S = 120
_TASK_SLOTS = 2


@dataclass(frozen=True, slots=True)
class Looks:
    """Milliseconds that `latestOffset` takes when nothing was appended, when ten messages were, and when
    every queue got one.
    """

    queues: int
    idle_milliseconds: Figure
    few_milliseconds: Figure
    all_milliseconds: Figure


def measure_catching_up(
    spark: SparkSession, root: Path, rows_per_batch: int, rounds: int
) -> list[Comparison]:
    """A new stream with AvailableNow, from the beginning to the end of the store, into the noop sink:
    starting it is in the time.
    """
    cases = catching_up_cases(spark, root, root.parent, rows_per_batch)
    rates = interleave(cases, rounds, cpu_seconds)
    return [Comparison(name, rates[name], rates["ceiling"]) for name in cases if name != "ceiling"]


def catching_up_cases(
    spark: SparkSession, root: Path, directory: Path, rows_per_batch: int
) -> dict[str, Callable[[], int]]:
    """Streams with CRC on and off, and the ceiling."""
    options = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": str(rows_per_batch)}
    places = (str(directory / f"checkpoint-{number}") for number in itertools.count())
    rows = spark.read.format("rmqlog").load(str(root)).count()
    cases: dict[str, Callable[[], int]] = {}
    for crc in ("on", "off"):
        read = spark.readStream.format("rmqlog").options(**options, verifyCrc=str(crc == "on").lower())
        cases[f"stream, default columns, CRC {crc}"] = partial(run_stream, read.load(str(root)), places)
    ceiling = _ceiling(spark, root, directory, rows, rows_per_batch)
    return cases | {"ceiling": partial(run_stream, ceiling, places)}


def run_stream(frame: DataFrame, places: Iterator[str]) -> int:
    """Rows of a stream from its start to its end, into the noop sink."""
    query = (
        frame.writeStream.format("noop")
        .option("checkpointLocation", next(places))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return sum(int(progress["numInputRows"]) for progress in query.recentProgress)


def _ceiling(spark: SparkSession, root: Path, directory: Path, rows: int, rows_per_batch: int) -> DataFrame:
    read = parse_read_options({"path": str(root)})
    fields = fields_from_options(read)
    batches = directory / f"{root.name}-stream.arrow"
    prepare_batches(Scan(fields, read), batches)
    options: Mapping[str, str | int] = {
        "batches": str(batches),
        "rows": rows,
        "rowsPerBatch": rows_per_batch,
        "partitions": _TASK_SLOTS,
    }
    return (
        spark.readStream.format("rmqlog_ceiling")
        .schema(to_spark_schema(fields.to_arrow_schema()))
        .options(**options)
        .load()
    )


def measure_looks(root: Path, filling: Filling) -> Looks:
    """The driver's look at a store of so many queues, without Spark."""
    options = parse_read_options({"path": str(root), "startingOffsets": "earliest"}, where=STREAM)
    positions = StreamPositions(StreamStores(options))
    end = positions.latest(positions.initial())
    idle: list[float] = []
    appended: dict[int, list[float]] = {_FEW: [], filling.queues: []}
    for count in (_FEW, filling.queues) * _APPENDS:
        time.sleep(TICK_S)
        for _ in range(_IDLE_LOOKS // _APPENDS):
            seconds, found = _timed(partial(positions.latest, end))
            if found != end:
                raise ValueError(f"{root}: a look found more where nothing had been appended")
            idle.append(seconds * 1000)
        append_more(root, filling, count)
        seconds, found = _timed(partial(positions.latest, end))
        if found == end:
            raise ValueError(f"{root}: a look did not find what had been appended")
        end = found
        appended[count].append(seconds * 1000)
    return Looks(
        filling.queues, Figure.of(idle), Figure.of(appended[_FEW]), Figure.of(appended[filling.queues])
    )


def measure_micro_batches(spark: SparkSession, root: Path, filling: Filling) -> Figure:
    """Seconds of a micro-batch in which every queue has a new message, as Spark counts them
    (`triggerExecution`).
    """
    read = spark.readStream.format("rmqlog").option("startingOffsets", "latest").load(str(root))
    with tempfile.TemporaryDirectory(dir=root.parent) as place:
        query = read.writeStream.format("noop").option("checkpointLocation", place).start()
        try:
            query.processAllAvailable()
            for number in range(_MICRO_BATCHES):
                append_more(root, filling, filling.queues)
                _wait_for_rows(query, (number + 1) * filling.queues)
            seconds = [
                each["durationMs"]["triggerExecution"] / 1000
                for each in query.recentProgress
                if each["numInputRows"]
            ]
        finally:
            query.stop()
    return Figure.of(seconds[1:])  # the first one starts the Python workers


def _wait_for_rows(query: StreamingQuery, rows: int) -> None:
    deadline = time.monotonic() + _BATCH_TIMEOUT_S
    while sum(int(each["numInputRows"]) for each in query.recentProgress) < rows:
        if not query.isActive or time.monotonic() > deadline:
            raise TimeoutError(f"the stream did not read {rows} rows: {query.exception()}")
        time.sleep(0.02)


def append_more(root: Path, filling: Filling, count: int) -> None:
    """So many messages more, to one queue after another, committed at once."""
    messages, _ = message_columns(filling, 0, count)
    writer = StagingWriter(Opened(str(root)), secrets.token_hex(8), sync=False)
    writer.stage(messages)
    commit(str(root), [writer.close()], options=CommitOptions(sync=False))


def _timed(call: Callable[[], dict[str, Any]]) -> tuple[float, dict[str, Any]]:
    start = time.perf_counter()
    found = call()
    return time.perf_counter() - start, found
