"""A program: the driver of a cluster. It runs steps, and prints what they found as JSON.

`python cluster_job.py '{"checkout": …, "master": …, "way": …, "steps": {…}, "settings": {…}}'`

The way "value" sends the code with each query. The steps are the functions below.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_KEYS = ("topic", "queueId", "queueOffset", "msgId", "body")
_CORES = 2
_EXECUTOR = b"org.apache.spark.executor.CoarseGrainedExecutorBackend"
_KILL_S = 60


def main(job: dict[str, Any]) -> dict[str, Any]:
    from pyspark.sql import SparkSession

    # of this process alone: neither Spark nor the Python that Spark plans with inherits the path
    sys.path.insert(0, job["checkout"])
    import rmq_spark

    settings = {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.local.dir": os.path.abspath("local"),
        "spark.executor.memory": "512m",
        "spark.sql.shuffle.partitions": "2",
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        "spark.scheduler.maxRegisteredResourcesWaitingTime": "90s",
        **job["settings"],
    }
    session = SparkSession.builder.master(job["master"]).config(map=settings).getOrCreate()
    try:
        rmq_spark.register(session, by_value=job["way"] == "value")
        found: dict[str, Any] = {"seconds": {}}
        for name, arguments in job["steps"].items():
            begun = time.monotonic()
            found[name] = _STEPS[name](session, **arguments)
            found["seconds"][name] = round(time.monotonic() - begun, 1)
        return found
    finally:
        session.stop()


def rows_of(frame: DataFrame) -> list[str]:
    return sorted(str(row) for row in frame.select(*_KEYS).collect())


def sums_of(frame: DataFrame) -> list[int]:
    """The number of rows, and sums that other rows would not have."""
    from pyspark.sql import functions as F

    sums = (F.count("*"), F.sum("queueOffset"), F.sum(F.crc32("body")), F.sum(F.crc32("msgId")))
    return list(frame.agg(*sums).collect()[0])


# ---- steps -------------------------------------------------------------------------------------------------


def seen(session: SparkSession, paths: list[str]) -> list[dict[str, Any]]:
    """What tasks on all executors can import and open without a query of rmqlog."""

    def look(_: object) -> Iterator[dict[str, Any]]:
        import importlib.util
        import os
        import time

        time.sleep(0.5)  # so that each executor gets a task
        yield {
            "modules": [name for name in ("numpy", "rmq_spark") if importlib.util.find_spec(name)],
            "paths": [path for path in paths if os.access(path, os.R_OK)],
            "user": os.geteuid(),
            "place": os.getcwd(),
        }

    return session.sparkContext.parallelize(range(_CORES), _CORES).mapPartitions(look).collect()


def unsent(session: SparkSession, url: str, **options: str) -> dict[str, str]:
    """The error of a batch when the code is not sent, and what is logged then and until it is sent again."""
    import logging

    import rmq_spark

    logging.basicConfig(filename="logged")
    rmq_spark.register(session)
    try:
        error = f"no error: {batch(session, url, **options)}"
    except Exception as raised:
        error = str(raised)
    found = {"error": error, "logged": Path("logged").read_text()}
    rmq_spark.register(session, by_value=True)
    return found | {"until sent": Path("logged").read_text()}


def batch(session: SparkSession, url: str, **options: str) -> list[str]:
    reader = session.read.format("rmqlog").options(**options)
    return rows_of(reader.option("minPartitions", "8").load(url))


def stream(session: SparkSession, url: str, name: str, **options: str) -> list[str]:
    """The rows of a stream that reads all that there is; `name` is that of its checkpoint."""
    reader = session.readStream.format("rmqlog").options(**options)
    writer = reader.load(url).writeStream.format("memory").queryName(name)
    query = writer.option("checkpointLocation", os.path.abspath(name)).trigger(availableNow=True).start()
    query.awaitTermination()
    return rows_of(session.table(name))


def group(session: SparkSession, url: str, directory: str, **options: str) -> list[list[str]]:
    """The rows of two queries of a new group, one after the other: the first reads all, the second none."""
    own = {
        "group": "CG_cluster",
        "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET",
        "offsetStore": "local",
        "offsetStorePath": f"{directory}/offsets",
        "groupPath": f"{directory}/group",
        "includeLastFile": "true",  # the store has only one
    }
    return [stream(session, url, name, **own, **options) for name in ("first", "second")]


def refused(session: SparkSession, url: str, directory: str, **options: str) -> str:
    """The error of a group's query."""
    try:
        return f"no error: {group(session, url, directory, **options)}"
    except Exception as error:
        return str(error)


def write(session: SparkSession, url: str, target: str, **options: str) -> None:
    """Copies messages to a directory that driver and executors share, in which the group may write."""
    rows = session.read.format("rmqlog").options(**options).load(url)
    rows.write.format("rmqlog").mode("append").save(target)


def killed(session: SparkSession, url: str, **options: str) -> dict[str, Any]:
    """The rows of a job of which an executor is killed once some of its tasks have ended."""
    context = session.sparkContext

    def slowly(batches: Iterator[Any]) -> Iterator[Any]:
        import time

        for each in batches:
            time.sleep(0.3)
            yield each

    found: dict[str, Any] = {}

    def kill() -> None:
        end = time.monotonic() + _KILL_S
        while time.monotonic() < end:
            tracker = context.statusTracker()
            stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
            if any(stage is not None and stage.numCompletedTasks >= 2 for stage in stages):
                found["executor"] = executor = _executors(context.applicationId)[0]
                os.kill(executor, signal.SIGKILL)
                return
            time.sleep(0.05)

    killer = threading.Thread(target=kill)
    killer.start()
    frame = session.read.format("rmqlog").options(**options).option("minPartitions", "16").load(url)
    found["rows"] = rows_of(frame.mapInArrow(slowly, frame.schema))
    killer.join()
    return found


def cold(session: SparkSession, url: str, **options: str) -> dict[str, Any]:
    """The sums of a first batch, and the CPU seconds of the Python processes of each executor."""
    sums = sums_of(session.read.format("rmqlog").options(**options).load(url))
    daemons = [pid for each in _executors(session.sparkContext.applicationId) for pid in _children(each)]
    return {"sums": sums, "cpu": [_cpu(pid) + sum(map(_cpu, _children(pid))) for pid in daemons]}


def _children(process: int) -> list[int]:
    return [
        int(pid)
        for path in Path(f"/proc/{process}/task").glob("*/children")
        for pid in path.read_text().split()
    ]


def _cpu(process: int) -> float:
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _executors(application: str) -> list[int]:
    """The JVMs of the executors of an application, by process id."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except (FileNotFoundError, ProcessLookupError):
            continue
        if application.encode() in words and _EXECUTOR in words:
            found.append(int(path.parent.name))
    return sorted(found)


_STEPS = {step.__name__: step for step in (seen, unsent, batch, group, refused, write, killed, cold)}

if __name__ == "__main__":
    print(json.dumps(main(json.loads(sys.argv[1]))))
