"""The types of the fixtures in tests/conftest.py, and the numbers of examples."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

from hypothesis import settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession as SparkSession
else:
    SparkSession = object  # a process without a test of Spark does not import it

Golden = Callable[[str], Path]
Unchanged = Callable[[Path], AbstractContextManager[None]]


def examples(factor: int) -> int:
    """So many times the number of examples of the profile: 60 in a run of all tests, 200 in the proofs."""
    assert settings.default is not None
    return factor * settings.default.max_examples
