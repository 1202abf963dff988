"""The sdist and the wheel of this project, installed where nothing else of the checkout is visible.

The environment is a new one. Of the packages that are installed here it gets those that the wheel's metadata
ask for, and no others, as links: a dependency that the metadata forget is missing there.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.support.doc_pages import blocks
from tests.support.fixtures import Golden
from tests.support.release import problems
from tests.support.spark.fast_start import SHORT_LIVED

ROOT = Path(__file__).resolve().parent.parent
NAME = "rmqlog"
STORE = "basic-5.5.0"
_TIMEOUT_S = 240

pytestmark = [pytest.mark.slow, pytest.mark.process, pytest.mark.timeout(600)]

READ = """
import sys
from store_format import MessageStore
store = MessageStore.open(sys.argv[1])
print(sum(batch.num_rows for queue in store.queues() if queue.topic == "Orders" for batch in queue.read()))
try:
    from rmq_spark import charts
    charts.lag(store.view("lag"))
except Exception as error:
    print(error)
"""

SPARK = """
import sys
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
print(spark.read.format("rmqlog").option("subscribe", "Orders").load(sys.argv[1]).count())
spark.stop()
"""

PICTURES = """
import sys
from rmq_spark import charts
from store_format import MessageStore
lag = MessageStore.open(sys.argv[1]).view("lag")
print(len(lag.to_pandas()) == lag.num_rows)
charts.lag(lag).save("lag.svg")
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The sdist, and the wheel that is built from the sdist, as `python -m build` makes them."""
    directory = tmp_path_factory.mktemp("dist")
    _run(sys.executable, "-m", "build", "--outdir", str(directory), str(ROOT))
    (sdist,), (wheel,) = directory.glob("*.tar.gz"), directory.glob("*.whl")
    return sdist, wheel


@pytest.fixture(scope="module")
def clean(built: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new environment with the wheel and what it depends on, without extras."""
    directory = tmp_path_factory.mktemp("clean") / "environment"
    _run(sys.executable, "-m", "venv", "--without-pip", str(directory))
    python = str(directory / "bin" / "python")
    _run(sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index", str(built[1]))
    _link(_brought(_required_by(directory), set()), directory)
    return directory


def _run(*command: str, directory: Path | None = None) -> str:
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTHON", "PYSPARK_", "SPARK_HOME", "SPARK_REMOTE"))
    }
    environment["SPARK_SUBMIT_OPTS"] = SHORT_LIVED  # a class path of this environment is not wanted
    if directory is not None:  # as after `source bin/activate`
        environment["PATH"] = f"{directory / 'bin'}{os.pathsep}{environment['PATH']}"
    done = subprocess.run(
        command,
        cwd=directory or ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=_TIMEOUT_S,
    )
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def _site(directory: Path) -> Path:
    return Path(sysconfig.get_path("purelib", vars={"base": str(directory)}))


def _required_by(directory: Path) -> list[str]:
    (found,) = metadata.distributions(name=NAME, path=[str(_site(directory))])
    return found.requires or []


def _brought(required: list[str], extras: set[str]) -> set[str]:
    """Names of the packages, of those installed here, that the requirements and extras bring."""
    waiting = list(_chosen(required, extras))
    names: set[tuple[str, frozenset[str]]] = set()
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        if (name, frozenset(requirement.extras)) in names:
            continue
        names.add((name, frozenset(requirement.extras)))
        if name == NAME:
            waiting += _chosen(required, requirement.extras)
            continue
        assert requirement.specifier.contains(metadata.version(name), prereleases=True), requirement
        waiting += _chosen(metadata.requires(name) or [], requirement.extras)
    return {name for name, _ in names} - {NAME}


def _chosen(required: Iterable[str], extras: set[str]) -> Iterable[Requirement]:
    for requirement in map(Requirement, required):
        if requirement.marker is None or any(
            requirement.marker.evaluate({"extra": extra}) for extra in extras | {""}
        ):
            yield requirement


def _link(names: set[str], directory: Path) -> None:
    for name in names:
        for top in {file.parts[0] for file in metadata.files(name) or []} - {".."}:
            link = _site(directory) / top
            if not link.exists():
                link.symlink_to(str(metadata.distribution(name).locate_file(top)))


def test_the_wheel_has_the_packages_and_nothing_else(built: tuple[Path, Path]) -> None:
    listed = _run("git", "ls-files", "rmq_spark", "store_format", "pyspark_rmqlog.py").split()
    with zipfile.ZipFile(built[1]) as wheel:
        names = wheel.namelist()
    assert {name for name in names if ".dist-info/" not in name} == {
        name for name in listed if (ROOT / name).exists()
    }
    assert {Path(name).name for name in names if "/licenses/" in name} == {"LICENSE", "NOTICE"}


def test_the_sdist_has_what_the_tests_and_the_docs_need(built: tuple[Path, Path]) -> None:
    with tarfile.open(built[0]) as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}
    listed = _run("git", "ls-files", "docs", "tests", "notebooks", "examples", "conf", "Makefile").split()
    assert {name for name in listed if (ROOT / name).exists()} <= names


