"""Which modules the Python of Spark's workers lacks. tests/spark/test_cluster.py has the warning."""

from __future__ import annotations

import sys
from pathlib import Path
from zipfile import ZipFile

from rmq_spark.spark.worker_python import missing_modules


def test_a_python_without_a_module(tmp_path: Path) -> None:
    assert missing_modules(sys.executable, ("numpy", "store_format", "no_such_module"), str(tmp_path)) == [
        "no_such_module"
    ]


def test_an_added_file_counts(tmp_path: Path) -> None:
    with ZipFile(tmp_path / "added.zip", "w") as archive:
        archive.writestr("no_such_module.py", "")
    assert missing_modules(sys.executable, ("no_such_module",), str(tmp_path)) == []


def test_a_python_that_does_not_run_is_left_to_spark(tmp_path: Path) -> None:
    assert missing_modules(str(tmp_path / "python"), ("numpy",), str(tmp_path)) == []
