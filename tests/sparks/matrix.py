"""Runs the cells on one line of Spark, a process for each kind of session."""

from __future__ import annotations

import json
import os
import subprocess
import sysconfig
from collections.abc import Iterable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from tests.sparks.cells import Cell, Kind
from tests.sparks.environments import ENVIRONMENTS, ROOT, locked, python_of, site_of
from tests.support.spark.fast_start import SHORT_LIVED

_RUN_S = 900
_OURS = ("rmq_spark", "store_format", "pyspark_rmqlog.py")
_NOT_FOR_WORKERS = (*_OURS, "pyspark", "pandas")  # each has its own PySpark; nothing of ours needs pandas


def run_cells(line: str, cells: Iterable[Cell], directory: Path) -> dict[str, Any]:
    """Returns the version of Spark and what each cell saw, in the order of `cells`."""
    python = python_of(line)
    chosen = list(cells)
    kinds: dict[Kind, list[str]] = {}
    for cell in chosen:
        kinds.setdefault(cell.kind, []).append(cell.name)
    found: dict[str, Any] = {}
    for kind, names in kinds.items():
        base = directory / kind
        base.mkdir(parents=True)
        workers = _bare_python(line, python, base) if kind == "by-value" else python
        with locked(ENVIRONMENTS / kind) if kind == "connect" else nullcontext():  # its port is fixed
            seen = _run(python, workers, kind, base, names)
        found |= {"spark": seen["spark"], "cells": found.get("cells", {}) | seen["cells"]}
    found["cells"] = {cell.name: found["cells"][cell.name] for cell in chosen}
    return found


def _run(python: Path, workers: Path, kind: Kind, base: Path, names: list[str]) -> dict[str, Any]:
    unwanted = ("PYTHON", "PYSPARK_", "SPARK_HOME", "SPARK_REMOTE", "SPARK_CONNECT")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(unwanted)}
    environment |= {
        # Here, if it is set, Spark looks for formats; the program runs in `python`.
        "PYSPARK_DRIVER_PYTHON": str(workers),
        "PYSPARK_PYTHON": str(workers),
        "SPARK_CONF_DIR": str(ROOT / "conf"),
        "SPARK_SUBMIT_OPTS": SHORT_LIVED,
        "TZ": "UTC",
    }
    command = [str(python), "-m", "tests.sparks.program", kind, str(base), *names]
    done = subprocess.run(
        command, cwd=base, env=environment, capture_output=True, text=True, check=False, timeout=_RUN_S
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}\n{(base / 'stderr').read_text('utf-8')}"
    seen: dict[str, Any] = json.loads((base / "seen.json").read_text(encoding="utf-8"))
    return seen


def _bare_python(line: str, python: Path, base: Path) -> Path:
    """A Python that has PySpark and all other packages, but not this project.

    `-S` because an editable install puts the project on the path of every Python of this environment.
    """
    bare, site = base / "python", base / "site-packages"
    site.mkdir()
    for directory in {sysconfig.get_paths()[kind] for kind in ("purelib", "platlib")}:
        for entry in os.scandir(directory):
            if not entry.name.endswith(".pth") and entry.name not in _NOT_FOR_WORKERS:
                (site / entry.name).symlink_to(entry.path)
    path = f"{site_of(line)}:{site}"
    # Spark sets PYTHONPATH itself, for its own packages and for the files of the driver.
    bare.write_text(f'#!/bin/sh\nPYTHONPATH="$PYTHONPATH:{path}" exec "{python}" -S "$@"\n', encoding="utf-8")
    bare.chmod(0o755)
    return bare
