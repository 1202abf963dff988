"""The options of Spark's JVMs in the tests; `python -m tests.support.spark.jvm FILE` archives Spark's classes
(JEP 350).

Until its first query has answered, a JVM takes 8 s of a core, and with the archive 5 s. A JVM that cannot use
the archive loads the classes as usual.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

# A session lives too short for the JVM's second compiler and its parallel collector to pay: a quarter of the
# time of these tests. Verifying the bytecode of the jars takes a sixth of the time until Spark has started.
SHORT_LIVED = (
    "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData "
    "-XX:+IgnoreUnrecognizedVMOptions -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
)
_QUERIES = """
import sys
from pyspark.sql import SparkSession
import rmq_spark

spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
rmq_spark.register(spark)
store, checkpoint = sys.argv[1:]
messages = spark.createDataFrame([("T", bytearray(b"one"))], "topic string, body binary")
messages.write.format("rmqlog").mode("append").save(store)
spark.read.format("rmqlog").load(store).createOrReplaceTempView("messages")
spark.sql("SELECT topic, count(*) FROM messages WHERE queueOffset < 9 GROUP BY topic").collect()
query = spark.readStream.format("rmqlog").load(store).select("topic", "body").writeStream
query = query.format("rmqlog").option("path", store + "-2").option("checkpointLocation", checkpoint)
query.trigger(availableNow=True).start().awaitTermination()
spark.stop()
"""


def options(archive: Path) -> str:
    """`SPARK_SUBMIT_OPTS` for the Spark of this environment.

    Spark puts the directory of its settings first on the class path, and behind the jars of an archive is the
    only place for a directory. So another class path is given. A JVM writes warnings to standard output.
    """
    if not archive.exists():
        return SHORT_LIVED
    path = f"{_jars()}{os.pathsep}{os.environ['SPARK_CONF_DIR']}/"
    return f"{SHORT_LIVED} -cp {path} -XX:SharedArchiveFile={archive} -Xlog:disable"


def _jars() -> str:
    spec = find_spec("pyspark")  # to import the package takes every process of the tests 0.3 s
    assert spec is not None
    assert spec.origin is not None
    return f"{Path(spec.origin).parent}/jars/*"


def archive_classes(archive: Path) -> None:
    """Runs some queries and archives the classes they load; an empty file if the JVM makes no archives."""
    with tempfile.TemporaryDirectory(dir=archive.parent) as name:
        new = Path(name) / "archive"
        new_options = f"-XX:+UseSerialGC -cp {_jars()} -XX:ArchiveClassesAtExit={new} -Xlog:disable"
        environment = os.environ | {
            "SPARK_SUBMIT_OPTS": new_options,
            "PYTHONPATH": str(Path(__file__).resolve().parents[3]),
        }
        command = [sys.executable, "-c", _QUERIES, f"{name}/store", f"{name}/checkpoint"]
        done = subprocess.run(command, cwd=name, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
        new.touch()
        new.rename(archive)


if __name__ == "__main__":
    archive_classes(Path(sys.argv[1]))
