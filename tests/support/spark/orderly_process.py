"""An orderly query in a process of its own, which kills itself in its first micro-batch.

python -m tests.support.spark.orderly_process STORE CHECKPOINT DIRECTORY WHEN. `Notes` in DIRECTORY is the
handler. WHEN `handler`: SIGKILL as soon as a message is handled; `finished`: after `Orderly` has stored its
stops, before Spark commits the batch.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import Row

COLUMNS = "storedTopic,brokerName,queueId,queueOffset,reconsumeTimes,body"


class Notes:
    """A handler that notes in a file what it gets, and fails at the places that another file names."""

    def __init__(self, directory: Path) -> None:
        self.seen, self.bad = str(directory / "seen"), str(directory / "bad")
        self._taken = 0  # so many bytes of `seen`

    def __call__(self, row: Row) -> None:
        line = f"{row.queueId} {row.queueOffset} {row.reconsumeTimes}\n".encode()
        file = os.open(self.seen, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.write(file, line)
        os.close(file)
        if f"{row.queueId} {row.queueOffset}" in Path(self.bad).read_text().splitlines():
            raise RuntimeError("the business says no")

    def fail_at(self, *places: str) -> None:
        Path(self.bad).write_text("\n".join(places))

    def take(self) -> dict[int, list[tuple[int, int]]]:
        """What came since the last call: (offset, reconsumeTimes) by queue."""
        found: dict[int, list[tuple[int, int]]] = {}
        path = Path(self.seen)
        # Another process may be writing: the file stays in its place, and an unfinished line waits.
        data = path.read_bytes()[self._taken :] if path.exists() else b""
        data = data[: data.rfind(b"\n") + 1]
        self._taken += len(data)
        for line in data.splitlines():
            queue, offset, times = map(int, line.split())
            found.setdefault(queue, []).append((offset, times))
        return found


def query_options(store: str) -> dict[str, str]:
    return {
        "path": store,
        "group": "g",
        "splitBy": "wholeQueue",
        "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET",
        "columns": COLUMNS,
    }


def _kill_all() -> None:
    os.killpg(0, signal.SIGKILL)


def _kill_at_first(path: Path) -> None:
    while not path.exists():
        time.sleep(0.001)
    _kill_all()


def main(store: str, checkpoint: str, directory: str, when: str) -> None:
    from pyspark.sql import SparkSession

    import rmq_spark
    from rmq_spark.services import Orderly

    builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
    spark = builder.config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1").getOrCreate()
    rmq_spark.register(spark)
    notes = Notes(Path(directory))
    orderly = Orderly(notes, query_options(store))

    def handle(frame: Any, batch_id: int) -> None:
        if when == "handler":
            threading.Thread(target=_kill_at_first, args=(Path(notes.seen),), daemon=True).start()
        orderly(frame, batch_id)
        _kill_all()

    stream = spark.readStream.format("rmqlog").options(**query_options(store)).load()
    writer = stream.writeStream.foreachBatch(handle).option("checkpointLocation", checkpoint)
    writer.trigger(availableNow=True).start().awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
