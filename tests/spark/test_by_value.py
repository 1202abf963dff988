"""How the format gets to Spark's workers: found by Spark itself where it is installed, sent along where it is
not.

Each way is a process of its own, whose workers start with the module path under test.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.support.fixtures import Golden
from tests.support.reads import told
from tests.support.spark.processes import ROOT, run

pytestmark = [pytest.mark.spark, pytest.mark.slow]  # a JVM each

STORE = "basic-5.5.0"
OURS = ("rmq_spark", "store_format", "pyspark_rmqlog.py")
UNNEEDED = ("pandas",)  # Spark Connect's client needs it, and nothing of ours

SESSION = """
import sys
from pyspark.sql import SparkSession
builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").config("spark.sql.session.timeZone", "UTC")
"""  # noqa: E501

AUTOMATIC = (
    SESSION
    + """
spark = builder.getOrCreate()
frame = spark.read.format("rmqlog").option("subscribe", "Orders").load(sys.argv[1])
assert "rmq_spark" not in sys.modules
print(frame.count(), frame.where("tags = 'BB'").count())
"""
)

BY_VALUE = (
    SESSION
    + """
spark = builder.config("spark.pyspark.python", "/of/the/builder").getOrCreate()
def importable(rows):
    import importlib.util
    yield [name for name in ("numpy", "pyarrow", "pandas", "rmq_spark", "store_format", "pyspark_rmqlog") if importlib.util.find_spec(name)]
print(*spark.sparkContext.parallelize([1], 1).mapPartitions(importable).collect()[0])

sys.path.insert(0, sys.argv[2])  # the driver's own: workers go by the environment
import logging
import rmq_spark
logging.basicConfig(filename="log")
read = lambda: spark.read.format("rmqlog").option("subscribe", "Orders").load(sys.argv[1])
rmq_spark.register(spark)
try:
    read().count()
except Exception as error:
    print("No module named 'rmq_spark'" in str(error))
warned = open("log").read()
print("has no rmq_spark, store_format" in warned and "PYSPARK_PYTHON" in warned and sys.executable in warned)
print("spark.pyspark.python is /of/the/builder, but Spark's workers run " + spark.sparkContext.pythonExec in warned)
rmq_spark.register(spark, by_value=True)
assert open("log").read() == warned
print(read().count(), read().where("tags = 'BB'").count())
frame = spark.readStream.format("rmqlog").option("subscribe", "Orders").option("startingOffsets", "earliest").load(sys.argv[1])
writing = frame.select("queueOffset").writeStream.format("memory").queryName("streamed").option("checkpointLocation", "checkpoint")
writing.trigger(availableNow=True).start().awaitTermination()
print(spark.table("streamed").count())
"""  # noqa: E501
)


ARTIFACT = (
    SESSION
    + """
import importlib
import zipfile
from pyspark.sql.datasource import DataSource
spark = builder.getOrCreate()
with zipfile.ZipFile("artifact_of_a_test.zip", "w") as file:
    file.writestr("artifact_of_a_test.py", "")
spark.addArtifacts("artifact_of_a_test.zip", pyfile=True)

class Importing(DataSource):
    @classmethod
    def name(cls):
        return "importing"

    def schema(self):
        return "n bigint"

    def reader(self, schema):
        importlib.import_module("artifact_of_a_test")
        raise ValueError("the artifact was imported")

    streamReader = reader

def outcome(action):
    try:
        action()
    except Exception as error:
        texts = ("the artifact was imported", "No module named 'artifact_of_a_test'")
        print(next(text for text in texts if text in str(error)))

spark.dataSource.register(Importing)
outcome(spark.read.format("importing").load().collect)
writing = spark.readStream.format("importing").load().writeStream.format("memory").queryName("importing")
outcome(lambda: writing.option("checkpointLocation", "checkpoint").start().awaitTermination())
"""
)


def expected() -> str:
    rows = told(STORE, lambda row: row["topic"] == "Orders")
    return f"{len(rows)} {sum(row['properties'].get('TAGS') == 'BB' for row in rows)}"


@pytest.fixture
def bare_python(tmp_path: Path) -> tuple[Path, Path]:
    """A Python that sees everything installed here but this project and pandas, and the path of its modules.

    `-S` because an editable install puts the project on the path of every Python of this environment.
    """
    python, site = tmp_path / "python", tmp_path / "site-packages"
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "$@"\n')
    python.chmod(0o755)
    site.mkdir()
    for directory in {sysconfig.get_paths()[kind] for kind in ("purelib", "platlib")}:
        for entry in os.scandir(directory):
            if not entry.name.endswith(".pth") and entry.name not in OURS + UNNEEDED:
                (site / entry.name).symlink_to(entry.path)
    return python, site


@pytest.mark.whole  # test_connect.py reads so too, and the brief cells on the oldest Spark
def test_spark_finds_the_format_by_itself(golden: Golden, tmp_path: Path) -> None:
    """Through `pyspark_rmqlog`, with neither `register` nor an import."""
    assert run(AUTOMATIC, str(golden(STORE)), directory=tmp_path).splitlines()[-1] == expected()


@pytest.mark.whole  # test_cluster.py sends the code, too, and has the same error and warnings
def test_the_code_travels_where_it_is_not_installed(
    golden: Golden, tmp_path: Path, bare_python: tuple[Path, Path]
) -> None:
    python, site = bare_python
    printed = run(
        BY_VALUE, str(golden(STORE)), str(ROOT), directory=tmp_path, python_path=site, workers=python
    ).splitlines()
    assert printed[-6:] == ["numpy pyarrow", "True", "True", "True", expected(), expected().split()[0]]


@pytest.mark.whole  # says what a new Spark does, not what ours does
def test_artifacts_do_not_reach_the_source_of_a_stream_4_3(tmp_path: Path) -> None:
    """A zip added to the session is importable where a batch read is planned, and not where a stream is.

    On the day a stream finds it too, `rmq_spark.spark.by_value` can become `addArtifacts`. Connect does the
    same, with `addArtifacts` and with archives. A session keeps its artifacts, so this one is a process.
    """
    printed = run(ARTIFACT, directory=tmp_path).splitlines()
    assert printed == ["the artifact was imported", "No module named 'artifact_of_a_test'"]
