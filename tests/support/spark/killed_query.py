"""A continuous query in a process of its own, to be killed, and what its checkpoint and its output say.

python -m tests.support.spark.killed_query KIND STORE CHECKPOINT OUTPUT [OPTION=VALUE …] is the process.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.support.spark.processes import end_session, start_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

_BODIES = "topic string, queueId int, queueOffset long, body binary"


@dataclass(frozen=True)
class _Kind:
    """A batch takes `pause_s` longer than it needs, so that one is in flight when the process is killed."""

    columns: str = _BODIES
    place: str = "batch={batch}"  # of a batch below the output; one that comes again replaces it
    options: dict[str, str] = field(default_factory=dict)
    pause_s: float = 0.0
    trigger: dict[str, Any] = field(default_factory=dict)  # Any: one of Spark's keywords, text or bool
    cores: int = 1


_KINDS = {
    "positions": _Kind(cores=2),
    "group": _Kind(
        "topic string, brokerName string, queueId int, queueOffset long",
        options={"group": "g", "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET"},
        pause_s=0.3,
        trigger={"processingTime": "1 second"},
    ),
    "pop": _Kind(
        place="batch={batch}/{process}",  # each attempt at a batch
        options={
            "group": "g", "subscribe": "T", "consumeMode": "pop",
            "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET",
        },
        pause_s=0.2,
    ),
}  # fmt: skip


class KilledQuery:
    """One query, its checkpoint and what it wrote; `start` again is another process with the same
    checkpoint.
    """

    process: subprocess.Popen[str] | None = None

    def __init__(self, kind: str, store: Path, base: Path, *options: str) -> None:
        self.store, self.base, self.options = store, base, options
        self.places = kind, str(store), str(base / "checkpoint"), str(base / "output")
        base.mkdir()

    def start(self, *more: str) -> None:
        command = ["-m", "tests.support.spark.killed_query", *self.places, *self.options, *more]
        self.process = start_session(command, self.base / "log")

    def start_here(
        self, spark: SparkSession, *more: str, trigger: dict[str, Any] | None = None
    ) -> StreamingQuery:
        """In this process, without pauses."""
        return _start(spark, *self.places, *self.options, *more, pause_s=0, trigger=trigger)

    def wait_until_running(self) -> None:
        assert self.process is not None
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "running\n", self.log()

    def wait_for_batches(self, count: int, what: str, timeout_s: float) -> None:
        """Until so many more are begun ("offsets") or ended ("commits"): what is killed then is any part of
        one, at every pace.
        """
        wanted, deadline = len(self.numbers(what)) + count, time.monotonic() + timeout_s
        while len(self.numbers(what)) < wanted:
            assert self.is_alive(), self.log()
            assert time.monotonic() < deadline, self.log()
            time.sleep(0.01)

    def is_alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def kill(self) -> None:
        """Python, the JVM and the workers die together."""
        if self.process is None:
            return
        end_session(self.process.pid)
        self.process.wait(30)
        assert self.process.stdout is not None
        self.process.stdout.close()

    def log(self) -> str:
        return (self.base / "log").read_text(errors="replace")[-4000:]

    # ---- what Spark has written --------------------------------------------------------------------

    def numbers(self, what: str) -> list[int]:
        """The batches in `offsets` or `commits` of the checkpoint."""
        return batch_numbers(self.base / "checkpoint" / what)

    def begun(self) -> int:
        return len(self.numbers("offsets"))

    def committed(self) -> int:
        return len(self.numbers("commits"))

    def offset(self, number: int) -> dict[str, Any]:
        """The end of a batch, from Spark's offset log."""
        text = (self.base / "checkpoint" / "offsets" / str(number)).read_text()
        found: dict[str, Any] = json.loads(text.splitlines()[2])
        return found

    def outputs(self) -> list[Path]:
        """The directories of the batches that Spark has committed, by number."""
        return [self.base / "output" / f"batch={number}" for number in self.numbers("commits")]


def batch_numbers(directory: Path) -> list[int]:
    names = os.listdir(directory) if directory.is_dir() else []
    return sorted(int(name) for name in names if name.isdecimal())


def _start(
    spark: SparkSession,
    kind: str,
    store: str,
    checkpoint: str,
    output: str,
    *options: str,
    pause_s: float,
    trigger: dict[str, Any] | None,
) -> StreamingQuery:
    given = _KINDS[kind]

    def keep(frame: DataFrame, batch: int) -> None:
        place = given.place.format(batch=batch, process=os.getpid())
        frame.write.mode("overwrite").parquet(f"{output}/{place}")
        time.sleep(pause_s)

    reader = spark.readStream.format("rmqlog").schema(given.columns).options(**given.options)
    reader = reader.options(**dict(option.split("=", 1) for option in options))
    writer = reader.load(store).writeStream.foreachBatch(keep).option("checkpointLocation", checkpoint)
    return (writer.trigger(**trigger) if trigger else writer).start()


def main(kind: str, *rest: str) -> None:
    """Streams until it is killed; prints a line when the query runs."""
    from pyspark.sql import SparkSession

    import rmq_spark

    given = _KINDS[kind]
    builder = SparkSession.builder.master(f"local[{given.cores}]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.sql.session.timeZone", "UTC")
    spark = builder.config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1").getOrCreate()
    rmq_spark.register(spark)
    query = _start(spark, kind, *rest, pause_s=given.pause_s, trigger=given.trigger)
    print("running", flush=True)
    query.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
