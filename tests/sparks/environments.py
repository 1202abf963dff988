"""An environment for each line of Spark: PySpark alone, with all other packages of the environment that runs
the tests.

`.venvs/spark-4.0` has the newest 4.0.x of the package index. It is made once, and again when pyproject.toml
or the Python changes. PySpark is published as a source archive, from which pip builds a wheel in half a
minute of CPU. The archive has the same files, so they are unpacked where an installation has them: 4 s.
Directories replace the zips of Python modules that Spark gives its workers: of a module in a zip, each of
their processes compiles the source again.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PathDistribution, version
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENTS = ROOT / ".venvs"
LINES = ("4.0", "4.1", "4.2", "4.3")

_UNREACHABLE = ("Could not find a version", "ConnectionError", "Connection refused", "Read timed out")
_DOWNLOAD_S = 900

# Where `setup.py` of PySpark installs what is beside its package in the archive.
_PLACES = {
    "deps/jars": "pyspark/jars",
    "deps/bin": "pyspark/bin",
    "deps/sbin": "pyspark/sbin",
    "deps/data": "pyspark/data",
    "lib": "pyspark/python/lib",
}


class UnreachableIndexError(Exception):
    """The package index does not answer."""


def python_of(line: str) -> Path:
    """The Python of the environment for a line such as "4.0", which is made if it is missing or outdated.

    Raises UnreachableIndexError if PySpark cannot be downloaded.
    """
    environment = ENVIRONMENTS / f"spark-{line}"
    with locked(environment):
        stamp = environment / "made-for"
        if not stamp.exists() or stamp.read_text(encoding="utf-8") != _made_for():
            shutil.rmtree(environment, ignore_errors=True)
            _make(line, environment)
            stamp.write_text(_made_for(), encoding="utf-8")
    return environment / "bin" / "python"


def site_of(line: str) -> Path:
    """The directory that contains PySpark and nothing else of the environment."""
    return ENVIRONMENTS / f"spark-{line}" / "site"


def _made_for() -> str:
    project = hashlib.sha256((ROOT / "pyproject.toml").read_bytes()).hexdigest()
    return f"{sys.executable} {sys.version}\npyproject.toml {project}\n"


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Holds a lock beside `path`, for which other processes of the tests wait."""
    path.parent.mkdir(exist_ok=True)
    with open(f"{path}.lock", "w", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _make(line: str, environment: Path) -> None:
    archives = environment / "download"
    archives.mkdir(parents=True)
    _pip("download", "--no-deps", "--dest", str(archives), f"pyspark=={line}.*")
    (archive,) = archives.iterdir()
    _unpack(archive, environment / "site")
    shutil.rmtree(archives)
    _install_py4j(environment / "site")
    _replace_zips(environment / "site")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(environment)], check=True)
    # In this order: the first PySpark of the path is imported. `addsitedir` reads the .pth of the checkout.
    shared = sorted({sysconfig.get_paths()[kind] for kind in ("purelib", "platlib")})
    lines = [str(environment / "site"), *(f"import site; site.addsitedir({path!r})" for path in shared)]
    (own,) = environment.glob("lib/python*/site-packages")
    (own / "packages.pth").write_text("\n".join(lines) + "\n", encoding="utf-8")


def _unpack(archive: Path, site: Path) -> None:
    """Unpacks PySpark and its metadata into the directory `site`."""
    unpacked = site.with_name("unpacked")
    with tarfile.open(archive) as file:
        file.extractall(unpacked, filter="data")
    (root,) = unpacked.iterdir()
    for source, target in _PLACES.items():
        (root / source).rename(root / target)
    site.mkdir()
    for name in ("pyspark", "pyspark.egg-info"):
        (root / name).rename(site / name)
    shutil.rmtree(unpacked)


def _install_py4j(site: Path) -> None:
    """Installs the Py4J that this PySpark requires, if the tests have another one."""
    required = PathDistribution(site / "pyspark.egg-info").requires or []
    (py4j,) = (text for text in required if re.match(r"py4j\b", text))
    if not Requirement(py4j).specifier.contains(version("py4j")):
        _pip("install", "--no-deps", "--target", str(site), py4j)


def _replace_zips(site: Path) -> None:
    """Puts a directory with a link to the package in the place of each zip."""
    for archive in list((site / "pyspark" / "python" / "lib").glob("*.zip")):
        name = archive.name.partition("-")[0].removesuffix(".zip")
        own = site / name
        package = own if own.exists() else Path(sysconfig.get_path("purelib")) / name
        archive.unlink()
        archive.mkdir()
        (archive / name).symlink_to(package)


def _pip(*arguments: str) -> None:
    command = [sys.executable, "-m", "pip", *arguments, "--quiet", "--disable-pip-version-check"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=False, timeout=_DOWNLOAD_S
    )
    output = f"{done.stdout}\n{done.stderr}"
    if done.returncode and any(text in output for text in _UNREACHABLE):
        raise UnreachableIndexError(output[-300:])
    assert done.returncode == 0, f"{' '.join(command)}\n{output}"
