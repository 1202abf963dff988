"""A cluster whose executors share nothing with the driver: the ways by which the code reaches them, a store
on object storage, an executor that is killed, and the commands of docs/howto-cluster.md.

CI sends the code by value, in a short run; the proofs try every way.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from benchmarks.fill import Filling, fill
from tests.support import goldens
from tests.support.doc_pages import ROOT, blocks, is_as_shown, read_page
from tests.support.fixtures import Golden
from tests.support.permissions import NOBODY
from tests.support.spark.cluster import Cluster, started
from tests.support.spark.cluster_job import rows_of, sums_of
from tests.support.spark.executor_python import made_environment, packed_source

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

_STORE = "basic-5.5.0"
# A worker that found no kernels would compile them within so many messages.
_LARGE = Filling(messages=400_000, body_size=100, queues_per_topic=4, commit_log_file_size=1 << 24)
_GENERIC = {"NUMBA_CPU_NAME": "generic"}
_COLD_CPU_S = 6  # of an executor's Python processes, until a first batch has ended
_DOWNLOADS = ("python3.11 -m venv environment", "environment/bin/pip install '.[objects]'")
_LOAD = "from store_format import kernels; kernels.load()"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    root = tmp_path_factory.mktemp("buckets")
    bucket = root / "backup"
    goldens.unpack(_STORE, bucket / "broker-a")
    with started(root) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def libraries(cluster: Cluster) -> Path:
    """A Python with the libraries, without this project."""
    return made_environment(cluster.python, cluster.directory / "libraries", installed=False)


@pytest.fixture(scope="module")
def archived(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A driver's directory, with an environment that has this project and kernels for every processor, and
    its archive.
    """
    directory = tmp_path_factory.mktemp("archived")
    python = made_environment(cluster.python, directory / "environment", installed=True, copied=True)
    subprocess.run([str(python), "-P", "-c", _LOAD], check=True, env=cluster.environment | _GENERIC)
    apart = directory / "environment" / "kernels" / "rmqlog"  # for code that is sent by value
    apart.mkdir(parents=True)
    for kernel in directory.rglob("__pycache__/*.kernel"):
        shutil.copy(kernel, apart)
    _run("tar c -C environment . | gzip -1 > environment.tar.gz", directory)
    return directory


@pytest.fixture
def orders(spark: SparkSession, golden: Golden) -> list[str]:
    """The rows of the topic Orders, read from a disk."""
    return rows_of(spark.read.format("rmqlog").option("subscribe", "Orders").load(str(golden(_STORE))))


def test_by_value(cluster: Cluster, libraries: Path, orders: list[str], tmp_path: Path) -> None:
    """A batch and a stream of a group, where neither the package nor the store is within reach of a task;
    before the code is sent, an error and a warning.
    """
    store = cluster.server.root / "backup" / "broker-a"
    (tmp_path / "group").mkdir(mode=0o700)
    reads = _reads(tmp_path)
    steps = {"seen": {"paths": [str(store), str(tmp_path)]}, "unsent": reads["batch"], **reads}
    found = cluster.run(tmp_path, libraries, "value", steps, {"spark.pyspark.python": "/of/the/builder"})
    unsent = found["unsent"]
    assert "No module named 'rmq_spark'" in unsent["error"]
    warning = rf"workers, {libraries}, has no rmq_spark, store_format: .* PYSPARK_PYTHON .*{sys.executable}"
    assert re.search(warning, unsent["logged"])
    assert unsent["until sent"] == unsent["logged"]
    ignored = f"spark.pyspark.python is /of/the/builder, but Spark's workers run {libraries}"
    assert ignored in found["log"]  # once for each application
    for each in found["seen"]:
        assert each["modules"] == ["numpy"]
        assert each["paths"] == ([] if cluster.is_apart else [str(store), str(tmp_path)])
        assert each["user"] == (NOBODY if cluster.is_apart else os.geteuid())
    assert len({each["place"] for each in found["seen"]}) == 2
    assert found["batch"] == orders
    assert found["group"] == [orders, []]


