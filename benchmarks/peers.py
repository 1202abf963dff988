"""`python -m benchmarks.peers`: rmqlog, Spark's Kafka source and sink, and Parquet on the same messages, in
turns in one Spark session, each by the transport ceiling.

A message has in Kafka its keys as key, its body as value and its other properties as headers; in Parquet it
has the default columns of rmqlog.
"""

from __future__ import annotations

import argparse
import itertools
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, cast

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from benchmarks.fill import Filling, fill
from benchmarks.kafka import Broker, connector_jars
from benchmarks.pages import settle
from benchmarks.processes import cpu_seconds
from benchmarks.report import machine, table, write_block
from benchmarks.rounds import Rates, interleave
from benchmarks.sessions import session
from benchmarks.spark_read import consume, read_cases
from benchmarks.spark_write import cached_messages, remove, write_cases
from benchmarks.streaming import catching_up_cases, run_stream

_BYTES, _UNIT_BYTES = 400_000_000, 272
_STREAM_ROWS, _STREAM_BATCHES = 4_000_000, 10  # as in `make bench`
_QUEUES = 8
_HEAP = "6g"
# Without compression and with large fetches and batches: Kafka at its best on one machine.
_SOURCE = {
    "kafka.max.partition.fetch.bytes": 16 << 20,
    "kafka.fetch.max.bytes": 16 << 20,
    "kafka.fetch.min.bytes": 1 << 20,
    "kafka.receive.buffer.bytes": 1 << 20,
    "kafka.fetch.max.wait.ms": 50,
}
_SINK = {
    "kafka.batch.size": 1 << 20,
    "kafka.linger.ms": 20,
    "kafka.acks": "1",
    "kafka.compression.type": "none",
}
_Cases = dict[str, Callable[[], int]]


class Kafka:
    """Topics of a broker, as Spark reads and writes them."""

    def __init__(self, spark: SparkSession, address: str) -> None:
        self._spark = spark
        self._address = address
        self._numbers = itertools.count()
        self._jvm = cast(Any, spark._jvm)  # Any: the JVM's classes by their names
        properties = self._jvm.java.util.Properties()
        properties.put("bootstrap.servers", address)
        self._admin = self._jvm.org.apache.kafka.clients.admin.AdminClient.create(properties)

    def close(self) -> None:
        """Ends the client that creates and deletes topics."""
        self._admin.close()

    def create(self) -> str:
        """A new topic with as many partitions as the store has queues."""
        name = f"orders-{next(self._numbers)}"
        topic = self._jvm.org.apache.kafka.clients.admin.NewTopic(name, _QUEUES, 1)
        self._admin.createTopics(self._list(topic)).all().get()
        return name

    def delete(self, name: str) -> None:
        """The topic with its messages."""
        self._admin.deleteTopics(self._list(name)).all().get()

    def forget_consumers(self) -> None:
        """Empties Spark's pools of consumers and of fetched messages, which no other case shall find."""
        module = self._jvm.java.lang.Class.forName(
            "org.apache.spark.sql.kafka010.consumer.KafkaDataConsumer$"
        )
        for name in ("consumerPool", "fetchedDataPool"):
            pool = module.getDeclaredField(name)
            pool.setAccessible(True)
            pool.get(None).reset()

    def write(self, frame: DataFrame, topic: str) -> None:
        """Messages as `_as_kafka` gives them."""
        frame.write.format("kafka").options(**self._options(_SINK), topic=topic).save()

    def read(self, topic: str, *, headers: bool) -> DataFrame:
        """All messages of a topic."""
        read = self._spark.read.format("kafka").options(**self._options(_SOURCE), subscribe=topic)
        return read.option("includeHeaders", str(headers).lower()).load()

    def stream(self, topic: str, rows_per_batch: int) -> DataFrame:
        """A stream from the start of a topic."""
        read = self._spark.readStream.format("kafka").options(**self._options(_SOURCE), subscribe=topic)
        read = read.option("includeHeaders", "true").option("startingOffsets", "earliest")
        return read.option("maxOffsetsPerTrigger", rows_per_batch).load()

    def _options(self, settings: dict[str, Any]) -> dict[str, Any]:
        return {"kafka.bootstrap.servers": self._address} | settings

    def _list(self, item: object) -> Any:
        found = self._jvm.java.util.ArrayList()
        found.add(item)
        return found


