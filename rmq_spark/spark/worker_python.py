"""Whether Spark's Python workers can import this project: a warning before the first query fails."""

from __future__ import annotations

import logging
import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_log = logging.getLogger("rmq_spark")

_LIBRARIES = ("numba", "numpy", "pyarrow")
_PACKAGES = ("rmq_spark", "store_format")
_SECONDS_MAX = 30
# Runs in the other Python. Workers find the archives of SparkContext.addPyFile in the directory of files.
_MISSING = """
import importlib.util, os, sys
files, *names = sys.argv[1:]
sys.path[:0] = [files, *(os.path.join(files, name) for name in os.listdir(files))]
print(*(name for name in names if importlib.util.find_spec(name) is None))
"""


def warn_of_worker_python(spark: SparkSession, *, by_value: bool) -> None:
    """Logs a warning if the Python that Spark starts on this machine lacks a module that a query imports.

    Spark starts it also to plan a query, so that a cluster needs it here as well as on the executors. A
    session of Spark Connect is not looked at: its workers run on the server.
    """
    context = getattr(spark, "sparkContext", None)  # raises AttributeError in Spark Connect
    if context is None or context.pythonExec == sys.executable:
        return
    from pyspark import SparkFiles

    names = _LIBRARIES if by_value else (*_LIBRARIES, *_PACKAGES)
    missing = missing_modules(context.pythonExec, names, SparkFiles.getRootDirectory())
    if missing:
        _log.warning(
            "the Python of Spark's workers, %s, has no %s: a query ends with ModuleNotFoundError there. Set "
            "the environment variable PYSPARK_PYTHON to a Python that has them, such as %s, before the Spark "
            "session starts%s",
            context.pythonExec,
            ", ".join(missing),
            sys.executable,
            "" if by_value else "; or call rmq_spark.register(spark, by_value=True). See rmqlog doctor",
        )


def missing_modules(python: str, names: tuple[str, ...], files: str) -> list[str]:
    """The modules that the program `python` does not find; none if it does not run, which Spark reports.

    `files` is the directory of the session's files (`SparkFiles.getRootDirectory()`).
    """
    command = [python, "-c", _MISSING, files, *names]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=_SECONDS_MAX)
    except (OSError, subprocess.SubprocessError):
        return []
    return done.stdout.split()