@pytest.mark.whole
@pytest.mark.parametrize("way", ["value", "installed", "archive", "zip"])
def test_every_way(
    way: str, cluster: Cluster, libraries: Path, orders: list[str], tmp_path: Path,
    spark: SparkSession, golden: Golden, request: pytest.FixtureRequest,
) -> None:  # fmt: skip
    """Batch, stream of a group, write to a shared path, and an executor that is killed in the middle."""
    python: Path | str = libraries
    settings = {}
    if way == "installed":
        python = made_environment(cluster.python, cluster.directory / way, installed=True)
    elif way == "archive":
        archived = request.getfixturevalue("archived")
        python = "./environment/bin/python"
        (tmp_path / "environment").symlink_to(archived / "environment")
        settings["spark.archives"] = f"{archived}/environment.tar.gz#environment"
    elif way == "zip":
        settings["spark.submit.pyFiles"] = str(packed_source(tmp_path / "rmqlog.zip"))
    target = _shared(cluster, f"copy-{way}")
    reads = _reads(tmp_path)
    if way == "zip":  # it does not reach the process that plans a stream
        reads["refused"] = reads.pop("group")
    steps = {**reads, "write": {"target": str(target), **reads["batch"]}, "killed": reads["batch"]}
    found = cluster.run(tmp_path, python, way, steps, settings)
    assert found["batch"] == orders
    if way == "zip":
        assert "No module named 'rmq_spark'" in found["refused"]
    else:
        assert found["group"] == [orders, []]
    assert found["killed"] == {"executor": found["killed"]["executor"], "rows": orders}
    key = ["topic", "queueId", "msgId", "body"]
    copy, original = (
        spark.read.format("rmqlog").option("subscribe", "Orders").load(str(place)).select(*key)
        for place in (target, golden(_STORE))
    )
    assert sorted(map(str, copy.collect())) == sorted(map(str, original.collect()))


@pytest.mark.whole
@pytest.mark.parametrize("way", ["archive", "value"])
def test_kernels_travel_in_the_archive(
    way: str, cluster: Cluster, archived: Path, tmp_path: Path, spark: SparkSession
) -> None:
    """A first batch compiles nothing. Sent by value, the code finds the kernels by NUMBA_CACHE_DIR."""
    large = tmp_path / "large"
    fill(large, _LARGE)
    right = sums_of(spark.read.format("rmqlog").load(str(large)))
    with tarfile.open(archived / "environment.tar.gz") as archive:  # a driver may add to the directory
        kernels = {Path(name).name for name in archive.getnames() if name.endswith(".kernel")}
    shutil.copytree(large, cluster.server.root / "backup" / f"large-{way}")
    (tmp_path / "environment").symlink_to(archived / "environment")
    settings = {"spark.archives": f"{archived}/environment.tar.gz#environment"} | {
        f"spark.executorEnv.{name}": value for name, value in _GENERIC.items()
    }
    if way == "value":
        settings["spark.executorEnv.NUMBA_CACHE_DIR"] = "./environment/kernels"
    steps = {"cold": {"url": f"s3://backup/large-{way}", "minPartitions": "4"}}
    found = cluster.run(tmp_path, "./environment/bin/python", way, steps, settings)
    assert found["cold"]["sums"] == right
    places = list(cluster.directory.glob("worker-*/app-*/*/environment"))
    assert kernels
    assert places
    assert all(_kernels(place) == kernels for place in places)
    assert max(found["cold"]["cpu"]) <= _COLD_CPU_S, found["cold"]["cpu"]


@pytest.mark.whole
def test_the_commands_of_the_page(cluster: Cluster, archived: Path, tmp_path: Path) -> None:
    """The environment is copied from that of the tests, in place of the lines that download it."""
    for name in ("examples", "environment"):
        (tmp_path / name).symlink_to((archived if name == "environment" else ROOT) / name)
    for block in blocks(read_page("howto-cluster.md")):
        text = block.text.replace("\\\n", "").replace("spark://master:7077", cluster.master)
        printed = [_run(line, tmp_path, cluster) for line in text.splitlines() if line not in _DOWNLOADS]
        assert block.output is None or is_as_shown(block.output, "".join(printed)), (block.line, printed)


def _reads(directory: Path) -> dict[str, Any]:
    url = {"url": "s3://backup/broker-a", "subscribe": "Orders"}
    return {"batch": url, "group": {**url, "directory": str(directory / "group")}}


def _shared(cluster: Cluster, name: str) -> Path:
    """A directory in which the users of driver and executors may write, by their common group."""
    directory = cluster.directory / name
    directory.mkdir()
    if cluster.is_apart:
        os.chown(directory, 0, NOBODY)
    directory.chmod(0o2775)
    return directory / "store"


def _kernels(environment: Path) -> set[str]:
    return {path.name for path in environment.rglob("*.kernel")}


def _run(line: str, directory: Path, cluster: Cluster | None = None) -> str:
    """What a line of shell prints, with the environment of a driver of the cluster."""
    hidden = ("PYTHONPATH", "PYSPARK_DRIVER_PYTHON")
    environment = {name: value for name, value in os.environ.items() if name not in hidden}
    if cluster is not None:
        path = os.pathsep.join([str(Path(sys.executable).parent), environment["PATH"]])
        library_path = cluster.environment["LD_LIBRARY_PATH"]
        environment |= cluster.server.environment() | {"PATH": path, "LD_LIBRARY_PATH": library_path}
        environment["SPARK_LOCAL_IP"] = "127.0.0.1"
    done = subprocess.run(
        ["bash", "-c", line], cwd=directory, env=environment, capture_output=True, text=True, check=False,
        timeout=280,
    )  # fmt: skip
    assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"
    return done.stdout