def _stored(spark: SparkSession, root: Path) -> DataFrame:
    """The messages of a store with all that a topic gets of them."""
    columns = "body,properties,keys,tags"
    frame = spark.read.format("rmqlog").option("columns", columns).load(str(root))
    return frame.withColumn(
        "properties", F.map_filter("properties", lambda name, _: ~name.isin("KEYS", "TAGS"))
    )


def _as_kafka(frame: DataFrame) -> DataFrame:
    tags = F.struct(F.lit("TAGS").alias("key"), F.col("tags").cast("binary").alias("value"))
    others = F.transform(
        F.map_entries("properties"),
        lambda entry: F.struct(entry["key"].alias("key"), entry["value"].cast("binary").alias("value")),
    )
    headers = F.concat(F.array(tags), others).alias("headers")
    return frame.select(F.array_join("keys", " ").alias("key"), F.col("body").alias("value"), headers)


# ---- what is measured --------------------------------------------------------------------------------------


def _reading(spark: SparkSession, root: Path, directory: Path, kafka: Kafka, rounds: int) -> list[Rates]:
    parquet, topic = directory / "parquet", kafka.create()
    kafka.write(_as_kafka(_stored(spark, root)), topic)
    spark.read.format("rmqlog").load(str(root)).write.parquet(str(parquet))
    calls = read_cases(spark, root, directory, ["default columns"])
    cases: _Cases = {
        "ceiling": calls["default columns"],
        "rmqlog, CRC on": calls["default columns, CRC on"],
        "rmqlog, CRC off": calls["default columns, CRC off"],
        "Kafka, with headers": consume(kafka.read(topic, headers=True)),
        "Kafka, without headers": consume(kafka.read(topic, headers=False)),
        "Parquet": consume(spark.read.parquet(str(parquet))),
    }
    before = dict.fromkeys(cases, kafka.forget_consumers)
    try:
        return list(interleave(cases, rounds, cpu_seconds, before).values())
    finally:
        kafka.delete(topic)
        shutil.rmtree(parquet)


def _writing(
    spark: SparkSession, root: Path, directory: Path, kafka: Kafka, filling: Filling, rounds: int
) -> list[Rates]:
    target, topics = directory / "written", [kafka.create()]

    def new_directory() -> None:
        remove(target)
        settle(directory, filling)

    def new_topic() -> None:
        kafka.delete(topics.pop())
        topics.append(kafka.create())
        settle(directory, filling)

    with cached_messages(spark, root) as frame:
        for_kafka = _as_kafka(frame).cache()
        for_kafka.count()
        calls = write_cases(frame, target)
        rows = frame.count()

        def to_kafka() -> int:
            kafka.write(for_kafka, topics[-1])
            return rows

        def to_parquet() -> int:
            frame.write.parquet(str(target))
            return rows

        cases: _Cases = {
            "ceiling": calls["ceiling"],
            "rmqlog, with index": calls["ASYNC_FLUSH, with index"],
            "rmqlog, without index": calls["ASYNC_FLUSH, without index"],
            "Kafka, with headers": to_kafka,
            "Parquet": to_parquet,
        }
        before: dict[str, Callable[[], None]] = dict.fromkeys(cases, new_directory)
        before["Kafka, with headers"] = new_topic
        try:
            return list(interleave(cases, rounds, cpu_seconds, before).values())
        finally:
            for_kafka.unpersist()
            remove(target)
            kafka.delete(topics.pop())


def _streaming(
    spark: SparkSession, root: Path, directory: Path, kafka: Kafka, rows: int, rounds: int
) -> list[Rates]:
    topic, per_batch = kafka.create(), rows // _STREAM_BATCHES
    kafka.write(_as_kafka(_stored(spark, root)), topic)
    calls = catching_up_cases(spark, root, directory, per_batch)
    places = (str(directory / f"kafka-{number}") for number in itertools.count())
    cases: _Cases = {
        "ceiling": calls["ceiling"],
        "rmqlog, CRC on": calls["stream, default columns, CRC on"],
        "Kafka, with headers": partial(run_stream, kafka.stream(topic, per_batch), places),
    }
    before = dict.fromkeys(cases, kafka.forget_consumers)
    try:
        return list(interleave(cases, rounds, cpu_seconds, before).values())
    finally:
        kafka.delete(topic)


