"""What lets Spark start sooner in the tests: options of its JVM, and what
`python -m tests.support.spark.fast_start DIRECTORY` makes.

Most of the time until a first query has answered, Spark loads code. Classes come from an archive (JEP 350): 5
s of a core, and not 8. Python workers, six or more of a session, find PySpark in a zip without bytecode, and
each compiles it: 1.2 s of a core, and 0.3 s with a Spark home that has the installed package in the
zip's place.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

# A session lives too short for the JVM's second compiler and its parallel collector to pay: a quarter of the
# time of these tests. Verifying the bytecode of the jars takes a sixth of the time until Spark has started.
SHORT_LIVED = (
    "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData "
    "-XX:+IgnoreUnrecognizedVMOptions -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
)
_ARCHIVE, _HOME = "classes.jsa", "home"
_SECONDS_MAX = 300
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


def environment(directory: Path) -> dict[str, str]:
    """What the environment has for the Spark of this environment, where `make` has filled the directory."""
    options = {"SPARK_SUBMIT_OPTS": java_options(directory, os.environ["SPARK_CONF_DIR"])}
    return options | ({"SPARK_HOME": str(directory / _HOME)} if (directory / _ARCHIVE).exists() else {})


def java_options(directory: Path, settings: Path | str) -> str:
    """For a JVM of Spark whose settings are in the directory `settings`.

    Spark puts the directory of its settings first on the class path, and behind the jars of an archive is the
    only place for a directory. So another class path is given. A JVM writes warnings to standard output.
    """
    archive = directory / _ARCHIVE
    if not archive.exists():
        return SHORT_LIVED
    path = f"{_package('pyspark')}/jars/*{os.pathsep}{settings}/"
    return f"{SHORT_LIVED} -cp {path} -XX:SharedArchiveFile={archive} -Xlog:disable"


def _package(name: str) -> Path:
    spec = find_spec(name)  # to import PySpark takes every process of the tests 0.3 s
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


def make(directory: Path) -> None:
    """Fills a new directory."""
    directory = directory.resolve()  # the queries below run in another one
    directory.mkdir(exist_ok=True)
    _make_home(directory / _HOME)
    archive_classes(directory / _ARCHIVE)


def _make_home(home: Path) -> None:
    """Directories that have the names of the zips: any of them can be on the path of a Python."""
    package, libraries = _package("pyspark"), home / "python" / "lib"
    libraries.mkdir(parents=True, exist_ok=True)
    links = {home / name: package / name for name in ("bin", "data", "jars", "sbin")}
    for path in (package / "python" / "lib").glob("*.zip"):
        name = path.name.partition("-")[0].removesuffix(".zip")
        links[libraries / path.name / name] = _package(name)
    for link, target in links.items():
        link.parent.mkdir(exist_ok=True)
        link.unlink(missing_ok=True)
        link.symlink_to(target)


def archive_classes(archive: Path) -> None:
    """Runs some queries and archives the classes they load; an empty file if the JVM makes no archives."""
    with tempfile.TemporaryDirectory(dir=archive.parent) as name:
        new = Path(name) / "archive"
        path = f"{_package('pyspark')}/jars/*"
        # without the options that leave out the verification, which an archive needs
        options = f"{SHORT_LIVED.partition(' -XX:+Ignore')[0]} -cp {path} -XX:ArchiveClassesAtExit={new}"
        own = {
            "SPARK_SUBMIT_OPTS": f"{options} -Xlog:disable",
            "PYTHONPATH": str(Path(__file__).resolve().parents[3]),
        }
        command = [sys.executable, "-c", _QUERIES, f"{name}/store", f"{name}/checkpoint"]
        with suppress(subprocess.TimeoutExpired):  # on a busy machine: then the tests do without
            done = subprocess.run(
                command, cwd=name, env=os.environ | own, capture_output=True, text=True, timeout=_SECONDS_MAX
            )
            assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
        new.touch()
        new.rename(archive)


if __name__ == "__main__":
    make(Path(sys.argv[1]))
