"""Speculation: a slow task gets a second attempt, the faster one counts, and the other one's rows are
nowhere.

Spark gives a task no second attempt on the same host, and none at all with a local master. So this is a
cluster of its own: a master and two workers under two names of this machine.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.support.spark.processes import run

# The timeout is more than the script's. CI runs the attempts of test_write_attempts.py, the proofs these too.
pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.whole, pytest.mark.timeout(900)]

_SCRIPT = """
import json, os, signal, socket, subprocess, sys, time
from collections import Counter
from pathlib import Path
import pyarrow as pa
import pyspark
from pyspark.sql import SparkSession
import rmq_spark

directory = Path(sys.argv[1])
root = directory / "store"
home = Path(pyspark.__file__).parent
with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
master = f"spark://127.0.0.1:{port}"
environment = dict(os.environ, SPARK_HOME=str(home), SPARK_WORKER_DIR=str(directory / "work"), SPARK_DAEMON_MEMORY="256m")


def daemon(role, host, *arguments):
    command = [str(home / "bin" / "spark-class"), f"org.apache.spark.deploy.{role}", "--host", host, "--webui-port", "0", *arguments]
    log = open(directory / f"{role}-{host}.log", "w")
    return subprocess.Popen(command, env=environment, stdout=log, stderr=log, cwd=directory, start_new_session=True)


def rows(batches):
    from pyspark import TaskContext

    context = TaskContext.get()
    (directory / f"attempt-{context.partitionId()}-{context.attemptNumber()}").touch()
    for batch in batches:
        # So long that no buffer between the processes keeps a batch back: the slow attempt has staged when the other one begins.
        bodies = [str(number).ljust(3000) for number in batch["id"].to_pylist()]
        yield pa.RecordBatch.from_pydict({"topic": ["T"] * len(bodies), "body": bodies})
    if context.partitionId() == 3 and context.attemptNumber() == 0:
        time.sleep(600)


def too_slow(*_):
    raise TimeoutError("the cluster takes too long")


signal.signal(signal.SIGALRM, too_slow)  # so that the daemons are ended in any case
signal.alarm(700)
daemons = [daemon("master.Master", "127.0.0.1", "--port", str(port))]
daemons += [daemon("worker.Worker", f"127.0.0.{i}", "--cores", "2", "--memory", "1g", master) for i in (1, 2)]
try:
    settings = {
        "spark.driver.host": "127.0.0.1", "spark.ui.enabled": "false", "spark.executor.memory": "512m", "spark.executor.cores": "2",
        "spark.executorEnv.PYTHONPATH": os.environ["PYTHONPATH"], "spark.locality.wait": "0s", "spark.speculation": "true",
        "spark.speculation.interval": "200ms", "spark.speculation.quantile": "0.5", "spark.speculation.multiplier": "1.2",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "50",
    }
    builder = SparkSession.builder.master(master)
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    rmq_spark.register(spark)
    frame = spark.range(0, 400, 1, 4).mapInArrow(rows, "topic string, body string")
    frame.write.format("rmqlog").mode("append").save(str(root))
    found = Counter(int(row.body) for row in spark.read.format("rmqlog").option("columns", "body").load(str(root)).collect())
    print(json.dumps({
        "rows": len(found),
        "most": max(found.values()),
        "attempts": sorted(path.name for path in directory.glob("attempt-*")),
        "staging": [str(path) for path in root.glob(".rmqlog/staging/*")],
    }))
    spark.stop()
finally:
    for process in reversed(daemons):
        os.killpg(process.pid, signal.SIGTERM)
        process.wait()
"""  # noqa: E501


@pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="only Linux has 127.0.0.2 without being asked"
)
def test_a_speculative_attempt_counts_once(tmp_path: Path) -> None:
    answer = json.loads(run(_SCRIPT, str(tmp_path), directory=tmp_path, timeout_s=800).splitlines()[-1])
    assert {"attempt-3-0", "attempt-3-1"} <= set(answer["attempts"])
    assert (answer["rows"], answer["most"], answer["staging"]) == (400, 1, [])
