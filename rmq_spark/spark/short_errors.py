"""Errors of this project arrive in Spark as one sentence, without the Python traceback that leads to it.

Spark's worker sends the driver the traceback of an exception. For a `StoreError` its frames are those of
Spark and of this project: 9 to 40 lines above the sentence that the user needs. Spark has a switch, the
environment variable SPARK_HIDE_TRACEBACK (`spark.sql.execution.pyspark.udf.hideTraceback.enabled`, which is
for all exceptions). A worker ends after it has sent an exception. So the switch, set when our exception
passes, hides no other traceback. Other exceptions, which are bugs, keep theirs.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import pyarrow as pa

from store_format.errors import StoreError

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")

_HIDE = "SPARK_HIDE_TRACEBACK"
_WANTED = "SPARK_TRACEBACK_WITH_LOCALS"  # spark.sql.execution.pyspark.udf.tracebackWithLocals.enabled


def short_errors(method: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
    """Decorates a method that Spark calls."""

    @wraps(method)
    def call(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Result:
        try:
            return method(*args, **kwargs)
        except StoreError:
            _hide_traceback()
            raise

    return call


def short_errors_of_rows(
    method: Callable[_Arguments, Iterator[pa.RecordBatch]],
) -> Callable[_Arguments, Iterator[pa.RecordBatch]]:
    """Decorates a method `read`, whose errors come while Spark iterates over the batches."""

    @wraps(method)
    def rows(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> Iterator[pa.RecordBatch]:
        try:
            yield from method(*args, **kwargs)
        except StoreError:
            _hide_traceback()
            raise

    return rows


def _hide_traceback() -> None:
    """Sets Spark's switch, if this process is a worker of Spark and the session does not ask for more."""
    if _in_worker(sys.modules["__main__"]) and not os.environ.get(_WANTED):
        os.environ[_HIDE] = "1"


def _in_worker(main: Any) -> bool:  # Any: a module
    """Whether `main` is a program of Spark's: `python -m pyspark.daemon`, or the runner of a stream."""
    spec = getattr(main, "__spec__", None)
    return spec is not None and spec.name.startswith("pyspark.")