def test_what_a_release_checks(built: tuple[Path, Path], tmp_path: Path) -> None:
    """A build of files that are not committed yet lacks nothing that is."""
    ours = "rmqlog/rmqlog"
    committed = _run("git", "ls-files", "--others", "--exclude-standard").split()
    found = problems("v0.1.0", built[0].parent, repository=ours)
    assert [each for each in found if not each.endswith("which is not in the repository")] == []
    assert len(found) == len(committed)
    assert problems("v0.1", built[0].parent)[0].startswith("the tag must be v0.1.0")
    assert (
        "found https://github.com/rmqlog/rmqlog" in problems("v0.1.0", built[0].parent, repository="a/b")[0]
    )
    for archive in built:
        shutil.copy(archive, tmp_path)
    with zipfile.ZipFile(tmp_path / built[1].name, "a") as wheel:
        wheel.writestr("tests/__init__.py", "")
        wheel.writestr("rmq_spark/__pycache__/a.pyc", "")
    assert "the wheel has rmq_spark/__pycache__/a.pyc" in problems("v0.1.0", tmp_path)
    assert any("'tests'" in each for each in problems("v0.1.0", tmp_path))
    (tmp_path / "notes.txt").touch()
    assert "and nothing else" in problems("v0.1.0", tmp_path)[-1]


def test_the_index_shows_the_readme_without_dead_paths(built: tuple[Path, Path]) -> None:
    with zipfile.ZipFile(built[1]) as wheel:
        (name,) = (name for name in wheel.namelist() if name.endswith("/METADATA"))
        text = wheel.read(name).decode().partition("\n\n")[2]
    assert text.startswith("# rmqlog")
    links = re.findall(r"\]\(([^)]+)\)", text) + re.findall(r"^\[[^\]]+\]: (\S+)$", text, re.MULTILINE)
    assert len(links) > 30
    assert all(link.startswith("https://") for link in links)
    assert sum(link.endswith(".svg") for link in links) == 3
    for link in links:  # the paths lead to files of this version
        path = re.sub(r"^https://[\w./-]+?/v0\.1\.0/", "", link).partition("#")[0]
        assert path.startswith("https://") or (ROOT / path).exists(), link


def test_a_plain_installation_works(clean: Path, golden: Golden) -> None:
    store = str(golden(STORE))
    assert "No broken requirements" in _run(
        sys.executable, "-m", "pip", "--python", str(clean / "bin" / "python"), "check"
    )
    rmqlog, python = str(clean / "bin" / "rmqlog"), str(clean / "bin" / "python")
    assert "Usage: rmqlog" in _run(rmqlog, "--help", directory=clean)
    topics = json.loads(_run(rmqlog, "ls", store, "-o", "json", directory=clean))
    assert {row["topic"]: row["messages"] for row in topics}["Orders"] == 1326
    read = _run(python, "-c", READ, store, directory=clean).splitlines()
    assert read[0] == "1326"
    assert "pip install 'altair>=" in read[1]


@pytest.mark.whole  # CI has the next test, which uses the same extra
def test_the_extra_all_brings_spark_charts_and_pandas(clean: Path, golden: Golden) -> None:
    store = str(golden(STORE))
    python = str(clean / "bin" / "python")
    _link(_brought(_required_by(clean), {"all"}), clean)
    assert _run(python, "-c", SPARK, store, directory=clean).splitlines()[-1] == "1326"
    assert _run(python, "-c", PICTURES, store, directory=clean).splitlines()[-1] == "True"
    assert (clean / "lag.svg").read_text(encoding="utf-8").startswith("<svg")


def test_what_the_readme_tells_to_type_first_runs_there(
    clean: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: bool
) -> None:
    """The lines behind `pip install`: the environment has what that line installs, and in CI the compiled
    kernels of the checkout.
    """
    if not whole:
        monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
        (tmp_path / "rmqlog").mkdir()
        for kernel in (ROOT / "store_format").rglob("__pycache__/*.kernel"):
            shutil.copy(kernel, tmp_path / "rmqlog")
    first = next(blocks((ROOT / "README.md").read_text(encoding="utf-8")))
    install, *lines = first.text.replace("/tmp/", f"{tmp_path}/").splitlines()[2:]
    assert install == "pip install '.[all]'"
    _link(_brought(_required_by(clean), {"all"}), clean)
    printed = [_run("bash", "-c", line, directory=clean) for line in lines]
    assert "32,560 messages of three days" in printed[0]
    assert re.search(r"^CG_report +Orders +19,750 ", printed[-1], re.MULTILINE)


@pytest.mark.whole  # downloads the wheels
def test_it_is_installed_without_a_network(tmp_path: Path) -> None:
    """The commands of docs/deploy.md: the second and third need what the first one has downloaded."""
    page = (ROOT / "docs/deploy.md").read_text(encoding="utf-8")
    section = page.partition("## Install without a network")[2].partition("\n## ")[0]
    build, install, doctor = [
        line for block in re.findall(r"```text\n(.*?)```", section, re.DOTALL) for line in block.splitlines()
    ]
    for name in ("machine", "node"):
        _run(sys.executable, "-m", "venv", str(tmp_path / name))
    build = build.replace("wheel . ", f"wheel {ROOT} ").replace("wheels", str(tmp_path / "wheels"))
    _run("bash", "-c", build, directory=tmp_path / "machine")
    assert f"The directory has {len(list((tmp_path / 'wheels').iterdir()))} wheels" in section
    _run("bash", "-c", install.replace("wheels", str(tmp_path / "wheels")), directory=tmp_path / "node")
    said = _run("bash", "-c", doctor, directory=tmp_path / "node")  # Spark that is absent is no failure
    assert re.search("^absent +pyspark +not installed", said, re.MULTILINE)
