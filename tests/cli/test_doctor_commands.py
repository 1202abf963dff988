"""`doctor`: a sound environment passes, and each thing that keeps Spark from the format is found, by making
it so.
"""

from __future__ import annotations

import json
import os
import re
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

from rmq_spark.cli.commands.doctor import NEEDED, OPTIONAL, optional_checks
from tests.support.cli_runs import ROOT, Runner, process
from tests.support.fixtures import Golden


def _states(out: str) -> dict[str, tuple[str, str, str]]:
    return {row["check"]: (row["state"], row["found"], row["advice"]) for row in json.loads(out)}


@pytest.mark.process
def test_a_sound_environment(rmqlog: Runner, golden: Golden, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    done = rmqlog("doctor", golden("rocksdb-5.5.0"), "-o", "json")
    states = _states(done.out)
    assert done.code == 0, states
    sound = {name for name, (state, *_) in states.items() if state == "ok"}
    assert sound >= {*NEEDED, "java", "pyspark_rmqlog", "workers' Python"}
    assert states["store"][:2] == ("ok", f"{golden('rocksdb-5.5.0')}: broker broker-a, clean")
    text = rmqlog("doctor").out
    assert re.search(r"^ok +pyarrow +version \d", text, re.MULTILINE)


@pytest.mark.process
def test_what_is_in_the_way_is_found(tmp_path: Path) -> None:
    (tmp_path / "pyspark_broken.py").write_text("raise RuntimeError('no luck today')")
    path = f"{ROOT}{os.pathsep}{tmp_path}"
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nexit 3\n")
    python.chmod(0o755)
    bad = {"JAVA_HOME": str(tmp_path), "PYSPARK_PYTHON": str(python), "SPARK_HOME": "/opt/spark"}
    done = process("doctor", "-o", "json", PYTHONPATH=path, **bad)
    states = _states(done.out)
    assert done.code == 4
    assert states["pyspark_broken"][:2] == ("fails", "does not import: RuntimeError: no luck today")
    assert "disables the automatic registration" in states["pyspark_broken"][2]
    assert states["java"][0] == "fails"
    assert states["SPARK_HOME"][0] == "warning"
    assert states["workers' Python"][0] == "fails"


@pytest.mark.process
def test_another_python_of_the_workers(
    rmqlog: Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho 3.9 4.0.1\n")
    python.chmod(0o755)
    monkeypatch.setenv("PYSPARK_PYTHON", str(python))
    state, found, advice = _states(rmqlog("doctor", "-o", "json").out)["workers' Python"]
    assert (state, found) == ("fails", f"{python} is Python 3.9")
    assert advice.endswith(f"set PYSPARK_PYTHON to {sys.executable}")


@pytest.mark.process
def test_a_store_that_is_none(rmqlog: Runner, tmp_path: Path) -> None:
    done = rmqlog("doctor", tmp_path, "-o", "json")
    assert done.code == 4
    assert "is not a store root" in _states(done.out)["store"][1]


def test_the_versions_are_those_of_the_project() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    asked = [*project["dependencies"], *project["optional-dependencies"]["spark"]]
    assert {
        name: tuple(map(int, version.partition(",")[0].split(".")))
        for name, version in (text.split(">=") for text in asked)
    } == NEEDED


@pytest.mark.slow
@pytest.mark.spark
def test_spark_itself_is_asked() -> None:
    done = process("doctor", "--start", "-o", "json", PYSPARK_PYTHON=sys.executable)
    assert _states(done.out)["Spark"] == ("ok", 'started, and knows format("rmqlog")', "")


def _without_spark(tmp_path: Path) -> str:
    """A directory for PYTHONPATH whose sitecustomize hides PySpark, as if it was not installed."""
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\nfrom importlib import metadata\n"
        "import importlib.util\n"
        "found, version = importlib.util.find_spec, metadata.version\n"
        "def spec(name, package=None):\n"
        "    return None if name == 'pyspark' else found(name, package)\n"
        "def of(name):\n"
        "    if name == 'pyspark':\n"
        "        raise metadata.PackageNotFoundError(name)\n"
        "    return version(name)\n"
        "importlib.util.find_spec, metadata.version = spec, of\n"
    )
    return f"{ROOT}{os.pathsep}{tmp_path}"


@pytest.mark.process
def test_spark_that_is_not_installed_is_no_failure(tmp_path: Path) -> None:
    done = process("doctor", "-o", "json", PYTHONPATH=_without_spark(tmp_path), SPARK_HOME="", JAVA_HOME="")
    states = _states(done.out)
    assert (done.code, states["pyspark"][:2]) == (0, ("absent", "not installed"))
    assert "pip install '.[spark]'" in states["pyspark"][2]
    assert {"java", "workers' Python", "pyspark_rmqlog"}.isdisjoint(states)
    wanted = process(
        "doctor", "-o", "json", PYTHONPATH=_without_spark(tmp_path), SPARK_HOME="/opt/spark"
    )  # of a Spark that is there, pyspark is missing
    assert (wanted.code, _states(wanted.out)["pyspark"][0]) == (4, "fails")


def test_an_optional_package_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    for name, (extra, _) in OPTIONAL.items():  # the extra brings it
        assert any(re.match(name, each) for each in extras[extra]), name
    version = metadata.version

    def without_rocksdict(name: str) -> str:
        if name == "rocksdict":
            raise metadata.PackageNotFoundError(name)
        return version(name)

    monkeypatch.setattr(metadata, "version", without_rocksdict)
    (check,) = (each for each in optional_checks() if each.name == "rocksdict")
    assert check.state == "absent"
    assert "in RocksDB" in check.found
    assert "`rocksdb`" in check.advice
