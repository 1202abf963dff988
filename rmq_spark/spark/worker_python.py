"""What Spark's Python workers lack: warnings before the first query fails, or compiles in each process."""

from __future__ import annotations

import logging
import subprocess
import sys
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_log = logging.getLogger("rmq_spark")

_LIBRARIES = ("numba", "numpy", "pyarrow")
_PACKAGES = ("rmq_spark", "store_format")
_CACHE = "NUMBA_CACHE_DIR"
_SECONDS_MAX = 30
# Spark's workers run the PYSPARK_PYTHON of this process, which spark-submit sets by the setting. In the
# builder of a session the setting comes too late (tests/spark/test_by_value.py).
_IGNORED = (
    "spark.pyspark.python is %s, but Spark's workers run %s: Spark takes this setting from spark-submit "
    "only. Set the environment variable PYSPARK_PYTHON before the Spark session starts"
)
_NOT_KEPT = (
    "the code is sent with each query, so executors keep its compiled loops in the home directory of their "
    "user. They read with slower plain code, then compile for about 15 s of CPU: once for each home "
    "directory, or in each Python process if the user has none. Set spark.executorEnv."
    f"{_CACHE} to a directory that has the compiled loops (docs/howto-cluster.md)"
)
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
    if context is None:
        return
    given = context.getConf().get("spark.pyspark.python")
    if given is not None and given != context.pythonExec:
        _warn_once(context.applicationId, _IGNORED, given, context.pythonExec)
    if by_value and not context.master.startswith("local") and _CACHE not in context.environment:
        _warn_once(context.applicationId, _NOT_KEPT)
    if context.pythonExec == sys.executable:
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


@cache
def _warn_once(application: str, text: str, *values: str) -> None:
    """Once for each Spark application: `register` is called in each thread that writes."""
    _log.warning(text, *values)


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
