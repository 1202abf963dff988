"""An older commit beside this checkout: its files, its own measurements among them, and an environment with
its own requirements.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tarfile
import venv
from importlib.metadata import distributions
from io import BytesIO
from pathlib import Path

from benchmarks.sides import Version

ROOT = Path(__file__).resolve().parent.parent
_PLACE = ROOT / "build" / "bench"


def this_version() -> Version:
    """The code of this checkout, with the environment that runs."""
    return Version(ROOT, Path(sys.executable))


def check_out(commit: str) -> Version:
    """The code of `commit`, below build/bench, with an environment of its own that is created once.

    Packages that both commits need have the same versions in both environments, so that only the code
    differs.
    """
    place = _PLACE / git("rev-parse", "--verify", f"{commit}^{{commit}}")
    version = Version(place / "tree", place / "venv" / "bin" / "python")
    if not (place / "complete").exists():
        shutil.rmtree(place, ignore_errors=True)
        _extract(place.name, version.tree)
        _install(place, version)
        (place / "complete").touch()
    if not (version.tree / "benchmarks" / "side.py").exists():
        raise ValueError(f"{commit} has no benchmarks/side.py: give a later commit")
    return version


def cases_of(tree: Path) -> dict[str, int]:
    """The form of each part that the measurements of a commit have: see cases.json."""
    path = tree / "benchmarks" / "cases.json"
    if not path.exists():  # of before the file: the first form of all parts
        return dict.fromkeys(cases_of(ROOT), 1)
    found: dict[str, int] = json.loads(path.read_text(encoding="utf-8"))
    return found


def git(*arguments: str) -> str:
    """What git prints about this checkout. Raises CalledProcessError outside of a clone."""
    done = subprocess.run(["git", "-C", str(ROOT), *arguments], stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout.strip()


def _extract(commit: str, tree: Path) -> None:
    command = ["git", "-C", str(ROOT), "archive", commit]
    archive = subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout
    with tarfile.open(fileobj=BytesIO(archive)) as files:
        files.extractall(tree, filter="data")


def _install(place: Path, version: Version) -> None:
    venv.create(place / "venv", with_pip=True)
    constraints = place / "constraints"
    own = {"rmqlog", "rmq-spark", "rmq_spark"}  # the distribution, also of older commits
    pins = {each.metadata["Name"]: each.version for each in distributions()}
    constraints.write_text("".join(f"{name}=={pin}\n" for name, pin in pins.items() if name not in own))
    pip = [str(version.python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    # Spark's Python workers import pandas where it is installed: in both environments, or in none
    also = [name for name in ("pandas",) if name in pins]
    subprocess.run([*pip, "-c", str(constraints), "-e", f"{version.tree}[spark,cli]", *also], check=True)