# ---- the run -----------------------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> int:
    given = _parser().parse_args(arguments)
    share, rounds = (1e-3, 1) if given.smallest else (0.1, 3) if given.quick else (1.0, 5)
    sizes = (100,) if given.smallest else (100, 1024, 16384)
    with (
        tempfile.TemporaryDirectory(prefix="rmqlog-peers-", dir=given.directory) as place,
        Broker(Path(place) / "kafka") as broker,
        _session(Path(place)) as spark,
    ):
        kafka = Kafka(spark, broker.address)
        try:
            text = _measure(spark, kafka, Path(place), sizes, share, rounds)
        finally:
            kafka.forget_consumers()
            kafka.close()
            spark.sparkContext.setLogLevel("ERROR")  # Spark's producers outlive the broker for a moment
    print(text, end="")
    if given.markdown is not None:
        write_block(given.markdown, text, "peers")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.peers", description="rmqlog beside Spark's Kafka and Parquet."
    )
    extent = parser.add_mutually_exclusive_group()
    extent.add_argument("--quick", action="store_true", help="a tenth of the messages, three rounds")
    extent.add_argument(
        "--smallest", action="store_true", help="a few messages, one round: shows that it runs"
    )
    parser.add_argument("--directory", type=Path, help="where to put stores and topics, up to 4 GB")
    parser.add_argument("--markdown", type=Path, help="a page to write the tables into, between its marks")
    return parser


@contextmanager
def _session(directory: Path) -> Iterator[SparkSession]:
    jars = ":".join(map(str, connector_jars()))
    with session(directory, {"spark.driver.memory": _HEAP, "spark.driver.extraClassPath": jars}) as spark:
        yield spark


def _measure(
    spark: SparkSession, kafka: Kafka, place: Path, sizes: Sequence[int], share: float, rounds: int
) -> str:
    parts = [machine()]
    for size in sizes:
        messages = max(int(_BYTES * share) // (size + _UNIT_BYTES), 200)
        filling = Filling(messages=messages, body_size=size)
        with _filled(place, filling) as (root, own):
            parts += _table(f"read, {_named(size)}", _reading(spark, root, own, kafka, rounds))
            parts += _table(f"write, {_named(size)}", _writing(spark, root, own, kafka, filling, rounds))
    rows = max(int(_STREAM_ROWS * share), 200)
    with _filled(place, Filling(messages=rows, body_size=100)) as (root, own):
        found = _streaming(spark, root, own, kafka, rows, min(rounds, 3))
        # the CPU time of processes that end with their stream is not known
        parts += _table(f"stream in {_STREAM_BATCHES} batches, 100 B", found, by_cpu=False)
    return "\n\n".join(parts) + "\n"


@contextmanager
def _filled(place: Path, filling: Filling) -> Iterator[tuple[Path, Path]]:
    with tempfile.TemporaryDirectory(dir=place) as directory:
        root, own = Path(directory) / "store", Path(directory) / "other"
        own.mkdir()
        fill(root, filling)
        yield root, own


def _named(size: int) -> str:
    return f"{size >> 10} KiB" if size >= 1024 else f"{size} B"


def _table(what: str, found: Sequence[Rates], *, by_cpu: bool = True) -> list[str]:
    ceiling = found[0]
    rows = []
    for each in found:
        rate = each.rate()
        rows.append(
            [
                each.name,
                f"{rate.median / 1e6:.2f} ({rate.minimum / 1e6:.2f})",
                f"{each.ratio(ceiling).median:.2f}",
                *([f"{each.cpu_ratio(ceiling).median:.2f}"] if by_cpu else []),
            ]
        )
    print(f"{what}: {rows}", file=sys.stderr, flush=True)
    return [table([what, "M rows/s", "× of the ceiling", *(["× by CPU"] if by_cpu else [])], rows)]


if __name__ == "__main__":
    # an end that stops the broker and removes the stores, too
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    sys.exit(main())
