"""Runs cells in the Spark of the Python that runs it: `python -m tests.sparks.program KIND DIRECTORY CELL …`.

Writes `DIRECTORY/seen.json`: for each cell what it saw, or the error it ended with.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.sparks.cells import Case, Cell
from tests.sparks.table import cells_in_order

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def main(kind: str, directory: Path, *names: str) -> None:
    stderr = directory / "stderr"
    with stderr.open("ab") as file:
        os.dup2(file.fileno(), 2)  # Spark's JVM and its Python processes inherit it
    spark = _session(kind, directory)
    case = Case(spark, directory, stderr)
    (directory / "golden").mkdir()
    found: dict[str, Any] = {"spark": spark.version, "cells": {}}
    for cell in cells_in_order():
        if cell.name in names:
            found["cells"][cell.name] = _run(cell, case)
            # after each cell: if Spark hangs or dies, this says where
            (directory / "seen.json").write_text(json.dumps(found), encoding="utf-8")
    spark.stop()


def _session(kind: str, directory: Path) -> SparkSession:
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2]") if kind != "connect" else None
    if builder is None:
        builder = SparkSession.builder.remote("local[2]")
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
    }
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def _run(cell: Cell, case: Case) -> dict[str, Any]:
    start = time.monotonic()
    try:
        seen = cell.run(case)
    except Exception:
        return {"error": traceback.format_exc()}
    return {"outcome": seen.outcome, "facts": seen.facts, "seconds": time.monotonic() - start}


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), *sys.argv[3:])
